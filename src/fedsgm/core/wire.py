"""Messages as bytes, and what they cost: ``docs/wire.md`` has the layout, byte by byte.

``encode`` and ``decode`` are NumPy; ``size`` is the same length in JAX, for programs that count and do not send.
One message has one encoding: what ``decode`` accepts, ``encode`` gives back byte for byte.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import WireError
from fedsgm.core.bits import from_bits, position, rice_of, to_bits, to_bytes, unsigned, varint
from fedsgm.core.compression import Coded, Dense, Fixed, Message, Sparse

__all__ = ["WireError", "decode", "encode", "nbytes", "size"]

_MAGIC, _VERSION = 0xF5, 1
_LARGEST = 2**31 - 1  # of what a header counts; an index is an int32

# A part's first byte: what it is in the upper four bits, and in the lower four the type of its values or, for codes,
# how many bits each has, less one.
_DENSE, _RICE, _BITMAP, _FIXED, _TUPLE = 0, 1, 2, 9, 15
_FIXED_BITS = range(2, 25)
_VALUES = (np.dtype(np.float32), np.dtype(np.float16))
_CODES: dict[int, tuple[np.dtype, range]] = {  # the codes' type, and the bits it may have
    3: (np.dtype(np.bool_), range(1, 2)),
    4: (np.dtype(np.int8), range(2, 9)),
    5: (np.dtype(np.uint16), range(9, 17)),
    6: (np.dtype(jnp.float4_e2m1fn), range(4, 5)),
    7: (np.dtype(jnp.float8_e4m3fn), range(8, 9)),
    8: (np.dtype(np.float16), range(16, 17)),
}
_KINDS = {dtype: kind for kind, (dtype, _) in _CODES.items()}


def encode(message: Message, d: int) -> bytes:
    """The bytes of a message about a vector of ``d`` entries.

    The entries of a :class:`Sparse` go in ascending order of index.

    >>> message = Sparse(np.array([28, 3, 9]), np.array([1.5, -2.0, 0.25], np.float32), 31)
    >>> len(encode(message, 31))
    23
    >>> decode(encode(message, 31)).indices
    array([ 3,  9, 28], dtype=int32)
    """
    entries = _check(message)
    if entries != d:
        raise WireError(f"the message is about {entries} entries, but the vector has {d}")
    pieces = [bytes([_MAGIC, _VERSION])]
    if isinstance(message, tuple):
        pieces.append(bytes([_TUPLE << 4]) + varint(len(message)))
    for part in message if isinstance(message, tuple) else (message,):
        if isinstance(part, Sparse):
            pieces += _encode_sparse(part)
        elif isinstance(part, Coded):
            scales = np.asarray(part.scales).astype("<f4")
            pieces += [_head(part), _encode_codes(np.asarray(part.codes), part.bits), scales.tobytes()]
        elif isinstance(part, Fixed):
            key = np.asarray(part.key).astype("<u4")
            pieces += [_head(part), key.tobytes(), _encode_codes(np.asarray(part.codes), part.bits)]
        else:
            pieces += [_head(part), to_bytes(np.asarray(part.values))]
    data = b"".join(pieces)
    return data + zlib.crc32(data).to_bytes(4, "little")


def largest(message: Message) -> int:
    """The length of the longest encoding that a message of these shapes can have, whatever its values are."""
    total = _known(message)
    for part in message if isinstance(message, tuple) else (message,):
        if isinstance(part, Sparse):
            k, rice = part.indices.shape[0], rice_of(part.size, part.indices.shape[0])
            total += -(-(k * (1 + rice) + (part.size - k >> rice)) // 8)
    return total


def _known(message: Message) -> int:
    """The length of all but the indices, which follows from types and shapes."""
    total = 2 + 4
    if isinstance(message, tuple):
        total += 1 + len(varint(len(message)))
    for part in message if isinstance(message, tuple) else (message,):
        total += len(_head(part))
        if isinstance(part, (Coded, Fixed)):
            more = part.scales if isinstance(part, Coded) else part.key
            total += math.ceil(part.codes.shape[0] * part.bits / 8) + 4 * more.shape[0]
        else:
            total += part.values.shape[0] * part.values.dtype.itemsize
    return total


def decode(data: bytes, limit: int | None = None, parts: int | None = None) -> Message:
    """The message in ``data``, with NumPy arrays; :class:`WireError` if it is anything but what ``encode`` gives.

    A message about more than ``limit`` entries, or of more than ``parts``, is refused. Nothing is allocated for the
    entries that a header declares, only for bytes that are there: at most 200 bytes for each byte of ``data``, and
    20 kB.
    """
    if len(data) < 2 or data[0] != _MAGIC:
        raise WireError("these bytes are no fedsgm message")
    if data[1] != _VERSION:
        raise WireError(f"the message has format version {data[1]}, but this is version {_VERSION}")
    if len(data) < 6 or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise WireError("the message's checksum is wrong: it was damaged or cut short")
    reader = _Reader(np.frombuffer(data, np.uint8)[2:-4], _LARGEST if limit is None else limit)
    message: Message
    if reader.left and reader.data[0] == _TUPLE << 4:
        reader.take(1)
        count = reader.varint()
        if 2 * count > reader.left or (parts is not None and count > parts):
            raise WireError("the message declares more than it has")
        message = tuple(reader.part() for _ in range(count))
    else:
        message = reader.part()
    if reader.left:
        raise WireError("the message is followed by other bytes")
    return message


def size(message: Message) -> jax.Array:
    """The length of a message's encoding, for messages below 2 GiB, as a number of a compiled program.

    Only the indices' length depends on the data; all else is known when the program is compiled.
    """
    _check(message)
    total: Any = _known(message)
    for part in message if isinstance(message, tuple) else (message,):
        if isinstance(part, Sparse) and part.indices.shape[0]:
            k, rice = part.indices.shape[0], rice_of(part.size, part.indices.shape[0])
            places = _ascending(part.indices)
            gaps = places[1:] - places[:-1] - 1
            quotients = (places[0] >> rice) + jnp.sum(gaps >> rice)
            bits = jnp.minimum(k * (1 + rice) + quotients, places[-1] + 1)
            total += (bits + 7) // 8
    return jnp.asarray(total, jnp.int32)


def _ascending(indices: jax.Array) -> jax.Array:
    """Sorted, unless they are already: then a loop does nothing, where a condition would still sort under vmap."""
    return jax.lax.while_loop(lambda places: jnp.any(places[1:] < places[:-1]), jnp.sort, indices)


def nbytes(tree: Any) -> int:
    """Bytes of arrays sent as they are: what travels beside the messages."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _check(message: Any) -> int:
    """How many entries it is about; what this format has no place for is refused by its types and shapes."""
    entries = 0
    for part in message if isinstance(message, tuple) else (message,):
        match part:
            case Coded():
                kind = _KINDS.get(part.codes.dtype)
                right = kind is not None and part.bits in _CODES[kind][1] and part.scales.dtype == np.float32
                right = right and part.codes.ndim == part.scales.ndim == 1
                entries += part.codes.size
            case Sparse():
                right = part.values.dtype in _VALUES and np.issubdtype(part.indices.dtype, np.integer)
                right = right and part.values.ndim == 1 and part.indices.shape == part.values.shape and part.size >= 0
                entries += part.size
            case Fixed():
                right = part.codes.dtype == np.int32 and part.codes.ndim == 1 and part.codes.size <= part.size
                right = right and part.key.dtype == np.uint32 and part.key.shape == (2,) and part.bits in _FIXED_BITS
                entries += part.size
            case Dense():
                right = part.values.dtype in _VALUES and part.values.ndim == 1
                entries += part.values.size
            case _:
                right = False
        if not right:
            raise WireError(f"this {type(part).__name__} has no encoding: docs/wire.md has the types that have one")
    if entries > _LARGEST:
        raise WireError(f"the vector has {entries} entries, but a message holds at most {_LARGEST}")
    return entries


def _head(part: Any, bitmap: bool = False) -> bytes:
    """What a part begins with: its kind, its number of entries, and how many of them or of scales it has."""
    if isinstance(part, Coded):
        kind, detail, counts = _KINDS[part.codes.dtype], part.bits - 1, (part.codes.shape[0], part.scales.shape[0])
        return bytes([kind << 4 | detail]) + b"".join(map(varint, counts))
    if isinstance(part, Fixed):
        return bytes([_FIXED << 4]) + b"".join(map(varint, (part.size, part.codes.shape[0], part.bits)))
    detail = _VALUES.index(part.values.dtype)
    if isinstance(part, Sparse):
        kind = _BITMAP if bitmap else _RICE
        return bytes([kind << 4 | detail]) + varint(part.size) + varint(part.values.shape[0])
    return bytes([_DENSE << 4 | detail]) + varint(part.values.shape[0])


def _encode_sparse(part: Sparse) -> list[bytes]:
    """Stop bits, then remainders, then values.

    The bit at ``place + sum of quotients`` says where an entry's quotient stops; with b = 0 that is a bitmap.
    """
    indices, values = np.asarray(part.indices), np.asarray(part.values)
    k = len(indices)
    if k and not 0 <= indices.min() <= indices.max() < part.size:
        raise WireError(f"an index is outside of 0 to {part.size - 1}")
    pattern = np.dtype(f"u{values.itemsize}")
    pairs = indices.astype(np.uint64)  # whole pairs are sorted much faster than an order for them is found
    pairs <<= np.uint64(32)
    pairs |= values.view(pattern)
    pairs.sort()
    values = pairs.astype(pattern).view(values.dtype)
    pairs >>= np.uint64(32)
    places = pairs.view(np.int64)
    gaps = _gaps(places)
    if k and gaps.min() < 0:
        raise WireError("an index appears twice")
    rice = rice_of(part.size, k)
    stops, bitmap = _stops(places, gaps, rice)
    ends = int(stops[-1]) + 1 if k else 0
    width = 0 if bitmap else rice
    bits = np.zeros(ends + k * width, np.uint8)
    bits[stops] = 1
    if width:
        remainders = (gaps & (1 << width) - 1).astype(unsigned(width))
        bits[ends:] = to_bits(remainders, width).ravel()
    return [_head(part, bitmap), np.packbits(bits).tobytes(), to_bytes(values)]


def _gaps(places: np.ndarray) -> np.ndarray:
    """How many entries lie between each place and the one before it."""
    gaps = places.copy()
    gaps[1:] -= places[:-1]
    gaps[1:] -= 1
    return gaps


def _stops(places: np.ndarray, gaps: np.ndarray, rice: int) -> tuple[np.ndarray, bool]:
    """Where the stop bits are, and whether they are a bitmap's, which it is where that takes fewer bytes."""
    if not rice:
        return places, False
    k = len(places)
    stops = np.cumsum(gaps >> rice) + np.arange(k)
    if (int(places[-1]) + 8) // 8 < (int(stops[-1]) + k * rice + 8) // 8:
        return places, True
    return stops, False


def _encode_codes(codes: np.ndarray, bits: int) -> bytes:
    numbers = codes if codes.dtype.kind == "i" else codes.view(f"u{codes.itemsize}")
    spare = 8 * codes.itemsize - bits
    if (numbers << spare >> spare != numbers).any():
        raise WireError(f"a code does not fit into {bits} bits")
    return np.packbits(to_bits(numbers.view(f"u{codes.itemsize}"), bits)).tobytes()


class _Reader:
    """What is left of a message's bytes."""

    def __init__(self, data: np.ndarray, limit: int):
        self.data, self.limit = data, limit

    @property
    def left(self) -> int:
        return len(self.data)

    def take(self, count: int) -> np.ndarray:
        if count > self.left:
            raise WireError("the message declares more than it has")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def varint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = int(self.take(1)[0])
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number > _LARGEST or (shift and not byte):
                    break
                return number
        raise WireError("the message has a malformed number")

    def floats(self, count: int, dtype: np.dtype) -> np.ndarray:
        return self.take(count * dtype.itemsize).view(dtype.newbyteorder("<")).astype(dtype)

    def part(self) -> Message:
        kind, detail = divmod(int(self.take(1)[0]), 16)
        size = self.varint()
        if size > self.limit:
            raise WireError(f"the message is about {size} entries or more, but {self.limit} are left of the limit")
        self.limit -= size
        if kind in _CODES:
            dtype, widths = _CODES[kind]
            if detail + 1 in widths:
                scales = self.varint()
                codes = self.codes(size, detail + 1, dtype)
                return Coded(codes, self.floats(scales, _VALUES[0]), detail + 1)  # type: ignore[arg-type]
        elif kind in (_DENSE, _RICE, _BITMAP) and detail < len(_VALUES):
            if kind == _DENSE:
                return Dense(self.floats(size, _VALUES[detail]))  # type: ignore[arg-type]
            k = self.varint()
            if k > size or k * _VALUES[detail].itemsize > self.left:
                raise WireError("the message declares more than it has")
            places = self.places(size, k, kind == _BITMAP)
            return Sparse(places, self.floats(k, _VALUES[detail]), size)  # type: ignore[arg-type]
        elif (kind, detail) == (_FIXED, 0):
            return self.fixed(size)
        raise WireError(f"the message has a part of unknown kind {kind}.{detail}")

    def fixed(self, size: int) -> Fixed:
        count, width = self.varint(), self.varint()
        if count > size or width not in _FIXED_BITS:
            raise WireError("the message declares more than it has")
        key = self.take(8).view("<u4").astype(np.uint32)
        codes = from_bits(self.bits(count * width), width).astype(np.uint32) << 32 - width
        return Fixed(codes.view(np.int32) >> 32 - width, key, size, width)  # type: ignore[arg-type]

    def codes(self, count: int, width: int, dtype: np.dtype) -> np.ndarray:
        bits = self.bits(count * width)
        codes = bits if width == 1 else from_bits(bits, width)
        if dtype.kind == "i":  # the sign is the highest of the bits that were sent
            codes = (codes << 8 - width).view(np.int8) >> 8 - width
        return codes.view(dtype)

    def places(self, size: int, k: int, bitmap: bool) -> np.ndarray:
        """The indices of ``k`` of ``size`` entries."""
        rice = rice_of(size, k)
        width = 0 if bitmap else rice
        longest = k * (1 + rice) + (size - k >> rice)  # no bitmap is longer than this either, or it would not be one
        ends = position(self.data[: longest // 8 + 1], k)
        bits = self.bits(ends + k * width)
        stops = np.flatnonzero(bits[:ends].view(np.bool_))  # of booleans it is much faster
        quotients = _gaps(stops)
        if width:
            quotients = quotients << width | from_bits(bits[ends:], width)
        places = np.cumsum(quotients + 1) - 1
        if k and places[-1] >= size:
            raise WireError(f"an index is outside of 0 to {size - 1}")
        if _stops(places, quotients, rice)[1] != bitmap:
            raise WireError("the message's indices have a shorter encoding")
        return places.astype(np.int32)

    def bits(self, count: int) -> np.ndarray:
        bits = np.unpackbits(self.take(-(-count // 8)))
        if bits[count:].any():
            raise WireError("the message has bits where there must be none")
        return bits[:count]
