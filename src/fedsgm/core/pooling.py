"""What is made of many clients' numbers: means, their errors, derivatives at a total.

Where only some clients were heard, ``heard`` is 1 for those and 0 for the others, whose numbers count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Heard = jax.Array | None


def mean_of(values: jax.Array, heard: Heard = None) -> jax.Array:
    """The mean over the clients that were heard; not a number if none was."""
    if heard is None:
        return jnp.mean(values, axis=0)
    return jnp.sum(counted(values, heard), axis=0) / jnp.sum(heard)


def standard_error(values: jax.Array, heard: Heard = None) -> jax.Array:
    """Of the mean of [clients] values: their sample standard deviation over sqrt(count); 0 for fewer than two.

    As of clients drawn from very many. Of m drawn from n, the error is sqrt(1 - m/n) times this.
    """
    count = count_of(values, heard)
    squares = jnp.sum(counted((values - mean_of(values, heard)) ** 2, heard))
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
