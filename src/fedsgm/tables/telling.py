"""A site's description as plain JSON, and back on the server, which takes nothing in it for granted."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.data import summary
from fedsgm.data.summary import TEXT, Summary
from fedsgm.tables import describing
from fedsgm.tables.describing import LONGEST, MOST_LABELS, MOST_NAMED, Aim, Description, Grouping, Question
from fedsgm.tables.holding import PARTS
from fedsgm.tables.targets import Tally, Target

MOST_COLUMNS = 10_000
MOST_ROWS = 2**53
MOST = 1e100  # of a mean or a sum: of larger ones there is no square
_FIELDS = {"rows", "left out", "target", "classes", "groups", "dropped", "columns"}


def to_json(told: Description) -> dict[str, Any]:
    """Parts are in the order of ``PARTS``, and counts behind the names that they belong to."""
    groups = {}
    for name, each in told.groups.items():
        rows = [[list(mix), *(list(counts[part]) for part in PARTS)] for mix, counts in each.rows.items()]
        groups[name] = [each.ungrouped, rows]
    columns = []
    for name, sums in told.columns.items():
        categories = [[category, rows] for category, rows in sums.categories.items()]
        columns.append([name, sums.kind, sums.told, sums.untold, sums.missing, sums.mean, sums.squares, categories])
    return {
        "rows": [told.rows[part] for part in PARTS],
        "left out": [told.unlabelled, told.weightless],
        "target": list(dataclasses.astuple(told.target)),
        "classes": [[label, rows] for label, rows in told.classes.items()],
        "groups": groups,
        "dropped": list(told.dropped),
        "columns": columns,
    }


def read(told: Any, question: Question) -> Description:
    """The description that :func:`to_json` made JSON of; an error says what in it cannot be right."""
    _must(isinstance(told, dict) and told.keys() == _FIELDS, "its parts")
    train, test = (_count(each, "rows") for each in _list(told["rows"], 2, "rows"))
    unlabelled, weightless = (_count(each, "rows left out") for each in _list(told["left out"], 2, "rows left out"))
    classes = _counts(told["classes"], MOST_LABELS, "classes")
    aim = _aim(told["target"])
    rows = train + test if aim.kind == describing.CLASSES else 0
    _must(train > 0 and sum(classes.values()) == rows, "rows of the classes")
    _must(isinstance(told["groups"], dict) and told["groups"].keys() == question.groups.keys(), "groups")
    groups = {}
    for name, mixed in question.groups.items():
        kinds = len(classes) if classes and name in question.by_class else 1
        groups[name] = _grouping(told["groups"][name], (train, test), len(mixed), kinds)
    columns = [_column(each, train) for each in _up_to(told["columns"], MOST_COLUMNS, "columns")]
    _must(len(dict(columns)) == len(columns), "a column that is there twice")
    dropped = tuple(_text(each, "dropped columns") for each in _up_to(told["dropped"], len(question.drop), "drop"))
    parts = {"train": train, "test": test}
    return Description(parts, unlabelled, weightless, aim, classes, groups, dropped, dict(columns))


def _aim(told: Any) -> Aim:
    what = "the target"
    kind, numeric, *numbers = _list(told, 5, what)
    _must(kind in describing.KINDS and type(numeric) is bool, what)
    weight, mean, squares = (_number(each, what) for each in numbers)
    _must(weight >= 0 and squares >= 0 and (weight > 0 or (mean, squares) == (0, 0)), what)
    _must(not weight or (kind == describing.NUMBER and numeric), what)
    return Aim(kind, numeric, weight, mean, squares)


def tally_to_json(tally: Tally) -> list[Any]:
    """The rows, and of classes those that are right and those of each class, or of a number three sums."""
    if tally.classes:
        return [tally.rows, tally.right, list(tally.classes)]
    return [tally.rows, tally.total, tally.squares, tally.left]


def read_tallies(told: Any, target: Target) -> dict[str, Tally]:
    """A site's review of the model, part by part, where it can be one."""
    found = {}
    for part in PARTS:
        with contextlib.suppress(SettingError):
            found[part] = _tally(told.get(part) if isinstance(told, dict) else None, target)
    return found


def _tally(told: Any, target: Target) -> Tally:
    what = "how good the model is"
    if target.classes:
        rows, right, by_class = _list(told, 3, what)
        counts = tuple(_count(each, what) for each in _list(by_class, len(target.classes), what))
        _must(_count(right, what) <= _count(rows, what) and 0 < rows == sum(counts), what)
        return Tally(rows, right, counts)
    rows, *sums = _list(told, 4, what)
    total, squares, left = (_number(each, what) for each in sums)
    _must(_count(rows, what) > 0 and squares >= 0 and left >= 0, what)
    return Tally(rows, total=total, squares=squares, left=left)


def _grouping(told: Any, rows: tuple[int, int], columns: int, kinds: int) -> Grouping:
    """Of so many rows in each part, by so many columns, with so many counts for a group."""
    what = "rows of the groups"
    ungrouped, listed = _list(told, 2, what)
    found: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {}
    for each in _up_to(listed, MOST_LABELS, what):
        mix, *counts = _list(each, 1 + len(PARTS), what)
        name = tuple(_text(label, what) for label in _list(mix, columns, what))
        _must(name not in found, what)
        by_class = [tuple(_count(count, what) for count in _list(part, kinds, what)) for part in counts]
        found[name] = dict(zip(PARTS, by_class, strict=True))
    sums = [sum(sum(counts[part]) for counts in found.values()) for part in PARTS]
    _must(sums[0] <= rows[0] and sums[1] <= rows[1] and sum(sums) + _count(ungrouped, what) == sum(rows), what)
    return Grouping(found, ungrouped)


def _column(told: Any, rows: int) -> tuple[str, Summary]:
    """A column's name, and its sums over so many rows."""
    name, kind, *counts, mean, squares, categories = _list(told, 8, "a column")
    what = f"the column {_text(name, 'the name of a column')!r}"
    known, untold, missing = (_count(count, what) for count in counts)
    named = _counts(categories, MOST_NAMED, what)
    _must(kind in summary.KINDS and known + untold + missing == rows, what)
    _must(sum(named.values()) == known if kind == TEXT else not named, what)
    _number(mean, what)
    _must(_number(squares, what) >= 0, what)
    return name, Summary(kind, known, untold, missing, mean, squares, named)


def _counts(told: Any, most: int, what: str) -> dict[str, int]:
    """Names, each with the number of its rows."""
    pairs = [_list(each, 2, what) for each in _up_to(told, most, what)]
    found = {_text(name, what): _count(rows, what) for name, rows in pairs}
    _must(len(found) == len(pairs), what)
    return found


def _list(told: Any, length: int, what: str) -> list[Any]:
    _must(isinstance(told, list) and len(told) == length, what)
    return told


def _up_to(told: Any, most: int, what: str) -> list[Any]:
    _must(isinstance(told, list) and len(told) <= most, what)
    return told


def _count(told: Any, what: str) -> int:
    _must(type(told) is int and 0 <= told <= MOST_ROWS, what)
    return told


def _number(told: Any, what: str) -> float:
    _must(type(told) is float and abs(told) <= MOST, what)
    return told


def _text(told: Any, what: str) -> str:
    """Not half of a character, which JSON can have and a file cannot."""
    _must(isinstance(told, str) and len(told) <= LONGEST and told == told.encode(errors="ignore").decode(), what)
    return told


def _must(right: bool, what: str) -> None:
    if not right:
        raise SettingError(f"what it tells of its table cannot be right ({what}); use the same fedsgm everywhere")
