"""Ready-made models for tables: parameters to start from, and the loss and score of one example."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count


@jax.custom_jvp
def _softplus(z: jax.Array) -> jax.Array:
    """log(1 + exp(z)), whose derivative in JAX takes a logarithm and two exponentials; a sigmoid is enough."""
    return jax.nn.softplus(z)


_softplus.defjvps(lambda tangent, _, z: tangent * jax.nn.sigmoid(z))


def cross_entropy(logit: jax.Array, label: jax.Array) -> jax.Array:
    """Binary cross-entropy of a logit for a label of 0 or 1."""
    return _softplus(logit) - label * logit


@dataclasses.dataclass(frozen=True)
class MLP:
    """A fully connected network of ReLU layers with one logit; without a hidden layer, logistic regression.

    An example is a dictionary with the features ``"x"`` and the label ``"y"``, 0 or 1.

    >>> model = MLP(hidden=(8,))
    >>> params = model.init(features=3, seed=0)
    >>> model.score(params, {"x": np.zeros(3)}).shape
    ()
    """

    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, tuple):
            raise SettingError(f"MLP: hidden={self.hidden!r}, but it must be a tuple of layer widths, such as (64,)")
        for width in self.hidden:
            check_count("MLP", "hidden", width)

    def init(self, features: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
        """He's initialisation for the hidden layers, zero for the last: every score starts at one half."""
        rng = np.random.default_rng(seed)
        sizes = [features, *self.hidden]
        layers = [
            {"w": rng.normal(0, np.sqrt(2 / a), (a, b)).astype(np.float32), "b": np.zeros(b, np.float32)}
            for a, b in itertools.pairwise(sizes)
        ]
        return [*layers, {"w": np.zeros(sizes[-1], np.float32), "b": np.zeros((), np.float32)}]

    def logit(self, params: Any, example: Any) -> jax.Array:
        x = example["x"]
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ params[-1]["w"] + params[-1]["b"]

    def loss(self, params: Any, example: Any) -> jax.Array:
        """Binary cross-entropy."""
        return cross_entropy(self.logit(params, example), example["y"])

    def score(self, params: Any, example: Any) -> jax.Array:
        """The predicted probability of the positive class."""
        return jax.nn.sigmoid(self.logit(params, example))
