"""The examples of clients as the functions of a problem get them: with a weight of each in every quantity.

And what a client keeps of a measurement.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.structs import replaced, static, struct


@struct
class Examples:
    """One client's examples (in the engine: many clients', with a leading axis).

    They are along this ``axis`` of every array, the first or the last. Of everybody's examples, one client's after
    another's, ``turn`` says which it is to be of clients that are taken out.

    ``weights`` has one row for the objective and one for each constraint. A client's mean's is 1/count on the examples
    that it averages over, a statistic's is 1, and both are 0 on padding. So every quantity is a weighted sum.
    """

    examples: Any
    weights: Any
    count: Any
    axis: int = static(default=0)
    turn: bool = static(default=False)

    def turned(self) -> Examples:
        """Many clients', with the examples along the last axis of every array, and padded to a multiple of eight.

        XLA leaves what is beyond such a multiple to a slow loop, where it takes products of a matrix and a vector.
        """
        more = -self.weights.shape[-1] % 8

        def turn(a: Any) -> Any:
            xp: Any = np if isinstance(a, np.ndarray) else jnp
            last = xp.moveaxis(xp.concatenate([a, a[:, :1].repeat(more, axis=1)], axis=1), 1, -1)
            return np.ascontiguousarray(last) if xp is np else last

        xp: Any = np if isinstance(self.weights, np.ndarray) else jnp
        weights = xp.pad(self.weights, [(0, 0), (0, 0), (0, more)])
        return Examples(jax.tree.map(turn, self.examples), weights, self.count, -1)

    def batch(self, size: int | None, key: jax.Array) -> Examples:
        """``size`` examples drawn uniformly with replacement, weighted so that every sum is unbiased."""
        if size is None:
            return self
        return self._drawn(jax.random.randint(key, (size,), 0, self.count), self.count)

    def exact(self) -> Examples:
        """With means' weights that add up to 1 in float64."""
        weights = self.weights.astype(jnp.float64)
        return replaced(self, weights=weights / weights.sum(axis=-1, keepdims=True))

    def padded(self, starts: Any, counts: Any, length: int) -> Examples:
        """Of everybody's examples, one client's after another's, some clients', with a leading axis.

        Padding repeats a client's first example, so that no function ever meets made-up data.
        """
        found = self._padded(starts, counts, length)
        return found.turned() if self.turn else found

    def _padded(self, starts: Any, counts: Any, length: int) -> Examples:
        if isinstance(counts, np.ndarray) and len(counts) * length == counts.sum() == self.weights.shape[1]:
            shape = len(counts), length  # all of them, and none to pad
            examples = jax.tree.map(lambda a: a.reshape(*shape, *a.shape[1:]), self.examples)
            return Examples(examples, self.weights.reshape(-1, *shape).swapaxes(0, 1), counts)
        at = np.arange(length)
        present = at < counts[:, None]
        index = starts[:, None] + at * present
        weights = (self.weights[:, index] * present).swapaxes(0, 1)
        return Examples(jax.tree.map(functools.partial(_at, index=index), self.examples), weights, counts)

    def among(self, start: Any, count: Any) -> Among:
        """Of everybody's, one client's."""
        return Among(self, start, count)

    def _drawn(self, chosen: jax.Array, count: Any) -> Examples:
        """Those chosen of so many."""
        size = len(chosen)
        weights = self.weights[:, chosen] * count / size
        return Examples(jax.tree.map(lambda a: a[chosen], self.examples), weights, jnp.int32(size))


@struct
class Among:
    """One client's examples where they are among everybody's, to draw batches of them."""

    everybody: Examples
    start: Any
    count: Any

    def batch(self, size: int | None, key: jax.Array) -> Examples:
        """The same that is drawn of the client's examples by themselves."""
        assert size is not None, "only batches can be drawn"
        return self.everybody._drawn(self.start + jax.random.randint(key, (size,), 0, self.count), self.count)


def _at(a: Any, index: Any) -> Any:
    """Rows; NumPy takes them twice as fast as it indexes."""
    return np.take(a, index, axis=0) if isinstance(a, np.ndarray) else a[index]


class Kept(NamedTuple):
    """What a client keeps of its measurement for the update that follows.

    ``sent`` has, for each constraint on each client by itself, what it sent, and None for the others; ``size`` is what
    the client weighs, where rows are weighed.
    """

    sent: tuple[Any, ...]
    size: Any = None
