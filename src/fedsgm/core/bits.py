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


def rice_of(d: int, k: int) -> int:
    """The Golomb-Rice parameter for ``k`` indices below ``d``, in whole numbers so that all machines agree.

    Gaps of random indices are geometric with q = 1 - k/d, for which the least b with q^(2^b) <= 0.618 is the best
    (Kiely, 2004); this is that condition with -ln q = 1 / (mean gap + 1/2) and -ln 0.618 = 0.48.
    """
    return (-(-6 * (2 * d - k) // (25 * k)) - 1).bit_length() if k else 0


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])
