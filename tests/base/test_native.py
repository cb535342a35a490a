"""The kernels that are compiled on installation, and what there is without them: the same bits."""

import functools
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsgm.base import native

with_kernels = pytest.mark.skipif(native.missing() is not None, reason="needs a compiler")
ways = pytest.mark.parametrize("here", [False] + [True] * (native.missing() is None))


def run(code, **environment):
    """In a process of its own, where nothing was loaded yet."""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_can_be_turned_off():
    assert run("from fedsgm.base import native; print(native.missing())", FEDSGM_KERNEL="0") == "FEDSGM_KERNEL=0"


@pytest.mark.parametrize(("made", "why"), [(False, "built without a compiler"), (True, "does not load")])
def test_without_a_library(monkeypatch, tmp_path, made, why):
    """None, and one that is none: a sentence, and another way."""
    monkeypatch.delenv("FEDSGM_KERNEL", raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    if made:
        Path(tmp_path, f"_native{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    found = native.missing.__wrapped__()
    assert why in found
    assert "\n" not in found
    monkeypatch.setattr(native, "missing", lambda: found)
    parts = arrays(70_000)
    np.testing.assert_array_equal(jax.jit(native.joined)(parts), np.concatenate(parts))


def arrays(d):
    """Vectors of very different lengths, d entries in all."""
    x = np.random.default_rng(d).standard_normal(d).astype(np.float32)
    return np.split(x, [1, 1, d // 3, d // 3 + 5])


@ways
@pytest.mark.parametrize("d", [100, 70_001, 2**18 + 1])
def test_joined(here, d, monkeypatch):
    """Also of arrays that a program has just made, and for several at once."""
    if not here:
        monkeypatch.setattr(native, "missing", lambda: "not here")
    parts = arrays(d)
    np.testing.assert_array_equal(jax.jit(native.joined)(parts), np.concatenate(parts))
    doubled = jax.jit(lambda parts: 1 + native.joined([2 * part for part in parts]))(parts)
    np.testing.assert_array_equal(doubled, 1 + 2 * np.concatenate(parts))
    both = jax.jit(jax.vmap(native.joined))([np.stack([part, -part]) for part in parts])
    np.testing.assert_array_equal(both, np.stack([np.concatenate(parts), -np.concatenate(parts)]))


@ways
@pytest.mark.parametrize(("d", "k"), [(100, 7), (70_001, 1), (70_001, 70_001), (2**18, 50_001)])
def test_added(here, d, k, monkeypatch):
    """In any order of the places; what was given is as it was; in a loop, and for several at once."""
    if not here:
        monkeypatch.setattr(native, "missing", lambda: "not here")
    rng = np.random.default_rng(d + k)
    x, values = rng.standard_normal(d).astype(np.float32), rng.standard_normal(k).astype(np.float32)
    places = rng.permutation(d)[:k].astype(np.int32)
    expected, given = x.copy(), jnp.asarray(x)
    expected[places] += values
    np.testing.assert_array_equal(jax.jit(native.added)(given, places, values), expected)
    np.testing.assert_array_equal(native.added(given, jnp.asarray(places), jnp.asarray(values)), expected)
    np.testing.assert_array_equal(given, x)
    twice = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: native.added(x, places, values), x))(x)
    expected_twice = expected.copy()
    expected_twice[places] += values
    np.testing.assert_array_equal(twice, expected_twice)
    both = jax.vmap(functools.partial(native.added, places=places, values=values))(np.stack([x, expected]))
    np.testing.assert_array_equal(both, np.stack([expected, expected_twice]))


def test_other_types_are_added_by_jax():
    x = jnp.zeros(70_000, jnp.float16)
    found = native.added(x, jnp.array([3]), jnp.array([0.5], jnp.float16))
    assert found.dtype == jnp.float16
    assert found[3] == 0.5


@with_kernels
def test_places_that_are_not_there():
    """They are left out, as JAX does: memory that is not the vector's is never written."""
    x, places = jnp.zeros(2**16), jnp.array([-1, 2**16, 5, -(2**31), 2**31 - 1], jnp.int32)
    call = jax.ffi.ffi_call("fedsgm_add", jax.ShapeDtypeStruct(x.shape, x.dtype))
    np.testing.assert_array_equal(call(x, places, jnp.ones(5)), np.eye(1, 2**16, 5)[0])


@with_kernels
@pytest.mark.parametrize("lengths", [(3, 4), (3,), (3, 2, 1), ()])
def test_the_kernel_refuses_arrays(lengths):
    call = jax.ffi.ffi_call("fedsgm_join", jax.ShapeDtypeStruct((5,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="wrong shapes"):
        call(*(jnp.zeros(length) for length in lengths))


@with_kernels
@pytest.mark.parametrize(("k", "d"), [(2, 5), (3, 6)])
def test_the_kernel_refuses_values(k, d):
    call = jax.ffi.ffi_call("fedsgm_add", jax.ShapeDtypeStruct((d,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="wrong shapes"):
        call(jnp.zeros(5), jnp.zeros(3, jnp.int32), jnp.zeros(k))
