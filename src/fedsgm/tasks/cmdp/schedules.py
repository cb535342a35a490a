"""How the radius of a step changes with the rounds."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fedsgm.base.structs import check_number


@dataclasses.dataclass(frozen=True)
class HarmonicDecay:
    """1 / (1 + round / over), but never below ``least``.

    A constant radius learns as fast and then relapses; a decay without a floor stops before it has learnt.
    """

    over: float = 30.0
    least: float = 0.1

    def __post_init__(self) -> None:
        check_number("HarmonicDecay", "over", self.over, above=0)
        check_number("HarmonicDecay", "least", self.least, least=0)

    def __call__(self, round: jax.Array) -> jax.Array:
        return jnp.maximum(self.least, 1 / (1 + round / self.over))
