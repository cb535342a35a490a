"""What some rows tell of a column in sums alone: sums of several parts of a table can be merged into those of all."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np

from fedsgm.base.errors import SettingError

NUMBER, DATE, TEXT = KINDS = ("number", "date", "text")
_DAY = np.timedelta64(1, "D")


@dataclasses.dataclass(frozen=True)
class Summary:
    """Of one column: how many rows have a value, and what these are like.

    Numbers have a mean and a sum of squared deviations from it, as have dates, which are days; texts have counts by
    category. ``untold`` rows have a value that is neither in the sums nor in the counts.
    """

    kind: str
    told: int = 0
    untold: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    categories: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, values: np.ndarray) -> Summary:
        """Of all rows' values, with nothing untold. What is infinite is missing."""
        if values.dtype == object:
            present = [value for value in values if value is not None]
            named = dict(sorted(collections.Counter(map(str, present)).items()))
            return cls(TEXT, len(present), missing=len(values) - len(present), categories=named)
        kind = DATE if values.dtype.kind == "M" else NUMBER
        numbers = days(values) if kind == DATE else values
        known = numbers[np.isfinite(numbers)]
        gone = len(values) - len(known)
        if not len(known):
            return cls(kind, missing=gone)
        with np.errstate(over="ignore"):  # a column that is too large is refused by name
            mean = known.mean()
            return cls(kind, len(known), missing=gone, mean=float(mean), squares=float(((known - mean) ** 2).sum()))

    @property
    def present(self) -> int:
        """Rows that have a value."""
        return self.told + self.untold

    def discreet(self, least: int, *, most: int, longest: int) -> Summary:
        """Without what could be about one row: numbers of fewer rows than ``least``, and rare categories.

        Of categories with as many rows the ``most`` frequent are told, none with more than ``longest`` characters.
        """
        if self.kind != TEXT:
            return self if self.told >= least else Summary(self.kind, untold=self.present, missing=self.missing)
        common = [name for name, count in self.categories.items() if count >= least and len(name) <= longest]
        kept = sorted(sorted(common, key=self.categories.__getitem__, reverse=True)[:most])
        told = {name: self.categories[name] for name in kept}
        count = sum(told.values())
        return dataclasses.replace(self, told=count, untold=self.present - count, categories=told)


def merge(parts: Iterable[Summary]) -> Summary:
    """The summary of all their rows; a part without a value goes with any kind."""
    return functools.reduce(_merged, parts)


def _merged(one: Summary, other: Summary) -> Summary:
    """By Chan, Golub and LeVeque's formula for the squares (*Updating formulae*, 1979), in float64."""
    if one.present and other.present and one.kind != other.kind:
        raise SettingError(f"{one.kind}s and {other.kind}s have no common summary")
    told = one.told + other.told
    apart, share = other.mean - one.mean, other.told / max(told, 1)
    names = sorted(one.categories.keys() | other.categories.keys())
    return Summary(
        one.kind if one.present else other.kind,
        told,
        one.untold + other.untold,
        one.missing + other.missing,
        one.mean + share * apart,
        one.squares + other.squares + apart * apart * one.told * share,
        {name: one.categories.get(name, 0) + other.categories.get(name, 0) for name in names},
    )


def days(times: np.ndarray) -> np.ndarray:
    """Days since 1970-01-01, with fractions, NaN where missing."""
    return np.where(np.isnat(times), np.nan, (times - np.datetime64(0, "us")) / _DAY)
