"""Constraints of more than two classes: scikit-learn's and fairlearn's numbers, and exact directions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fairlearn.metrics import MetricFrame
from sklearn import metrics as sk

import fedsgm as fs
from fedsgm.tables import fairness, rates, recipe
from fedsgm.tables.grammar import build, parse
from fedsgm.tables.models import MLP
from fedsgm.tables.targets import Target

K, GROUPS = 3, 2
MODEL = MLP(classes=K)
PARAMS = [{"w": np.float32([[0.6, -0.9, 0.1], [0.4, 0.2, -0.5]]), "b": np.float32([0.1, 0.0, -0.2])}]
OPTIONS = {"by": "group", "groups": GROUPS}
OF_GROUPS = ("demographic_parity", "equal_opportunity", "equalized_odds", "group_error_gap", "worst_group_error")
OF_CLASSES = ("error_rate", "accuracy", "recall", "precision", "true_positive_rate", "false_positive_rate")


@functools.cache
def clients(seed=0):
    """Of unequal sizes and mixes; every class is in every group over all."""
    rng = np.random.default_rng(seed)
    made = []
    for size in (12, 60, 25, 43):
        y, group = rng.integers(0, K, size), rng.integers(0, GROUPS, size)
        x = rng.normal(size=(size, 2)) + 0.8 * np.eye(2, K).T[y] + 0.4 * group[:, None]
        made.append({"x": x.astype(np.float32), "y": y.astype(np.float32), "group": group.astype(np.int32)})
    return made


def whole(seed=0):
    return jax.tree.map(lambda *parts: np.concatenate(parts), *clients(seed))


def quantities():
    """Every kind, of decisions and of scores."""
    found = [fairness.group_loss_gap(MODEL.loss, **OPTIONS), fairness.worst_group_loss(MODEL.loss, **OPTIONS)]
    for scores in (False, True):
        end = "_scores" if scores else ""
        for kind in OF_GROUPS:
            found.append(getattr(fairness, kind)(MODEL.score, **OPTIONS, scores=scores, name=kind + end))
        for kind in OF_CLASSES:
            for label in range(K):
                name = f"{kind}_{label}{end}"
                found.append(getattr(fairness, kind)(MODEL.score, label=label, scores=scores, name=name))
        for kind in ("error_rate", "accuracy"):
            found.append(getattr(fairness, kind)(MODEL.score, scores=scores, name=kind + end))
    return [*found, *(fairness.class_loss(MODEL.loss, label=label) for label in range(K))]


@functools.partial(jax.jit, static_argnums=0)
def total(quantity, params, examples):
    each = jax.vmap(quantity.sums, (None, 0))(params, examples)
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), each)


def measured(quantity, params, examples):
    return float(quantity.measured(total(quantity, params, examples)))


def probabilities(examples):
    logits = examples["x"].astype(np.float64) @ PARAMS[0]["w"] + PARAMS[0]["b"]
    powers = np.exp(logits)
    return powers / powers.sum(axis=1, keepdims=True)


def by_group(metric, truth, told, group):
    """Fairlearn's; ``told`` may be decisions or the mean scores of one class."""
    return MetricFrame(metrics=metric, y_true=truth, y_pred=told, sensitive_features=group)


def mean(_, told):
    return np.mean(told)


@pytest.fixture(scope="module")
def expected():
    """Each value by its definition, from probabilities in double precision."""
    examples = whole()
    p, y, group = probabilities(examples), examples["y"].astype(int), examples["group"]
    decided, own = p.argmax(axis=1), p[np.arange(len(y)), y]

    def gap(told, rows=slice(None)):
        return by_group(mean, y[rows], told[rows], group[rows]).difference()

    found = {}
    for end, of in (("", np.eye(K)[decided]), ("_scores", p)):
        right = of[np.arange(len(y)), y]
        found |= {
            f"demographic_parity{end}": max(gap(of[:, k]) for k in range(K)),
            f"equal_opportunity{end}": max(gap(right, y == k) for k in range(K)),
            f"equalized_odds{end}": max(gap(of[:, k], y == true) for k in range(K) for true in range(K)),
            f"group_error_gap{end}": gap(1 - right),
            f"worst_group_error{end}": by_group(mean, y, 1 - right, group).group_max(),
            f"error_rate{end}": (1 - right).mean(),
            f"accuracy{end}": right.mean(),
        }
        for k in range(K):
            found |= {
                f"error_rate_{k}{end}": (1 - right)[y == k].mean(),
                f"accuracy_{k}{end}": right[y == k].mean(),
                f"recall_{k}{end}": of[y == k, k].mean(),
                f"true_positive_rate_{k}{end}": of[y == k, k].mean(),
                f"false_positive_rate_{k}{end}": of[y != k, k].mean(),
                f"precision_{k}{end}": of[y == k, k].sum() / of[:, k].sum(),
            }
    losses = by_group(lambda _, told: -np.log(told).mean(), y, own, group)
    found |= {"group_loss_gap": losses.difference(), "worst_group_loss": losses.group_max()}
    return found | {f"class_loss_{k}": -np.log(own[y == k]).mean() for k in range(K)}


def test_the_definitions_are_those_of_scikit_learn(expected):
    examples = whole()
    y, decided = examples["y"].astype(int), probabilities(examples).argmax(axis=1)
    matrix = sk.confusion_matrix(y, decided)
    assert expected["accuracy"] == pytest.approx(sk.accuracy_score(y, decided))
    for k, (recall, precision) in enumerate(
        zip(sk.recall_score(y, decided, average=None), sk.precision_score(y, decided, average=None), strict=True)
    ):
        assert expected[f"recall_{k}"] == pytest.approx(recall)
        assert expected[f"precision_{k}"] == pytest.approx(precision)
        others = np.delete(matrix, k, axis=0)
        assert expected[f"false_positive_rate_{k}"] == pytest.approx(others[:, k].sum() / others.sum())
    rates = [
        sk.confusion_matrix(y[rows], decided[rows], normalize="true")
        for rows in (examples["group"] == g for g in range(GROUPS))
    ]
    assert expected["equalized_odds"] == pytest.approx(np.abs(rates[0] - rates[1]).max())
    assert expected["equal_opportunity"] == pytest.approx(np.abs(np.diag(rates[0] - rates[1])).max())


@pytest.mark.parametrize("quantity", quantities(), ids=lambda quantity: quantity.label)
def test_every_quantity(quantity, expected):
    assert measured(quantity, PARAMS, whole()) == pytest.approx(expected[quantity.label], abs=1e-5)


def test_every_quantity_is_expected(expected):
    assert {quantity.label for quantity in quantities()} == expected.keys()


@jax.jit
def mean_direction(problem, data):
    """Of the clients, in a constraint step of a round in which all take part."""
    key = jax.random.key(0)
    measured = problem.combine(jax.vmap(lambda d: problem.measure(PARAMS, d, key)[0])(data), 0.0, key)
    direction = fs.Direction(jnp.float32(0), jnp.float32(1), measured.guide)
    each = jax.vmap(lambda d: problem.direction(PARAMS, direction, d, None, key))(data)
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), each)


def test_the_mean_of_the_clients_directions_is_the_gradient_of_the_pooled_value():
    """Of the surrogates, where the value is the largest over pairs of classes; by the definition, over all rows.

    One problem has them all, of which one at a time is violated.
    """
    kinds = [getattr(fairness, kind)(MODEL.score, **OPTIONS) for kind in OF_GROUPS]
    kinds += [fairness.false_positive_rate(MODEL.score, label=2), fairness.precision(MODEL.score, label=2)]
    exact = jax.jit(
        jax.jacrev(lambda params: [quantity.descended(total(quantity, params, whole())) for quantity in kinds])
    )
    problems = [fs.Problem(MODEL.loss, [q <= (-1.0 if q is violated else 1e3) for q in kinds]) for violated in kinds]
    data = problems[0].prepare(fs.Clients.from_list(clients()), PARAMS)
    for problem, gradient in zip(problems, exact(PARAMS), strict=True):
        mine = mean_direction(problem, data)
        assert np.abs(gradient[0]["w"]).max() > 1e-3
        np.testing.assert_allclose(mine[0]["w"], gradient[0]["w"], rtol=1e-4, atol=2e-6)


def parts_by_numpy(kind, y, decided, group):
    """Of each rate that is compared, the differences of any two groups, each way."""
    told = np.eye(K)[decided]
    each = {
        "demographic_parity": [told[group == g].mean(axis=0) for g in range(GROUPS)],
        "equal_opportunity": [sk.recall_score(y[group == g], decided[group == g], average=None) for g in range(GROUPS)],
        "equalized_odds": [
            sk.confusion_matrix(y[group == g], decided[group == g], normalize="true").ravel() for g in range(GROUPS)
        ],
    }[kind]
    return np.concatenate([each[0] - each[1], each[1] - each[0]])


@pytest.mark.parametrize("kind", ["demographic_parity", "equal_opportunity", "equalized_odds"])
def test_every_pair_of_groups_and_class_is_a_part_where_their_number_is_told(kind, monkeypatch):
    """By scikit-learn; the value is what it is untold, and of too many parts the largest over classes is one."""
    examples = whole()
    expected = parts_by_numpy(
        kind, examples["y"].astype(int), probabilities(examples).argmax(axis=1), examples["group"]
    )
    told, untold = (getattr(fairness, kind)(MODEL.score, **OPTIONS, classes=classes) for classes in (K, 2))
    sums = total(told, PARAMS, examples)
    assert told.parts == len(expected)
    np.testing.assert_allclose(np.sort(told.measured_parts(sums)), np.sort(expected), atol=1e-6)
    assert told.measured(sums) == pytest.approx(untold.measured(sums))
    monkeypatch.setattr(rates, "_MOST_PARTS", len(expected) - 1)
    fewer = getattr(fairness, kind)(MODEL.score, **OPTIONS, classes=K, name="fewer")
    assert fewer.parts == GROUPS * (GROUPS - 1)
    assert fewer.measured(sums) == pytest.approx(untold.measured(sums))


def test_a_multiplier_for_each_class_keeps_the_bound_at_a_lower_loss():
    """Three groups of three classes; and constraints in words tell how many classes there are."""
    rng = np.random.default_rng(0)
    group, x = rng.integers(0, 3, 900), rng.normal(size=(900, 4))
    x[:, 0] += 0.9 * group
    y = np.argmax(x @ rng.normal(size=(4, K)) + rng.gumbel(size=(900, K)), axis=1)
    examples = {"x": x.astype(np.float32), "y": y.astype(np.float32), "group": group.astype(np.int32)}
    dealt = fs.split(examples, clients=3, scheme=fs.iid())
    found = []
    for classes in (2, K):
        gap = fairness.equalized_odds(MODEL.score, by="group", groups=3, classes=classes) <= 0.05
        problem, start = fs.Problem(MODEL.loss, [gap], weigh="rows"), MODEL.init(4)
        result = fs.simulate(recipe.algorithm(rounds=200), problem, dealt, start, rounds=200, progress=False)
        found.append([result.value("train", name, "answer")[0] for name in ("objective", "equalized_odds")])
    assert found[1][1] <= 0.05
    assert found[1][0] < found[0][0] - 0.01
    said = build(
        parse("equalized_odds(sex) <= 0.1"), MODEL, groups={"sex": ("a", "b", "c")}, target=Target("y", ("p", "q", "r"))
    )
    assert said.parts == 3 * 2 * K * K


def two(model):
    """A score of two classes as a vector of their probabilities, and everything of a class by its label."""

    def score(params, example):
        p = model.score(params, example)
        return jnp.stack([1 - p, p])

    found = [(name, {"label": label}) for name in OF_CLASSES for label in (0, 1)]
    found += [(name, {}) for name in ("error_rate", "accuracy")]
    found += [(name, OPTIONS) for name in ("demographic_parity", "equalized_odds", *OF_GROUPS[3:])]
    return [(getattr(fairness, name)(model.score, **of), getattr(fairness, name)(score, **of)) for name, of in found]


def test_two_classes_as_a_vector_are_as_with_one_score():
    """Values, surrogates and gradients. (Equal opportunity is of the positive class of two, but of all of several.)"""
    examples = whole() | {"y": np.float32(whole()["y"] == 1)}
    params = [{"w": np.float32([0.7, -0.4]), "b": np.float32(0.2)}]
    pairs = two(MLP())

    def both(params, which):
        totals = [(q, total(q, params, examples)) for q in (pair[which] for pair in pairs)]
        return jnp.stack([q.descended(t) for q, t in totals]), jnp.stack([q.measured(t) for q, t in totals])

    both = jax.jit(both, static_argnums=1)
    slopes = jax.jit(jax.jacrev(lambda params, which: both(params, which)[0]), static_argnums=1)
    for one, vector in zip(both(params, 0), both(params, 1), strict=True):
        np.testing.assert_allclose(one, vector, atol=1e-6)
    np.testing.assert_allclose(slopes(params, 0)[0]["w"], slopes(params, 1)[0]["w"], atol=2e-6)


def test_the_surrogate_is_the_softmax_of_four_times_the_logits():
    logits = np.linspace(-2, 3, 5).astype(np.float32)
    soft, hard = rates.smooth_and_decided("a", jax.nn.softmax(logits), False, 0.5)
    steep = np.exp(4 * logits.astype(np.float64))
    np.testing.assert_allclose(soft, steep / steep.sum(), atol=1e-6)
    np.testing.assert_array_equal(hard, [0, 0, 0, 0, 1])
    certain = jax.grad(lambda z: rates.smooth_and_decided("a", jax.nn.softmax(z), False, 0.5)[0][1])(1e3 * logits)
    assert np.isfinite(certain).all()


def test_a_run_ends_within_bounds_on_decisions():
    """By NumPy: without bounds the gap is far over, with them decisions are within, and better than one answer."""
    dealt = fs.Clients.from_list(clients())
    bounds = [
        fairness.demographic_parity(MODEL.score, **OPTIONS) <= 0.1,
        fairness.recall(MODEL.score, label=2) >= 0.6,
    ]
    params = MODEL.init(features=2)
    free = fs.simulate(fs.FedSGM(0.5), fs.Problem(MODEL.loss), dealt, params, rounds=200, progress=False)
    problem = fs.Problem(MODEL.loss, bounds)
    result = fs.simulate(fs.FedSGM(0.3, rule=fs.Soft(20.0)), problem, dealt, params, rounds=300, progress=False)
    examples = whole()
    gaps = []
    for answer in (free.answer, result.answer):
        decided = np.argmax(examples["x"] @ answer[0]["w"] + answer[0]["b"], axis=1)
        each = [
            np.bincount(decided[examples["group"] == g], minlength=K) / (examples["group"] == g).sum() for g in (0, 1)
        ]
        gaps.append(np.abs(each[0] - each[1]).max())
    assert gaps[0] > 0.15
    assert gaps[1] <= 0.1
    assert result.value("train", "demographic_parity", "answer")[0] == pytest.approx(gaps[1], abs=1e-6)
    assert result.feasible.all()
    assert (decided == examples["y"])[examples["y"] == 2].mean() >= 0.6
    assert (decided == examples["y"]).mean() > np.bincount(examples["y"].astype(int)).max() / len(decided) + 0.1


REFUSED = {
    "a class too many": (fairness.recall(MODEL.score, label=3), "label=3, but the score is of 3 classes, 0 to 2"),
    "a class of two too many": (fairness.precision(MLP().score, label=2), "label=2, but the score is of 2 classes"),
    "classes that are not those": (
        fairness.demographic_parity(MODEL.score, **OPTIONS, classes=4),
        r"demographic_parity: classes=4, but a score has shape \(3,\)",
    ),
    "a threshold": (fairness.error_rate(MODEL.score, threshold=0.7), "threshold=0.7 is for one score, .* are 3"),
    "one class": (fairness.error_rate(lambda p, e: MODEL.score(p, e)[:1]), r"shape \(1,\)"),
    "a matrix": (fairness.error_rate(lambda p, e: MODEL.score(p, e)[None]), r"shape \(1, 3\)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    quantity, words = REFUSED[what]
    params = [{"w": np.zeros(2, np.float32), "b": np.float32(0)}] if "of two" in what else PARAMS
    with pytest.raises(fs.SettingError, match=words):
        fs.simulate(
            fs.FedSGM(0.1),
            fs.Problem(fs.Mean(lambda _, e: 0.0 * e["x"][0]), [quantity <= 1]),
            fs.Clients.from_list(clients()),
            params,
            rounds=1,
            progress=False,
        )
