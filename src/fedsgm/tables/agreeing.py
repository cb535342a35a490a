"""What the sites' descriptions come to: one encoding of all their tables, the classes, the groups."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.data.summary import TEXT, Summary, merge
from fedsgm.data.table import MOST_CATEGORIES, Encoder
from fedsgm.tables.dealing import noticed
from fedsgm.tables.describing import CLASSES, MOST_LABELS, NUMBER, UNSURE, Description, Question
from fedsgm.tables.holding import PARTS, check_groups
from fedsgm.tables.targets import Target, classes, number, taken_for


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What every site encodes its rows by, and what was noticed on the way."""

    encoder: Encoder
    target: Target
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
        return cls(
            Encoder.from_json(told["encoder"]),
            Target.from_json(told["target"]),
            {name: tuple(map(tuple, each)) for name, each in told["mixes"].items()},
            told["weighted"],
            tuple(told["notes"]),
        )


def agree(question: Question, sites: Mapping[str, Description]) -> Agreed:
    """Merge the sites' descriptions, by name; an error names the site that it is about."""
    each = list(sites.values())
    target = _target(question, sites)
    mixes = {name: sorted({mix for site in each for mix in site.groups[name].rows}) for name in question.groups}
    agreed = Agreed(Encoder(()), target, {n: tuple(m) for n, m in mixes.items()}, question.weight is not None, ())
    for one in question.wanted:
        if one.column in mixes:
            counts = {part: _by_group(part, one.column, agreed, sites, question) for part in _parts(sites)}
            check_groups(one, agreed.groups[one.column], target.classes, counts)
    columns = _columns(question, sites)
    encoder = Encoder.summed(columns)
    notes = _notes(question, sites, columns, encoder, target)
    return dataclasses.replace(agreed, encoder=encoder, notes=tuple(notes))


def _target(question: Question, sites: Mapping[str, Description]) -> Target:
    """What all sites take the target for; of a number with its mean and standard deviation, of the sites' sums."""
    name, kinds = question.target, {site.target.kind: at for at, site in sites.items()}
    counts: collections.Counter[str] = collections.Counter()
    for site in sites.values():
        counts.update(site.classes)
    many = question.task is None and _numeric(sites) and len(counts) > MOST_LABELS
    if len(kinds) > 1 or UNSURE in kinds or many:
        told = " and ".join(f"{kind} at {at}" for kind, at in kinds.items())
        raise SettingError(
            f"target: what {name!r} is cannot be found out from what sites may tell of it ({told}); "
            f"add --task {CLASSES} or --task {NUMBER}"
        )
    if CLASSES in kinds:
        return classes(name, counts, question.positive, _numeric(sites))
    aims = [site.target for site in sites.values() if site.target.weight]
    if not aims:
        raise SettingError(f"target: no site has {question.least} rows to tell the mean of {name!r} of; lower --least")
    weights, means = (np.array([getattr(aim, field) for aim in aims]) for field in ("weight", "mean"))
    mean = np.average(means, weights=weights)
    squares = sum(aim.squares for aim in aims) + (weights * (means - mean) ** 2).sum()
    scale = float(np.sqrt(squares / weights.sum())) or 1.0
    return dataclasses.replace(number(name, question.positive), mean=float(mean), scale=scale)


def _numeric(sites: Mapping[str, Description]) -> bool:
    return all(site.target.numeric for site in sites.values())


def _parts(sites: Mapping[str, Description]) -> list[str]:
    """The parts that have a row."""
    return [part for part in PARTS if any(site.rows[part] for site in sites.values())]


def _by_group(part: str, name: str, agreed: Agreed, sites: Mapping[str, Description], question: Question) -> np.ndarray:
    """The rows of a part by group, and by class where that is told."""
    known = agreed.target.classes
    counts = np.zeros((len(agreed.mixes[name]), len(known) or 1), int)
    for site in sites.values():
        places = [known.index(label) for label in site.classes] if known and name in question.by_class else [0]
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
    question: Question,
    sites: Mapping[str, Description],
    columns: Mapping[str, Summary],
    encoder: Encoder,
    target: Target,
) -> list[str]:
    each = list(sites.values())
    notes = []
    if rows := sum(site.unlabelled for site in each):
        notes.append(f"{_rows(rows)} without a value of the target {question.target!r} left out")
    if rows := sum(site.weightless for site in each):
        notes.append(f"{_rows(rows)} of weight 0 left out")
    notes += taken_for(target, _numeric(sites)) if question.task is None else []
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
    if rows := sum(site.rows["train"] for site in each if not (target.classes or site.target.weight)):
        notes.append(f"{_rows(rows)} of sites with too few values of {question.target!r}: not in its mean")
    alone = sum(site.rows["train"] == 1 for site in each)
    if alone:
        notes.append(f"{alone} of {len(each)} clients {'has' if alone == 1 else 'have'} one training row only")
    return notes


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
