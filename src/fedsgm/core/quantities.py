"""What a constraint can bound: means over clients, and statistics over everybody; and the constraint.

A quantity says what a client sends of its weighted sums (``sent``), what the server makes of that (``pool``,
``measured``, ``error``), what it tells the clients (``guide``) and what a client then descends (``local``). Where the
server heard only some clients, ``heard`` is 1 for those and 0 for the others, whose statistics then count for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.showing import comparison
from fedsgm.base.structs import check_count, check_number, static, struct
from fedsgm.core.pooling import (
    Heard,
    Shares,
    count_of,
    counted,
    largest_part,
    mean_of,
    product,
    scaled_slope,
    shares_of,
    standard_error,
    total_of,
)

if TYPE_CHECKING:
    from fedsgm.core.each_client import EachClient

PerExample = Callable[[Any, Any], jax.Array]
SENSES = ("<=", ">=", "between")


class Bounded:
    """What makes a constraint of a quantity: every quantity is one."""

    __array_ufunc__ = None  # so that a number of NumPy's on the left leaves the comparison to the quantity

    def __le__(self: Any, bound: float) -> Constraint:
        return Constraint(self, bound)

    def __ge__(self: Any, bound: float) -> Constraint:
        return Constraint(self, bound, sense=">=")

    def facing(self, sense: str) -> Any:
        """The quantity as a constraint of this sense has it."""
        return self

    def judged(self, statistics: Any, heard: Heard) -> Shares:
        """What a robust estimate compares clients by."""
        return shares_of(self, statistics, heard)


@struct
class Mean(Bounded):
    r"""The mean of ``fn(params, example)`` over a client's examples, or over those ``where`` selects.

    .. math:: g(w) = \frac{1}{n} \sum_{j=1}^{n} g_j(w), \qquad g_j(w) = \frac{1}{|S_j|} \sum_{z \in S_j} \phi(w; z)

    The server averages the clients' means equally, as Algorithm 1 does, unless the problem weighs rows. ``quantity <=
    bound`` and ``quantity >= bound`` make a constraint of it.

    >>> loss = Mean(lambda w, example: (w - example["x"]) ** 2, where=lambda example: example["y"] == 1, name="ones")
    >>> (loss <= 0.2).name
    'ones'

    Args:
        missing: what becomes of a client with no such example: ``"refuse"``, the run does not start; ``"absent"``, the
            server averages over those that have one.
    """

    fn: PerExample = static()
    where: Callable[[Any], Any] | None = static(default=None)
    name: str | None = static(default=None)
    missing: str = static(default="refuse")

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise SettingError(f"Mean: fn={self.fn!r}, but it must be a function of (params, example)")
        if self.where is not None and not callable(self.where):
            raise SettingError(f"Mean: where={self.where!r}, but it must be a function of one example")
        if self.missing not in ("refuse", "absent"):
            raise SettingError(f"Mean: missing={self.missing!r}, but it must be 'refuse' or 'absent'")

    @property
    def label(self) -> str:
        return self.name or str(getattr(self.fn, "__name__", "constraint"))

    @property
    def base(self) -> Mean:
        """Whose weighted sums a client takes."""
        return self

    @property
    def refuses(self) -> bool:
        return self.missing == "refuse"

    def sent(self, value: jax.Array, present: jax.Array) -> Any:
        """What a client sends of its sums; ``present`` is 0 if it has no such example, else 1."""
        return value if self.refuses else (value, present)

    def own(self, sent: Any) -> Any:
        """A client's sums, of what it sent."""
        return sent if self.refuses else sent[0]

    def pool(self, statistics: Any, heard: Heard = None) -> Any:
        """What the server makes of the clients' statistics."""
        if self.refuses:
            return mean_of(statistics, heard)
        here = counted(statistics[1], heard)
        return mean_of(statistics[0], here), jnp.sum(here)

    def judged(self, statistics: Any, heard: Heard) -> Shares:
        return Shares(statistics, heard) if self.refuses else Shares(statistics[0], counted(statistics[1], heard))

    def measured(self, pooled: Any) -> jax.Array:
        """The number that is compared with the bound."""
        return pooled if self.refuses else pooled[0]

    def error(self, statistics: Any, pooled: Any, heard: Heard = None) -> jax.Array:
        """The standard error of the number that is compared, as far as the clients' answers tell it."""
        if self.refuses:
            return standard_error(statistics, heard)
        return standard_error(statistics[0], counted(statistics[1], heard))

    def guide(self, pooled: Any, count: Any) -> Any:
        """What a client must be told to form its gradient, where so many were heard; m messages are averaged."""
        return None if self.refuses else count / jnp.maximum(pooled[1], 1)

    def local(self, value: jax.Array, guide: Any, sent: Any = None) -> jax.Array:
        """A number whose gradient a client follows, of its sums now and what it ``sent`` in this round."""
        return value if self.refuses else guide * value


@struct
class ByRows(Bounded):
    """A mean over everybody's examples: what :class:`Problem` makes of a :class:`Mean` under ``weigh="rows"``.

    A client's sum is of what its examples weigh, and it sends that weight along, so that the server can divide by all.
    """

    base: Mean

    @property
    def label(self) -> str:
        return self.base.label

    def sent(self, total: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total, weight

    def own(self, sent: Any) -> Any:
        return sent[0]

    def pool(self, statistics: Any, heard: Heard = None) -> tuple[jax.Array, jax.Array]:
        total, weight = (total_of(part, heard) for part in statistics)
        return total, weight

    def measured(self, pooled: Any) -> jax.Array:
        total, weight = pooled
        return total / weight

    def error(self, statistics: Any, pooled: Any, heard: Heard = None) -> jax.Array:
        """By the delta method: the spread of the clients' shares of the ratio."""
        totals, weights = statistics
        share = self.guide(pooled, count_of(statistics, heard))
        return standard_error(share * (totals - self.measured(pooled) * weights), heard)

    def guide(self, pooled: Any, count: Any) -> jax.Array:
        """What makes the mean of m messages a mean over examples: how many clients there are to a unit of weight."""
        return jnp.where(pooled[1] > 0, count / jnp.where(pooled[1] > 0, pooled[1], 1), 0)

    def local(self, total: jax.Array, guide: Any, sent: Any = None) -> jax.Array:
        return guide * total


@struct
class Statistic(Bounded):
    r"""A number that is no mean over clients, such as a difference of rates over everybody.

    .. math:: g(w) = \psi\Big(\sum_j \sum_{z \in S_j} \sigma(w; z)\Big)

    ``sums(params, example)`` gives one example's contributions, a pytree of numbers; they are added over a
    client's examples and over the participants, and ``value(total)`` is the quantity. Where it is undefined, as
    the rate of a group that no participant has, ``value`` is NaN and the round passes this constraint over.

    >>> rate = Statistic(
    ...     sums=lambda w, example: {"n": 1.0, "yes": example["x"] > w},
    ...     value=lambda total: total["yes"] / total["n"],
    ...     name="rate",
    ... )
    >>> (rate <= 0.3).name
    'rate'

    Args:
        gradient: ``"linearized"``: the server sends the derivative of ``value`` at the participants' total, so that
            the mean of the clients' gradients is exactly the gradient of the pooled value at E = 1. ``"local"`` is
            the paper's reading: each client descends the value of its own sums.
        switch_on: another function of the total that is reported, compared with the bound and switched on, while the
            gradient is that of ``value``: a true rate beside its smooth surrogate.
        members: the counts in the total that must not be zero over all clients, so that a group that nobody has
            is found before the run.
        parts: how many numbers ``value`` and ``switch_on`` give, of which the largest is the quantity: as a gap between
            groups is the largest difference of two. A rule such as :class:`Adaptive` weighs each part by itself. One
            that is NaN is passed over.
    """

    sums: Callable[[Any, Any], Any] = static()
    value: Callable[[Any], jax.Array] = static()
    name: str | None = static(default=None)
    gradient: str = static(default="linearized")
    switch_on: Callable[[Any], jax.Array] | None = static(default=None)
    members: Callable[[Any], jax.Array] | None = static(default=None)
    parts: int = static(default=1)

    def __post_init__(self) -> None:
        check_count("Statistic", "parts", self.parts)
        for name in ("sums", "value", "switch_on", "members"):
            given = getattr(self, name)
            if not callable(given) and not (given is None and name in ("switch_on", "members")):
                raise SettingError(f"Statistic: {name}={given!r}, but it must be a function")
        if self.gradient not in ("linearized", "local"):
            raise SettingError(f"Statistic: gradient={self.gradient!r}, but it must be 'linearized' or 'local'")

    @property
    def label(self) -> str:
        return self.name or str(getattr(self.value, "__name__", "constraint"))

    @property
    def base(self) -> Statistic:
        return self

    def sent(self, sums: Any, present: jax.Array) -> Any:
        return sums

    def own(self, sent: Any) -> Any:
        return sent

    def pool(self, statistics: Any, heard: Heard = None) -> Any:
        return jax.tree.map(lambda a: total_of(a, heard), statistics)

    def measured(self, total: Any) -> jax.Array:
        return self._largest(self.switch_on or self.value)(total)

    def measured_parts(self, total: Any) -> jax.Array:
        """Every part of what is compared."""
        return jnp.atleast_1d((self.switch_on or self.value)(total))

    def guides(self, total: Any, count: Any) -> Any:
        """What :meth:`guide` would be for each part alone, stacked."""
        slopes = jax.jacrev(lambda total: jnp.atleast_1d(self.value(total)))(total)
        return jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), count * a, 0), slopes)

    def _largest(self, value: Callable[[Any], jax.Array]) -> Callable[[Any], jax.Array]:
        return value if self.parts == 1 else lambda total: largest_part(value(total))

    def error(self, statistics: Any, total: Any, heard: Heard = None) -> jax.Array:
        """By the delta method: the spread of the clients' shares of the total, through the derivative.

        It is right for rates of decisions, too: these are counted in the sums, of which the value is a smooth function
        but for ties. Values with one client left out would not be defined where a group is one client's.
        """
        count = count_of(statistics, heard)
        slope = scaled_slope(self._largest(self.switch_on or self.value), total, count)
        return standard_error(jax.vmap(lambda sums: product(slope, sums))(statistics), heard)

    def guide(self, total: Any, count: Any) -> Any:
        """The derivative of the value at the total, times m: the server takes a mean of m messages."""
        return None if self.gradient == "local" else scaled_slope(self.descended, total, count)

    def descended(self, total: Any) -> jax.Array:
        """The value, the largest of its parts, whose gradient is followed."""
        return self._largest(self.value)(total)

    def local(self, sums: Any, guide: Any, sent: Any = None) -> jax.Array:
        if self.gradient == "linearized":
            return product(guide, sums)
        own = self.descended(sums)
        return jnp.where(jnp.isnan(own), 0.0, own)


@struct
class Constraint:
    r"""``quantity <= bound`` or ``quantity >= bound``; a violation is measured in units of ``scale``.

    .. math:: v = \frac{g(w) - c}{\text{scale}}, \quad \text{of } \ge: \; v = \frac{c - g(w)}{\text{scale}}

    >>> constraint = Mean(lambda w, example: w, name="size") >= 0.5
    >>> constraint.sense, constraint.bound
    ('>=', 0.5)

    With the sense ``"between"``, which :func:`between` makes, ``bound`` is the upper one and ``least`` the lower.
    """

    quantity: Mean | ByRows | Statistic | EachClient
    bound: float
    scale: float = 1.0
    sense: str = static(default="<=")
    least: float | None = None

    def __post_init__(self) -> None:
        check_number("Constraint", "bound", self.bound)
        check_number("Constraint", "scale", self.scale, above=0)
        if self.sense not in SENSES:
            raise SettingError(f"Constraint: sense={self.sense!r}, but it must be one of {', '.join(SENSES)}")
        if (self.least is not None) != (self.sense == "between"):
            raise SettingError("Constraint: least= is the lower bound of the sense 'between', and only of that")
        if isinstance(self.quantity, Bounded):
            object.__setattr__(self, "quantity", self.quantity.facing(self.sense))

    def __bool__(self) -> bool:
        raise SettingError(
            "a constraint is neither true nor false, and Python drops a half of low <= quantity <= high; write "
            "between(low, quantity, high), or two constraints in a list"
        )

    __repr__ = comparison

    @property
    def name(self) -> str:
        return self.quantity.label

    @property
    def parts(self) -> int:
        """Those of its quantity, where the largest of them is what is bounded and all of them are to be had."""
        if not isinstance(self.quantity, Statistic) or self.quantity.gradient == "local" or self.sense != "<=":
            return 1
        return self.quantity.parts

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest value that it allows."""
        bound = float(self.bound)
        low = bound if self.sense == ">=" else -math.inf if self.least is None else float(self.least)
        return low, math.inf if self.sense == ">=" else bound

    def excess(self, value: Any) -> Any:
        """How far a value is over the bound, or under it, in the quantity's own units; negative is within."""
        if self.least is not None:
            return jnp.maximum(value - self.bound, self.least - value)
        return value - self.bound if self.sense == "<=" else self.bound - value

    def guide(self, pooled: Any, count: Any) -> Any:
        """The quantity's; between two bounds also the sign of the nearer one's gradient."""
        told = self.quantity.guide(pooled, count)
        if self.least is None:
            return told
        value = self.quantity.measured(pooled)
        return jnp.where(value - self.bound >= self.least - value, jnp.float32(1), jnp.float32(-1)), told

    def local(self, sums: Any, guide: Any, sent: Any) -> jax.Array:
        if self.least is not None:
            sign, told = guide
            return sign * self.quantity.local(sums, told, sent)
        found = self.quantity.local(sums, guide, sent)
        return found if self.sense == "<=" else -found


def between(low: float, quantity: Mean | Statistic, high: float, *, scale: float = 1.0) -> Constraint:
    """``low <= quantity <= high``: one constraint, whose violation is the larger of the two.

    >>> import fedsgm as fs
    >>> fs.between(0.1, fs.Mean(lambda w, example: w * example, name="rate"), 0.3).name
    'rate'
    """
    check_number("between", "low", low)
    check_number("between", "high", high)
    if not low < high:
        raise SettingError(f"between: low={low}, high={high}, but low must be below high")
    return Constraint(quantity, high, scale, "between", low)
