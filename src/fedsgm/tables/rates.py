"""What the ready-made constraints are made of: rates of scores or decisions, among everybody, a class or groups.

A rate of decisions is a step function of the parameters, so its gradient is that of a surrogate, a steep sigmoid. A
score is one number, of the positive class of two, or a vector, of every class; so is what is decided of it.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.core.pooling import largest_part
from fedsgm.core.problem import PerExample, Statistic

_SHARPNESS = 4
_MOST_PARTS = 1000  # of a constraint: the server takes the derivative of each in every round

Event = Callable[[Any, jax.Array], jax.Array]  # of an example and its score or decision: how much of it is counted
Member = Callable[[Any, jax.Array], jax.Array]  # of the same: what it is counted in


class Among(NamedTuple):
    """What an example is counted in, and how many rates each group then has, as far as that is known beforehand."""

    here: Member
    rates: int


class Over(NamedTuple):
    """What is made of the groups' rates: the numbers whose largest is bounded, and how many of so many groups."""

    parts: Callable[[jax.Array], jax.Array]  # of rates, NaN for a group without examples
    count: Callable[[int], int]


def everybody(by: str, rates: int = 1) -> Among:
    return Among(lambda example, _: (example[by] >= 0)[None], rates)


def classes(target: str, *labels: int, rates: int | None = None) -> Among:
    """These classes of two, or each of several, of which the number of ``rates`` is told."""

    def member(example: Any, decided: jax.Array) -> jax.Array:
        told = range(decided.size) if decided.ndim else labels
        return jnp.stack([example[target] == label for label in told])

    return Among(member, len(labels) if rates is None else rates)


def compared(classes: int) -> int:
    """How many classes are: of two the positive one is enough."""
    return classes if classes > 2 else 1


def told_of(name: str, score: PerExample, classes: int) -> PerExample:
    """The score, which must be of so many classes if that is told, by a number above 2."""
    check_count(name, "classes", classes, least=2)

    def checked(params: Any, example: Any) -> jax.Array:
        found = score(params, example)
        if classes > 2 and jnp.shape(found) != (classes,):
            raise SettingError(f"{name}: classes={classes}, but a score has shape {jnp.shape(found)}")
        return found

    return checked


def decisions(_: Any, decided: jax.Array) -> jax.Array:
    """The positive decision, or each of several."""
    return decided


def decided_for(label: int) -> Event:
    return lambda _, decided: decided[label] if decided.ndim else decided if label == 1 else 1 - decided


def right(target: str) -> Event:
    def event(example: Any, decided: jax.Array) -> jax.Array:
        if decided.ndim:
            return jnp.sum(jnp.where(jnp.arange(decided.size) == example[target], decided, 0))
        return jnp.where(example[target] == 1, decided, 1 - decided)

    return event


def wrong(target: str) -> Event:
    def event(example: Any, decided: jax.Array) -> jax.Array:
        if decided.ndim:
            return 1 - right(target)(example, decided)
        return jnp.where(example[target] == 1, 1 - decided, decided)

    return event


def smooth_and_decided(name: str, score: jax.Array, scores: bool, threshold: float) -> tuple[jax.Array, jax.Array]:
    """What the gradient is taken of, the score or the surrogate of its decision, and the decision, 0 or 1.

    Of several classes the one with the largest score is decided, the first of those with the same.
    """
    if jnp.ndim(score) == 0:
        return score if scores else surrogate(score, threshold), jnp.float32(score > threshold)
    if score.ndim > 1 or score.size < 2:
        raise SettingError(f"{name}: a score has shape {score.shape}, but it must be a number or one for each class")
    if threshold != 0.5:
        raise SettingError(
            f"{name}: threshold={threshold:g} is for one score, but there are {score.size}; the largest decides"
        )
    steep = score**_SHARPNESS  # softmax of so many times the logits
    return score if scores else steep / jnp.sum(steep), jax.nn.one_hot(jnp.argmax(score), score.size)


def surrogate(score: jax.Array, threshold: float, sharpness: int = _SHARPNESS) -> jax.Array:
    """The sigmoid of ``sharpness`` times the logit's distance from the threshold's, without a logarithm of 0."""
    yes, no = (score * (1 - threshold)) ** sharpness, ((1 - score) * threshold) ** sharpness
    return yes / (yes + no)


def rate(
    name: str,
    score: PerExample,
    member: Member,
    event: Event,
    value: Callable[[jax.Array], jax.Array],
    parts: int,
    scores: bool,
    threshold: float,
    gradient: str = "linearized",
) -> Statistic:
    """What ``value`` makes of the rates of an event among the members, NaN where there are none: so many numbers.

    Of several events the rates are [members, events].
    """
    check_decision(name, scores, threshold)

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        soft, hard = smooth_and_decided(name, score(params, example), scores, threshold)
        here = member(example, hard)
        each = {kind: event(example, decided) for kind, decided in (("soft", soft), ("hard", hard))}
        return {"count": here} | {kind: (here[..., None] if one.ndim else here) * one for kind, one in each.items()}

    def rates(total: Any, kind: str) -> jax.Array:
        count = total["count"]
        return ratio(total[kind], count[..., None] if total[kind].ndim > count.ndim else count)

    return Statistic(
        sums,
        lambda total: value(rates(total, "soft")),
        name=name,
        gradient=gradient,
        switch_on=None if scores else lambda total: value(rates(total, "hard")),
        members=lambda total: total["count"],
        parts=parts,
    )


def rate_of_class(
    name: str,
    score: PerExample,
    label: int | None,
    target: str,
    event: Event,
    scores: bool,
    threshold: float,
    rest: bool = False,
) -> Statistic:
    """The rate of an event in one class, in the ``rest`` of them or, where the label is None, among everybody."""

    def member(example: Any, decided: jax.Array) -> jax.Array:
        check_class(name, label, decided)
        if rest:
            return jnp.float32(example[target] != label)
        return jnp.float32(1 if label is None else example[target] == label)

    return rate(name, score, member, event, lambda rate: rate, 1, scores, threshold)


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
    """What ``over`` makes of the groups' rates: a part for each rate that a group has, and each number of ``over``.

    Where there are more rates than was known beforehand, or very many parts, a part is the largest over all rates.
    """
    check_groups(name, groups)
    each, parts = over.count(groups), among.rates * over.count(groups)
    parts = parts if parts <= _MOST_PARTS else each

    def member(example: Any, decided: jax.Array) -> jax.Array:
        return among.here(example, decided)[:, None] * jax.nn.one_hot(example[by], groups)

    def value(rates: jax.Array) -> jax.Array:
        of_each = jax.vmap(over.parts, -1) if rates.ndim > 2 else over.parts
        found = jax.vmap(of_each)(rates).reshape(-1, each)
        if found.size == parts:
            return found.reshape(-1)
        worst = jax.vmap(largest_part, -1)(found)
        return jnp.concatenate([worst, jnp.full(parts - each, jnp.nan)])

    return rate(name, score, member, event, value, parts, scores, threshold, gradient)


def mean_of_groups(
    name: str, of: PerExample, by: str, groups: int, over: Over, gradient: str, unit: float = 1.0
) -> Statistic:
    """What ``over`` makes of the groups' means of a loss or a prediction.

    It is reported and compared in units of which ``unit`` make one of the function's, and descended in the function's.
    """
    check_groups(name, groups)

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = jax.nn.one_hot(example[by], groups)
        return {"count": member, "loss": member * of(params, example)}

    def value(total: Any) -> jax.Array:
        return over.parts(ratio(total["loss"], total["count"]))

    return Statistic(
        sums,
        value,
        name=name,
        gradient=gradient,
        switch_on=None if unit == 1 else lambda total: unit * value(total),
        members=lambda total: total["count"],
        parts=over.count(groups),
    )


def ratio(total: jax.Array, count: jax.Array) -> jax.Array:
    """A rate; not a number, with a gradient of zero, where there is nothing to divide by."""
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), jnp.nan)


def _differences(rates: jax.Array) -> jax.Array:
    """Of any two groups, each way."""
    return (rates[:, None] - rates)[~np.eye(len(rates), dtype=bool)]


largest = Over(lambda rates: rates, lambda groups: groups)
gap = Over(_differences, lambda groups: groups * (groups - 1))


def named(kind: str, name: str | None, label: int | None) -> str:
    """The name that was given, or the kind with its class."""
    if label is not None:
        check_count(kind, "label", label, least=0)
    return name or (kind if label is None else f"{kind}_{label}")


def check_class(name: str, label: int | None, decided: jax.Array) -> None:
    count = decided.size if decided.ndim else 2
    if label is not None and label >= count:
        raise SettingError(f"{name}: label={label}, but the score is of {count} classes, 0 to {count - 1}")


def check_groups(kind: str, groups: int) -> None:
    check_count(kind, "groups", groups)
    if groups < 2:
        raise SettingError(f"{kind}: groups={groups}, but there must be 2 or more to compare")


def check_decision(kind: str, scores: bool, threshold: float) -> None:
    if not isinstance(scores, bool):
        raise SettingError(f"{kind}: scores={scores!r}, but it must be True, for mean scores, or False, for decisions")
    if not isinstance(threshold, numbers.Real) or not 0 < threshold < 1:
        raise SettingError(f"{kind}: threshold={threshold!r}, but it must be a number between 0 and 1")
