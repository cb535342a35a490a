"""Several constraints that share a step: against NumPy, as one constraint to the bit, and in both engines."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess
from support.runs import assert_identical, logistic, negative, positive

N, D, COUNT, BETA = 6, 5, 4, 8.0
RNG = np.random.default_rng(11)
A = (RNG.normal(size=(N, D)) + 1).astype(np.float32)
B = (RNG.normal(size=(N, COUNT, D)) * 0.3 + RNG.normal(size=(COUNT, D)) + 0.5).astype(np.float32)
BOUNDS, SCALES = np.array([0.4, 0.6, 0.5, 5.0]), np.array([1.0, 2.0, 0.5, 1.0])
CLIENTS = fs.Clients.from_list([{"a": A[j : j + 1], "b": B[j : j + 1]} for j in range(N)])
START = np.ones(D, np.float32)  # where several are violated
RULES = [fs.Hard(), fs.Soft(BETA), fs.Soft(BETA, ceiling=0.5), fs.Penalty(2.0)]


def objective(w, example):
    return 0.5 * jnp.sum((w - example["a"]) ** 2)


def quantity(i):
    return fs.Mean(lambda w, example: example["b"][i] @ w, name=f"g{i}")


def problem(count=COUNT, **follow):
    each = [fs.Constraint(quantity(i), BOUNDS[i], SCALES[i]) for i in range(count)]
    return fs.Problem(objective, each, **follow)


def weights(rule, violations):
    """Of the objective, and of each constraint, in NumPy."""
    over = np.maximum(violations, 0)
    shares = over / over.sum() if over.sum() else np.eye(len(violations))[violations.argmax()]
    if isinstance(rule, fs.Soft):
        s = np.clip(1 + rule.beta * violations.max(), 0, rule.ceiling)
        return 1 - s, s * shares
    if isinstance(rule, fs.Penalty):
        return 1.0, rule.rho * (violations.max() > 0) * shares
    return 1.0 - (violations.max() > 0), (violations.max() > 0) * shares


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_run_is_numpy_s(rule):
    # beta eta E |b|^2 / scale is at most 1: with larger steps soft chatters, and a last bit grows into another path.
    eta, rounds = 0.005, 300
    made = fs.FedSGM(eta, local_steps=2, participants=4, rule=rule)
    result = fs.simulate(made, problem(), CLIENTS, START, rounds=rounds, seed=2, progress=False)
    a, b, w, met = A.astype(np.float64), B.astype(np.float64), START.astype(np.float64), set()
    for who in result.history["participants"][0]:
        of_f, of_g = weights(rule, (np.mean(b[who] @ w, axis=0) - BOUNDS) / SCALES)
        met.add(int((of_g > 0).sum()))
        totals = []
        for j in who:
            local, total = w.copy(), np.zeros(D)
            for _ in range(2):
                step = of_f * (local - a[j]) + of_g @ b[j]
                local, total = local - eta * step, total + step
            totals.append(total)
        w = w - eta * np.mean(totals, axis=0)
    np.testing.assert_allclose(result.last, w, rtol=1e-4, atol=1e-5)
    assert min(met) <= 1 < max(met), "steps that are one constraint's, and steps that are shared"


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_with_one_constraint_all_ways_are_one_to_the_bit(rule):
    made = fs.FedSGM(0.1, 2, 3, rule, uplink=fs.TopK(0.5), downlink=fs.TopK(0.5))
    first, *others = (
        fs.simulate(made, problem(1, follow=follow), CLIENTS, START, rounds=40, progress=False)
        for follow in ("shared", "largest", "random", "sum")
    )
    for other in others:
        assert_identical(first, other)


SEVERAL = [
    fs.Mean(logistic, where=positive, name="positive") <= 0.3,
    fs.Mean(logistic, where=negative, name="negative") <= 0.3,
    fs.Mean(logistic, name="everybody") <= 0.5,
]


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_both_engines_tell_clients_the_same_and_no_more_than_of_one(rule, clients, params, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    made = fs.FedSGM(0.1, 2, 4, rule, uplink=fs.TopK(count=2))
    runs = {}
    for follow in ("shared", "largest"):
        several = fs.Problem(logistic, SEVERAL, follow)
        runs[follow] = fs.simulate(made, several, clients, params, rounds=12, progress=False)
        transport = InProcess.of(Program.of(made, several, params), clients, tmp_path / follow)
        federated = fs.federate(made, several, transport, params, rounds=12, progress=False)
        for name, column in runs[follow].history.items():
            np.testing.assert_allclose(federated.history[name], column, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(runs["shared"].history["bytes_down"], runs["largest"].history["bytes_down"])
    assert np.abs(runs["shared"].last["w"] - runs["largest"].last["w"]).max() > 1e-3


def test_it_is_what_a_problem_does_unless_told():
    assert problem().follow == "shared"
