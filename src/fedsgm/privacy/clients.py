"""Client level: what the server lets be seen hides each client's whole data.

A client cuts its statistics to the ranges that were declared and its message, after the compressor, to a length: what
that leaves out stays in its error memory. Noise is added to the sums, outside of the memories: by a server that is
trusted with the clients' answers or, where it sees sums alone, by the clients, a share each (``shares.py``).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.structs import hidden, struct
from fedsgm.core.feedback import Summed
from fedsgm.core.pooling import SURE, Heard, count_of
from fedsgm.core.problem import Problem
from fedsgm.core.quantities import Statistic
from fedsgm.core.rules import Direction, Measured
from fedsgm.privacy.private import Private, apart, shortened, with_noise
from fedsgm.privacy.settings import Privacy

_UPDATE = 2  # of what a server's key is folded in with: 1 is the broadcast's


@struct
class PrivateClients(Private):
    """The task of a run whose unit is a client.

    ``widened`` is 0 where the server adds the noise; where the clients have, in shares of which so many make what is
    needed, it is that number, and the noise of a larger sum is wider.
    """

    problem: Problem
    privacy: Privacy
    noise: Any = hidden(default=None)
    secret: Any = hidden(default=None)
    widened: Any = hidden(default=np.int32(0))

    def measure(self, params: Any, data: Any, key: jax.Array, *, batch_size: int | None = None) -> tuple[Any, Any]:
        said, kept = self.problem.measure(params, data, key, batch_size=batch_size)
        return self._within(said, self.problem.names), kept

    def combine(self, statistics: Any, tolerance: Any, key: jax.Array, heard: Heard = None) -> Measured:
        """As the problem does of the noisy sums, and how far the noise may have moved it."""
        count, sigmas = count_of(statistics, heard), self.deviations(self.multipliers[0], self.problem.names)
        said = self._hidden(statistics, sigmas, count, self._key(key))
        measured = self.problem.combine(said, tolerance, key, heard)
        if not self.problem.constraints:
            return measured
        radius = SURE * self._spread(self.quantities[1:], said, sigmas, count)
        told = {"radius": radius[jnp.argmax(measured.violations)]}
        nothing = jnp.zeros_like(measured.errors)  # by the spread of the clients' own answers
        return measured._replace(radius=radius, errors=nothing, report=measured.report | told)

    def direction(
        self, params: Any, direction: Direction, data: Any, kept: Any, key: jax.Array, *, batch_size: int | None = None
    ) -> Any:
        return self.problem.direction(params, direction, data, kept, key, batch_size=batch_size)

    def evaluate(self, params: Any, data: Any, key: jax.Array) -> Any:
        said = self.problem.evaluate(params, data, key)
        return self._within(said, ("objective", *self.problem.names))

    def hide(self, evaluations: Any, w: jax.Array) -> Any:
        """What all clients say of a model, with noise: the same again for the same model."""
        sigmas = self.deviations(self.at_end, ("objective", *self.problem.names))
        return self._hidden(evaluations, sigmas, count_of(evaluations, None), self._key(jax.random.key(0), w))

    def summarise(self, evaluations: Any) -> tuple[dict[str, jax.Array], jax.Array]:
        sigmas = self.deviations(self.at_end, ("objective", *self.problem.names))
        radius = SURE * self._spread(self.quantities, evaluations, sigmas, count_of(evaluations, None))[1:]
        return self.with_radii(*self.problem.summarise(evaluations), radius)

    def hidden(self, sums: Summed, key: jax.Array) -> jax.Array:
        """The mean message, with the noise that its sum needs."""
        deviation = jnp.where(self.widened > 0, 0, self.of_update)
        return with_noise(sums.total, deviation, self._key(jax.random.fold_in(key, _UPDATE))) / sums.count

    @property
    def of_update(self) -> Any:
        """The deviation of the noise that a sum of messages needs."""
        return self.multipliers[1] * 2 * self.privacy.clip

    def deviations(self, multiplier: Any, names: Any) -> list[Any]:
        """Of the noise that the sums over clients of these quantities need, which are told together."""
        found = []
        for name in names:
            sensitivity = apart(self.quantity(name), self.privacy.range_of(name))
            found.append(multiplier * math.sqrt(len(names)) * sensitivity)
        return found

    def _within(self, said: Any, names: Any) -> tuple[Any, ...]:
        """A client's statistics, cut to their ranges."""
        found = []
        for each, name in zip(said, names, strict=True):
            known: Any = self.privacy.range_of(name)
            if isinstance(self.quantity(name), Statistic):
                row = jax.tree.map(lambda a: jnp.nan_to_num(a.astype(jnp.float32))[None], each)
                found.append(jax.tree.map(lambda a: a[0], shortened(row, known)))
            else:
                found.append(jnp.clip(jnp.nan_to_num(each, nan=known[0]), *known))
        return tuple(found)

    def quantity(self, name: str) -> Any:
        return dict(zip(("objective", *self.problem.names), self.quantities, strict=True))[name]

    def _hidden(self, said: Any, sigmas: list[Any], count: Any, key: jax.Array) -> tuple[Any, ...]:
        """Everybody's statistics, moved by an equal part of the noise, so that the sums have all of it."""
        found = []
        for i, (each, sigma) in enumerate(zip(said, sigmas, strict=True)):
            nothing = jax.tree.map(lambda a: jnp.zeros(a.shape[1:]), each)
            noise = with_noise(nothing, jnp.where(self.widened > 0, 0, sigma), jax.random.fold_in(key, i))
            found.append(_moved(each, noise, count))
        return tuple(found)

    def _spread(self, quantities: Any, said: Any, sigmas: list[Any], count: Any) -> jax.Array:
        """The standard deviation that the noise of the sums gives each quantity, to first order."""
        wider = jnp.where(self.widened > 0, jnp.sqrt(count / jnp.maximum(self.widened, 1)), 1)
        found = []
        for quantity, each, sigma in zip(quantities, said, sigmas, strict=True):

            def moved(by: Any, quantity: Any = quantity, each: Any = each) -> jax.Array:
                return quantity.measured(quantity.pool(_moved(each, by, count)))

            slopes = jax.grad(moved)(jax.tree.map(lambda a: jnp.zeros(a.shape[1:]), each))
            squares = sum(jnp.sum(a**2) for a in jax.tree.leaves(slopes))
            spread = wider * sigma * jnp.sqrt(squares)
            found.append(jnp.where(jnp.isfinite(spread), spread, 0))
        return jnp.stack(found)


def _moved(each: Any, by: Any, count: Any) -> Any:
    """So many clients' statistics, whose sum is moved by this."""
    return jax.tree.map(lambda a, b: a + b / count, each, by)
