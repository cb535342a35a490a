"""How whole programs are compiled, and where they are kept between processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

_LIGHT = {"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 1}


def whole_program(fn: Callable[..., Any], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    """``jax.jit`` of what is never part of another program, compiled for the CPU with less work.

    Fewer of LLVM's passes, and one piece of code instead of many: the others take up to a quarter of a first run and
    gain nothing that was measured. What the user sets in XLA_FLAGS is kept. (``--xla_cpu_use_fusion_emitters=false``
    saves as much again, but a round of small products then takes up to a quarter longer.)

    The arrays of the arguments in ``donate`` are given away: what the program makes may take their place.
    """

    @functools.cache
    def program() -> Callable[..., Any]:
        told = os.environ.get("XLA_FLAGS", "")
        light = {name: value for name, value in _LIGHT.items() if name not in told}
        options = light if jax.default_backend() == "cpu" else None
        return jax.jit(fn, donate_argnums=donate, compiler_options=options)

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
