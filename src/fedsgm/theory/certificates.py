"""Certificates on convex problems: how far from the optimum parameters can be, without knowing the optimum; and how
far from stationary, on weakly convex ones.

For multipliers >= 0 the Lagrangian's minimum over X is a lower bound on f*. It is never minimised exactly, so the
bound takes off what an inexact minimum can miss: by convexity, at any w,

    min over X of L  >=  L(w) - max over v in X of <grad L(w), w - v>,

and the last term, the Frank-Wolfe gap, is known exactly for a bounded X. With strong convexity mu ``mu/2 |w - v|^2`` is
taken off inside the maximum, which is then at the projection of ``w - grad L(w) / mu``, X bounded or not. Everything is
in float64, so what is left is its rounding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.layout import Layout
from fedsgm.base.sizes import over
from fedsgm.base.structs import check_number, replaced, static, struct
from fedsgm.core.problem import Mean, Problem
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
    _check_convex("certify", problem)
    if diameter is None:
        diameter = estimates.diameter(project, params)
    if not math.isfinite(diameter) and not strong_convexity:
        raise SettingError("certify: X is not bounded; give project=, or strong_convexity= if the objective has it")
    k = len(problem.constraints)
    began = np.broadcast_to(np.zeros(k) if multipliers is None else np.asarray(multipliers, np.float64), (k,))
    data, start = problem.prepare(clients, params), Layout.of(params).rows(params)[0]
    with jax.enable_x64(True):
        lagrangian = _Lagrangian.of(problem, data, params, project, diameter, float(strong_convexity))
        answer = _certify(lagrangian, start, began, float(tolerance))
        lower, found, values, residual, count = map(np.asarray, answer)
    excess = values[1:] - np.asarray(lagrangian.bounds)
    return Certificate(
        lower_bound=float(lower),
        multipliers=dict(zip(problem.names, found.tolist(), strict=True)),
        objective=float(values[0]),
        violation=float(excess.max()) if k else 0.0,
        gap=float(values[0] - lower),
        residual=float(residual),
        gradients=int(count),
    )


def stationarity(
    problem: Problem,
    clients: Any,
    params: Any,
    *,
    proximal: float,
    weak_convexity: float = 0.0,
    project: Callable[[Any], Any] | None = None,
    tolerance: float = 1e-5,
) -> float:
    """How far ``params`` are from their proximal point, of which the weakly convex theorem bounds the mean.

    The point is where ``f(y) + proximal/2 |y - params|^2`` is least over the y of X within every bound; parameters that
    satisfy the first-order conditions of the problem are their own.

    Args:
        proximal: rho_hat, more than twice rho in the theorem; more than rho makes the point unique.
        weak_convexity: rho, by which the objective misses being convex. The constraints must be convex.
        project: the projection onto X, as in :class:`FedSGM`.
        tolerance: how exact the distance is to be.
    """
    check_number("stationarity", "weak_convexity", weak_convexity, least=0)
    check_number("stationarity", "proximal", proximal, above=weak_convexity)
    check_number("stationarity", "tolerance", tolerance, above=0)
    _check_convex("stationarity", problem)
    strength = float(proximal) - float(weak_convexity)
    data, start = problem.prepare(clients, params), Layout.of(params).rows(params)[0].astype(np.float64)
    with jax.enable_x64(True):
        lagrangian = _Lagrangian.of(problem, data, params, project, math.inf, strength)
        lagrangian = replaced(lagrangian, anchor=jnp.asarray(start), proximal=float(proximal))
        # A value within this of the least one is within a third of the tolerance of the point.
        goal = strength * float(tolerance) ** 2 / 9
        point, left = map(np.asarray, _solve(lagrangian, start, np.zeros(len(problem.constraints)), goal))
    if not left <= goal:
        raise SettingError(
            f"stationarity: no point within every bound was found to tolerance={tolerance!r}; "
            "give a larger one, or bounds that can be met in X"
        )
    return float(np.linalg.norm(point - start))


def _check_convex(what: str, problem: Problem) -> None:
    estimates.refuse_rows(what, problem)
    if not all(isinstance(quantity, Mean) and quantity.refuses for quantity in problem.quantities):
        raise SettingError(f"{what}: it is for convex means over all clients; a Statistic is not convex in general")
    for constraint in problem.constraints:
        if constraint.sense != "<=":
            raise SettingError(
                f"{what}: it is for upper bounds, but {constraint.name!r} has a lower one; bound the negative from "
                "above, Mean(lambda w, x: -g(w, x)) <= -bound, if that is convex"
            )


@struct
class _Lagrangian:
    """The problem's functions of a flat vector, in float64, and how far below them the minimum over X can be.

    With an ``anchor`` the objective has the proximal term.
    """

    problem: Problem
    data: Any
    bounds: jax.Array
    diameter: float
    strong_convexity: float
    layout: Layout = static()
    project: Callable[[Any], Any] | None = static()
    anchor: jax.Array | None = None
    proximal: float = 0.0

    @classmethod
    def of(
        cls, problem: Problem, data: Any, params: Any, project: Any, diameter: float, strong_convexity: float
    ) -> _Lagrangian:
        """Where float64 is on."""
        data = jax.tree.map(jnp.asarray, data)
        bounds = jnp.array([constraint.bound for constraint in problem.constraints], jnp.float64)
        return cls(problem, data, bounds, diameter, strong_convexity, Layout.of(params), project)

    def onto(self, w: jax.Array) -> jax.Array:
        """The projection onto X; the layout's own would be in float32."""
        if self.project is None:
            return w
        leaves = jax.tree.leaves(self.project(self.layout.unflatten(w)))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])

    def values(self, w: jax.Array) -> jax.Array:
        """f and every g_i."""
        params, key = self.layout.unflatten(w), jax.random.key(0)
        each = over(lambda one: jnp.stack(self.problem.evaluate(params, one.exact(), key)), self.data)
        return each.mean(axis=0)

    def parts(self, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        """f, and ``g_i - c_i``."""
        both = self.values(w)
        near = 0.0 if self.anchor is None else self.proximal / 2 * jnp.sum((w - self.anchor) ** 2)
        return both[0] + near, both[1:] - self.bounds

    def at(self, w: jax.Array, multipliers: jax.Array) -> jax.Array:
        objective, excess = self.parts(w)
        return objective + multipliers @ excess

    def augmented(self, w: jax.Array, multipliers: jax.Array, weight: jax.Array) -> jax.Array:
        objective, excess = self.parts(w)
        raised = jnp.maximum(0, multipliers + weight * excess)
        return objective + jnp.sum(raised**2 - multipliers**2) / (2 * weight)

    def missed(self, w: jax.Array, gradient: jax.Array) -> jax.Array:
        """How far below L(w) the minimum over X can be. A far point's projection v maximises <gradient, w - v> to
        within diameter^2 / t, t the length of the step to it in units of the gradient."""
        length = jnp.maximum(jnp.linalg.norm(gradient), 1e-300)
        mu = jnp.where(self.strong_convexity > 0, self.strong_convexity, 1.0)
        move = w - self.onto(w - gradient / mu)
        by_strength = jnp.where(self.strong_convexity > 0, gradient @ move - mu / 2 * move @ move, jnp.inf)
        if self.project is None:
            return by_strength
        t = _REACH * self.diameter / length
        by_width = gradient @ (w - self.onto(w - t * gradient)) + self.diameter**2 / t
        return jnp.minimum(by_strength, jnp.where(jnp.isfinite(self.diameter), by_width, jnp.inf))

    def residual(self, w: jax.Array, multipliers: jax.Array) -> jax.Array:
        """The largest of what is not met of the conditions for a solution."""
        _, excess = self.parts(w)
        stationarity = jnp.linalg.norm(w - self.onto(w - jax.grad(self.at)(w, multipliers)))
        slackness = jnp.abs(multipliers * excess)
        return jnp.max(jnp.concatenate([stationarity[None], slackness, jnp.maximum(excess, 0)]))


@struct
class _Search:
    """The method of multipliers between two updates.

    ``best`` is the largest lower bound so far, found with the multipliers ``found``; ``unmet`` what of the constraints
    and their slackness is not met; ``left`` how far the search is from its end.
    """

    w: jax.Array
    multipliers: jax.Array
    weight: jax.Array
    step: jax.Array
    best: jax.Array
    found: jax.Array
    gradients: jax.Array
    updates: jax.Array
    unmet: jax.Array
    left: jax.Array


@struct
class _Descent:
    """Accelerated descent between two steps: ``left`` is how far ``point``, where the last gradient was taken, can be
    above the minimum over X, or below it by lying outside."""

    w: jax.Array
    ahead: jax.Array
    momentum: jax.Array
    step: jax.Array
    point: jax.Array
    count: jax.Array
    left: jax.Array


@jax.jit
def _solve(lagrangian: _Lagrangian, start: jax.Array, began: jax.Array, tolerance: jax.Array) -> Any:
    """The solution, as good as it was found, and how much was left."""
    last = _search(lagrangian, start, began, tolerance)
    return lagrangian.onto(last.w), last.left


def _search(lagrangian: _Lagrangian, start: jax.Array, began: jax.Array, tolerance: jax.Array) -> _Search:
    one, none, zero = jnp.float64(1), jnp.float64(jnp.inf), jnp.int64(0)
    first = _Search(lagrangian.onto(start), began, 10 * one, one, -none, began, zero, zero, none, none)
    return jax.lax.while_loop(
        lambda search: (search.updates < _OUTER) & (search.left > tolerance),
        lambda search: _update(lagrangian, search, tolerance / 2),
        first,
    )


@jax.jit
def _certify(lagrangian: _Lagrangian, start: jax.Array, began: jax.Array, tolerance: jax.Array) -> Any:
    """The best bound and its multipliers, the values and the residual at ``start``, and the gradients that it took."""
    last = _search(lagrangian, start, began, tolerance)
    return last.best, last.found, lagrangian.values(start), lagrangian.residual(start, last.found), last.gradients


def _update(lagrangian: _Lagrangian, search: _Search, goal: jax.Array) -> _Search:
    """One of the method of multipliers; the gradient of its inner problem is that of the Lagrangian at the next
    multipliers, so every inner solution is itself a point to take the bound at."""
    inner = _minimise(lagrangian, search, goal)
    w, weight = inner.point, search.weight
    objective, excess = lagrangian.parts(w)
    unmet = jnp.max(jnp.abs(jnp.maximum(excess, -search.multipliers / weight)), initial=0.0)
    multipliers = jnp.maximum(0, search.multipliers + weight * excess)
    lower = objective + multipliers @ excess - lagrangian.missed(w, jax.grad(lagrangian.at)(w, multipliers))
    best = jnp.maximum(search.best, lower)
    return _Search(
        w=w,
        multipliers=multipliers,
        weight=jnp.where(
            unmet > search.unmet / 4, weight * 4, weight
        ),  # a larger one makes the next multipliers better
        step=inner.step,
        best=best,
        found=jnp.where(lower > search.best, multipliers, search.found),
        gradients=search.gradients + inner.count + 1,
        updates=search.updates + 1,
        unmet=unmet,
        # Nothing is left at a nearly feasible w whose value is the bound's.
        left=jnp.maximum(objective - best, multipliers @ jnp.maximum(excess, 0)),
    )


def _minimise(lagrangian: _Lagrangian, search: _Search, goal: jax.Array) -> _Descent:
    """Accelerated projected gradient descent with backtracking and restarts, until at a point ``left`` is below
    ``goal``. The point may be a little outside X: the bound holds there as well, but far outside it is loose."""

    def augmented(w: jax.Array) -> jax.Array:
        return lagrangian.augmented(w, search.multipliers, search.weight)

    def advance(now: _Descent) -> _Descent:
        w, ahead, momentum = now.w, now.ahead, now.momentum
        here, gradient = jax.value_and_grad(augmented)(ahead)

        def too_long(step: jax.Array) -> jax.Array:
            move = lagrangian.onto(ahead - step * gradient) - ahead
            allowed = here + gradient @ move + move @ move / (2 * step)
            rounding = 1e-15 * jnp.abs(here)
            return (augmented(ahead + move) > allowed + rounding) & (step > 1e-12)

        step = jax.lax.while_loop(too_long, lambda s: s / 2, now.step * 1.2)
        then = lagrangian.onto(ahead - step * gradient)
        restart = gradient @ (then - w) > 0
        grown = jnp.where(restart, 1.0, (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2)
        further = jnp.where(restart, then, then + (momentum - 1) / grown * (then - w))
        outside = jnp.linalg.norm(ahead - lagrangian.onto(ahead)) * jnp.linalg.norm(gradient)
        left = jnp.maximum(lagrangian.missed(ahead, gradient), outside)
        return _Descent(then, further, grown, step, ahead, now.count + 1, left)

    w, none = search.w, jnp.float64(jnp.inf)
    first = _Descent(w, w, jnp.float64(1), search.step, w, jnp.int64(0), none)
    return jax.lax.while_loop(lambda now: (now.count < _INNER) & (now.left > goal), advance, first)
