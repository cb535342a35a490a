"""The small language in which constraints on a table are said.

    demographic_parity(sex) <= 0.05              compares the groups of a column
    demographic_parity(sex * race) <= 0.1        or of several columns together
    recall(income == '>50K') >= 0.9              is about the examples of one class, and may have a least value
    0.1 <= false_positive_rate <= 0.3            or two bounds
    each_client(accuracy, quantile=0.95) >= 0.8  is kept by each client by itself, or by 95 % of them

Of groups: ``demographic_parity``, ``equal_opportunity``, ``equalized_odds``, ``group_error_gap``, ``group_loss_gap``,
``worst_group_error``, ``worst_group_loss``, and where the target is a number ``mean_gap``. Of a class: ``recall``,
``precision``, ``class_loss``; or of everybody: ``error_rate``, ``accuracy``; or of the positive class of two:
``true_positive_rate``, ``false_positive_rate``. Rates are of decisions, and with ``scores=True`` after the name of a
column or a class means of scores. A name or a value with more in it than letters, digits, ``_``, ``.`` and ``-`` goes
in quotes, single or double. Where only one column can be meant, ``demographic_parity <= 0.05`` is enough, and where the
target has no name, ``error_rate('>50K') <= 0.2``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.core.each_client import each_client
from fedsgm.core.problem import Constraint, Statistic
from fedsgm.tables import fairness
from fedsgm.tables.models import Model
from fedsgm.tables.reader import Reader, nearest, quoted
from fedsgm.tables.targets import Target

_RATES = {
    f.__name__: f
    for f in (
        *(fairness.demographic_parity, fairness.equal_opportunity, fairness.equalized_odds),
        *(fairness.group_error_gap, fairness.worst_group_error),
    )
}
_OF_EACH_CLASS = ("demographic_parity", "equal_opportunity", "equalized_odds")
_LOSSES = {f.__name__: f for f in (fairness.group_loss_gap, fairness.worst_group_loss)}
OF_NUMBERS = (*_LOSSES, "mean_gap")
OF_GROUPS = (*_RATES, *OF_NUMBERS)
_SHARES = {
    f.__name__: f
    for f in (
        *(fairness.error_rate, fairness.accuracy, fairness.recall, fairness.precision),
        *(fairness.true_positive_rate, fairness.false_positive_rate),
    )
}
OF_CLASS = (*_SHARES, "class_loss")
_OF_ONE_CLASS = ("recall", "precision", "class_loss")  # and never of everybody
_OF_POSITIVE = ("true_positive_rate", "false_positive_rate")  # unless another class is said
_OTHER_NAMES = {
    **dict.fromkeys(("parity", "statistical_parity", "disparate_impact"), "demographic_parity(COLUMN)"),
    **dict.fromkeys(("tpr", "sensitivity"), "true_positive_rate"),
    **dict.fromkeys(("fpr", "false_alarm_rate"), "false_positive_rate"),
    **dict.fromkeys(("fnr", "false_negative_rate"), "error_rate(TARGET == POSITIVE)"),
    **dict.fromkeys(("tnr", "true_negative_rate", "specificity"), "recall(TARGET == NEGATIVE)"),
    **dict.fromkeys(("loss", "log_loss"), "class_loss(TARGET == VALUE)"),
    **dict.fromkeys(("every_client", "per_client"), "each_client(...)"),
    "acc": "accuracy",
}
_MOST_GROUPS = 20
_TWO = "0.1 <= false_positive_rate <= 0.3"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A constraint as it was said: its kind, the columns or the class that it is about, its bound and on which side.

    ``least`` is the lower of two bounds; ``quantile`` is the share of the clients that keep it, each by itself, and
    None where it is about all examples together.
    """

    kind: str
    columns: tuple[str, ...]
    value: str | None
    bound: float
    sense: str = "<="
    least: float | None = None
    scores: bool = False
    quantile: float | None = None

    @property
    def column(self) -> str | None:
        """The columns in one name."""
        return " * ".join(self.columns) if self.columns else None

    @property
    def name(self) -> str:
        about = " == ".join(part for part in (self.column, self.value) if part is not None)
        inside = ", ".join([about] * bool(about) + ["scores=True"] * self.scores)
        told = f"{self.kind}({inside})" if inside else self.kind
        if self.quantile is None:
            return told
        return f"each_client({told})" if self.quantile == 1 else f"each_client({told}, quantile={self.quantile:g})"


def parse(text: str) -> Wanted:
    """Read one constraint; an error says which word is wrong and what to write.

    >>> parse("demographic_parity(sex) <= 0.05").name
    'demographic_parity(sex)'
    >>> parse("0.1 <= recall(1) <= 0.3").least
    0.1
    """
    reader = Reader(text)
    least = None
    if reader.at_word and _number(reader.next) is not None:
        least = reader.take()
        reader.symbol("<=", f"a kind comes before its bound, or <= after the lower of two, as in {_TWO}")
    wanted = _quantity(reader)
    either = wanted.kind in OF_CLASS
    if not either and (least is not None or reader.at(">=")):
        raise reader.wrong(f"{wanted.kind} has an upper bound alone; write {wanted.name} <= 0.05")
    if least is not None and not reader.at("<="):
        raise reader.wrong(f"a bound comes last, as in {wanted.kind}(...) >= {least}, or one on either side: {_TWO}")
    sense = ">=" if reader.at(">=") else "<="
    reader.symbol(sense, f"{'<= or >=' if either else '<='} comes before the bound")
    bound = _bound(reader, wanted.kind, reader.word(f"a number comes after {sense}"))
    if reader.at("<=", ">="):
        raise reader.wrong(
            f"nothing comes after the bound, but {reader.next!r} is there; two bounds are written {_TWO}"
        )
    if reader.tokens:
        instead = "write 0.05 with a point" if reader.at(",") else "give each constraint by itself"
        raise reader.wrong(f"nothing comes after the bound, but {reader.next!r} is there; {instead}")
    if least is None:
        return dataclasses.replace(wanted, bound=bound, sense=sense)
    low = _bound(reader, wanted.kind, least)
    if not low < bound:
        raise reader.wrong(f"{low:g} is not below {bound:g}; write the lower bound first, as in {_TWO}")
    if wanted.quantile is not None:
        raise reader.wrong("the worst client above is not the worst below; give each_client one bound, <= or >=")
    return dataclasses.replace(wanted, bound=bound, sense="between", least=low)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _bound(reader: Reader, kind: str, word: str) -> float:
    """A number, 0 or more, that can be kept and can be broken."""
    bound = _number(word)
    if bound is None or not 0 <= bound < math.inf:
        raise reader.wrong(f"the bound is {word!r}, but it must be a number, 0 or more, such as 0.05")
    if bound > 1 and kind in (*_SHARES, *_RATES):
        raise reader.wrong(f"the bound is {word!r}, but a share is never above 1; write 0.05 for 5 %")
    return bound


def _quantity(reader: Reader) -> Wanted:
    """What is bounded; the bound is yet to be read."""
    kind = reader.word("a constraint begins with its kind, such as demographic_parity(sex) <= 0.05")
    if kind == "each_client":
        return _of_each_client(reader)
    if kind not in (*OF_GROUPS, *OF_CLASS):
        other = _OTHER_NAMES.get(kind.lower().replace("-", "_")) or ("it without the quotes" if "(" in kind else None)
        instead = f"write {other}" if other else nearest(kind, (*OF_GROUPS, *OF_CLASS, "each_client"))
        raise reader.wrong(f"no constraint is called {kind!r}; {instead}")
    columns: list[str] = []
    value, scores = None, False
    if reader.at("("):
        reader.take()
        if reader.at(")"):
            raise reader.wrong(f"nothing is in the parentheses; write {kind}({_in_it(kind)})")
        if not reader.at_option:
            columns, value = _about(reader, kind)
        scores = _scores(reader, kind, first=not columns and value is None)
        reader.symbol(")", f"a ) comes after {value or ' * '.join(columns) or kind}")
    elif reader.at_word and _number(reader.next) is None:
        raise reader.wrong(f"{reader.next!r} comes after {kind}; write {kind}({_in_it(kind)}), and <= before the bound")
    if kind in _OF_ONE_CLASS and value is None:
        raise reader.wrong(f"{kind} is about one class; write {kind}({_in_it(kind)})")
    return Wanted(kind, tuple(columns), value, math.nan, scores=scores)


def _in_it(kind: str) -> str:
    """What goes in the parentheses."""
    return "COLUMN" if kind in OF_GROUPS else "TARGET == VALUE"


def _about(reader: Reader, kind: str) -> tuple[list[str], str | None]:
    """The columns whose groups are compared, or the class, with the target's name if that is said."""
    words = [reader.word(f"a column's name or a value comes after {kind}(")]
    while reader.at("*"):
        reader.take()
        words.append(reader.word(f"a column's name comes after {words[-1]} *"))
        if words[-1] in words[:-1]:
            raise reader.wrong(f"the column {words[-1]!r} is there twice; write it once")
    if reader.at("=="):
        if kind in OF_GROUPS:
            raise reader.wrong(f"{kind} compares all groups of a column; write {kind}({quoted(words[0])})")
        reader.take()
        words.append(reader.word(f"a value comes after {words[-1]} ==, in quotes if it has more than letters in it"))
        if len(words) == 2:
            return words[:1], words[1]
    if reader.at_word or reader.at("<", ">"):
        also = ", and groups of two columns are written sex * race" if kind in OF_GROUPS else ", and a class after =="
        raise reader.wrong(
            f"a ) comes after {words[-1]}, but {reader.next!r} is there; a name of several words goes in quotes{also}"
        )
    if kind in OF_GROUPS:
        return words, None
    if len(words) > 1:
        raise reader.wrong(f"{kind} compares no groups; write {kind}({_in_it(kind)})")
    return [], words[0]


def _scores(reader: Reader, kind: str, *, first: bool) -> bool:
    """Whether scores=True is said."""
    if not first:
        if not reader.at(","):
            return False
        reader.take()
    if not reader.at_option:
        instead = f"{kind}(sex * race) for the groups of both" if kind in OF_GROUPS else f"{kind}({_in_it(kind)})"
        raise reader.wrong(f"after a comma comes scores=True, but {reader.next!r} is there; write {instead}")
    option = reader.take()
    reader.take()
    value = reader.word(f"True or False comes after {option}=")
    if option != "scores":
        about = "COLUMN" if kind in OF_GROUPS else f"{option} == {quoted(value)}"
        instead = f"{kind}({about})" + (f" or {kind}({about}, scores=True)" if kind in _RATES else "")
        raise reader.wrong(f"{kind} has no option {option!r}; write {instead}")
    if kind not in (*_RATES, *_SHARES):
        raise reader.wrong(f"{kind} is no rate of decisions or scores; write it without scores={value}")
    if value not in ("True", "False"):
        raise reader.wrong(f"scores={value}, but it must be True or False")
    return value == "True"


def _of_each_client(reader: Reader) -> Wanted:
    """each_client(a quantity) or each_client(a quantity, quantile=0.95)."""
    reader.symbol("(", "a quantity comes after each_client, as in each_client(accuracy) >= 0.8")
    if reader.next == "each_client":
        raise reader.wrong("each_client is there twice; write it once")
    wanted = _quantity(reader)
    quantile = 1.0
    if reader.at(","):
        reader.take()
        if not reader.at_option or reader.next != "quantile":
            raise reader.wrong(f"after a comma comes quantile=0.95, but {reader.next!r} is there")
        reader.take()
        reader.take()
        word = reader.word("a number comes after quantile=")
        quantile = _number(word) or 0.0
        if not 0 < quantile <= 1:
            raise reader.wrong(
                f"quantile={word}, but it must be a share of the clients above 0, at most 1, such as 0.95"
            )
    reader.symbol(")", f"a ) comes after each_client({wanted.name}, and then the bound")
    return dataclasses.replace(wanted, quantile=quantile)


def build(wanted: Wanted, model: Model, *, groups: Mapping[str, Sequence[str]], target: Target) -> Constraint:
    """The constraint on a model of the target; ``groups`` has each column's labels."""
    if not target.classes and wanted.kind not in OF_NUMBERS:
        known = ", ".join(OF_NUMBERS)
        raise SettingError(f"constraint {wanted.name}: the target is a number, and of numbers there are: {known}")
    if target.classes and wanted.kind == "mean_gap":
        raise SettingError(f"constraint {wanted.name}: the target has classes; write demographic_parity(COLUMN)")
    said = (
        _class_quantity(wanted, model, target)
        if wanted.kind in OF_CLASS
        else _groups_quantity(wanted, model, groups, target)
    )
    quantity = said if wanted.quantile is None else each_client(said, wanted.quantile)
    scale = target.scale if wanted.kind == "mean_gap" else 1.0
    return Constraint(quantity, wanted.bound, scale, wanted.sense, wanted.least)


def _class_quantity(wanted: Wanted, model: Model, target: Target) -> Statistic:
    classes = target.classes
    if wanted.column is not None and target.name is not None and wanted.column != target.name:
        raise SettingError(f"constraint {wanted.name}: {wanted.column!r} is not the target; write {target.name!r}")
    about: dict[str, Any] = {}
    if wanted.value is not None:
        if wanted.value not in classes:
            known = (" and " if len(classes) == 2 else ", ").join(map(repr, classes))
            raise SettingError(f"constraint {wanted.name}: {wanted.value!r} is no class; the classes are {known}")
        about = {"label": classes.index(wanted.value)}
    elif wanted.kind in _OF_POSITIVE and len(classes) > 2:
        raise SettingError(
            f"constraint {wanted.name}: none of {len(classes)} classes is the positive one; say which is meant, "
            f"{wanted.kind}({_in_it(wanted.kind)})"
        )
    if wanted.kind == "class_loss":
        return fairness.class_loss(model.loss, name=wanted.name, **about)
    return _SHARES[wanted.kind](model.score, scores=wanted.scores, name=wanted.name, **about)


def _groups_quantity(wanted: Wanted, model: Model, groups: Mapping[str, Sequence[str]], target: Target) -> Statistic:
    column = wanted.column
    if column is None:
        if len(groups) != 1:
            told = f"; there are: {', '.join(map(repr, groups))}" if groups else ""
            raise SettingError(f"constraint {wanted.name}: say which column, {wanted.kind}(COLUMN){told}")
        (column,) = groups
    if column not in groups:
        unknown = next((part for part in wanted.columns if part not in groups), column)
        raise SettingError(f"constraint {wanted.name}: there is no column {unknown!r}; {nearest(unknown, groups)}")
    count = len(groups[column])
    if not 2 <= count <= _MOST_GROUPS:
        how = "only one value, so there is nothing to compare" if count < 2 else f"{count} values"
        also = "" if count < 2 else f", and at most {_MOST_GROUPS} groups are compared; put them into fewer"
        raise SettingError(f"constraint {wanted.name}: the column {column!r} has {how}{also}")
    about: dict[str, Any] = {"by": column, "groups": count, "name": wanted.name}
    if wanted.kind in _LOSSES:
        return _LOSSES[wanted.kind](model.loss, **about)
    if wanted.kind == "mean_gap":
        return fairness.mean_gap(model.score, unit=target.scale, **about)
    if wanted.kind in _OF_EACH_CLASS:
        about["classes"] = len(target.classes)
    return _RATES[wanted.kind](model.score, scores=wanted.scores, **about)
