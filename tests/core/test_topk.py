"""Every way to the largest entries gives the bits that NumPy's does, on any input, wherever in a program it stands."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsgm import Layerwise, TopK
from fedsgm.base import native
from fedsgm.core import topk

WAYS = {"counting": topk.by_counting, "sorting": topk.by_sorting, "in use": topk.top_k}
if native.missing() is None:
    WAYS["kernel"] = topk.by_kernel
way = pytest.mark.parametrize("name", WAYS)


def by_hand(x, k):
    """A stable sort of the patterns of |x|, in each row."""
    order = np.argsort(-(x.view(np.uint32) & 0x7FFFFFFF).astype(np.int64), axis=-1, kind="stable")
    indices = np.sort(order[..., :k], axis=-1)
    return indices.astype(np.int32), np.take_along_axis(x, indices, axis=-1)


@functools.cache
def compiled(name, k):
    return jax.jit(functools.partial(WAYS[name], k=k))


def check(found, x, k):
    for a, b in zip(found, by_hand(x, k), strict=True):
        a = np.asarray(a)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def vectors(d):
    rng = np.random.default_rng(d)
    normal = rng.standard_normal(d).astype(np.float32)
    tiny = rng.integers(0, 50, d).astype(np.uint32) | rng.integers(0, 2, d).astype(np.uint32) << 31
    kinds = {
        "gaussian": normal,
        "zero": np.zeros(d),
        "signed zeros": np.copysign(0, normal),
        "constant": np.full(d, -0.7),
        "ties": np.round(normal, 1),
        "mostly zero": normal * (rng.random(d) < 0.02),
        "heavy-tailed": rng.standard_cauchy(d),
        "spread": normal * 10.0 ** rng.uniform(-35, 35, d),
        "ascending": np.linspace(0.1, 3, d),
        "descending": np.linspace(3, 0.1, d),
        "denormal": tiny.view(np.float32),
        "any bits": rng.integers(0, 2**32, d, dtype=np.uint32).view(np.float32),
        "not finite": np.where(rng.random(d) < 0.5, np.float32(np.nan), np.copysign(np.float32(np.inf), normal)),
        "one hot": np.eye(1, d, d - 1)[0],
    }
    with np.errstate(over="ignore"):
        return {kind: np.asarray(x, np.float32) for kind, x in kinds.items()}


@way
@pytest.mark.parametrize("d", [1, 2, 31, 32, 33, 511, 512, 513, 1023, 1024, 1025, 4097])
def test_as_by_hand(name, d):
    """Around powers of two and where the kernel and the search for a bracket change their ways; one entry to all."""
    for k in sorted({1, max(d // 10, 1), max(d // 2, 1), max(d - 1, 1), d}):
        for x in vectors(d).values():
            check(compiled(name, k)(x), x, k)


@way
def test_of_many(name):
    for x in vectors(100_003).values():
        check(compiled(name, 10_000)(x), x, 10_000)


@way
@pytest.mark.parametrize("d", [2**19 - 1, 2**19 + 77, 2**20 + 64 * 5])
def test_of_so_many_that_several_threads_work(name, d):
    """Also where all of the largest are one thread's, and where the kernel's sample of every so manieth misleads it."""
    rng, k = np.random.default_rng(d), d // 10
    normal = rng.standard_normal(d).astype(np.float32)
    sampled = np.arange(2048) * d // 2048
    small, large, falling = (normal.copy() for _ in range(3))
    small[sampled], large[sampled] = 1e-9, 1e9
    falling *= np.where(np.arange(d) < d // 3, 100, 1).astype(np.float32)
    for x in (normal, small, large, falling, falling[::-1].copy(), np.round(normal, 2), np.zeros(d, np.float32)):
        check(compiled(name, k)(x), x, k)


@pytest.mark.skipif("kernel" not in WAYS, reason="needs a compiler")
def test_long_vectors_side_by_side():
    """Programs that wait for their own threads' work at the same time, more of them than there are threads."""
    x = np.random.default_rng(1).standard_normal((8, 2**19 + 1)).astype(np.float32)
    find = compiled("kernel", 999)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            for row, found in zip(x, threads.map(find, x), strict=True):
                check(found, row, 999)


@way
@pytest.mark.parametrize("d", [40, 600])
def test_in_batches(name, d):
    x = np.stack([*vectors(d).values()])[:12].reshape(3, 4, d)
    k = d // 7
    check(jax.jit(jax.vmap(jax.vmap(functools.partial(WAYS[name], k=k))))(x), x, k)
    check(jax.jit(jax.vmap(functools.partial(WAYS[name], k=k), in_axes=1))(x[0].T), x[0], k)


@way
def test_inside_a_program(name):
    """In a loop, in a condition, in one that vmap makes a choice of, and op by op."""
    x, k = np.stack([*vectors(513).values()]), 50
    find = functools.partial(WAYS[name], k=k)

    def sometimes(row):
        return jax.lax.cond(row[0] > 0, find, lambda _: (jnp.zeros(k, jnp.int32), jnp.zeros(k)), row)

    def check_some(found):
        some = x[:, 0] > 0
        assert 0 < some.sum() < len(x)
        check([np.asarray(each)[some] for each in found], x[some], k)
        assert not any(np.asarray(each)[~some].any() for each in found)

    check(jax.jit(lambda x: jax.lax.map(find, x))(x), x, k)
    check(jax.jit(lambda x: jax.lax.scan(lambda carry, row: (carry + 1, find(row)), 0, x)[1])(x), x, k)
    check_some(jax.jit(jax.vmap(sometimes))(x))
    check_some(jax.jit(lambda x: jax.lax.map(sometimes, x))(x))
    with jax.disable_jit():
        check(find(jnp.asarray(x[0])), x[0], k)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_bits(data):
    """Exactly K distinct indices and the same ones by every way, for any 32 bits an entry."""
    d = data.draw(st.sampled_from([3, 64, 700]))
    k = data.draw(st.sampled_from([1, d // 3, d]))
    few = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = rng.choice(np.array(few, np.uint32), d).view(np.float32)
    for name in WAYS:
        check(compiled(name, k)(x), x, k)


def test_the_ways_of_a_compressor():
    """A layer as its size asks for, and all of them in ascending order."""
    sizes = (40, 20_000, 1)
    x = np.concatenate([vectors(d)["gaussian"] for d in sizes])
    messages = jax.jit(Layerwise(TopK(0.1), sizes).compress)(x, jax.random.key(0))
    for d, message in zip(sizes, messages, strict=True):
        check((message.indices, message.values), vectors(d)["gaussian"], TopK(0.1).kept(d))


def test_other_types():
    x = vectors(300)["ties"]
    half = x.astype(np.float16)
    message = jax.jit(TopK(0.1).compress)(half, None)
    assert message.values.dtype == np.float16
    np.testing.assert_array_equal(message.indices, by_hand(half.astype(np.float32), 30)[0])


@pytest.mark.skipif("kernel" not in WAYS, reason="needs a compiler")
@pytest.mark.parametrize(
    ("shape", "outcome"), [((0,), (3,)), ((5,), (6,)), ((2, 5), (3,)), ((2, 5), (3, 2)), ((), (1,))]
)
def test_the_kernel_refuses(shape, outcome):
    """What no caller asks for."""
    results = [jax.ShapeDtypeStruct(outcome, dtype) for dtype in (jnp.int32, jnp.float32)]
    with pytest.raises(jax.errors.JaxRuntimeError, match="wrong shapes"):
        jax.ffi.ffi_call("fedsgm_topk", results)(jnp.zeros(shape))


def of_row_by_hand(rows, at, update, k):
    """NumPy's largest of the sum, and the rows with what it leaves."""
    rows = rows.copy()
    rows[at] += update
    indices, values = by_hand(rows[at], k)
    rows[at][indices] -= values
    return indices, values, rows


@pytest.mark.parametrize("kernel", [False] + [True] * ("kernel" in WAYS))
@pytest.mark.parametrize("d", [1, 40, 512, 513, 4097, 70_001, 2**18 + 77])
def test_of_a_row(kernel, d, monkeypatch):
    """The row alone changes, wherever it is; where the sample misleads the kernel, too, and where many are alike."""
    if not kernel:
        monkeypatch.setattr(native, "missing", lambda: "not here")
    rng = np.random.default_rng(d)
    sampled = np.arange(2048) * d // 2048
    kinds = {kind: x for kind, x in vectors(d).items() if np.isfinite(x).all() and kind not in ("spread", "denormal")}
    kinds["misled"] = rng.standard_normal(d).astype(np.float32)
    kinds["misled"][sampled] = 1e9
    for k in sorted({1, max(d // 10, 1), d}):
        find = jax.jit(functools.partial(topk.top_k_of_row, k=k))
        for i, (kind, update) in enumerate(kinds.items()):
            rows = rng.standard_normal((3, d)).astype(np.float32) if i % 2 else np.zeros((3, d), np.float32)
            expected = of_row_by_hand(rows, i % 3, update, k)
            for a, b in zip(find(rows, i % 3, update), expected, strict=True):
                np.testing.assert_array_equal(np.asarray(a), b, err_msg=kind)


@pytest.mark.skipif("kernel" not in WAYS, reason="needs a compiler")
@pytest.mark.parametrize("d", [40, 4097, 2**18 + 77])
def test_of_a_row_of_very_small_numbers(d, monkeypatch):
    """Which XLA takes for zeros where it adds: the kernel does as it does, whatever thread works on them."""
    small, wide = (vectors(d)[kind] for kind in ("denormal", "spread"))
    rows = np.stack([small, wide, wide])
    found = jax.jit(functools.partial(topk.top_k_of_row, k=d // 10))(rows, 1, small)
    monkeypatch.setattr(native, "missing", lambda: "not here")
    portable = jax.jit(functools.partial(topk.top_k_of_row, k=d // 10))(rows, 1, small)
    for a, b in zip(found, portable, strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


def test_of_a_row_that_is_not_finite():
    """What was taken of it is a NaN, as of a difference: no message can pay an infinite debt."""
    update = np.array([1, np.inf, -np.inf, np.nan, 0.5], np.float32)
    for d in (5, 1000):
        x = np.resize(np.float32(0.1), d)
        x[:5] = update
        _, _, rows = topk.top_k_of_row(jnp.zeros((2, d)), 1, jnp.asarray(x), 4)
        np.testing.assert_array_equal(rows[1][:5], [0, np.nan, np.nan, np.nan, 0.5])
        assert not np.any(rows[0])


@pytest.mark.skipif("kernel" not in WAYS, reason="needs a compiler")
@pytest.mark.parametrize(
    ("at", "d", "k", "why"),
    [(3, 5, 2, "no such row"), (-1, 5, 2, "no such row"), (0, 4, 2, "shapes"), (0, 5, 6, "shapes")],
)
def test_the_kernel_refuses_rows(at, d, k, why):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (((k,), jnp.int32), ((k,), jnp.float32))]
    call = jax.ffi.ffi_call("fedsgm_topk_of_row", [*shapes, jax.ShapeDtypeStruct((3, 5), jnp.float32)])
    with pytest.raises(jax.errors.JaxRuntimeError, match=why):
        call(jnp.zeros((3, 5)), jnp.int32(at), jnp.zeros(d))
