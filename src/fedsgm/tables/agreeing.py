"""What the sites' descriptions come to: one encoding of all their tables, the classes, the groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.data.summary import TEXT, Summary, merge
from fedsgm.data.table import MOST_CATEGORIES, Encoder
from fedsgm.tables.dealing import noticed
from fedsgm.tables.describing import Description, Question
from fedsgm.tables.holding import PARTS, check_groups
from fedsgm.tables.targets import two_classes


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What every site encodes its rows by, and what was noticed on the way."""

    encoder: Encoder
    classes: tuple[str, ...]
    mixes: Mapping[str, tuple[tuple[str, ...], ...]]
    weighted: bool
    notes: tuple[str, ...]

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The names of the groups of each grouping."""
        return {name: tuple(map(" * ".join, each)) for name, each in self.mixes.items()}

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"encoder": self.encoder.to_json()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Agreed:
        negative, positive = told["classes"]
        return cls(
            Encoder.from_json(told["encoder"]),
            (negative, positive),
            {name: tuple(map(tuple, each)) for name, each in told["mixes"].items()},
            told["weighted"],
            tuple(told["notes"]),
        )


def agree(question: Question, sites: Mapping[str, Description]) -> Agreed:
    """Merge the sites' descriptions, by name; an error names the site that it is about."""
    each = list(sites.values())
    labels = dict.fromkeys(label for site in each for label in site.classes)
    classes = two_classes(labels, question.target, question.positive)
    mixes = {name: sorted({mix for site in each for mix in site.groups[name].rows}) for name in question.groups}
    agreed = Agreed(Encoder(()), classes, {n: tuple(m) for n, m in mixes.items()}, question.weight is not None, ())
    for one in question.wanted:
        if one.column in mixes:
            counts = {part: _by_group(part, one.column, agreed, sites, question) for part in _parts(sites)}
            check_groups(one, agreed.groups[one.column], classes, counts)
    columns = _columns(question, sites)
    encoder = Encoder.summed(columns)
    return dataclasses.replace(agreed, encoder=encoder, notes=tuple(_notes(question, sites, columns, encoder)))


def _parts(sites: Mapping[str, Description]) -> list[str]:
    """The parts that have a row."""
    return [part for part in PARTS if any(site.rows[part] for site in sites.values())]


def _by_group(part: str, name: str, agreed: Agreed, sites: Mapping[str, Description], question: Question) -> np.ndarray:
    """The rows of a part by group, and by class where that is told."""
    counts = np.zeros((len(agreed.mixes[name]), len(agreed.classes)), int)
    for site in sites.values():
        places = [agreed.classes.index(label) for label in site.classes] if name in question.by_class else [0]
        for mix, rows in site.groups[name].rows.items():
            np.add.at(counts[agreed.mixes[name].index(mix)], places, rows[part])
    return counts


def _columns(question: Question, sites: Mapping[str, Description]) -> dict[str, Summary]:
    """The sums of each column over all sites, which must have the same columns of the same kinds."""
    for name in question.drop:
        if not any(name in site.dropped for site in sites.values()):
            raise SettingError(f"drop: no site has a column {name!r}; leave it out, or write it as the sites do")
    first, *_ = sites
    for name, site in sites.items():
        for one, other, columns in (
            (first, name, sites[first].columns.keys() - site.columns.keys()),
            (name, first, site.columns.keys() - sites[first].columns.keys()),
        ):
            if columns:
                raise SettingError(
                    f"{other} has no column {min(columns)!r}, but {one} has; add it, or drop it everywhere"
                )
    found = {}
    for name in sites[first].columns:
        kinds: dict[str, str] = {}
        for at, site in sites.items():
            if site.columns[name].present:
                kinds.setdefault(site.columns[name].kind, at)
        if len(kinds) > 1:
            told = " and ".join(f"{kind}s at {at}" for kind, at in kinds.items())
            raise SettingError(f"column {name!r}: it has {told}; write it alike everywhere, or drop it")
        found[name] = merge(site.columns[name] for site in sites.values())
    return found


def _notes(
    question: Question, sites: Mapping[str, Description], columns: Mapping[str, Summary], encoder: Encoder
) -> list[str]:
    each = list(sites.values())
    notes = []
    if rows := sum(site.unlabelled for site in each):
        notes.append(f"{_rows(rows)} without a value of the target {question.target!r} left out")
    if rows := sum(site.weightless for site in each):
        notes.append(f"{_rows(rows)} of weight 0 left out")
    for name in question.groups:
        if rows := sum(site.groups[name].ungrouped for site in each):
            notes.append(f"{_rows(rows)} without a value of {name!r}: no group counts them")
    notes += noticed(encoder, {}, [name for name, sums in columns.items() if len(sums.categories) > MOST_CATEGORIES])
    for name, sums in columns.items():
        if sums.untold and sums.kind == TEXT:
            what = f"a value of {name!r} that is rare at their site, so that it does not tell it"
            notes.append(f"{_rows(sums.untold)} with {what}: a category only if another site does")
        elif sums.untold:
            notes.append(f"{_rows(sums.untold)} of sites with too few values of {name!r}: not in its mean")
    alone = sum(site.rows["train"] == 1 for site in each)
    if alone:
        notes.append(f"{alone} of {len(each)} clients {'has' if alone == 1 else 'have'} one training row only")
    return notes


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
