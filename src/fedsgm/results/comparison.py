"""Several runs or settings side by side: one table, and one picture of objective against violation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.results import drawing
from fedsgm.results.method import Method
from fedsgm.results.result import Result, excess
from fedsgm.results.verdict import aligned, bound_in_words, number

NOTE = "The numbers are those of the answers (result.answer), but for the last column."

_PARTS = {"train": "training", "test": "held out"}


@dataclasses.dataclass(frozen=True)
class Row:
    """What one run or setting came to, seed by seed: the answer's true values on the training data."""

    label: str
    kind: str  # rows of a kind share a colour
    seeds: Sequence[int]
    objective: Sequence[float]
    constraints: Mapping[str, Sequence[float]]
    excess: Sequence[float]  # how far past a bound at most
    feasible_rounds: Sequence[float]  # the share of the last 100 rounds within every bound
    ranges: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)  # of what is no upper bound
    more: dict[str, str] = dataclasses.field(default_factory=dict)  # other columns, by their heads
    good: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)  # how often right, or R2, by part
    problem: str = ""  # which it is of: objectives of different problems are not compared

    @classmethod
    def of(cls, label: str, result: Result, kind: str = "answer") -> Row:
        """Of the run's parameters of this kind."""
        values = {name: result.value("train", name, kind).tolist() for name in result.values["train"]}
        return cls(
            label,
            Method.of(result.settings).kind,
            result.settings["seeds"],
            values.pop("objective"),
            values,
            result.excess("train", kind).tolist(),
            result.feasible_rounds.tolist(),
            result.ranges,
            good=_good(result),
        )

    @property
    def feasible(self) -> bool:
        """Whether every seed is within every bound."""
        return bool((np.asarray(self.excess) <= 0).all())

    @property
    def worst(self) -> float:
        """The worst seed's excess; not a number if one diverged."""
        return float(np.max(self.excess))

    def worst_of(self, name: str) -> float:
        """The constraint's value for the seed that is worst in it."""
        values = np.asarray(self.constraints[name])
        return float(values[np.argmax(excess(values, self.ranges.get(name, (-np.inf, 0))))])

    @property
    def mean(self) -> float:
        return float(np.mean(self.objective))


def _good(result: Result) -> dict[str, Sequence[float]]:
    """Of a fit, whose model was compared with others: how good it is, in a column for each part."""
    compared = result.settings.get("model", {}).get("compared")
    if compared is None:
        return {}
    found = compared["model"]["good"]
    return {f"{compared['measure']}, {told}": [found[part]] for part, told in _PARTS.items() if part in found}


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The feasible ones by objective, then the others by how far they are past a bound."""

    def key(row: Row) -> tuple[bool, float]:
        value = row.mean if row.feasible else row.worst
        return not row.feasible, value if np.isfinite(value) else np.inf

    return sorted(rows, key=key)


def of_finished(label: str, result: Result) -> Row:
    """The row of a run by itself: with its bounds, and what problem it is of."""
    more = {f"bound on {name}": bound_in_words(allowed) for name, allowed in result.ranges.items()}
    problem = json.dumps([result.settings["problem"], result.ranges], sort_keys=True, default=str)
    return dataclasses.replace(Row.of(label, result), more=more, problem=problem)


def _names(rows: Sequence[Row]) -> list[str]:
    """Every row's constraints."""
    return list(dict.fromkeys(name for row in rows for name in row.constraints))


def table(rows: Sequence[Row]) -> str:
    """One line a row: the mean objective, the worst seed of each constraint, and how often it is feasible."""
    names = _names(rows)
    more = list(dict.fromkeys(head for row in rows for head in row.more))
    good = list(dict.fromkeys(head for row in rows for head in row.good))
    last = ["over by", "seeds feasible", "last 100 rounds"]
    lines = [["", "objective", *(f"{name} (worst)" for name in names), *more, *good, *last]]
    for row in rows:
        within = int((np.asarray(row.excess) <= 0).sum())
        lines.append(
            [
                row.label,
                number(row.mean),
                *(number(row.worst_of(name)) if name in row.constraints else "" for name in names),
                *(row.more.get(head, "") for head in more),
                *(number(float(np.mean(row.good[head]))) if head in row.good else "" for head in good),
                "within" if row.worst <= 0 else number(row.worst),
                f"{within} of {len(row.excess)}",
                f"{np.mean(row.feasible_rounds):.0%}",
            ]
        )
    return aligned(lines)


def best(rows: Sequence[Row]) -> str:
    """The feasible row with the lowest objective, in a sentence."""
    if not _comparable(rows):
        why = "the runs are of different problems or bounds, whose objectives say nothing of each other"
        return f"Not ranked: {why}{_apart(rows)}."
    first = ranked(rows)[0]
    if not first.feasible:
        return "Best feasible: none; no answer is within every bound for every seed."
    seeds = "one seed" if len(first.seeds) == 1 else f"mean of {len(first.seeds)} seeds"
    return f"Best feasible: {first.label}, objective {number(first.mean)} ({seeds})."


def _apart(rows: Sequence[Row]) -> str:
    """Where two runs bound one thing differently: which, and what to do."""
    for name in _names(rows):
        told: dict[str, str] = {}
        for row in rows:
            allowed = row.ranges.get(name)
            told.setdefault("no bound" if allowed is None else bound_in_words(allowed), row.label)
        if len(told) > 1:
            (one, first), (other, second), *_ = told.items()
            return f" ({name}: {one} of {first}, {other} of {second}); run them again with the same bounds to rank them"
    return "; compare runs of one problem to rank them"


def _comparable(rows: Sequence[Row]) -> bool:
    return len({row.problem for row in rows}) == 1


def plot(rows: Sequence[Row], path: Path, runs: Sequence[Result] = ()) -> None:
    """Objective against violation, one point a seed; with ``runs``, their course in panels beside it."""
    drawing.check_format(path)
    from matplotlib import colormaps

    at = {
        name: sorted({b for run in runs for b in run.ranges.get(name, ()) if np.isfinite(b)}) for name in _names(rows)
    }
    panels = ["objective", *at] if runs else []
    figure, (*axes, scatter) = drawing.grid(len(panels) + 1, 4.4 if runs else 6.4, 4.2)
    palette = [colormaps["tab10"](i) for i in range(10)]
    kinds = [row.label if runs else row.kind for row in rows]
    colours = {kind: palette[i % len(palette)] for i, kind in enumerate(dict.fromkeys(kinds))}
    for axis, name in zip(axes, panels, strict=True):
        shown = [(kind, *_course(run, name)) for kind, run in zip(kinds, runs, strict=True) if name in run.history]
        _courses(axis, name, shown, colours, at)
    _points(scatter, rows, kinds, colours)
    drawing.legend_below(figure, [scatter], 8)
    figure.suptitle(drawing.no_formula(best(rows)), fontsize=9, wrap=True)
    drawing.write(figure, path)


Course = tuple[str, np.ndarray, np.ndarray]
"""A line of a panel: its kind, the gradient steps and the values there."""


def _courses(
    axis: Any, name: str, shown: Sequence[Course], colours: Mapping[str, Any], at: Mapping[str, Sequence[float]]
) -> None:
    """A panel of the runs' courses, with the bounds on what it shows."""
    for kind, steps, values in shown:
        axis.plot(steps, values, color=colours[kind], linewidth=1.4, marker="o" if len(steps) == 1 else None)
    axis.set(xlabel="gradient steps (rounds x E)", ylabel=drawing.title(name, 40))
    axis.set_title(drawing.title(f"{name}, mean over seeds"), fontsize=11)
    axis.grid(alpha=0.25)
    if name in at:
        drawing.bounds(axis, at[name], [values for *_, values in shown])
    else:
        _log(axis, np.concatenate([values for *_, values in shown]))


def _points(axis: Any, rows: Sequence[Row], kinds: Sequence[str], colours: Mapping[str, Any]) -> None:
    """Objective against violation, and a ring about the best row's."""
    axis.margins(0.08)
    for i, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
        label = None if kind in kinds[:i] else drawing.no_formula(kind)
        axis.scatter(row.excess, row.objective, color=colours[kind], s=22, alpha=0.7, label=label)
    winner = ranked(rows)[0]
    if winner.feasible and _comparable(rows):
        ring = {"facecolors": "none", "edgecolors": "black", "linewidths": 1.2}
        axis.scatter(winner.excess, winner.objective, s=110, label="best feasible", **ring)
    axis.axvline(0, color="red", linestyle=":", linewidth=1.6)
    axis.set(xlabel="furthest past a bound (feasible: left of 0)", ylabel="objective")
    axis.set_title("each seed", fontsize=11)
    axis.grid(alpha=0.25)
    _near_and_far(axis, np.abs([e for row in rows for e in row.excess if np.isfinite(e) and e != 0]))
    _log(axis, np.concatenate([row.objective for row in rows]))


def _near_and_far(axis: Any, apart: np.ndarray) -> None:
    """A scale on which points far past a bound do not press the near ones onto it."""
    if not apart.size or apart.max() <= 10 * np.median(apart):
        axis.locator_params(axis="x", nbins=4)
        return
    width = float(np.median(apart))
    axis.set_xscale("asinh", linear_width=width)
    powers = 10.0 ** np.arange(np.ceil(np.log10(width)), np.log10(apart.max()))
    ticks = [*-powers[::-1], 0, *powers]  # its own crowd around zero
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def _course(run: Result, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A run's values, mean over seeds, against the gradient steps that a client has taken."""
    measured = np.flatnonzero(run.evaluated())
    steps = (measured + 1) * Method.of(run.settings).local_steps
    return steps, run.history[name][:, measured].mean(axis=0)


def _log(axis: Any, values: np.ndarray) -> None:
    finite = values[np.isfinite(values)]
    if finite.size and (finite > 0).all():
        drawing.plain_log(axis)
