"""What the tasks of private runs have in common: the problem behind them, the account, and noise of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.core.problem import Problem
from fedsgm.core.quantities import Statistic
from fedsgm.privacy import accounting
from fedsgm.privacy.settings import Privacy

_ROUNDING = 1e-5  # of a length in float32, at most


class Private:
    """A :class:`Problem` under :class:`Privacy`; ``noise`` is the multiplier of a round, ``secret`` makes the noise."""

    problem: Problem
    privacy: Privacy
    noise: Any
    secret: Any

    judges: ClassVar[bool] = True

    @property
    def bounds(self) -> dict[str, float]:
        return self.problem.bounds

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return self.problem.ranges

    @property
    def inspects(self) -> tuple[str, ...]:
        return ()

    @property
    def places(self) -> tuple[str, ...]:
        return ()

    @property
    def parts(self) -> tuple[int, ...]:
        return self.problem.parts

    @property
    def quantities(self) -> tuple[Any, ...]:
        return self.problem.quantities

    @property
    def pooled(self) -> Any:
        raise SettingError("test='clients': clients of a private run do not tell of held-out examples; leave test out")

    @property
    def share(self) -> Any:
        return self.problem.share

    @property
    def of_statistics(self) -> float:
        """Their part of what a round may spend."""
        return self.privacy.share if self.problem.constraints else 0.0

    @property
    def multipliers(self) -> tuple[Any, Any]:
        """Of a round's statistics and of its update."""
        return accounting.parts(self.noise, self.of_statistics)

    @property
    def of_ends(self) -> float:
        """What the values at the end may spend, in rounds' worth."""
        return accounting.FINALS * accounting.of_values(self.privacy.rounds)

    @property
    def at_end(self) -> Any:
        """The multiplier of the values of a model at the end."""
        return self.noise / math.sqrt(accounting.of_values(self.privacy.rounds))

    def epsilons(self, spent: Any) -> np.ndarray:
        """What it comes to where so many rounds' worth was released."""
        return accounting.epsilons(float(self.noise), self.privacy.delta, spent)

    def prepare(self, clients: Any, params: Any, *, owner: str = "client") -> Any:
        return self.problem.prepare(clients, params, owner=owner)

    def prepare_one(self, data: Any, params: Any) -> Any:
        return self.problem.prepare_one(data, params)

    def at(self, round: jax.Array) -> Any:
        return self

    def inspect(self, before: Any, after: Any, kept: Any) -> dict[str, jax.Array]:
        return {}

    def with_radii(self, values: dict[str, jax.Array], worst: jax.Array, radius: Any) -> tuple[Any, jax.Array]:
        """The values by name, and beside each constraint's its radius; a violation counts with that."""
        names = self.problem.names
        if not names:
            return values, worst
        violations = self.problem._violations(jnp.stack([values[name] for name in names]), 0.0)
        scales = jnp.array([c.scale for c in self.problem.constraints], jnp.float32)
        told = {f"{name}_radius": each for name, each in zip(names, radius, strict=True)}
        return values | told, jnp.max(violations + radius / scales)

    def _key(self, key: jax.Array, *seen: Any) -> jax.Array:
        """The noise's, of the secret, the key of the round, client and step, and of what else tells questions apart."""
        told = jax.random.key_data(key)
        made = jax.random.wrap_key_data(jnp.asarray(self.secret, jnp.uint32))
        for word in (told[0], told[1], *(_digest(leaf) for leaf in jax.tree.leaves(seen))):
            made = jax.random.fold_in(made, word)
        return made


def cut(each: Any, bound: Any) -> jax.Array:
    """What makes every row of some arrays, as one vector, no longer than the bound."""
    leaves = jax.tree.leaves(each)
    squares = sum(jnp.sum(a.reshape(len(a), -1) ** 2, axis=1) for a in leaves)
    return jnp.minimum(1, (1 - _ROUNDING) * bound / jnp.maximum(jnp.sqrt(squares), jnp.finfo(jnp.float32).tiny))


def shortened(sums: Any, known: Any) -> Any:
    """Rows of a statistic's sums, as far as their range lets them be: ``length``, or ``(0.0, length)``."""
    if isinstance(known, tuple):
        sums, known = jax.tree.map(lambda a: jnp.maximum(a, 0), sums), known[1]
    part = cut(sums, known)
    return jax.tree.map(lambda a: part.reshape(-1, *[1] * (a.ndim - 1)) * a, sums)


def apart(quantity: Any, known: Any) -> float:
    """How far what two say of it can be apart: of vectors without negative entries, sqrt(2) lengths, of others two."""
    if not isinstance(quantity, Statistic):
        return known[1] - known[0]
    return math.sqrt(2) * known[1] if isinstance(known, tuple) else 2 * known


def with_noise(total: Any, deviation: Any, key: jax.Array) -> Any:
    leaves, form = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    noisy = [a + deviation * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(form, noisy)


def radii(history: Mapping[str, np.ndarray], values: Mapping[str, Any], bounds: Iterable[str]) -> dict[str, Any]:
    """How far noise may have moved the values at the end: the furthest of all models that were measured."""
    found = {}
    for name in (f"{bound}_radius" for bound in bounds):
        found[name] = np.array(history[name])
        found[name][:, -1] = np.fmax.reduce(np.asarray(values[name]), axis=0)
    return found


def _digest(leaf: Any) -> jax.Array:
    """32 bits of an array."""
    a = jnp.ravel(jnp.asarray(leaf))
    bits = a.astype(jnp.uint32) if not jnp.issubdtype(a.dtype, jnp.floating) else a.astype(jnp.float32).view(jnp.uint32)
    odd = 2 * jnp.arange(len(bits), dtype=jnp.uint32) + 1
    return jnp.sum((bits ^ bits >> 15) * (odd * jnp.uint32(0x9E3779B1)), dtype=jnp.uint32)
