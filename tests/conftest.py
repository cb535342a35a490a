"""What all tests share: a compilation cache of the checkout's own, and small problems."""

import ctypes
import gc
import os
import resource
import sys
from pathlib import Path

os.environ.setdefault("FEDSGM_CACHE", str(Path(__file__).parents[1] / ".cache"))
# Compiling is most of the tests' time; less optimised machine code of the same programs takes a third of it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base import sizes
from support.runs import FEATURES, SIZES, logistic, negative, positive

pytest_plugins = ["support.fixtures"]  # those of the commands' tests

MOST_MEMORY = 2 * 2**30  # bytes, of a process that runs tests
MUCH_MEMORY = 1.2 * 2**30  # with which it forgets its programs before the module is through ...
GROWTH = 0.3 * 2**30  # ... if it has this much more than was left the last time: that was no programs
LEFT = pytest.StashKey[int]()  # the bytes that were left


def peak_memory():
    """The most bytes that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def pytest_collection_modifyitems(items):
    """Tests of real processes first: they mostly wait, and nobody should wait for them in the end.

    Of two workers the first has them all, one federation at a time, while the other computes.
    """
    flare = ("test_flare.py", "test_secure_flare.py", "test_hostile.py", "test_torch_project.py")
    waiting = ("test_flower_processes.py", "test_flower_simulation.py", *flare)
    items.sort(key=lambda item: item.path.name not in waiting)


def memory():
    """The bytes that this process has now, where that can be read."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * resource.getpagesize() if pages.exists() else 0


def forget_programs():
    """What was compiled leaves memory."""
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # what programs leave is in pieces: without it hundreds of MB stay


@pytest.fixture
def _programs_go_with_their_test():
    """For tests that have nothing in common, and those that run op by op: each op is a program of its own."""
    forget_programs()
    yield
    forget_programs()


@pytest.fixture(autouse=True)
def _programs_go_where_memory_is_short(request):
    """The libraries of all engines in one process leave little room for a large module's programs."""
    yield
    stash = request.config.stash
    if memory() > max(MUCH_MEMORY, stash.get(LEFT, 0) + GROWTH):
        forget_programs()
        stash[LEFT] = memory()


@pytest.fixture(scope="module", autouse=True)
def _programs_go_with_their_module(request):
    """What a module has compiled or cached leaves memory with it; that in which a process outgrows its memory fails."""
    before = peak_memory()
    yield
    for value in vars(request.module).values():
        if hasattr(value, "cache_clear") and value.__module__ == request.module.__name__:
            value.cache_clear()
    forget_programs()
    after = peak_memory()
    assert not before <= MOST_MEMORY < after, f"memory went from {before / 2**30:.2f} to {after / 2**30:.2f} GB"


@pytest.fixture
def many_groups(monkeypatch):
    """As if clients' data were large, and very unequal: a little less padding is worth a group."""

    def switch(on, share=0.1):
        monkeypatch.setattr(sizes, "_SPARE", 1 if on else np.inf)
        monkeypatch.setattr(sizes, "_SHARE", share)
        monkeypatch.setattr(sizes, "_NUMBERS", 0)

    switch(True)
    return switch


@pytest.fixture(scope="session")
def adult_folder():
    """The folder beside the checkout that has the Adult files, or None, which is the loader's own cache."""
    folder = Path(__file__).parents[2] / "shared" / "adult"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def adult_tables(adult_folder):
    """The Adult data, training and test."""
    from fedsgm.data.adult import adult

    return adult(adult_folder)


@pytest.fixture(scope="session")
def clients():
    """Six clients of different sizes whose data differ, each with both classes."""
    rng = np.random.default_rng(7)
    data = []
    for size in SIZES:
        x = rng.normal(size=(size, FEATURES)) + rng.normal(size=FEATURES)
        y = (np.arange(size) % 3 == 0).astype(np.float32)
        x[y == 1] += 0.8
        data.append({"x": x.astype(np.float32), "y": y})
    return fs.Clients.from_list(data)


@pytest.fixture(scope="session")
def problem():
    """Least loss on class 0 with the loss on class 1 within a bound that matters."""
    return fs.Problem(
        objective=fs.Mean(logistic, where=negative),
        constraints=[fs.Mean(logistic, where=positive, name="positive") <= 0.45],
    )


@pytest.fixture
def params():
    return {"w": np.full(FEATURES, 0.3, np.float32), "b": np.float32(-0.2) * np.ones((), np.float32)}
