"""What is made of many clients' numbers: means, their errors, derivatives at a total.

Where only some clients were heard, ``heard`` is 1 for those and 0 for the others, whose numbers count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedsgm.base.structs import replaced

SURE = 1.645  # standard deviations that a normal number is below with probability 0.95
Heard = jax.Array | None


def total_of(values: jax.Array, heard: Heard = None) -> jax.Array:
    """The sum over the clients that were heard, half of them added to the other half until one is left.

    XLA chooses the order of ``jnp.sum``, by the program that it is in: on several devices last bits would be others.
    """
    values = jnp.asarray(counted(values, heard))
    while (many := len(values)) > 1:
        half = -(-many // 2)
        first, second = jax.lax.slice_in_dim(values, 0, half), jax.lax.slice_in_dim(values, half, many)
        if len(second) < half:
            one_more = [(0, int(axis == 0), 0) for axis in range(values.ndim)]
            second = jax.lax.pad(second, jnp.zeros((), values.dtype), one_more)
        values = first + second
    return jax.lax.index_in_dim(values, 0, keepdims=False)


def mean_of(values: jax.Array, heard: Heard = None) -> jax.Array:
    """The mean over the clients that were heard; not a number if none was."""
    return total_of(values, heard) / (len(values) if heard is None else jnp.sum(heard))


def standard_error(values: jax.Array, heard: Heard = None) -> jax.Array:
    """Of the mean of [clients] values: their sample standard deviation over sqrt(count); 0 for fewer than two.

    As of clients drawn from very many. Of m drawn from n, the error is sqrt(1 - m/n) times this.
    """
    count = count_of(values, heard)
    squares = total_of((values - mean_of(values, heard)) ** 2, heard)
    error = jnp.sqrt(squares / (jnp.maximum(count - 1, 1) * jnp.maximum(count, 1)))
    return jnp.where((count > 1) & jnp.isfinite(error), error, 0)


def counted(values: jax.Array, heard: Heard) -> jax.Array:
    """The values with 0 for who was not heard, whatever was there."""
    if heard is None:
        return values
    return jnp.where(jnp.reshape(heard > 0, (-1,) + (1,) * (values.ndim - 1)), values, 0)


def count_of(statistics: Any, heard: Heard) -> Any:
    return jax.tree.leaves(statistics)[0].shape[0] if heard is None else jnp.sum(heard)


def scaled_slope(value: Callable[[Any], jax.Array], total: Any, count: Any) -> Any:
    """``count`` times the derivative of ``value`` at the total; 0 where there is none."""
    return jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), count * a, 0), jax.grad(value)(total))


def largest_part(parts: jax.Array) -> jax.Array:
    """Of those that are a number; NaN if none is."""
    known = ~jnp.isnan(parts)
    return jnp.where(jnp.any(known), jnp.max(jnp.where(known, parts, -jnp.inf)), jnp.nan)


def product(slope: Any, sums: Any) -> jax.Array:
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), slope, sums)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


def active(follow: str, violations: jax.Array, key: jax.Array) -> jax.Array:
    """The weights of the constraints' gradients in a constraint step, by what :class:`Problem` is told to follow."""
    largest = jax.nn.one_hot(jnp.argmax(violations), len(violations))
    if follow == "largest":
        return largest
    violated = jnp.float32(violations > 0)
    if follow == "shared":
        excess = jnp.clip(violations, 0, 1e30)  # so that their sum is finite
        total = jnp.sum(excess)
        return jnp.where(total > 0, excess / jnp.where(total > 0, total, 1), largest)
    if follow == "sum":
        return jnp.where(jnp.any(violated), violated, largest)
    draw = jax.random.uniform(key, violations.shape) * violated
    return jnp.where(jnp.any(violated), jax.nn.one_hot(jnp.argmax(draw), len(violated)), largest)


def median_of(values: jax.Array, heard: Heard = None) -> jax.Array:
    """Of every entry the median over the clients that were heard."""
    if heard is None:
        return jnp.median(values, axis=0)
    here = jnp.reshape(heard > 0, (-1,) + (1,) * (values.ndim - 1))
    return jnp.nanmedian(jnp.where(here, values, jnp.nan), axis=0)


class Shares(NamedTuple):
    """One number for each client that was ``heard``, by which a robust estimate compares them.

    Where a client counts by its ``sizes``, ``each`` has what it would be if all were of one size.
    """

    values: jax.Array
    heard: Heard
    sizes: jax.Array | None = None
    each: jax.Array | None = None


def shares_of(quantity: Any, statistics: Any, heard: Heard) -> Shares:
    """Of a quantity of everybody's sums: the mean of the clients' values is about that of the quantity.

    It is taken where every client is as the median one is, entry by entry, which no few clients can move, and each
    client's is that and the derivative along its own statistics: the delta method's. A size is how much of the median
    client there is in a client's statistics.
    """
    many = jax.tree.leaves(statistics)[0].shape[0]

    def value(one: Any) -> jax.Array:
        return quantity.measured(jax.tree.map(lambda a: many * a, one))

    typical = jax.tree.map(lambda a: median_of(a, heard), statistics)
    at, slope = jax.value_and_grad(value)(typical)
    sizes = jax.vmap(lambda own: product(typical, own))(statistics) / product(typical, typical)
    more = jax.vmap(lambda own: product(slope, own))(statistics) - product(slope, typical)
    return Shares(at + more, heard, sizes, at + more / jnp.where(sizes > 0, sizes, 1))


def calmed(rule: Any, measured: Any) -> Any:
    """A rule as it decides under noise: a soft one's ramp is as wide as the noise at least, so that it averages."""
    if not hasattr(rule, "beta") or isinstance(measured.radius, float):
        return rule
    at = jnp.argmax(measured.violations)
    return replaced(rule, beta=jnp.minimum(rule.beta, SURE * measured.scales[at] / measured.radius[at]))
