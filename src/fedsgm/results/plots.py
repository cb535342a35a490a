"""Pictures of a run: the objective and every constraint against rounds, each seed and their mean, and the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.results import drawing
from fedsgm.results.method import Method
from fedsgm.results.result import Result


def plot(result: Result, path: Path) -> None:
    """One panel for the objective (log scale), or the reward, and one for each constraint, with its bound in red."""
    drawing.check_format(path)
    drawing.write(figure_of(result), path)


def figure_of(result: Result) -> Any:
    rewarded = "reward" in result.history and "reward" not in result.bounds
    names = ["reward" if rewarded else "objective", *result.bounds]
    figure, axes = drawing.grid(len(names), 4.6, 3.6)
    for axis, name in zip(axes, names, strict=True):
        _panel(axis, result, name)
    drawing.legend_below(figure, axes)
    figure.suptitle(drawing.no_formula(Method.of(result.settings).title), fontsize=10)
    return figure


def _panel(axis: Any, result: Result, name: str) -> None:
    values = result.history[name]
    _spread(axis, result.history, name)
    _lines(axis, values, result.settings["seeds"])
    _answers(axis, result, name)
    told = f"{name} {'of each client' if f'{name}_best' in result.history else 'over all clients'}"
    axis.grid(alpha=0.25)
    if name in result.bounds:
        finite = [bound for bound in result.ranges[name] if np.isfinite(bound)]
        drawing.bounds(axis, finite, [values], label="bound")
        told += f", bound {' and '.join(f'{b:g}' for b in finite)}"
    elif name == "objective" and (values > 0).any() and not (values <= 0).any() and not np.isinf(values).any():
        drawing.plain_log(axis)
    axis.set_xlabel("round")
    axis.set_title(drawing.title(told), fontsize=11)
    drawing.rounds_from_one(axis, values.shape[1])


def _lines(axis: Any, values: np.ndarray, seeds: list[int]) -> None:
    measured = np.flatnonzero(~np.isnan(values).all(axis=0))
    mark = "o" if len(measured) == 1 else None
    several = len(seeds) > 1
    for i, row in enumerate(values if several else ()):
        label = None if i else "each seed"
        axis.plot(measured + 1, row[measured], color="tab:blue", alpha=0.3, linewidth=0.8, marker=mark, label=label)
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


def _answers(axis: Any, result: Result, name: str) -> None:
    """A mark where each seed's answer was found; a private run's is at the end, and no round's."""
    rounds = result.answer_round
    seeds = np.flatnonzero(rounds)
    of_rounds = result.history[name][seeds, rounds[seeds] - 1]
    found = result.values["train"][name][-1, seeds] if result.private else of_rounds
    label = "answer" if len(rounds) == 1 else "answers"
    axis.plot(rounds[seeds], found, color="black", linestyle="none", marker="D", markersize=4.5, label=label, zorder=3)
