"""Whose statistics decide: the participants', everybody's, or everybody's last, which the server remembers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.structs import struct

QUERIES = ("participants", "all", "memory")
UNHEARD = ("asked", "left out")
NEVER = -2  # the age of an answer that never came


@struct
class Remembered:
    """The last statistics of every client, and how many rounds ago they came."""

    statistics: Any
    age: Any

    @classmethod
    def nothing(cls, statistics: Any, clients: int) -> Remembered:
        """Before anybody was heard; ``statistics`` are one client's, or their shapes."""
        empty = jax.tree.map(lambda a: jnp.zeros((clients, *a.shape), a.dtype), statistics)
        return cls(empty, jnp.full(clients, NEVER, jnp.int32))

    def after(self, who: jax.Array, statistics: Any) -> Remembered:
        """A round later, with new answers of these clients."""
        kept = jax.tree.map(lambda old, new: old.at[who].set(new), self.statistics, statistics)
        return Remembered(kept, jnp.where(self.age == NEVER, NEVER, self.age + 1).at[who].set(0))

    def before(self) -> Remembered:
        """A round earlier: what was asked for the first round is new in it."""
        return Remembered(self.statistics, self.age - 1)

    @property
    def heard(self) -> jax.Array:
        """1 for every client that is remembered."""
        return jnp.float32(self.age != NEVER)

    def report(self) -> dict[str, jax.Array]:
        """How many clients the estimate is of, and how old their answers are on average."""
        count = jnp.sum(self.heard)
        return {"heard": jnp.int32(count), "age": jnp.sum(self.heard * self.age) / jnp.maximum(count, 1)}
