"""Damaged messages through the decoder: each gives a message or a WireError, within the memory that was promised.

    make fuzz
    python benchmarks/fuzz_wire.py [--count 1000000] [--seed 0]

Most damage is followed by a right checksum, or it would end there. A message that comes through must be in the one
form that it has: encoded again it is the same bytes.
"""

from __future__ import annotations

import argparse
import random
import re
import time
import tracemalloc
import zlib
from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedsgm.core import wire
from fedsgm.core.compression import Coded, Dense, Fixed, Sparse

PER_BYTE, BESIDES = 200, 20_000  # what decode may allocate, as it says
SIZES = (1, 2, 9, 31, 300)
FLOATS = (np.dtype(np.float32), np.dtype(np.float16))
CODES = [
    (np.dtype(np.bool_), 1),
    *((np.dtype(np.int8), bits) for bits in range(2, 9)),
    *((np.dtype(np.uint16), bits) for bits in range(9, 17)),
    (np.dtype(jnp.float4_e2m1fn), 4),
    (np.dtype(jnp.float8_e4m3fn), 8),
    (np.dtype(np.float16), 16),
]
"""The types that codes come in, and their bits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10**6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    outcomes, most = fuzz(options.count, options.seed)
    print(f"{options.count} damaged messages in {time.perf_counter() - began:.0f} s, no exception but WireError")
    print(f"memory at most {most:.2f} of the bound, {PER_BYTE} bytes a byte and {BESIDES}")
    for outcome, count in outcomes.most_common():
        print(f"{count:9}  {outcome}")


def fuzz(count: int, seed: int) -> tuple[Counter[str], float]:
    """How often the decoder said what, and the largest share of its memory that it used."""
    rng = random.Random(seed)
    sound = messages()
    outcomes: Counter[str] = Counter()
    most = 0.0
    tracemalloc.start()
    try:
        for _ in range(count):
            data = damage(rng.choice(sound), rng.choice(sound), rng)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                message = wire.decode(data)
                outcome = "a message"
            except wire.WireError as error:
                message, outcome = None, re.sub(r"\d+", "N", str(error))
            most = max(most, (tracemalloc.get_traced_memory()[1] - before) / (PER_BYTE * len(data) + BESIDES))
            if message is not None and wire.encode(message, entries(message)) != data:
                raise AssertionError(f"{data.hex()} is a message, but not as it is encoded")
            outcomes[outcome] += 1
    finally:
        tracemalloc.stop()
    if most > 1:
        raise AssertionError(f"the decoder allocated {most:.2f} of its bound")
    return outcomes, most


def fixed(k: int, d: int, rng: np.random.Generator) -> Fixed:
    """Whole numbers of any width for k of d entries."""
    bits = int(rng.integers(2, 25))
    numbers = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), k).astype(np.int32)
    return Fixed(numbers, rng.integers(2**32, size=2, dtype=np.uint32), d, bits)  # type: ignore[arg-type]


def messages() -> list[bytes]:
    """Sound messages of every kind and of many sizes, alone and as layers."""
    rng = np.random.default_rng(1)
    sound = []
    for d in SIZES:
        kinds: list[Any] = [Dense(noise(d, dtype, rng)) for dtype in FLOATS]
        for k in sorted({0, 1, d // 10, d // 3, d // 2, d}):
            kinds += [Sparse(rng.permutation(d)[:k], noise(k, dtype, rng), d) for dtype in FLOATS]
            kinds.append(Sparse(np.arange(d - k, d)[::-1], noise(k, FLOATS[0], rng), d))
            kinds.append(Sparse(np.arange(k), noise(k, FLOATS[0], rng), d))
            kinds.append(fixed(k, d, rng))
        for dtype, bits in CODES:
            kinds.append(Coded(codes(d, dtype, bits, rng), noise(int(rng.integers(4)), FLOATS[0], rng), bits))
        sound += [wire.encode(message, d) for message in kinds]
        for _ in range(20):
            layers = tuple(kinds[i] for i in rng.integers(len(kinds), size=rng.integers(4)))
            sound.append(wire.encode(layers, d * len(layers)))
    return sound


def noise(count: int, dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Any bits, so that all kinds of NaN are among them."""
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)


def codes(count: int, dtype: np.dtype, bits: int, rng: np.random.Generator) -> np.ndarray:
    if dtype.kind == "i":
        return rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), count, dtype)
    return rng.integers(2**bits, size=count, dtype=np.uint16).astype(f"u{dtype.itemsize}").view(dtype)


def damage(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """One to three changes to a message, or now and then to noise; mostly with a right checksum."""
    body = bytearray(data[:-4] if rng.random() < 0.98 else data[:2] + rng.randbytes(rng.randrange(40)))
    for _ in range(rng.randint(1, 3)):
        # Half of the changes are where the header is: there they do most.
        place = rng.randrange(2, 8) if rng.random() < 0.5 else rng.randrange(len(body) + 1)
        match rng.randrange(7):
            case 0:
                body[place : place + 1] = bytes(byte ^ 1 << rng.randrange(8) for byte in body[place : place + 1])
            case 1:
                body[place : place + 1] = rng.randbytes(1)
            case 2:
                body[place:place] = rng.randbytes(rng.randint(1, 5))
            case 3:
                del body[place : place + rng.randint(1, 5)]
            case 4:
                del body[place:]
            case 5:
                body[place:] = other[rng.randrange(len(other) - 4) : -4]
            case 6:
                body[place : place + rng.randrange(6)] = b"\xff\xff\xff\xff\x07"[rng.randrange(5) :]
    if rng.random() < 0.1:
        return bytes(body) + data[-4:]
    return bytes(body) + zlib.crc32(body).to_bytes(4, "little")


def entries(message: Any) -> int:
    """The size of the vector that a message is about."""
    match message:
        case tuple():
            return sum(entries(part) for part in message)
        case Sparse() | Fixed():
            return message.size
        case Coded():
            return len(message.codes)
        case _:
            return len(message.values)


if __name__ == "__main__":
    main()
