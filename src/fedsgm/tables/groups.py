"""Groups of people by the values of one column or of several together."""

from __future__ import annotations

import numpy as np


def crossed(*columns: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """The groups that occur in columns of labels, None where missing: each row's number, and the groups' names.

    A row that lacks a value has the number -1, which no group counts.

    >>> sex, race = np.array(["f", "m", "f"], object), np.array(["a", "b", None], object)
    >>> crossed(sex, race)
    (array([ 0,  1, -1], dtype=int32), ('f * a', 'm * b'))
    """
    rows = [None if None in row else tuple(map(str, row)) for row in zip(*columns, strict=True)]
    groups = sorted({row for row in rows if row is not None})
    places = {None: -1} | {group: i for i, group in enumerate(groups)}
    return np.array([places[row] for row in rows], np.int32), tuple(map(" * ".join, groups))
