"""Numbers as bits and bytes, and back: the NumPy that messages are written and read with."""

from __future__ import annotations

import numpy as np

from fedsgm.base.errors import WireError


def to_bits(numbers: np.ndarray, width: int) -> np.ndarray:
    """The last ``width`` bits of each unsigned number, a row each, the highest first."""
    container = 8 * numbers.itemsize
    ordered = numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8)
    return np.unpackbits(ordered).reshape(-1, container)[:, container - width :]


def from_bits(bits: np.ndarray, width: int) -> np.ndarray:
    """The other way round."""
    dtype = unsigned(width)
    rows = np.zeros((len(bits) // width, 8 * dtype.itemsize), np.uint8)
    rows[:, rows.shape[1] - width :] = bits.reshape(-1, width)
    return np.packbits(rows).view(dtype.newbyteorder(">")).astype(dtype)


def unsigned(width: int) -> np.dtype:
    """The smallest type that holds ``width`` bits."""
    return np.dtype(np.uint8 if width <= 8 else np.uint16 if width <= 16 else np.uint32)


def to_bytes(values: np.ndarray) -> bytes:
    """Little-endian, whatever the machine."""
    return values.astype(values.dtype.newbyteorder("<")).tobytes()


def position(data: np.ndarray, k: int) -> int:
    """How many bits it takes to have ``k`` that are set."""
    if not k:
        return 0
    counts = np.cumsum(np.bitwise_count(data), dtype=np.int64)
    byte = int(np.searchsorted(counts, k))
    if byte == len(data):
        raise WireError("the message has fewer indices than it declares")
    before = int(counts[byte - 1]) if byte else 0
    return 8 * byte + int(np.flatnonzero(np.unpackbits(data[byte]))[k - before - 1]) + 1
