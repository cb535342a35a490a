"""A table of one's own: read from CSV or Parquet, and turned into features.

An :class:`Encoder` learns from the training rows how each column becomes numbers, and is kept beside the model as
JSON, so that new rows are treated alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsgm.base.errors import SettingError

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
_SPELLINGS = [*MISSING, *(f" {text}" for text in MISSING)]  # fields may be separated by a comma and a space
MOST_CATEGORIES = 64

Table = dict[str, np.ndarray]
"""Columns by name: numbers as float64 with NaN for what is missing, texts as objects with None."""


def read_table(path: str | Path, texts: Collection[str] = ()) -> Table:
    """The columns of a CSV file (separated by comma, semicolon or tab, the first line names them) or a Parquet file.

    A column of CSV that has nothing but numbers is numbers, unless it is among the ``texts``: those a model knows as
    categories, where 01 is not 1.
    """
    path = Path(path)
    if not path.is_file():
        raise SettingError(f"{path}: {'a folder' if path.is_dir() else 'there is no such file'}; give a CSV or Parquet")
    return parse_table(path.read_bytes(), str(path), texts)


def parse_table(data: bytes, owner: str, texts: Collection[str] = ()) -> Table:
    """:func:`read_table` of a file's content; ``owner`` is who an error names."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pa.BufferReader(data)) if data[:4] == b"PAR1" else _parse_csv(data, texts)
        columns = [_values(column) for column in table.columns]
    except (pa.ArrowException, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise SettingError(f"{owner}: not a table in CSV (UTF-8) or Parquet: {first}") from None
    names = [name.strip() for name in table.column_names]
    for name in names:
        if not name or names.count(name) > 1:
            what = f"two columns are called {name!r}" if name else "a column has no name"
            raise SettingError(f"{owner}: {what}; give every column a name of its own")
    if not table.num_rows:
        raise SettingError(f"{owner}: the table has no rows")
    return dict(zip(names, columns, strict=True))


def column(table: Table, name: str, what: str) -> np.ndarray:
    """A column by name, or a sentence with the names that come nearest."""
    if name not in table:
        import difflib

        near = difflib.get_close_matches(name, table, n=3, cutoff=0.5) or list(table)[:20]
        raise SettingError(f"{what}: there is no column {name!r}; did you mean {', '.join(map(repr, near))}?")
    return table[name]


def as_text(values: np.ndarray) -> np.ndarray:
    """Values as texts, None where missing: for targets, groups and clients. A whole number has no point."""
    if values.dtype == object:
        return values
    texts = [None if np.isnan(v) else f"{int(v)}" if v == int(v) else repr(float(v)) for v in values]
    return np.array(texts, object)


def numbered(texts: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Groups as numbers, -1 where missing (no group counts it), and their labels in sorted order."""
    labels = sorted({text for text in texts if text is not None})
    places = {None: -1} | {label: i for i, label in enumerate(labels)}
    return np.array([places[text] for text in texts], np.int32), tuple(labels)


@dataclasses.dataclass(frozen=True)
class Column:
    """How one column becomes features: a number standardised, a category one-hot; what was missing has its own.

    ``categories`` of None marks a number, filled with the training rows' median where it is missing.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float = 0.0
    mean: float = 0.0
    scale: float = 1.0
    missing: bool = False
    shortened: bool = False  # whether it has more categories than are kept

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> Column:
        if values.dtype == object:
            present = [value for value in values if value is not None]
            kinds, counts = np.unique(np.array(present, dtype=str), return_counts=True)
            most = np.sort(np.argsort(-counts, kind="stable")[:MOST_CATEGORIES])
            some = len(present) < len(values)
            return cls(name, tuple(map(str, kinds[most])), missing=some, shortened=len(kinds) > len(most))
        gone = np.isnan(values)
        fill = 0.0 if gone.all() else float(np.median(values[~gone]))
        filled = np.where(gone, fill, values)
        some = bool(gone.any() and not gone.all())  # what is always missing is a constant
        return cls(name, None, fill, float(filled.mean()), float(filled.std()), some)

    @property
    def features(self) -> tuple[str, ...]:
        gone = (f"{self.name} is missing",) if self.missing else ()
        if self.categories is None:
            return ((self.name,) if self.scale > 1e-9 * (1 + abs(self.mean)) else ()) + gone
        named = tuple(f"{self.name} = {category}" for category in self.categories)
        return named + gone if len(named) + len(gone) > 1 else ()

    def encode(self, values: np.ndarray) -> np.ndarray:
        """[rows, features]; a category that training did not have is none of them."""
        if self.categories is None:
            values = _numbers(self.name, values)
            gone = np.isnan(values)
            number = (np.where(gone, self.fill, values) - self.mean) / (self.scale or 1.0)
            parts = {self.name: number, f"{self.name} is missing": gone}
        else:
            texts = as_text(values)
            parts = {f"{self.name} = {category}": texts == category for category in self.categories}
            parts[f"{self.name} is missing"] = np.array([text is None for text in texts])
        kept = [parts[feature] for feature in self.features]
        return np.stack(kept, axis=1).astype(np.float32) if kept else np.zeros((len(values), 0), np.float32)

    def unseen(self, values: np.ndarray) -> int:
        """How many rows have a value that training did not have."""
        if self.categories is None:
            return 0
        known = {*self.categories, None}
        return sum(text not in known for text in as_text(values))


@dataclasses.dataclass(frozen=True)
class Encoder:
    """How a table's columns become the features of a model."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, table: Table, names: Iterable[str]) -> Encoder:
        encoder = cls(tuple(Column.of(name, table[name]) for name in names))
        if not encoder.features:
            raise SettingError("no column is left to predict from: each is constant, dropped or has another use")
        return encoder

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def shortened(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.shortened)

    @property
    def constant(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if not column.features)

    def encode(self, table: Table) -> np.ndarray:
        """[rows, features], float32."""
        parts = [c.encode(column(table, c.name, "the model's features")) for c in self.columns if c.features]
        return np.concatenate(parts, axis=1)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of categories."""
        return tuple(column.name for column in self.columns if column.categories is not None)

    def unseen(self, table: Table) -> dict[str, int]:
        counts = {c.name: c.unseen(table[c.name]) for c in self.columns if c.features}
        return {name: count for name, count in counts.items() if count}

    def to_json(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> Encoder:
        def one(fields: dict[str, Any]) -> Column:
            categories = fields["categories"]
            return Column(**fields | {"categories": None if categories is None else tuple(categories)})

        return cls(tuple(map(one, columns)))


def _parse_csv(data: bytes, texts: Collection[str]) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    header = data.partition(b"\n")[0].decode("utf-8-sig")

    def read(types: dict[str, pa.DataType]) -> pa.Table:
        # One block: the type of a column is then inferred from all its rows.
        return csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(block_size=len(data) + 1),
            csv.ParseOptions(delimiter=max(",;\t", key=header.count), newlines_in_values=True),
            csv.ConvertOptions(null_values=_SPELLINGS, strings_can_be_null=True, column_types=types),
        )

    # What is no number stays as it is written: another file's rows may make another type of the same values.
    found = read({})
    kept = [field.name for field in found.schema if field.name.strip() in texts or not _is_number(field.type)]
    return read(dict.fromkeys(kept, pa.string())) if kept else found


def _values(column: pa.ChunkedArray) -> np.ndarray:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_number(column.type):
        numbers = np.array(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
        return np.where(np.isfinite(numbers), numbers, np.nan)
    return np.array([_text(text) for text in column.cast(pa.string()).to_pylist()], object)


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    return any(one(kind) for one in (types.is_integer, types.is_floating, types.is_decimal, types.is_null))


def _text(value: str | None) -> str | None:
    """A value without the spaces around it; truth values are alike however a program writes them."""
    text = "" if value is None else value.strip()
    return None if text in MISSING else text.lower() if text.lower() in ("true", "false") else text


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype != object:
        return values
    rows = [i for i, text in enumerate(values) if text is not None]
    if rows:
        raise SettingError(
            f"column {name!r}: a number in training, but row {rows[0] + 1} here has {values[rows[0]]!r}; "
            "correct or remove it"
        )
    return np.full(len(values), np.nan)
