"""Which rows are held out: each client's own choice, of its own rows, so that it is the same wherever they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.tables.grammar import Wanted

_HOLDING = 0x686F6C64  # keeps these draws apart from others of the same seed
PARTS = {"train": "to train on", "test": "to hold out"}
BY_CLASS = {"equal_opportunity": (1,), "equalized_odds": (0, 1)}
"""The kinds of constraints that compare the rows of single classes, and of which."""


def held_out(labels: Sequence[np.ndarray], fraction: float, *, seed: int, client: int) -> np.ndarray:
    """Whether each of one client's rows is held out; ``labels`` are columns of texts, None where missing.

    The rows are put in order by their labels, at random among those with the same ones, and each (1/fraction)-th is
    taken, from a random place on: every row has the same chance, every mix of labels gives its share, and a client of
    few rows gives no more of them than others do. One row is always left.
    """
    rng = np.random.default_rng([seed, client, _HOLDING])
    mixes = [[(label is not None, label) for label in row] for row in zip(*labels, strict=True)]
    shuffled = rng.permutation(len(mixes))
    steps = np.floor(fraction * np.arange(len(mixes) + 1) + rng.random())
    held = np.zeros(len(mixes), bool)
    held[sorted(shuffled, key=mixes.__getitem__)] = np.diff(steps) > 0
    if held.all():
        held[shuffled[0]] = False
    return held


def held_out_of_each(labels: Sequence[np.ndarray], owner: np.ndarray, fraction: float, *, seed: int) -> np.ndarray:
    """The same for the rows of all clients, whose numbers ``owner`` has."""
    held = np.zeros(len(owner), bool)
    ends = np.cumsum(np.bincount(owner))
    for client, rows in enumerate(np.split(np.argsort(owner, kind="stable"), ends[:-1])):
        held[rows] = held_out([column[rows] for column in labels], fraction, seed=seed, client=client)
    return held


def kinds_of(kind: str, classes: int) -> Sequence[int | None]:
    """The classes that a constraint compares the rows of; of more than two, all; None is all rows together."""
    if kind not in BY_CLASS:
        return (None,)
    return BY_CLASS[kind] if classes == 2 else range(classes)


def check_groups(one: Wanted, labels: Sequence[str], classes: Sequence[str], counts: Mapping[str, np.ndarray]) -> None:
    """Each group that a constraint compares has rows to train on and, where some are held out, rows to judge it by.

    ``counts`` has the rows of each part by group and class.
    """
    for part, rows in counts.items():
        for label, each in zip(labels, rows, strict=True):
            for kind in kinds_of(one.kind, len(classes)):
                if not (each.sum() if kind is None else each[kind]):
                    which = "" if kind is None else f" and class {classes[kind]!r}"
                    also = ", or hold nothing out" if part == "test" else ""
                    raise SettingError(
                        f"constraint {one.name}: there is no row of group {label!r}{which} {PARTS[part]}; "
                        f"put the group together with another or leave its rows out{also}"
                    )
