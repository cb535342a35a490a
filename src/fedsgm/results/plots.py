"""Pictures of a run: the objective and every constraint against rounds, each seed and their mean, and the answers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.results.method import Method
from fedsgm.results.result import Result

FORMATS = (".png", ".svg", ".pdf")


def plot(result: Result, path: Path) -> None:
    """One panel for the objective (log scale), or the reward, and one for each constraint, with its bound in red."""
    check_format(path)
    from matplotlib.figure import Figure

    rewarded = "reward" in result.history and "reward" not in result.bounds
    names = ["reward" if rewarded else "objective", *result.bounds]
    figure = Figure(figsize=(4.6 * len(names), 3.6), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        _spread(axis, result.history, name)
        _lines(axis, result.history[name], result.settings["seeds"])
        _answers(axis, result.history[name], result.answer_round)
        shown = no_formula(name)
        whose = "of each client" if f"{name}_best" in result.history else "over all clients"
        axis.set(xlabel="round", title=f"{shown} {whose}")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.grid(alpha=0.25)
        if name in result.bounds:
            finite = [bound for bound in result.ranges[name] if np.isfinite(bound)]
            bounds(axis, finite, [result.history[name]], label=f"bound {' and '.join(f'{b:g}' for b in finite)}")
        elif name == "objective" and (result.history[name] > 0).any() and not (result.history[name] <= 0).any():
            axis.set_yscale("log")
        axis.legend(loc="lower right" if name == "reward" else "upper right", frameon=False, fontsize=9)
    figure.suptitle(no_formula(Method.of(result.settings).title), fontsize=10)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())


def no_formula(text: str) -> str:
    """A name from a user's table or of a folder, as it is: between two dollars there is no formula."""
    return text.replace("$", r"\$")


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise SettingError(f"{path}: a picture's name must end in {', '.join(FORMATS)}")


def _lines(axis: Any, values: np.ndarray, seeds: list[int]) -> None:
    measured = np.flatnonzero(~np.isnan(values).all(axis=0))
    mark = "o" if len(measured) == 1 else None
    several = len(seeds) > 1
    for row in values if several else ():
        axis.plot(measured + 1, row[measured], color="tab:blue", alpha=0.3, linewidth=0.8, marker=mark)
    label = f"mean of {len(seeds)} seeds" if several else f"seed {seeds[0]}"
    axis.plot(measured + 1, values[:, measured].mean(axis=0), color="tab:blue", linewidth=1.6, marker=mark, label=label)


def _spread(axis: Any, history: dict[str, np.ndarray], name: str) -> None:
    """Of a constraint on each client: from the best client to the worst, and the median, means over seeds."""
    if f"{name}_best" not in history:
        return
    best, median, worst = (history[f"{name}_{which}"].mean(axis=0) for which in ("best", "median", "worst"))
    measured = np.flatnonzero(~np.isnan(best))
    band = (best[measured], worst[measured])
    axis.fill_between(measured + 1, *band, color="tab:gray", alpha=0.2, linewidth=0, label="best to worst client")
    axis.plot(measured + 1, median[measured], color="tab:gray", linewidth=1.0, label="median client")


def _answers(axis: Any, values: np.ndarray, rounds: np.ndarray) -> None:
    """A mark where each seed's answer was found."""
    seeds = np.flatnonzero(rounds)
    found = values[seeds, rounds[seeds] - 1]
    label = "answer" if len(rounds) == 1 else "answers"
    axis.plot(rounds[seeds], found, color="black", linestyle="none", marker="D", markersize=4.5, label=label, zorder=3)


def bounds(axis: Any, at: Sequence[float], courses: Sequence[np.ndarray], *, label: str | None = None) -> None:
    """The bounds in red, and the band about them that [..., rounds] courses end in; they may start far from it."""
    for i, bound in enumerate(at):
        axis.axhline(bound, color="red", linestyle=":", linewidth=1.6, label=None if i else label)
    settled = np.concatenate([values[..., values.shape[-1] // 2 :].ravel() for values in courses])
    settled = settled[np.isfinite(settled)]
    if settled.size and at[0] > 0:
        axis.set_ylim(min(0, settled.min()), max(3 * at[-1], 1.1 * settled.max()))
