"""Lines of a figure: a method whose step size is tuned, run on every split with every seed, and how it is drawn."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsgm.paper.study import Claim, Load, Run, Scale, Table
from fedsgm.results.result import RECENT, Result

GRID = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 0.0001)
QUICK_GRID = (1.0, 0.1)


@dataclasses.dataclass(frozen=True)
class Data:
    """What a line is run on: once for each split of the examples."""

    name: str
    load: Callable[[int, bool, float], tuple[Any, Any, Any, Any]]  # of the split, whether centralised, and the margin
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

    ``steps`` are the sizes to try. With a ``margin``, the method gets a bound lower by it, and the real one judges it.
    """

    label: str
    algorithm: Callable[[float], Any]
    centralised: bool = False
    margin: float = 0.0
    steps: Sequence[float] = GRID

    def runs(self, data: Data, scale: Scale) -> list[Run]:
        return [self._run(data, step, split) for step in self._steps(scale) for split in range(data.splits)]

    def tuned(self, data: Data, results: Mapping[str, Result], scale: Scale) -> Tuned:
        """With the best of its step sizes."""
        return best([self.at(step, data, results) for step in self._steps(scale)])

    def at(self, step: float, data: Data, results: Mapping[str, Result]) -> Tuned:
        """With this step size."""
        runs = [results[self._run(data, step, split).name] for split in range(data.splits)]
        return Tuned(self, data, step, runs)

    def _steps(self, scale: Scale) -> Sequence[float]:
        return [step for step in self.steps if step in QUICK_GRID] or self.steps[:1] if scale.quick else self.steps

    def _run(self, data: Data, step: float, split: int) -> Run:
        algorithm = self.algorithm(step)
        each = data.local_steps // algorithm.local_steps if self.centralised else 1
        load: Load = functools.partial(data.load, split, self.centralised, self.margin)
        return Run(
            name=f"{data.name}, {self.label}, step {step:g}, split {split}",
            algorithm=algorithm,
            load=load,
            data=f"{data.name}, split {split}, margin {self.margin:g}{', centralised' * self.centralised}",
            rounds=data.rounds * each,
            seeds=data.seeds,
            evaluate_every=data.every * each,
        )


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A line with its step size; arrays have a row for each split and seed."""

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
        """[run, round], as often as it was measured."""
        return self._measured("objective")

    @property
    def constraint(self) -> np.ndarray:
        return self._measured(self.constraint_name)

    @property
    def bound(self) -> float:
        """The bound that is judged by."""
        return next(iter(self.results[0].bounds.values())) + self.line.margin

    @property
    def settled(self) -> np.ndarray:
        """Every run's mean objective over the last rounds."""
        return self.objective[:, self.data.recent].mean(axis=1)

    @property
    def within(self) -> np.ndarray:
        """Of every run's last rounds, the share within the bound."""
        return (self.constraint[:, self.data.recent] <= np.float32(self.bound)).mean(axis=1)

    @property
    def kept(self) -> np.ndarray:
        """Whether a run is within the bound in most of its last rounds."""
        return self.within > 0.5

    @property
    def kept_splits(self) -> np.ndarray:
        """Whether the runs of a split are, over all of them, within the bound in most of their last rounds."""
        return self.within.reshape(len(self.results), -1).mean(axis=1) > 0.5

    @property
    def level(self) -> np.ndarray:
        """Every run's mean constraint over the last rounds."""
        return self.constraint[:, self.data.recent].mean(axis=1)

    @property
    def swing(self) -> np.ndarray:
        """Every run's standard deviation of the constraint over the last rounds."""
        return self.constraint[:, self.data.recent].std(axis=1)

    def ended(self, part: str, name: str) -> np.ndarray:
        """Every run's last parameters' value."""
        return np.concatenate([result.value(part, name, "last") for result in self.results])

    def seeds(self) -> list[str]:
        return [
            f"split {split}, seed {seed}"
            for split, result in enumerate(self.results)
            for seed in result.settings["seeds"]
        ]

    def _measured(self, name: str) -> np.ndarray:
        return np.concatenate([result.history[name][:, result.evaluated()] for result in self.results])


def best(tried: Sequence[Tuned]) -> Tuned:
    """The one with most runs within the bound in most of their last rounds, and of those the least objective."""
    return min(tried, key=lambda one: (-int(one.kept.sum()), np.nan_to_num(one.settled.mean(), nan=np.inf)))


def summary(lines: Sequence[Tuned]) -> Table:
    """One row a line, over all splits and seeds."""
    header = [
        "line",
        "step size",
        "objective, last 100 rounds",
        "constraint, there",
        "runs within in most of them",
        "splits, likewise",
        "worst constraint there",
        "end: train f / g",
        "end: test f / g",
    ]
    return Table("Over all splits and seeds", header, [_row(line) for line in lines])


def _row(line: Tuned) -> list[str]:
    recent = line.constraint[:, line.data.recent]
    ends = [
        " / ".join(f"{line.ended(part, name).mean():.4f}" for name in ("objective", line.constraint_name))
        for part in ("train", "test")
    ]
    return [
        line.label,
        f"{line.step:g}",
        f"{line.settled.mean():.4f} ± {line.settled.std():.4f}",
        f"{recent.mean():.4f}",
        f"{line.kept.sum()} of {len(line.kept)}",
        f"{line.kept_splits.sum()} of {len(line.kept_splits)}",
        f"{recent.max():.4f}",
        *ends,
    ]


def by_seed(lines: Sequence[Tuned]) -> Table:
    """Every run's end, f / g and the share of its last rounds within the bound: one row a split and seed."""
    columns = [
        [
            f"{f:.4f} / {g:.4f} / {within:.0%}"
            for f, g, within in zip(
                line.ended("train", "objective"), line.ended("train", line.constraint_name), line.within, strict=True
            )
        ]
        for line in lines
    ]
    rows = [list(row) for row in zip(lines[0].seeds(), *columns, strict=True)]
    title = "Every seed: f / g at the end on training data / rounds of the last 100 within the bound"
    return Table(title, ["run", *(line.label for line in lines)], rows, folded=True)


def compared(says: str, what: str, smaller: tuple[str, np.ndarray], larger: tuple[str, np.ndarray]) -> Claim:
    """A claim that one line's numbers are below another's: on average over pairs, by more than two standard errors."""
    (low, a), (high, b) = smaller, larger
    difference = b - a
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.inf
    mean = difference.mean()
    measured = (
        f"{what}: {low} {a.mean():.4g}, {high} {b.mean():.4g}; "
        f"difference {mean:.2g} ± {error:.1g} over {len(difference)} runs"
    )
    return Claim(says, measured, bool(mean > 2 * error))


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
    above_axis: Mapping[str, Any]
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
        top.set(title=title, **look.above_axis)
        bottom.set(xlabel="round", ylim=(0, look.highest))
        bottom.axhline(bound, color="red", linestyle=":", linewidth=1.8, label=f"{word} {bound:g}")
        bottom.legend(fontsize=8, frameon=False, ncols=2, loc="upper right")
        for axis in (top, bottom):
            axis.grid(alpha=0.25)
    axes[0, 0].set_ylabel(look.above)
    axes[1, 0].set_ylabel(look.below)
    figure.suptitle(f"{mark(scale)}{look.title}", fontsize=10, wrap=True)
    return figure


def panels(columns: Mapping[str, Sequence[Tuned]], scale: Scale, *, bound: float, names: tuple[str, str]) -> Any:
    """The picture of tuned lines: the objective above, the constraint with its bound below."""
    runs = len(next(iter(columns.values()))[0].kept)
    title = f"mean and standard deviation over {runs} runs"
    look = Look(*names, ("bound", bound), 3 * bound, {"yscale": "log"}, 1.0, title)
    curves = {
        name: [
            Curve(line.label, line.objective, line.constraint, line.data.every, line.line.centralised) for line in lines
        ]
        for name, lines in columns.items()
    }
    return picture(curves, look, scale)


def mark(scale: Scale) -> str:
    """What a picture of a first look must say."""
    return "QUICK LOOK, few seeds and rounds: " if scale.quick else ""
