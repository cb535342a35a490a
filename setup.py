"""Builds the kernels where that can be done; elsewhere the package is pure Python, and does the same in JAX.

All else is in pyproject.toml. With FEDSGM_KERNEL=0 nothing is tried.
"""

import importlib.util
import os
from pathlib import Path

from setuptools import Extension, setup


def kernels() -> list[Extension]:
    """A plain shared library, loaded with ctypes. Where there is no compiler, ``optional`` lets the build go on."""
    jaxlib = importlib.util.find_spec("jaxlib")  # has the headers; importing it would take its time
    if os.environ.get("FEDSGM_KERNEL") == "0" or os.name != "posix" or jaxlib is None:
        return []
    headers = Path(jaxlib.submodule_search_locations[0], "include")
    flags = ["-std=c++17", "-O3", "-g0", "-pthread", "-isystem", str(headers)]
    made = {"extra_compile_args": flags, "extra_link_args": ["-pthread"], "language": "c++", "optional": True}
    sources = {"sources": ["native/topk.cc", "native/vectors.cc"], "depends": ["native/together.h"]}
    return [Extension("fedsgm.base._native", **sources, **made)]


setup(ext_modules=kernels())
