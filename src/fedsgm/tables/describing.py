"""What a site tells of its table before a federated fit: counts and sums, never a row."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.data.reading import Written, read_table
from fedsgm.data.summary import Summary
from fedsgm.data.table import Table, as_text, column
from fedsgm.tables.dealing import check_settings, counted, grouped, strata
from fedsgm.tables.grammar import Wanted, parse
from fedsgm.tables.groups import mixes
from fedsgm.tables.holding import BY_CLASS, PARTS, held_out
from fedsgm.tables.targets import TASKS

MOST_LABELS = 20  # classes or groups that a site names; a constraint compares no more
MOST_NAMED = 1000  # categories of a column that it names
LONGEST = 200  # characters of a name
CLASSES, NUMBER, UNSURE = KINDS = (*TASKS, "unsure")  # what a site takes its target for

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Question:
    """What every site is asked about its own table; it names a category that at least ``least`` rows there have."""

    target: str
    constraints: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    positive: str | None = None
    weight: str | None = None
    test_fraction: float = 0.2
    seed: int = 0
    least: int = 5
    task: str | None = None

    def __post_init__(self) -> None:
        check_settings(self.wanted, self.test_fraction, self.seed, self.weight)
        check_count("federate fit", "least", self.least)
        if self.weight == self.target:
            raise SettingError(f"weight: {self.weight!r} is the target, and cannot be the weight of its rows, too")

    @property
    def wanted(self) -> list[Wanted]:
        return [parse(text) for text in self.constraints]

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The columns of each grouping that a constraint compares, by its name."""
        return grouped(self.wanted)

    @property
    def needs(self) -> dict[str, str]:
        """The columns that every table must have, and what each is for."""
        parts = [part for columns in self.groups.values() for part in columns]
        weight = {} if self.weight is None else {self.weight: "weight"}
        return {part: f"constraint on {part!r}" for part in parts} | weight | {self.target: "target"}

    @property
    def by_class(self) -> set[str]:
        """The groupings whose rows are counted class by class, as a constraint needs it."""
        return {one.column for one in self.wanted if one.kind in BY_CLASS and one.column is not None}

    def held_out(self, table: Table, client: int) -> np.ndarray:
        """Which of its rows the client of this number holds out."""
        labels = None if self.kind(table) == NUMBER else self.target
        return held_out(strata(table, labels, self.wanted), self.test_fraction, seed=self.seed, client=client)

    def kind(self, table: Table) -> str:
        """What a site takes its target for; unsure where to name its values could be to name those of single rows."""
        values = table[self.target]
        if self.task is not None:
            return self.task
        if values.dtype.kind != "f" or np.isin(values, (0, 1)).all():
            return CLASSES
        counts = np.unique(values, return_counts=True)[1]
        if len(counts) > MOST_LABELS or (len(counts) > 2 and (values != np.round(values)).any()):
            return NUMBER
        return CLASSES if counts.min() >= self.least else UNSURE


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """A site's rows that count, and how many do not: without a value of the target, or of weight 0."""

    table: Table
    unlabelled: int
    weightless: int

    @classmethod
    def read(cls, path: str | Path, question: Question, written: Written) -> Site:
        """From its file. What is told of an error names neither the file nor anything in it."""
        with _kept_here("its table is not there" if not Path(path).exists() else "its table cannot be read"):
            table = read_table(path, written=written, used=lambda name: name not in question.drop)
        for name, what in question.needs.items():
            with _kept_here(f"{what}: its table has no column {name!r}"):
                column(table, name, what)
        weights = "" if question.weight is None else f", and {question.weight!r} must be numbers, 0 or more, not all 0"
        with _kept_here(f"its rows cannot be used: some must have a value of {question.target!r}{weights}"):
            return cls.of(table, question)

    @classmethod
    def of(cls, table: Table, question: Question) -> Site:
        """Of its columns, with errors for whoever may see them."""
        for name, what in question.needs.items():
            column(table, name, what)
        unlabelled = sum(label is None for label in as_text(table[question.target]))
        kept = counted(table, question.target, question.weight, [])
        weightless = 0 if question.weight is None else int((table[question.weight] == 0).sum())
        return cls(kept, unlabelled, weightless)


@contextlib.contextmanager
def _kept_here(told: str) -> Iterator[None]:
    """What may quote a row or a path goes into this machine's log; the server is told this instead."""
    try:
        yield
    except SettingError as error:
        log.error("%s", error)
        raise SettingError(f"{told}; its own log says more") from None


@dataclasses.dataclass(frozen=True)
class Grouping:
    """The rows of each group, by part and class or of all classes together; and the rows of none."""

    rows: Mapping[tuple[str, ...], Mapping[str, tuple[int, ...]]]
    ungrouped: int


@dataclasses.dataclass(frozen=True)
class Aim:
    """What a site takes its target for, and whether its values are numbers.

    Of a number also the weight of its training rows (how many they are, unless weighed), their mean and the sum of
    squared deviations from it; all 0 if they are too few to tell.
    """

    kind: str
    numeric: bool
    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, table: Table, question: Question, train: np.ndarray) -> Aim:
        values, kind = table[question.target], question.kind(table)
        numeric = values.dtype.kind == "f"
        if kind != NUMBER:
            return cls(kind, numeric)
        if not numeric:
            raise SettingError(f"task: {question.target!r} has values that are no numbers, so it is classes")
        if train.sum() < question.least:
            return cls(kind, numeric)
        weights = np.ones(len(values)) if question.weight is None else table[question.weight]
        mean = np.average(values[train], weights=weights[train])
        squares = (weights * (values - mean) ** 2)[train].sum()
        return cls(kind, numeric, float(weights[train].sum()), float(mean), float(squares))


@dataclasses.dataclass(frozen=True)
class Description:
    """All that a site tells of its table before the run."""

    rows: Mapping[str, int]  # by part
    unlabelled: int
    weightless: int
    target: Aim
    classes: Mapping[str, int]  # of a target that has classes
    groups: Mapping[str, Grouping]
    dropped: tuple[str, ...]
    columns: Mapping[str, Summary]  # of the training rows

    @classmethod
    def of(cls, site: Site, question: Question, client: int) -> Description:
        table, held = site.table, question.held_out(site.table, client)
        parts = dict(zip(PARTS, (~held, held), strict=True))
        aim = Aim.of(table, question, ~held)
        labels = as_text(table[question.target])
        classes = dict(sorted(collections.Counter(labels).items())) if aim.kind == CLASSES else {}
        if len(classes) > MOST_LABELS:
            raise SettingError(
                f"target: {question.target!r} has {len(classes)} classes, but at most {MOST_LABELS} are told; put them "
                "together, or add --task number if it is one"
            )
        each_class = [labels == label for label in classes]
        groups = {}
        for name, columns in question.groups.items():
            kinds = each_class if classes and name in question.by_class else [np.ones(len(held), bool)]
            groups[name] = _grouping(name, mixes(*(as_text(table[part]) for part in columns)), parts, kinds)
        names = [name for name in table if name not in {question.target, question.weight, *question.drop}]
        _check_lengths([*names, *classes, *(label for g in groups.values() for mix in g.rows for label in mix)])
        sums = {name: Summary.of(table[name][~held]) for name in names}
        return cls(
            {part: int(rows.sum()) for part, rows in parts.items()},
            site.unlabelled,
            site.weightless,
            aim,
            classes,
            groups,
            tuple(name for name in question.drop if name in table),
            {name: each.discreet(question.least, most=MOST_NAMED, longest=LONGEST) for name, each in sums.items()},
        )


def _grouping(
    name: str, belongs: Sequence[tuple[str, ...] | None], parts: Mapping[str, np.ndarray], kinds: Sequence[np.ndarray]
) -> Grouping:
    found = sorted({mix for mix in belongs if mix is not None})
    if len(found) > MOST_LABELS:
        raise SettingError(
            f"constraint on {name!r}: it has {len(found)} groups, and at most {MOST_LABELS} are compared"
        )
    rows = {}
    for group in found:
        mine = np.array([mix == group for mix in belongs])
        rows[group] = {p: tuple(int((mine & part & kind).sum()) for kind in kinds) for p, part in parts.items()}
    return Grouping(rows, sum(mix is None for mix in belongs))


def _check_lengths(names: Sequence[str]) -> None:
    for name in names:
        if len(name) > LONGEST:
            raise SettingError(
                f"the name of a column, a class or a group has {len(name)} characters, but at most {LONGEST} are told"
            )
