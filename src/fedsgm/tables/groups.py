"""Groups of people by the values of one column or of several together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mixes(*columns: np.ndarray) -> list[tuple[str, ...] | None]:
    """Each row's values of the columns; None where one is missing."""
    return [None if None in row else tuple(map(str, row)) for row in zip(*columns, strict=True)]


def numbers(rows: Sequence[tuple[str, ...] | None], groups: Sequence[tuple[str, ...]]) -> np.ndarray:
    """The number of each row's group; -1, which no group counts, for a row of none of them."""
    places = {group: i for i, group in enumerate(groups)}
    return np.array([-1 if row is None else places.get(row, -1) for row in rows], np.int32)


def crossed(*columns: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """The groups that occur in columns of labels, None where missing: each row's number, and the groups' names.

    A row that lacks a value has the number -1, which no group counts.

    >>> sex, race = np.array(["f", "m", "f"], object), np.array(["a", "b", None], object)
    >>> crossed(sex, race)
    (array([ 0,  1, -1], dtype=int32), ('f * a', 'm * b'))
    """
    rows = mixes(*columns)
    groups = sorted({row for row in rows if row is not None})
    return numbers(rows, groups), tuple(map(" * ".join, groups))
