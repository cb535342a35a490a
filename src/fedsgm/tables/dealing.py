"""A table made ready for training: who has which rows, what is held out, which columns are features."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.data import Clients
from fedsgm.data.table import MOST_CATEGORIES, Encoder, Table, as_text, column, numbered
from fedsgm.tables.grammar import OF_GROUPS, Wanted
from fedsgm.tables.groups import crossed


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """Who has which examples, and what was noticed on the way."""

    encoder: Encoder
    classes: tuple[str, str]
    groups: dict[str, tuple[str, ...]]
    clients: Clients
    test: dict[str, np.ndarray] | None
    notes: tuple[str, ...]
    weighted: bool = False


def prepare(
    table: Table,
    *,
    target: str,
    wanted: Sequence[Wanted] = (),
    client_by: str | None = None,
    clients: int = 10,
    drop: Sequence[str] = (),
    positive: str | None = None,
    weight: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Prepared:
    """Deal a table out to clients, hold a part of it out, and learn the features from the rest.

    A client is a value of the column ``client_by``, or else one of ``clients`` equal random shares. The held-out part
    has the same mix of classes and groups, and no client's only row. Neither the target nor the columns of the clients
    and the weights are features.
    """
    if not 0 <= test_fraction < 1:
        raise SettingError(f"the held-out fraction is {test_fraction:g}, but it must be from 0 to below 1")
    check_count("fit", "seed", seed, least=0)
    names = [one.name for one in wanted]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"constraint {name}: it is given twice; keep the one with the bound that is meant")
    notes: list[str] = []
    table = _counted(table, target, weight, notes)
    labels = as_text(table[target])
    classes = _classes(labels, target, positive)
    y = (labels == classes[1]).astype(np.float32)
    given = {} if weight is None else {"weight": table[weight].astype(np.float32)}
    groups, codes = _groups(table, wanted, ("x", "y", *given), notes)
    for name in drop:
        column(table, name, "drop")
    rng = np.random.default_rng(seed)
    owner = _owners(table, client_by, clients, rng, notes)
    held = _held_out(np.stack([y, *codes.values()], axis=1), owner, test_fraction, rng)
    for one in wanted:
        if one.column in groups:
            _check_groups(one, codes[one.column], groups[one.column], y, classes, held)
    names = [name for name in table if name not in {target, client_by, weight, *drop}]
    encoder = Encoder.of({name: table[name][~held] for name in names}, names)
    notes += _noticed(encoder, table)
    examples = {"x": encoder.encode(table), "y": y, **given, **codes}
    parts = [np.flatnonzero(~held & (owner == j)) for j in range(owner.max() + 1)]
    alone = sum(len(rows) == 1 for rows in parts)
    if alone:
        notes.append(f"{alone} of {len(parts)} clients {'has' if alone == 1 else 'have'} one training row only")
    dealt = Clients.from_list([{name: array[rows] for name, array in examples.items()} for rows in parts])
    test = {name: array[held] for name, array in examples.items()} if held.any() else None
    return Prepared(encoder, classes, groups, dealt, test, tuple(notes), weight is not None)


def _counted(table: Table, target: str, weight: str | None, notes: list[str]) -> Table:
    """The rows that count: those with a value of the target, and a weight above 0."""
    known = np.array([label is not None for label in as_text(column(table, target, "target"))])
    if not known.all():
        notes.append(f"{_rows(~known)} without a value of the target {target!r} left out")
        if not known.any():
            raise SettingError(f"target: the column {target!r} has no value in any row")
    if weight is not None:
        weights = column(table, weight, "weight")
        if weight == target:
            raise SettingError(f"weight: {weight!r} is the target, and cannot be the weight of its rows, too")
        wrong = np.array([weights.dtype.kind != "f" or not 0 <= value < np.inf for value in weights])
        if wrong.any():
            row = int(np.argmax(wrong))
            told = as_text(weights[row : row + 1])[0] or "no finite value"
            raise SettingError(f"weight: row {row + 1} of {weight!r} has {told}, but a weight is a number, 0 or more")
        nothing = weights == 0
        if nothing.all():
            raise SettingError(f"weight: the column {weight!r} is 0 in every row, so that nothing counts")
        if nothing.any():
            notes.append(f"{_rows(nothing)} of weight 0 left out")
        known = known & ~nothing
    return {name: values[known] for name, values in table.items()}


def _groups(
    table: Table, wanted: Sequence[Wanted], taken: Sequence[str], notes: list[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, np.ndarray]]:
    """The labels of every column that a constraint compares groups of, and each row's group as a number."""
    groups, codes = {}, {}
    for name, each in {w.column: w.columns for w in wanted if w.kind in OF_GROUPS and w.column is not None}.items():
        if name in taken:
            told = " and ".join((", ".join(taken[:-1]), taken[-1]))
            raise SettingError(f"constraint on the column {name!r}: rename the column, {told} have another meaning")
        codes[name], groups[name] = crossed(*(as_text(column(table, p, f"constraint on {p!r}")) for p in each))
        if (codes[name] < 0).any():
            notes.append(f"{_rows(codes[name] < 0)} without a value of {name!r}: no group counts them")
    return groups, codes


def _owners(
    table: Table, client_by: str | None, clients: int, rng: np.random.Generator, notes: list[str]
) -> np.ndarray:
    """Whose each row is, from 0."""
    rows = len(next(iter(table.values())))
    if client_by is None:
        check_count("fit", "clients", clients)
        if clients > rows:
            raise SettingError(f"clients: {clients} are asked for, but the table has {rows} rows")
        return rng.permutation(np.arange(rows) % clients)
    owner, _ = numbered(as_text(column(table, client_by, "client-by")))
    if (owner < 0).any():
        notes.append(f"{_rows(owner < 0)} without a value of {client_by!r} form a client of their own")
    return owner - min(owner.min(), 0)


def _noticed(encoder: Encoder, table: Table) -> list[str]:
    """What became of columns, where that may not be what one thinks."""
    notes = [f"{name!r} has dates; each is its number of days since 1970-01-01" for name in encoder.dates]
    for one in encoder.columns:
        infinite = np.isinf(table[one.name]) if table[one.name].dtype.kind == "f" else np.zeros(1, bool)
        if infinite.any():
            notes.append(f"{_rows(infinite)} with an infinite value of {one.name!r}, which is taken for missing")
    for name in encoder.shortened:
        notes.append(f"{name!r} has many values; the {MOST_CATEGORIES} most frequent are categories")
    if encoder.constant:
        notes.append(f"constant, so not a feature: {', '.join(map(repr, encoder.constant))}")
    return notes


def _order(label: str) -> tuple[float, str]:
    """Numbers by size, then texts by letters."""
    try:
        return float(label), label
    except ValueError:
        return np.inf, label


def _classes(labels: np.ndarray, target: str, positive: str | None) -> tuple[str, str]:
    kinds = sorted(set(labels), key=_order)
    if len(kinds) != 2:
        told = ", ".join(map(repr, kinds[:5])) + (", ..." if len(kinds) > 5 else "")
        count = "1 value" if len(kinds) == 1 else f"{len(kinds)} values"
        raise SettingError(f"target: {target!r} has {count} ({told}), but it must have two classes")
    if positive is None:
        return kinds[0], kinds[1]
    if positive not in kinds:
        raise SettingError(
            f"positive: {positive!r} is no value of {target!r}, which has {' and '.join(map(repr, kinds))}"
        )
    return (kinds[1 - kinds.index(positive)], positive)


def _held_out(strata: np.ndarray, owner: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """The rows to hold out: the fraction of each stratum, at least one where there are two, no client's last."""
    held = np.zeros(len(owner), bool)
    if fraction == 0:
        return held
    left = np.bincount(owner)
    order = rng.permutation(len(owner))
    _, stratum = np.unique(strata[order], axis=0, return_inverse=True)
    for s in range(stratum.max() + 1):
        rows = order[stratum.ravel() == s]
        wanted = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        for row in rows:
            if wanted == 0:
                break
            if left[owner[row]] > 1:
                held[row], wanted = True, wanted - 1
                left[owner[row]] -= 1
    return held


def _check_groups(
    one: Wanted,
    codes: np.ndarray,
    labels: Sequence[str],
    y: np.ndarray,
    classes: Sequence[str],
    held: np.ndarray,
) -> None:
    """Each group that a constraint compares has rows to train on and, where some are held out, rows to judge it by."""
    counted = {"equal_opportunity": (1,), "equalized_odds": (0, 1)}.get(one.kind, (None,))
    parts = {"to train on": ~held} | ({"to hold out": held} if held.any() else {})
    for part, rows in parts.items():
        for code, label in enumerate(labels):
            for kind in counted:
                if not (rows & (codes == code) & (True if kind is None else y == kind)).any():
                    which = "" if kind is None else f" and class {classes[kind]!r}"
                    also = ", or hold nothing out" if part == "to hold out" else ""
                    raise SettingError(
                        f"constraint {one.name}: there is no row of group {label!r}{which} {part}; "
                        f"put the group together with another or leave its rows out{also}"
                    )


def _rows(which: np.ndarray) -> str:
    return "1 row" if which.sum() == 1 else f"{which.sum()} rows"
