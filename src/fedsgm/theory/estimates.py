"""The constants that the theorems ask for, measured on a problem and its clients.

What is a supremum over X is taken over a sample of X, so it is an estimate from below: where a bound is known, as for a
logistic loss of scaled features, give that to :meth:`FedSGM.from_theory` instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.layout import Layout
from fedsgm.base.sizes import over
from fedsgm.base.structs import struct
from fedsgm.core.problem import Mean, Problem
from fedsgm.core.rules import Direction, Measured

Project = Callable[[Any], Any]
FAR = 1e6  # a point at this distance stands for one at infinity
_DIRECTIONS = 16


def size(params: Any) -> int:
    """d, the number of parameters."""
    return Layout.of(params).size


def diameter(project: Project | None, params: Any, *, seed: int = 0) -> float:
    """D: the diameter of X, exact for a ball and a box; infinite if X is not bounded.

    Opposite points far away are projected; for other sets the largest distance found is a bound from below.
    """
    if project is None:
        return math.inf
    ends = _far_points(project, params, seed)
    if np.linalg.norm(ends, axis=-1).max() > FAR / 100:
        return math.inf
    return float(np.linalg.norm(ends[:_DIRECTIONS] - ends[_DIRECTIONS:], axis=-1).max())


def lipschitz(
    problem: Problem, clients: Any, params: Any, *, project: Project | None = None, radius: float = 0.0, seed: int = 0
) -> float:
    """G: the longest gradient of any client's objective or constraint, over a sample of X.

    The sample is ``params`` with points on and inside the boundary of X; without ``project``, points within ``radius``.
    """
    gradients = _each_client(problem, clients, params, _sample(project, params, radius, seed))[1]
    return float(np.linalg.norm(gradients, axis=-1).max())


def spread(
    problem: Problem, clients: Any, params: Any, *, project: Project | None = None, radius: float = 0.0, seed: int = 0
) -> float:
    """sigma: half the range of the clients' values of a constraint, the largest over a sample of X.

    By Hoeffding's lemma, also without replacement, the mean of m clients is sigma^2/m-sub-Gaussian.
    """
    if not problem.constraints:
        return 0.0
    values = _each_client(problem, clients, params, _sample(project, params, radius, seed))[0][..., 1:]
    return float((values.max(axis=1) - values.min(axis=1)).max() / 2)


def skewness(problem: Problem, clients: Any, params: Any) -> dict[str, float]:
    """How much the clients' gradients differ at ``params``, and what rotation that makes; see :class:`Watched`."""
    layout = Layout.of(params)
    watched = Watched(problem)
    data = watched.prepare(clients, params)

    @jax.jit
    def at(w: jax.Array, data: Any) -> dict[str, jax.Array]:
        each = over(lambda one: watched.evaluate(layout.unflatten(w), one, _key()), data)
        return watched.summarise(each)[0]

    values = at(layout.rows(params)[0].astype(np.float32), data)
    return {name: float(values[name]) for name in SKEWNESS}


SKEWNESS = ("heterogeneity_objective", "heterogeneity_constraint", "skew_global", "skew_local", "skew_of_clients")


@struct
class Watched:
    """A problem that also records, in every evaluated round, where oscillations come from.

    With a_j and b_j the clients' gradients of the objective and of the constraint with the largest violation, and a
    and b their means, the history gets ``heterogeneity_objective`` and ``heterogeneity_constraint``, V_f and V_g; the
    Frobenius norms ``skew_global`` of ``K_glob = a b' - b a'``, ``skew_local`` of ``K_loc``, the mean of
    ``a_j b_j' - b_j a_j'``; and ``skew_of_clients``, ``|K_loc - K_glob| <= sqrt(2 V_f V_g)``.
    """

    problem: Problem

    @property
    def bounds(self) -> dict[str, float]:
        return self.problem.bounds

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return self.problem.ranges

    @property
    def inspects(self) -> tuple[str, ...]:
        return self.problem.inspects

    @property
    def places(self) -> tuple[str, ...]:
        return self.problem.places

    def prepare(self, clients: Any, params: Any, *, owner: str = "client") -> Any:
        if not self.problem.constraints:
            raise SettingError("Watched: there is no constraint, so there is nothing to switch between")
        _means_only(self.problem)
        return self.problem.prepare(clients, params, owner=owner)

    def prepare_one(self, data: Any, params: Any) -> Any:
        return self.problem.prepare_one(data, params)

    def at(self, round: Any) -> Watched:
        return self

    def share(self, direction: Any, kept: Any) -> Any:
        return self.problem.share(direction, kept)

    def inspect(self, before: Any, after: Any, kept: Any) -> dict[str, jax.Array]:
        return self.problem.inspect(before, after, kept)

    def measure(self, params: Any, data: Any, key: Any, *, batch_size: int | None = None) -> tuple[Any, Any]:
        return self.problem.measure(params, data, key, batch_size=batch_size)

    def combine(self, statistics: Any, tolerance: Any, key: Any, heard: Any = None) -> Measured:
        return self.problem.combine(statistics, tolerance, key, heard)

    def direction(
        self, params: Any, direction: Direction, data: Any, kept: Any, key: Any, *, batch_size: int | None = None
    ) -> Any:
        return self.problem.direction(params, direction, data, kept, key, batch_size=batch_size)

    def evaluate(self, params: Any, data: Any, key: Any) -> tuple[Any, jax.Array]:
        return self.problem.evaluate(params, data, key), _gradients(self.problem, params, data)

    def summarise(self, evaluations: tuple[Any, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
        statistics, gradients = evaluations
        values, worst = self.problem.summarise(statistics)
        excess = jnp.stack([c.excess(values[c.name]) / c.scale for c in self.problem.constraints])
        a, b = gradients[:, 0], gradients[:, 1 + jnp.argmax(excess)]
        mean_a, mean_b = a.mean(axis=0), b.mean(axis=0)
        found = (
            jnp.mean(jnp.sum((a - mean_a) ** 2, axis=1)),
            jnp.mean(jnp.sum((b - mean_b) ** 2, axis=1)),
            _skew_norm(mean_a[None], mean_b[None]),
            _skew_norm(a, b),
            _skew_norm(a - mean_a, b - mean_b),
        )
        return values | dict(zip(SKEWNESS, found, strict=True)), worst


def _skew_norm(a: jax.Array, b: jax.Array) -> jax.Array:
    """The Frobenius norm of the mean of ``a_j b_j' - b_j a_j'``, in the at most 2n dimensions that the rows span."""
    n = len(a)
    r = jnp.linalg.qr(jnp.concatenate([a, b]).T, mode="r")
    product = r[:, :n] @ r[:, n:].T / n
    return jnp.linalg.norm(product - product.T)


def falls_forever(problem: Problem, clients: Any, params: Any, result: Any) -> bool:
    """Whether along some seed's last parameters the objective falls, within every bound, as far as one can look."""
    layout = Layout.of(params)
    last = layout.rows(result.last)
    length = np.linalg.norm(last, axis=1, keepdims=True)
    last = last[np.isfinite(length[:, 0]) & (length[:, 0] > 0)]
    if not len(last):
        return False
    unit = last / np.linalg.norm(last, axis=1, keepdims=True)
    values = _values(problem, clients, params, np.concatenate([last, FAR / 10 * unit, FAR * unit]))
    near, far, further = np.split(values, 3)
    within = np.stack([c.excess(further[:, i]) <= 0 for i, c in enumerate(problem.constraints, 1)] or [[True]])
    falls = (further[:, 0] <= far[:, 0]) & (far[:, 0] < near[:, 0])
    return bool((falls & within.all(axis=0)).any())


def _values(problem: Problem, clients: Any, params: Any, points: np.ndarray) -> np.ndarray:
    """[points, quantities]: the values over all clients."""
    layout, data = Layout.of(params), problem.prepare(clients, params)
    names = ("objective", *problem.names)

    @jax.jit
    def at(points: jax.Array, data: Any) -> jax.Array:
        def one(w: jax.Array) -> jax.Array:
            each = over(lambda one: problem.evaluate(layout.unflatten(w), one, _key()), data)
            values = problem.summarise(each)[0]
            return jnp.stack([values[name] for name in names])

        return jax.lax.map(one, points)

    return np.asarray(at(points.astype(np.float32), data), np.float64)


def _each_client(problem: Problem, clients: Any, params: Any, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[points, clients, quantities] values and [points, clients, quantities, d] gradients, in float64."""
    _means_only(problem)
    layout, data = Layout.of(params), problem.prepare(clients, params)

    @jax.jit
    def at(points: jax.Array, data: Any) -> Any:
        def client(w: jax.Array, one: Any) -> Any:
            params = layout.unflatten(w)
            return jnp.stack(problem.evaluate(params, one, _key())), _gradients(problem, params, one)

        return jax.lax.map(lambda w: over(functools.partial(client, w), data), points)

    values, gradients = at(points.astype(np.float32), data)
    return np.asarray(values, np.float64), np.asarray(gradients, np.float64)


def _gradients(problem: Problem, params: Any, data: Any) -> jax.Array:
    """[quantities, d]: one client's gradients of its objective and constraints."""
    rows = jax.jacrev(lambda p: jnp.stack(problem.evaluate(p, data, _key())))(params)
    count = len(problem.quantities)
    return jnp.concatenate([jnp.reshape(leaf, (count, -1)) for leaf in jax.tree.leaves(rows)], axis=1)


def _key() -> jax.Array:
    """For an evaluation on all examples, which draws nothing."""
    return jax.random.key(0)


def refuse_rows(what: str, problem: Problem) -> None:
    """No theorem weighs clients by their examples."""
    if problem.weigh == "rows":
        raise SettingError(f"{what}: the theorems are about means in which clients count equally; take weigh='clients'")


def _means_only(problem: Problem) -> None:
    refuse_rows("estimates", problem)
    if not all(isinstance(quantity, Mean) and quantity.refuses for quantity in problem.quantities):
        raise SettingError(
            "estimates: the theorems are about means over all clients, but a constraint is a Statistic, of each client "
            "or absent from some"
        )


def _far_points(project: Project, params: Any, seed: int) -> np.ndarray:
    """The projections of far points in random directions, and then of those opposite to them."""
    layout = Layout.of(params)
    directions = np.random.default_rng(seed).normal(size=(_DIRECTIONS, layout.size))
    directions *= FAR / np.linalg.norm(directions, axis=1, keepdims=True)
    far = np.concatenate([directions, -directions]).astype(np.float32)
    return np.stack([np.asarray(layout.flatten(project(layout.unflatten(w))), np.float64) for w in far])


def _sample(project: Project | None, params: Any, radius: float, seed: int) -> np.ndarray:
    """``params``, points of the boundary, and points halfway to them: X is convex."""
    layout = Layout.of(params)
    start = layout.rows(params)
    if project is None or not math.isfinite(diameter(project, params, seed=seed)):
        directions = np.random.default_rng(seed).normal(size=(2 * _DIRECTIONS, layout.size))
        ends = start + radius * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    else:
        ends = _far_points(project, params, seed)
    return np.concatenate([start, ends, (start + ends) / 2])
