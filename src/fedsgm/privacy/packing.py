"""What members of a secure sum send, as bytes: of lengths that say nothing, and nothing read that is not of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedsgm.privacy.secure import SEED, Offer, Opened, SecureError

_PUBLIC, _SEALED, _MARKS = 32, 2 * SEED + 16, 2 * SEED


def to_words(numbers: np.ndarray, width: int, clients: int) -> np.ndarray:
    """Signed whole numbers as unsigned ones of so many bytes; the sum of all clients' must fit."""
    limit = 2 ** (8 * width - 1) // clients
    if numbers.size and not -limit < int(numbers.min()) <= int(numbers.max()) < limit:
        raise SecureError(f"a number is beyond the {limit} that a sum of {clients} clients has room for")
    return numbers.astype(np.int64).astype(_words(width))


def from_words(words: np.ndarray, width: int) -> np.ndarray:
    """The signed numbers again."""
    spare = 8 * (words.itemsize - width)
    signed = words.dtype.str.replace("u", "i")
    return ((words << spare).view(signed) >> spare).astype(np.int64)


def pack_words(words: np.ndarray, width: int) -> bytes:
    """The lowest ``width`` bytes of each."""
    ordered = np.ascontiguousarray(words.astype(words.dtype.newbyteorder("<")))
    return ordered.view(np.uint8).reshape(-1, words.itemsize)[:, :width].tobytes()


def unpack_words(data: bytes, width: int) -> np.ndarray:
    if len(data) % width:
        raise SecureError("the masked vector has a wrong length")
    dtype = _words(width)
    rows = np.zeros((len(data) // width, dtype.itemsize), np.uint8)
    rows[:, :width] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return rows.view(dtype.newbyteorder("<")).reshape(-1).astype(dtype)


def _words(width: int) -> np.dtype:
    return np.dtype(np.uint32 if width <= 4 else np.uint64)


def sealed_size(clients: int) -> int:
    """Bytes of an offer with a seal and marks for each client."""
    return 8 + _PUBLIC + SEED + clients * (_SEALED + _MARKS)


def pack_offer(offer: Offer, clients: int) -> bytes:
    """An offer as bytes: of one length, whoever it is for."""
    seals = b"".join(offer.sealed.get(number, bytes(_SEALED)) for number in range(clients))
    marks = b"".join(offer.marks[number] for number in range(clients))
    return offer.serial.to_bytes(8, "little") + offer.public + offer.check + seals + marks


def unpack_offer(data: bytes, clients: int) -> Offer:
    if len(data) != sealed_size(clients):
        raise SecureError("the offer has a wrong length")
    head, rest = data[: sealed_size(0)], data[sealed_size(0) :]
    sealed, marks = _parts(rest[: clients * _SEALED], _SEALED), _parts(rest[clients * _SEALED :], _MARKS)
    return Offer(int.from_bytes(head[:8], "little"), head[8 : 8 + _PUBLIC], head[8 + _PUBLIC :], sealed, marks)


def _parts(data: bytes, size: int) -> dict[int, bytes]:
    """By number, what is there for each client."""
    return {at // size: data[at : at + size] for at in range(0, len(data), size)}


_SHOWN = np.dtype([("number", "<u4"), ("serial", "<u8"), ("public", f"V{_PUBLIC}"), ("sealed", f"V{_SEALED}")])


def pack_opened(offers: Mapping[int, Offer], reader: int) -> bytes:
    """What one member is shown of the offers of a sum."""
    rows = [
        (number, offer.serial, offer.public, offer.sealed.get(reader, bytes(_SEALED)))
        for number, offer in offers.items()
    ]
    return np.array(rows, _SHOWN).tobytes()


def unpack_opened(data: bytes) -> dict[int, Opened]:
    if len(data) % _SHOWN.itemsize:
        raise SecureError("the offers have a wrong length")
    rows = np.frombuffer(data, _SHOWN)
    shown = {int(row["number"]): Opened(int(row["serial"]), bytes(row["public"]), bytes(row["sealed"])) for row in rows}
    if len(shown) != len(rows):
        raise SecureError("an offer is there twice")
    return shown


_TOLD = np.dtype([("number", "<u4"), ("share", f"V{SEED}")])


def pack_told(shares: Mapping[int, bytes]) -> bytes:
    return np.array(list(shares.items()), _TOLD).tobytes()


def unpack_told(data: bytes, wanted: Sequence[int]) -> dict[int, bytes]:
    """The shares of these clients, and of no others."""
    if len(data) != _TOLD.itemsize * len(wanted):
        raise SecureError("the shares have a wrong length")
    shares = {int(row["number"]): bytes(row["share"]) for row in np.frombuffer(data, _TOLD)}
    if shares.keys() != set(wanted):
        raise SecureError("the shares are not those that were asked for")
    return shares
