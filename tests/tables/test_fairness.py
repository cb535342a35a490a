"""Constraints that are no means over clients: exact directions, fairlearn's numbers, and what is undefined."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fairlearn import metrics
from sklearn import metrics as sk
from sklearn.metrics import log_loss

import fedsgm as fs
from fedsgm.tables import fairness, rates
from fedsgm.tables.targets import Target

SIZES = (9, 31, 14, 40, 22)
OF_CLASSES = ("error_rate", "accuracy", "recall", "precision", "true_positive_rate", "false_positive_rate")


def score(params, example):
    return jax.nn.sigmoid(example["x"] @ params["w"] + params["b"])


def loss(params, example):
    z = example["x"] @ params["w"] + params["b"]
    return jnp.logaddexp(0.0, z) - example["y"] * z


@functools.cache
def constraints(groups):
    """Every ready-made constraint; a new one goes here and is covered."""
    options = {"by": "group", "groups": groups}
    found = [fairness.group_loss_gap(loss, **options), fairness.worst_group_loss(loss, **options)]
    found += [fairness.mean_gap(score, **options, unit=3.0)]
    found += [fairness.class_loss(loss, label=1), fairness.error_rate(score), fairness.accuracy(score)]
    for name in ("demographic_parity", "equal_opportunity", "equalized_odds", "group_error_gap", "worst_group_error"):
        found.append(getattr(fairness, name)(score, **options))
        found.append(getattr(fairness, name)(score, **options, scores=True, name=f"{name}_scores"))
    for name in OF_CLASSES:
        found.append(getattr(fairness, name)(score, label=0))
        found.append(getattr(fairness, name)(score, label=1, scores=True, name=f"{name}_1_scores"))
    return found


def test_every_ready_made_constraint_is_in_the_list():
    """Each function of the module, and its form of scores where it has one."""
    made = {
        name: f for name, f in inspect.getmembers(fairness, inspect.isfunction) if f.__module__ == fairness.__name__
    }
    labels = [quantity.label for quantity in constraints(2)]
    assert len(made) >= 14
    for name, function in made.items():
        assert any(label.startswith(name) for label in labels), name
        of_scores = [label for label in labels if label.startswith(name) and label.endswith("_scores")]
        assert bool(of_scores) == ("scores" in inspect.signature(function).parameters), name


CASES = [pytest.param(groups, c.label, id=f"{groups}-{c.label}") for groups in (2, 3) for c in constraints(groups)]


def make(groups, seed=0):
    """Clients of unequal sizes and mixes; client 0 has no member of group 1, but both classes."""
    rng = np.random.default_rng(seed)
    clients = []
    for j, size in enumerate(SIZES):
        group = rng.integers(0, groups, size)
        if j == 0:
            group[group == 1] = 0
        y = rng.integers(0, 2, size)
        y[:2] = 0, 1
        x = rng.normal(size=(size, 3)) + 0.5 * group[:, None] + 0.7 * y[:, None] - 0.6
        clients.append({"x": x.astype(np.float32), "y": y.astype(np.float32), "group": group.astype(np.int32)})
    return clients


PARAMS = {"w": np.float32([0.6, -0.9, 0.4]), "b": np.array(0.1, np.float32)}


@pytest.fixture
def params():
    return PARAMS


def prepared(quantity, clients, params, follow="largest"):
    problem = fs.Problem(loss, [quantity <= 0.05], follow)
    return problem, problem.prepare(fs.Clients.from_list(clients), params)


@functools.cache
def all_prepared(groups, seed):
    """The clients' data for a problem with every ready-made constraint."""
    problem = fs.Problem(loss, [quantity <= 0.05 for quantity in constraints(groups)])
    return problem.prepare(fs.Clients.from_list(make(groups, seed)), PARAMS)


def pooled_value(quantity, clients):
    """The quantity of everybody, straight from its definition: a function of params in one piece."""
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *clients)

    def value(params):
        each = jax.vmap(quantity.sums, (None, 0))(params, whole)
        return quantity.descended(jax.tree.map(lambda a: jnp.sum(a, axis=0), each))

    return value


@jax.jit
def constraint_gradients(problem, params, data):
    """Every client's direction in a constraint step of a round in which all take part."""
    key = jax.random.key(0)
    statistics = jax.vmap(lambda d: problem.measure(params, d, key)[0])(data)
    measured = problem.combine(statistics, 0.0, key)
    direction = fs.Direction(jnp.float32(0), jnp.float32(1), measured.guide)
    return jax.vmap(lambda d: problem.direction(params, direction, d, None, key))(data)


@functools.cache
def pooled_gradients(groups):
    """Of every ready-made constraint, by name."""
    values = {quantity.label: pooled_value(quantity, make(groups)) for quantity in constraints(groups)}
    return jax.jit(jax.jacrev(lambda params: {name: value(params) for name, value in values.items()}))(PARAMS)


@pytest.mark.parametrize(("groups", "label"), CASES)
def test_the_mean_of_linearized_gradients_is_the_gradient_of_the_pooled_value(groups, label, params):
    """In one problem that has them all, of which this one alone is violated: one program serves every case."""
    problem = fs.Problem(loss, [q <= (-1.0 if q.label == label else 1e3) for q in constraints(groups)])
    mine = constraint_gradients(problem, params, all_prepared(groups, 0))
    exact = pooled_gradients(groups)[label]
    for name in ("w", "b"):
        assert np.abs(exact[name]).max() > 1e-3
        np.testing.assert_allclose(np.mean(mine[name], axis=0), exact[name], rtol=2e-5, atol=2e-6)


def test_local_gradients_are_those_of_each_clients_own_value(params):
    clients = make(2)
    quantity = fairness.demographic_parity(score, by="group", groups=2, gradient="local")
    problem, data = prepared(quantity, clients, params)
    key = jax.random.key(0)
    direction = fs.Direction(jnp.float32(0), jnp.float32(1), (jnp.ones(1), (None,)))
    mine = jax.jit(jax.vmap(lambda d: problem.direction(params, direction, d, None, key)))(data)
    np.testing.assert_array_equal(mine["w"][0], 0)  # it has one group only: no gap to descend
    for j in range(1, len(clients)):
        own = jax.jit(jax.grad(pooled_value(quantity, [clients[j]])))(params)
        np.testing.assert_allclose(mine["w"][j], own["w"], rtol=1e-4, atol=1e-6)


@jax.jit
def true_values(problem, params, data):
    return problem.summarise(jax.vmap(lambda d: problem.evaluate(params, d, jax.random.key(0)))(data))[0]


def values(quantity, clients, params):
    problem, data = prepared(quantity, clients, params)
    return float(true_values(problem, params, data)[quantity.label])


@functools.cache
def all_values(groups, seed):
    """Of every ready-made constraint, as one problem has them all."""
    problem = fs.Problem(loss, [quantity <= 0.05 for quantity in constraints(groups)])
    found = true_values(problem, PARAMS, all_prepared(groups, seed))
    return {name: float(value) for name, value in found.items() if name != "objective"}


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_numbers_as_fairlearn_and_scikit_learn(groups, seed, params):
    clients = make(groups, seed)
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *clients)
    y, group = whole["y"].astype(int), whole["group"]
    scores = np.asarray(jax.vmap(score, (None, 0))(params, whole), np.float64)
    decided = (scores > 0.5).astype(int)
    by_group = {"sensitive_features": group}

    def gap(metric, truth, predicted, rows=slice(None)):
        return metrics.MetricFrame(
            metrics=metric, y_true=truth[rows], y_pred=predicted[rows], sensitive_features=group[rows]
        ).difference()

    losses = metrics.MetricFrame(
        metrics=lambda a, b: log_loss(a, b, labels=[0, 1]), y_true=y, y_pred=scores, **by_group
    )
    errors = metrics.MetricFrame(metrics=sk.zero_one_loss, y_true=y, y_pred=decided, **by_group)
    wrong = np.where(y == 1, 1 - scores, scores)
    wrongs = [wrong[group == one].mean() for one in range(groups)]
    true_rate, false_rate = (gap(metrics.mean_prediction, y, scores, y == label) for label in (1, 0))
    expected = {
        "demographic_parity": metrics.demographic_parity_difference(y, decided, **by_group),
        "demographic_parity_scores": gap(metrics.mean_prediction, y, scores),
        "equal_opportunity": metrics.equal_opportunity_difference(y, decided, **by_group),
        "equal_opportunity_scores": true_rate,
        "equalized_odds": metrics.equalized_odds_difference(y, decided, **by_group),
        "equalized_odds_scores": max(true_rate, false_rate),
        "group_error_gap": errors.difference(),
        "group_error_gap_scores": max(wrongs) - min(wrongs),
        "worst_group_error": errors.group_max(),
        "worst_group_error_scores": max(wrongs),
        "group_loss_gap": losses.difference(),
        "worst_group_loss": losses.group_max(),
        "mean_gap": 3 * gap(metrics.mean_prediction, y, scores),
        "class_loss_1": log_loss(y[y == 1], scores[y == 1], labels=[0, 1]),
        "error_rate": sk.zero_one_loss(y, decided),
        "accuracy": sk.accuracy_score(y, decided),
    }
    for label in (0, 1):
        named = scores if label == 1 else 1 - scores  # the score of this class
        recall = sk.recall_score(y, decided, pos_label=label)
        mean = named[y == label].mean()
        expected |= {
            f"error_rate_{label}": 1 - recall,
            f"error_rate_{label}_scores": 1 - mean,
            f"accuracy_{label}": sk.accuracy_score(y[y == label], decided[y == label]),
            f"accuracy_{label}_scores": mean,
            f"recall_{label}": recall,
            f"recall_{label}_scores": mean,
            f"true_positive_rate_{label}": metrics.true_positive_rate(y, decided, pos_label=label),
            f"true_positive_rate_{label}_scores": mean,
            f"false_positive_rate_{label}": metrics.false_positive_rate(y, decided, pos_label=label),
            f"false_positive_rate_{label}_scores": named[y != label].mean(),
            f"precision_{label}": sk.precision_score(y, decided, pos_label=label),
            f"precision_{label}_scores": named[y == label].sum() / named.sum(),
        }
    measured = dict(all_values(groups, seed))
    for name in OF_CLASSES:
        for label, of_scores in itertools.product((0, 1), (False, True)):
            quantity = getattr(fairness, name)(score, label=label, scores=of_scores)
            total = jax.tree.map(lambda a: jnp.sum(a, axis=0), jax.vmap(quantity.sums, (None, 0))(params, whole))
            measured[f"{quantity.label}_scores" if of_scores else quantity.label] = float(quantity.measured(total))
    assert measured.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(measured[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("groups", [2, 3])
def test_every_ready_made_constraint_runs(groups, params):
    """A few rounds against all of them, in which participants and batches of six may lack a group: all stays finite."""
    found = all_values(groups, 0)
    problem = fs.Problem(loss, [quantity <= 0.8 * found[quantity.label] for quantity in constraints(groups)], "sum")
    clients = fs.Clients.from_list(make(groups))
    algorithm = fs.FedSGM(0.05, local_steps=2, participants=2, rule=fs.Soft(10.0), batch_size=6)
    result = fs.simulate(algorithm, problem, clients, params, rounds=60, progress=False)
    assert (result.history["weight"] > 0).any()
    assert np.isfinite(result.last["w"]).all()
    for name in found:
        assert np.isfinite(result.history[name]).all(), name


def test_demographic_parity_is_met_where_it_was_not(params):
    clients = fs.Clients.from_list(make(2))
    quantity = fairness.demographic_parity(score, by="group", groups=2, scores=True)
    algorithm = fs.FedSGM(0.2, rule=fs.Soft(20.0))
    free = fs.simulate(fs.FedSGM(0.2), fs.Problem(loss), clients, params, rounds=400, evaluate_every=0, progress=False)
    assert values(quantity, make(2), free.last) > 0.1
    problem = fs.Problem(loss, [quantity <= 0.05])
    result = fs.simulate(algorithm, problem, clients, params, rounds=400, progress=False)
    assert result.history["demographic_parity"][0, -50:].max() <= 0.05 + 1e-3
    assert values(quantity, make(2), result.last) <= 0.05 + 1e-3


def test_switch_on_reports_the_true_rate_and_descends_the_surrogate(params):
    """The recorded value is the hard rate, a multiple of 1/count; the direction is that of the soft one."""
    clients = make(2)
    problem, data = prepared(fairness.error_rate(score, label=1), clients, params)
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *clients)
    positives = int((whole["y"] == 1).sum())
    key = jax.random.key(0)
    summary, _ = problem.summarise(jax.vmap(lambda d: problem.evaluate(params, d, key))(data))
    wrong = float(summary["error_rate_1"]) * positives
    assert abs(wrong - round(wrong)) < 1e-3
    scores = np.asarray(jax.vmap(score, (None, 0))(params, whole))
    assert round(wrong) == int(((whole["y"] == 1) & (scores <= 0.5)).sum())


@pytest.mark.parametrize("sharpness", [1, 4])
@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_the_surrogate_of_a_decision_is_a_sigmoid_about_the_threshold(threshold, sharpness):
    """Of so many times the distance of the logits, as its derivative is; in double precision by its definition."""
    z = np.linspace(-6, 6, 49)
    bias = np.log(threshold / (1 - threshold))
    expected = 1 / (1 + np.exp(-sharpness * (z - bias)))

    def surrogate(z):
        return rates.surrogate(jax.nn.sigmoid(z), threshold, sharpness)

    found, slope = jax.vmap(jax.value_and_grad(surrogate))(np.float32(z))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_allclose(slope, sharpness * expected * (1 - expected), atol=2e-5)


@pytest.mark.parametrize("sharpness", [1, 4])
@pytest.mark.parametrize("z", [-1e4, -90.0, 0.0, 90.0, 1e4])
def test_the_surrogate_of_a_certain_decision_is_finite(z, sharpness):
    found, slope = jax.value_and_grad(lambda z: rates.surrogate(jax.nn.sigmoid(z), 0.5, sharpness))(z)
    assert found == pytest.approx(0.5 if z == 0 else float(z > 0), abs=1e-30)
    assert slope == pytest.approx(sharpness / 4 if z == 0 else 0, abs=1e-30)


def test_a_threshold_of_ones_own(params):
    """A loan for those with 70 % or more: the rates are those of these decisions."""
    clients = make(2)
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *clients)
    decided = np.asarray(jax.vmap(score, (None, 0))(params, whole)) > 0.7
    assert decided.any()
    named = whole["y"][decided]
    assert values(fairness.precision(score, label=1, threshold=0.7), clients, params) == pytest.approx(named.mean())
    gap = abs(decided[whole["group"] == 0].mean() - decided[whole["group"] == 1].mean())
    quantity = fairness.demographic_parity(score, by="group", groups=2, threshold=0.7)
    assert values(quantity, clients, params) == pytest.approx(gap, abs=1e-6)


def test_the_precision_of_a_class_that_nobody_is_decided_to_be_of_is_0():
    """As scikit-learn has it; at scores of one half all decisions are 0, and a run can start there."""
    start = {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}
    quantity = fairness.precision(score, label=1)
    assert values(quantity, make(2), start) == 0
    clients = fs.Clients.from_list(make(2))
    problem = fs.Problem(loss, [quantity >= 0.75])
    result = fs.simulate(fs.FedSGM(0.3, rule=fs.Soft(10.0)), problem, clients, start, rounds=200, progress=False)
    assert result.feasible.all()
    assert result.history["weight"][0, 0] == 1, "the first step is for the constraint"


def test_a_run_on_decisions_ends_within_a_bound_on_decisions(params):
    """By default a gap is of decisions, in the history as NumPy counts it at the end."""
    clients = fs.Clients.from_list(make(2))
    problem = fs.Problem(loss, [fairness.demographic_parity(score, by="group", groups=2) <= 0.1])
    result = fs.simulate(fs.FedSGM(0.1, rule=fs.Soft(20.0)), problem, clients, params, rounds=300, progress=False)
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *make(2))
    decided = np.asarray(jax.vmap(score, (None, 0))(result.answer, whole)) > 0.5
    gap = abs(decided[whole["group"] == 0].mean() - decided[whole["group"] == 1].mean())
    assert result.value("train", "demographic_parity", "answer")[0] == pytest.approx(gap, abs=1e-6)
    assert result.feasible.all()
    assert gap <= 0.1


def test_a_group_that_nobody_has_is_an_error(params):
    clients = fs.Clients.from_list(make(2))
    for quantity in constraints(3):
        if any(word in quantity.label for word in ("group", "parity", "equal", "mean")):
            with pytest.raises(fs.SettingError, match=r"no client has an example of group .*2, which the constraint"):
                fs.simulate(fs.FedSGM(0.1), fs.Problem(loss, [quantity <= 0.1]), clients, params, rounds=1)


def test_a_statistic_must_fit():
    with pytest.raises(fs.SettingError, match="gradient='exact', but it must be 'linearized' or 'local'"):
        fs.Statistic(score, lambda total: total, gradient="exact")
    with pytest.raises(fs.SettingError, match="Statistic: value=None, but it must be a function"):
        fs.Statistic(score, None)
    with pytest.raises(fs.SettingError, match="groups=1, but there must be 2 or more"):
        fairness.demographic_parity(score, by="group", groups=1)
    with pytest.raises(fs.SettingError, match="recall: label=-1, but it must be a whole number, 0 or more"):
        fairness.recall(score, label=-1)
    with pytest.raises(fs.SettingError, match="mean_gap: unit=0, but it must be a finite number above 0"):
        fairness.mean_gap(score, by="group", groups=2, unit=0)
    for threshold in (0, 1, 50, "half"):
        with pytest.raises(fs.SettingError, match=r"threshold=.*, but it must be a number between 0 and 1"):
            fairness.precision(score, label=1, threshold=threshold)
    with pytest.raises(fs.SettingError, match="scores='soft', but it must be True, for mean scores, or False"):
        fairness.equalized_odds(score, by="group", groups=2, scores="soft")
    with pytest.raises(fs.SettingError, match="follow='all', but it must be one of shared, largest, random, sum"):
        fs.Problem(loss, [], "all")


def test_a_statistic_whose_value_is_a_vector_or_undefined(params):
    clients = fs.Clients.from_list(make(2))
    vector = fs.Statistic(lambda _, e: e["x"], lambda total: total, name="vector")
    with pytest.raises(fs.SettingError, match=r"the constraint 'vector': its value must return one .* shape \(3,\)"):
        fs.simulate(fs.FedSGM(0.1), fs.Problem(loss, [vector <= 0.1]), clients, params, rounds=1)
    undefined = fs.Statistic(lambda _, e: e["x"][0], lambda total: total * jnp.nan, name="undefined")
    with pytest.raises(fs.SettingError, match="the constraint 'undefined' is not a number over all data"):
        fs.simulate(fs.FedSGM(0.1), fs.Problem(loss, [undefined <= 0.1]), clients, params, rounds=1)


class TestSeveralConstraints:
    """Which gradient a constraint step takes: three linear constraints with known gradients e_0, e_1, e_2."""

    def active(self, follow, values, seed=0):
        quantities = [fs.Mean(lambda p, _, i=i: p[i], name=f"g{i}") <= 0.0 for i in range(3)]
        problem = fs.Problem(lambda p, _: p @ p, quantities, follow)
        statistics = tuple(jnp.float32([value]) for value in values)
        measured = problem.combine(statistics, 0.0, jax.random.key(seed))
        return np.asarray(measured.guide[0]), float(measured.violation)

    @pytest.mark.parametrize("follow", ["shared", "largest", "random", "sum"])
    def test_none_violated_is_the_nearest(self, follow):
        weights, violation = self.active(follow, [-0.3, -0.1, -0.2])
        np.testing.assert_array_equal(weights, [0, 1, 0])
        assert violation == pytest.approx(-0.1)

    def test_shared(self):
        np.testing.assert_allclose(self.active("shared", [0.3, 0.1, -0.2])[0], [0.75, 0.25, 0])
        np.testing.assert_array_equal(self.active("shared", [-0.1, 0.0, 0.2])[0], [0, 0, 1])
        np.testing.assert_array_equal(self.active("shared", [np.nan, 1e-30, -1])[0], [0, 1, 0])
        np.testing.assert_array_equal(self.active("shared", [np.inf, np.inf, -1.0])[0], [0.5, 0.5, 0])

    def test_largest(self):
        np.testing.assert_array_equal(self.active("largest", [0.3, 0.1, -0.2])[0], [1, 0, 0])

    def test_sum(self):
        np.testing.assert_array_equal(self.active("sum", [0.3, 0.1, -0.2])[0], [1, 1, 0])

    def test_random(self):
        drawn = np.array([self.active("random", [0.3, 0.1, -0.2], seed)[0] for seed in range(200)])
        np.testing.assert_array_equal(drawn.sum(axis=1), 1)
        share = drawn.mean(axis=0)
        assert share[2] == 0
        assert abs(share[0] - 0.5) < 5 * np.sqrt(0.25 / 200)

    @pytest.mark.parametrize("follow", ["shared", "largest", "random", "sum"])
    def test_each_reaches_a_point_within_all_bounds(self, follow):
        """min |w - 1|^2 subject to w_i <= c_i: the optimum is min(1, c), in closed form.

        At the end the iterate chatters around it by steps of at most 0.002 |grad f| < 0.01.
        """
        bounds = [0.2, -0.3, 2.0]
        quantities = [fs.Mean(lambda p, _, i=i: p[i], name=f"g{i}") <= c for i, c in enumerate(bounds)]
        problem = fs.Problem(lambda p, _: jnp.sum((p - 1) ** 2), quantities, follow)
        clients = fs.Clients.from_list([{"a": np.zeros(1)}])
        result = fs.simulate(
            fs.FedSGM(0.002), problem, clients, np.zeros(3, np.float32), rounds=12_000, evaluate_every=0, progress=False
        )
        np.testing.assert_allclose(result.last, np.minimum(1, bounds), atol=0.01)


def test_the_same_constraint_with_another_bound_is_the_same_program():
    """So that fits one after another compile nothing, as in a search or for several bounds."""

    def posed(bound):
        model = Target("y", ("no", "yes")).model((3,))
        gap = fairness.equalized_odds(model.score, by="g", groups=3, threshold=0.4)
        return fs.Problem(model.loss, [gap <= bound, fairness.recall(model.score, label=1) >= bound])

    one, other = (jax.tree.structure(posed(bound)) for bound in (0.1, 0.2))
    assert one == other
    assert hash(one) == hash(other)
