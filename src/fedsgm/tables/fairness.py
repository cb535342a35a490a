"""Ready-made constraints: fairness between groups, and how often a class or everybody is decided rightly or wrongly.

Each is a few lines over :class:`Statistic`, to be compared with a bound::

    demographic_parity(score, by="sex", groups=2) <= 0.05

``score(params, example)`` is the predicted probability of the positive class, ``by`` the column that holds a group's
number, 0 to ``groups - 1``, and ``target`` the column of the label, 0 or 1. Rates are of decisions, ``score >
threshold``: the run switches on them and reports them, and descends a smooth surrogate. With ``scores=True`` they are
means of scores, and these are descended, too.

Of K classes the score is the vector of their probabilities and the label 0 to K - 1. The class of the largest
probability is decided, and what is about the positive class of two is about the worst of the K. With ``classes=K``
each class of each pair of groups is a part of its own, with a multiplier of its own under the rule ``Adaptive``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.base.structs import check_number, made_once
from fedsgm.core.problem import PerExample, Statistic
from fedsgm.tables import rates


@made_once
def demographic_parity(
    score: PerExample,
    *,
    by: str,
    groups: int,
    scores: bool = False,
    threshold: float = 0.5,
    gradient: str = "linearized",
    name: str | None = None,
    classes: int = 2,
) -> Statistic:
    r"""The largest difference between groups of the rate of positive decisions, or of the decisions for a class.

    .. math:: \max_{a, b} \big| P(\hat y = 1 \mid A = a) - P(\hat y = 1 \mid A = b) \big|

    After Dwork et al., *Fairness Through Awareness* (2012).

    >>> (demographic_parity(lambda w, example: w * example["x"], by="sex", groups=2) <= 0.05).name
    'demographic_parity'
    """
    name, among = name or "demographic_parity", rates.everybody(by, rates.compared(classes))
    score = rates.told_of(name, score, classes)
    return rates.rate_of_groups(name, score, by, groups, among, rates.decisions, rates.gap, scores, threshold, gradient)


@made_once
def equal_opportunity(
    score: PerExample,
    *,
    by: str,
    groups: int,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    gradient: str = "linearized",
    name: str | None = None,
    classes: int = 2,
) -> Statistic:
    r"""The largest difference between groups of the true positive rate, or of the recall of a class.

    .. math:: \max_{a, b} \big| P(\hat y = 1 \mid y = 1, A = a) - P(\hat y = 1 \mid y = 1, A = b) \big|

    After Hardt, Price and Srebro, *Equality of Opportunity in Supervised Learning* (2016).

    >>> (equal_opportunity(lambda w, example: w * example["x"], by="sex", groups=2) <= 0.05).name
    'equal_opportunity'
    """
    name, among = name or "equal_opportunity", rates.classes(target, 1, rates=rates.compared(classes))
    score = rates.told_of(name, score, classes)
    return rates.rate_of_groups(
        name, score, by, groups, among, rates.right(target), rates.gap, scores, threshold, gradient
    )


@made_once
def equalized_odds(
    score: PerExample,
    *,
    by: str,
    groups: int,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    gradient: str = "linearized",
    name: str | None = None,
    classes: int = 2,
) -> Statistic:
    r"""The larger of the differences between groups of the true and of the false positive rate.

    .. math:: \max_{y} \max_{a, b} \big| P(\hat y = 1 \mid y, A = a) - P(\hat y = 1 \mid y, A = b) \big|

    Of K classes: the largest over each true class of the differences in the rate at which each class is decided.
    After Hardt, Price and Srebro, *Equality of Opportunity in Supervised Learning* (2016).

    >>> (equalized_odds(lambda w, example: w * example["x"], by="sex", groups=2) <= 0.05).name
    'equalized_odds'
    """
    name, among = name or "equalized_odds", rates.classes(target, 1, 0, rates=classes**2 if classes > 2 else 2)
    score = rates.told_of(name, score, classes)
    return rates.rate_of_groups(name, score, by, groups, among, rates.decisions, rates.gap, scores, threshold, gradient)


@made_once
def group_error_gap(
    score: PerExample,
    *,
    by: str,
    groups: int,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    gradient: str = "linearized",
    name: str | None = None,
) -> Statistic:
    r"""The largest difference between groups of the share that is decided wrongly.

    .. math:: \max_{a, b} \big| P(\hat y \ne y \mid A = a) - P(\hat y \ne y \mid A = b) \big|
    """
    name, among = name or "group_error_gap", rates.everybody(by)
    return rates.rate_of_groups(
        name, score, by, groups, among, rates.wrong(target), rates.gap, scores, threshold, gradient
    )


@made_once
def worst_group_error(
    score: PerExample,
    *,
    by: str,
    groups: int,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    gradient: str = "linearized",
    name: str | None = None,
) -> Statistic:
    r"""The share that is decided wrongly, of the group that has the largest.

    .. math:: \max_{a} P(\hat y \ne y \mid A = a)
    """
    name, among = name or "worst_group_error", rates.everybody(by)
    return rates.rate_of_groups(
        name, score, by, groups, among, rates.wrong(target), rates.largest, scores, threshold, gradient
    )


@made_once
def group_loss_gap(
    loss: PerExample, *, by: str, groups: int, name: str | None = None, gradient: str = "linearized"
) -> Statistic:
    r"""The largest difference between groups of the mean loss.

    .. math:: \max_{a, b} \big| \mathbb{E}[\phi \mid A = a] - \mathbb{E}[\phi \mid A = b] \big|
    """
    return rates.mean_of_groups(name or "group_loss_gap", loss, by, groups, rates.gap, gradient)


@made_once
def worst_group_loss(
    loss: PerExample, *, by: str, groups: int, name: str | None = None, gradient: str = "linearized"
) -> Statistic:
    r"""The mean loss of the group that has the largest.

    .. math:: \max_{a} \mathbb{E}[\phi \mid A = a]

    As group distributionally robust optimisation bounds it (Sagawa et al., 2020).
    """
    return rates.mean_of_groups(name or "worst_group_loss", loss, by, groups, rates.largest, gradient)


@made_once
def mean_gap(
    score: PerExample,
    *,
    by: str,
    groups: int,
    unit: float = 1.0,
    name: str | None = None,
    gradient: str = "linearized",
) -> Statistic:
    """The largest difference between groups of the mean prediction of a number.

    Where the model predicts a standardised number, ``unit`` is its standard deviation, and the gap that is reported and
    bounded is in the number's own units.
    """
    check_number("mean_gap", "unit", unit, above=0)
    return rates.mean_of_groups(name or "mean_gap", score, by, groups, rates.gap, gradient, unit)


@made_once
def class_loss(loss: PerExample, *, label: int, target: str = "y", name: str | None = None) -> Statistic:
    r"""Neyman-Pearson: the mean loss of one class, over all its examples wherever they are.

    .. math:: \mathbb{E}[\phi \mid y = k]
    """

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = jnp.float32(example[target] == label)
        return {"count": member, "loss": member * loss(params, example)}

    return Statistic(
        sums,
        lambda total: rates.ratio(total["loss"], total["count"]),
        name=name or f"class_loss_{label}",
        members=lambda total: total["count"],
    )


@made_once
def error_rate(
    score: PerExample,
    *,
    label: int | None = None,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    name: str | None = None,
) -> Statistic:
    r"""The share that is decided wrongly: of one class, as Neyman and Pearson bound it, or of everybody.

    .. math:: P(\hat y \ne y), \quad \text{or } P(\hat y \ne k \mid y = k)

    >>> (error_rate(lambda w, example: w * example["x"], label=1) <= 0.05).name
    'error_rate_1'
    """
    name = rates.named("error_rate", name, label)
    return rates.rate_of_class(name, score, label, target, rates.wrong(target), scores, threshold)


@made_once
def accuracy(
    score: PerExample,
    *,
    label: int | None = None,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    name: str | None = None,
) -> Statistic:
    """The share that is decided rightly, of one class or of everybody.

    >>> (accuracy(lambda w, example: w * example["x"]) >= 0.9).sense
    '>='
    """
    name = rates.named("accuracy", name, label)
    return rates.rate_of_class(name, score, label, target, rates.right(target), scores, threshold)


@made_once
def recall(
    score: PerExample,
    *,
    label: int,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    name: str | None = None,
) -> Statistic:
    r"""The share of one class that is decided to be of it.

    .. math:: P(\hat y = k \mid y = k)

    >>> (recall(lambda w, example: w * example["x"], label=1) >= 0.8).name
    'recall_1'
    """
    name = rates.named("recall", name, label)
    return rates.rate_of_class(name, score, label, target, rates.decided_for(label), scores, threshold)


@made_once
def true_positive_rate(
    score: PerExample,
    *,
    label: int = 1,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    name: str | None = None,
) -> Statistic:
    r"""The recall of the positive class, or of the ``label`` that counts as positive.

    .. math:: P(\hat y = 1 \mid y = 1)
    """
    name = rates.named("true_positive_rate", name, label)
    return rates.rate_of_class(name, score, label, target, rates.decided_for(label), scores, threshold)


@made_once
def false_positive_rate(
    score: PerExample,
    *,
    label: int = 1,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    name: str | None = None,
) -> Statistic:
    r"""The share of the other classes that is decided to be of the positive one, or of ``label``.

    .. math:: P(\hat y = 1 \mid y \ne 1)
    """
    name = rates.named("false_positive_rate", name, label)
    return rates.rate_of_class(name, score, label, target, rates.decided_for(label), scores, threshold, rest=True)


@made_once
def precision(
    score: PerExample,
    *,
    label: int,
    target: str = "y",
    scores: bool = False,
    threshold: float = 0.5,
    name: str | None = None,
) -> Statistic:
    r"""Of those that are decided to be of a class, the share that is of it; 0 where nobody is decided so.

    .. math:: P(y = k \mid \hat y = k)
    """
    name = rates.named("precision", name, label)
    rates.check_decision(name, scores, threshold)

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = jnp.float32(example[target] == label)
        either = rates.smooth_and_decided(name, score(params, example), scores, threshold)
        rates.check_class(name, label, either[0])
        so = jnp.stack([rates.decided_for(label)(example, decided) for decided in either])
        return {"count": member, "so": so, "right": member * so}

    def value(total: Any, which: int) -> jax.Array:
        found = rates.ratio(total["right"], total["so"])[which]
        return jnp.where(jnp.isnan(found), 0, found)

    return Statistic(
        sums,
        lambda total: value(total, 0),
        name=name,
        switch_on=None if scores else lambda total: value(total, 1),
        members=lambda total: total["count"],
    )
