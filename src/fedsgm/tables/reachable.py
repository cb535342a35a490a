"""Can bounds be kept together at all? Of two classes, by what any decision could come to, even one that knows them.

A decision has, in each cell of people (a mix of the groups that constraints compare), the shares of the positive and
the negative rows that it calls positive. Every rate is linear in those shares, so that whether bounds exclude each
other is a linear program. What is not, such as losses and scores, is left out: it says no only where that is sure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedsgm.tables.grammar import OF_GROUPS, Wanted

Rows = Iterator[tuple[np.ndarray, float]]
"""Rows a, b of a program: a . shares <= b, the shares of positive rows of each cell first, then of negative ones."""


def excluded(wanted: Sequence[Wanted], codes: Mapping[str, np.ndarray], y: np.ndarray, positive: str) -> list[str]:
    """The constraints that no decision keeps together on these rows, in a sentence; nothing where one could.

    ``codes`` has each row's group by grouping, -1 of none, and ``y`` is 1 for a row of the class ``positive``.
    """
    from scipy.optimize import linprog

    if len(wanted) < 2:
        return []  # any one of them is kept by some decision
    groups = np.stack([np.zeros(len(y), int), *codes.values()], axis=1)
    cells, cell = np.unique(groups, axis=0, return_inverse=True)
    counts = np.zeros((2, len(cells)))
    np.add.at(counts, (y.astype(int), cell.reshape(-1)), 1)
    program = _Program(counts[1], counts[0], dict(zip(codes, cells[:, 1:].T, strict=True)), positive)
    used = {one.name: rows for one in wanted if (rows := list(program.rows(one)))}
    lines = list(itertools.chain(*used.values()))
    if len(used) < 2:
        return []
    a, b = np.stack([a for a, _ in lines]), np.array([b for _, b in lines])
    found = linprog(np.zeros(a.shape[1]), A_ub=a, b_ub=b + 1e-9, bounds=(0, 1), method="highs")
    if found.status != 2:  # not shown to be without a solution
        return []
    names = " and ".join(f"{one.name} {_bound(one)}" for one in wanted if one.name in used)
    return [f"no model can keep {names} on these rows, not even one that knows the target; loosen one of the bounds"]


def _bound(one: Wanted) -> str:
    return f"from {one.least:g} to {one.bound:g}" if one.least is not None else f"{one.sense} {one.bound:g}"


class _Program:
    """The rows of a linear program, of so many positive and negative rows in each cell."""

    def __init__(
        self, positives: np.ndarray, negatives: np.ndarray, groups: Mapping[str, np.ndarray], positive: str
    ) -> None:
        self.positives, self.negatives, self.groups, self.positive = positives, negatives, groups, positive

    def rows(self, one: Wanted) -> Rows:
        if one.scores or one.quantile is not None:
            return
        if one.kind in OF_GROUPS and one.column is not None:
            yield from self._gaps(one, self.groups[one.column])
        elif one.kind in ("accuracy", "error_rate", "recall", "true_positive_rate", "false_positive_rate"):
            share, constant = self._rate(one)
            yield from _bounded(share, constant, one)

    def _gaps(self, one: Wanted, group: np.ndarray) -> Rows:
        """Between any two groups, of the rates that the kind compares."""
        p, n = self.positives, self.negatives
        zero = np.zeros_like(p)
        parts = {
            "demographic_parity": [(p, n)],
            "equal_opportunity": [(p, zero)],
            "equalized_odds": [(p, zero), (zero, n)],
        }.get(one.kind, [])
        for of_positives, of_negatives in parts:
            rates = []
            for label in np.unique(group[group >= 0]):
                mine = group == label
                total = (of_positives + of_negatives)[mine].sum()
                if total:
                    rates.append(np.concatenate([of_positives * mine, of_negatives * mine]) / total)
            for high, low in itertools.permutations(rates, 2):
                yield high - low, one.bound

    def _rate(self, one: Wanted) -> tuple[np.ndarray, float]:
        """A rate as a row and a constant: row . shares + constant."""
        p, n = self.positives.sum(), self.negatives.sum()
        zero = np.zeros_like(self.positives)
        true_positive = np.concatenate([self.positives / max(p, 1), zero])
        false_positive = np.concatenate([zero, self.negatives / max(n, 1)])
        of_class = one.value if one.value is not None else self.positive if "_positive_" in one.kind else None
        if one.kind == "false_positive_rate":
            return (false_positive, 0.0) if of_class == self.positive else (-true_positive, 1.0)
        if of_class is None:
            right, constant = (p * true_positive - n * false_positive) / (p + n), n / (p + n)
        elif of_class == self.positive:
            right, constant = true_positive, 0.0
        else:
            right, constant = -false_positive, 1.0
        return (-right, 1.0 - constant) if one.kind == "error_rate" else (right, constant)


def _bounded(share: np.ndarray, constant: float, one: Wanted) -> Rows:
    if one.sense != ">=":
        yield share, one.bound - constant
    least = one.bound if one.sense == ">=" else one.least
    if least is not None:
        yield -share, constant - least
