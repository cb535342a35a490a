"""The K entries of largest magnitude, ties to the lowest index, in ascending order of index.

Three ways that give the same bits: a kernel in C++ (``native/topk.cc``), built when the package is installed where
there is a compiler; counting, in JAX, for many entries where there is none; ``lax.top_k`` for few. Magnitudes
are compared as the 31 bits of |x|: infinities are above all numbers and NaNs above infinities, so that any input has
exactly K winners.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base import native

_MANY = 800  # entries to keep, from which counting is faster than lax.top_k, whatever the length
_SAMPLE = 2048  # entries from which the count begins its search
_INTERPOLATIONS = 16  # after these it halves: at most 47 counts on any input
_WORD = 32


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Indices and values of the K largest entries of a vector, 1 <= K <= d."""
    if x.dtype != jnp.float32:
        return by_sorting(x, k)
    portable = functools.partial(by_counting if k >= _MANY else by_sorting, k=k)
    return native.either(functools.partial(by_kernel, k=k), portable, x)


def top_k_of_row(rows: jax.Array, at: jax.Array, update: jax.Array, k: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same of ``rows[at] + update``, and the rows with what is left of it there."""

    def kernel(rows: jax.Array, at: jax.Array, update: jax.Array) -> Any:
        shapes = [*_shapes(update, k), jax.ShapeDtypeStruct(rows.shape, rows.dtype)]
        return tuple(jax.ffi.ffi_call("fedsgm_topk_of_row", shapes, input_output_aliases={0: 2})(rows, at, update))

    def portable(rows: jax.Array, at: jax.Array, update: jax.Array) -> Any:
        x = jax.lax.dynamic_index_in_dim(rows, at, keepdims=False) + update
        indices, values = top_k(x, k)
        left = native.added(x, indices, -values)
        return indices, values, jax.lax.dynamic_update_index_in_dim(rows, left, at, 0)

    if not rows.dtype == update.dtype == jnp.float32:
        return portable(rows, at, update)
    return native.either(kernel, portable, rows, jnp.int32(at), update)


def by_kernel(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    indices, values = jax.ffi.ffi_call("fedsgm_topk", _shapes(x, k), vmap_method="broadcast_all")(x)
    return indices, values


def _shapes(x: jax.Array, k: int) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((*x.shape[:-1], k), dtype) for dtype in (jnp.int32, jnp.float32)]


def by_sorting(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """By ``lax.top_k``, which gives the largest first."""
    indices = jnp.sort(jax.lax.top_k(jnp.abs(x), k)[1])
    return indices, x[indices]


def by_counting(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """By patterns ``low`` and ``high`` with K or more entries from the one on and less than K from the other.

    They are brought together until they are neighbours, or exactly K entries are at or above ``low``. Then all entries
    from ``high`` on are kept, and the first of those between. Zeros fill the last row; being last, they are never kept.
    """
    bits = jax.lax.bitcast_convert_type(jnp.abs(x), jnp.uint32)
    rows = jnp.pad(bits, (0, -len(x) % _WORD)).reshape(-1, _WORD)
    low, high, above = _bracket(rows, bits[:: max(len(x) // _SAMPLE, 1)], k / len(x), k)
    sure = _at_least(rows, high)
    between = _at_least(rows, low) & ~sure
    before = jnp.cumsum(_ones(between)) - _ones(between)
    indices = _places(sure | _lowest(between, k - above - before), k)
    return indices, x[indices]


def _bracket(rows: jax.Array, sample: jax.Array, share: float, k: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``low`` and ``high``, and how many entries are at or above ``high``.

    The first two guesses are three standard errors around the pattern that this share of a sample is above, the next
    interpolate between the counts, which takes a few if the patterns are spread at all evenly. Where it takes more,
    the distance is halved.
    """
    ordered, n = jnp.sort(sample), len(sample)
    spread = 3 * math.sqrt(n * share * (1 - share)) + 1
    below, beyond = (ordered[min(max(round(n * (1 - share) + s), 0), n - 1)] for s in (-spread, spread))

    def is_wide(state: Any) -> jax.Array:
        low, high, from_low, _, _ = state
        return (high - low > 1) & (from_low > k)

    def narrow(state: Any) -> Any:
        low, high, from_low, from_high, step = state
        width = high - low
        part = jnp.where(step < _INTERPOLATIONS, (from_low - k + 0.5) / (from_low - from_high), 0.5)
        guess = jnp.where(step == 0, below, jnp.where(step == 1, beyond + 1, low + (width * part).astype(jnp.uint32)))
        guess = jnp.clip(guess, low + 1, high - 1)
        count = jnp.sum(_ones(_at_least(rows, guess)))
        enough = count >= k
        lower, upper = (guess, high, count, from_high), (low, guess, from_low, count)
        return (*(jnp.where(enough, a, b) for a, b in zip(lower, upper, strict=True)), step + 1)

    ends = jnp.uint32(0), jnp.uint32(2**31), jnp.int32(rows.size), jnp.int32(0)
    low, high, _, above, _ = jax.lax.while_loop(is_wide, narrow, (*ends, jnp.int32(0)))
    return low, high, above


def _at_least(rows: jax.Array, pattern: jax.Array) -> jax.Array:
    """Each row of 32 as a word whose bits say which are at or above the pattern, the first in the lowest bit.

    Patterns have 31 bits, so the top bit of a difference says which is less; XLA makes faster code of that than of
    booleans, and counting a word's ones is faster than adding up booleans.
    """
    less = (rows - pattern) >> 31
    return ~jnp.sum(less << jnp.arange(_WORD, dtype=jnp.uint32), axis=1, dtype=jnp.uint32)


def _ones(words: jax.Array) -> jax.Array:
    return jax.lax.population_count(words).astype(jnp.int32)


def _nth(words: jax.Array, n: jax.Array) -> jax.Array:
    """Where the n-th one of each word stands, counted from 0; 31 if there are not as many."""
    place = jnp.zeros_like(n)
    for width in (16, 8, 4, 2, 1):
        lower = words & jnp.uint32((1 << width) - 1)
        ones = _ones(lower)
        beyond = n >= ones
        n = n - jnp.where(beyond, ones, 0)
        words = jnp.where(beyond, words >> width, lower)
        place = place + jnp.where(beyond, width, 0)
    return place


def _lowest(words: jax.Array, count: jax.Array) -> jax.Array:
    """The words with only the lowest ``count`` of their ones."""
    some = words & ((jnp.uint32(1) << _nth(words, jnp.maximum(count, 0)).astype(jnp.uint32)) - 1)
    return jnp.where(count >= _ones(words), words, some)


def _places(words: jax.Array, k: int) -> jax.Array:
    """Where the ``k`` ones of all words stand.

    Of an output's word only the first output of each word has to be told; all others have that of the one before.
    """
    ones = _ones(words)
    start = jnp.cumsum(ones) - ones
    own = jnp.arange(len(words), dtype=jnp.int32)
    told = jnp.zeros(k, jnp.int32).at[jnp.where(ones > 0, start, k)].max(own, mode="drop")
    word = jax.lax.cummax(told)
    return word * _WORD + _nth(words[word], jnp.arange(k, dtype=jnp.int32) - start[word])


def in_use() -> str:
    """Which way is taken here, and why, in a phrase."""
    why, backend = native.missing(), jax.default_backend()
    if why is None and backend == "cpu":
        return "the compiled kernel"
    return f"in JAX, without the compiled kernel: {why or f'that is for CPUs, and this is a {backend}'}"
