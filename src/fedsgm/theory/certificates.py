"""Certificates on convex problems: how far from the optimum parameters can be, without knowing the optimum.

For multipliers >= 0 the Lagrangian's minimum over X is a lower bound on f*. It is never minimised exactly, so the
bound takes off what an inexact minimum can miss: by convexity, at any w,

    min over X of L  >=  L(w) - max over v in X of <grad L(w), w - v>,

and the last term, the Frank-Wolfe gap, is known exactly for a bounded X. With strong convexity mu it is at most
``|grad L(w)|^2 / (2 mu)``, X bounded or not. Everything is in float64, so what is left is its rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.layout import Layout
from fedsgm.base.structs import check_number
from fedsgm.core.problem import Problem
from fedsgm.core.quantities import Mean
from fedsgm.theory import estimates

_OUTER, _INNER = 40, 2000  # multiplier updates, and steps of each minimisation at most
_REACH = 1e7  # how many diameters away a point is projected to find the support point of X


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What is known of parameters on a convex problem.

    Attributes:
        lower_bound: f* is at least this. Rigorous, to float64's rounding, if the objective and the constraints are
            convex and X is a ball, a box, or no wider than ``diameter`` (or the strong convexity is right).
        multipliers: of each constraint, by name; those that the bound was computed at.
        objective, violation: f and the largest ``g_i - c_i`` of the parameters, in float64.
        gap: ``objective - lower_bound``: the parameters are at most this above the best possible.
        residual: the largest of ``|w - P(w - grad L(w))|``, the violation and ``|multiplier (g - c)|``: zero exactly at
            a solution.
        gradients: how many gradients over all clients it took.
    """

    lower_bound: float
    multipliers: dict[str, float]
    objective: float
    violation: float
    gap: float
    residual: float
    gradients: int


def certify(
    problem: Problem,
    clients: Any,
    params: Any,
    *,
    project: Callable[[Any], Any] | None = None,
    diameter: float | None = None,
    strong_convexity: float = 0.0,
    multipliers: Any = None,
    tolerance: float = 1e-6,
) -> Certificate:
    """A lower bound on f*, multipliers and the KKT residual of ``params``, on a convex problem.

    Args:
        project: the projection onto X, as in :class:`FedSGM`.
        diameter: of X; measured if it is not given, which is exact for a ball and a box.
        strong_convexity: mu, if the objective is strongly convex; then X need not be bounded.
        multipliers: where to begin, for instance ``result.multiplier``; zero if not given.
        tolerance: stop when the bound is this close to the value at the point found.
    """
    check_number("certify", "strong_convexity", strong_convexity, least=0)
    check_number("certify", "tolerance", tolerance, above=0)
    if not all(isinstance(quantity, Mean) for quantity in problem.quantities):
        raise SettingError("certify: a Statistic is not convex in general, so there is no certificate for it")
    if diameter is None:
        diameter = estimates.diameter(project, params)
    if not math.isfinite(diameter) and not strong_convexity:
        raise SettingError("certify: X is not bounded; give project=, or strong_convexity= if the objective has it")
    k = len(problem.constraints)
    began = np.broadcast_to(np.zeros(k) if multipliers is None else np.asarray(multipliers, np.float64), (k,))
    layout = Layout.of(params)
    data = problem.prepare(clients, params)
    start = layout.rows(params)[0]
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, data)
        weights = jnp.asarray(data.weights, jnp.float64)
        data = dataclasses.replace(data, weights=weights / weights.sum(axis=-1, keepdims=True))
        bounds = jnp.array([constraint.bound for constraint in problem.constraints], jnp.float64)
        answer = _certify(
            problem, layout, project, data, bounds, start, began, diameter, float(strong_convexity), float(tolerance)
        )
        lower, found, values, residual, count = map(np.asarray, answer)
    excess = values[1:] - np.asarray(bounds)
    return Certificate(
        lower_bound=float(lower),
        multipliers=dict(zip(problem.names, found.tolist(), strict=True)),
        objective=float(values[0]),
        violation=float(excess.max()) if k else 0.0,
        gap=float(values[0] - lower),
        residual=float(residual),
        gradients=int(count),
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _certify(
    problem: Problem,
    layout: Layout,
    project: Callable[[Any], Any] | None,
    data: Any,
    bounds: jax.Array,
    start: jax.Array,
    began: jax.Array,
    diameter: jax.Array,
    strong_convexity: jax.Array,
    tolerance: jax.Array,
) -> Any:
    """The method of multipliers; the gradient of its inner problem is that of the Lagrangian at the next multipliers,
    so every inner solution is itself a point to take the bound at."""

    def onto(w: jax.Array) -> jax.Array:
        if project is None:
            return w
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(project(layout.unflatten(w)))])

    def values(w: jax.Array) -> jax.Array:
        each = jax.vmap(lambda one: jnp.stack(problem.evaluate(layout.unflatten(w), one, jax.random.key(0))))(data)
        return each.mean(axis=0)

    def lagrangian(w: jax.Array, multipliers: jax.Array) -> jax.Array:
        both = values(w)
        return both[0] + multipliers @ (both[1:] - bounds)

    def augmented(w: jax.Array, multipliers: jax.Array, weight: jax.Array) -> jax.Array:
        both = values(w)
        raised = jnp.maximum(0, multipliers + weight * (both[1:] - bounds))
        return both[0] + jnp.sum(raised**2 - multipliers**2) / (2 * weight)

    def missed(w: jax.Array, gradient: jax.Array) -> jax.Array:
        """How far below L(w) the minimum over X can be. A far point's projection v maximises <gradient, w - v> to
        within diameter^2 / t, t the length of the step to it in units of the gradient."""
        length = jnp.maximum(jnp.linalg.norm(gradient), 1e-300)
        by_strength = jnp.where(strong_convexity > 0, length**2 / (2 * strong_convexity), jnp.inf)
        if project is None:
            return by_strength
        t = _REACH * diameter / length
        by_width = gradient @ (w - onto(w - t * gradient)) + diameter**2 / t
        return jnp.minimum(by_strength, jnp.where(jnp.isfinite(diameter), by_width, jnp.inf))

    def minimise(w: jax.Array, multipliers: jax.Array, weight: jax.Array, step: jax.Array, goal: jax.Array) -> Any:
        """Accelerated projected gradient descent with backtracking and restarts, until at a point ``missed`` is below
        ``goal``. The point may be a little outside X: the bound holds there as well."""
        slope = jax.value_and_grad(lambda at: augmented(at, multipliers, weight))

        def go_on(carry: Any) -> jax.Array:
            count, gap = carry[-2:]
            return (count < _INNER) & (gap > goal)

        def body(carry: Any) -> Any:
            w, ahead, momentum, step, _, count, _ = carry
            here, gradient = slope(ahead)

            def too_long(step: jax.Array) -> jax.Array:
                move = onto(ahead - step * gradient) - ahead
                allowed = here + gradient @ move + move @ move / (2 * step)
                rounding = 1e-15 * jnp.abs(here)
                return (augmented(ahead + move, multipliers, weight) > allowed + rounding) & (step > 1e-12)

            step = jax.lax.while_loop(too_long, lambda s: s / 2, step * 1.2)
            then = onto(ahead - step * gradient)
            restart = gradient @ (then - w) > 0
            grown = jnp.where(restart, 1.0, (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2)
            further = jnp.where(restart, then, then + (momentum - 1) / grown * (then - w))
            return then, further, grown, step, ahead, count + 1, missed(ahead, gradient)

        began = (w, w, jnp.float64(1), step, w, jnp.int64(0), jnp.float64(jnp.inf))
        _, _, _, step, w, count, _ = jax.lax.while_loop(go_on, body, began)
        return w, step, count

    def update(carry: Any) -> Any:
        w, multipliers, weight, step, best, at, count, outer, worst, _ = carry
        w, step, used = minimise(w, multipliers, weight, step, tolerance / 2)
        both = values(w)
        # What of the constraints and their slackness is not met: a larger weight makes the next multipliers better.
        unmet = jnp.max(jnp.abs(jnp.maximum(both[1:] - bounds, -multipliers / weight)), initial=0.0)
        multipliers = jnp.maximum(0, multipliers + weight * (both[1:] - bounds))
        lower = both[0] + multipliers @ (both[1:] - bounds) - missed(w, jax.grad(lagrangian)(w, multipliers))
        at = jnp.where(lower > best, multipliers, at)
        weight = jnp.where(unmet > worst / 4, weight * 4, weight)
        best = jnp.maximum(best, lower)
        over = jnp.maximum(both[1:] - bounds, 0)
        left = jnp.maximum(both[0] - best, multipliers @ over)  # a nearly feasible w whose value is the bound's
        return w, multipliers, weight, step, best, at, count + used + 1, outer + 1, unmet, left

    def go_on(carry: Any) -> jax.Array:
        outer, left = carry[7], carry[9]
        return (outer < _OUTER) & (left > tolerance)

    one, none = jnp.float64(1), jnp.float64(jnp.inf)
    first = (onto(start), began, 10 * one, one, -none, began, jnp.int64(0), jnp.int64(0), none, none)
    found = jax.lax.while_loop(go_on, update, first)
    best, at, count = found[4:7]
    measured = values(start)
    stationarity = jnp.linalg.norm(start - onto(start - jax.grad(lagrangian)(start, at)))
    slackness = jnp.abs(at * (measured[1:] - bounds))
    violation = jnp.maximum(measured[1:] - bounds, 0)
    residual = jnp.max(jnp.concatenate([stationarity[None], slackness, violation]))
    return best, at, measured, residual, count
