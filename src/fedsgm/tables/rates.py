"""What the ready-made constraints are made of: rates of scores or decisions, among everybody, a class or groups.

A rate of decisions is a step function of the parameters, so its gradient is that of a surrogate, a steep sigmoid.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.core.problem import PerExample, Statistic

_SHARPNESS = 4

Event = Callable[[Any, jax.Array], jax.Array]  # of an example and its score or decision: how much of it is counted
Among = Callable[[Any], jax.Array]  # of an example: which of the classes it is counted in
Over = Callable[[jax.Array, jax.Array], jax.Array]  # of rates, and which of them have examples: one number


def everybody(by: str) -> Among:
    return lambda example: (example[by] >= 0)[None]


def classes(target: str, *labels: int) -> Among:
    return lambda example: jnp.stack([example[target] == label for label in labels])


def positive(_: Any, decided: jax.Array) -> jax.Array:
    return decided


def right(target: str) -> Event:
    return lambda example, decided: jnp.where(example[target] == 1, decided, 1 - decided)


def wrong(target: str) -> Event:
    return lambda example, decided: jnp.where(example[target] == 1, 1 - decided, decided)


def smooth_and_decided(score: jax.Array, scores: bool, threshold: float) -> tuple[jax.Array, jax.Array]:
    """What the gradient is taken of, the score or the surrogate of its decision, and the decision, 0 or 1."""
    return score if scores else surrogate(score, threshold), jnp.float32(score > threshold)


def surrogate(score: jax.Array, threshold: float, sharpness: int = _SHARPNESS) -> jax.Array:
    """The sigmoid of ``sharpness`` times the logit's distance from the threshold's, without a logarithm of 0."""
    yes, no = (score * (1 - threshold)) ** sharpness, ((1 - score) * threshold) ** sharpness
    return yes / (yes + no)


def rate(
    name: str,
    score: PerExample,
    member: Callable[[Any], jax.Array],
    event: Event,
    over: Over,
    scores: bool,
    threshold: float,
    gradient: str = "linearized",
) -> Statistic:
    """What ``over`` makes of the rates of an event among the members."""
    check_decision(name, scores, threshold)

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        here = member(example)
        soft, hard = smooth_and_decided(score(params, example), scores, threshold)
        return {"count": here, "soft": here * event(example, soft), "hard": here * event(example, hard)}

    def value(total: Any, kind: str) -> jax.Array:
        return over(ratio(total[kind], total["count"]), total["count"] > 0)

    return Statistic(
        sums,
        lambda total: value(total, "soft"),
        name=name,
        gradient=gradient,
        switch_on=None if scores else lambda total: value(total, "hard"),
        members=lambda total: total["count"],
    )


def rate_of_class(
    name: str, score: PerExample, label: int | None, target: str, event: Event, scores: bool, threshold: float
) -> Statistic:
    """The rate of an event in one class or, where the label is None, among everybody."""

    def member(example: Any) -> jax.Array:
        return jnp.float32(1 if label is None else example[target] == label)

    return rate(name, score, member, event, lambda rate, _: rate, scores, threshold)


def rate_of_groups(
    name: str,
    score: PerExample,
    by: str,
    groups: int,
    among: Among,
    event: Event,
    over: Over,
    scores: bool,
    threshold: float,
    gradient: str,
) -> Statistic:
    """What ``over`` makes of the groups' rates, the largest over the classes that an example can be counted in."""
    check_groups(name, groups)

    def member(example: Any) -> jax.Array:
        return among(example)[:, None] * jax.nn.one_hot(example[by], groups)

    def largest_over(rates: jax.Array, here: jax.Array) -> jax.Array:
        each = jax.vmap(over)(rates, here)
        return largest(each, ~jnp.isnan(each))

    return rate(name, score, member, event, largest_over, scores, threshold, gradient)


def loss_of_groups(name: str, loss: PerExample, by: str, groups: int, over: Over, gradient: str) -> Statistic:
    """What ``over`` makes of the groups' mean losses."""
    check_groups(name, groups)

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = jax.nn.one_hot(example[by], groups)
        return {"count": member, "loss": member * loss(params, example)}

    return Statistic(
        sums,
        lambda total: over(ratio(total["loss"], total["count"]), total["count"] > 0),
        name=name,
        gradient=gradient,
        members=lambda total: total["count"],
    )


def ratio(total: jax.Array, count: jax.Array) -> jax.Array:
    """A rate; not a number, with a gradient of zero, where there is nothing to divide by."""
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), jnp.nan)


def largest(rates: jax.Array, here: jax.Array) -> jax.Array:
    return jnp.where(jnp.any(here), jnp.max(jnp.where(here, rates, -jnp.inf)), jnp.nan)


def gap(rates: jax.Array, here: jax.Array) -> jax.Array:
    """The largest minus the smallest among the groups that are here; undefined for fewer than two."""
    gap = jnp.max(jnp.where(here, rates, -jnp.inf)) - jnp.min(jnp.where(here, rates, jnp.inf))
    return jnp.where(jnp.sum(here) > 1, gap, jnp.nan)


def named(kind: str, name: str | None, label: int | None) -> str:
    """The name that was given, or the kind with its class."""
    if label is not None and label not in (0, 1):
        raise SettingError(f"{kind}: label={label!r}, but it must be 0 or 1")
    return name or (kind if label is None else f"{kind}_{label}")


def check_groups(kind: str, groups: int) -> None:
    check_count(kind, "groups", groups)
    if groups < 2:
        raise SettingError(f"{kind}: groups={groups}, but there must be 2 or more to compare")


def check_decision(kind: str, scores: bool, threshold: float) -> None:
    if not isinstance(scores, bool):
        raise SettingError(f"{kind}: scores={scores!r}, but it must be True, for mean scores, or False, for decisions")
    if not isinstance(threshold, numbers.Real) or not 0 < threshold < 1:
        raise SettingError(f"{kind}: threshold={threshold!r}, but it must be a number between 0 and 1")
