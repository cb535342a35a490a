"""What a problem and a method of the benchmark are; a user's own file has more of them.

A :class:`Case` is a problem with its data, its bounds and what all methods have alike: rounds, local steps,
participants and batches. A :class:`Method` has settings to choose from, and what runs it with one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.data.clients import Clients

TRIALS = 6  # settings that each method may try
QUICK_ROUNDS, QUICK_TRIALS = 30, 2

Setting = Mapping[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """One split of a case: what clients train on, and the held-out examples for choosing and for judging."""

    clients: Any
    validation: Any
    test: Any
    params: Any  # to start from: a pytree, or a function of the seed that gives one


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A problem of the benchmark.

    Attributes:
        name, says: what commands call it, and what it asks for in a sentence.
        load: of the number of a split, its data. Clients have as many examples in every split, so that all splits are
            one compiled program.
        problem: of a bound, what is minimised subject to what.
        bounds: from the tightest to the loosest; without the constraint the value is past each of them.
        steps: the step sizes that every federated method may start from.
        natural: who the clients are where nobody dealt the examples out; None where somebody did.
        source, left_out: where the data are from, and which columns are no features as they give the answer away.
        score: of parameters and an example, the probability of the positive class, or of every class.
        rate: which rates the constraint compares, by fairlearn's name of it; examples then have ``x``, ``y`` and
            ``group``.
        convex: whether objective and constraints are, so that a solver finds the optimum.
        optional: whether a suite is run without it, where its data cannot be had.
    """

    name: str
    says: str
    load: Callable[[int], Data]
    problem: Callable[[float], Any]
    bounds: tuple[float, ...]
    participants: int
    rounds: int = 100
    local_steps: int = 2
    batch_size: int | None = 128
    evaluate_every: int = 5
    steps: tuple[float, float] = (0.3, 1.0)
    natural: str | None = None
    source: str = ""
    left_out: str = ""
    score: Callable[[Any, Any], Any] | None = None
    rate: str | None = None
    convex: bool = False
    optional: bool = False

    def quick(self) -> Case:
        """A first look: the bound in the middle and few rounds."""
        middle = self.bounds[len(self.bounds) // 2]
        return dataclasses.replace(self, bounds=(middle,), rounds=min(self.rounds, QUICK_ROUNDS))


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a method that is no federated run came to: values by part, and how it got there."""

    values: Mapping[str, Mapping[str, float]]  # of train, validation and test: objective, constraints, perhaps right
    seconds: float


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A way to solve cases.

    Attributes:
        trials: of a case, the settings to choose from by the validation examples: :data:`TRIALS`, or fewer.
        algorithm: of a case, a bound and a setting, what ``simulate`` runs; None of a reference.
        answer: of a reference, that sees all data: of a case, its data, a bound and a setting, what it comes to.
        central: whether a run has all data with one client.
        ranked: whether it is a rival; a reference that sees all data, or keeps no bound, is none.
        fits: whether a method can be used for a case.
    """

    name: str
    says: str
    trials: Callable[[Case], Sequence[Setting]]
    algorithm: Callable[[Case, float, Setting], Any] | None = None
    answer: Callable[[Case, Data, float, Setting], Answer] | None = None
    central: bool = False
    ranked: bool = True
    fits: Callable[[Case], bool] = lambda _: True


def by_name(things: Sequence[Any], what: str) -> dict[str, Any]:
    """Cases or methods by their names, each once."""
    found: dict[str, Any] = {}
    for thing in things:
        if thing.name in found:
            raise SettingError(f"there are two {what} of the name {thing.name!r}; give one of them another")
        found[thing.name] = thing
    return found


def examples(clients: Any) -> int:
    """How many examples clients have; 0 of a task without examples."""
    return int(clients.counts.sum()) if isinstance(clients, Clients) else 0
