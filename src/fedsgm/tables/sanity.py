"""Is a fitted model worth having: beside the best constant answer, and beside itself without its constraints.

A model that is within every bound may still be of no use: to answer "no" to everybody has no gap between groups, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsgm.base.structs import replaced
from fedsgm.core.problem import Constraint, Problem
from fedsgm.engines import recording
from fedsgm.results.result import Result, excess
from fedsgm.results.verdict import number
from fedsgm.tables.dealing import Prepared
from fedsgm.tables.fairness import accuracy
from fedsgm.tables.models import MLP
from fedsgm.tables.targets import Target

RIGHT, SQUARED = "right", "R2"  # how good: the share of the rows that is right, or of a number R squared


@dataclasses.dataclass(frozen=True)
class Answer:
    """What some way of answering comes to.

    Attributes:
        good: how good it is, as :meth:`Target.quality` measures it, by part, ``"train"`` and perhaps ``"test"``.
        values: the constraints' values on the training rows.
        within: whether these are within every bound.
    """

    name: str
    good: dict[str, float]
    values: dict[str, float]
    within: bool

    def told(self, measure: str) -> str:
        held = f" ({_told(self.good['test'], measure).removesuffix(' right')} held out)" if "test" in self.good else ""
        values = "".join(f", {name} {number(value)}" for name, value in self.values.items())
        return f"{self.name}: {_told(self.good['train'], measure)}{held}{values}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A model beside what could be had without it."""

    model: Answer
    unconstrained: Answer | None  # None where it was not run
    constants: tuple[Answer, ...]
    measure: str = RIGHT
    hindered: bool = True  # whether the constraints were ever in the way

    @property
    def constant(self) -> Answer:
        """The best constant answer: within every bound if one is, and then the best."""
        return max(self.constants, key=lambda answer: (answer.within, answer.good["train"]))

    @property
    def worse(self) -> bool:
        """Whether a constant answer is within every bound, and the model is not or is not as good."""
        best = self.constant
        return best.within and not (self.model.within and self.model.good["train"] >= best.good["train"])

    def lines(self) -> list[str]:
        """A warning if there is need of one, and the model beside the others."""
        best = self.constant
        told = [_told(answer.good["train"], self.measure) for answer in (best, self.model)]
        warning = (
            f"WORSE THAN A CONSTANT: {best.name}: {told[0]} on the training rows, within every bound; the model: "
            f"{told[1]}{'' if self.model.within else ', past a bound'}."
        )
        same = "" if self.hindered else "  without the constraints: the same, they were never in the way"
        within = "within every bound" if best.within else "past a bound"
        return [
            *([warning] if self.worse else []),
            f"  {self.unconstrained.told(self.measure)}" if self.unconstrained else same,
            f"  {best.name}: {told[0]}, {within}",
        ]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Comparison:
        other = stored["unconstrained"]
        constants = tuple(Answer(**each) for each in stored["constants"])
        free = None if other is None else Answer(**other)
        return cls(Answer(**stored["model"]), free, constants, stored["measure"], stored["hindered"])


def unbounded(problem: Problem) -> Problem:
    """The same problem, compiled to the same program, with bounds that nothing is past."""

    def free(constraint: Constraint) -> Constraint:
        bound = -np.inf if constraint.sense == ">=" else np.inf
        return replaced(constraint, bound=bound, least=None if constraint.least is None else -np.inf)

    return replaced(problem, constraints=tuple(map(free, problem.constraints)))


def as_right(problem: Problem, model: MLP, other: Answer) -> Problem:
    """The same problem with one constraint more: to be right as often as another answer on the training rows."""
    right = accuracy(model.score, name=f"right as often as {other.name}")
    return replaced(problem, constraints=(*problem.constraints, right >= other.good["train"]))


def in_the_way(result: Result) -> bool:
    """Whether some round went to a constraint, in part at least."""
    return bool(result.history["weight"].any())


def measure(target: Target) -> str:
    return RIGHT if target.classes else SQUARED


def always(model: MLP, like: Any, target: Target) -> dict[str, Any]:
    """The parameters of every constant answer, by its name; of the same form as ``like``."""
    names = [f"always {label!r}" for label in target.classes] or ["always the mean"]
    return {name: model.constant(like, label) for label, name in enumerate(names)}


def constants(model: MLP, like: Any, problem: Problem, prepared: Prepared) -> tuple[Answer, ...]:
    """What every constant answer comes to."""
    answers = always(model, like, prepared.target)
    measured = recording.values_of(problem, prepared.clients, list(answers.values()))
    return tuple(
        _judged(name, model, params, problem, prepared, values)
        for (name, params), values in zip(answers.items(), measured, strict=True)
    )


def compare(
    model: MLP, problem: Problem, prepared: Prepared, result: Result, unconstrained: Result | None
) -> Comparison:
    """The answer of a run, of a run of :func:`unbounded`, and every constant one; of runs with one seed."""

    def of(name: str, run: Result) -> Answer:
        values = {each: float(run.value("train", each, "answer")[0]) for each in problem.names}
        return _judged(name, model, run.answer, problem, prepared, values)

    return Comparison(
        of("the model", result),
        None if unconstrained is None else of("without the constraints", unconstrained),
        constants(model, result.answer, problem, prepared),
        measure(prepared.target),
        in_the_way(result),
    )


def judged(name: str, good: dict[str, float], values: Mapping[str, float], problem: Problem) -> Answer:
    """An answer that is so good, with these values of the constraints."""
    own = {each: float(values[each]) for each in problem.names}
    past = [excess(np.asarray(own[each], np.float32), allowed) for each, allowed in problem.ranges.items()]
    return Answer(name, good, own, bool(all(each <= 0 for each in past)))


def _judged(
    name: str, model: MLP, params: Any, problem: Problem, prepared: Prepared, values: Mapping[str, float]
) -> Answer:
    parts = {"train": prepared.clients.together()[0]} | ({} if prepared.test is None else {"test": prepared.test})
    good = {
        part: prepared.target.quality(model.scores(params, examples["x"]), examples["y"])
        for part, examples in parts.items()
    }
    return judged(name, good, values, problem)


def _told(good: float, measure: str) -> str:
    return f"{good:.1%} {RIGHT}" if measure == RIGHT else f"{measure} {good:.2f}"


def at_odds(rule: dict[str, Any], ranges: dict[str, tuple[float, float]]) -> Sequence[str]:
    """What to know before a run: that a setting and a bound do not go together."""
    if rule.get("is") != "Soft":
        return []
    width = 1 / rule["beta"]
    tight = {name: high for name, (_, high) in ranges.items() if np.isfinite(high) and high < width}
    return [
        f"the soft rule with beta {rule['beta']:g} weighs {name} from {width:g} below its bound of {high:g}, even at "
        f"0; take --beta {np.ceil(4 / high) if high > 0 else np.inf:g} or more, or --rule adaptive"
        for name, high in tight.items()
    ]
