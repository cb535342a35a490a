"""Switching rules: how much of the next step goes to the objective and how much to the constraint.

A rule sees one number, the violation ``max_i (g_i - c_i - tolerance) / scale_i``, which is positive
when a constraint is violated, and answers with the weights of the two gradients.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedsgm.base.structs import check_number, struct


@struct
class Direction:
    """The weights of the two gradients, and what a client needs to form the constraint's.

    ``guide`` comes from the problem: which constraint is the active one.
    """

    objective: jax.Array
    constraint: jax.Array
    guide: Any = None


class Rule(Protocol):
    """``init`` gives the rule's state, ``decide`` one round's direction and the next state."""

    def init(self) -> Any: ...

    def decide(self, violation: jax.Array, state: Any) -> tuple[Direction, Any]: ...


@struct
class Hard:
    """All to the objective while the estimate is within the bound, all to the constraint otherwise."""

    def init(self) -> None:
        return None

    def decide(self, violation: jax.Array, state: None) -> tuple[Direction, None]:
        weight = jnp.float32(violation > 0)
        return Direction(1 - weight, weight), state


@struct
class Soft:
    """The trimmed hinge: weights ``(1 - s, s)`` with ``s = clip(1 + beta * violation, 0, ceiling)``.

    It begins to mix the constraint in at ``1/beta`` below the bound. Theory asks for
    ``beta >= 2 / tolerance``; as beta grows the rule becomes :class:`Hard`.

    A ``ceiling`` below 1 keeps a share of the objective in every step, however large the violation. It is outside the
    theory: for problems whose constraint alone leads astray, as where the way to no cost is to end the episode.
    """

    beta: float
    ceiling: float = 1.0

    def __post_init__(self) -> None:
        check_number("Soft", "beta", self.beta, above=0)
        check_number("Soft", "ceiling", self.ceiling, above=0, most=1)

    def init(self) -> None:
        return None

    def decide(self, violation: jax.Array, state: None) -> tuple[Direction, None]:
        weight = jnp.clip(1 + self.beta * violation, 0, self.ceiling)
        return Direction(1 - weight, weight), state


@struct
class Penalty:
    """Penalty FedAvg: the objective always, plus ``rho`` times the constraint while it is violated."""

    rho: float

    def __post_init__(self) -> None:
        check_number("Penalty", "rho", self.rho, least=0)

    def init(self) -> None:
        return None

    def decide(self, violation: jax.Array, state: None) -> tuple[Direction, None]:
        return Direction(jnp.float32(1), self.rho * jnp.float32(violation > 0)), state


@struct
class PrimalDual:
    """A multiplier on the server, raised by ``step * violation`` each round and kept at zero or above.

    With ``augment`` above zero it is the augmented Lagrangian: the constraint's weight is the multiplier plus
    ``augment`` times the violation, which damps the multiplier's swings. A round that cannot tell the violation leaves
    the multiplier as it is.
    """

    step: float
    augment: float = 0.0

    def __post_init__(self) -> None:
        check_number("PrimalDual", "step", self.step, above=0)
        check_number("PrimalDual", "augment", self.augment, least=0)

    def init(self) -> float:
        return 0.0

    def decide(self, violation: jax.Array, state: jax.Array) -> tuple[Direction, jax.Array]:
        known = jnp.where(jnp.isfinite(violation), violation, 0)
        multiplier = jnp.maximum(0, state + self.step * known)
        return Direction(jnp.float32(1), jnp.maximum(0, multiplier + self.augment * known)), multiplier


@struct
class Unconstrained:
    """Plain FedAvg: the constraint is measured and recorded, never used."""

    def init(self) -> None:
        return None

    def decide(self, violation: jax.Array, state: None) -> tuple[Direction, None]:
        return Direction(jnp.float32(1), jnp.float32(0)), state
