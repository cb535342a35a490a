"""Example level: a client says nothing but what is clipped and noised.

Each example's gradient is clipped and noise added on the client, before error feedback and compression, which only
process what is private already; so are the statistics of the constraints, and the values at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.structs import hidden, static, struct
from fedsgm.core.examples import Examples
from fedsgm.core.pooling import SURE, Heard
from fedsgm.core.problem import Problem
from fedsgm.core.quantities import Statistic
from fedsgm.core.robust import believed
from fedsgm.core.rules import Direction, Measured
from fedsgm.privacy.private import Private, apart, cut, shortened, with_noise
from fedsgm.privacy.settings import Privacy


@struct
class PrivateExamples(Private):
    """``steps`` are the local steps of a round, which share its noise.

    Statistics and evaluations come with the variances of their noise, which depend on no data, and whose mean over
    clients is all that a sum needs.
    """

    problem: Problem
    privacy: Privacy
    steps: int = static()
    noise: Any = hidden(default=None)
    secret: Any = hidden(default=None)

    def measure(self, params: Any, data: Examples, key: jax.Array, *, batch_size: int | None = None) -> tuple[Any, Any]:
        which = range(1, len(self.quantities))
        sums, variances = self._noised(params, data, which, self.multipliers[0], self._key(key))
        statistics, kept = self.problem.told(sums, self.problem._sizes(data))
        return (statistics, variances), kept

    def combine(self, statistics: Any, tolerance: Any, key: jax.Array, heard: Heard = None, *robust: Any) -> Measured:
        """As the problem does, and how far the noise may have moved it: below that it is so with probability 0.95."""
        said, variances = statistics
        measured = self.problem.combine(said, tolerance, key, heard, *robust)
        if not self.problem.constraints:
            return measured
        if measured.doubted is not None:
            heard = believed(heard, measured.doubted)
        radius = SURE * self._deviations(self.quantities[1:], said, variances, heard)
        told = {"radius": radius[jnp.argmax(measured.violations)]}
        return measured._replace(radius=radius, report=measured.report | told)

    def direction(
        self,
        params: Any,
        direction: Direction,
        data: Examples,
        kept: Any,
        key: jax.Array,
        *,
        batch_size: int | None = None,
    ) -> Any:
        """The sum of the examples' clipped gradients, each a share of the mean, with noise."""
        problem = self.problem

        def one(params: Any, example: Any, weights: jax.Array) -> jax.Array:
            alone = Examples(jax.tree.map(lambda a: a[None], example), weights[:, None], None)
            return problem.descended(problem._sums(params, alone, range(len(problem.quantities))), direction, kept)

        gradients = jax.vmap(jax.grad(one), (None, data.axis, 0))(params, data.examples, data.weights.T)
        bound = self.privacy.clip * problem.share(direction, kept) / data.count
        part = cut(gradients, bound)
        total = jax.tree.map(lambda a: jnp.tensordot(part, a, 1), gradients)
        deviation = self.multipliers[1] * math.sqrt(self.steps) * 2 * bound
        return with_noise(total, deviation, self._key(key))

    def evaluate(self, params: Any, data: Examples, key: jax.Array) -> Any:
        """The values of a model, for those at the end; their noise is less than that of a round."""
        which = range(len(self.quantities))
        sums, variances = self._noised(params, data, which, self.at_end, self._key(key, params, data.examples))
        return self.problem.evaluated(sums, self.problem._sizes(data)), variances

    def summarise(self, evaluations: Any) -> tuple[dict[str, jax.Array], jax.Array]:
        said, variances = evaluations
        radius = SURE * self._deviations(self.quantities, said, variances, None)[1:]
        return self.with_radii(*self.problem.summarise(said), radius)

    def _noised(
        self, params: Any, data: Examples, which: Sequence[int], multiplier: Any, key: jax.Array
    ) -> tuple[tuple[Any, ...], jax.Array]:
        """Sums of what every example says, cut to its range, with noise; and the variances of that."""
        names = ("objective", *self.problem.names)
        sums, variances = [], []
        for i in which:
            quantity, weights = self.quantities[i].base, data.weights[i]
            known: Any = self.privacy.range_of(names[i])
            if isinstance(quantity, Statistic):
                each: Any = jax.vmap(quantity.sums, (None, data.axis))(params, data.examples)
                each = shortened(jax.tree.map(lambda a: a.astype(jnp.float32), each), known)
                total = jax.tree.map(lambda a, weights=weights: jnp.tensordot(weights, a, 1), each)
            else:
                total = weights @ jnp.clip(jax.vmap(quantity.fn, (None, data.axis))(params, data.examples), *known)
            sigma = multiplier * math.sqrt(len(which)) * apart(quantity, known) * jnp.max(weights)
            sums.append(with_noise(total, sigma, jax.random.fold_in(key, i)))
            variances.append(sigma**2)
        return tuple(sums), jnp.stack(variances) if variances else jnp.zeros(0)

    def _deviations(self, quantities: Sequence[Any], said: Any, variances: jax.Array, heard: Heard) -> jax.Array:
        """The standard deviation that the clients' noise gives each quantity, to first order."""
        found = []
        for i, quantity in enumerate(quantities):
            slopes = jax.grad(lambda s, q=quantity: q.measured(q.pool(s, heard)))(said[i])
            noisy = slopes if isinstance(quantity, Statistic) else slopes[0] if isinstance(slopes, tuple) else slopes
            squares = sum(jnp.sum(a.reshape(len(a), -1) ** 2, axis=1) for a in jax.tree.leaves(noisy))
            spread = jnp.sqrt(jnp.sum(squares * variances[:, i]))
            found.append(jnp.where(jnp.isfinite(spread), spread, 0))
        return jnp.stack(found)
