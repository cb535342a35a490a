"""Policies: any function from parameters and an observation to the parameters of a distribution over actions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError

_LOG_STD = (-5.0, 2.0)


class Distribution(Protocol):
    """A family of distributions over actions, as functions of the policy's ``outputs`` (last axis)."""

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """All that is random in actions, drawn beforehand: small draws inside a rollout cost more than its steps."""
        ...

    def sample(self, outputs: jax.Array, noise: jax.Array) -> jax.Array: ...

    def log_prob(self, outputs: jax.Array, actions: jax.Array) -> jax.Array: ...

    def kl(self, before: jax.Array, after: jax.Array) -> jax.Array: ...

    def fisher_root(self, outputs: jax.Array) -> jax.Array:
        """R of shape [..., outputs, rank] such that R R^T is the Fisher information of the outputs."""
        ...


class Policy(Protocol):
    """``apply(params, observation)`` gives one observation's outputs; ``params`` is any pytree of arrays."""

    @property
    def distribution(self) -> Distribution: ...

    @property
    def apply(self) -> Callable[[Any, jax.Array], jax.Array]: ...


@dataclasses.dataclass(frozen=True)
class Categorical:
    """Actions 0, 1, ...; the outputs are their logits."""

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.uniform(key, shape)

    def sample(self, outputs: jax.Array, noise: jax.Array) -> jax.Array:
        upto = jnp.cumsum(jax.nn.softmax(outputs), -1)[..., :-1]
        return jnp.sum(noise[..., None] >= upto, -1)

    def log_prob(self, outputs: jax.Array, actions: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), actions[..., None], -1)[..., 0]

    def kl(self, before: jax.Array, after: jax.Array) -> jax.Array:
        log = jax.nn.log_softmax(before)
        return jnp.sum(jnp.exp(log) * (log - jax.nn.log_softmax(after)), -1)

    def fisher_root(self, outputs: jax.Array) -> jax.Array:
        p = jax.nn.softmax(outputs)
        root = jnp.sqrt(p)
        if outputs.shape[-1] == 2:  # of rank one, which makes the Gram form's system half as large
            return (jnp.prod(root, -1, keepdims=True) * jnp.array([-1.0, 1.0]))[..., None]
        return jnp.eye(outputs.shape[-1]) * root[..., None] - p[..., None] * root[..., None, :]


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """``size`` real numbers; the outputs are their means, then the logarithms of their standard deviations."""

    size: int = 1

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(key, (*shape, self.size))

    def sample(self, outputs: jax.Array, noise: jax.Array) -> jax.Array:
        mean, log_std = self._split(outputs)
        return mean + jnp.exp(log_std) * noise

    def log_prob(self, outputs: jax.Array, actions: jax.Array) -> jax.Array:
        mean, log_std = self._split(outputs)
        standard = (actions - mean) * jnp.exp(-log_std)
        return -jnp.sum(standard**2 / 2 + log_std + math.log(2 * math.pi) / 2, -1)

    def kl(self, before: jax.Array, after: jax.Array) -> jax.Array:
        (mean, log_std), (new_mean, new_log_std) = self._split(before), self._split(after)
        spread = (jnp.exp(2 * log_std) + (mean - new_mean) ** 2) * jnp.exp(-2 * new_log_std)
        return jnp.sum(new_log_std - log_std + (spread - 1) / 2, -1)

    def fisher_root(self, outputs: jax.Array) -> jax.Array:
        _, log_std = self._split(outputs)
        free = (log_std > _LOG_STD[0]) & (log_std < _LOG_STD[1])
        diagonal = jnp.concatenate([jnp.exp(-log_std), jnp.where(free, math.sqrt(2), 0)], -1)
        return jnp.eye(2 * self.size) * diagonal[..., None]

    def _split(self, outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, log_std = jnp.split(outputs, 2, -1)
        return mean, jnp.clip(log_std, *_LOG_STD)


@dataclasses.dataclass(frozen=True)
class Custom:
    """A policy of your own: ``apply(params, observation)`` gives the outputs that the distribution takes."""

    apply: Callable[[Any, jax.Array], jax.Array]
    distribution: Distribution


@dataclasses.dataclass(frozen=True)
class MLP:
    """Dense layers of these sizes, from observation to outputs, with tanh between them.

    Its gradients are outer products, layer by layer, so inner products of gradients need no gradient: the Gram form
    of the natural gradient rests on :meth:`factors`.
    """

    sizes: tuple[int, ...]
    distribution: Distribution

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        if len(self.sizes) < 2 or not all(isinstance(size, int) and size > 0 for size in self.sizes):
            raise SettingError(f"MLP: sizes={self.sizes!r}, but there must be two or more whole numbers above 0")

    def init(self, seed: int) -> list[dict[str, np.ndarray]]:
        """Weights and biases uniform within 1/sqrt(inputs) of zero."""
        rng = np.random.default_rng(seed)

        def layer(inputs: int, outputs: int) -> dict[str, np.ndarray]:
            shapes, limit = {"b": (outputs,), "w": (inputs, outputs)}, 1 / math.sqrt(inputs)
            return {name: rng.uniform(-limit, limit, shape).astype(np.float32) for name, shape in shapes.items()}

        return [layer(*pair) for pair in zip(self.sizes, self.sizes[1:], strict=False)]

    def apply(self, params: Any, observation: jax.Array) -> jax.Array:
        *_, last = self._inputs(params, observation)
        return last @ params[-1]["w"] + params[-1]["b"]

    def factors(
        self, params: Any, observations: jax.Array, roots: Callable[[jax.Array], jax.Array]
    ) -> list[tuple[jax.Array, jax.Array]]:
        """Each layer's inputs [samples, width], and the derivatives [samples, rank, width] of root^T outputs."""
        inputs = self._inputs(params, observations)
        slope = jnp.swapaxes(roots(inputs[-1] @ params[-1]["w"] + params[-1]["b"]), -1, -2)
        found = [(inputs[-1], slope)]
        for layer, after, before in zip(params[:0:-1], inputs[:0:-1], inputs[-2::-1], strict=True):
            slope = (slope @ layer["w"].T) * (1 - after**2)[..., None, :]
            found.append((before, slope))
        return found[::-1]

    def _inputs(self, params: Any, observations: jax.Array) -> list[jax.Array]:
        inputs: Sequence[jax.Array] = [observations]
        for layer in params[:-1]:
            inputs = [*inputs, jnp.tanh(inputs[-1] @ layer["w"] + layer["b"])]
        return list(inputs)
