"""A result at a prompt, in a notebook and as a table of pandas."""

from __future__ import annotations

import base64
import html
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.showing import table
from fedsgm.results import drawing, plots, verdict
from fedsgm.results.result import Result

_DPI = 80


def in_a_line(result: Result) -> str:
    """Whether it is feasible, the answer's values, and how much was run."""
    ends = {name: result.value("train", name, "answer") for name in ("objective", *result.bounds)}
    values = [f"{name} {verdict.number(np.mean(each))}" for name, each in ends.items()]
    seeds = len(result.settings["seeds"])
    size = f"{result.settings['rounds']} rounds, {seeds} seed{'' if seeds == 1 else 's'}"
    return f"Result({_word(result)}: {', '.join(values)}; {size})"


def _word(result: Result) -> str:
    if not result.bounds:
        return "no constraint"
    return "feasible" if result.feasible.all() else "NOT FEASIBLE"


def as_html(result: Result) -> str:
    """The answer's values with their bounds, the picture of the run, and the verdict folded under them."""
    parts = list(result.values)
    rows = []
    for name in ("objective", *result.bounds):
        bound = verdict.bound_in_words(result.ranges[name]) if name in result.bounds else ""
        each = [result.value(part, name, "answer") for part in parts]
        rows.append([name, bound, *(_range(values) for values in each)])
    first, *rest = result.verdict().splitlines()
    picture = base64.b64encode(drawing.encoded(plots.figure_of(result), ".png", _DPI)).decode()
    return (
        f"{table(first, rows, ['answer', 'bound', *parts])}"
        f"<img alt='objective and constraints against rounds' src='data:image/png;base64,{picture}'>"
        f"<details><summary>the whole verdict</summary><pre>{html.escape(chr(10).join([first, *rest]))}</pre></details>"
    )


def _range(values: np.ndarray) -> str:
    low, high = verdict.number(values.min()), verdict.number(values.max())
    return low if low == high else f"{low} .. {high}"


def frame(result: Result) -> Any:
    """One row a seed and round."""
    try:
        import pandas as pd
    except ImportError:
        raise SettingError(
            "to_frame: pandas is not installed; pip install pandas, or read history.parquet of a saved run"
        ) from None
    seeds, rounds = result.settings["seeds"], result.settings["rounds"]
    columns: dict[str, Any] = {"seed": np.repeat(seeds, rounds), "round": np.tile(np.arange(1, rounds + 1), len(seeds))}
    for name, values in result.history.items():
        rows = values.reshape(len(seeds) * rounds, *values.shape[2:])
        columns[name] = rows if rows.ndim == 1 else list(rows)
    return pd.DataFrame(columns)
