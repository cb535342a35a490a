"""The estimator of a number: least squares without constraints, and the constrained optimum of a solver with them."""

import numpy as np
import optax
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

import fedsgm as fs
from fedsgm.tables.estimator import FederatedConstrainedRegressor


@pytest.fixture(scope="module")
def data():
    """Two groups whose features differ, and a number of some size far from 0."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 3)) + 0.8 * group[:, None] * [1, 0, 0.5]
    return X, 50 + 10 * (X @ [1.0, 0.5, -0.2] + 0.5 * rng.normal(size=300)), group


def test_without_constraints_it_is_least_squares(data):
    """In the units of y, whatever its size is; the loss is in units of the variance."""
    X, y, _ = data
    for values in (y, 1e6 * y, y / 1e3 - 7):
        model = FederatedConstrainedRegressor(n_clients=1, step_size=1.0, rounds=200).fit(X, values)
        exact = LinearRegression().fit(X, values)
        np.testing.assert_allclose(model.predict(X), exact.predict(X), atol=1e-3 * values.std())
        assert model.score(X, values) == pytest.approx(exact.score(X, values), abs=1e-5)
        (loss,) = model.result_.value("train", "objective", "answer")
        assert loss == pytest.approx(1 - r2_score(values, model.predict(X)), rel=1e-3)


def test_the_optimum_of_a_gap_of_means_is_the_solvers(data):
    """min |A w - y|^2 / n subject to -3 <= d w <= 3, which is convex: SLSQP's minimum, gap and predictions."""
    X, y, group = data
    A = np.c_[X, np.ones(len(y))]
    d = A[group == 1].mean(axis=0) - A[group == 0].mean(axis=0)
    free = np.linalg.lstsq(A, y, rcond=None)[0]
    assert d @ free > 6
    solved = minimize(
        lambda w: np.mean((A @ w - y) ** 2),
        free,
        jac=lambda w: 2 * A.T @ (A @ w - y) / len(y),
        constraints=[{"type": "ineq", "fun": lambda w: 3 - d @ w}, {"type": "ineq", "fun": lambda w: 3 + d @ w}],
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    settings = {"n_clients": 3, "local_steps": 1, "rounds": 1000, "step_size": 0.3, "rule": fs.PrimalDual(1.0)}
    model = FederatedConstrainedRegressor("mean_gap <= 3", **settings).fit(X, y, sensitive_features=group)
    told = model.predict(X)
    assert told[group == 1].mean() - told[group == 0].mean() == pytest.approx(3, abs=1e-3)
    assert np.mean((told - y) ** 2) == pytest.approx(solved.fun, rel=1e-4)
    np.testing.assert_allclose(told, A @ solved.x, atol=0.05)
    settings = {"n_clients": 3, "rule": fs.Hard(), "step_size": optax.constant_schedule(0.02), "rounds": 1000}
    switched = FederatedConstrainedRegressor("mean_gap <= 3", **settings)
    told = switched.fit(X, y, sensitive_features=group).predict(X)
    assert told[group == 1].mean() - told[group == 0].mean() <= 3 + 1e-4
    assert solved.fun < np.mean((told - y) ** 2) < 1.02 * solved.fun, "the paper's rule ends near it, too"


def test_losses_of_groups(data):
    """In units of the variance of y, as NumPy has it; a network, which has two outputs of one shape."""
    X, y, group = data
    y = y + 10 * group * np.random.default_rng(1).normal(size=len(y))
    said = ["worst_group_loss <= 0.65", "group_loss_gap <= 0.5", "mean_gap <= 8"]
    model = FederatedConstrainedRegressor(said, hidden=8, rounds=100).fit(X, y, sensitive_features=group)
    told = model.predict(X)
    losses = [np.mean((told - y)[group == one] ** 2) / y.var() for one in (0, 1)]
    gap = told[group == 1].mean() - told[group == 0].mean()
    found = [model.result_.value("train", name, "answer")[0] for name in model.result_.bounds]
    np.testing.assert_allclose(found, [max(losses), losses[1] - losses[0], abs(gap)], rtol=1e-4)


def test_a_rate_is_refused(data):
    X, y, group = data
    with pytest.raises(fs.SettingError, match="the target is a number, and of numbers there are: group_loss_gap"):
        FederatedConstrainedRegressor("demographic_parity <= 0.1").fit(X, y, sensitive_features=group)
