"""Messages as bytes: what goes in comes out, bit for bit, at the size that is counted, and nothing else does."""

import math
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln

import fedsgm as fs
from fedsgm.core import wire
from fedsgm.core.bits import from_bits, position, to_bits, to_bytes, unsigned, varint
from fedsgm.core.compression import Coded, Dense, Fixed, Sparse

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import fuzz_wire

COMPRESSORS = [
    fs.Identity(),
    fs.TopK(count=1),
    fs.TopK(0.1),
    fs.RandK(0.36),
    fs.TopK(1.0),
    fs.Quantize("int2"),
    fs.Quantize("int5", block=4),
    fs.Quantize("int8", block=64),
    *(fs.Quantize(f"float{bits}") for bits in (4, 8, 16)),
    fs.ScaledSign(),
    fs.Natural(),
]


def bits(array):
    array = np.asarray(array)
    return array.view(f"u{array.itemsize}")


def ascending(message):
    """A message as it should come back: NumPy arrays, a sparse one's entries in order."""
    if isinstance(message, tuple):
        return tuple(ascending(part) for part in message)
    message = jax.tree.map(np.asarray, message)
    if not isinstance(message, Sparse):
        return message
    order = np.argsort(message.indices)
    return Sparse(message.indices[order].astype(np.int32), message.values[order], message.size)


def check_same(found, expected):
    """The same classes, settings, types and bits."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(a) is np.ndarray
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_what_a_compressor_sends_comes_back(compressor):
    """Also of layers, one of a single entry, with blocks that do not divide d; the size is the one that is counted."""
    layers = fs.Layerwise(compressor, (1, 30))

    @jax.jit
    def compress(x, key):
        messages = compressor.compress(x, key), layers.compress(x, key)
        return messages, [wire.size(message) for message in messages]

    for seed in range(10):
        x = np.random.default_rng(seed).normal(size=31).astype(np.float32)
        for message, size in zip(*compress(x, jax.random.key(seed)), strict=True):
            data = wire.encode(message, 31)
            assert len(data) == size
            check_same(wire.decode(data), ascending(message))


def kinds(d, rng):
    """A message of every kind about ``d`` entries, of any bits whatever."""
    f4, f2 = fuzz_wire.FLOATS
    yield from (Dense(fuzz_wire.noise(d, dtype, rng)) for dtype in (f4, f2))
    for k in sorted({0, min(1, d), d // 100, d // 10, d * 36 // 100, d // 2, d}):
        yield from (Sparse(rng.permutation(d)[:k], fuzz_wire.noise(k, dtype, rng), d) for dtype in (f4, f2))
        yield Sparse(np.arange(k), fuzz_wire.noise(k, f4, rng), d)
        yield Sparse(d - 1 - np.arange(k), fuzz_wire.noise(k, f4, rng), d)
        yield fuzz_wire.fixed(k, d, rng)
    for dtype, width in fuzz_wire.CODES:
        yield Coded(fuzz_wire.codes(d, dtype, width, rng), fuzz_wire.noise(int(rng.integers(4)), f4, rng), width)


@pytest.mark.parametrize("d", [0, 1, 2, 7, 8, 9, 127, 128, 1000, 20_000])
def test_any_bits_come_back(d):
    rng = np.random.default_rng(d)
    for message in kinds(d, rng):
        data, longest = wire.encode(message, d), wire.largest(message)
        assert len(data) <= longest
        assert isinstance(message, Sparse) or len(data) == longest
        check_same(wire.decode(data, limit=d), ascending(message))
    layers = tuple(kinds(d, rng))
    with pytest.raises(wire.WireError, match="declares more than it has"):
        wire.decode(wire.encode(layers, d * len(layers)), parts=len(layers) - 1)
    check_same(wire.decode(wire.encode(layers, d * len(layers))), ascending(layers))
    check_same(wire.decode(wire.encode((), 0)), ())


@pytest.mark.parametrize(("d", "k"), [(1, 1), (31, 3), (31, 31), (40, 15), (300, 1), (5000, 50), (5000, 1700)])
def test_size_is_the_length(d, k):
    """In one program over many choices of entries: even, random, at either end, close together in the middle."""
    rng = np.random.default_rng(k)
    chosen = [rng.permutation(d)[:k] for _ in range(20)]
    chosen += [rng.permutation(max(k, d // 3))[:k] + (d - max(k, d // 3)) // 2 for _ in range(20)]
    chosen += [np.arange(k), d - 1 - np.arange(k), np.arange(k) * (d // k), np.cumsum(rng.integers(2, size=k) * 2 + 1)]
    chosen = np.stack([indices for indices in chosen if indices.max() < d])
    values = np.zeros(k, np.float32)
    counted = jax.jit(jax.vmap(lambda indices: wire.size(Sparse(indices, values, d))))(chosen)
    assert counted.tolist() == [len(wire.encode(Sparse(indices, values, d), d)) for indices in chosen]
    assert max(counted) <= wire.largest(Sparse(chosen[0], values, d))


def test_size_of_every_kind():
    messages = [(message, 50) for message in kinds(50, np.random.default_rng(0))]
    messages.append((tuple(message for message, _ in messages), 50 * len(messages)))
    counted = jax.jit(lambda all: [wire.size(m) for m in all])
    assert counted([message for message, _ in messages]) == [len(wire.encode(*pair)) for pair in messages]


def test_a_message_byte_by_byte():
    """By hand, after the page on the format: b = 3 for 3 of 31, gaps 3, 5 and 18, quotients 0, 0 and 2."""
    message = Sparse(np.array([28, 3, 9]), np.float32([1.5, -2.0, 0.25]), 31)
    indices = int("11001" + "011" + "101" + "010" + "00", 2).to_bytes(2, "big")
    body = bytes([0xF5, 1, 0x10, 31, 3]) + indices + np.array([-2.0, 0.25, 1.5], "<f4").tobytes()
    assert wire.encode(message, 31) == body + zlib.crc32(body).to_bytes(4, "little")
    signs = Coded(np.array([True, False, True]), np.float32([2.0]), 1)
    body = bytes([0xF5, 1, 0x30, 3, 1, 0b10100000]) + np.array([2.0], "<f4").tobytes()
    assert wire.encode(signs, 3) == body + zlib.crc32(body).to_bytes(4, "little")
    long = Coded(np.array([-4, 3] * 150, np.int8), np.zeros(0, np.float32), 3)
    body = bytes([0xF5, 1, 0x42, 0xAC, 2, 0]) + int("100011" * 150 + "0000", 2).to_bytes(113, "big")
    assert wire.encode(long, 300) == body + zlib.crc32(body).to_bytes(4, "little")


@pytest.mark.parametrize("width", range(1, 33))
def test_numbers_of_any_width_are_their_last_bits(width):
    numbers = np.random.default_rng(width).integers(2**width, size=50).astype(unsigned(width))
    rows = to_bits(numbers, width)
    assert ["".join(map(str, row)) for row in rows] == [f"{number:0{width}b}" for number in numbers.tolist()]
    back = from_bits(rows.ravel(), width)
    assert back.dtype == unsigned(width)
    np.testing.assert_array_equal(back, numbers)


def test_bytes_by_hand():
    assert [varint(n) for n in (0, 127, 128, 300, 2**31 - 1)] == [
        b"\0", b"\x7f", b"\x80\x01", b"\xac\x02", b"\xff\xff\xff\xff\x07"
    ]  # fmt: skip
    for order in "<>":
        assert to_bytes(np.array([1.0, -2.0], f"{order}f4")) == b"\0\0\x80\x3f\0\0\0\xc0"
    data = np.array([0b00000000, 0b00100001, 0b10000000], np.uint8)
    assert [position(data, k) for k in range(4)] == [0, 11, 16, 17]
    with pytest.raises(wire.WireError, match="fewer indices"):
        position(data, 4)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_indices_are_near_the_bound(share):
    """log2 of d choose K bits; what else a message has is a header of 13 bytes or so, and 4 bytes a value."""
    d, k = 10**6, round(share * 10**6)
    chosen = np.random.default_rng(k).permutation(d)[:k]
    message = Sparse(chosen, np.zeros(k, np.float32), d)
    bound = (gammaln(d + 1) - gammaln(k + 1) - gammaln(d - k + 1)) / math.log(2)
    length = len(wire.encode(message, d))
    assert 1 <= 8 * (length - 4 * k) / bound <= 1.05
    assert wire.size(message) == length
    if share == 0.01:
        assert len(wire.encode(Dense(np.zeros(d, np.float32)), d)) / length >= 35


def test_the_worst_choice_of_indices_is_bounded():
    """However the indices lie, they take no more than a bitmap does."""
    rng = np.random.default_rng(0)
    d = 3000
    for k in (1, 30, 300, 1000, 1050, 1100, 1150, 1500, 2999):
        for even in (True, False):
            room = (d - k) // 2
            gaps = np.zeros(k, int)
            np.add.at(gaps, rng.integers(k, size=room), 2)  # even gaps are the worst for b = 1
            places = np.cumsum(gaps + 1) - 1 if even else rng.permutation(d)[:k]
            length = len(wire.encode(Sparse(places, np.zeros(k, np.float32), d), d))
            assert length - 4 * k <= d / 8 + 12


def sealed(body):
    return bytes(body) + zlib.crc32(bytes(body)).to_bytes(4, "little")


SOUND = [
    wire.encode(Dense(np.float32([1, 2])), 2),
    wire.encode(Sparse(np.array([28, 3, 9]), np.float32([1.5, -2.0, 0.25]), 31), 31),
    wire.encode(Sparse(np.arange(20), np.zeros(20, np.float16), 5000), 5000),
    wire.encode(Fixed(np.int32([-3, 200]), np.uint32([7, 9]), 5000, 9), 5000),
    wire.encode(Coded(np.array([-2, 1, 0], np.int8), np.float32([2.0]), 2), 3),
    wire.encode((Dense(np.float32([1])), Coded(np.array([True]), np.zeros(0, np.float32), 1)), 2),
]


@pytest.mark.parametrize("data", SOUND, ids=range(len(SOUND)))
def test_refuses_what_was_cut_lengthened_or_changed(data):
    wire.decode(data)
    for end in range(len(data)):
        with pytest.raises(wire.WireError):
            wire.decode(data[:end])
        with pytest.raises(wire.WireError):
            wire.decode(sealed(data[:end])[: len(data) - 1])
    for more in (b"\0", b"\xff", data):
        with pytest.raises(wire.WireError):
            wire.decode(data + more)
        with pytest.raises(wire.WireError, match="followed by other bytes"):
            wire.decode(sealed(data[:-4] + more))
    for place in range(len(data)):
        for byte in range(256):
            if byte != data[place]:
                with pytest.raises(wire.WireError):
                    wire.decode(data[:place] + bytes([byte]) + data[place + 1 :])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no fedsgm message"),
        (b"\xf4\x01\x00\x00", "no fedsgm message"),
        (b"\xf5\x02\x00\x00", "format version 2, but this is version 1"),
        (b"\xf5\x01", "declares more than it has"),
        (b"\xf5\x01\x00", "declares more than it has"),
        (b"\xf5\x01\x00\x80\x00", "malformed number"),  # zero in two bytes
        (b"\xf5\x01\x00\xff\xff\xff\xff\x08", "malformed number"),  # more than an int32
        (b"\xf5\x01\x00\xff\xff\xff\xff\xff\x00", "malformed number"),
        (b"\xf5\x01\x00\xff\xff\xff\xff\x07", "declares more than it has"),
        (b"\xf5\x01\x02\x00", "unknown kind 0.2"),
        (b"\xf5\x01\x31\x00\x00", "unknown kind 3.1"),  # a boolean of two bits
        (b"\xf5\x01\xe0\x00", "unknown kind 14.0"),
        (b"\xf5\x01\xf0\x01\xf0\x00", "unknown kind 15.0"),  # layers of layers
        (b"\xf5\x01\xf0\x05\x00\x00", "declares more than it has"),
        (b"\xf5\x01\x30\x03\x00\xb0", "bits where there must be none"),
        (b"\xf5\x01\x10\x02\x03\xe0" + bytes(12), "declares more than it has"),  # three of two entries
        (b"\xf5\x01\x10\x02\x01\x20" + bytes(4), "outside of 0 to 1"),  # 3 of 2
        (b"\xf5\x01\x10\x08\x04\xf8" + bytes(16), "bits where there must be none"),  # a fifth entry
        (b"\xf5\x01\x10\x08\x04\x70" + bytes(16), "fewer indices"),
        (b"\xf5\x01\x10\x08\x00\x80", "followed by other bytes"),
        (b"\xf5\x01\x20\x08\x04\xf0" + bytes(16), "shorter encoding"),  # a bitmap that is no shorter
        (b"\xf5\x01\x11\x88\x27\x14" + bytes([255] * 2 + [0xF0] + [0] * 20) + bytes(40), "shorter encoding"),
    ],
)
def test_refuses(body, message):
    with pytest.raises(wire.WireError, match=message) as caught:
        wire.decode(sealed(body))
    assert "\n" not in str(caught.value)


def test_the_limit_is_on_all_layers_together():
    part = Sparse(np.array([0]), np.float32([1]), 10**9)
    for message, d in ((part, 10**9), ((part, part), 2 * 10**9)):
        data = wire.encode(message, d)
        wire.decode(data)
        wire.decode(data, limit=d)
        with pytest.raises(wire.WireError, match="limit"):
            wire.decode(data, limit=d - 1)


@pytest.mark.parametrize(
    ("message", "d", "error"),
    [
        (Dense(np.zeros(3, np.float32)), 4, "about 3 entries, but the vector has 4"),
        (Sparse(np.array([0]), np.float32([1]), 3), 4, "about 3 entries, but the vector has 4"),
        (Sparse(np.array([3]), np.float32([1]), 3), 3, "outside of 0 to 2"),
        (Sparse(np.array([-1]), np.float32([1]), 3), 3, "outside of 0 to 2"),
        (Sparse(np.array([1, 0, 1]), np.float32([1, 2, 3]), 3), 3, "appears twice"),
        (Sparse(np.array([0, 1]), np.float32([1]), 3), 3, "this Sparse has no encoding"),
        (Sparse(np.zeros(0, int), np.zeros(0, np.float32), 2**31), 2**31, "at most 2147483647"),
        (Dense(np.zeros(3)), 3, "this Dense has no encoding"),
        (Dense(np.zeros((3, 1), np.float32)), 3, "this Dense has no encoding"),
        (Coded(np.zeros(3, np.int8), np.zeros(1, np.float32), 9), 3, "this Coded has no encoding"),
        (Coded(np.zeros(3, np.uint8), np.zeros(1, np.float32), 8), 3, "this Coded has no encoding"),
        (Coded(np.zeros(3, np.int8), np.zeros(1), 8), 3, "this Coded has no encoding"),
        (Coded(np.array([0, 2], np.int8), np.zeros(1, np.float32), 2), 2, "does not fit into 2 bits"),
        (Coded(np.array([0, -3], np.int8), np.zeros(1, np.float32), 2), 2, "does not fit into 2 bits"),
        (Fixed(np.int32([0, 2]), np.zeros(2, np.uint32), 2, 2), 2, "does not fit into 2 bits"),
        (Fixed(np.zeros(3, np.int32), np.zeros(2, np.uint32), 2, 16), 2, "this Fixed has no encoding"),
        (Fixed(np.zeros(2, np.int32), np.zeros(1, np.uint32), 2, 16), 2, "this Fixed has no encoding"),
        (Coded(np.array([0, 512], np.uint16), np.zeros(1, np.float32), 9), 2, "does not fit into 9 bits"),
        (((Dense(np.zeros(1, np.float32)),),), 1, "this tuple has no encoding"),
        ({"w": np.zeros(3)}, 3, "this dict has no encoding"),
    ],
)
def test_encode_refuses(message, d, error):
    with pytest.raises(wire.WireError, match=error):
        wire.encode(message, d)


def test_damaged_messages():
    """`make fuzz` does it a million times."""
    outcomes, _ = fuzz_wire.fuzz(20_000, seed=1)
    assert outcomes.total() == 20_000
    assert outcomes["a message"] > 500
    assert len(outcomes) >= 11


def test_memory_for_many_tiny_layers():
    """Python's own objects are the most that a byte can cost."""
    layers = (Coded(np.zeros(0, np.bool_), np.zeros(0, np.float32), 1),) * 3000
    data = wire.encode(layers, 0)
    tracemalloc.start()
    wire.decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= fuzz_wire.PER_BYTE * len(data) + fuzz_wire.BESIDES


def test_a_run_counts_the_bytes_it_would_send():
    """Every message of a run is encoded as it is made; beside them go one float up, and three numbers down."""

    class Kept(fs.TopK):
        made: ClassVar[list[int]]

        def compress(self, x, key):
            message = super().compress(x, key)
            jax.debug.callback(lambda message: self.made.append(len(wire.encode(message, 300))), message)
            return message

    class Up(Kept):
        made: ClassVar[list[int]] = []

    class Down(Kept):
        made: ClassVar[list[int]] = []

    rng = np.random.default_rng(0)
    clients = fs.Clients.from_list([{"a": rng.normal(size=(1, 300)).astype(np.float32)} for _ in range(4)])
    problem = fs.Problem(
        objective=lambda w, example: jnp.sum((w - example["a"]) ** 2),
        constraints=[fs.Mean(lambda w, example: example["a"] @ w, name="budget") <= 0.7],
    )
    algorithm = fs.FedSGM(0.1, participants=1, uplink=Up(count=10), downlink=Down(count=9))
    start = np.zeros(300, np.float32)
    history = fs.simulate(algorithm, problem, clients, start, rounds=20, progress=False).history
    jax.effects_barrier()
    assert len(set(Up.made)) > 1
    assert sorted(history["bytes_up"][0] - 4) == sorted(Up.made)  # callbacks come in any order
    assert sorted(history["bytes_down"][0] - 12) == sorted(4 * size for size in Down.made)
