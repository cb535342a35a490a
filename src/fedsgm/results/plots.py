"""Pictures of a run: the objective and every constraint against rounds, each seed and their mean, and the answers."""

from __future__ import annotations

import io
import warnings
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
        _lines(axis, result.history[name], result.settings["seeds"])
        _answers(axis, result.history[name], result.answer_round)
        shown = name.replace("$", r"\$")  # a name from a user's table is no formula
        axis.set(xlabel="round", title=f"{shown} over all clients")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.grid(alpha=0.25)
        if name in result.bounds:
            bound = result.bounds[name]
            axis.axhline(bound, color="red", linestyle=":", linewidth=1.6, label=f"bound {bound:g}")
            _limits(axis, result.history[name], bound)
        elif name == "objective" and (result.history[name] > 0).any() and not (result.history[name] <= 0).any():
            axis.set_yscale("log")
        axis.legend(loc="lower right" if name == "reward" else "upper right", frameon=False, fontsize=9)
    figure.suptitle(Method.of(result.settings).title, fontsize=10)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())


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


def _answers(axis: Any, values: np.ndarray, rounds: np.ndarray) -> None:
    """A mark where each seed's answer was found."""
    seeds = np.flatnonzero(rounds)
    found = values[seeds, rounds[seeds] - 1]
    label = "answer" if len(rounds) == 1 else "answers"
    axis.plot(rounds[seeds], found, color="black", linestyle="none", marker="D", markersize=4.5, label=label, zorder=3)


def _limits(axis: Any, values: np.ndarray, bound: float) -> None:
    """Show the band around the bound; the first rounds may start far above it."""
    settled = values[:, values.shape[1] // 2 :]
    settled = settled[np.isfinite(settled)]
    if settled.size and bound > 0:
        axis.set_ylim(min(0, settled.min()), max(3 * bound, 1.1 * settled.max()))
