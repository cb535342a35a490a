"""A score that knows the constraints: by scikit-learn's own metrics, and what a search then picks."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from fairlearn.metrics import MetricFrame, demographic_parity_difference, equalized_odds_difference, mean_prediction
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss, precision_score, r2_score, recall_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedsgm as fs
from fedsgm.tables.estimator import FederatedConstrainedClassifier
from fedsgm.tables.scoring import FeasibleScore


@pytest.fixture(scope="module")
def people():
    """Two groups whose features, and so whose labels, differ; the rows have numbers of their own."""
    rng = np.random.default_rng(0)
    sex = rng.choice(["female", "male"], 400)
    X = rng.normal(size=(400, 3)) + np.where(sex == "male", 0.8, -0.8)[:, None] * [1.0, 0.0, 0.5]
    score = X @ [1.5, 1.0, 0.0] + rng.normal(size=400)
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=rng.permutation(1000)[:400])
    return frame, pd.Series(score, index=frame.index), pd.Series(sex, name="sex", index=frame.index)


def test_excess_by_other_metrics(people):
    X, score, sex = people
    y = np.where(score > 0, "yes", "no")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    decided, p = model.predict(X) == "yes", model.predict_proba(X)[:, 1]
    truth, groups = y == "yes", {"sensitive_features": sex}
    losses = MetricFrame(metrics=lambda a, b: log_loss(a, b, labels=[0, 1]), y_true=truth, y_pred=p, **groups)
    means = MetricFrame(metrics=mean_prediction, y_true=truth, y_pred=p, **groups)
    for text, expected in [
        ("demographic_parity(sex)", demographic_parity_difference(truth, decided, **groups)),
        ("demographic_parity(sex, scores=True)", means.difference()),
        ("equalized_odds", equalized_odds_difference(truth, decided, **groups)),
        ("error_rate", 1 - model.score(X, y)),
        ("error_rate(yes)", 1 - recall_score(truth, decided)),
        ("precision('no')", precision_score(truth, decided, pos_label=False)),
        ("worst_group_loss(sex)", losses.group_max()),
        ("class_loss(yes)", -np.log(p[truth]).mean()),
    ]:
        found = FeasibleScore(f"{text} <= 0", sex).excess(model, X, y)
        assert found == pytest.approx(expected, abs=1e-5), text
    over = FeasibleScore(["recall(yes) >= 0.99", "demographic_parity <= 1"], sex).excess(model, X, y)
    assert over == pytest.approx(0.99 - recall_score(truth, decided), abs=1e-5)


def test_several_classes(people):
    X, score, sex = people
    y = np.digitize(score, [-1, 1])
    model = LogisticRegression().fit(X, y)
    decided = model.predict(X)
    shares = pd.crosstab(sex, decided, normalize="index")
    found = FeasibleScore("demographic_parity <= 0", sex).excess(model, X, y)
    assert found == pytest.approx((shares.max() - shares.min()).max(), abs=1e-6)
    recall = recall_score(y, decided, labels=[2], average=None)[0]
    assert FeasibleScore("error_rate(2) <= 0").excess(model, X, y) == pytest.approx(1 - recall, abs=1e-6)


def test_a_number(people):
    """The gap in units of y; the score is R squared, and a model that is worse than the mean is not below 0."""
    X, score, sex = people
    y = 100 * score
    model = LinearRegression().fit(X, y)
    told = pd.Series(model.predict(X), index=X.index).groupby(sex).mean()
    gap = told.max() - told.min()
    assert FeasibleScore("mean_gap <= 0", sex).excess(model, X, y) == pytest.approx(gap / y.std(ddof=0), rel=1e-4)
    assert FeasibleScore(f"mean_gap <= {gap + 1}", sex)(model, X, y) == pytest.approx(r2_score(y, model.predict(X)))
    assert FeasibleScore(f"mean_gap <= {gap - 1}", sex)(model, X, y) == pytest.approx(-1 / y.std(ddof=0), rel=0.01)
    assert FeasibleScore(f"mean_gap <= {gap + 1}", sex)(model, X, y - 1e4) == 0


def test_within_is_above_over(people):
    """Accuracy within every bound, and minus the excess over one."""
    X, score, sex = people
    y = score > 0
    model = LogisticRegression().fit(X, y)
    gap = demographic_parity_difference(y, model.predict(X), sensitive_features=sex)
    assert FeasibleScore(f"demographic_parity <= {gap + 1e-4}", sex)(model, X, y) == model.score(X, y)
    assert FeasibleScore("demographic_parity <= 0.05", sex)(model, X, y) == pytest.approx(0.05 - gap, abs=1e-6)
    assert FeasibleScore([])(model, X, y) == model.score(X, y)


def test_a_search_picks_the_feasible_setting(people):
    """Where accuracy alone picks the one without the constraint; the rows are found by their index in each fold."""
    X, score, sex = people
    y, bound = score > 0, "demographic_parity(sex) <= 0.02"
    model = FederatedConstrainedClassifier(rounds=60, n_clients=3, step_size=0.3)
    scoring = {"accuracy": "accuracy", "feasible": FeasibleScore("demographic_parity(sex) <= 0.35", sex)}
    search = GridSearchCV(model, {"constraints": [[], [bound]]}, scoring=scoring, refit="feasible", cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(X, y, sensitive_features=sex)
    assert search.cv_results_["rank_test_accuracy"].tolist() == [1, 2]
    assert search.best_params_ == {"constraints": [bound]}
    assert demographic_parity_difference(y, search.predict(X), sensitive_features=sex) <= 0.35
    free, within = search.cv_results_["mean_test_feasible"]
    assert free < 0
    assert within == search.cv_results_["mean_test_accuracy"][1] > 0.6


def test_by_metadata_routing(people):
    """The same scores from arrays, which have no index, where scikit-learn brings the sensitive features."""
    X, score, sex = people
    y = (score > 0).to_numpy()
    by_index = FeasibleScore("demographic_parity <= 0.5", sex)
    expected = cross_val_score(LogisticRegression(), X, y, scoring=by_index, cv=3)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = FeasibleScore("demographic_parity <= 0.5")
        given = {"sensitive_features": sex.to_numpy()}
        found = cross_val_score(LogisticRegression(), X.to_numpy(), y, scoring=routed, cv=3, params=given)
        np.testing.assert_allclose(found, expected)
        model = FederatedConstrainedClassifier(rounds=20).set_fit_request(sensitive_features=True)
        picked = GridSearchCV(model, {"step_size": [0.1, 0.3]}, scoring=routed, cv=2).fit(X.to_numpy(), y, **given)
        assert np.isfinite(picked.cv_results_["mean_test_score"]).all()


def test_it_can_be_copied(people):
    X, score, sex = people
    scorer = FeasibleScore("demographic_parity <= 0.1", sex)
    model = LogisticRegression().fit(X, score > 0)
    for copy in (pickle.loads(pickle.dumps(scorer)), clone(scorer, safe=False)):
        assert copy(model, X, score > 0) == scorer(model, X, score > 0)


WRONG = {
    "a mistake": (("demographic_party <= 1",), {}, "did you mean 'demographic_parity'"),
    "each client": (("each_client(accuracy) >= 1",), {}, "drop each_client"),
    "no sensitive features": (("demographic_parity(sex) <= 1",), {}, "no column 'sex'"),
    "no index": (("demographic_parity <= 1", ["a", "b"]), {}, "must have an index to find rows by"),
    "no such class": (("recall(3) >= 1",), {}, "'3' is no class"),
    "a class that is not there": (("recall(True) >= 0",), {"rows": slice(0, 1)}, "no value on the 1 examples"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong(what, people):
    given, more, words = WRONG[what]
    X, score, _ = people
    order = score.sort_values().index
    X, y = X.loc[order], score.loc[order] > 0
    model = LogisticRegression().fit(X, y)
    rows = more.get("rows", slice(None))
    with pytest.raises(fs.SettingError, match=words):
        FeasibleScore(*given)(model, X.iloc[rows], y.iloc[rows])


def test_an_index_that_is_there_twice(people):
    X, score, sex = people
    model = LogisticRegression().fit(X, score > 0)
    with pytest.raises(fs.SettingError, match="the same index"):
        FeasibleScore("demographic_parity <= 1", pd.concat([sex, sex]))(model, X, score > 0)
