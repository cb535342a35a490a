"""A table of one's own, turned into features.

An :class:`Encoder` learns from the training rows how each column becomes numbers, and is kept beside the model as
JSON, so that new rows are treated alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.data.reading import Table, numbers_of, parse_table, read_table
from fedsgm.data.summary import DATE, TEXT, Summary, days

__all__ = ["Column", "Encoder", "Table", "as_text", "column", "numbered", "parse_table", "read_table"]

MOST_CATEGORIES = 64


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
    if values.dtype.kind == "M":
        return np.array([None if np.isnat(v) else _moment(v) for v in values], object)
    texts = [None if not np.isfinite(v) else f"{int(v)}" if v == int(v) else repr(float(v)) for v in values]
    return np.array(texts, object)


def _moment(time: np.datetime64) -> str:
    """A date, and the time of day if it is not midnight."""
    day = time.astype("datetime64[D]")
    second = time.astype("datetime64[s]")
    return str(day if time == day else second if time == second else time).replace("T", " ")


def numbered(texts: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Groups as numbers, -1 where missing (no group counts it), and their labels in sorted order."""
    labels = sorted({text for text in texts if text is not None})
    places = {None: -1} | {label: i for i, label in enumerate(labels)}
    return np.array([places[text] for text in texts], np.int32), tuple(labels)


@dataclasses.dataclass(frozen=True)
class Column:
    """How one column becomes features: a number standardised, a category one-hot; what was missing has its own.

    ``categories`` of None marks a number, which is the mean of the training rows where it is missing or infinite. A
    date is the number of days since 1970-01-01.
    """

    name: str
    categories: tuple[str, ...] | None = None
    mean: float = 0.0
    scale: float = 1.0
    missing: bool = False
    shortened: bool = False  # whether there are more categories than are kept
    date: bool = False

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> Column:
        return cls.summed(name, Summary.of(values))

    @classmethod
    def summed(cls, name: str, rows: Summary) -> Column:
        """Of the training rows' sums."""
        some = rows.missing > 0
        if rows.kind == TEXT:
            most = sorted(rows.categories, key=lambda each: (-rows.categories[each], each))[:MOST_CATEGORIES]
            more = rows.untold > 0 or len(rows.categories) > len(most)
            return cls(name, tuple(sorted(most)), missing=some, shortened=more)
        scale = math.sqrt(rows.squares / max(rows.told + rows.missing, 1))
        if not math.isfinite(rows.mean) or not math.isfinite(scale):
            raise SettingError(f"column {name!r}: its numbers are too large to be standardised; divide them or drop it")
        # what is always missing is a constant
        return cls(name, None, rows.mean, scale, some and rows.present > 0, date=rows.kind == DATE)

    @property
    def features(self) -> tuple[str, ...]:
        gone = (f"{self.name} is missing",) if self.missing else ()
        if self.categories is None:
            return ((self.name,) if self.scale > 1e-9 * (1 + abs(self.mean)) else ()) + gone
        named = tuple(f"{self.name} = {category}" for category in self.categories)
        return named + gone if len(named) + len(gone) + self.shortened > 1 else ()

    def encode(self, values: np.ndarray) -> np.ndarray:
        """[rows, features]; a category that training did not have is none of them."""
        if self.categories is None:
            values = self._numbers(values)
            gone = ~np.isfinite(values)
            number = np.where(gone, 0.0, values - self.mean) / (self.scale or 1.0)
            parts = {self.name: number, f"{self.name} is missing": gone}
        else:
            texts = as_text(values)
            parts = {f"{self.name} = {category}": texts == category for category in self.categories}
            parts[f"{self.name} is missing"] = np.array([text is None for text in texts])
        kept = [parts[feature] for feature in self.features]
        return np.stack(kept, axis=1).astype(np.float32) if kept else np.zeros((len(values), 0), np.float32)

    def _numbers(self, values: np.ndarray) -> np.ndarray:
        """The values as numbers, which they must be as in training."""
        if values.dtype.kind == ("M" if self.date else "f"):
            return days(values) if self.date else values
        texts = as_text(values)
        found = numbers_of(texts) if values.dtype == object and not self.date else None
        if found is not None:
            return found
        for i, text in enumerate(texts):
            if text is not None and (self.date or values.dtype != object or numbers_of(texts[i : i + 1]) is None):
                raise SettingError(
                    f"column {self.name!r}: a {'date' if self.date else 'number'} in training, but row {i + 1} here "
                    f"has {text!r}; correct or remove it"
                )
        return np.full(len(values), np.nan)

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
        return cls.summed({name: Summary.of(table[name]) for name in names})

    @classmethod
    def summed(cls, columns: Mapping[str, Summary]) -> Encoder:
        """Of the training rows' sums."""
        encoder = cls(tuple(Column.summed(name, rows) for name, rows in columns.items()))
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

    @property
    def dates(self) -> tuple[str, ...]:
        """The columns of dates that are features."""
        return tuple(column.name for column in self.columns if column.date and column.features)

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
        """Read what :meth:`to_json` wrote; ValueError or TypeError if it is something else."""

        def one(fields: dict[str, Any]) -> Column:
            categories = fields["categories"]
            made = Column(**fields | {"categories": None if categories is None else tuple(categories)})
            if not all(isinstance(text, str) for text in (made.name, *(made.categories or ()))):
                raise TypeError("a column that is none")
            if not (math.isfinite(made.mean) and 0 <= made.scale < math.inf):
                raise ValueError("a mean or a scale that is none")
            return made

        return cls(tuple(map(one, columns)))
