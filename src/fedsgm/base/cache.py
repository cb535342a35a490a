"""How whole programs are compiled, and where they are kept between processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

_LEVEL = "xla_backend_optimization_level"


def whole_program(fn: Callable[..., Any], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    """``jax.jit`` of what is never part of another program, for the CPU with fewer of LLVM's passes.

    The arrays of the arguments in ``donate`` are given away: what the program makes may take their place.

    They take up to a quarter of a first run and gain nothing that was measured: the work is in products and in loops
    that XLA has made vectors of. A level that the user sets in XLA_FLAGS is kept.
    """

    @functools.cache
    def program() -> Callable[..., Any]:
        told = _LEVEL in os.environ.get("XLA_FLAGS", "")
        light = jax.default_backend() == "cpu" and not told
        return jax.jit(fn, donate_argnums=donate, compiler_options={_LEVEL: 1} if light else None)

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return program()(*args)

    return call


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user has set a cache up or sets FEDSGM_CACHE to nothing."""
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    folder = os.environ.get("FEDSGM_CACHE", "~/.cache/fedsgm")
    if folder:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
