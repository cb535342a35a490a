"""What a constraint comes to on new data: limits from held-out rows, and the margin that makes room for them.

A rate of held-out rows is a sum over independent rows, so its error is known from the rows themselves (by the delta
method). A gap between groups is the largest of differences, and each of these has limits of its own, for which the
chance of an error is divided among them (Bonferroni). To the counts of every group one row of each outcome is added, as
Agresti and Caffo (2000) do for differences of proportions, so that a group without an error is not taken for certain.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.cache import little, whole_program
from fedsgm.base.structs import replaced
from fedsgm.core.problem import Constraint, Problem, Statistic

Limits = dict[str, tuple[float, float]]
_ROOM = 0.2  # the share of a bound that is left at least
_RATE = {"count", "soft", "hard"}  # the sums of a rate


def limits(problem: Problem, params: Any, examples: Any, confidence: float, *, one_sided: bool = False) -> Limits:
    """Of each constraint that examples together can tell, limits that hold all at once with this probability.

    One-sided, each is a limit by itself: the upper one is for ``<=`` and the lower one for ``>=``.
    """
    told = [c for c in problem.constraints if isinstance(c.quantity, Statistic)]
    rows = len(jax.tree.leaves(examples)[0])
    weights = np.ones(rows, np.float32) if problem.weight is None else jax.vmap(problem.weight)(examples)
    chance = (1 - confidence) / max(1, len(told)) / (1 if one_sided else 2)
    return {c.name: _limits(c.quantity, params, examples, weights, chance) for c in told}  # type: ignore[arg-type]


def _limits(quantity: Statistic, params: Any, examples: Any, weights: jax.Array, chance: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(1 - chance / quantity.parts)
    parts, errors = map(np.asarray, _parts(quantity, params, examples, weights))
    known = ~np.isnan(parts)
    if not known.any():
        return math.nan, math.nan
    return float((parts - z * errors)[known].max()), float((parts + z * errors)[known].max())


@functools.partial(whole_program, light=lambda _, params, examples, __: little(params, examples))
def _parts(quantity: Statistic, params: Any, examples: Any, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Every part's value and its standard error."""
    each = jax.vmap(quantity.sums, (None, 0))(params, examples)
    sums = jax.tree.map(lambda a: jnp.tensordot(weights, a, ((0), (0))), each)
    slopes = jax.jacrev(quantity.measured_parts)(_smoothed(sums))

    def through(rows: Any) -> jax.Array:
        """[rows, parts]: what each row adds to a part."""
        products = jax.tree.map(
            lambda slope, a: jnp.reshape(a, (len(a), -1)) @ jnp.reshape(slope, (len(slope), -1)).T, slopes, rows
        )
        return jnp.sum(jnp.stack(jax.tree.leaves(products)), axis=0)

    squares = jnp.sum((weights[:, None] * through(each)) ** 2, axis=0)
    if _is_rate(sums):
        squares += jnp.sum(through(_added(sums["count"])) ** 2, axis=0)
    return quantity.measured_parts(sums), jnp.sqrt(squares)


def _smoothed(sums: Any) -> Any:
    """With one row of each outcome more in every group, where these are the sums of a rate."""
    if not _is_rate(sums):
        return sums
    return {name: total + (2 if name == "count" else 1) * (sums["count"] > 0) for name, total in sums.items()}


def _is_rate(sums: Any) -> bool:
    """Of one outcome in each group."""
    return set(sums) == _RATE and sums["hard"].shape == sums["count"].shape


def _added(count: jax.Array) -> dict[str, jax.Array]:
    """Those rows."""
    cells = jnp.eye(count.size).reshape(count.size, *count.shape) * (count > 0)
    there, none = jnp.concatenate([cells, cells]), jnp.zeros_like(cells)
    outcome = jnp.concatenate([cells, none])
    return {"count": there, "soft": outcome, "hard": outcome}


def margins(problem: Problem, params: Any, train: Any, held_out: int, confidence: float) -> dict[str, float]:
    """How far within each bound a model must be so that so many held-out rows will likely show it.

    By the errors on the training rows, scaled to the number of held-out ones; twice, as the held-out value errs itself.
    """
    rows = len(jax.tree.leaves(train)[0])
    found = limits(problem, params, train, confidence, one_sided=True)
    scale = math.sqrt(rows / held_out)
    return {name: scale * (high - low) for name, (low, high) in found.items() if math.isfinite(high - low)}


def tightened(problem: Problem, by: Mapping[str, float]) -> Problem:
    """The problem with its bounds moved inwards, but for the lower of two; some room is always left to be within."""

    def one(constraint: Constraint) -> Constraint:
        margin = by.get(constraint.name, 0.0)
        if constraint.sense == ">=":
            return replaced(constraint, bound=min(constraint.bound + margin, 1 - _ROOM * (1 - constraint.bound)))
        return replaced(constraint, bound=max(constraint.bound - margin, _ROOM * constraint.bound))

    return replaced(problem, constraints=tuple(map(one, problem.constraints)))


def kept(problem: Problem, found: Limits) -> dict[str, bool]:
    """Of each constraint, whether its limits are within its bounds."""
    ranges = {name: allowed for name, allowed in problem.ranges.items() if name in found}
    return {name: low <= found[name][0] and found[name][1] <= high for name, (low, high) in ranges.items()}
