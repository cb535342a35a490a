"""A compressor whose messages a server can add without seeing one of them, and what it remembers of their sums."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number, static, struct
from fedsgm.core.compression import Fixed, Sparsifier
from fedsgm.core.drawing import distinct
from fedsgm.core.topk import top_k


@struct
class History:
    """What sums of earlier rounds tell of each entry: by how much it grew a round before it was last sent, and for how
    many rounds it has grown since, this one among them.

    It is made of mean messages as they were released. To divide and to multiply once is the same in every program,
    bit for bit, where a product and a sum may be fused in one and not in another.
    """

    rate: Any
    age: Any
    many: int = static()

    def largest(self) -> jax.Array:
        """The entries that have most to send, in ascending order."""
        return top_k(self.rate * self.age, self.many)[0]

    def after(self, mean: jax.Array) -> History:
        """With the mean message of this round; what is 0 in it counts as not sent."""
        sent = mean != 0
        return History(jnp.where(sent, mean / self.age, self.rate), jnp.where(sent, 1, self.age + 1), self.many)


@dataclasses.dataclass(frozen=True)
class SharedK(Sparsifier):
    r"""K entries, the same for all clients of a round, in fixed point: their sum is one of whole numbers.

    So a server can add masked messages without seeing one of them, and the sum is exact, in any order. All are drawn by
    the round's key; with ``history``, H of them, that share of K, are named by the server, which has seen earlier sums
    (:class:`History`), and the rest is drawn from all others. Where nobody names any, as of a downlink, all are drawn.

    An entry is rounded to a multiple of ``step``, which is ``reach / 2^(bits - 1)``, and one beyond ``reach`` is sent
    as that; what rounding and clipping leave out stays in the error memory like all else. Whichever are named, for
    vectors within the reach whose root mean square is a step or more

    .. math:: \mathbb{E} \|C(x) - x\|^2 \le (1 - q) \|x\|^2, \qquad q = \frac{3}{4} \, \frac{K - H}{d - H}

    Smaller ones are kept until they have grown, and C(x) is never further from x than 0 is.

    The sums are those of Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*
    (2017).

    >>> SharedK(0.1).step
    0.00048828125

    Args:
        reach: the largest entry, rounded up to a power of two.
        bits: of an entry, from 2 to 24.
        history: which share of the entries is named by earlier sums, 0 or more and below 1. One at least is drawn.
    """

    reach: float = dataclasses.field(default=16.0, kw_only=True)
    bits: int = dataclasses.field(default=16, kw_only=True)
    history: float = dataclasses.field(default=0.0, kw_only=True)
    shared = True  # compress wants the round's key, not the client's, and the entries that the server names

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("SharedK", "reach", self.reach, above=0)
        check_count("SharedK", "bits", self.bits, least=2, most=24)
        check_number("SharedK", "history", self.history, least=0, below=1)

    @property
    def step(self) -> float:
        """What one unit of the codes stands for."""
        return 2.0 ** (math.ceil(math.log2(self.reach)) - self.bits + 1)

    def named(self, d: int) -> int:
        """H, the number of entries that the server names."""
        k = self.kept(d)
        return min(round(self.history * k), k - 1) if k < d else 0

    def remember(self, d: int) -> History | None:
        """What the server begins with; None where it names none."""
        rate, age, many = np.zeros(d, np.float32), np.ones(d, np.float32), self.named(d)
        return History(rate, age, many) if many else None

    def compress(self, x: jax.Array, key: jax.Array, named: jax.Array | None = None) -> Fixed:
        d, most = x.shape[-1], 2 ** (self.bits - 1) - 1
        scaled = jnp.clip(x[_chosen(key, self.kept(d), d, named)] / self.step, -most, most)
        return Fixed(jnp.round(scaled).astype(jnp.int32), jax.random.key_data(key), d, self.bits, named)

    def decompress(self, message: Fixed, d: int) -> jax.Array:
        return self.step * self._placed(message, d).astype(jnp.float32)

    def added(self, x: jax.Array, message: Fixed, sign: int = 1) -> jax.Array:
        values = sign * self.step * message.codes.astype(jnp.float32)
        return x.at[self._places(message, x.shape[-1])].add(values, unique_indices=True)

    def total(self, messages: Fixed, d: int) -> jax.Array:
        """The sum of the vectors of stacked messages, exact before it is rounded to float32."""
        many = len(messages.codes)
        if many > 2 ** (32 - self.bits):
            raise SettingError(f"SharedK: {many} messages of {self.bits} bits overflow their sum; take fewer bits")
        whole = jnp.sum(jax.vmap(lambda message: self._placed(message, d))(messages), axis=0)
        return self.step * whole.astype(jnp.float32)

    def contraction(self, d: int) -> float:
        return 3 / 4 * (self.kept(d) - self.named(d)) / (d - self.named(d))

    def _places(self, message: Fixed, d: int) -> jax.Array:
        return _chosen(jax.random.wrap_key_data(message.key), message.codes.shape[-1], d, message.named)

    def _placed(self, message: Fixed, d: int) -> jax.Array:
        return jnp.zeros(d, jnp.int32).at[self._places(message, d)].set(message.codes, unique_indices=True)


def _chosen(key: jax.Array, k: int, d: int, named: jax.Array | None) -> jax.Array:
    """The entries that are named, which are in ascending order, and others that are drawn: K of d."""
    if named is None:
        return distinct(key, k, d)
    many = named.shape[-1]
    drawn = distinct(key, k - many, d - many)  # of those that are not named, counted without them
    passed = jnp.searchsorted(named - jnp.arange(many), drawn, side="right")
    return jnp.concatenate([named, drawn + passed.astype(jnp.int32)])
