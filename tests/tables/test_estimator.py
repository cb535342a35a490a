"""The scikit-learn estimator: the conventions, in full, and that it keeps its constraints."""

import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import optax
import pandas as pd
import pytest
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix, recall_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedsgm as fs
from fedsgm.tables import estimator, recipe
from fedsgm.tables.estimator import FederatedConstrainedClassifier, FederatedConstrainedRegressor
from fedsgm.tables.models import MLP

PARITY = "demographic_parity(sex) <= 0.05"


# See test_a_row_of_weight_two_is_two_rows for what is so.
NOT_SO = {
    "check_sample_weight_equivalence_on_dense_data": "a row that is there twice is two clients', a weight is one's"
}


@parametrize_with_checks(
    [FederatedConstrainedClassifier(rounds=60), FederatedConstrainedRegressor(rounds=60)],
    expected_failed_checks=lambda _: NOT_SO,
)
def test_scikit_learn_s_own_checks(estimator, check):
    """Some are of features far from 0, for which no step of a regression is small enough."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


def people(rows=400, seed=0):
    """Two groups whose features, and so whose labels, differ: a model that is only accurate is far over the bound."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["female", "male"], rows)
    X = rng.normal(size=(rows, 3)) + np.where(sex == "male", 0.8, -0.8)[:, None] * [1.0, 0.0, 0.5]
    y = (X @ [1.5, 1.0, 0.0] + rng.normal(size=rows) > 0).astype(int)
    return X, y, sex


@pytest.fixture(scope="module")
def data():
    return people()


def make(constraints=(PARITY,), **more):
    return FederatedConstrainedClassifier(list(constraints), **{"rounds": 150, "n_clients": 4} | more)


@pytest.fixture(scope="module")
def fitted(data):
    X, y, sex = data
    return make().fit(X, y, sensitive_features=pd.Series(sex, name="sex"))


def gap(model, X, y, sex):
    return demographic_parity_difference(y, model.predict(X), sensitive_features=sex)


class Begun(Exception):
    """The run would begin now."""


@pytest.fixture
def begin(data, monkeypatch):
    """``begin(model, ...)`` fits it, and gives what the engine was called with; nothing is run."""
    given = {}

    def simulate(algorithm, problem, clients, params, **more):
        given.update(algorithm=algorithm, problem=problem, clients=clients, params=params, **more)
        raise Begun

    def begin(model, y=data[1], **more):
        with pytest.raises(Begun):
            model.fit(data[0], y, **more)
        return SimpleNamespace(**given)

    monkeypatch.setattr(estimator, "simulate", simulate)
    return begin


# Constraints ---------------------------------------------------------------------------------------------------------


def test_the_constraint_is_met_where_logistic_regression_does_not(fitted, data):
    """By fairlearn's measure of each model's predictions; it is still much better than a constant answer."""
    X, y, sex = data
    assert gap(LogisticRegression().fit(X, y), X, y, sex) > 0.3
    assert gap(fitted, X, y, sex) <= 0.05
    assert fitted.score(X, y) > max(y.mean(), 1 - y.mean()) + 0.1


def test_what_it_reports_is_what_fairlearn_finds(fitted, data):
    X, y, sex = data
    (reported,) = fitted.result_.value("train", "demographic_parity(sex)", "answer")
    assert gap(fitted, X, y, sex) == pytest.approx(reported, abs=1e-6)
    assert reported <= np.float32(0.05)
    (chosen,) = fitted.result_.answer_round
    start = f"FEASIBLE: the answer (round {chosen}) is within every bound"
    assert fitted.result_.verdict().startswith(start)
    assert fitted.params_ is fitted.result_.answer


def test_without_constraints_it_is_logistic_regression(data):
    """Scikit-learn's, without regularisation, one client and full gradients: the same minimum."""
    X, y, _ = data
    model = make([], n_clients=1, step_size=1.0, rounds=400).fit(X, y)
    exact = LogisticRegression(C=np.inf, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(model.params_[0]["w"], exact.coef_[0], atol=0.02)
    np.testing.assert_allclose(model.predict_proba(X), exact.predict_proba(X), atol=0.01)


def same(left, right, X):
    return np.array_equal(left.predict_proba(X), right.predict_proba(X))


def test_a_constraint_may_be_an_object(fitted, data):
    X, y, sex = data
    parity = fs.fairness.demographic_parity(MLP().score, by="sex", groups=2) <= 0.05
    model = make([parity]).fit(X, y, sensitive_features=pd.DataFrame({"sex": sex}))
    assert same(model, fitted, X)
    assert list(model.result_.bounds) == ["demographic_parity"]


def test_one_constraint_needs_no_list(begin, data):
    parity = fs.fairness.demographic_parity(MLP().score, by="sex", groups=2) <= 0.05
    for constraints in (PARITY, parity):
        run = begin(FederatedConstrainedClassifier(constraints), sensitive_features=pd.DataFrame({"sex": data[2]}))
        assert list(run.problem.bounds.values()) == [0.05]


def test_two_constraints_and_a_network(data):
    """Equalised odds between the values of the second column, and the errors of a class given by its own label."""
    X, y, sex = data
    labels = np.where(y == 1, "yes", "no")
    model = make(
        ["equalized_odds(sensitive_feature_1) <= 0.1", "error_rate('yes') <= 0.3"],
        hidden=[4],
        step_size=0.3,
        rounds=300,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, labels, sensitive_features=np.stack([np.arange(len(y)) % 2, sex], axis=1))
    assert model.classes_.tolist() == ["no", "yes"]
    assert [layer["b"].shape for layer in model.params_] == [(4,), ()]
    values = {name: model.result_.value("train", name, "answer")[0] for name in model.result_.bounds}
    predicted = model.predict(X) == "yes"
    odds = equalized_odds_difference(y, predicted, sensitive_features=sex)
    assert values["equalized_odds(sensitive_feature_1)"] == pytest.approx(odds, abs=1e-6)
    assert values["error_rate(yes)"] == pytest.approx(1 - recall_score(y, predicted), abs=1e-6)


def test_groups_by_two_columns_and_each_client(data):
    """As fairlearn counts the groups of both columns, and NumPy each client's."""
    X, y, sex = data
    features = pd.DataFrame({"sex": sex, "race": np.where(X[:, 1] > 0.5, "a", "b")})
    features.loc[features.sex == "male", "race"] = "b"  # no man is an a: three groups of four
    clients = np.arange(len(y)) % 5
    said = ["demographic_parity(sex * race) <= 0.3", "each_client(accuracy, quantile=0.8) >= 0.6", "error_rate <= 0.4"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make(said).fit(X, y, sensitive_features=features, clients=clients)
    predicted = model.predict(X)
    found = [model.result_.value("train", name, "answer")[0] for name in model.result_.bounds]
    gap = demographic_parity_difference(y, predicted, sensitive_features=features)
    accuracies = [(predicted == y)[clients == j].mean() for j in range(5)]
    np.testing.assert_allclose(found, [gap, sorted(accuracies)[1], (predicted != y).mean()], atol=1e-6)
    assert gap > 0


def test_several_classes_without_constraints_are_multinomial_regression():
    """Scikit-learn's, without regularisation: the same minimum, of a problem that has one."""
    X, y = load_wine(return_X_y=True)
    X, names = scale(X[:, [0, 2, 7]]), np.array(["c", "a", "b"])[y]
    model = make([], n_clients=1, step_size=2.0, rounds=300).fit(X, names)
    exact = LogisticRegression(C=np.inf, tol=1e-8).fit(X, names)
    assert model.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(model.predict_proba(X), exact.predict_proba(X), atol=1e-3)
    assert (model.predict(X) == exact.predict(X)).all()
    assert model.score(X, names) == exact.score(X, names)


def test_several_classes_with_constraints():
    """As NumPy and scikit-learn count them; without the constraints both are far over."""
    X, y = load_wine(return_X_y=True)
    X = scale(X[:, [0, 2, 7]])
    side = np.where(X[:, 0] + np.random.default_rng(0).normal(size=len(y)) > 0, "left", "right")
    said = ["demographic_parity <= 0.15", "recall(2) >= 0.7"]
    models = [make(of, rounds=300).fit(X, y, sensitive_features=side) for of in ([], said)]
    found = []
    for model in models:
        decided = model.predict(X)
        shares = [np.bincount(decided[side == one], minlength=3) / (side == one).sum() for one in ("left", "right")]
        matrix = confusion_matrix(y, decided, normalize="true")
        found.append((np.abs(shares[0] - shares[1]).max(), matrix[2, 2]))
    told = [models[1].result_.value("train", name, "answer")[0] for name in models[1].result_.bounds]
    np.testing.assert_allclose(told, found[1], atol=1e-6)
    assert found[0][0] > 0.3
    assert found[1][0] <= 0.15 + 1e-6
    assert found[1][1] >= 0.7 - 1e-6


# Sensitive features and clients --------------------------------------------------------------------------------------

GIVEN = {
    "a series": (PARITY, lambda sex: pd.Series(sex, name="sex")),
    "a series with an index of its own": (
        PARITY,
        lambda sex: pd.Series(sex, name="sex", index=np.arange(len(sex))[::-1]),
    ),
    "a frame": (PARITY, lambda sex: pd.DataFrame({"age": np.arange(len(sex)) % 5, "sex": sex})),
    "categories": (PARITY, lambda sex: pd.DataFrame({"sex": pd.Categorical(sex)})),
    "an array": ("demographic_parity <= 0.05", lambda sex: sex),
    "a list": ("demographic_parity(sensitive_feature) <= 0.05", list),
    "a column": ("demographic_parity <= 0.05", lambda sex: sex[:, None]),
    "numbers": ("demographic_parity <= 0.05", lambda sex: (sex == "male").astype(float)),
    "truth values": ("demographic_parity <= 0.05", lambda sex: sex == "male"),
}


def groups(run, name):
    """The group numbers that the clients have, all of them in one row."""
    return np.concatenate([run.clients[j][name] for j in range(len(run.clients))])


@pytest.mark.parametrize("how", GIVEN)
def test_sensitive_features(how, begin, data):
    """However they are given, the groups are the same."""
    constraint, give = GIVEN[how]
    expected = begin(make([PARITY]), sensitive_features=pd.DataFrame({"sex": data[2]}))
    run = begin(make([constraint]), sensitive_features=give(data[2]))
    name = next(name for name in run.clients.examples if name not in ("x", "y", "age"))
    assert np.array_equal(groups(run, name), groups(expected, "sex"))
    assert np.array_equal(run.clients.examples["x"], expected.clients.examples["x"])


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT], ids=repr)
def test_missing_sensitive_values(missing, begin, data):
    """They are in no group, whatever stands for them."""
    sex = data[2].astype(object)
    sex[:40] = missing
    found = groups(begin(make(), sensitive_features=pd.DataFrame({"sex": sex})), "sex")
    men = (data[2][40:] == "male").sum()
    assert np.bincount(found + 1).tolist() == [40, 360 - men, men]


def test_missing_sensitive_values_do_not_count(data):
    """The gap that is reported is that of the others."""
    X, y, sex = data
    sex = np.where(np.arange(len(y)) < 40, None, sex)
    model = make(rounds=50).fit(X, y, sensitive_features=pd.DataFrame({"sex": sex}))
    (reported,) = model.result_.value("train", "demographic_parity(sex)", "answer")
    assert gap(model, X[40:], y[40:], sex[40:]) == pytest.approx(reported, abs=1e-6)


def test_infinite_is_a_group_like_any_other(begin, data):
    values = np.where(data[2] == "male", np.inf, 1.5)
    run = begin(make(["demographic_parity <= 0.05"]), sensitive_features=values)
    assert np.bincount(groups(run, "sensitive_feature")).tolist() == [(values == 1.5).sum(), (values > 2).sum()]


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA], ids=repr)
def test_clients_by_any_label(missing, begin, data):
    """Texts, numbers, and missing ones, which are a client of their own."""
    X = data[0]
    owner = np.arange(len(X)) % 4
    names = np.array(["Aachen", "Bonn", "Chemnitz", "Zürich"], object)[owner]
    without = np.where(owner == 0, missing, names)
    for labels in (owner, owner * 0.5, names, names.tolist(), pd.Series(names), without):
        run = begin(make([], n_clients=99), clients=labels)
        assert len(run.clients) == 4
        for j in range(4):
            assert np.array_equal(run.clients[j]["x"], X[owner == j].astype(np.float32))


def test_equal_random_shares_unless_told(begin, data):
    run = begin(make([], n_clients=7))
    assert sorted(run.clients.counts.tolist()) == [57] * 6 + [58]
    dealt = np.concatenate([run.clients[j]["x"] for j in range(7)])
    assert np.array_equal(np.sort(dealt, axis=0), np.sort(data[0].astype(np.float32), axis=0))


WRONG = {
    "no sensitive features": ({}, {}, "no column 'sex'; there are: none"),
    "another name": ({}, {"sensitive_features": pd.DataFrame({"sexe": ["a", "b"] * 200})}, "did you mean 'sexe'"),
    "one group": ({}, {"sensitive_features": pd.DataFrame({"sex": ["a"] * 400})}, "only one value"),
    "too few": ({}, {"sensitive_features": ["a", "b"]}, "400, 2"),
    "three axes": ({}, {"sensitive_features": np.zeros((400, 1, 1))}, "shape"),
    "a name that is taken": ({}, {"sensitive_features": pd.DataFrame({"x": ["a", "b"] * 200})}, "rename .*'x'"),
    "a name twice": (
        {},
        {"sensitive_features": pd.DataFrame(np.full((400, 2), "a"), columns=["sex", "sex"])},
        "'sex' .*twice",
    ),
    "too few clients": ({"constraints": ()}, {"clients": ["a", "b"]}, "clients has shape"),
    "a table of clients": ({"constraints": ()}, {"clients": np.zeros((400, 2))}, "clients has shape"),
    "no clients": ({"constraints": (), "n_clients": 0}, {}, "n_clients=0"),
    "a weight below 0": ({"constraints": ()}, {"sample_weight": np.arange(400) - 1.0}, "sample_weight: a weight is a"),
    "a weight that is none": ({"constraints": ()}, {"sample_weight": np.full(400, np.nan)}, "sample_weight: a weight"),
    "too few weights": ({"constraints": ()}, {"sample_weight": [1, 2]}, r"sample_weight has shape \(2,\), .*400"),
    "no weights": ({"constraints": ()}, {"sample_weight": np.zeros(400)}, "sample_weight is zero for every example"),
    "a feature called weight": (
        {},
        {"sample_weight": np.ones(400), "sensitive_features": pd.DataFrame({"weight": ["a", "b"] * 200})},
        "rename .*'weight', x, y and weight have another meaning",
    ),
    "no such thing to weigh": ({"constraints": (), "weigh": "groups"}, {}, "weigh='groups'"),
    "half a client": ({"constraints": (), "n_clients": 2.5}, {}, "n_clients=2.5"),
    "a constraint with a mistake": ({"constraints": ["demographic_party <= 1"]}, {}, "did you mean"),
    "no such class": ({"constraints": ["error_rate(2) <= 1"]}, {}, "'2' is no class"),
    "what is no constraint": ({"constraints": [0.05]}, {}, "quantity <= bound"),
    "a step back": ({"constraints": (), "step_size": -1.0}, {}, "step_size=-1"),
    "no rounds": ({"constraints": (), "rounds": 0}, {}, "rounds=0"),
    "more participants than clients": ({"constraints": (), "participants": 5}, {}, "participants=5"),
    "a width of nothing": ({"constraints": (), "hidden": (0,)}, {}, "hidden=0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong(what, data):
    X, y, _ = data
    settings, given, words = WRONG[what]
    with pytest.raises(ValueError, match=words):
        make().set_params(**settings).fit(X, y, **given)


@pytest.mark.parametrize("y", [np.zeros(400), np.linspace(0, 1, 400)], ids=["one", "real"])
def test_a_target_that_is_no_classes(y, data):
    with pytest.raises(ValueError, match=r"class|continuous"):
        make([]).fit(data[0], y)


# Weights -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FederatedConstrainedClassifier, FederatedConstrainedRegressor])
def test_a_row_of_weight_two_is_two_rows(kind, data):
    """At the same client, to rounding; a row of weight 0 is none."""
    X, _, sex = data
    y = np.digitize(X[:, 0] + X[:, 1], [-1, 1])
    weights = np.arange(len(y)) % 4
    clients = np.arange(len(y)) % 3
    constraint = "group_loss_gap <= 0.05"
    model = kind([constraint], rounds=40, step_size=0.3)
    weighted = clone(model).fit(X, y, weights, clients=clients, sensitive_features=sex)
    rows = np.repeat(np.arange(len(y)), weights)
    repeated = clone(model).fit(X[rows], y[rows], clients=clients[rows], sensitive_features=sex[rows])
    each = [one.predict_proba(X) if hasattr(one, "predict_proba") else one.predict(X) for one in (weighted, repeated)]
    np.testing.assert_allclose(each[0], each[1], atol=1e-4)
    values = [one.result_.value("train", "group_loss_gap", "answer")[0] for one in (weighted, repeated)]
    assert values[0] == pytest.approx(values[1], abs=1e-5)
    unweighted = clone(model).fit(X, y, clients=clients, sensitive_features=sex).predict(X)
    assert not np.allclose(weighted.predict(X), unweighted), "weights make a difference here"


def test_weights_go_with_their_rows(begin, data):
    """With clients and groups, too; rows of weight 0 are left out of all of them."""
    X, _, sex = data
    weights = np.arange(400) % 5 / 2
    run = begin(
        make(), sample_weight=weights, clients=np.arange(400) % 2, sensitive_features=pd.DataFrame({"sex": sex})
    )
    assert run.problem.weight({"weight": 7}) == 7
    for j in range(2):
        rows = (np.arange(400) % 2 == j) & (weights > 0)
        assert np.array_equal(run.clients[j]["x"], X[rows].astype(np.float32))
        assert np.array_equal(run.clients[j]["weight"], weights[rows].astype(np.float32))
        assert np.array_equal(run.clients[j]["sex"], sex[rows] == "male")


def test_what_is_weighed(begin):
    assert begin(make([])).problem.weigh == "rows"
    assert begin(make([], weigh="clients")).problem.weigh == "clients"
    assert begin(make([])).problem.weight is None


def test_a_run_that_diverges_is_a_warning(data):
    """A number's loss is not bounded: with such steps it grows."""
    X, _, _ = data
    with pytest.warns(ConvergenceWarning, match="the run diverged: .*smaller step size"):
        FederatedConstrainedRegressor(step_size=1e4, rounds=60).fit(X, X[:, 0])


def test_not_fitted(data):
    with pytest.raises(NotFittedError):
        make().predict(data[0])


def test_a_bound_that_is_not_met_is_a_warning(data):
    X, y, _ = data
    with pytest.warns(ConvergenceWarning, match="not met on the training data: NOT FEASIBLE"):
        model = make(["class_loss(1) <= 0.0001"], rounds=3).fit(X, y)
    assert model.predict(X).shape == y.shape


# In scikit-learn's company -------------------------------------------------------------------------------------------


def test_pipeline(fitted, data):
    """Raw units, brought to scale by the step before."""
    X, y, sex = data
    scaled = StandardScaler().fit_transform(X)
    pipeline = make_pipeline(StandardScaler(), make())
    given = {"federatedconstrainedclassifier__sensitive_features": pd.DataFrame({"sex": sex})}
    pipeline.fit(X * [1, 1000, 0.001] + 5, y, **given)
    direct = make().fit(scaled, y, sensitive_features=pd.DataFrame({"sex": sex}))
    np.testing.assert_allclose(
        pipeline.predict_proba(X * [1, 1000, 0.001] + 5), direct.predict_proba(scaled), atol=1e-4
    )
    assert gap(pipeline[-1], scaled, y, sex) <= 0.05
    assert fitted.n_features_in_ == pipeline[-1].n_features_in_ == 3


def test_grid_search(data):
    """Each fold gets its own rows of the clients and of the sensitive features; accuracy asks for no fairness."""
    X, y, sex = data
    clients = np.array(["north", "south"])[np.arange(len(y)) % 2]
    search = GridSearchCV(make(rounds=60), {"constraints": [[PARITY], []]}, cv=KFold(2), error_score="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(X, y, clients=clients, sensitive_features=pd.Series(sex, name="sex"))
    assert search.best_params_ == {"constraints": []}
    assert search.best_estimator_.result_.settings["clients"] == 2
    assert search.score(X, y) == search.best_estimator_.score(X, y)


def test_pickle(fitted, data):
    again = pickle.loads(pickle.dumps(fitted))
    assert same(again, fitted, data[0])
    assert again.result_.verdict() == fitted.result_.verdict()
    assert again.get_params() == fitted.get_params()


def test_clone(fitted, data):
    """Unfitted, with the same settings; the same data gives the same model."""
    X, y, sex = data
    copy = clone(fitted)
    assert not hasattr(copy, "params_")
    assert same(copy.fit(X, y, sensitive_features=pd.DataFrame({"sex": sex})), fitted, X)


def test_random_state(begin):
    zero, one, again = (begin(make([], random_state=s)) for s in (0, 1, np.random.RandomState(1)))
    assert one.seed == again.seed != zero.seed
    assert np.array_equal(one.clients.examples["x"], again.clients.examples["x"])
    assert not np.array_equal(one.clients.examples["x"], zero.clients.examples["x"])


def test_names_of_features(data):
    X, y, _ = data
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = make([], rounds=5).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c"]])


def test_settings_reach_the_algorithm(begin):
    given = {"rule": fs.Hard(), "step_size": 0.3, "local_steps": 3, "participants": 2, "batch_size": 7}
    given |= {"uplink": fs.TopK(0.5), "downlink": fs.ScaledSign()}
    run = begin(make([], rounds=3, hidden=[5, 2], random_state=4, **given))
    assert run.algorithm == fs.FedSGM(**given | {"step_size": recipe.Falling(0.3, 3, 0.01)})
    assert run.rounds == 3
    assert [layer["b"].shape for layer in run.params] == [(5,), (2,), ()]
    schedule = optax.constant_schedule(0.3)
    assert begin(make([], step_size=schedule)).algorithm.step_size.schedule is schedule
    assert begin(make([], rounds=500, batch_size=128)).algorithm == recipe.algorithm(), "as fit has it"
    assert begin(make([], rounds=500)).algorithm == recipe.algorithm(batch_size=None)
