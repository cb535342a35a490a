"""Neyman-Pearson classification: the least loss on the majority class that keeps the minority's within a bound.

The paper's first experiment: logistic regression on the breast cancer data, split evenly over clients.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedsgm.base.structs import LARGEST_SEED, check_count
from fedsgm.core.problem import Mean, Problem
from fedsgm.data import Clients, iid, split
from fedsgm.data.breast_cancer import breast_cancer
from fedsgm.tables.models import cross_entropy


def logistic_loss(params: Any, example: Any) -> jax.Array:
    """phi(w; (x, y)) = log(1 + exp(z)) - y z with z = <w, x> + b."""
    return cross_entropy(example["x"] @ params["w"] + params["b"], example["y"])


def majority(example: Any) -> jax.Array:
    return example["y"] == 0


def minority(example: Any) -> jax.Array:
    return example["y"] == 1


def neyman_pearson(bound: float = 0.05) -> Problem:
    """Minimise the majority's mean logistic loss subject to ``minority <= bound``."""
    return Problem(
        objective=Mean(logistic_loss, where=majority),
        constraints=[Mean(logistic_loss, where=minority, name="minority") <= bound],
    )


def load(*, clients: int = 20, split_seed: int = 0) -> tuple[Clients, dict[str, Any], dict[str, Any]]:
    """The experiment's clients, held-out examples and starting parameters (zero, d = 31)."""
    check_count("load", "split_seed", split_seed, least=0, most=LARGEST_SEED)
    train, test = breast_cancer(split=split_seed)
    params = {"w": np.zeros(train["x"].shape[1], np.float32), "b": np.float32(0)}
    dealt = split(train, clients=clients, scheme=iid(stratify="y"), seed=split_seed)
    return dealt, test, jax.tree.map(np.asarray, params)
