"""The language of constraints: what can be said, and what each mistake is told."""

import inspect

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.tables import fairness
from fedsgm.tables.grammar import OF_CLASS, OF_GROUPS, OF_NUMBERS, Wanted, build, parse
from fedsgm.tables.models import MLP
from fedsgm.tables.targets import Target

SAID = {
    "demographic_parity(sex) <= 0.05": Wanted("demographic_parity", ("sex",), None, 0.05),
    "equal_opportunity(sex)<=1e-2": Wanted("equal_opportunity", ("sex",), None, 0.01),
    "  equalized_odds ( race )  <=  .1  ": Wanted("equalized_odds", ("race",), None, 0.1),
    "group_loss_gap('native country') <= 0": Wanted("group_loss_gap", ("native country",), None, 0.0),
    'worst_group_loss("it\'s") <= 2': Wanted("worst_group_loss", ("it's",), None, 2.0),
    "demographic_parity(Geschlecht_ü) <= 0.05": Wanted("demographic_parity", ("Geschlecht_ü",), None, 0.05),
    "demographic_parity(性別) <= 0.05": Wanted("demographic_parity", ("性別",), None, 0.05),
    "demographic_parity(marital-status) <= 0.05": Wanted("demographic_parity", ("marital-status",), None, 0.05),
    "demographic_parity('<= 3') <= 0.05": Wanted("demographic_parity", ("<= 3",), None, 0.05),
    "demographic_parity('a) == (b') <= 0.05": Wanted("demographic_parity", ("a) == (b",), None, 0.05),
    "demographic_parity <= 0.05": Wanted("demographic_parity", (), None, 0.05),
    "demographic_parity\n(sex)\t<= 0.05": Wanted("demographic_parity", ("sex",), None, 0.05),
    "error_rate(income == '>50K') <= 0.2": Wanted("error_rate", ("income",), ">50K", 0.2),
    'error_rate(income==">50K")<=0.2': Wanted("error_rate", ("income",), ">50K", 0.2),
    "error_rate('>50K') <= 0.2": Wanted("error_rate", (), ">50K", 0.2),
    "error_rate(1) <= 0.2": Wanted("error_rate", (), "1", 0.2),
    "error_rate(y == -1) <= +0.2": Wanted("error_rate", ("y",), "-1", 0.2),
    "error_rate(y == -1) >= 0.1": Wanted("error_rate", ("y",), "-1", 0.1, ">="),
    "recall(income == '>50K') >= 0.9": Wanted("recall", ("income",), ">50K", 0.9, ">="),
    "recall('>50K')>=1": Wanted("recall", (), ">50K", 1.0, ">="),
    "recall(1) <= 0.9": Wanted("recall", (), "1", 0.9),
    "class_loss(1) >= 2": Wanted("class_loss", (), "1", 2.0, ">="),
    "class_loss('die Antwort' == 'ja, sehr') <= 3": Wanted("class_loss", ("die Antwort",), "ja, sehr", 3.0),
    "class_loss(y == 'naïve 🙂') <= 3": Wanted("class_loss", ("y",), "naïve 🙂", 3.0),
    "error_rate <= 0.2": Wanted("error_rate", (), None, 0.2),
    "accuracy >= .8": Wanted("accuracy", (), None, 0.8, ">="),
    "accuracy(income == '>50K') >= 0.8": Wanted("accuracy", ("income",), ">50K", 0.8, ">="),
    "precision('>50K') >= 0.7": Wanted("precision", (), ">50K", 0.7, ">="),
    "true_positive_rate >= 0.9": Wanted("true_positive_rate", (), None, 0.9, ">="),
    "true_positive_rate(no) >= 0.9": Wanted("true_positive_rate", (), "no", 0.9, ">="),
    "false_positive_rate <= 0.1": Wanted("false_positive_rate", (), None, 0.1),
    "mean_gap(sex) <= 2500": Wanted("mean_gap", ("sex",), None, 2500.0),
    "group_error_gap(sex) <= 0.1": Wanted("group_error_gap", ("sex",), None, 0.1),
    "worst_group_error(sex) <= 0.3": Wanted("worst_group_error", ("sex",), None, 0.3),
    "demographic_parity(sex * race) <= 0.1": Wanted("demographic_parity", ("sex", "race"), None, 0.1),
    "worst_group_loss(sex*'native country'*age) <= 1": Wanted(
        "worst_group_loss", ("sex", "native country", "age"), None, 1.0
    ),
    "demographic_parity('sex * race') <= 0.1": Wanted("demographic_parity", ("sex * race",), None, 0.1),
    "demographic_parity(sex, scores=True) <= 0.1": Wanted("demographic_parity", ("sex",), None, 0.1, scores=True),
    "demographic_parity(sex, scores=False) <= 0.1": Wanted("demographic_parity", ("sex",), None, 0.1),
    "demographic_parity(scores=True) <= 0.1": Wanted("demographic_parity", (), None, 0.1, scores=True),
    "recall(y == 1, scores=True) >= 0.9": Wanted("recall", ("y",), "1", 0.9, ">=", scores=True),
    "0.1 <= false_positive_rate <= 0.3": Wanted("false_positive_rate", (), None, 0.3, "between", 0.1),
    "0 <= recall(income == '>50K') <= 1": Wanted("recall", ("income",), ">50K", 1.0, "between", 0.0),
    "1 <= class_loss(1) <= 2.5": Wanted("class_loss", (), "1", 2.5, "between", 1.0),
    "each_client(demographic_parity(sex)) <= 0.1": Wanted("demographic_parity", ("sex",), None, 0.1, quantile=1.0),
    "each_client(demographic_parity(sex), quantile=0.95) <= 0.1": Wanted(
        "demographic_parity", ("sex",), None, 0.1, quantile=0.95
    ),
    "each_client(recall(1, scores=True), quantile=.5) >= 0.9": Wanted(
        "recall", (), "1", 0.9, ">=", scores=True, quantile=0.5
    ),
    "each_client(accuracy) >= 0.8": Wanted("accuracy", (), None, 0.8, ">=", quantile=1.0),
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
    assert parse(f"{kind}(sex*race) <= 0.05").name == f"{kind}(sex * race)"
    assert parse(f"each_client({kind}(sex)) <= 0.05").name == f"each_client({kind}(sex))"
    assert parse(f"each_client({kind}, quantile=.9) <= 0.05").name == f"each_client({kind}, quantile=0.9)"
    assert parse(f"{kind} <= 0.05").name == kind


@pytest.mark.parametrize("kind", OF_CLASS)
def test_classes_by_name(kind):
    assert parse(f"{kind}(income == '>50K') <= 0.05").name == f"{kind}(income == >50K)"
    assert parse(f"{kind}(1) <= 0.05").name == f"{kind}(1)"
    assert parse(f"0.05 <= {kind}(1) <= 0.1").name == f"{kind}(1)"


@pytest.mark.parametrize("kind", [kind for kind in (*OF_GROUPS, *OF_CLASS) if kind not in (*OF_NUMBERS, "class_loss")])
def test_scores_are_in_the_name(kind):
    assert parse(f"{kind}(a, scores=True) <= 0.05").name == f"{kind}(a, scores=True)"


TWO = "0.1 <= false_positive_rate <= 0.3"
PARITY = "demographic_parity(sex) <= 0.05"
WRONG = {
    "": ("begins with its kind", PARITY, "nothing is there"),
    "   ": ("begins with its kind", PARITY, "nothing is there"),
    "(sex) <= 0.05": ("begins with its kind", PARITY, "'('"),
    "<= 0.05": ("begins with its kind", PARITY, "'<='"),
    # kinds
    "demographic_party(sex) <= 0.05": ("'demographic_party'", "did you mean 'demographic_parity'?"),
    "zzz(sex) <= 0.05": ("'zzz'", *OF_GROUPS, *OF_CLASS, "each_client"),
    "auc >= 0.9": ("'auc'", *OF_GROUPS, *OF_CLASS, "each_client"),
    "Demographic_Parity(sex) <= 0.05": ("'Demographic_Parity'", "'demographic_parity'"),
    "EQUALIZED_ODDS(sex) <= 0.05": ("'EQUALIZED_ODDS'", "'equalized_odds'"),
    "DemographicParity(sex) <= 0.05": ("did you mean 'demographic_parity'?",),
    "demographic-parity(sex) <= 0.05": ("did you mean 'demographic_parity'?",),
    "demographic parity(sex) <= 0.05": ("did you mean 'demographic_parity'?",),
    "demographic_parity_difference(sex) <= 0.05": ("did you mean 'demographic_parity'?",),
    "'demographic_parity(sex) <= 0.05'": ("without the quotes",),
    "statistical_parity(sex) <= 0.05": ("'statistical_parity'", "write demographic_parity(COLUMN)"),
    "tpr >= 0.9": ("'tpr'", "write true_positive_rate"),
    "FPR <= 0.1": ("'FPR'", "write false_positive_rate"),
    "fnr <= 0.1": ("'fnr'", "write error_rate(TARGET == POSITIVE)"),
    "specificity >= 0.9": ("'specificity'", "write recall(TARGET == NEGATIVE)"),
    "acc >= 0.9": ("'acc'", "write accuracy"),
    "log-loss <= 1": ("'log-loss'", "write class_loss(TARGET == VALUE)"),
    "rcall(1) >= 0.9": ("did you mean 'recall'?",),
    "max(recall(1)) >= 0.1": ("no constraint is called 'max'",),
    # groups
    "demographic_parity[sex] <= 0.05": ("'['", "write ( and )"),
    "demographic_parity(['sex']) <= 0.05": ("'['", "write ( and )"),
    "demographic_parity sex <= 0.05": ("'sex'", "write demographic_parity(COLUMN)"),
    "demographic_parity() <= 0.05": ("write demographic_parity(COLUMN)",),
    "demographic_parity(": ("demographic_parity(", "nothing is there"),
    "demographic_parity(sex <= 0.05": (") comes after sex", "'<='"),
    "demographic_parity(sex": (") comes after sex", "nothing is there"),
    "demographic_parity(sex)) <= 0.05": ("<= comes before the bound", "')'"),
    "demographic_parity((sex)) <= 0.05": ("a column's name", "'('"),
    "demographic_parity(native country) <= 0.05": (") comes after native", "'country'", "goes in quotes"),
    "demographic_parity(sex and race) <= 0.05": ("'and'", "written sex * race"),
    "demographic_parity(sex + race) <= 0.05": ("'+'", "written sex * race"),
    "demographic_parity(sex & race) <= 0.05": ("'&'", "write * between columns"),
    "demographic_parity(sex, race) <= 0.05": ("'race'", "demographic_parity(sex * race)"),
    "demographic_parity(sex *) <= 0.05": ("a column's name comes after sex *", "')'"),
    "demographic_parity(* race) <= 0.05": ("a column's name", "'*'"),
    "demographic_parity(sex ** race) <= 0.05": ("a column's name comes after sex *", "'*'"),
    "demographic_parity(sex * sex) <= 0.05": ("'sex' is there twice", "once"),
    "demographic_parity(sex * race == 'a') <= 0.05": ("all groups", "demographic_parity(sex)"),
    "demographic_parity(sex == 'Male') <= 0.05": ("all groups of a column", "demographic_parity(sex)"),
    "demographic_parity(sex ==) <= 0.05": ("all groups of a column", "demographic_parity(sex)"),
    "demographic_parity(sex = 'Male') <= 0.05": ("no option 'sex'", "write demographic_parity(COLUMN)"),
    "demographic_parity(by='sex') <= 0.05": ("no option 'by'", "write demographic_parity(COLUMN)"),
    "demographic_parity(sex, hard=True) <= 0.05": ("no option 'hard'", "scores=True"),
    "demographic_parity(sex, scores) <= 0.05": ("after a comma comes scores=True", "'scores'"),
    "demographic_parity(sex, ) <= 0.05": ("after a comma comes scores=True", "')'"),
    "demographic_parity(sex, scores=) <= 0.05": ("True or False comes after scores=", "')'"),
    "demographic_parity(sex, scores=yes) <= 0.05": ("scores=yes", "True or False"),
    "group_loss_gap(sex, scores=True) <= 0.05": ("no rate", "without scores=True"),
    "mean_gap(sex, scores=True) <= 0.05": ("no rate", "without scores=True"),
    "mean_gap(sex) >= 0.05": ("an upper bound alone", "write mean_gap(sex) <= 0.05"),
    "demographic_parity('sex) <= 0.05": ("quote ' is not closed",),
    'demographic_parity("sex) <= 0.05': ('quote " is not closed',),
    "demographic_parity(a/b) <= 0.05": ("'/' has no meaning", "quotes"),
    "demographic_parity(a#b) <= 0.05": ("'#' has no meaning", "quotes"),
    # bounds
    "demographic_parity(sex)": ("<= comes before the bound", "nothing is there"),
    "demographic_parity(sex) 0.05": ("<= comes before the bound", "'0.05'"),
    "demographic_parity(sex) < 0.05": ("<= comes before the bound", "'<'"),
    "demographic_parity(sex) =< 0.05": ("<= comes before the bound", "'='"),
    "demographic_parity(sex) ≤ 0.05": ("'≤'", "write <="),
    "demographic_parity(sex) at most 0.05": ("<= comes before the bound", "'at'"),
    "demographic_parity(sex) >= 0.05": ("an upper bound alone", "write demographic_parity(sex) <= 0.05"),
    "demographic_parity(sex) == 0.05": ("<= comes before the bound", "'=='"),
    "demographic_parity(sex) '<=' 0.05": ("<= comes before the bound", "'<='"),
    "demographic_parity(sex) <=": ("a number comes after <=", "nothing is there"),
    "demographic_parity(sex) <= <=": ("a number comes after <=", "'<='"),
    "demographic_parity(sex) <= five": ("'five'", "a number", "such as 0.05"),
    "demographic_parity(sex) <= -0.1": ("'-0.1'", "0 or more"),
    "demographic_parity(sex) <= nan": ("'nan'", "0 or more"),
    "demographic_parity(sex) <= inf": ("'inf'", "0 or more"),
    "demographic_parity(sex) <= 0,05": ("nothing comes after the bound", "','", "0.05 with a point"),
    "demographic_parity(sex) <= 5": ("'5'", "never above 1", "0.05 for 5 %"),
    "demographic_parity(sex) <= 5 %": ("'%'", "0.05 for 5 %"),
    "demographic_parity(sex) <= 1/20": ("'/'", "0.05"),
    "demographic_parity(sex) <= 0.05 <= 1": ("nothing comes after the bound", "'<='"),
    "demographic_parity(sex) <= 0.05 and more": ("nothing comes after the bound", "'and'", "by itself"),
    "demographic_parity(sex) <= 0.05 ''": ("nothing comes after the bound", "by itself"),
    "demographic_parity(sex) <= 0.05; recall(1) >= 1": ("';'", "by itself"),
    # classes
    "class_loss <= 0.2": ("class_loss is about one class", "class_loss(TARGET == VALUE)"),
    "recall >= 0.9": ("recall is about one class", "recall(TARGET == VALUE)"),
    "precision >= 0.9": ("precision is about one class", "precision(TARGET == VALUE)"),
    "recall() >= 0.9": ("write recall(TARGET == VALUE)",),
    "error_rate(income == >50K) <= 0.2": ("a value comes after income ==", "quotes", "'>'"),
    "error_rate(income ==) <= 0.2": ("a value comes after income ==", "')'"),
    "recall(income='>50K') >= 0.9": ("no option 'income'", "write recall(income == '>50K')"),
    "recall(income, '>50K') >= 0.9": ("'>50K'", "write recall(TARGET == VALUE)"),
    "recall(income != '>50K') >= 0.9": ("'!'", "write == and the other class"),
    "recall(income > 50) >= 0.9": ("'>'", "a class after =="),
    "recall(sex * race) >= 0.9": ("no groups", "recall(TARGET == VALUE)"),
    "recall(sex * race == 1) >= 0.9": ("no groups", "recall(TARGET == VALUE)"),
    "recall(1) > 0.9": ("<= or >= comes before the bound", "'>'"),
    "recall(1) '>=' 0.9": ("<= or >= comes before the bound", "'>='"),
    "recall(1) >=": ("a number comes after >=", "nothing is there"),
    "recall(1) >= 90": ("'90'", "never above 1"),
    "recall(1) >= -1": ("'-1'", "0 or more"),
    "recall(1) - recall(0) <= 0.1": ("<= or >= comes before the bound", "'-'"),
    # two bounds
    "recall(1) >= 0.1 <= 0.3": ("nothing comes after the bound", TWO),
    "0.9 <= recall(1)": ("a bound comes last", "recall(...) >= 0.9", TWO),
    "0.05 >= demographic_parity(sex)": ("a kind comes before its bound", "'>='"),
    "0.01 <= demographic_parity(sex) <= 0.05": ("an upper bound alone", "write demographic_parity(sex) <= 0.05"),
    "0.3 >= recall(1) >= 0.1": (TWO, "'>='"),
    "0.1 < recall(1) < 0.3": (TWO, "'<'"),
    "0.3 <= recall(1) <= 0.1": ("0.3 is not below 0.1", "the lower bound first", TWO),
    "0.1 <= recall(1) <= 3": ("'3'", "never above 1"),
    "-1 <= recall(1) <= 0.3": ("'-1'", "0 or more"),
    "0.1 <= <= 0.3": ("begins with its kind", "'<='"),
    "0.1 <= 0.3": ("no constraint is called '0.3'",),
    "0.9": ("a kind comes before its bound", "nothing is there"),
    # each client
    "each_client <= 0.1": ("each_client(accuracy) >= 0.8", "'<='"),
    "each_client() <= 0.1": ("begins with its kind", "')'"),
    "each_client(sex) <= 0.1": ("no constraint is called 'sex'", *OF_GROUPS),
    "each_client(demographic_parity(sex) <= 0.1)": (") comes after each_client(demographic_parity(sex)", "the bound"),
    "each_client(accuracy, 0.95) >= 0.8": ("quantile=0.95", "'0.95'"),
    "each_client(accuracy, share=0.95) >= 0.8": ("quantile=0.95", "'share'"),
    "each_client(accuracy, quantile=) >= 0.8": ("a number comes after quantile=", "')'"),
    "each_client(accuracy, quantile=95) >= 0.8": ("quantile=95", "above 0, at most 1", "0.95"),
    "each_client(accuracy, quantile=0) >= 0.8": ("quantile=0", "above 0"),
    "each_client(accuracy, quantile=nan) >= 0.8": ("quantile=nan", "above 0"),
    "each_client(accuracy, quantile=most) >= 0.8": ("quantile=most", "above 0"),
    "each_client(accuracy, quantile=0.9, soft=1) >= 0.8": (") comes after each_client(accuracy", "','"),
    "each_client(demographic_parity(sex)) >= 0.1": ("an upper bound alone", "each_client(demographic_parity(sex)) <= "),
    "each_client(each_client(accuracy)) >= 0.1": ("twice", "once"),
    "0.1 <= each_client(recall(1)) <= 0.3": ("the worst client above", "one bound"),
    "each_clients(accuracy) >= 0.1": ("did you mean 'each_client'?",),
    "per_client(accuracy) >= 0.1": ("'per_client'", "write each_client(...)"),
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
        "each_client(",
        ", quantile=0.9",
        ", scores=True",
        *"()<>=,*'\"",
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
GIVEN = {"groups": GROUPS, "target": Target("income", ("<=50K", ">50K"))}
OF_CLASSES = [kind for kind in OF_GROUPS if kind != "mean_gap"]  # and so not of numbers alone


@pytest.mark.parametrize("text", [f"{kind}(race) <= 0.25" for kind in OF_CLASSES])
def test_built_for_groups(text):
    constraint = build(parse(text), MLP(), **GIVEN)
    assert isinstance(constraint, fs.Constraint)
    assert (constraint.name, constraint.bound) == (parse(text).name, 0.25)


NUMBER = {"groups": GROUPS, "target": Target("pay", mean=3000.0, scale=400.0)}
NUMBERS = MLP(classes=None)


def test_the_gap_of_a_number_is_in_its_own_units():
    """The predictions are 1/4 and -1/4 of a standard deviation; it is descended, and violated, in these."""
    constraint = build(parse("mean_gap(sex) <= 100"), NUMBERS, **NUMBER)
    quantity = constraint.quantity
    left, right = quantity.sums(PARAMS, example(sex=0)), quantity.sums(PARAMS, example(sex=1) | {"x": np.float32([-1])})
    total = {name: left[name] + right[name] for name in left}
    assert float(quantity.measured(total)) == pytest.approx(200)
    assert float(quantity.descended(total)) == pytest.approx(0.5)
    assert (constraint.bound, constraint.scale) == (100, 400)


@pytest.mark.parametrize("kind", OF_NUMBERS)
def test_built_for_a_number(kind):
    for text in (f"{kind}(race) <= 2", f"each_client({kind}(race)) <= 2"):
        assert build(parse(text), NUMBERS, **NUMBER).name == parse(text).name


SEVERAL = {"groups": GROUPS, "target": Target("wine", ("red", "rosé", "white"))}


@pytest.mark.parametrize("kind", [*OF_CLASSES, *OF_CLASS])
def test_built_for_several_classes(kind):
    model, about = MLP(classes=3), "race" if kind in OF_GROUPS else "wine == 'rosé'"
    constraint = build(parse(f"{kind}({about}) <= 0.25"), model, **SEVERAL)
    params = model.init(features=1)
    sums = [constraint.quantity.sums(params, example(y=y, race=race)) for y in range(3) for race in range(3)]
    total = jax.tree.map(lambda *each: sum(each), *sums)
    # At equal probabilities the first class is decided for everybody, rightly for a third of each group.
    expected = {"accuracy": 0, "error_rate": 1, "worst_group_error": 2 / 3}
    expected |= dict.fromkeys(("class_loss", "worst_group_loss"), np.log(3))
    assert float(constraint.quantity.measured(total)) == pytest.approx(expected.get(kind, 0), abs=1e-6)


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
        ("accuracy('<=50K') >= 0.9", 0, 0.0),
        ("true_positive_rate(income == '>50K') >= 0.9", 1, 1.0),
        ("true_positive_rate('<=50K') >= 0.9", 0, 0.0),
        ("false_positive_rate('>50K') <= 0.9", 1, 1.0),
        ("false_positive_rate('<=50K') <= 0.9", 0, 0.0),
        ("precision('>50K') >= 0.9", 1, 0.5),
        ("precision('<=50K') >= 0.9", 0, 0.0),
        ("recall(income == '>50K', scores=True) >= 0.9", 1, np.e / (1 + np.e)),
        ("error_rate('>50K', scores=True) <= 0.9", 1, 1 / (1 + np.e)),
        ("accuracy >= 0.9", 1, 0.5),
        ("error_rate <= 0.9", 1, 0.5),
        ("true_positive_rate >= 0.9", 1, 1.0),
        ("false_positive_rate <= 0.9", 1, 1.0),
        ("0.1 <= recall('>50K') <= 0.9", 1, 1.0),
        ("class_loss(income == '>50K') <= 0.2", 1, np.log1p(np.e) - 1),
        ("class_loss('<=50K') <= 0.2", 0, np.log1p(np.e)),
    ],
)
def test_built_for_a_class(text, label, expected):
    """By hand, for one example of the class and one of the other, both with the decision '>50K'."""
    constraint, wanted = build(parse(text), MLP(), **GIVEN), parse(text)
    assert (constraint.bound, constraint.sense, constraint.least) == (wanted.bound, wanted.sense, wanted.least)
    assert constraint.name == wanted.name
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
    assert float(quantity.descended(total)) == pytest.approx(np.tanh(2), abs=1e-6), "of steeper scores"


def test_scores_are_means_of_scores():
    """Of 0.73 and 0.27: the gap is 0.46, and its gradient is its own."""
    quantity = build(parse("demographic_parity(sex, scores=True) <= 0.05"), MLP(), **GIVEN).quantity
    left, right = quantity.sums(PARAMS, example(sex=0)), quantity.sums(PARAMS, example(sex=1) | {"x": np.float32([-1])})
    total = {name: left[name] + right[name] for name in left}
    assert float(quantity.measured(total)) == pytest.approx(np.tanh(0.5), abs=1e-6)
    assert quantity.switch_on is None


@pytest.mark.parametrize("kind", [*OF_CLASSES, "accuracy", "error_rate", "true_positive_rate", "false_positive_rate"])
def test_built_for_each_client(kind):
    about = "(race)" if kind in OF_GROUPS else ""
    plain = build(parse(f"{kind}{about} <= 0.25"), MLP(), **GIVEN)
    built = build(parse(f"each_client({kind}{about}, quantile=0.75) <= 0.25"), MLP(), **GIVEN)
    assert built.name == f"each_client({kind}{about}, quantile=0.75)"
    assert built.quantity.quantile == 0.75
    examples = [example(y=y, race=race) for y in (0, 1) for race in (0, 1, 2)]
    total = jax.tree.map(lambda *each: sum(each), *(built.quantity.base.sums(PARAMS, one) for one in examples))
    assert float(built.quantity.base.measured(total)) == float(plain.quantity.measured(total))


def test_the_groups_of_two_columns():
    groups = GROUPS | {"sex * race": ("F * a", "F * b", "M * a")}
    constraint = build(parse("demographic_parity(sex * race) <= 0.25"), MLP(), **GIVEN | {"groups": groups})
    sums = constraint.quantity.sums(PARAMS, example(**{"sex * race": 2}))
    np.testing.assert_array_equal(sums["count"], [[0, 0, 1]])


def test_the_column_may_be_left_out_where_there_is_one():
    constraint = build(parse("demographic_parity <= 0.05"), MLP(), **GIVEN | {"groups": {"sex": ("F", "M")}})
    assert constraint.name == "demographic_parity"


def test_the_target_may_have_no_name():
    build(parse("error_rate(whatever == '>50K') <= 0.05"), MLP(), **GIVEN | {"target": Target(None, ("<=50K", ">50K"))})


REFUSED = {
    "demographic_parity(sexx) <= 0.05": ("no column 'sexx'", "did you mean 'sex'?"),
    "demographic_parity(sex * rac) <= 0.05": ("no column 'rac'", "did you mean 'race'?"),
    "accuracy('50K') >= 0.05": ("'50K' is no class", "'<=50K' and '>50K'"),
    "each_client(recall(sex == 'M')) >= 0.05": ("'sex' is not the target", "'income'"),
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


OTHER_TARGETS = {
    "recall(wine == 'red') >= 0.5": ("the target is a number", ", ".join(OF_NUMBERS)),
    "demographic_parity(sex) <= 0.5": ("the target is a number", ", ".join(OF_NUMBERS)),
    "accuracy >= 0.5": ("the target is a number", ", ".join(OF_NUMBERS)),
    "class_loss(red) <= 0.5": ("the target is a number", ", ".join(OF_NUMBERS)),
    "mean_gap(sex) <= 0.5": ("the target has classes", "write demographic_parity(COLUMN)"),
    "true_positive_rate >= 0.5": ("none of 3 classes is the positive one", "true_positive_rate(TARGET == VALUE)"),
    "false_positive_rate <= 0.5": ("none of 3 classes is the positive one", "false_positive_rate(TARGET == VALUE)"),
    "recall(wine == 'green') >= 0.5": ("'green' is no class", "'red', 'rosé', 'white'"),
}


@pytest.mark.parametrize("text", OTHER_TARGETS)
def test_refused_for_other_targets(text):
    words = OTHER_TARGETS[text]
    model, given = (NUMBERS, NUMBER) if "a number" in words[0] else (MLP(classes=3), SEVERAL)
    with pytest.raises(fs.SettingError) as error:
        build(parse(text), model, **given)
    assert str(error.value).startswith(f"constraint {parse(text).name}: ")
    for word in words:
        assert word in str(error.value)


def test_no_column_to_compare():
    with pytest.raises(fs.SettingError, match=r"say which column, demographic_parity\(COLUMN\)"):
        build(parse("demographic_parity <= 0.05"), MLP(), **GIVEN | {"groups": {}})
