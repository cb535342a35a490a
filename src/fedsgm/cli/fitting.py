"""The runs of a fit: with its constraints and without them, with room for what new data may show, at several bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsgm.base.errors import SettingError
from fedsgm.cli import building
from fedsgm.cli.flags import RunFlags
from fedsgm.cli.listening import Heard, nobody
from fedsgm.cli.setups import widths

if TYPE_CHECKING:
    from fedsgm.core.problem import Problem
    from fedsgm.data.table import Table
    from fedsgm.results.result import Result
    from fedsgm.tables.dealing import Prepared
    from fedsgm.tables.grammar import Wanted
    from fedsgm.tables.models import MLP
    from fedsgm.tables.sanity import Comparison
    from fedsgm.tables.trade_off import Point

_DEALT = ("target", "client_by", "clients", "task", "positive", "weight", "test_fraction")


class ModelName(StrEnum):
    logistic = "logistic"
    mlp = "mlp"


def layers_of(model: ModelName, hidden: str | None) -> tuple[int, ...]:
    """The widths of the hidden layers."""
    if hidden is not None and model is ModelName.logistic:
        raise SettingError(f"--hidden {hidden}: a logistic model has no hidden layers; add --model mlp")
    return widths(hidden or "64") if model is ModelName.mlp else ()


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """A table as it was read, and the constraints that were said."""

    rows: Table
    wanted: Sequence[Wanted]

    @classmethod
    def read(cls, table: Path, own: Mapping[str, Any]) -> Given:
        """By the flags of a fit that are its own."""
        from fedsgm.data.reading import Written, read_table
        from fedsgm.tables import grammar

        wanted = [grammar.parse(text) for text in own["constraint"] or []]
        written = Written(own["separator"], own["decimal"], own["encoding"])
        return cls(read_table(table, written=written, used=lambda name: name not in (own["drop"] or [])), wanted)

    def prepared(self, seed: int, own: Mapping[str, Any]) -> Prepared:
        """Dealt out and held out, by the same flags."""
        from fedsgm.tables.dealing import prepare

        deal = {name: own[name] for name in _DEALT}
        return prepare(self.rows, wanted=self.wanted, seed=seed, drop=own["drop"] or [], **deal)


@dataclasses.dataclass(frozen=True)
class Fitting:
    """A model of a prepared table, and how to train it."""

    flags: RunFlags
    prepared: Prepared
    layers: tuple[int, ...]
    weigh: str
    heard: Heard = nobody

    @classmethod
    def of(
        cls, flags: RunFlags, prepared: Prepared, layers: tuple[int, ...], weigh: str, heard: Heard = nobody
    ) -> Fitting:
        """With the step size that is the model's, unless it is told."""
        return cls(for_model(flags, prepared.target.model(layers)), prepared, layers, weigh, heard)

    def problem(self, wanted: Sequence[Wanted]) -> Problem:
        from fedsgm.tables.fit import make_problem

        return make_problem(self.net, wanted, self.prepared, self.weigh)

    def notes(self, wanted: Sequence[Wanted]) -> tuple[str, ...]:
        """What to know before a run."""
        from fedsgm.base.describe import describe
        from fedsgm.tables import sanity

        rule = describe(building.algorithm(self.flags, self.params)).get("rule", {})
        return (*self.prepared.notes, *sanity.at_odds(rule, self.problem(wanted).ranges))

    @property
    def net(self) -> MLP:
        return self.prepared.target.model(self.layers)

    @property
    def params(self) -> Any:
        return self.net.init(len(self.prepared.encoder.features), seed=self.flags.seed)

    def run(self, problem: Problem, name: str | None = None) -> Result:
        """A run; one beside the fit itself has a name, and its checkpoint a folder of that name."""
        apart = self.flags.checkpoint if name is None else self.flags.checkpoint and self.flags.checkpoint / name
        flags = dataclasses.replace(self.flags, checkpoint=apart)
        given = (self.prepared.clients, self.params, self.prepared.test)
        return building.simulate(flags, problem, *given, callbacks=self.heard(name or ""))

    def free(self, problem: Problem) -> Result:
        """Without the constraints."""
        from fedsgm.tables import sanity

        return self.run(sanity.unbounded(problem), "unconstrained")

    def confident(self, problem: Problem, result: Result, confidence: float) -> Result:
        """Again, as far within the bounds as held-out rows must show with this confidence."""
        from fedsgm.tables import confidence as limits

        train, test = self.prepared.clients.together()[0], self.prepared.test
        assert test is not None
        margins = limits.margins(problem, result.answer, train, len(test["y"]), confidence)
        again = self.run(limits.tightened(problem, margins), "confident")
        return dataclasses.replace(again, ranges=result.ranges)

    def compared(self, problem: Problem, result: Result, free: Result | None) -> Comparison:
        from fedsgm.tables import sanity

        return sanity.compare(self.net, problem, self.prepared, result, free)

    def worthwhile(
        self, problem: Problem, result: Result, free: Result | None, name: str = "worthwhile"
    ) -> tuple[Result, Comparison]:
        """The run and what it is beside the others; again, if it is worse than a constant answer, and better then."""
        from fedsgm.tables import sanity

        first = self.compared(problem, result, free)
        if not first.worse or first.measure != sanity.RIGHT:
            return result, first
        again = self.run(sanity.as_right(problem, self.net, first.constant), name)
        second = self.compared(problem, again, free)
        return (result, first) if second.worse else (again, second)


def for_model(flags: RunFlags, model: MLP) -> RunFlags:
    """The flags with the step size that is the model's, unless it is told."""
    from fedsgm.tables import recipe

    return flags if flags.step_size is not None else dataclasses.replace(flags, step_size=recipe.step_size(model))


def check_confidence(confidence: float | None, test_fraction: float) -> None:
    if confidence is None:
        return
    if not 0.5 <= confidence < 1:
        raise SettingError(f"--confidence {confidence:g}: it must be from 0.5 to below 1, such as 0.95")
    if test_fraction == 0:
        raise SettingError(f"--confidence {confidence:g}: held-out rows show it, but --test-fraction is 0")


def points(fitting: Fitting, wanted: Sequence[Wanted], at: Sequence[Wanted]) -> list[Point]:
    """One seed's answers at each bound of the first constraint, without constraints, and the best constant one."""
    from fedsgm.tables.trade_off import CONSTANT, FREE, Point

    seed, found, name = fitting.flags.seed, [], wanted[0].name
    free = fitting.free(fitting.problem(wanted))
    for one in at:
        problem = fitting.problem([one, *wanted[1:]])
        result = fitting.run(problem, f"bound {one.bound:g}")
        result, compared = fitting.worthwhile(problem, result, free, f"bound {one.bound:g}, worthwhile")
        values = {part: float(result.value(part, name, "answer")[0]) for part in compared.model.good}
        found.append(Point(f"{one.bound:g}", seed, compared.model.good, values, compared.model.within))
    unconstrained, constant = compared.unconstrained, compared.constant
    assert unconstrained is not None
    values = {part: float(free.value(part, name, "answer")[0]) for part in unconstrained.good}
    found.append(Point(FREE, seed, unconstrained.good, values, unconstrained.within))
    same = dict.fromkeys(constant.good, constant.values[name])
    found.append(Point(CONSTANT, seed, constant.good, same, constant.within))
    return found
