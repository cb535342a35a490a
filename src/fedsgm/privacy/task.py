"""The task of a private run, and what cannot be one."""

from __future__ import annotations

import math
import os
from collections.abc import Sized
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import replaced
from fedsgm.core.algorithm import Flat
from fedsgm.core.problem import Problem
from fedsgm.core.quantities import ByRows, Mean, Statistic
from fedsgm.core.rules import StandardErrors
from fedsgm.privacy import accounting
from fedsgm.privacy.clients import PrivateClients
from fedsgm.privacy.examples import PrivateExamples
from fedsgm.privacy.private import Private
from fedsgm.privacy.settings import Privacy

_SLACK = 1e-6  # of a round, by which what was spent may be wrong


def guarded(algorithm: Any, problem: Any) -> Any:
    """The problem as the algorithm's privacy wants it; what cannot be private is refused."""
    privacy = getattr(algorithm, "privacy", None)
    if privacy is None or isinstance(problem, Private):
        return problem
    if not isinstance(problem, Problem):
        raise SettingError(
            f"privacy= cuts what single examples or clients say, which a {type(problem).__name__} does not let it"
        )
    _check_examples(algorithm, problem) if privacy.unit == "example" else _check_clients(algorithm, problem)
    _check_ranges(privacy, problem)
    share = privacy.share if problem.constraints else 0.0
    noise = accounting.multiplier(privacy.epsilon, privacy.delta, privacy.rounds, share)
    secret = np.frombuffer(
        os.urandom(8) if privacy.secret is None else int(privacy.secret).to_bytes(8, "little"), np.uint32
    )
    if privacy.unit == "client":
        return PrivateClients(problem, privacy, noise, secret)
    return PrivateExamples(problem, privacy, algorithm.local_steps, noise, secret)


def planned(algorithm: Any, problem: Any, rounds: int, seed: int, clients: Sized) -> tuple[Any, np.ndarray | None]:
    """The problem, and of a private run epsilon after each round."""
    problem = guarded(algorithm, problem)
    private = isinstance(problem, Private)
    return problem, budgeted(algorithm, problem, rounds, seed, len(clients)) if private else None


def budgeted(algorithm: Any, problem: Private, rounds: int, seed: int, clients: int) -> np.ndarray:
    """Epsilon after each round as they are planned, the end included; more than there is, is refused."""
    spent, most = accounting.planned(algorithm, problem.of_statistics, rounds, seed, clients), problem.privacy.rounds
    if spent[-1] > most + _SLACK:
        drawn = "" if algorithm.cohort(clients) == clients else f", and seed {seed} draws one client for more"
        raise SettingError(
            f"rounds={rounds}, but the privacy budget is for {most}{drawn}; set Privacy(rounds="
            f"{math.ceil(spent[-1] - _SLACK)})"
        )
    spent[-1] += problem.of_ends
    return problem.epsilons(spent)


def fresh(task: Flat) -> Flat:
    """The task with noise of its own for every answer, so that no two answers share it, whoever asks."""
    if not isinstance(task.task, Private) or task.task.privacy.secret is not None:
        return task
    return Flat(replaced(task.task, secret=np.frombuffer(os.urandom(8), np.uint32)), task.layout)


def plain(task: Flat) -> Flat:
    """The task for data that is not private, as held-out examples are."""
    return Flat(task.task.problem, task.layout) if isinstance(task.task, Private) else task


def _check_examples(algorithm: Any, problem: Problem) -> None:
    for name in ("batch_size", "constraint_batch_size"):
        if getattr(algorithm, name) is not None:
            raise SettingError(f"privacy= is accounted for steps on all of a client's examples; leave {name} out")
    if problem.weight is not None:
        raise SettingError("privacy= needs to know what an example weighs, but Problem has weight=, a function of it")
    for name, quantity in zip(("objective", *problem.names), problem.quantities, strict=True):
        linear = isinstance(quantity, Statistic) and quantity.gradient == "linearized"
        if not linear and not isinstance(quantity, (Mean, ByRows)):
            raise SettingError(f"privacy= is for means and linearized statistics, and {name!r} is neither")


def _check_clients(algorithm: Any, problem: Problem) -> None:
    if algorithm.robust is not None:
        raise SettingError("Privacy(unit='client'): by robust aggregation one client moves what others count; drop it")
    if algorithm.query == "memory":
        raise SettingError("Privacy(unit='client'): query='memory' tells of absent clients, too; take 'all'")
    if isinstance(getattr(algorithm.rule, "margin", None), StandardErrors):
        raise SettingError("Privacy(unit='client'): a margin in standard errors tells of single clients; give a number")
    if problem.weigh == "rows":
        raise SettingError("Privacy(unit='client'): weigh='rows' tells how many examples a client has; weigh clients")
    for name, quantity in zip(("objective", *problem.names), problem.quantities, strict=True):
        if isinstance(quantity, Mean) and not quantity.refuses:
            raise SettingError(
                f"Privacy(unit='client'): missing='absent' tells who has examples of {name!r}; take a Statistic"
            )
        if not isinstance(quantity, (Mean, Statistic)):
            raise SettingError(f"Privacy(unit='client'): {name!r} bounds each client's own value, which is hidden")


def _check_ranges(privacy: Privacy, problem: Problem) -> None:
    for name, quantity in zip(("objective", *problem.names), problem.quantities, strict=True):
        known = privacy.range_of(name)
        if isinstance(quantity, Statistic):
            if known is None or (isinstance(known, tuple) and known[0] != 0):
                raise SettingError(
                    f"Privacy: declare how long one {privacy.unit}'s sums of {name!r} can be, ranges={{{name!r}: 1.5}}"
                    ", or (0.0, 1.5) if none is ever negative"
                )
        elif not isinstance(known, tuple):
            raise SettingError(
                f"Privacy: declare what {name!r} of one {privacy.unit} can be, ranges={{{name!r}: (0.0, 3.0)}}"
            )
