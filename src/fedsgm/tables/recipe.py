"""What a fit does unless it is told otherwise, said once: the command, federated fits and the estimators take it here.

A logistic model or a network starts at even scores and takes 500 rounds of two local steps on batches of 128 rows, with
a step size that falls along a cosine to a hundredth of itself, from 1 of a logistic model and from 0.3 of any other.
The adaptive rule gives the constraints what share of each step they need. Every round is measured on all rows, and the
answer is the round within every bound that has the lowest loss. ``benchmarks/fits.py`` judges it on public tables.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from optax.schedules import cosine_decay_schedule

from fedsgm.base.structs import Scheduled, check_number
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.rules import Adaptive
from fedsgm.tables.models import MLP

ROUNDS, LOCAL_STEPS, BATCH_SIZE = 500, 2, 128
ANNEAL = 0.01
EVALUATE_EVERY = 1


@dataclasses.dataclass(frozen=True)
class Falling:
    """A step size that falls along a cosine to a share of itself; equal ones are the same program."""

    start: float
    rounds: int
    left: float

    def __post_init__(self) -> None:
        check_number("FedSGM", "step_size", self.start, above=0)

    def __call__(self, round: Any) -> Any:
        return cosine_decay_schedule(self.start, self.rounds, self.left)(round)


def step_size(model: MLP) -> float:
    """Where the step size begins.

    With 0.3 a logistic model of many columns is not done after 500 rounds; with 1 a network has learnt its rows by
    heart. A number's squared error has no such largest slope as a logarithm's, so it stays with the shorter steps.
    """
    return 1.0 if not model.hidden and model.classes is not None else 0.3


_LOGISTIC = MLP()


def algorithm(model: MLP = _LOGISTIC, *, rounds: int = ROUNDS, **settings: Any) -> FedSGM:
    """The algorithm of a fit of a model in so many rounds; ``settings`` are those of :class:`FedSGM`."""
    start = settings.pop("step_size", step_size(model))
    given: dict[str, Any] = {"local_steps": LOCAL_STEPS, "batch_size": BATCH_SIZE, "rule": Adaptive()} | settings
    return FedSGM(Scheduled(Falling(start, rounds, ANNEAL)), **given)
