"""What a fit does unless it is told otherwise, said once: the command, federated fits and the estimators take it here.

A logistic model or a network starts at even scores and takes 500 rounds of two local steps on batches of 128 rows, with
a step size that falls along a cosine from 0.3 to a hundredth of it. The adaptive rule gives the constraints what share
of each step they need. Every round is measured on all rows, and the answer is the round within every bound that has the
lowest loss. ``benchmarks/fits.py`` judges it on public tables.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from optax.schedules import cosine_decay_schedule

from fedsgm.base.structs import Scheduled, check_number
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.rules import Adaptive

ROUNDS, LOCAL_STEPS, BATCH_SIZE = 500, 2, 128
STEP_SIZE, ANNEAL = 0.3, 0.01
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


def algorithm(*, rounds: int = ROUNDS, step_size: float = STEP_SIZE, **settings: Any) -> FedSGM:
    """The algorithm of a fit of so many rounds; ``settings`` are those of :class:`FedSGM`."""
    given: dict[str, Any] = {"local_steps": LOCAL_STEPS, "batch_size": BATCH_SIZE, "rule": Adaptive()} | settings
    return FedSGM(Scheduled(Falling(step_size, rounds, ANNEAL)), **given)
