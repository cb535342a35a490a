"""A table as clients who are there by nature: features, labels, groups, and three parts of each client's rows."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedsgm.benchmark.cases import Data
from fedsgm.data.clients import Clients, rows_of_each
from fedsgm.data.table import Encoder, Table, as_text, numbered

_EVERY, _TEST, _VALIDATION = 5, 4, 2  # of each five rows of a client, in an order by labels: which are held out
_RARE = 0.01
_CONSTANT = 1e-3  # a number that moves by less, beside its spread in all rows, is taken as it is


class Features(NamedTuple):
    """All rows of a table: one-hot categories, numbers as they are, the label, the group and the client."""

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray
    owner: np.ndarray


def features(
    table: Table,
    *,
    target: str,
    positive: str,
    group: str | None,
    owner: np.ndarray,
    drop: tuple[str, ...] = (),
    rare: float = _RARE,
) -> Features:
    """Of a table without rows whose target is unknown; ``owner`` has the client of each, as a text.

    ``drop`` are names of columns that are no features, in which ``*`` stands for anything. Categories that a smaller
    share of the rows has than ``rare`` are one.
    """
    names = [name for name in table if not any(fnmatch.fnmatchcase(name, each) for each in (target, *drop))]
    common = {name: _without_rare(table[name], rare) for name in names}
    kept = {name: values for name, values in common.items() if values is not None}
    x = Encoder.of(kept, kept).encode(kept)
    y = (as_text(table[target]) == positive).astype(np.float32)
    codes = numbered(as_text(table[group]))[0] if group else np.zeros(len(y), np.int32)
    return Features(x, y, codes, numbered(owner)[0])


def _without_rare(values: np.ndarray, rare: float) -> np.ndarray | None:
    """With one category for all that few rows have; None if 99 of 100 rows have the same value."""
    texts = np.array(["" if text is None else text for text in as_text(values)], str)
    _, place, counts = np.unique(texts, return_inverse=True, return_counts=True)
    if counts.max() >= (1 - _RARE) * len(values):
        return None
    if values.dtype != object:
        return values
    return np.where((counts < rare * len(values))[place] & (texts != ""), "other", values)


def split(found: Features, number: int, init: Callable[[int, int], Any]) -> Data:
    """Three parts of each client's rows, 3 : 1 : 1, with its mix of labels and groups; as many rows in every split.

    Numbers are standardised by the training rows. ``init`` gives parameters of so many features and a seed.
    """
    rng = np.random.default_rng([number, 0x62656E63])
    part = np.empty(len(found.y), np.int8)
    for rows in rows_of_each(found.owner):
        mixed = rng.permutation(rows)
        mixed = mixed[np.lexsort((found.group[mixed], found.y[mixed]))]
        part[mixed] = np.arange(len(rows)) % _EVERY
    train, tests = ~np.isin(part, (_TEST, _VALIDATION)), {"validation": part == _VALIDATION, "test": part == _TEST}
    numbers = ((found.x != 0) & (found.x != 1)).any(axis=0)
    mean = np.where(numbers, found.x[train].mean(axis=0), 0)
    spread = found.x[train].std(axis=0)
    scale = np.where(numbers & (spread > _CONSTANT), spread, 1)
    examples = {"x": ((found.x - mean) / scale).astype(np.float32), "y": found.y, "group": found.group}
    kept = np.flatnonzero(train)
    parts = [kept[rows] for rows in rows_of_each(found.owner[kept])]
    held = {name: {key: array[which] for key, array in examples.items()} for name, which in tests.items()}
    start = init(found.x.shape[1], number)
    return Data(Clients.dealt(examples, parts), held["validation"], held["test"], start)
