"""How whole programs are compiled, and where they are kept between processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

_FULL: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 1}
_LIGHT = _FULL | {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
_LITTLE = 2**28  # parameters times numbers of the data, of a program that is called a few times


def whole_program(
    fn: Callable[..., Any], *, donate: tuple[int, ...] = (), light: Callable[..., bool] | None = None
) -> Callable[..., Any]:
    """``jax.jit`` of what is never part of another program, compiled for the CPU with less work.

    In full: fewer of LLVM's passes than XLA's own choice, and one piece of code instead of many. The others take up to
    a quarter of a first run and gain nothing that was measured. Where ``light`` says so of the arguments: none of the
    passes, and fusions in XLA's older way. A program is compiled in a quarter of the time, and takes several times
    as long: right for what runs once, or has little to do. Last bits differ between the two, so ``light`` may ask only
    for what is the same however a run is interrupted. What the user sets in XLA_FLAGS is kept.

    The arrays of the arguments in ``donate`` are given away: what the program makes may take their place.
    """

    @functools.cache
    def program(light: bool) -> Callable[..., Any]:
        told = os.environ.get("XLA_FLAGS", "")
        wanted = {name: value for name, value in (_LIGHT if light else _FULL).items() if name not in told}
        options = wanted if jax.default_backend() == "cpu" else None
        return jax.jit(fn, donate_argnums=donate, compiler_options=options)

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return program(light is not None and light(*args))(*args)

    return call


of_run = functools.partial(whole_program, light=lambda run, *_: run.light)  # a run's programs are compiled in one way


def little(params: Any, data: Any) -> bool:
    """Whether to go through the data once with these parameters takes next to no time.

    A parameter meets each number of an example at most, as in a convolution.
    """
    return _numbers(params) * _numbers(data) <= _LITTLE


def _numbers(tree: Any) -> int:
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user has set a cache up or sets FEDSGM_CACHE to nothing."""
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    folder = os.environ.get("FEDSGM_CACHE", "~/.cache/fedsgm")
    if folder:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
