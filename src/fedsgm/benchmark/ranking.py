"""Who is better than whom: places on each problem, bound and split, and how sure that is.

Runs on one split of one problem, with whatever bound, are one cluster, which the bootstrap draws as a whole.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedsgm.benchmark.measures import Row

_DRAWS, _SURE = 2000, 0.95
ENOUGH = 6  # clusters that must all agree for a sign test at 5%: with fewer, no interval means anything
SAME = 1e-3  # objectives that are nearer, by their size, are the same

Instance = tuple[str, float, int]  # problem, bound, split


class Estimate(NamedTuple):
    """A mean, and where it lies with 95% confidence."""

    mean: float
    low: float
    high: float


def instances(rows: Sequence[Row], methods: Sequence[str]) -> dict[Instance, dict[str, Row]]:
    """The final rows of these methods by problem, bound and split; those with one method alone are nobody's place."""
    found: dict[Instance, dict[str, Row]] = collections.defaultdict(dict)
    for row in rows:
        if row["phase"] == "final" and row["method"] in methods:
            found[row["case"], row["bound"], row["split"]][row["method"]] = row
    return {at: each for at, each in found.items() if len(each) > 1}


def complete(
    found: Mapping[Instance, dict[str, Row]], fit: Callable[[str, str], bool], methods: Sequence[str]
) -> dict[Instance, dict[str, Row]]:
    """The instances on which every method was run that fits the problem: places among fewer are not comparable."""
    return {at: each for at, each in found.items() if all(name in each for name in methods if fit(name, at[0]))}


TRAIN, HELD = "train", "test"


def feasible(row: Row, part: str = TRAIN) -> bool:
    past = row.get(f"{part} excess")
    return past is not None and past <= 0


def better(row: Row, other: Row, part: str = TRAIN) -> float:
    """1 if a run came to more than another, 0.5 if to the same: within the bound first, then the objective.

    That is on the training rows, or on held-out ones where there are any.
    """
    part = TRAIN if row.get(f"{part} objective") is None else part
    one, two = feasible(row, part), feasible(other, part)
    if one != two:
        return float(one)
    name = f"{part} objective" if one else f"{part} excess"
    a, b = (math.inf if each[name] is None or each[name] != each[name] else each[name] for each in (row, other))
    if a == b or abs(a - b) <= SAME * max(abs(a), abs(b)):
        return 0.5
    return float(a < b)


def places(each: Mapping[str, Row], part: str = TRAIN) -> dict[str, float]:
    """Each method's place among those on an instance: one more than those that are better, the same counting half."""
    return {
        name: 1 + sum(1 - better(row, other, part) for rival, other in each.items() if rival != name)
        for name, row in each.items()
    }


def estimated(found: Mapping[Instance, float]) -> Estimate:
    """The mean of one number of each instance, with an interval from clusters drawn anew."""
    clusters: dict[tuple[str, int], list[float]] = collections.defaultdict(list)
    for (case, _, split), value in found.items():
        clusters[case, split].append(value)
    if not clusters:
        return Estimate(math.nan, math.nan, math.nan)
    sums = np.array([[sum(values), len(values)] for values in clusters.values()])
    drawn = np.random.default_rng(0).integers(len(sums), size=(_DRAWS, len(sums)))
    means = sums[drawn].sum(axis=1)
    tail = (1 - _SURE) / 2
    low, high = np.quantile(means[:, 0] / means[:, 1], [tail, 1 - tail])
    return Estimate(float(sums[:, 0].sum() / sums[:, 1].sum()), float(low), float(high))


def ranks(
    found: Mapping[Instance, Mapping[str, Row]], methods: Sequence[str], part: str = TRAIN
) -> dict[str, Estimate]:
    placed = {at: places(each, part) for at, each in found.items()}
    return {
        name: estimated({at: each[name] for at, each in placed.items() if name in each})
        for name in methods
        if any(name in each for each in placed.values())
    }


def against(found: Mapping[Instance, Mapping[str, Row]], name: str, other: str, part: str = TRAIN) -> Estimate:
    """How often a method is better than another where both were run; the same counts half."""
    both = {at: better(each[name], each[other], part) for at, each in found.items() if name in each and other in each}
    return estimated(both)


def above_best(found: Mapping[Instance, Mapping[str, Row]], name: str) -> list[float]:
    """By what share of the best objective a method's is above it, on each instance; infinite past the bound."""
    shares = []
    for each in found.values():
        kept = [row["train objective"] for row in each.values() if feasible(row)]
        if name in each and kept:
            best, own = min(kept), each[name]["train objective"]
            shares.append((own - best) / max(abs(best), 1e-9) if feasible(each[name]) else math.inf)
    return shares


def median(values: Sequence[float | None], missing: float = math.inf) -> float:
    """The middle value, what is missing counting as told; no number of none."""
    known = [missing if value is None else value for value in values]
    return float(np.median(known)) if known else math.nan


def mean(rows: Sequence[Row], of: Callable[[Row], float | None]) -> float:
    known = [value for value in map(of, rows) if value is not None and math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan
