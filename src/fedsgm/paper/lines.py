"""Lines of a figure: a method whose step size is tuned, run on every split with every seed, and how it is drawn."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsgm.paper.study import Load, Run, Scale, Table
from fedsgm.results import drawing
from fedsgm.results.result import RECENT, Result

GRID = (1.0, 0.3, 0.1, 0.03)
QUICK_GRID = (1.0, 0.1)
LASTING = 20  # rounds over which a target must be kept


@dataclasses.dataclass(frozen=True)
class Data:
    """What a line is run on: once for each split of the examples."""

    name: str
    load: Callable[[int, bool, Any], tuple[Any, Any, Any, Any]]  # of the split, whether centralised, and the variant
    splits: int
    seeds: int
    rounds: int
    local_steps: int  # E: a centralised method takes rounds x E steps
    every: int = 1  # rounds between two measurements

    @property
    def recent(self) -> slice:
        """The measurements of the last 100 rounds, or of a shorter run's last fifth."""
        return slice(-(min(RECENT, self.rounds // 5) // self.every), None)


@dataclasses.dataclass(frozen=True)
class Line:
    """A method, as a function of its step size.

    Args:
        label: what a picture calls it.
        algorithm: of the step size.
        centralised: whether all examples are with one client.
        steps: the sizes to try.
        name: what its runs are called, the label unless told; lines of one name share their runs.
        variant: of the data and the problem, if there are several.
        sampled: whether a seed changes anything; if not, one is enough.
    """

    label: str
    algorithm: Callable[[float], Any]
    centralised: bool = False
    steps: Sequence[float] = GRID
    name: str | None = None
    variant: str | float | None = None
    sampled: bool = True

    def runs(self, data: Data, scale: Scale) -> list[Run]:
        return [self._run(data, step, split) for step in self._steps(scale) for split in range(data.splits)]

    def tried(self, data: Data, results: Mapping[str, Result], scale: Scale) -> list[Tuned]:
        """With each of its step sizes."""
        return [self.at(step, data, results) for step in self._steps(scale)]

    def tuned(self, data: Data, results: Mapping[str, Result], scale: Scale) -> Tuned:
        """With the best of its step sizes."""
        return best(self.tried(data, results, scale))

    def at(self, step: float, data: Data, results: Mapping[str, Result]) -> Tuned:
        """With this step size."""
        runs = [results[self._run(data, step, split).name] for split in range(data.splits)]
        return Tuned(self, data, step, runs)

    def _steps(self, scale: Scale) -> Sequence[float]:
        return [step for step in self.steps if step in QUICK_GRID] or self.steps[:1] if scale.quick else self.steps

    def _run(self, data: Data, step: float, split: int) -> Run:
        algorithm = self.algorithm(step)
        each = data.local_steps // algorithm.local_steps if self.centralised else 1
        load: Load = functools.partial(data.load, split, self.centralised, self.variant)
        variant = "" if self.variant is None else f", {self.variant}"
        return Run(
            name=f"{data.name}{variant}, {self.name or self.label}, step {step:g}, split {split}",
            algorithm=algorithm,
            load=load,
            data=f"{data.name}, split {split}{variant}{', centralised' * self.centralised}",
            rounds=data.rounds * each,
            seeds=data.seeds if self.sampled else 1,
            evaluate_every=data.every * each,
        )


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A line with its step size; arrays have a row for each split and a column for each seed."""

    line: Line
    data: Data
    step: float
    results: Sequence[Result]

    @property
    def label(self) -> str:
        return self.line.label

    @property
    def constraint_name(self) -> str:
        return next(iter(self.results[0].bounds))

    @property
    def objective(self) -> np.ndarray:
        """[split, seed, round], as often as it was measured."""
        return self.measured("objective")

    @property
    def constraint(self) -> np.ndarray:
        return self.measured(self.constraint_name)

    @property
    def bound(self) -> float:
        return next(iter(self.results[0].bounds.values()))

    @property
    def settled(self) -> np.ndarray:
        """Every run's mean objective over the last rounds."""
        return self.objective[..., self.data.recent].mean(axis=-1)

    @property
    def violated(self) -> np.ndarray:
        """Of all of a run's rounds, the share over the bound."""
        return (self.constraint > np.float32(self.bound)).mean(axis=-1)

    @property
    def within(self) -> np.ndarray:
        """Of every run's last rounds, the share within the bound."""
        return (self.constraint[..., self.data.recent] <= np.float32(self.bound)).mean(axis=-1)

    @property
    def kept(self) -> np.ndarray:
        """Whether a run is within the bound in most of its last rounds."""
        return self.within > 0.5

    @property
    def kept_splits(self) -> np.ndarray:
        """Whether the runs of a split are, over all of them, within the bound in most of their last rounds."""
        return self.within.mean(axis=1) > 0.5

    @property
    def level(self) -> np.ndarray:
        """Every run's mean constraint over the last rounds."""
        return self.constraint[..., self.data.recent].mean(axis=-1)

    @property
    def swing(self) -> np.ndarray:
        """Every run's standard deviation of the constraint over the last rounds."""
        return self.constraint[..., self.data.recent].std(axis=-1)

    def rounds_to(self, objective: float, constraint: float, *, steadily: bool = False) -> np.ndarray:
        """The round from which on a run has both for some time, or all rounds there are if it never has.

        It has them if it does so on average over that time, so that swings around a level count for nothing; with
        ``steadily``, if it does so in every round.
        """
        window = max(1, LASTING // self.data.every)
        f, g = (
            np.lib.stride_tricks.sliding_window_view(values, window, axis=-1)
            for values in (self.objective, self.constraint)
        )
        of_all = np.max if steadily else np.mean
        lasting = (of_all(f, axis=-1) <= objective) & (of_all(g, axis=-1) <= constraint)
        return np.where(lasting.any(axis=-1), self.data.every * (lasting.argmax(axis=-1) + 1), self.data.rounds)

    def ended(self, part: str, name: str, kind: str = "last") -> np.ndarray:
        """The value of every run's last parameters, or of others."""
        return np.stack([result.value(part, name, kind) for result in self.results])

    def measured(self, name: str) -> np.ndarray:
        return np.stack([result.history[name][:, result.evaluated()] for result in self.results])


def best(tried: Sequence[Tuned]) -> Tuned:
    """The one with most runs within the bound in most of their last rounds, and of those the least objective."""
    return min(tried, key=lambda one: (-int(one.kept.sum()), np.nan_to_num(one.settled.mean(), nan=np.inf)))


def summary(lines: Sequence[Tuned], of: str = "") -> Table:
    """One row a line, over all splits and seeds; ``of`` says what of, where a study has several."""
    header = [
        "line",
        "step size",
        "objective, last 100 rounds",
        "constraint, there",
        "its swing, there",
        "runs within in most of them",
        "splits, likewise",
        "all rounds over the bound",
        "end: train f / g",
        "average: train f / g",
        "end: test f / g",
    ]
    return Table(f"{of}Means over all splits and seeds", header, [_row(line) for line in lines])


def _row(line: Tuned) -> list[str]:
    ends = [
        " / ".join(f"{line.ended(part, name, kind).mean():.4f}" for name in ("objective", line.constraint_name))
        for part, kind in (("train", "last"), ("train", "average"), ("test", "last"))
    ]
    return [
        line.label,
        f"{line.step:g}",
        f"{line.settled.mean():.4f}",
        f"{line.level.mean():.4f}",
        f"{line.swing.mean():.4f}",
        f"{line.kept.sum()} of {line.kept.size}",
        f"{line.kept_splits.sum()} of {len(line.kept_splits)}",
        f"{line.violated.mean():.0%}",
        *ends,
    ]


def by_split(lines: Sequence[Tuned], of: str = "") -> Table:
    """Every split's end, f / g and the share of its last rounds within the bound, means over its seeds."""
    rows = []
    for split in range(lines[0].data.splits):
        row = [f"split {split}"]
        for line in lines:
            values = (line.ended("train", "objective"), line.ended("train", line.constraint_name), line.within)
            f, g, within = (value[split].mean() for value in values)
            row.append(f"{f:.4f} / {g:.4f} / {within:.0%}")
        rows.append(row)
    title = f"{of}Every split: f / g at the end on training data / rounds of the last 100 within the bound"
    return Table(title, ["split", *(line.label for line in lines)], rows, folded=True)


COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:pink", "tab:gray", "tab:olive")


def _draw(axis: Any, values: np.ndarray, curve: Curve, colour: str, spread: float) -> None:
    """The mean of the runs against rounds, with a band of so many standard deviations."""
    t = curve.every * np.arange(1, values.shape[1] + 1)
    mean, deviation = values.mean(axis=0), spread * values.std(axis=0)
    axis.plot(t, mean, color=colour, linewidth=1.4, linestyle="--" if curve.dashed else "-", label=curve.label)
    low = np.maximum(mean - deviation, values.min(axis=0))  # on a log scale, a band below all runs has no end
    axis.fill_between(t, low, mean + deviation, color=colour, alpha=0.15, linewidth=0)


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line of a picture: its [run, measurement] values above and below, and the rounds between measurements."""

    label: str
    above: np.ndarray
    below: np.ndarray
    every: int
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Look:
    """How a picture of two rows looks: the names of what is above and below, the line to stay under, and the limits."""

    above: str
    below: str
    bound: tuple[str, float]
    highest: float
    above_limits: tuple[float, float] | None  # None is a logarithmic scale
    spread: float
    title: str


def picture(columns: Mapping[str, Sequence[Curve]], look: Look, scale: Scale) -> Any:
    """A column of two panels for each group of curves; the bound is a red dotted line below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(columns), 6.4), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
    word, bound = look.bound
    for column, (title, curves) in enumerate(columns.items()):
        top, bottom = axes[:, column]
        for curve, colour in zip(curves, COLOURS, strict=False):
            for axis, values in ((top, curve.above), (bottom, curve.below)):
                _draw(axis, values, curve, colour, look.spread)
        top.set_title(title)
        bottom.set(xlabel="round", ylim=(0, look.highest))
        drawing.rounds_from_one(bottom, curves[0].every * curves[0].below.shape[1])
        bottom.axhline(bound, color="red", linestyle=":", linewidth=1.8, label=f"{word} {bound:g}")
        bottom.legend(fontsize=8, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))
        for axis in (top, bottom):
            axis.grid(alpha=0.25)
    if look.above_limits is None:
        drawing.plain_log(axes[0, 0])
    else:
        axes[0, 0].set_ylim(*look.above_limits)
    axes[0, 0].set_ylabel(look.above)
    axes[1, 0].set_ylabel(look.below)
    figure.suptitle(f"{mark(scale)}{look.title}", fontsize=10, wrap=True)
    return figure


def panels(columns: Mapping[str, Sequence[Tuned]], scale: Scale, *, bound: float, names: tuple[str, str]) -> Any:
    """The picture of tuned lines: the objective above, the constraint with its bound below."""
    first = next(iter(columns.values()))[0]
    title = f"lines: means; bands: one standard deviation to each side; of the runs on {first.data.splits} splits"
    look = Look(*names, ("bound", bound), 3 * bound, None, 1.0, title)
    curves = {
        name: [
            Curve(line.label, _rows(line.objective), _rows(line.constraint), line.data.every, line.line.centralised)
            for line in lines
        ]
        for name, lines in columns.items()
    }
    return picture(curves, look, scale)


def _rows(values: np.ndarray) -> np.ndarray:
    """[run, measurement], of splits and seeds."""
    return values.reshape(-1, values.shape[-1])


def mark(scale: Scale) -> str:
    """What a picture of a first look must say."""
    return "QUICK LOOK, few seeds and rounds: " if scale.quick else ""
