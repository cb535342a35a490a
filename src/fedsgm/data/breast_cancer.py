"""The Wisconsin breast cancer data (569 examples, 30 features) that scikit-learn ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np


def breast_cancer(*, split: int = 0, test_fraction: float = 0.2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train and test examples ``{"x", "y"}``, stratified; y = 1 is malignant, the minority class.

    Features are standardised with the training part's mean and deviation. ``split`` is the seed that deals
    examples to the two parts. The file is read directly: importing scikit-learn takes longer than a run.
    """
    x, y = _read()
    order = np.random.default_rng(split).permutation(len(y))
    test = np.zeros(len(y), bool)
    for label in (0, 1):
        members = order[y[order] == label]
        test[members[: round(test_fraction * len(members))]] = True
    x = (x - x[~test].mean(axis=0)) / x[~test].std(axis=0)
    x, y = x.astype(np.float32), y.astype(np.float32)
    return {"x": x[~test], "y": y[~test]}, {"x": x[test], "y": y[test]}


def _read() -> tuple[np.ndarray, np.ndarray]:
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None  # scikit-learn is a dependency
    table = np.loadtxt(Path(str(spec.origin)).parent / "datasets/data/breast_cancer.csv", delimiter=",", skiprows=1)
    return table[:, :-1], 1 - table[:, -1]
