"""Kernels in C++ (``native/``), built when the package is installed where there is a compiler, for programs on CPUs.

Whoever has one to call has a portable way as well, which gives the same bits, for where there are none.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

_TARGETS = ("fedsgm_topk", "fedsgm_topk_of_row", "fedsgm_join", "fedsgm_add")
_LONG = 2**16  # entries of a vector, from which on a call of a kernel is nothing beside its work


@functools.cache
def missing() -> str | None:
    """Why the kernels are not in use; None if they are."""
    if os.environ.get("FEDSGM_KERNEL", "1") == "0":
        return "FEDSGM_KERNEL=0"
    folder = Path(__file__).parent
    built = [path for end in importlib.machinery.EXTENSION_SUFFIXES if (path := folder / f"_native{end}").exists()]
    if not built:
        return "built without a compiler"
    try:
        library = ctypes.CDLL(str(built[0]))
        for target in _TARGETS:
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    except Exception as error:  # another machine's library, or of a JAX that speaks to kernels otherwise
        return f"it was built, but does not load: {' '.join(str(error).split())}"
    jax.ffi.register_ffi_target_as_batch_partitionable("fedsgm_topk")
    return None


def either(kernel: Callable[..., Any], portable: Callable[..., Any], *arguments: jax.Array) -> Any:
    """What the kernel gives where it is in use, or else the portable way."""
    if missing() is not None:
        return portable(*arguments)
    return jax.lax.platform_dependent(*arguments, cpu=kernel, default=portable)


def joined(parts: list[jax.Array]) -> jax.Array:
    """Vectors of float32, one after another."""
    size = sum(len(part) for part in parts)

    def kernel(*parts: jax.Array) -> Any:
        whole = jax.ShapeDtypeStruct((size,), jnp.float32)
        return jax.ffi.ffi_call("fedsgm_join", whole, vmap_method="sequential")(*parts)

    def portable(*parts: jax.Array) -> jax.Array:
        return jnp.concatenate(parts)

    return portable(*parts) if size < _LONG else either(kernel, portable, *parts)


def added(x: jax.Array, places: jax.Array, values: jax.Array) -> jax.Array:
    """The vector, with these values added to the entries at places that are all different."""

    def kernel(x: jax.Array, places: jax.Array, values: jax.Array) -> Any:
        total = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = jax.ffi.ffi_call("fedsgm_add", total, vmap_method="sequential", input_output_aliases={0: 0})
        return call(x, places, values)

    def portable(x: jax.Array, places: jax.Array, values: jax.Array) -> jax.Array:
        return x.at[places].add(values, unique_indices=True)

    types = [a.dtype for a in (x, places, values)]
    if len(x) < _LONG or types != [jnp.float32, jnp.int32, jnp.float32]:
        return portable(x, places, values)
    return either(kernel, portable, x, places, values)
