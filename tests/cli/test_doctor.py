"""``fedsgm doctor``: one line for everything that a run would stand on."""

import platform
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import jax
import pytest

from fedsgm.base import native
from fedsgm.cli import doctor
from fedsgm.core import topk
from support.commands import call

NAMES = ["fedsgm", "jax", "jaxlib", "numpy", "python", "devices", "top-k", "compiled programs"]
EXTRAS = ("nvflare", "flower", "torch", "cmdp", "privacy", "tensorboard", "mlflow", "trackio")
NAMES += [f"extra {extra}" for extra in EXTRAS]


def told():
    shown = call("doctor")
    assert (shown.code, shown.err) == (0, "")
    lines = [line.split(": ", 1) for line in shown.out.splitlines()]
    assert [name for name, _ in lines] == NAMES
    return dict(lines)


def test_what_is_here():
    found = told()
    for package in ("fedsgm", "jax", "jaxlib", "numpy"):
        assert found[package] == version(package)
    assert found["python"] == platform.python_version()
    assert found["devices"] == ", ".join(map(str, jax.devices()))
    assert found["compiled programs"] == jax.config.jax_compilation_cache_dir
    assert found["top-k"] == topk.in_use()
    assert found["extra nvflare"] == f"nvflare {version('nvflare')}"


@pytest.mark.parametrize("why", ["built without a compiler", "FEDSGM_KERNEL=0"])
def test_why_there_is_no_kernel(monkeypatch, why):
    monkeypatch.setattr(native, "missing", lambda: why)
    assert told()["top-k"] == f"in JAX, without the compiled kernel: {why}"


def test_which_kernel(monkeypatch):
    monkeypatch.setattr(native, "missing", lambda: None)
    assert told()["top-k"] == "the compiled kernel"
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert told()["top-k"] == "in JAX, without the compiled kernel: that is for CPUs, and this is a gpu"


def test_what_is_not_installed(monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "torch", "no-such-package")
    assert told()["extra torch"] == "not installed; pip install 'fedsgm[torch]' adds no-such-package"


def test_no_cache(monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("FEDSGM_CACHE", "")
    try:
        assert told()["compiled programs"] == "not kept, as FEDSGM_CACHE is empty"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_extras_are_those_of_the_package():
    """All but the developers'."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"]
    first = {extra: re.match(r"[\w-]+", needs[0])[0] for extra, needs in wanted.items() if extra not in ("dev", "docs")}
    assert first == doctor.EXTRAS
