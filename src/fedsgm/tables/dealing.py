"""A table made ready for training: who has which rows, what is held out, which columns are features."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import LARGEST_SEED, check_count
from fedsgm.data import Clients
from fedsgm.data.clients import check_finite, rows_of_each
from fedsgm.data.table import MOST_CATEGORIES, Encoder, Table, as_text, column, numbered
from fedsgm.tables import cautions, reachable
from fedsgm.tables.grammar import OF_GROUPS, Wanted
from fedsgm.tables.groups import crossed
from fedsgm.tables.holding import check_groups, held_out_of_each
from fedsgm.tables.targets import Target, find_target, taken_for


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """Who has which examples, and what was noticed on the way."""

    encoder: Encoder
    target: Target
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
    task: str | None = None,
    positive: str | None = None,
    weight: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Prepared:
    """Deal a table out to clients, hold a part of it out, and learn the features from the rest.

    A client is a value of the column ``client_by``, or else one of ``clients`` equal random shares. The held-out part
    has each client's mix of classes and groups, and no client's only row. Neither the target nor the columns of the
    clients and the weights are features. ``task`` says what the target is, ``"classes"`` or ``"number"``, where that is
    not to be found out.
    """
    check_settings(wanted, test_fraction, seed, weight)
    notes: list[str] = []
    table = counted(table, target, weight, notes)
    values = table[target]
    aim = find_target(target, values, task, positive)
    notes += taken_for(aim, values.dtype.kind == "f") if task is None else []
    given = {} if weight is None else {"weight": table[weight].astype(np.float32)}
    groups, codes = _groups(table, wanted, notes)
    for name in drop:
        column(table, name, "drop")
    rng = np.random.default_rng(seed)
    owner = _owners(table, client_by, clients, rng, notes)
    held = held_out_of_each(strata(table, target if aim.classes else None, wanted), owner, test_fraction, seed=seed)
    mix = aim.labels(values) if aim.classes else np.zeros(len(owner), np.float32)
    for one in wanted:
        if one.column in groups:
            counts = _by_group(codes[one.column], mix, held)
            check_groups(one, groups[one.column], aim.classes, counts)
            notes += cautions.few_rows(one, groups[one.column], aim.classes, counts)
    aim = aim.standardised(values[~held], given["weight"][~held] if given else None)
    names = [name for name in table if name not in {target, client_by, weight, *drop}]
    encoder = Encoder.of({name: table[name][~held] for name in names}, names)
    infinite = {c.name: np.isinf(table[c.name]) for c in encoder.columns if table[c.name].dtype.kind == "f"}
    notes += noticed(encoder, {name: rows for name, rows in infinite.items() if rows.any()}, encoder.shortened)
    train = {name: array[~held] for name, array in table.items()}
    notes += cautions.identifiers(train, names)
    notes += cautions.leaks(train, names, target, mix[~held] if aim.classes else None)
    if len(aim.classes) == 2:
        notes += reachable.excluded(wanted, {name: c[~held] for name, c in codes.items()}, mix[~held], aim.classes[1])
    examples = {"x": encoder.encode(table), "y": aim.labels(values), **given, **codes}
    kept = np.flatnonzero(~held)
    parts = [kept[rows] for rows in rows_of_each(owner[kept])]
    alone = sum(len(rows) == 1 for rows in parts)
    if alone:
        notes.append(f"{alone} of {len(parts)} clients {'has' if alone == 1 else 'have'} one training row only")
    check_finite(examples, "the table")
    dealt = Clients.dealt(examples, parts)
    test = {name: array[held] for name, array in examples.items()} if held.any() else None
    return Prepared(encoder, aim, groups, dealt, test, tuple(notes), weight is not None)


def check_settings(wanted: Sequence[Wanted], test_fraction: float, seed: int, weight: str | None) -> None:
    """Refuse what no table can be prepared with."""
    if not 0 <= test_fraction < 1:
        raise SettingError(f"the held-out fraction is {test_fraction:g}, but it must be from 0 to below 1")
    check_count("fit", "seed", seed, least=0, most=LARGEST_SEED)
    names = [one.name for one in wanted]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"constraint {name}: it is given twice; keep the one with the bound that is meant")
    taken = ["x", "y"] + ([] if weight is None else ["weight"])
    for name in grouped(wanted):
        if name in taken:
            told = " and ".join((", ".join(taken[:-1]), taken[-1]))
            raise SettingError(f"constraint on the column {name!r}: rename the column, {told} have another meaning")


def grouped(wanted: Sequence[Wanted]) -> dict[str, tuple[str, ...]]:
    """The columns of each grouping that a constraint compares, by its name."""
    return {one.column: one.columns for one in wanted if one.kind in OF_GROUPS and one.column is not None}


def counted(table: Table, target: str, weight: str | None, notes: list[str]) -> Table:
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
    table: Table, wanted: Sequence[Wanted], notes: list[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, np.ndarray]]:
    """The labels of every column that a constraint compares groups of, and each row's group as a number."""
    groups, codes = {}, {}
    for name, each in grouped(wanted).items():
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


def noticed(encoder: Encoder, infinite: Mapping[str, np.ndarray], shortened: Iterable[str]) -> list[str]:
    """What became of columns, where that may not be what one thinks."""
    notes = [f"{name!r} has dates; each is its number of days since 1970-01-01" for name in encoder.dates]
    for name, which in infinite.items():
        notes.append(f"{_rows(which)} with an infinite value of {name!r}, which is taken for missing")
    for name in shortened:
        notes.append(f"{name!r} has many values; the {MOST_CATEGORIES} most frequent are categories")
    if encoder.constant:
        notes.append(f"constant, so not a feature: {', '.join(map(repr, encoder.constant))}")
    return notes


def strata(table: Table, target: str | None, wanted: Sequence[Wanted]) -> list[np.ndarray]:
    """The columns of labels whose mix the held-out rows share: the target, if it has classes, and the groups'.

    Of a number without groups, a column that is the same in every row.
    """
    names = [*([] if target is None else [target]), *(name for columns in grouped(wanted).values() for name in columns)]
    return [as_text(table[name]) for name in dict.fromkeys(names)] or [np.full(len(next(iter(table.values()))), None)]


def _by_group(codes: np.ndarray, y: np.ndarray, held: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of each part by group and class."""
    parts = {"train": ~held} | ({"test": held} if held.any() else {})
    known = codes >= 0
    counts = {part: np.zeros((codes.max() + 1, int(y.max()) + 1), int) for part in parts}
    for part, rows in parts.items():
        np.add.at(counts[part], (codes[rows & known], y[rows & known].astype(int)), 1)
    return counts


def _rows(which: np.ndarray) -> str:
    return "1 row" if which.sum() == 1 else f"{which.sum()} rows"
