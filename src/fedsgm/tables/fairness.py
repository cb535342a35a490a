"""Ready-made constraints: fairness between groups, and the loss, the error rate or the recall of a class.

Each is a few lines over :class:`Statistic`, to be compared with a bound:

    demographic_parity(score, by="sex", groups=2) <= 0.05

``score(params, example)`` is the predicted probability of the positive class, ``by`` the column that holds a group's
number, 0 to ``groups - 1``, and ``target`` the column of the label, 0 or 1. With ``hard=True`` a rate counts decisions,
``score > threshold``: the run switches on it and reports it, and descends the mean score, its smooth surrogate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.core.problem import PerExample, Statistic


def demographic_parity(
    score: PerExample,
    *,
    by: str,
    groups: int,
    hard: bool = False,
    threshold: float = 0.5,
    gradient: str = "linearized",
    name: str | None = None,
) -> Statistic:
    """The largest difference between groups of the rate of positive predictions."""

    def classes(example: Any) -> jax.Array:
        return (example[by] >= 0)[None]  # everybody

    return _rate_gap(name or "demographic_parity", score, by, groups, classes, hard, threshold, gradient)


def equal_opportunity(
    score: PerExample,
    *,
    by: str,
    groups: int,
    target: str = "y",
    hard: bool = False,
    threshold: float = 0.5,
    gradient: str = "linearized",
    name: str | None = None,
) -> Statistic:
    """The largest difference between groups of the true positive rate."""

    def classes(example: Any) -> jax.Array:
        return (example[target] == 1)[None]

    return _rate_gap(name or "equal_opportunity", score, by, groups, classes, hard, threshold, gradient)


def equalized_odds(
    score: PerExample,
    *,
    by: str,
    groups: int,
    target: str = "y",
    hard: bool = False,
    threshold: float = 0.5,
    gradient: str = "linearized",
    name: str | None = None,
) -> Statistic:
    """The larger of the differences between groups of the true and of the false positive rate."""

    def classes(example: Any) -> jax.Array:
        return jnp.stack([example[target] == 1, example[target] == 0])

    return _rate_gap(name or "equalized_odds", score, by, groups, classes, hard, threshold, gradient)


def group_loss_gap(
    loss: PerExample, *, by: str, groups: int, name: str | None = None, gradient: str = "linearized"
) -> Statistic:
    """The largest difference between groups of the mean loss."""
    return _over_groups(name or "group_loss_gap", loss, by, groups, _gap, gradient)


def worst_group_loss(
    loss: PerExample, *, by: str, groups: int, name: str | None = None, gradient: str = "linearized"
) -> Statistic:
    """The mean loss of the group that has the largest."""
    return _over_groups(name or "worst_group_loss", loss, by, groups, _largest, gradient)


def class_loss(loss: PerExample, *, label: int, target: str = "y", name: str | None = None) -> Statistic:
    """Neyman-Pearson: the mean loss of one class, over all its examples wherever they are."""

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = jnp.float32(example[target] == label)
        return {"count": member, "loss": member * loss(params, example)}

    return Statistic(
        sums,
        lambda total: _ratio(total["loss"], total["count"]),
        name=name or f"class_loss_{label}",
        members=lambda total: total["count"],
    )


def error_rate(
    score: PerExample, *, label: int, target: str = "y", threshold: float = 0.5, name: str | None = None
) -> Statistic:
    """Neyman-Pearson: the share of one class that is predicted wrongly; descends the mean wrong score."""
    return _share_decided(name or f"error_rate_{label}", score, label, 1 - label, target, threshold)


def recall(
    score: PerExample, *, label: int, target: str = "y", threshold: float = 0.5, name: str | None = None
) -> Statistic:
    """The share of one class that is predicted rightly, of class 1 the true positive rate; climbs the mean right score.

    >>> import fedsgm as fs
    >>> (fs.fairness.recall(lambda w, example: w * example["x"], label=1) >= 0.9).sense
    '>='
    """
    return _share_decided(name or f"recall_{label}", score, label, label, target, threshold)


def _share_decided(name: str, score: PerExample, label: int, decision: int, target: str, threshold: float) -> Statistic:
    """The share of the class ``label`` that is predicted as ``decision``; the gradient is of the mean score of that."""

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = jnp.float32(example[target] == label)
        positive = score(params, example)
        so = positive if decision == 1 else 1 - positive
        decided = jnp.float32((positive > threshold) == (decision == 1))
        return {"count": member, "soft": member * so, "hard": member * decided}

    return Statistic(
        sums,
        lambda total: _ratio(total["soft"], total["count"]),
        name=name,
        switch_on=lambda total: _ratio(total["hard"], total["count"]),
        members=lambda total: total["count"],
    )


def _rate_gap(
    name: str,
    score: PerExample,
    by: str,
    groups: int,
    classes: Callable[[Any], jax.Array],
    hard: bool,
    threshold: float,
    gradient: str,
) -> Statistic:
    """The largest gap between groups' rates, over the classes that an example can be counted in."""
    _check(name, groups)

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = classes(example)[:, None] * jax.nn.one_hot(example[by], groups)
        positive = score(params, example)
        return {"count": member, "soft": member * positive, "hard": member * jnp.float32(positive > threshold)}

    def gap(total: Any, rate: str) -> jax.Array:
        each = jax.vmap(lambda sums, count: _gap(_ratio(sums, count), count > 0))(total[rate], total["count"])
        return _largest(each, ~jnp.isnan(each))

    return Statistic(
        sums,
        lambda total: gap(total, "soft"),
        name=name,
        gradient=gradient,
        switch_on=(lambda total: gap(total, "hard")) if hard else None,
        members=lambda total: total["count"],
    )


def _over_groups(
    name: str,
    loss: PerExample,
    by: str,
    groups: int,
    value: Callable[[jax.Array, jax.Array], jax.Array],
    gradient: str,
) -> Statistic:
    _check(name, groups)

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = jax.nn.one_hot(example[by], groups)
        return {"count": member, "loss": member * loss(params, example)}

    return Statistic(
        sums,
        lambda total: value(_ratio(total["loss"], total["count"]), total["count"] > 0),
        name=name,
        gradient=gradient,
        members=lambda total: total["count"],
    )


def _ratio(total: jax.Array, count: jax.Array) -> jax.Array:
    """A rate; not a number, with a gradient of zero, where there is nothing to divide by."""
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), jnp.nan)


def _largest(rates: jax.Array, here: jax.Array) -> jax.Array:
    return jnp.where(jnp.any(here), jnp.max(jnp.where(here, rates, -jnp.inf)), jnp.nan)


def _gap(rates: jax.Array, here: jax.Array) -> jax.Array:
    """The largest minus the smallest among the groups that are here; undefined for fewer than two."""
    gap = jnp.max(jnp.where(here, rates, -jnp.inf)) - jnp.min(jnp.where(here, rates, jnp.inf))
    return jnp.where(jnp.sum(here) > 1, gap, jnp.nan)


def _check(kind: str, groups: int) -> None:
    check_count(kind, "groups", groups)
    if groups < 2:
        raise SettingError(f"{kind}: groups={groups}, but there must be 2 or more to compare")
