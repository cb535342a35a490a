"""What all tests share: a compilation cache of the checkout's own, and small problems."""

import os
from pathlib import Path

os.environ.setdefault("FEDSGM_CACHE", str(Path(__file__).parents[1] / ".cache"))
# Compiling is most of the tests' time; less optimised machine code of the same programs takes a third less of it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

import numpy as np
import pytest

import fedsgm as fs
from support.runs import FEATURES, SIZES, logistic, negative, positive


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
