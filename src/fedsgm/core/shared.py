"""A compressor whose messages a server can add without seeing one of them."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number
from fedsgm.core.compression import Fixed, Sparsifier
from fedsgm.core.drawing import distinct


@dataclasses.dataclass(frozen=True)
class SharedK(Sparsifier):
    """K entries drawn by the round's key, the same for all clients, in fixed point: their sum is one of whole numbers.

    So a server can add masked messages without seeing one of them, and the sum is exact, in any order. An entry is
    rounded to a multiple of ``step``, which is ``reach / 2^(bits - 1)``, and one beyond ``reach`` is sent as that; what
    rounding and clipping leave out stays in the error memory like all else. q = 3K/4d in expectation, for vectors
    within the reach whose root mean square is a step or more; smaller ones are kept until they have grown, and C(x) is
    never further from x than 0 is.

    The sums are those of Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*
    (2017).

    >>> SharedK(0.1).step
    0.00048828125

    Args:
        reach: the largest entry, rounded up to a power of two.
        bits: of an entry, from 2 to 24.
    """

    reach: float = dataclasses.field(default=16.0, kw_only=True)
    bits: int = dataclasses.field(default=16, kw_only=True)
    shared = True  # compress wants the round's key, not the client's

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("SharedK", "reach", self.reach, above=0)
        check_count("SharedK", "bits", self.bits, least=2, most=24)

    @property
    def step(self) -> float:
        """What one unit of the codes stands for."""
        return 2.0 ** (math.ceil(math.log2(self.reach)) - self.bits + 1)

    def compress(self, x: jax.Array, key: jax.Array) -> Fixed:
        d, most = x.shape[-1], 2 ** (self.bits - 1) - 1
        scaled = jnp.clip(x[distinct(key, self.kept(d), d)] / self.step, -most, most)
        return Fixed(jnp.round(scaled).astype(jnp.int32), jax.random.key_data(key), d, self.bits)

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
        return 3 / 4 * super().contraction(d)

    def _places(self, message: Fixed, d: int) -> jax.Array:
        return distinct(jax.random.wrap_key_data(message.key), message.codes.shape[-1], d)

    def _placed(self, message: Fixed, d: int) -> jax.Array:
        return jnp.zeros(d, jnp.int32).at[self._places(message, d)].set(message.codes, unique_indices=True)
