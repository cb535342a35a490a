"""Rules that differ in how they weigh a violation, as one: which of them it is is a number, and all are compiled once.

To compile a program takes as long as ten to thirty of the benchmark's runs, and the rivals' programs are the same but
for a few operations.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.structs import replaced, struct
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.rules import Direction, Hard, Penalty, PrimalDual, Soft, Unconstrained, largest

_KINDS = (Hard, Soft, Penalty, PrimalDual, Unconstrained)
_NUMBERS = ("margin", "beta", "ceiling", "rho", "step", "augment")


@struct
class AnyOf:
    """One of five rules for one constraint: ``kind`` is its place among them, the other numbers are its settings."""

    kind: float
    margin: float = 0.0
    beta: float = 1.0
    ceiling: float = 1.0
    rho: float = 0.0
    step: float = 0.0
    augment: float = 0.0

    def init(self, constraints: int) -> np.ndarray:
        return np.zeros(constraints, np.float32)

    def decide(self, violations: jax.Array, state: jax.Array) -> tuple[Direction, jax.Array]:
        worst = largest(violations)
        past = jnp.float32(worst > 0)
        soft = jnp.clip(1 + self.beta * worst, 0, self.ceiling)
        known = jnp.where(jnp.isfinite(violations), violations, 0)
        multipliers = jnp.maximum(0, state + self.step * known)
        dual = jnp.maximum(0, multipliers + self.augment * known)
        one, none = jnp.float32(1), jnp.float32(0)
        kind = jnp.int32(self.kind)
        objective = jnp.stack([1 - past, 1 - soft, one, one, one])[kind]
        constraint = jnp.stack([past, soft, self.rho * past, dual[0], none])[kind]
        return Direction(objective, constraint), multipliers

    def report(self, state: Any) -> dict[str, jax.Array]:  # noqa: ARG002
        return {}


def together(algorithm: Any, constraints: int) -> Any:
    """The algorithm with its rule as one of :class:`AnyOf`; one with another rule as it is.

    Of several constraints one rule weighs each, another those past their bounds together: these stay apart.
    """
    rule = getattr(algorithm, "rule", None)
    if constraints != 1 or not isinstance(algorithm, FedSGM) or type(rule) not in _KINDS:
        return algorithm
    own = {name: getattr(rule, name) for name in _NUMBERS if hasattr(rule, name)}
    if not isinstance(own.get("margin", 0.0), (int, float)):
        return algorithm
    return replaced(algorithm, rule=AnyOf(float(_KINDS.index(type(rule))), **own))
