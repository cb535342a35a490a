"""Ready-made models for tables: parameters to start from, and the loss and score of one example."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from optax.losses import softmax_cross_entropy_with_integer_labels, squared_error

from fedsgm.base.cache import little, whole_program
from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count

_CERTAIN = 20.0  # the logit of a probability that is all but 1


@jax.custom_jvp
def _softplus(z: jax.Array) -> jax.Array:
    """log(1 + exp(z)), whose derivative in JAX takes a logarithm and two exponentials; a sigmoid is enough."""
    return jax.nn.softplus(z)


_softplus.defjvps(lambda tangent, _, z: tangent * jax.nn.sigmoid(z))


def cross_entropy(logit: jax.Array, label: jax.Array) -> jax.Array:
    """Binary cross-entropy of a logit for a label of 0 or 1."""
    return _softplus(logit) - label * logit


class Model(Protocol):
    """What constraints are about: functions of parameters and one example."""

    def loss(self, params: Any, example: Any) -> jax.Array: ...

    def score(self, params: Any, example: Any) -> jax.Array: ...


_GENTLE = 0.25


@dataclasses.dataclass(frozen=True)
class MLP:
    """A fully connected network of ReLU layers; without a hidden layer, logistic or linear regression.

    For two classes it has one logit, for more a logit each, and with ``classes=None`` it predicts a number. An example
    is a dictionary with the features ``"x"`` and the label ``"y"``: 0 or 1, a class's place from 0, or a number of mean
    0 and variance 1.

    >>> model = MLP(hidden=(8,))
    >>> params = model.init(features=3, seed=0)
    >>> model.score(params, {"x": np.zeros(3)}).shape
    ()
    """

    hidden: tuple[int, ...] = ()
    classes: int | None = 2

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, tuple):
            raise SettingError(f"MLP: hidden={self.hidden!r}, but it must be a tuple of layer widths, such as (64,)")
        for width in self.hidden:
            check_count("MLP", "hidden", width)
        if self.classes is not None:
            check_count("MLP", "classes", self.classes, least=2)

    def init(self, features: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
        """He's initialisation for the hidden layers, zero for the last: at the start all classes are as probable."""
        rng = np.random.default_rng(seed)
        sizes = [features, *self.hidden]
        layers = [
            {"w": rng.normal(0, np.sqrt(2 / a), (a, b)).astype(np.float32), "b": np.zeros(b, np.float32)}
            for a, b in itertools.pairwise(sizes)
        ]
        logits = () if self.classes in (None, 2) else (self.classes,)
        return [*layers, {"w": np.zeros((sizes[-1], *logits), np.float32), "b": np.zeros(logits, np.float32)}]

    def constant(self, params: Any, label: int) -> Any:
        """Parameters of the same form that decide for this class, or for the mean, whatever the example."""
        layers = [{name: np.zeros_like(array) for name, array in layer.items()} for layer in params]
        if self.classes is None:
            return layers
        chosen = np.arange(self.classes) == label if self.classes > 2 else np.array(label == 1)
        return [*layers[:-1], layers[-1] | {"b": np.where(chosen, _CERTAIN, -_CERTAIN).astype(np.float32)}]

    def logit(self, params: Any, example: Any) -> jax.Array:
        x = example["x"]
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ params[-1]["w"] + params[-1]["b"]

    def loss(self, params: Any, example: Any) -> jax.Array:
        """Cross-entropy, or a number's squared error."""
        if self.classes is None:
            return squared_error(self.score(params, example), example["y"])
        if self.classes == 2:
            return cross_entropy(self.logit(params, example), example["y"])
        return softmax_cross_entropy_with_integer_labels(self.logit(params, example), jnp.int32(example["y"]))

    def score(self, params: Any, example: Any) -> jax.Array:
        """The predicted probability of the positive class, or of each of several; or the predicted number."""
        logit = self.logit(params, example)
        if self.classes is None:
            # It moves with the logit as a probability does at most, so that the same step sizes fit.
            return _GENTLE * logit
        return jax.nn.sigmoid(logit) if self.classes == 2 else jax.nn.softmax(logit)

    def scores(self, params: Any, x: np.ndarray) -> np.ndarray:
        """The scores of many examples with these features."""
        return np.asarray(_scores(self)(params, {"x": x}))


@functools.cache
def _scores(model: MLP) -> Callable[[Any, Any], jax.Array]:
    return whole_program(jax.vmap(model.score, (None, 0)), light=little)
