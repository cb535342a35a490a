"""What a model of a table predicts: one of two classes, one of several, or a number.

Everything that differs between these beyond the model itself is here: how a column's values become labels, what is
decided of scores, and how good that is.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import made_once
from fedsgm.data.table import as_text
from fedsgm.tables.models import MLP

TASKS = ("classes", "number")
_MOST_CLASSES = 20  # that whole numbers are taken for
_model = made_once(MLP)  # methods are equal only of one object
_ROUNDING = 1e-12  # of sums of squares


@dataclasses.dataclass(frozen=True)
class Tally:
    """How good answers are, in sums over rows: those of several parts can be added up.

    Of classes how many are decided ``right``, and the rows of each class; of a number the sum and the squares of the
    labels, and the squared errors that are ``left``.
    """

    rows: int
    right: int = 0
    classes: tuple[int, ...] = ()
    total: float = 0.0
    squares: float = 0.0
    left: float = 0.0

    @property
    def quality(self) -> float:
        """The share that is right, or R squared."""
        return self.right / self.rows if self.classes else self._explained(self.left)

    def always(self, label: int) -> float:
        """The quality of one answer for all rows: this class, or a number's label 0."""
        return self.classes[label] / self.rows if self.classes else self._explained(self.squares)

    def _explained(self, left: float) -> float:
        spread = self.squares - self.total**2 / self.rows
        return 1 - left / spread if spread > _ROUNDING * self.squares else float("nan")

    def __add__(self, other: Tally) -> Tally:
        classes = tuple(one + more for one, more in zip(self.classes, other.classes, strict=True))
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("total", "squares", "left")}
        return Tally(self.rows + other.rows, self.right + other.right, classes, **sums)


@dataclasses.dataclass(frozen=True)
class Target:
    """The column that is predicted, if it has a name; its classes, the negative one first of two, or none: a number.

    A label, ``"y"`` in an example, is a class's place or, of a number, its distance from ``mean`` in units of
    ``scale``. Scores are what ``MLP.score`` gives: the positive class's probability [rows], every class's
    [rows, classes], or labels of numbers [rows].
    """

    name: str | None
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    @property
    def kind(self) -> str:
        return {0: "number", 2: "binary"}.get(len(self.classes), "classes")

    def model(self, hidden: tuple[int, ...] = ()) -> MLP:
        return _model(hidden, len(self.classes) or None)

    def standardised(self, values: np.ndarray, weights: np.ndarray | None = None) -> Target:
        """The same target; of a number, with the mean and the standard deviation of these values."""
        if self.classes:
            return self
        mean = np.average(values, weights=weights)
        scale = np.sqrt(np.average((values - mean) ** 2, weights=weights))
        return dataclasses.replace(self, mean=float(mean), scale=float(scale) or 1.0)

    def labels(self, values: np.ndarray) -> np.ndarray:
        """Each value as a label, float32."""
        if not self.classes:
            return ((values - self.mean) / self.scale).astype(np.float32)
        places = {name: place for place, name in enumerate(self.classes)}
        return np.array([places[text] for text in as_text(values)], np.float32)

    def decide(self, scores: np.ndarray) -> np.ndarray:
        """Of each row the place of the class that is decided, or the number in its own units."""
        if not self.classes:
            return self.mean + self.scale * np.asarray(scores, np.float64)
        return (scores > 0.5).astype(np.int32) if scores.ndim == 1 else np.argmax(scores, axis=1).astype(np.int32)

    def tally(self, scores: np.ndarray, labels: np.ndarray) -> Tally:
        """How good the answers are, in sums over rows."""
        if self.classes:
            by_class = tuple(int((labels == place).sum()) for place in range(len(self.classes)))
            return Tally(len(labels), right=int((self.decide(scores) == labels).sum()), classes=by_class)
        own, left = (np.asarray(of, np.float64) for of in (labels, labels - scores))
        return Tally(len(labels), total=float(own.sum()), squares=float((own**2).sum()), left=float((left**2).sum()))

    def quality(self, scores: np.ndarray, labels: np.ndarray) -> float:
        """How good the answers are: the share of the rows that is decided rightly, or of a number R squared."""
        return self.tally(scores, labels).quality

    def told(self, tally: Tally, which: str) -> str:
        """How good the answers are, in words; ``which`` rows they are for."""
        if self.classes:
            return f"{tally.quality:.1%} of {tally.rows} {which} rows"
        error = self.scale * np.sqrt(tally.left / tally.rows)
        return f"root mean squared error {error:.3g}, R2 {tally.quality:.2f} on {tally.rows} {which} rows"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Target:
        """Read what :meth:`to_json` wrote; ValueError or TypeError if it is something else."""
        target = cls(**fields | {"classes": tuple(fields["classes"])})
        if not all(isinstance(text, str) for text in (target.name, *target.classes)) or len(target.classes) == 1:
            raise TypeError("a target that is none")
        if not (np.isfinite(target.mean) and 0 < target.scale < np.inf):
            raise ValueError("a mean or a scale that is none")
        return target


def find_target(name: str, values: np.ndarray, task: str | None = None, positive: str | None = None) -> Target:
    """What a column of known values is: numbers, unless they are two or, whole ones, few; all else is classes.

    ``task`` is ``"classes"`` or ``"number"`` where that is not to be found out. A number is yet to be standardised.

    >>> find_target("stars", np.array([1.0, 2.0, 3.0, 1.0, 2.0, 3.0])).classes
    ('1', '2', '3')
    """
    if task is not None and task not in TASKS:
        raise SettingError(f"task: {task!r}, but it must be {' or '.join(TASKS)}")
    counts = Counter(as_text(values))
    numeric = values.dtype.kind == "f"
    if len(counts) > 1:
        if task == "number" and not numeric:
            raise SettingError(f"task: {name!r} has values such as {min(counts)!r}, so it is no number but classes")
        if task == "number" or (task is None and _is_number(values, len(counts))):
            return number(name, positive)
    return classes(name, counts, positive, numeric)


def number(name: str, positive: str | None) -> Target:
    """A target that is a number."""
    if positive is not None:
        raise SettingError(f"positive: {name!r} is a number, which has no positive class; leave {positive!r} out")
    return Target(name)


def classes(name: str, counts: Mapping[str, int], positive: str | None, numeric: bool) -> Target:
    """A target that has classes, each with so many rows; ``numeric`` if their names are numbers."""
    found = tuple(sorted(counts, key=_order))
    if len(found) == 1:
        raise SettingError(f"target: {name!r} has 1 value ({found[0]!r}), but it must have two classes or more")
    if len(found) == 2:
        return Target(name, _ordered(found, name, positive))
    if positive is not None:
        raise SettingError(
            f"positive: {name!r} has {len(found)} classes, none of which is the positive one; leave {positive!r} out"
        )
    rarest = min(found, key=counts.__getitem__)
    if counts[rarest] < 2:
        also = ", or take it for a number with task number" if numeric else ""
        raise SettingError(
            f"target: the class {rarest!r} of {name!r} has one row only; put it together with another or leave its "
            f"row out{also}"
        )
    return Target(name, found)


def taken_for(target: Target, numeric: bool) -> list[str]:
    """What a target was found to be, where it could be something else than one thinks."""
    if target.kind == "binary":
        return []
    if target.kind == "number":
        return [f"the target {target.name!r} is taken for a number; add --task classes if it is none"]
    also = "; add --task number if it is one" if numeric else ""
    return [f"the target {target.name!r} is taken for one of {len(target.classes)} classes{also}"]


def _is_number(values: np.ndarray, different: int) -> bool:
    if values.dtype.kind != "f" or different == 2:
        return False
    return different > _MOST_CLASSES or bool((values != np.round(values)).any())


def _ordered(classes: tuple[str, ...], name: str, positive: str | None) -> tuple[str, ...]:
    """The negative and the positive class: the last in sorted order unless told."""
    if positive is None:
        return classes
    if positive not in classes:
        raise SettingError(
            f"positive: {positive!r} is no value of {name!r}, which has {' and '.join(map(repr, classes))}"
        )
    return (classes[1 - classes.index(positive)], positive)


def _order(label: str) -> tuple[float, str]:
    """Numbers by size, then texts by letters."""
    try:
        return float(label), label
    except ValueError:
        return np.inf, label
