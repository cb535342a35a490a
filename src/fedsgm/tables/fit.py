"""A constrained model of one's own table: what ``fedsgm fit`` trains and ``fedsgm predict`` applies."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.base.structs import check_count
from fedsgm.core.problem import Mean, Problem
from fedsgm.data import Clients
from fedsgm.data.table import MOST_CATEGORIES, Encoder, Table, as_text, column, numbered
from fedsgm.results.result import Result
from fedsgm.results.verdict import found
from fedsgm.tables.grammar import OF_GROUPS, Wanted, build
from fedsgm.tables.groups import crossed
from fedsgm.tables.models import MLP

_FILE, _PARAMS, _VERSION = "model.json", "params.safetensors", 2


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A table made ready for training: who has which examples, and what was noticed on the way."""

    encoder: Encoder
    classes: tuple[str, str]
    groups: dict[str, tuple[str, ...]]
    clients: Clients
    test: dict[str, np.ndarray] | None
    notes: tuple[str, ...]


def prepare(
    table: Table,
    *,
    target: str,
    wanted: Sequence[Wanted] = (),
    client_by: str | None = None,
    clients: int = 10,
    drop: Sequence[str] = (),
    positive: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Prepared:
    """Deal a table out to clients, hold a part of it out, and learn the features from the rest.

    A client is a value of the column ``client_by``, or else one of ``clients`` equal random shares. The held-out part
    has the same mix of classes and groups, and no client's only row. Neither target nor client column is a feature.
    """
    if not 0 <= test_fraction < 1:
        raise SettingError(f"the held-out fraction is {test_fraction:g}, but it must be from 0 to below 1")
    check_count("fit", "seed", seed, least=0)
    names = [one.name for one in wanted]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"constraint {name}: it is given twice; keep the one with the bound that is meant")
    notes = []
    labels = as_text(column(table, target, "target"))
    known = np.array([label is not None for label in labels])
    if not known.all():
        notes.append(f"{_rows(~known)} without a value of the target {target!r} left out")
        if not known.any():
            raise SettingError(f"target: the column {target!r} has no value in any row")
        table, labels = {name: values[known] for name, values in table.items()}, labels[known]
    classes = _classes(labels, target, positive)
    sensitive = {w.column: w.columns for w in wanted if w.kind in OF_GROUPS and w.column is not None}
    groups, codes = {}, {}
    for name, each in sensitive.items():
        if name in ("x", "y"):
            raise SettingError(f"constraint on the column {name!r}: rename the column, x and y have another meaning")
        codes[name], groups[name] = crossed(*(as_text(column(table, p, f"constraint on {p!r}")) for p in each))
        if (codes[name] < 0).any():
            notes.append(f"{_rows(codes[name] < 0)} without a value of {name!r}: no group counts them")
    for name in drop:
        column(table, name, "drop")
    names = [name for name in table if name not in {target, client_by, *drop}]

    y = (labels == classes[1]).astype(np.float32)
    rng = np.random.default_rng(seed)
    if client_by is None:
        check_count("fit", "clients", clients)
        if clients > len(y):
            raise SettingError(f"clients: {clients} are asked for, but the table has {len(y)} rows")
        owner = rng.permutation(np.arange(len(y)) % clients)
    else:
        owner, owners = numbered(as_text(column(table, client_by, "client-by")))
        if (owner < 0).any():
            notes.append(f"{_rows(owner < 0)} without a value of {client_by!r} form a client of their own")
        owner, clients = owner + (owner.min() < 0), len(owners) + bool((owner < 0).any())
    held = _held_out(np.stack([y, *codes.values()], axis=1), owner, test_fraction, rng)
    for one in wanted:
        if one.column in groups:
            _check_groups(one, codes[one.column], groups[one.column], y, classes, held)
    encoder = Encoder.of({name: table[name][~held] for name in names}, names)
    for name in encoder.shortened:
        notes.append(f"{name!r} has many values; the {MOST_CATEGORIES} most frequent are categories")
    if encoder.constant:
        told = ", ".join(map(repr, encoder.constant))
        notes.append(f"constant, so not a feature: {told}")
    examples = {"x": encoder.encode(table), "y": y, **codes}
    parts = [np.flatnonzero(~held & (owner == j)) for j in range(clients)]
    alone = sum(len(rows) == 1 for rows in parts)
    if alone:
        notes.append(f"{alone} of {clients} clients {'has' if alone == 1 else 'have'} one training row only")
    dealt = Clients.from_list([{name: array[rows] for name, array in examples.items()} for rows in parts])
    test = {name: array[held] for name, array in examples.items()} if held.any() else None
    return Prepared(encoder, classes, groups, dealt, test, tuple(notes))


def make_problem(model: MLP, wanted: Sequence[Wanted], prepared: Prepared, target: str) -> Problem:
    """Minimise the cross-entropy subject to the constraints that were said."""
    constraints = [build(one, model, groups=prepared.groups, target=target, classes=prepared.classes) for one in wanted]
    return Problem(objective=Mean(model.loss), constraints=constraints)


@dataclasses.dataclass(frozen=True, eq=False)
class TableModel:
    """A trained model of a table, with all it needs to predict for new rows."""

    encoder: Encoder
    model: MLP
    params: Any
    target: str
    classes: tuple[str, str]

    def scores(self, table: Table) -> np.ndarray:
        """The predicted probability of the positive class, row by row."""
        return self.scores_of(self.encoder.encode(table))

    def scores_of(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(jax.vmap(self.model.score, (None, 0))(self.params, {"x": x}))

    def save(self, folder: Path) -> None:
        """Write ``model.json`` beside a saved run, whose answer the model has."""
        document = {
            "version": _VERSION,
            "target": self.target,
            "classes": self.classes,
            "hidden": self.model.hidden,
            "columns": self.encoder.to_json(),
            "digest": hashlib.sha256((folder / _PARAMS).read_bytes()).hexdigest(),
        }
        write_atomically(folder / _FILE, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())

    @classmethod
    def load(cls, folder: str | Path) -> TableModel:
        """Read the model that ``fedsgm fit`` left in a run's folder."""
        folder = Path(folder)
        result = Result.load(folder)
        try:
            document = json.loads((folder / _FILE).read_bytes())
            if document["version"] != _VERSION:
                raise SettingError(f"{folder / _FILE} is not of a version that this fedsgm reads ({_VERSION})")
            if document["digest"] != hashlib.sha256((folder / _PARAMS).read_bytes()).hexdigest():
                raise SettingError(f"{folder / _FILE} belongs to another run than the one in {folder}; fit again")
            negative, positive = document["classes"]
            if not all(isinstance(text, str) for text in (document["target"], negative, positive)):
                raise TypeError("a name that is no text")
            return cls(
                Encoder.from_json(document["columns"]),
                MLP(tuple(document["hidden"])),
                result.answer,
                document["target"],
                (negative, positive),
            )
        except FileNotFoundError:
            raise SettingError(f"{folder} has no {_FILE}: give a folder that fedsgm fit wrote") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, SettingError):
                raise
            raise SettingError(f"{folder / _FILE} is damaged ({type(error).__name__}: {error}); fit again") from None


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


def describe(trained: TableModel, result: Result, prepared: Prepared) -> str:
    """What the model is, whether it is within the bounds, and how often it is right."""
    told = f"the answer ({found(result)})" if result.answer_round.all() else "UNDEFINED, as the run diverged"
    if result.bounds and result.answer_round.all():
        within = "within every bound" if result.feasible.all() else "OVER A BOUND"
        told = f"{within} on the training data; {told}"
    rows = prepared.clients.counts.sum()
    train = np.concatenate([prepared.clients[j]["x"] for j in range(len(prepared.clients))])
    truth = np.concatenate([prepared.clients[j]["y"] for j in range(len(prepared.clients))])
    told += f"; {_accuracy(trained, train, truth):.1%} of {rows} training rows right"
    if prepared.test is not None:
        share = _accuracy(trained, prepared.test["x"], prepared.test["y"])
        told += f", {share:.1%} of {len(prepared.test['y'])} held-out rows"
        (excess,) = result.excess("test", "answer")
        if result.bounds and not excess <= 0:
            told += f", where it is {f'OVER A BOUND by {excess:.2g}' if excess > 0 else 'undefined for a constraint'}"
    return f"{told} (positive is {trained.classes[1]!r})"


def _accuracy(trained: TableModel, x: np.ndarray, y: np.ndarray) -> float:
    return float(((trained.scores_of(x) > 0.5) == (y == 1)).mean())


def write_predictions(trained: TableModel, table: Table, path: Path | None) -> None:
    """The predicted class and the positive class's probability for each row, as CSV or Parquet; None is stdout."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    scores = trained.scores(table)
    decided = np.array(trained.classes, object)[np.int32(scores > 0.5)]
    answer = pa.table({trained.target: decided, f"probability of {trained.classes[1]}": scores})
    sink = pa.BufferOutputStream()
    if path is not None and path.suffix == ".parquet":
        pyarrow.parquet.write_table(answer, sink)
    elif path is None or path.suffix == ".csv":
        pyarrow.csv.write_csv(answer, sink)
    else:
        raise SettingError(f"--out {path}: its name must end in .csv or .parquet")
    data = sink.getvalue().to_pybytes()
    if path is None:
        print(data.decode(), end="")
    else:
        write_atomically(path, data)
