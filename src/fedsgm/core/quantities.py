"""What can be minimised or bounded: means over clients, statistics over everybody, and their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_number, static, struct

PerExample = Callable[[Any, Any], jax.Array]


@struct
class Mean:
    """The mean of ``fn(params, example)`` over a client's examples, or over those ``where`` selects.

    The server averages the clients' means equally, as Algorithm 1 does. ``quantity <= bound`` makes
    a constraint of it.
    """

    fn: PerExample = static()
    where: Callable[[Any], Any] | None = static(default=None)
    name: str | None = static(default=None)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise SettingError(f"Mean: fn={self.fn!r}, but it must be a function of (params, example)")
        if self.where is not None and not callable(self.where):
            raise SettingError(f"Mean: where={self.where!r}, but it must be a function of one example")

    def __le__(self, bound: float) -> Constraint:
        return Constraint(self, bound)

    @property
    def label(self) -> str:
        return self.name or str(getattr(self.fn, "__name__", "constraint"))

    # What the server and the client make of it; a Statistic answers the same four.

    def pool(self, statistics: jax.Array) -> jax.Array:
        """What the server makes of the participants' statistics."""
        return jnp.mean(statistics, axis=0)

    def measured(self, pooled: jax.Array) -> jax.Array:
        """The number that is compared with the bound."""
        return pooled

    def guide(self, pooled: jax.Array, participants: int) -> None:
        """What a client must be told to form its gradient."""
        return

    def local(self, value: jax.Array, guide: None) -> jax.Array:
        """The number whose gradient a client follows."""
        return value


@struct
class Statistic:
    """A number that is no mean over clients, such as a difference of rates over everybody.

    ``sums(params, example)`` gives one example's contributions, a pytree of numbers; they are added over a
    client's examples and over the participants, and ``value(total)`` is the quantity. Where it is undefined, as
    the rate of a group that no participant has, ``value`` is NaN and the round passes this constraint over.

    Args:
        gradient: ``"linearized"``: the server sends the derivative of ``value`` at the participants' total, so that
            the mean of the clients' gradients is exactly the gradient of the pooled value at E = 1. ``"local"`` is
            the paper's reading: each client descends the value of its own sums.
        switch_on: another function of the total that is reported, compared with the bound and switched on, while the
            gradient is that of ``value``: a true rate beside its smooth surrogate.
        members: the counts in the total that must not be zero over all clients, so that a group that nobody has
            is found before the run.
    """

    sums: Callable[[Any, Any], Any] = static()
    value: Callable[[Any], jax.Array] = static()
    name: str | None = static(default=None)
    gradient: str = static(default="linearized")
    switch_on: Callable[[Any], jax.Array] | None = static(default=None)
    members: Callable[[Any], jax.Array] | None = static(default=None)

    def __post_init__(self) -> None:
        for name in ("sums", "value", "switch_on", "members"):
            given = getattr(self, name)
            if not callable(given) and not (given is None and name in ("switch_on", "members")):
                raise SettingError(f"Statistic: {name}={given!r}, but it must be a function")
        if self.gradient not in ("linearized", "local"):
            raise SettingError(f"Statistic: gradient={self.gradient!r}, but it must be 'linearized' or 'local'")

    def __le__(self, bound: float) -> Constraint:
        return Constraint(self, bound)

    @property
    def label(self) -> str:
        return self.name or str(getattr(self.value, "__name__", "constraint"))

    def pool(self, statistics: Any) -> Any:
        return jax.tree.map(lambda a: jnp.sum(a, axis=0), statistics)

    def measured(self, total: Any) -> jax.Array:
        return (self.switch_on or self.value)(total)

    def guide(self, total: Any, participants: int) -> Any:
        """The derivative of the value at the total, times m: the server takes a mean of m messages."""
        if self.gradient == "local":
            return None
        slope = jax.grad(self.value)(total)
        return jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), participants * a, 0), slope)

    def local(self, sums: Any, guide: Any) -> jax.Array:
        if self.gradient == "linearized":
            products = jax.tree.map(lambda a, b: jnp.sum(a * b), guide, sums)
            return jnp.sum(jnp.stack(jax.tree.leaves(products)))
        own = self.value(sums)
        return jnp.where(jnp.isnan(own), 0.0, own)


Quantity = Mean | Statistic


@struct
class Constraint:
    """``quantity <= bound``; a violation is measured in units of ``scale``."""

    quantity: Quantity
    bound: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("Constraint", "bound", self.bound)
        check_number("Constraint", "scale", self.scale, above=0)

    @property
    def name(self) -> str:
        return self.quantity.label
