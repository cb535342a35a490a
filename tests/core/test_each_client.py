"""Runs with a constraint that every client keeps, against SciPy and in both engines."""

import numpy as np
import pytest
import scipy.optimize

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.inprocess import Fault, InProcess

CLIENTS, DIMENSION, BOUND = 8, 4, 0.3
RNG = np.random.default_rng(5)
GOAL = np.float32([1.0, 0.5, -0.5, 0.8]) + np.float32(0.1 * RNG.normal(size=(CLIENTS, DIMENSION)))
SLOPE = np.float32([0.8, 0.4, -0.4, 0.2]) + np.float32(0.3 * RNG.normal(size=(CLIENTS, DIMENSION)))
DATA = fs.Clients.from_list([{"a": GOAL[j : j + 1], "b": SLOPE[j : j + 1]} for j in range(CLIENTS)])
START = np.zeros(DIMENSION, np.float32)
EXACT = SLOPE.astype(float)


def pull(w, example):
    return (w - example["a"]) @ (w - example["a"]) / 2


def push(w, example):
    return w @ example["b"]


PUSH = fs.Mean(push, name="push")
WORST = fs.each_client(PUSH, name="worst")


def objective(w):
    return ((np.asarray(w, float) - GOAL) ** 2).sum(axis=1).mean() / 2


def optimum(*limits):
    """Within matrices' products, each with its least and largest value."""
    constraints = [scipy.optimize.LinearConstraint(*limit) for limit in limits]
    found = scipy.optimize.minimize(
        objective,
        START.astype(float),
        jac=lambda w: w - GOAL.mean(axis=0, dtype=float),
        method="SLSQP",
        constraints=constraints,
        options={"ftol": 1e-12},
    )
    assert found.success
    return found


def run(constraint, rounds=3000, **settings):
    algorithm = fs.FedSGM(**{"step_size": 0.005, "rule": fs.Hard()} | settings)
    return fs.simulate(algorithm, fs.Problem(pull, [constraint]), DATA, START, rounds=rounds, progress=False)


def test_the_worst_client_keeps_the_bound_where_the_mean_leaves_it_above():
    of_the_mean = optimum((EXACT.mean(axis=0)[None], -np.inf, BOUND))
    assert (SLOPE @ of_the_mean.x).max() > BOUND + 0.2, "the mean's bound leaves a client far above"
    best = optimum((EXACT, -np.inf, BOUND))
    assert best.fun > of_the_mean.fun + 0.01
    result = run(WORST <= BOUND)
    w = result.best_feasible
    assert (SLOPE @ w).max() <= BOUND + 1e-6
    assert objective(w) == pytest.approx(best.fun, abs=2e-3)
    np.testing.assert_allclose(w, best.x, atol=0.03)
    np.testing.assert_allclose(result.history["worst"][0, -1], (SLOPE @ result.last).max(), rtol=1e-5)
    assert result.history["worst_client"][0, -1] == np.argmax(SLOPE @ result.last)


@pytest.mark.parametrize("quantile", [1.0, 0.7])
@pytest.mark.parametrize("lowest", [False, True])
def test_the_history_has_who_is_worst_and_the_spread(quantile, lowest):
    each = fs.each_client(PUSH, quantile)
    result = run(each >= 0.1 if lowest else each <= BOUND, rounds=1)
    end = SLOPE @ result.last
    order = np.sort(end)[:: -1 if lowest else 1]
    expected = {"": order[int(np.ceil(quantile * CLIENTS)) - 1], "_client": np.flatnonzero(end == order[-1])[0]}
    expected |= {"_worst": order[-1], "_median": np.median(end), "_best": order[0]}
    for suffix, value in expected.items():
        np.testing.assert_allclose(result.history[f"push{suffix}"][0, -1], value, rtol=1e-5, err_msg=suffix)


@pytest.mark.parametrize("settings", [{"local_steps": 3, "step_size": 0.002}, {"rule": fs.Soft(200.0)}], ids=str)
def test_other_settings_reach_it_too(settings):
    best = optimum((EXACT, -np.inf, BOUND))
    assert objective(run(WORST <= BOUND, **settings).best_feasible) == pytest.approx(best.fun, abs=1e-2)


def test_a_temperature_smooths_the_steps():
    best = optimum((EXACT, -np.inf, BOUND))
    smooth = run(fs.each_client(PUSH, soft=0.02) <= BOUND)
    assert objective(smooth.best_feasible) == pytest.approx(best.fun, abs=5e-3)


def test_every_client_at_least():
    bound = 0.1
    best = optimum((EXACT, bound, np.inf), (np.eye(1, DIMENSION), -np.inf, 0.3))
    problem = fs.Problem(pull, [fs.each_client(PUSH) >= bound, fs.Mean(lambda w, _: w[0], name="first") <= 0.3])
    algorithm = fs.FedSGM(0.003)
    result = fs.simulate(algorithm, problem, DATA, START, rounds=4000, progress=False)
    assert result.history["push"][0, -1] == pytest.approx((SLOPE @ result.last).min(), rel=1e-4)
    assert result.history["push_client"][0, -1] == np.argmin(SLOPE @ result.last)
    assert (SLOPE @ result.last).min() > bound - 0.01
    assert objective(result.last) == pytest.approx(best.fun, abs=1e-2)


def test_most_clients_within():
    result = run(fs.each_client(PUSH, quantile=0.75) <= BOUND)
    w = result.best_feasible
    assert (SLOPE @ w <= BOUND + 1e-6).sum() >= 6
    assert objective(w) < objective(run(WORST <= BOUND).best_feasible) - 0.01


def some_have(example):
    return example["b"][0] > np.float32(np.median(SLOPE[:, 0]))


KINDS = {
    "worst": WORST <= BOUND,
    "soft": fs.each_client(PUSH, 0.8, 0.1) <= BOUND,
    "statistic": fs.each_client(
        fs.Statistic(
            lambda w, e: {"sum": push(w, e) * some_have(e), "count": 1.0 * some_have(e)},
            lambda total: total["sum"] / total["count"],
            name="some",
        )
    )
    <= BOUND,
    "at least": fs.each_client(PUSH) >= 0.5,
    "between": fs.between(0.1, PUSH, BOUND),
    "absent": fs.Mean(push, where=some_have, name="some", missing="absent") <= BOUND,
}


@pytest.mark.parametrize("constraint", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("rule", [fs.Hard(), fs.PrimalDual(0.5)], ids=["hard", "multipliers"])
def test_both_engines_take_the_same_steps(constraint, rule, tmp_path):
    problem = fs.Problem(pull, [constraint])
    algorithm = fs.FedSGM(0.05, local_steps=2, participants=5, rule=rule)
    settings = {"rounds": 25, "progress": False}
    simulated = fs.simulate(algorithm, problem, DATA, START, **settings)
    transport = InProcess.of(Program.of(algorithm, problem, START), DATA, tmp_path / "clients")
    federated = fs.federate(algorithm, problem, transport, START, **settings)
    np.testing.assert_allclose(federated.last, simulated.last, rtol=1e-5, atol=1e-6)
    for name in ("violation", "weight", "estimate", *(n for n in simulated.history if n.startswith(constraint.name))):
        np.testing.assert_allclose(federated.history[name], simulated.history[name], rtol=1e-4, atol=1e-5)
    assert (simulated.history["weight"] > 0).any(), "some steps go to the constraint"


def test_the_worst_client_has_its_own_number_where_another_is_away(tmp_path):
    algorithm, problem = fs.FedSGM(0.05), fs.Problem(pull, [WORST <= BOUND])
    worst = int(run(WORST <= BOUND, rounds=1).history["worst_client"][0, 0])
    assert worst > 0

    def away(_exchange, client):
        return Fault.LOSE_REQUEST if client == "client-0" else None

    transport = InProcess.of(Program.of(algorithm, problem, START), DATA, tmp_path, away)
    settings = {"rounds": 2, "progress": False, "min_participants": 2}
    history = fs.federate(algorithm, problem, transport, START, **settings).history
    assert history["evaluated"].tolist() == [[CLIENTS - 1] * 2]
    assert history["worst_client"][0, 0] == worst


@pytest.mark.usefixtures("_programs_go_with_their_test")
def test_debugging_runs_it_too():
    settings = {"rounds": 2, "progress": False}
    problem = fs.Problem(pull, [KINDS["statistic"]])
    slow = fs.simulate(fs.FedSGM(0.05), problem, DATA, START, debug=True, **settings)
    np.testing.assert_allclose(
        slow.last, fs.simulate(fs.FedSGM(0.05), problem, DATA, START, **settings).last, rtol=1e-5
    )
