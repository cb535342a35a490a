"""What a careful colleague would say of a table before a fit: groups too small to judge, columns that give things away.

Each caution is one sentence that says what to do. They are few: a table without such a flaw hears nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedsgm.data.table import Table, as_text
from fedsgm.tables.grammar import Wanted
from fedsgm.tables.holding import kinds_of

FEWEST = 20  # training rows of a group: a rate of 20 rows has a standard error of up to 0.11
_ENOUGH = 50  # rows from which on columns are judged
_OWN = 0.95  # share of the rows with a value of their own
_WRONG, _BESIDE = 0.005, 0.05  # rows that a column alone tells wrongly at most, of all and of a constant answer's
_ALIKE = 0.9999  # a correlation with a number
_ID_NAME = re.compile(r"(^|[^a-z])(id|uuid|guid|key|index|idx|nr|no)$", re.IGNORECASE)


def few_rows(
    one: Wanted, labels: Sequence[str], classes: Sequence[str], counts: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Groups of a constraint with very few training rows; ``counts`` has the rows of a part by group and class."""
    for label, each in zip(labels, counts["train"], strict=True):
        for kind in kinds_of(one.kind, len(classes)):
            rows = int(each.sum() if kind is None else each[kind])
            if rows < FEWEST:
                which = "" if kind is None else f" and class {classes[kind]!r}"
                yield (
                    f"{one.name}: group {label!r}{which} has {rows} training row{'' if rows == 1 else 's'}, too few to "
                    "tell its rate; put it together with another group, or bring more rows"
                )


def identifiers(table: Table, names: Sequence[str]) -> Iterator[str]:
    """Columns with another value in nearly every row, which tell nothing of new rows."""
    for name in names:
        if _is_identifier(name, table[name]):
            yield (
                f"{name!r} has another value in nearly every row, as an identifier has, and tells nothing of new rows; "
                f"add --drop {name!r}"
            )


def _is_identifier(name: str, values: np.ndarray) -> bool:
    if values.dtype.kind == "M" or len(values) < _ENOUGH:
        return False
    if values.dtype.kind != "f":
        told = [text for text in as_text(values) if text is not None]
        return len(told) >= _ENOUGH and len(set(told)) >= _OWN * len(told)
    known = values[np.isfinite(values)]
    if len(known) < _ENOUGH or (known != np.round(known)).any() or len(np.unique(known)) < len(known):
        return False
    return bool(np.ptp(known) < 2 * len(known) or _ID_NAME.search(name))  # counted through, or called so


def leaks(table: Table, names: Sequence[str], target: str, labels: np.ndarray | None) -> Iterator[str]:
    """Columns that tell the target nearly by themselves; ``labels`` are its classes from 0, None of a number."""
    for name in names:
        values = table[name]
        if len(values) < _ENOUGH or values.dtype.kind == "M":
            continue
        if labels is not None:
            share = _told(values, labels.astype(int))
            told = None if share is None else f"{share:.1%} of the rows"
        else:
            told = f"a correlation of {_ALIKE:g} or more" if _copies(values, table[target]) else None
        if told is not None:
            yield (
                f"{name!r} alone tells {target!r} ({told}); if it is known only after the target is, "
                f"add --drop {name!r}"
            )


def _copies(values: np.ndarray, target: np.ndarray) -> bool:
    if values.dtype.kind != "f":
        return False
    both = np.isfinite(values) & np.isfinite(target)
    if both.sum() < _ENOUGH or np.ptp(values[both]) == 0 or np.ptp(target[both]) == 0:
        return False
    return bool(abs(np.corrcoef(values[both], target[both])[0, 1]) >= _ALIKE)


def _told(values: np.ndarray, y: np.ndarray) -> float | None:
    """The share of the rows whose class follows from the column alone, where that is next to all of them."""
    total = np.bincount(y)
    wrong = min((each for each in _wrong(values, y)), default=len(y))
    near = wrong <= _WRONG * len(y) and wrong <= _BESIDE * (len(y) - total.max())
    return 1 - wrong / len(y) if near else None


def _wrong(values: np.ndarray, y: np.ndarray) -> Iterator[int]:
    """Rows that are told wrongly: by each value's most frequent class, by whether there is a value, by a threshold."""
    if values.dtype.kind == "f":
        known = np.isfinite(values)
        yield _by_value(known, y)
        kinds, codes = np.unique(values, return_inverse=True)
        if known.all() and y.max() == 1:
            yield _by_threshold(values, y)
    else:
        kinds, codes = np.unique([text or "" for text in as_text(values)], return_inverse=True)
    if len(kinds) <= len(y) / 10:  # with hardly more rows than values, every column would tell
        yield _by_value(codes, y)


def _by_value(codes: np.ndarray, y: np.ndarray) -> int:
    counts = np.zeros((int(codes.max()) + 1, int(y.max()) + 1), int)
    np.add.at(counts, (codes.astype(int), y), 1)
    return len(y) - int(counts.max(axis=1).sum())


def _by_threshold(values: np.ndarray, y: np.ndarray) -> int:
    """Of two classes: one at or under some value and the other above it."""
    order = np.argsort(values, kind="stable")
    ends = np.flatnonzero(np.diff(values[order], append=np.inf))  # a threshold is between two different values
    under = np.cumsum(2 * y[order] - 1)[ends]  # ones less zeros up to there
    balance = int(2 * y.sum() - len(y))
    ones_above = (len(y) - (balance - 2 * under)) // 2
    return int(min(ones_above.min(), (len(y) - ones_above).min(), y.sum(), len(y) - y.sum()))
