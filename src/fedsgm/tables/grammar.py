"""The small language in which constraints on a table are said.

    demographic_parity(sex) <= 0.05              compares the groups of a column
    error_rate(income == '>50K') <= 0.2          is about the examples of one class
    recall(income == '>50K') >= 0.9              and may have a least value

Of groups: ``demographic_parity``, ``equal_opportunity``, ``equalized_odds`` (gaps between the rates of decisions),
``group_loss_gap``, ``worst_group_loss``. Of a class, with ``>=``, too: ``error_rate``, ``recall``, ``class_loss``.
A name or a value with more in it than letters, digits, ``_``, ``.`` and ``-`` goes in quotes, single or double. Where
only one column can be meant, ``demographic_parity <= 0.05`` is enough, and where the target has no name,
``error_rate('>50K') <= 0.2``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from fedsgm.base.errors import SettingError
from fedsgm.core.problem import Constraint
from fedsgm.tables import fairness
from fedsgm.tables.models import MLP

_RATES = {f.__name__: f for f in (fairness.demographic_parity, fairness.equal_opportunity, fairness.equalized_odds)}
_LOSSES = {f.__name__: f for f in (fairness.group_loss_gap, fairness.worst_group_loss)}
OF_GROUPS = (*_RATES, *_LOSSES)
_SHARES = {f.__name__: f for f in (fairness.error_rate, fairness.recall)}
OF_CLASS = (*_SHARES, "class_loss")
_TOKEN = re.compile(r"""\s*(?:(<=|>=|==|[()<>=,])|'([^']*)'|"([^"]*)"|([\w.+-]+))""")
_MOST_GROUPS = 20


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A constraint as it was said: its kind, the column or the class it is about, its bound and on which side."""

    kind: str
    column: str | None
    value: str | None
    bound: float
    sense: str = "<="

    @property
    def name(self) -> str:
        inside = " == ".join(part for part in (self.column, self.value) if part is not None)
        return f"{self.kind}({inside})" if inside else self.kind


def parse(text: str) -> Wanted:
    """Read one constraint; an error says which word is wrong.

    >>> parse("demographic_parity(sex) <= 0.05")
    Wanted(kind='demographic_parity', column='sex', value=None, bound=0.05, sense='<=')
    """
    reader = _Reader(text)
    kind = reader.word("a constraint begins with its kind, such as demographic_parity")
    if kind not in (*OF_GROUPS, *OF_CLASS):
        raise reader.wrong(f"no constraint is called {kind!r}; {_nearest(kind, (*OF_GROUPS, *OF_CLASS))}")
    words: list[str] = []
    if reader.next == "(":
        reader.take()
        words.append(reader.word(f"a column's name or a value comes after {kind}("))
        if reader.next == "==":
            reader.take()
            words.append(reader.word(f"a value comes after {words[0]} =="))
        reader.symbol(")", f"a ) comes after {words[-1]}")
    if kind in OF_GROUPS and len(words) == 2:
        raise reader.wrong(f"{kind} compares all groups of a column; write {kind}({words[0]})")
    if kind in OF_CLASS and not words:
        raise reader.wrong(f"{kind} is about one class; write {kind}(TARGET == VALUE)")
    sense = ">=" if kind in OF_CLASS and reader.tokens[:1] == [(">=", True)] else "<="
    reader.symbol(sense, f"{'<= or >=' if kind in OF_CLASS else '<='} comes before the bound")
    bound = _bound(reader, sense, share=kind in _SHARES)
    if reader.next:
        raise reader.wrong(f"nothing comes after the bound, but {reader.next!r} is there")
    column, value = (words[0] if words else None, None) if kind in OF_GROUPS else (None, *words)[-2:]
    return Wanted(kind, column, value, bound, sense)


def _bound(reader: _Reader, sense: str, *, share: bool) -> float:
    """A number, 0 or more, that can be kept."""
    number = reader.word(f"a number comes after {sense}")
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not 0 <= bound < math.inf:
        raise reader.wrong(f"the bound is {number!r}, but it must be a number, 0 or more")
    if share and sense == ">=" and bound > 1:
        raise reader.wrong(f"the bound is {number!r}, but a share is never above 1")
    return bound


def build(
    wanted: Wanted, model: MLP, *, groups: Mapping[str, Sequence[str]], target: str | None, classes: Sequence[str]
) -> Constraint:
    """The constraint on ``model``: ``groups`` has each column's labels, ``classes`` the negative and the positive."""
    if wanted.kind in OF_CLASS:
        if wanted.column is not None and target is not None and wanted.column != target:
            raise SettingError(f"constraint {wanted.name}: {wanted.column!r} is not the target; write {target!r}")
        if wanted.value not in classes:
            known = " and ".join(map(repr, classes))
            raise SettingError(f"constraint {wanted.name}: {wanted.value!r} is no class; the classes are {known}")
        label = classes.index(wanted.value)
        if wanted.kind in _SHARES:
            quantity = _SHARES[wanted.kind](model.decision, label=label, name=wanted.name)
        else:
            quantity = fairness.class_loss(model.loss, label=label, name=wanted.name)
        return Constraint(quantity, wanted.bound, sense=wanted.sense)
    column = wanted.column
    if column is None:
        if len(groups) != 1:
            told = f"; there are: {', '.join(map(repr, groups))}" if groups else ""
            raise SettingError(f"constraint {wanted.name}: say which column, {wanted.kind}(COLUMN){told}")
        (column,) = groups
    if column not in groups:
        raise SettingError(f"constraint {wanted.name}: there is no column {column!r}; {_nearest(column, groups)}")
    count = len(groups[column])
    if not 2 <= count <= _MOST_GROUPS:
        how = "only one value, so there is nothing to compare" if count < 2 else f"{count} values"
        also = "" if count < 2 else f", and at most {_MOST_GROUPS} groups are compared; put them into fewer"
        raise SettingError(f"constraint {wanted.name}: the column {column!r} has {how}{also}")
    if wanted.kind in _LOSSES:
        return _LOSSES[wanted.kind](model.loss, by=column, groups=count, name=wanted.name) <= wanted.bound
    rate = _RATES[wanted.kind](model.decision, by=column, groups=count, hard=True, name=wanted.name)
    return rate <= wanted.bound


class _Reader:
    """The words and symbols of a constraint, one after another."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, bool]] = []  # and whether it is a symbol
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                rest = text[place:].strip()
                what = f"the quote {rest[0]} is not closed" if rest[0] in "'\"" else f"{rest[0]!r} has no meaning here"
                raise self.wrong(f"{what}; names with more than letters and digits go in quotes")
            symbol, *quoted, word = found.groups()
            self.tokens.append((symbol, True) if symbol else (next(t for t in (*quoted, word) if t is not None), False))
            place = found.end()

    @property
    def next(self) -> str:
        return self.tokens[0][0] if self.tokens else ""

    def take(self) -> str:
        return self.tokens.pop(0)[0]

    def word(self, wanted: str) -> str:
        if not self.tokens or self.tokens[0][1]:
            raise self.wrong(f"{wanted}, but {self._there()}")
        return self.take()

    def symbol(self, symbol: str, wanted: str) -> None:
        if self.tokens[:1] != [(symbol, True)]:
            raise self.wrong(f"{wanted}, but {self._there()}")
        self.take()

    def _there(self) -> str:
        return f"{self.next!r} is there" if self.tokens else "nothing is there"

    def wrong(self, why: str) -> SettingError:
        return SettingError(f"constraint {self.text!r}: {why}")


def _nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
