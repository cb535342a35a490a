"""Quantities that a constraint can bound: means over clients, and statistics over everybody; and what is asked of one.

A quantity says what the server makes of the clients' statistics and what a client follows, in a few functions that
every kind has: ``pool``, ``measured``, ``error``, ``guide`` and ``local``. Where the server heard only some clients,
``heard`` is 1 for those and 0 for the others, whose statistics then count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_number, static, struct

PerExample = Callable[[Any, Any], jax.Array]
Heard = jax.Array | None


def mean_of(values: jax.Array, heard: Heard = None) -> jax.Array:
    """The mean over the clients that were heard; not a number if none was."""
    if heard is None:
        return jnp.mean(values, axis=0)
    return jnp.sum(_counted(values, heard), axis=0) / jnp.sum(heard)


def standard_error(values: jax.Array, heard: Heard = None) -> jax.Array:
    """Of the mean of [clients] values: their sample standard deviation over sqrt(count); 0 for fewer than two.

    As of clients drawn from very many. Of m drawn from n, the error is sqrt(1 - m/n) times this.
    """
    count = _count(values, heard)
    squares = jnp.sum(_counted((values - mean_of(values, heard)) ** 2, heard))
    error = jnp.sqrt(squares / (jnp.maximum(count - 1, 1) * jnp.maximum(count, 1)))
    return jnp.where((count > 1) & jnp.isfinite(error), error, 0)


def _counted(values: jax.Array, heard: Heard) -> jax.Array:
    """The values with 0 for who was not heard, whatever was there."""
    if heard is None:
        return values
    return jnp.where(jnp.reshape(heard > 0, (-1,) + (1,) * (values.ndim - 1)), values, 0)


def _count(statistics: Any, heard: Heard) -> Any:
    return jax.tree.leaves(statistics)[0].shape[0] if heard is None else jnp.sum(heard)


def _scaled_slope(value: Callable[[Any], jax.Array], total: Any, count: Any) -> Any:
    """``count`` times the derivative of ``value`` at the total; 0 where there is none."""
    return jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), count * a, 0), jax.grad(value)(total))


def _product(slope: Any, sums: Any) -> jax.Array:
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), slope, sums)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


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

    # What the server and the client make of it; a Statistic answers the same.

    def pool(self, statistics: jax.Array, heard: Heard = None) -> jax.Array:
        """What the server makes of the clients' statistics."""
        return mean_of(statistics, heard)

    def measured(self, pooled: jax.Array) -> jax.Array:
        """The number that is compared with the bound."""
        return pooled

    def error(self, statistics: jax.Array, pooled: jax.Array, heard: Heard = None) -> jax.Array:
        """The standard error of the number that is compared, as far as the clients' answers tell it."""
        return standard_error(statistics, heard)

    def guide(self, pooled: jax.Array, count: Any) -> None:
        """What a client must be told to form its gradient, where so many were heard."""
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

    def pool(self, statistics: Any, heard: Heard = None) -> Any:
        return jax.tree.map(lambda a: jnp.sum(_counted(a, heard), axis=0), statistics)

    def measured(self, total: Any) -> jax.Array:
        return (self.switch_on or self.value)(total)

    def error(self, statistics: Any, total: Any, heard: Heard = None) -> jax.Array:
        """By the delta method: the spread of the clients' shares of the total, through the derivative.

        It is right for rates of decisions, too: these are counted in the sums, of which the value is a smooth function
        but for ties. Values with one client left out would not be defined where a group is one client's.
        """
        count = _count(statistics, heard)
        slope = _scaled_slope(self.switch_on or self.value, total, count)
        return standard_error(jax.vmap(lambda sums: _product(slope, sums))(statistics), heard)

    def guide(self, total: Any, count: Any) -> Any:
        """The derivative of the value at the total, times m: the server takes a mean of m messages."""
        return None if self.gradient == "local" else _scaled_slope(self.value, total, count)

    def local(self, sums: Any, guide: Any) -> jax.Array:
        if self.gradient == "linearized":
            return _product(guide, sums)
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
