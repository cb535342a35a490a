"""What a column to predict is found to be, the models of each kind, and how good answers are."""

import json

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics

import fedsgm as fs
from fedsgm.tables.models import MLP
from fedsgm.tables.targets import Target, find_target


def texts(*values):
    return np.array(values, object)


def numbers(*values):
    return np.array(values, np.float64)


FOUND = {
    "two texts": (texts("no", "yes", "no"), {}, ("no", "yes")),
    "two texts, the other positive": (texts("no", "yes", "no"), {"positive": "no"}, ("yes", "no")),
    "two numbers": (numbers(0.5, 2.5, 0.5), {}, ("0.5", "2.5")),
    "two numbers as classes": (numbers(1, 2, 1), {"task": "classes"}, ("1", "2")),
    "two numbers as a number": (numbers(1, 2, 1), {"task": "number"}, ()),
    "three texts": (texts("b", "a", "c", "a", "b", "c"), {}, ("a", "b", "c")),
    "texts that are numbers": (texts("10", "9", "x", "9", "10", "x"), {}, ("9", "10", "x")),
    "few whole numbers": (numbers(10, 9, -1, -1, 9, 10), {}, ("-1", "9", "10")),
    "20 whole numbers": (np.arange(40.0) % 20, {}, tuple(map(str, range(20)))),
    "21 whole numbers": (np.arange(42.0) % 21, {}, ()),
    "few whole numbers as a number": (numbers(10, 9, -1, -1, 9, 10), {"task": "number"}, ()),
    "few fractions": (numbers(1, 1.5, 2), {}, ()),
    "few fractions as classes": (numbers(1, 1.5, 2, 1, 1.5, 2), {"task": "classes"}, ("1", "1.5", "2")),
    "days": (
        np.array(["2020-01-02", "2020-01-01", "2020-01-03"] * 2, "datetime64[us]"),
        {},
        "2020-01-01 2020-01-02 2020-01-03",
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_found(what):
    values, more, classes = FOUND[what]
    target = find_target("t", values, **more)
    assert target.name == "t"
    assert target.classes == (tuple(classes.split()) if isinstance(classes, str) else classes)
    assert target.kind == {0: "number", 2: "binary"}.get(len(target.classes), "classes")


WRONG = {
    "one value": (texts("a", "a"), {}, ("'t' has 1 value ('a')", "two classes or more")),
    "a class of one row": (
        texts("a", "b", "b", "c", "c"),
        {},
        ("the class 'a' of 't' has one row only", "leave its row"),
    ),
    "a number's class of one row": (numbers(1, 2, 2, 3, 3), {}, ("class '1'", "one row only", "task number")),
    "no number": (texts("a", "b", "c"), {"task": "number"}, ("'t' has values such as 'a'", "no number but classes")),
    "positive of a number": (numbers(1, 1.5, 2), {"positive": "2"}, ("'t' is a number", "leave '2' out")),
    "positive of three": (texts(*"abcabc"), {"positive": "a"}, ("3 classes, none of which is the positive", "'a' out")),
    "positive that is none": (texts("a", "b"), {"positive": "c"}, ("'c' is no value of 't'", "'a' and 'b'")),
    "no such task": (texts("a", "b"), {"task": "ranks"}, ("task: 'ranks'", "classes or number")),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong(what):
    values, more, words = WRONG[what]
    with pytest.raises(fs.SettingError) as error:
        find_target("t", values, **more)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_labels_of_classes():
    labels = find_target("t", texts(*"cabcab")).labels(texts("b", "c", "a"))
    assert (labels.tolist(), labels.dtype) == ([1, 2, 0], np.float32)


def test_a_number_is_standardised_by_what_it_is_told():
    """As if each value were there as often as it weighs; and back into its own units."""
    values, weights = numbers(10, 20, 70, 30), np.array([1, 2, 3, 0])
    repeated = np.repeat(values, weights)
    target = Target("t").standardised(values, weights)
    assert (target.mean, target.scale) == pytest.approx((repeated.mean(), repeated.std()))
    np.testing.assert_allclose(target.labels(values), (values - repeated.mean()) / repeated.std(), rtol=1e-6)
    np.testing.assert_allclose(target.decide(target.labels(values)), values, rtol=1e-6)
    assert Target("t").standardised(numbers(5, 5)).labels(numbers(5, 6)).tolist() == [0, 1], "of no spread, as it is"


def test_how_good_answers_are():
    """By scikit-learn, for each kind; a tie of several classes is the first's, one half of two the negative's."""
    rng = np.random.default_rng(0)
    two, several, number = Target("t", ("a", "b")), Target("t", ("a", "b", "c")), Target("t", mean=7.0, scale=3.0)
    scores, labels = rng.random(50), rng.integers(0, 2, 50)
    assert two.quality(scores, labels) == pytest.approx(metrics.accuracy_score(labels, scores > 0.5))
    assert two.decide(np.array([0.5, 0.6])).tolist() == [0, 1]
    scores, labels = rng.random((50, 3)), rng.integers(0, 3, 50)
    assert several.quality(scores, labels) == pytest.approx(metrics.accuracy_score(labels, scores.argmax(axis=1)))
    assert several.decide(np.array([[0.2, 0.4, 0.4]])).tolist() == [1]
    values = rng.normal(7, 3, 50)
    labels = number.labels(values)
    scores = (labels + rng.normal(0, 0.5, 50)).astype(np.float32)
    told = number.decide(scores)
    assert number.quality(scores, labels) == pytest.approx(metrics.r2_score(values, told), abs=1e-5)
    error, r2 = metrics.root_mean_squared_error(values, told), metrics.r2_score(values, told)
    words = f"root mean squared error {error:.3g}, R2 {r2:.2f} on 50 new rows"
    assert number.told(number.tally(scores, labels), "new") == words
    assert two.told(two.tally(np.array([0.1, 0.9, 0.9, 0.9]), np.array([0, 1, 1, 0])), "new") == "75.0% of 4 new rows"


@pytest.mark.parametrize("target", [Target("t", ("a", "b")), Target("t", ("a", "ü", "c")), Target("t", (), 1.5, 1e-3)])
def test_kept_as_json(target):
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target


@pytest.mark.parametrize(
    "change",
    [{"classes": ["a"]}, {"classes": [1, 2]}, {"classes": None}, {"name": 3}, {"scale": 0}, {"mean": "x"}, {"more": 1}],
    ids=str,
)
def test_what_is_no_target(change):
    with pytest.raises((TypeError, ValueError)):
        Target.from_json(Target("t", ("a", "b")).to_json() | change)


# Models --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(), (5, 4)])
def test_the_model_of_several_classes(hidden):
    """Scores by SciPy's softmax, the loss by scikit-learn's log_loss, in double precision."""
    rng = np.random.default_rng(1)
    model = Target("t", ("a", "b", "c")).model(hidden)
    assert model == MLP(hidden, 3)
    params = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(np.float32), model.init(features=2))
    x, y = rng.normal(size=(30, 2)).astype(np.float32), rng.integers(0, 3, 30)
    hand = x.astype(np.float64)
    for layer in params[:-1]:
        hand = np.maximum(hand @ layer["w"] + layer["b"], 0)
    expected = softmax(hand @ params[-1]["w"] + params[-1]["b"], axis=1)
    examples = {"x": x, "y": y.astype(np.float32)}
    np.testing.assert_allclose(jax.vmap(model.score, (None, 0))(params, examples), expected, atol=1e-6)
    found = jax.vmap(model.loss, (None, 0))(params, examples).mean()
    assert float(found) == pytest.approx(metrics.log_loss(y, expected, labels=[0, 1, 2]), rel=1e-5)


def test_the_model_of_a_number():
    """One output, a quarter of the logit, and its squared error; it starts at the mean, where the loss is 1."""
    model = Target("t").model()
    assert model == MLP(classes=None)
    example = {"x": np.float32([1, 2]), "y": np.float32(3)}
    assert float(model.loss(model.init(features=2), {"x": example["x"], "y": np.float32(-1)})) == 1
    params = [{"w": np.float32([1, 2]), "b": np.float32(3)}]
    assert float(model.score(params, example)) == 2
    assert float(model.loss(params, example)) == 1


@pytest.mark.parametrize("classes", [1, 0, 2.5, True])
def test_no_such_model(classes):
    with pytest.raises(fs.SettingError, match=f"classes={classes}, but it must be a whole number, 2 or more"):
        MLP(classes=classes)
