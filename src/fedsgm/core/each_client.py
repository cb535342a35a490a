"""Constraints that every client keeps by itself, or a share of the clients.

The server sees each client's own value and sends the one that it measured. A client that had sent that value, or one
within it if the weights are soft, follows its own gradient, and the others none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_number, replaced, static, struct
from fedsgm.core.pooling import Heard, counted, product
from fedsgm.core.quantities import Bounded, Mean, Statistic

_ROUNDING = 1e-6


@struct
class EachClient(Bounded):
    """A quantity of each client by itself, its worst or a quantile; :func:`each_client` makes it."""

    base: Mean | Statistic
    quantile: float = static(default=1.0)
    soft: float | None = None
    name: str | None = static(default=None)
    lowest: bool = static(default=False)

    def __post_init__(self) -> None:
        if not isinstance(self.base, (Mean, Statistic)):
            raise SettingError(f"each_client: {self.base!r}, but it must be a quantity, such as Mean(loss)")
        check_number("each_client", "quantile", self.quantile, above=0, most=1)
        if self.soft is not None:
            check_number("each_client", "soft", self.soft, above=0)

    @property
    def label(self) -> str:
        return self.name or self.base.label

    def facing(self, sense: str) -> EachClient:
        """Under ``>=`` the worst is the lowest."""
        if sense == "between":
            raise SettingError("between: the worst client above is not the one below; write two constraints")
        return replaced(self, lowest=sense == ">=")

    def sent(self, sums: Any, present: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The client's own value, and whether it has one."""
        if isinstance(self.base, Mean):
            return sums, present
        value = self.base.measured(sums)
        undefined = jnp.isnan(value)
        return jnp.where(undefined, 0, value), jnp.float32(~undefined)

    def pool(self, statistics: Any, heard: Heard = None) -> tuple[jax.Array, jax.Array]:
        """The clients' values, and whose count."""
        values, defined = statistics
        return values, counted(defined, heard) > 0

    def measured(self, pooled: Any) -> jax.Array:
        """The value that so many of the clients are within; not a number where none has one."""
        order, rank, count = self._order(*pooled)
        known = (count > 0) & ~jnp.any(jnp.isnan(order))
        return jnp.where(known, self._turned(order[rank]), jnp.nan)

    def spread(self, pooled: Any) -> dict[str, jax.Array]:
        """The worst client's place, as a float, and the worst, the median and the best client's value, by suffix."""
        values, here = pooled
        known = jnp.where(here, self._turned(values), jnp.nan)
        place = jnp.where(jnp.any(here), jnp.float32(jnp.argmax(jnp.where(here, known, -jnp.inf))), jnp.nan)
        found = {"worst": jnp.nanmax(known), "median": jnp.nanmedian(known), "best": jnp.nanmin(known)}
        return {"client": place} | {suffix: self._turned(value) for suffix, value in found.items()}

    def error(self, statistics: Any, pooled: Any, heard: Heard = None) -> jax.Array:
        """Woodruff's: how far the order's values are away a standard deviation of the rank further, one at least.

        Of the worst it is the distance to the next, which is also the jackknife's for a maximum.
        """
        order, rank, count = self._order(*pooled)
        away = jnp.maximum(1, jnp.ceil(jnp.sqrt(count * self.quantile * (1 - self.quantile)))).astype(int)
        low, high = order[jnp.maximum(rank - away, 0)], order[jnp.clip(rank + away, 0, count.astype(int) - 1)]
        error = jnp.maximum(order[rank] - low, high - order[rank])
        return jnp.where((count > 1) & jnp.isfinite(error), error, 0)

    def guide(self, pooled: Any, count: Any) -> tuple[jax.Array, jax.Array]:
        """The measured value, and what makes the mean of m messages the mean of the clients at it."""
        values, here = pooled
        at = self.measured(pooled)
        weight = jnp.sum(jnp.where(here, self._weight(values, at), 0))
        known = weight > 0
        return jnp.where(known, at, 0), jnp.where(known, count / jnp.where(known, weight, 1), 0)

    def local(self, sums: Any, guide: Any, sent: Any) -> jax.Array:
        """By what the client sent, not by its value now: local steps move that, and a batch blurs it."""
        (at, scale), (own, defined) = guide, sent
        weight = jnp.where(defined > 0, scale * self._weight(own, at), 0)
        if isinstance(self.base, Mean):
            return weight * sums
        slope = jax.grad(self.base.descended)(jax.lax.stop_gradient(sums))
        return product(jax.tree.map(lambda a: jnp.where(jnp.isfinite(a) & (weight > 0), weight * a, 0), slope), sums)

    def _turned(self, values: jax.Array) -> jax.Array:
        """The worst is the largest of these."""
        return -values if self.lowest else values

    def _order(self, values: jax.Array, here: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The values from the best to the worst, which of them is measured, and how many there are."""
        order = jnp.sort(jnp.where(here, self._turned(values), jnp.inf))
        count = jnp.sum(here).astype(jnp.float32)
        rank = jnp.ceil(self.quantile * count - 1e-3).astype(int) - 1  # 0.95 * 20 is 19, however it is rounded
        return order, jnp.clip(rank, 0, len(order) - 1), count

    def _weight(self, values: jax.Array, at: jax.Array) -> jax.Array:
        """How much a client of such a value is followed: at the measured value 1, beyond it 0."""
        beyond = self._turned(values) - self._turned(at)
        # With a margin: the client's program may round the last bit of its value another way than the server's.
        near = _ROUNDING * jnp.maximum(jnp.abs(at), jnp.finfo(jnp.float32).tiny)
        if self.soft is None:
            return jnp.float32(jnp.abs(beyond) <= near)
        return jnp.where(beyond <= near, jnp.exp(jnp.minimum(beyond, 0) / self.soft), 0)


def each_client(
    quantity: Mean | Statistic, quantile: float = 1.0, soft: float | None = None, *, name: str | None = None
) -> EachClient:
    r"""A quantity of each client by itself, to be compared with a bound that every client keeps.

    .. math:: \max_j g_j(w) \le c, \quad \text{or a quantile of } g_1(w), \dots, g_n(w) \text{ in its place}

    The worst client in place of the mean, as in agnostic federated learning (Mohri, Sivek and Suresh, 2019).

    The history has the value that is compared by the quantity's name, the worst client's number, counted from 0, as
    ``NAME_client``, and the worst, the median and the best client's value as ``NAME_worst``, ``NAME_median`` and
    ``NAME_best``; under ``>=`` the lowest is the worst. A client where the value is undefined, as it has no such
    example, is passed over.

    >>> import fedsgm as fs
    >>> loss = fs.Mean(lambda w, example: (w - example) ** 2, name="loss")
    >>> problem = fs.Problem(lambda w, example: w, [fs.each_client(loss, quantile=0.95) <= 0.1])

    Args:
        quantile: the share of the clients that must keep the bound; the value is that of the worst of these.
        soft: a temperature: a constraint step follows not only the client at that value but all within it, each
            with the weight ``exp(-distance / soft)`` of its value's distance, as the log-sum-exp of the values does.
        name: of the constraint; the quantity's own if there is none.
    """
    return EachClient(quantity, quantile, soft, name)
