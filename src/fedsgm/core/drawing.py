"""What is random: the keys of a round, and K of d without replacement, at the cost of K.

K of d is a permutation of 0..d-1 that is computed where it is asked for, at 0..K-1: nothing of size d is drawn or
sorted.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.structs import struct

_SHORT = 256  # below this all d are drawn and sorted, which is as fast there
_ROUNDS = 8


def distinct(key: jax.Array, k: int, d: int) -> jax.Array:
    """K different whole numbers below d, in no order, every choice of K as likely; a function of the key."""
    return sorted_out(key, k, d) if d < _SHORT else permuted(key, k, d)


def sorted_out(key: jax.Array, k: int, d: int) -> jax.Array:
    """Where the K largest of d random numbers stand."""
    return jax.lax.top_k(jax.random.uniform(key, (d,)), k)[1]


def permuted(key: jax.Array, k: int, d: int) -> jax.Array:
    """Where a random permutation takes 0..K-1.

    A generalised Feistel cipher (Black and Rogaway, 2002) on a rectangle of at least d cells: in turns, the row is
    moved on by a hash of the column, and the column by a hash of the row. What ends in one of the cells beyond d, of
    which there are fewer than sqrt(d) + 1, goes through it again; that makes a permutation of the others. Last, all are
    moved on by one number, uniform below d: so each of the d is drawn with probability K/d, whatever the hash is worth.
    """
    rows = math.isqrt(d - 1) + 1
    columns = -(-d // rows)
    hashing, moving = jax.random.split(key)
    keys = jax.random.bits(hashing, (_ROUNDS, 2), jnp.uint32)

    def walk(state: Any) -> Any:
        cell, there = state
        row, column = cell // columns, cell % columns
        for i in range(0, _ROUNDS, 2):
            row = (row + _hash(column, keys[i])) % rows
            column = (column + _hash(row, keys[i + 1])) % columns
        cell = jnp.where(there, cell, row * columns + column)
        return cell, cell < d

    start = jnp.arange(k, dtype=jnp.uint32)
    cell, _ = jax.lax.while_loop(lambda state: ~jnp.all(state[1]), walk, (start, jnp.zeros(k, jnp.bool_)))
    on = jax.random.randint(moving, (), 0, d).astype(jnp.uint32)
    return ((cell + on) % d).astype(jnp.int32)


def _hash(x: jax.Array, key: jax.Array) -> jax.Array:
    """31 bits by the finaliser of MurmurHash3, with a key before and within."""
    x = x ^ key[0]
    x = (x ^ x >> 16) * jnp.uint32(0x85EBCA6B) ^ key[1]
    x = (x ^ x >> 13) * jnp.uint32(0xC2B2AE35)
    return (x ^ x >> 16) >> 1


@struct
class RoundKeys:
    """The independent random keys of one round of one seed; ``shared`` is every client's."""

    sampling: jax.Array
    server: jax.Array
    clients: jax.Array
    shared: jax.Array

    @classmethod
    def of(cls, seed: jax.Array, round: jax.Array) -> RoundKeys:
        key = jax.random.fold_in(jax.random.key(seed), round)
        return cls(*(jax.random.fold_in(key, purpose) for purpose in range(4)))

    def client(self, index: jax.Array) -> jax.Array:
        return jax.random.fold_in(self.clients, index)
