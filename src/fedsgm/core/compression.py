"""Contractive compressors: ``E||C(x) - x||^2 <= (1 - q) ||x||^2``, with q known to each of them.

A compressor is a frozen dataclass with three methods: ``compress(x, key)`` gives what is sent,
``decompress(message, d)`` what arrives, and ``contraction(d)`` the q it promises for vectors of size d.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base import native
from fedsgm.base.blocks import Row
from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, static, struct
from fedsgm.core.drawing import distinct
from fedsgm.core.topk import top_k, top_k_of_row


@struct
class Dense:
    """Every entry, as it is."""

    values: jax.Array


@struct
class Sparse:
    """Some entries, and where they stand among ``size`` of them."""

    indices: jax.Array
    values: jax.Array
    size: int = static()


@struct
class Coded:
    """A code of ``bits`` bits for every entry, and the scales that give the codes their size."""

    codes: jax.Array
    scales: jax.Array
    bits: int = static()


@struct
class Fixed:
    """Whole numbers of ``bits`` bits for some of ``size`` entries: those that are named, and that the ``key`` draws.

    Those that are ``named``, if any are, do not travel with it: the server has told them all clients of the round.
    """

    codes: jax.Array
    key: jax.Array
    size: int = static()
    bits: int = static()
    named: Any = None


Message = Any  # Dense, Sparse, Coded, Fixed, or a tuple of them: what the matching codec can put on the wire


class Compressor(Protocol):
    def compress(self, x: jax.Array, key: jax.Array) -> Message: ...

    def decompress(self, message: Message, d: int) -> jax.Array: ...

    def contraction(self, d: int) -> float: ...


@dataclasses.dataclass(frozen=True)
class Identity:
    """No compression: C(x) = x, q = 1. An engine keeps no error memory for it.

    >>> Identity().contraction(1000)
    1.0
    """

    def compress(self, x: jax.Array, key: jax.Array) -> Dense:
        return Dense(x)

    def decompress(self, message: Dense, d: int) -> jax.Array:
        return message.values

    def contraction(self, d: int) -> float:
        return 1.0


@dataclasses.dataclass(frozen=True)
class Sparsifier:
    """What Top-K, Rand-K and Shared-K have in common: how many entries they keep, and the message they send."""

    fraction: float | None = None
    count: int | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        name, share = type(self).__name__, self.fraction
        if (share is None) == (self.count is None):
            raise SettingError(f"{name}: give a fraction, {name}(0.1), or a count, {name}(count=10), and not both")
        if self.count is not None:
            check_count(name, "count", self.count)
        elif not isinstance(share, float | int) or isinstance(share, bool) or not 0 < share <= 1:
            raise SettingError(f"{name}: fraction={share!r}, but it must be above 0 and at most 1")

    def kept(self, d: int) -> int:
        """K, the number of entries kept of d: at least one, at most all."""
        wanted = self.count if self.count is not None else round(self.fraction * d)  # type: ignore[operator]
        return min(max(int(wanted), 1), d)

    def decompress(self, message: Any, d: int) -> jax.Array:
        return jnp.zeros(d, message.values.dtype).at[message.indices].set(message.values, unique_indices=True)

    def added(self, x: jax.Array, message: Any, sign: int = 1) -> jax.Array:
        """``x + sign * decompress(message)``, at the cost of the entries that the message has."""
        return native.added(x, message.indices, sign * message.values)

    def contraction(self, d: int) -> float:
        return self.kept(d) / d


class TopK(Sparsifier):
    r"""The K entries of largest magnitude, exactly K of them, ties to the lowest index; q = K/d.

    .. math:: \|C(x) - x\|^2 \le (1 - q) \|x\|^2

    After Stich, Cordonnier and Jaggi, *Sparsified SGD with Memory* (2018).
    Infinities are larger than numbers, and NaNs larger than infinities.

    >>> TopK(0.1).contraction(1000)
    0.1
    >>> TopK(count=3).kept(31)
    3
    """

    def compress(self, x: jax.Array, key: jax.Array) -> Sparse:
        return Sparse(*top_k(x, self.kept(len(x))), len(x))

    def sent(self, row: Row, update: jax.Array, key: jax.Array) -> tuple[Sparse, Row]:
        """``compress(row + update)``, and the row that has what this leaves out, in one go."""
        indices, values, stacked = top_k_of_row(row.stacked, row.at, update, self.kept(len(update)))
        return Sparse(indices, values, len(update)), Row(stacked, row.at)


class RandK(Sparsifier):
    r"""K entries drawn uniformly without replacement, sent unscaled; q = K/d in expectation.

    .. math:: \mathbb{E} \|C(x) - x\|^2 = \left(1 - \frac{K}{d}\right) \|x\|^2

    After Stich, Cordonnier and Jaggi, *Sparsified SGD with Memory* (2018).

    >>> RandK(count=2).compress(jnp.ones(8), jax.random.key(0)).values
    Array([1., 1.], dtype=float32)
    """

    def compress(self, x: jax.Array, key: jax.Array) -> Sparse:
        d = x.shape[-1]
        indices = distinct(key, self.kept(d), d)
        return Sparse(indices, x[indices], d)


_FLOATS: dict[str, Any] = {
    "float16": jnp.finfo(jnp.float16),
    "float8": jnp.finfo(jnp.float8_e4m3fn),
    "float4": jnp.finfo(jnp.float4_e2m1fn),
}
_INTEGERS = {f"int{bits}": bits for bits in range(2, 9)}


@dataclasses.dataclass(frozen=True)
class Quantize:
    r"""Each entry rounded to a small number format, scaled so that the largest entry of a block fits exactly.

    .. math:: C(x)_i = s \operatorname{round}(x_i / s), \qquad s = \max_{j \in \text{block}} |x_j| / L

    with L the largest number of the format, and rounding to the nearest number that it has.

    ``"float16"``, ``"float8"`` (e4m3) and ``"float4"`` (e2m1) are the paper's simulated precisions;
    ``"int2"`` to ``"int8"`` with a ``block`` of, say, 64 is the practical b-bit quantiser. Without a
    block the whole vector shares one scale.

    >>> round(Quantize("int8", block=64).contraction(1024), 3)
    0.999
    """

    format: str
    block: int | None = None

    def __post_init__(self) -> None:
        if self.format not in _FLOATS and self.format not in _INTEGERS:
            known = ", ".join([*_FLOATS, "int2 to int8"])
            raise SettingError(f"Quantize: format={self.format!r}, but it must be one of {known}")
        if self.block is not None:
            check_count("Quantize", "block", self.block)

    @property
    def bits(self) -> int:
        return _INTEGERS[self.format] if self.format in _INTEGERS else int(_FLOATS[self.format].bits)

    @property
    def largest(self) -> float:
        """The largest number of the format."""
        return float(2 ** (self.bits - 1) - 1 if self.format in _INTEGERS else _FLOATS[self.format].max)

    def compress(self, x: jax.Array, key: jax.Array) -> Coded:
        d = x.shape[-1]
        size = min(self.block or d, d)
        blocks = jnp.pad(x, (0, -d % size)).reshape(-1, size)
        scales = jnp.max(jnp.abs(blocks), axis=1) / self.largest
        scaled = blocks / jnp.where(scales > 0, scales, 1)[:, None]
        scaled = jnp.clip(scaled, -self.largest, self.largest)
        if self.format in _INTEGERS:
            codes = jnp.round(scaled).astype(jnp.int8)
        else:
            codes = scaled.astype(_FLOATS[self.format].dtype)
        return Coded(codes.reshape(-1)[:d], scales, self.bits)

    def decompress(self, message: Coded, d: int) -> jax.Array:
        size = min(self.block or d, d)
        return message.codes.astype(jnp.float32) * jnp.repeat(message.scales, size)[:d]

    def contraction(self, d: int) -> float:
        return 1 - _worst_rounding(self.format, min(self.block or d, d))


@functools.cache
def _worst_rounding(format: str, size: int) -> float:
    """The largest ``||C(x) - x||^2 / ||x||^2`` over a block whose largest entry sits on the grid's end.

    Between neighbours of the grid the worst entry is their midpoint m, wrong by half their gap h. The
    ratio exceeds r only if the other ``size - 1`` entries can make ``h^2 - r m^2`` outweigh ``r max^2``,
    so the worst ratio is the root of ``(size - 1) max_k (h_k^2 - r m_k^2) = r max^2``.
    """
    if format in _INTEGERS:
        grid = np.arange(2 ** (_INTEGERS[format] - 1), dtype=np.float64)
    else:
        kind = _FLOATS[format]
        codes = np.arange(2 ** (kind.bits - 1), dtype=np.uint16 if kind.bits == 16 else np.uint8)
        grid = codes.view(kind.dtype) if kind.bits >= 8 else codes.astype(np.uint8).view(kind.dtype)
        grid = np.sort(grid[np.isfinite(grid)].astype(np.float64))
    half_gap, midpoint = np.diff(grid) / 2, (grid[1:] + grid[:-1]) / 2
    low, high = 0.0, 1.0
    for _ in range(100):
        ratio = (low + high) / 2
        if (size - 1) * np.max(half_gap**2 - ratio * midpoint**2) > ratio * grid[-1] ** 2:
            low = ratio
        else:
            high = ratio
    return high


@dataclasses.dataclass(frozen=True)
class ScaledSign:
    r"""One bit an entry, and one number for all; q = 1/d at worst, near 2/pi for a Gaussian vector.

    .. math:: C(x) = \frac{\|x\|_1}{d} \operatorname{sign}(x)

    After Karimireddy et al., *Error Feedback Fixes SignSGD* (2019).

    >>> sign = ScaledSign()
    >>> sign.decompress(sign.compress(jnp.array([1.0, -3.0]), None), 2)
    Array([ 2., -2.], dtype=float32)
    """

    def compress(self, x: jax.Array, key: jax.Array) -> Coded:
        return Coded(x >= 0, jnp.mean(jnp.abs(x))[None], 1)

    def decompress(self, message: Coded, d: int) -> jax.Array:
        return jnp.where(message.codes, message.scales, -message.scales)

    def contraction(self, d: int) -> float:
        return 1 / d


@dataclasses.dataclass(frozen=True)
class Natural:
    r"""Natural compression: round at random, unbiased, to a power of two; q = 7/8.

    .. math:: C(t) = \operatorname{sign}(t) \, 2^{a} \text{ with probability } 2 - |t| 2^{-a}, \text{ else }
        \operatorname{sign}(t) \, 2^{a+1}, \qquad a = \lfloor \log_2 |t| \rfloor

    After Horvath et al., *Natural Compression for Distributed Deep Learning* (2022).

    Nine bits an entry, a float32's sign and exponent. Adding a random mantissa and dropping it rounds
    up with probability equal to the mantissa, which is the method's definition.

    >>> natural = Natural()
    >>> natural.decompress(natural.compress(jnp.array([0.5, -2.0]), jax.random.key(0)), 2)
    Array([ 0.5, -2. ], dtype=float32)
    """

    def compress(self, x: jax.Array, key: jax.Array) -> Coded:
        pattern = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
        noise = jax.random.bits(key, x.shape, jnp.uint32) >> 9
        return Coded(((pattern + noise) >> 23).astype(jnp.uint16), jnp.zeros(0, jnp.float32), 9)

    def decompress(self, message: Coded, d: int) -> jax.Array:
        return jax.lax.bitcast_convert_type(message.codes.astype(jnp.uint32) << 23, jnp.float32)

    def contraction(self, d: int) -> float:
        return 7 / 8


@dataclasses.dataclass(frozen=True)
class Layerwise:
    """Another compressor applied to each layer by itself, so that no layer is starved by a larger one.

    ``sizes`` are the layers' sizes in the flat vector; :meth:`of` reads them from the parameters.

    >>> Layerwise.of(TopK(0.5), {"w": np.zeros((2, 3)), "b": np.zeros(2)}).sizes
    (2, 6)
    """

    compressor: Compressor
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, compressor: Compressor, params: Any) -> Layerwise:
        """One layer for each array of ``params``."""
        return cls(compressor, tuple(int(np.size(leaf)) for leaf in jax.tree.leaves(params)))

    @property
    def shared(self) -> bool:
        return getattr(self.compressor, "shared", False)

    def compress(self, x: jax.Array, key: jax.Array) -> tuple[Message, ...]:
        keys = jax.random.split(key, len(self.sizes))
        return tuple(self.compressor.compress(part, k) for part, k in zip(self._split(x), keys, strict=True))

    def decompress(self, message: Sequence[Message], d: int) -> jax.Array:
        parts = zip(message, self.sizes, strict=True)
        return jnp.concatenate([self.compressor.decompress(part, size) for part, size in parts])

    def contraction(self, d: int) -> float:
        self._check(d)
        return min(self.compressor.contraction(size) for size in self.sizes)

    def _split(self, x: jax.Array) -> list[jax.Array]:
        self._check(x.shape[-1])
        return jnp.split(x, np.cumsum(self.sizes)[:-1])

    def _check(self, d: int) -> None:
        if sum(self.sizes) != d:
            raise SettingError(
                f"Layerwise: the layers {self.sizes} add up to {sum(self.sizes)}, but there are {d} parameters"
            )
