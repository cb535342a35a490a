"""The language of constraints: what can be said, and what each mistake is told."""

import inspect

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.tables import fairness
from fedsgm.tables.grammar import OF_CLASS, OF_GROUPS, Wanted, build, parse
from fedsgm.tables.models import MLP

SAID = {
    "demographic_parity(sex) <= 0.05": Wanted("demographic_parity", "sex", None, 0.05),
    "equal_opportunity(sex)<=1e-2": Wanted("equal_opportunity", "sex", None, 0.01),
    "  equalized_odds ( race )  <=  .1  ": Wanted("equalized_odds", "race", None, 0.1),
    "group_loss_gap('native country') <= 0": Wanted("group_loss_gap", "native country", None, 0.0),
    'worst_group_loss("it\'s") <= 2': Wanted("worst_group_loss", "it's", None, 2.0),
    "demographic_parity(Geschlecht_ü) <= 0.05": Wanted("demographic_parity", "Geschlecht_ü", None, 0.05),
    "demographic_parity(性別) <= 0.05": Wanted("demographic_parity", "性別", None, 0.05),
    "demographic_parity(marital-status) <= 0.05": Wanted("demographic_parity", "marital-status", None, 0.05),
    "demographic_parity('<= 3') <= 0.05": Wanted("demographic_parity", "<= 3", None, 0.05),
    "demographic_parity('a) == (b') <= 0.05": Wanted("demographic_parity", "a) == (b", None, 0.05),
    "demographic_parity <= 0.05": Wanted("demographic_parity", None, None, 0.05),
    "demographic_parity\n(sex)\t<= 0.05": Wanted("demographic_parity", "sex", None, 0.05),
    "error_rate(income == '>50K') <= 0.2": Wanted("error_rate", "income", ">50K", 0.2),
    'error_rate(income==">50K")<=0.2': Wanted("error_rate", "income", ">50K", 0.2),
    "error_rate('>50K') <= 0.2": Wanted("error_rate", None, ">50K", 0.2),
    "error_rate(1) <= 0.2": Wanted("error_rate", None, "1", 0.2),
    "error_rate(y == -1) <= +0.2": Wanted("error_rate", "y", "-1", 0.2),
    "error_rate(y == -1) >= 0.1": Wanted("error_rate", "y", "-1", 0.1, ">="),
    "recall(income == '>50K') >= 0.9": Wanted("recall", "income", ">50K", 0.9, ">="),
    "recall('>50K')>=1": Wanted("recall", None, ">50K", 1.0, ">="),
    "recall(1) <= 0.9": Wanted("recall", None, "1", 0.9),
    "class_loss(1) >= 2": Wanted("class_loss", None, "1", 2.0, ">="),
    "class_loss('die Antwort' == 'ja, sehr') <= 3": Wanted("class_loss", "die Antwort", "ja, sehr", 3.0),
    "class_loss(y == 'naïve 🙂') <= 3": Wanted("class_loss", "y", "naïve 🙂", 3.0),
}


@pytest.mark.parametrize("text", SAID)
def test_said(text):
    assert parse(text) == SAID[text]


def test_every_kind_is_said_above():
    assert {wanted.kind for wanted in SAID.values()} == {*OF_GROUPS, *OF_CLASS}


def test_every_ready_made_constraint_can_be_said():
    made = {name for name, f in inspect.getmembers(fairness, inspect.isfunction) if f.__module__ == fairness.__name__}
    assert {name for name in made if not name.startswith("_")} == {*OF_GROUPS, *OF_CLASS}


@pytest.mark.parametrize("kind", OF_GROUPS)
def test_groups_by_name(kind):
    assert parse(f"{kind}(sex) <= 0.05").name == f"{kind}(sex)"
    assert parse(f"{kind} <= 0.05").name == kind


@pytest.mark.parametrize("kind", OF_CLASS)
def test_classes_by_name(kind):
    assert parse(f"{kind}(income == '>50K') <= 0.05").name == f"{kind}(income == >50K)"
    assert parse(f"{kind}(1) <= 0.05").name == f"{kind}(1)"


WRONG = {
    "": ("begins with its kind", "nothing is there"),
    "   ": ("begins with its kind", "nothing is there"),
    "(sex) <= 0.05": ("begins with its kind", "'('"),
    "demographic_party(sex) <= 0.05": ("'demographic_party'", "did you mean 'demographic_parity'?"),
    "zzz(sex) <= 0.05": ("'zzz'", *OF_GROUPS, *OF_CLASS),
    "Demographic_Parity(sex) <= 0.05": ("'Demographic_Parity'", "'demographic_parity'"),
    "demographic_parity() <= 0.05": ("demographic_parity(", "')' is there"),
    "demographic_parity(": ("demographic_parity(", "nothing is there"),
    "demographic_parity(sex <= 0.05": (") comes after sex", "'<='"),
    "demographic_parity(sex": (") comes after sex", "nothing is there"),
    "demographic_parity(native country) <= 0.05": (") comes after native", "'country'"),
    "demographic_parity(sex, race) <= 0.05": (") comes after sex", "','"),
    "demographic_parity(sex == 'Male') <= 0.05": ("all groups of a column", "demographic_parity(sex)"),
    "demographic_parity(sex ==) <= 0.05": ("a value comes after sex ==", "')'"),
    "demographic_parity(sex = 'Male') <= 0.05": (") comes after sex", "'='"),
    "demographic_parity(sex)": ("<= comes before the bound", "nothing is there"),
    "demographic_parity(sex) 0.05": ("<= comes before the bound", "'0.05'"),
    "demographic_parity(sex) < 0.05": ("<= comes before the bound", "'<'"),
    "demographic_parity(sex) >= 0.05": ("<= comes before the bound", "'>='"),
    "demographic_parity(sex) == 0.05": ("<= comes before the bound", "'=='"),
    "demographic_parity(sex) '<=' 0.05": ("<= comes before the bound", "'<='"),
    "demographic_parity(sex) <=": ("a number comes after <=", "nothing is there"),
    "demographic_parity(sex) <= <=": ("a number comes after <=", "'<='"),
    "demographic_parity(sex) <= five": ("'five'", "a number"),
    "demographic_parity(sex) <= -0.1": ("'-0.1'", "0 or more"),
    "demographic_parity(sex) <= nan": ("'nan'", "0 or more"),
    "demographic_parity(sex) <= inf": ("'inf'", "0 or more"),
    "demographic_parity(sex) <= 0,05": ("nothing comes after the bound", "','"),
    "demographic_parity(sex) <= 0.05 <= 1": ("nothing comes after the bound", "'<='"),
    "demographic_parity(sex) <= 5 %": ("'%'",),
    "demographic_parity(sex) <= 0.05 and more": ("nothing comes after the bound", "'and'"),
    "demographic_parity('sex) <= 0.05": ("quote ' is not closed",),
    'demographic_parity("sex) <= 0.05': ('quote " is not closed',),
    "demographic_parity(a/b) <= 0.05": ("'/' has no meaning", "quotes"),
    "demographic_parity(['sex']) <= 0.05": ("'['", "quotes"),
    "error_rate <= 0.2": ("error_rate is about one class", "error_rate(TARGET == VALUE)"),
    "error_rate(income == >50K) <= 0.2": ("a value comes after income ==", "'>'"),
    "class_loss <= 0.2": ("class_loss is about one class",),
    "recall >= 0.9": ("recall is about one class", "recall(TARGET == VALUE)"),
    "recall(1) > 0.9": ("<= or >= comes before the bound", "'>'"),
    "recall(1) '>=' 0.9": ("<= or >= comes before the bound", "'>='"),
    "recall(1) >=": ("a number comes after >=", "nothing is there"),
    "recall(1) >= 90": ("'90'", "never above 1"),
    "recall(1) >= -1": ("'-1'", "0 or more"),
    "0.1 <= recall(1) <= 0.3": ("no constraint is called '0.1'",),
    "recall(1) >= 0.1 <= 0.3": ("nothing comes after the bound", "'<='"),
    "rcall(1) >= 0.9": ("did you mean 'recall'?",),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong(text):
    """The sentence has the whole constraint, the word that is wrong, and what would be right."""
    with pytest.raises(fs.SettingError) as error:
        parse(text)
    message = str(error.value)
    assert message.startswith(f"constraint {text!r}: ")
    assert "\n" not in message
    for word in WRONG[text]:
        assert word in message.removeprefix(f"constraint {text!r}: ")


def test_any_text_is_a_constraint_or_a_setting_error():
    """Random words of the language, random characters, and valid texts with one character changed."""
    rng = np.random.default_rng(0)
    words = [
        *OF_GROUPS,
        *OF_CLASS,
        *"()<>=,'\"",
        "<=",
        "==",
        "sex",
        "'>50K'",
        "0.05",
        "-1",
        ">=",
        " ",
        "é",
        "\x00",
        "\n",
    ]
    characters = [chr(c) for c in (*range(32, 127), 0, 9, 10, 0xA0, 0xE9, 0x6027, 0x1F642, 0x0661, 0x2028, 0xB2)]
    valid = list(SAID)
    read = 0
    for _ in range(2000):
        text = [
            "".join(rng.choice(words, rng.integers(0, 9))),
            "".join(rng.choice(characters, rng.integers(0, 30))),
            _mutated(str(rng.choice(valid)), str(rng.choice(characters)), rng),
        ][rng.integers(3)]
        try:
            wanted = parse(text)
        except fs.SettingError as error:
            assert repr(text) in str(error)  # noqa: PT017 - either outcome is right
            continue
        read += 1
        assert isinstance(wanted, Wanted)
        assert wanted.kind in (*OF_GROUPS, *OF_CLASS)
        assert 0 <= wanted.bound < np.inf
    assert read > 100, "both outcomes were met"


def _mutated(text, character, rng):
    place = int(rng.integers(len(text)))
    return text[:place] + character + text[place + rng.integers(2) :]


# What is built of it -------------------------------------------------------------------------------------------------

GROUPS = {"sex": ("F", "M"), "race": ("a", "b", "c"), "one": ("all",), "zip": tuple(map(str, range(21)))}
GIVEN = {"groups": GROUPS, "target": "income", "classes": ("<=50K", ">50K")}


@pytest.mark.parametrize("text", [f"{kind}(race) <= 0.25" for kind in OF_GROUPS])
def test_built_for_groups(text):
    constraint = build(parse(text), MLP(), **GIVEN)
    assert isinstance(constraint, fs.Constraint)
    assert (constraint.name, constraint.bound) == (parse(text).name, 0.25)


def example(**more):
    """Logit 1: the score is 0.73, the decision positive, the loss log(1 + e) - y."""
    return {"x": np.float32([1.0]), **{name: np.int32(value) for name, value in more.items()}}


PARAMS = [{"w": np.float32([1.0]), "b": np.float32(0.0)}]


@pytest.mark.parametrize(
    ("text", "label", "expected"),
    [
        ("error_rate(income == '>50K') <= 0.2", 1, 0.0),
        ("error_rate('<=50K') <= 0.2", 0, 1.0),
        ("recall(income == '>50K') >= 0.9", 1, 1.0),
        ("recall('<=50K') >= 0.9", 0, 0.0),
        ("class_loss(income == '>50K') <= 0.2", 1, np.log1p(np.e) - 1),
        ("class_loss('<=50K') <= 0.2", 0, np.log1p(np.e)),
    ],
)
def test_built_for_a_class(text, label, expected):
    """By hand, for one example of the class and one of the other that must not count."""
    constraint = build(parse(text), MLP(), **GIVEN)
    assert (constraint.bound, constraint.sense) == (parse(text).bound, parse(text).sense)
    quantity = constraint.quantity
    own = quantity.sums(PARAMS, example(y=label))
    other = quantity.sums(PARAMS, example(y=1 - label))
    total = {name: own[name] + other[name] for name in own}
    assert float(quantity.measured(total)) == pytest.approx(expected, abs=1e-6)


def test_rates_switch_on_decisions():
    """Scores 0.73 and 0.27 are the decisions 1 and 0: the gap of the rates is 1."""
    quantity = build(parse("demographic_parity(sex) <= 0.05"), MLP(), **GIVEN).quantity
    left, right = quantity.sums(PARAMS, example(sex=0)), quantity.sums(PARAMS, example(sex=1) | {"x": np.float32([-1])})
    total = {name: left[name] + right[name] for name in left}
    assert float(quantity.measured(total)) == 1.0
    assert 0.5 < float(quantity.value(total)) < 1.0, "and its surrogate, whose gradient is taken, is smooth"


def test_the_column_may_be_left_out_where_there_is_one():
    constraint = build(parse("demographic_parity <= 0.05"), MLP(), **GIVEN | {"groups": {"sex": ("F", "M")}})
    assert constraint.name == "demographic_parity"


def test_the_target_may_have_no_name():
    build(parse("error_rate(whatever == '>50K') <= 0.05"), MLP(), **GIVEN | {"target": None})


REFUSED = {
    "demographic_parity(sexx) <= 0.05": ("no column 'sexx'", "did you mean 'sex'?"),
    "demographic_parity(qqq) <= 0.05": ("no column 'qqq'", "sex, race, one, zip"),
    "demographic_parity <= 0.05": ("say which column", "'sex', 'race', 'one', 'zip'"),
    "demographic_parity(one) <= 0.05": ("'one' has only one value", "nothing to compare"),
    "worst_group_loss(zip) <= 0.05": ("'zip' has 21 values", "at most 20"),
    "error_rate(sex == 'M') <= 0.05": ("'sex' is not the target", "'income'"),
    "error_rate(income == '50K') <= 0.05": ("'50K' is no class", "'<=50K' and '>50K'"),
    "class_loss(2) <= 0.05": ("'2' is no class",),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    with pytest.raises(fs.SettingError) as error:
        build(parse(text), MLP(), **GIVEN)
    assert str(error.value).startswith(f"constraint {parse(text).name}: ")
    for word in REFUSED[text]:
        assert word in str(error.value)


def test_no_column_to_compare():
    with pytest.raises(fs.SettingError, match=r"say which column, demographic_parity\(COLUMN\)"):
        build(parse("demographic_parity <= 0.05"), MLP(), **GIVEN | {"groups": {}})
