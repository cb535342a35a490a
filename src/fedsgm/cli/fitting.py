"""The runs of a fit: with its constraints and without them, with room for what new data may show, at several bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedsgm.base.errors import SettingError
from fedsgm.cli import building
from fedsgm.cli.flags import RunFlags

if TYPE_CHECKING:
    from fedsgm.core.problem import Problem
    from fedsgm.results.result import Result
    from fedsgm.tables.dealing import Prepared
    from fedsgm.tables.grammar import Wanted
    from fedsgm.tables.models import MLP
    from fedsgm.tables.sanity import Comparison
    from fedsgm.tables.trade_off import Point


@dataclasses.dataclass(frozen=True)
class Fitting:
    """A model of a prepared table, and how to train it."""

    flags: RunFlags
    prepared: Prepared
    layers: tuple[int, ...]
    weigh: str

    def problem(self, wanted: Sequence[Wanted]) -> Problem:
        from fedsgm.tables.fit import make_problem

        return make_problem(self.net, wanted, self.prepared, self.weigh)

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
        return building.simulate(flags, problem, self.prepared.clients, self.params, self.prepared.test)

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
        compared = fitting.compared(problem, result, free)
        values = {part: float(result.value(part, name, "answer")[0]) for part in compared.model.good}
        found.append(Point(f"{one.bound:g}", seed, compared.model.good, values, compared.model.within))
    unconstrained, constant = compared.unconstrained, compared.constant
    assert unconstrained is not None
    values = {part: float(free.value(part, name, "answer")[0]) for part in unconstrained.good}
    found.append(Point(FREE, seed, unconstrained.good, values, unconstrained.within))
    same = dict.fromkeys(constant.good, constant.values[name])
    found.append(Point(CONSTANT, seed, constant.good, same, constant.within))
    return found
