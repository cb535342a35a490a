"""Where compiled programs are kept between processes."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user has set a cache up or sets FEDSGM_CACHE to nothing."""
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    folder = os.environ.get("FEDSGM_CACHE", "~/.cache/fedsgm")
    if folder:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
