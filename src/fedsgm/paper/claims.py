"""The statistics of the verdicts: what splits say of a claim.

Runs on one split of the data share its examples, so a split is one observation: the mean of its runs. A number is
given as an array of splits, or of splits by seeds; two lines are compared split by split. Every test is one-sided at
5%, and a claim that is neither shown nor refuted is not shown. Runs that share nothing are given one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsgm.paper.study import Claim

LEVEL = 0.05
SLIGHT = 0.05  # a difference of this share of the larger number is none, unless told
MOST, NEARLY_ALL = 0.5, 0.8  # shares of splits

Labelled = tuple[str, Any]
"""A line's label and its numbers."""


def compared(
    says: str, what: str, smaller: Labelled, larger: Labelled, *, slight: float = SLIGHT, ours: bool = False
) -> Claim:
    """That one line's numbers are below another's.

    It holds if the mean difference is above zero, and is false if it is below what is ``slight``, a share of the larger
    number.
    """
    difference, error, measured = _difference(what, larger, smaller)
    if error is None:
        return Claim(says, measured, None, ours)
    low, high = difference - error, difference + error
    least = slight * abs(float(_splits(larger[1]).mean()))
    return Claim(says, measured, True if low > 0 else False if high < least else None, ours)


def alike(says: str, what: str, one: Labelled, other: Labelled, *, margin: float, ours: bool = False) -> Claim:
    """That two lines' numbers are the same but for a margin: two one-sided tests, which both must be passed.

    It is false if the difference is beyond the margin, by the same tests.
    """
    difference, error, measured = _difference(what, one, other)
    measured += f"; margin ±{_short(margin)}"
    if error is None:
        return Claim(says, measured, None, ours)
    low, high = difference - error, difference + error
    within, beyond = -margin < low and high < margin, low > margin or high < -margin
    return Claim(says, measured, True if within else False if beyond else None, ours)


def mostly(says: str, what: str, kept: Any, *, ours: bool = False) -> Claim:
    """That splits keep something: it holds if more than half of all do, and is false if fewer than four in five do."""
    from scipy.stats import binomtest

    count, total = int(np.sum(kept)), len(kept)
    above = binomtest(count, total, MOST, alternative="greater").pvalue < LEVEL
    below = binomtest(count, total, NEARLY_ALL, alternative="less").pvalue < LEVEL
    return Claim(says, f"{what}: {count} of {total} splits", True if above else False if below else None, ours)


def _splits(values: Any) -> np.ndarray:
    """One number a split."""
    values = np.asarray(values, float)
    return values.mean(axis=1) if values.ndim == 2 else np.atleast_1d(values)


def _difference(what: str, one: Labelled, other: Labelled) -> tuple[float, float | None, str]:
    """The mean of ``one - other`` over splits, half of its 90% interval (None of one split) and the words."""
    from scipy.stats import t

    a, b = _splits(one[1]), _splits(other[1])
    each = a - b
    words = f"{what}: {one[0]} {a.mean():.4g}, {other[0]} {b.mean():.4g}; difference {_short(each.mean())}"
    if len(each) < 2:
        return float(each.mean()), None, f"{words}, one run"
    unit = "splits" if np.ndim(one[1]) == 2 else "runs"
    error = float(t.ppf(1 - LEVEL, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each)))
    return float(each.mean()), error, f"{words} ± {_short(error)} (90% interval, {len(each)} {unit})"


def _short(number: float) -> str:
    """Two digits that count, without an exponent."""
    return np.format_float_positional(float(number), precision=2, fractional=False, trim="-")
