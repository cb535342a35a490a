"""The presets and IPP-ConEx against known optima, and against loops in NumPy that follow the methods' own papers."""

import dataclasses
import functools

import numpy as np
import pytest
from optax.projections import projection_l2_ball

import fedsgm as fs
from fedsgm.methods import IPPConEx, presets
from support.conex import constraint_extrapolation
from support.known import gamma, multiplier_of, neyman_pearson, quadratic
from support.runs import assert_identical


def run(algorithm, known, rounds, clients=None, **more):
    """From the problem's start; measured only at the end unless told."""
    more = {"evaluate_every": 0} | more
    clients = known.clients if clients is None else clients
    return fs.simulate(
        algorithm, known.problem, clients, known.start.astype(np.float32), rounds=rounds, progress=False, **more
    )


@functools.cache
def vectors():
    """The quadratic's a_j and b_j, in float64."""
    clients = quadratic().clients
    return tuple(np.stack([clients[j][name][0] for j in range(len(clients))]).astype(np.float64) for name in "ab")


def top(v, k):
    """The k largest by magnitude, the first of those that tie."""
    kept = np.argsort(-np.abs(v), kind="stable")[:k]
    return np.where(np.isin(np.arange(len(v)), kept), v, 0)


def error_feedback(step_size, rounds, k, switch):
    """Seide et al. 2014 on the quadratic, in float64; ``switch(violation)`` says whether g is followed.

    Gives the last iterate, the violations it met and the longest memory.
    """
    a, b = vectors()
    w, memory = quadratic().start.astype(np.float32).astype(np.float64), np.zeros_like(a)
    violations, longest = [], 0.0
    for _ in range(rounds):
        violations.append(np.mean(b @ w) - quadratic().bound)
        total = memory + (b if switch(violations[-1]) else w - a)
        sent = np.stack([top(v, k) for v in total])
        memory = total - sent
        longest = max(longest, np.linalg.norm(memory, axis=1).max())
        w = w - step_size * sent.mean(axis=0)
    return w, np.array(violations), longest


# Without a constraint ------------------------------------------------------------------------------------------------


def test_fedavg_reaches_the_free_minimum():
    """f_j = |w - a_j|^2 / 2 have the same curvature, so local steps do not move the fixed point: it is the mean."""
    result = run(presets.fedavg(0.1, local_steps=4), quadratic(), 200)
    np.testing.assert_allclose(result.last, vectors()[0].mean(axis=0), atol=1e-5)
    assert result.value("train", "g", "last")[0] > quadratic().bound, "the constraint is measured and ignored"
    assert not result.history["weight"].any()


def test_fedavg_of_one_participant_walks_to_one_client_s_minimum():
    """With m = 1 a round is (1 - eta)^E of the way to a single a_j: the options reach the algorithm."""
    known, (a, _) = quadratic(), vectors()
    result = run(presets.fedavg(0.1, local_steps=4, participants=1), known, 1, seed=3)
    (who,) = result.history["participants"][0, 0]
    expected = a[who] + (1 - 0.1) ** 4 * (known.start - a[who])
    np.testing.assert_allclose(result.last, expected, atol=1e-6)


def test_ef14_is_the_numpy_loop_and_stays_about_the_free_minimum():
    """The iterate less eta times the mean memory descends as if nothing were compressed, so that what is left is
    at most eta times the longest memory, which 2 sqrt(1 - q) / q G bounds (G of the gradients that were met)."""
    eta, k, d = 0.05, 2, 8
    w, _, longest = error_feedback(eta, 300, k, lambda _: False)
    result = run(presets.ef14(eta, fs.TopK(count=k)), quadratic(), 300)
    np.testing.assert_allclose(result.last, w, rtol=1e-3, atol=1e-4)
    q = k / d
    assert longest <= 2 * np.sqrt(1 - q) / q * quadratic().lipschitz
    free = vectors()[0].mean(axis=0)
    away = np.linalg.norm(result.last - free)
    assert away <= eta * longest
    assert away < np.linalg.norm(quadratic().start - free) / 10
    assert not result.history["weight"].any()


# Penalty and multipliers ---------------------------------------------------------------------------------------------


def test_penalty_fedavg_reaches_the_optimum():
    """Above the multiplier the penalty is exact: the average of a subgradient method on f + rho [g]_+, with the
    bound D^2 / (2 eta T) + eta L^2 / 2 that every textbook has."""
    known, rho, eta, rounds = quadratic(), 4.0, 1e-3, 20_000
    result = run(presets.penalty_fedavg(eta, rho), known, rounds)
    lipschitz = known.lipschitz + rho * np.linalg.norm(vectors()[1], axis=1).max()
    distance = np.linalg.norm(known.start - known.optimum)
    epsilon = distance**2 / (2 * eta * rounds) + eta * lipschitz**2 / 2
    average = np.asarray(result.average, np.float64)
    violation = max(0.0, known.constraint(average) - known.bound)
    assert rho * (known.constraint(known.start) - known.bound) > 10 * epsilon, "epsilon is vacuous here"
    assert known.objective(average) + rho * violation - known.value <= epsilon
    assert violation <= epsilon / (rho - multiplier_of(known))


def test_a_small_penalty_is_not_feasible():
    """Below the multiplier, the minimum of f + rho [g]_+ is a - rho b, outside the bound: the paper's picture."""
    known, (a, b) = quadratic(), vectors()
    rho = 0.5 * multiplier_of(known)
    result = run(presets.penalty_fedavg(1e-3, rho), known, 20_000)
    np.testing.assert_allclose(result.last, a.mean(axis=0) - rho * b.mean(axis=0), atol=1e-4)
    assert not result.feasible.any()


def primal_dual_loop(step_size, dual_step, augment, rounds, local_steps=1):
    a, b = (x.mean(axis=0) for x in vectors())
    w, y, multipliers = quadratic().start.astype(np.float64), 0.0, []
    for _ in range(rounds):
        violation = b @ w - quadratic().bound
        y = max(0.0, y + dual_step * violation)
        weight = max(0.0, y + augment * violation)
        for _ in range(local_steps):
            w = w - step_size * (w - a + weight * b)
        multipliers.append(y)
    return w, np.array(multipliers)


def test_primal_dual_fedavg_plain_and_augmented():
    """Both reach the optimum and its multiplier. Near it the error obeys l^2 + (1 + augment) l + 1 = 0 in units of
    the step, complex without the augmentation (overshoot exp(-pi / sqrt 3) = 16%) and real from augment = 1 on."""
    known = quadratic()
    target = multiplier_of(known)
    overshoot = {}
    for augment in (0.0, 3.0):
        result = run(presets.primal_dual_fedavg(0.05, 0.05, augment=augment), known, 3000)
        w, multipliers = primal_dual_loop(0.05, 0.05, augment, 3000)
        np.testing.assert_allclose(result.history["multiplier"][0], multipliers, atol=1e-4)
        np.testing.assert_allclose(result.last, w, atol=1e-4)
        np.testing.assert_allclose(result.last, known.optimum, atol=1e-4)
        np.testing.assert_allclose(result.history["multiplier"][0, -1], target, rtol=1e-3)
        np.testing.assert_allclose(result.multiplier, target, rtol=1e-3)
        overshoot[augment] = result.history["multiplier"].max() / target - 1
    assert overshoot[0.0] > 0.1
    assert overshoot[3.0] < overshoot[0.0] / 10


def test_primal_dual_fedavg_takes_local_steps():
    known = quadratic()
    result = run(presets.primal_dual_fedavg(0.05, 0.05, augment=1.0, local_steps=3), known, 40)
    w, multipliers = primal_dual_loop(0.05, 0.05, 1.0, 40, local_steps=3)
    np.testing.assert_allclose(result.last, w, atol=1e-5)
    np.testing.assert_allclose(result.history["multiplier"][0], multipliers, atol=1e-5)


# Switching -----------------------------------------------------------------------------------------------------------


def switching(known, rounds):
    """Step size and epsilon of the switching subgradient method: D^2 / (2 eta T) + eta G^2 / 2, at the best eta."""
    distance = np.linalg.norm(known.start - known.optimum)
    epsilon = distance * known.lipschitz / np.sqrt(rounds)
    assert max(known.constraint(known.start) - known.bound, known.objective(known.start) - known.value) > 5 * epsilon
    return distance / (known.lipschitz * np.sqrt(rounds)), epsilon


def assert_solves(known, params, epsilon):
    w = np.asarray(params, np.float64)
    assert np.isfinite(w).all()
    assert known.objective(w) - known.value <= epsilon
    assert known.constraint(w) - known.bound <= epsilon


def test_safe_ef_is_the_numpy_loop():
    eta, k = 0.02, 2
    result = run(presets.safe_ef(eta, fs.TopK(count=k), tolerance=0.01), quadratic(), 100)
    w, violations, _ = error_feedback(eta, 100, k, lambda violation: violation > 0.01)
    np.testing.assert_allclose(result.history["violation"][0], violations - 0.01, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(result.history["weight"][0], violations > 0.01)
    np.testing.assert_allclose(result.last, w, rtol=1e-4, atol=1e-5)
    assert 0 < (violations > 0.01).sum() < 100, "both sides of the switch"


def test_safe_ef_solves_the_problem():
    """Step size and epsilon of the paper's Theorem 1 at E = 1, its Gamma with the uplink's compression."""
    known, rounds = quadratic(), 20_000
    distance, constant = np.linalg.norm(known.start - known.optimum), gamma(1, q=0.25, q0=1.0)
    epsilon = np.sqrt(2 * distance**2 * known.lipschitz**2 * constant / rounds)
    step_size = np.sqrt(distance**2 / (2 * known.lipschitz**2 * rounds * constant))
    assert known.constraint(known.start) - known.bound > 5 * epsilon, "epsilon is vacuous here"
    algorithm = presets.safe_ef(float(step_size), fs.TopK(count=2), tolerance=float(epsilon))
    assert_solves(known, run(algorithm, known, rounds).average, epsilon)


def test_crpo_solves_the_problem():
    known, rounds = quadratic(), 5000
    step_size, epsilon = switching(known, rounds)
    assert_solves(known, run(presets.crpo(step_size, tolerance=epsilon), known, rounds).average, epsilon)


@pytest.mark.parametrize("rule", ["hard", "soft"])
def test_centralized_sgm_solves_the_problem(rule):
    """One client, one step a round; the soft rule's proof has twice the epsilon."""
    known, rounds = quadratic(), 5000
    step_size, epsilon = switching(known, rounds)
    epsilon = epsilon if rule == "hard" else 2 * epsilon
    algorithm = presets.centralized_sgm(
        step_size, fs.Hard() if rule == "hard" else fs.Soft(2 / epsilon), tolerance=epsilon
    )
    result = run(algorithm, known, rounds, clients=presets.centralized(known.clients))
    assert_solves(known, result.average, epsilon)
    assert result.settings["clients"] == 1


def test_centralized_steps_are_the_switch_decided_anew():
    """T * E single steps in float64, each with its own switch, and a measurement every E: T of them."""
    known, (a, b) = quadratic(), (x.mean(axis=0) for x in vectors())
    T, E, eta = 12, 5, 0.02
    algorithm = presets.centralized_sgm(eta, fs.Hard())
    result = run(algorithm, known, T * E, clients=presets.centralized(known.clients), evaluate_every=E)
    w, values, weights = known.start.astype(np.float32).astype(np.float64), [], []
    for _ in range(T * E):
        weights.append(float(b @ w > known.bound))
        w = w - eta * (b if weights[-1] else w - a)
        values.append(known.constraint(w))
    measured = np.flatnonzero(~np.isnan(result.history["g"][0]))
    np.testing.assert_array_equal(measured, np.arange(E - 1, T * E, E))
    np.testing.assert_array_equal(measured, np.flatnonzero(result.evaluated()))
    assert len(measured) == T
    np.testing.assert_array_equal(result.history["weight"][0], weights)
    np.testing.assert_allclose(result.history["g"][0, measured], np.array(values)[measured], atol=1e-5)
    assert 0 < sum(weights) < T * E


def test_centralized_has_every_example_once(clients):
    """Clients of different sizes: no padding comes along, nothing is lost, nothing is doubled."""
    whole = presets.centralized(clients)
    assert len(whole) == 1
    assert whole.counts.tolist() == [clients.counts.sum()]
    for name in ("x", "y"):
        parts = [clients[j][name] for j in range(len(clients))]
        np.testing.assert_array_equal(whole[0][name], np.concatenate(parts))
        assert whole[0][name].dtype == parts[0].dtype
    again = presets.centralized(whole)
    np.testing.assert_array_equal(again[0]["x"], whole[0]["x"])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: presets.fedavg(0.1, local_steps=2, participants=3), {"local_steps": 2, "participants": 3}),
        (lambda: presets.penalty_fedavg(0.1, 2.0, batch_size=4), {"rule": fs.Penalty(2.0), "batch_size": 4}),
        (lambda: presets.primal_dual_fedavg(0.1, 0.3, augment=2.0), {"rule": fs.PrimalDual(0.3, 2.0)}),
        (lambda: presets.ef14(0.1, fs.TopK(0.5)), {"uplink": fs.TopK(0.5), "downlink": fs.Identity()}),
        (
            lambda: presets.safe_ef(0.1, fs.TopK(0.5), downlink=fs.TopK(0.2)),
            {"downlink": fs.TopK(0.2), "local_steps": 1},
        ),
        (lambda: presets.crpo(0.1, tolerance=0.5), {"rule": fs.Hard(), "tolerance": 0.5, "uplink": fs.Identity()}),
        (lambda: presets.centralized_sgm(0.1, fs.Soft(3.0)), {"rule": fs.Soft(3.0), "participants": None}),
    ],
)
def test_a_preset_is_a_setting_of_the_same_algorithm(make, expected):
    algorithm = make()
    assert isinstance(algorithm, fs.FedSGM)
    assert algorithm.step_size == 0.1
    assert {name: getattr(algorithm, name) for name in expected} == expected


def test_every_preset_is_tested():
    names = {name for name, value in vars(presets).items() if getattr(value, "__module__", "") == presets.__name__}
    tests = " ".join(name for name in globals() if name.startswith("test_"))
    assert names == {
        *("fedavg", "penalty_fedavg", "primal_dual_fedavg", "ef14", "safe_ef", "crpo", "centralized_sgm"),
        "centralized",
    }
    assert [name for name in names if f"test_{name}" not in tests] == []


# IPP-ConEx -----------------------------------------------------------------------------------------------------------

INNER, E = 25, 5


def ipp_conex(known, *, r, a, M, t0, **more):
    return IPPConEx(
        proximal=r,
        primal_scale=a / 2,
        dual_scale=32 * M**2 / a,
        offset=t0,
        **{
            "inner_steps": INNER,
            "local_steps": E,
            "project": functools.partial(projection_l2_ball, scale=known.radius),
        }
        | more,
    )


def derivatives(known):
    """grad f, g - bound and grad g of the problem, in float64."""
    if known is quadratic():
        a, b = (x.mean(axis=0) for x in vectors())
        return lambda w: w - a, lambda w: b @ w - known.bound, lambda _: b
    data = presets.centralized(known.clients)[0]
    x, y = data["x"].astype(np.float64), data["y"]

    def slope(rows, sign):
        return lambda w: (sign / (1 + np.exp(-sign * rows @ w))) @ rows / len(rows)

    return slope(x[y == 0], 1), lambda w: known.constraint(w) - known.bound, slope(x[y == 1], -1)


@pytest.mark.parametrize("make", [quadratic, neyman_pearson])
def test_ipp_conex_is_the_numpy_loop(make):
    """Three whole inner loops and a part of the fourth: every round's model and multiplier."""
    known = make()
    constants = {"r": 0.5, "a": 1.0, "M": 0.4, "t0": 4.0}
    rounds = 17
    result = run(ipp_conex(known, **constants), known, rounds, presets.centralized(known.clients), evaluate_every=1)

    def project(w):
        return w * min(1.0, known.radius / np.linalg.norm(w))

    start = known.start.astype(np.float32).astype(np.float64)
    path = list(constraint_extrapolation(*derivatives(known), project, start, steps=rounds * E, **constants))
    assert len(path) == rounds * E > 3 * INNER
    ends = path[E - 1 :: E]
    for name, function in (("objective", known.objective), ("g", known.constraint)):
        expected = [function(x) for x, _ in ends]
        np.testing.assert_allclose(result.history[name][0], expected, rtol=1e-4, atol=1e-5)
    # A round records the multiplier that it began with.
    np.testing.assert_allclose(result.history["multiplier"][0, 1:], [y for _, y in ends[:-1]], rtol=1e-4, atol=1e-5)
    assert result.history["multiplier"][0, 0] == 0
    assert max(y for _, y in path) > 0.1, "the constraint must act"
    np.testing.assert_allclose(result.last, path[-1][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [quadratic, neyman_pearson])
def test_ipp_conex_reaches_the_optimum_and_its_multiplier(make):
    known = make()
    result = run(
        ipp_conex(known, r=0.5, a=1.0, M=0.4, t0=4.0), known, 1000, presets.centralized(known.clients), evaluate_every=1
    )
    np.testing.assert_allclose(result.last, known.optimum, atol=2e-3)
    np.testing.assert_allclose(known.objective(np.asarray(result.last, np.float64)), known.value, atol=1e-4)
    assert abs(known.constraint(np.asarray(result.last, np.float64)) - known.bound) < 1e-4
    np.testing.assert_allclose(result.history["multiplier"][0, -1], multiplier_of(known), rtol=1e-2)


def test_ipp_conex_goes_on_from_a_checkpoint_bit_for_bit(tmp_path):
    """Stopped in the middle of an inner loop, whose centre, average and multiplier must survive."""
    known = quadratic()
    algorithm = ipp_conex(known, r=0.5, a=1.0, M=0.4, t0=4.0)
    whole = run(algorithm, known, 17, presets.centralized(known.clients), evaluate_every=1)
    for rounds in (7, 17):
        saved = fs.Checkpoint(tmp_path, every=100, resume=True)
        resumed = run(algorithm, known, rounds, presets.centralized(known.clients), evaluate_every=1, checkpoint=saved)
    assert_identical(resumed, whole)
    assert {"multiplier", "weight", "violation", "estimate"} <= resumed.history.keys()


def test_ipp_conex_refuses_more_than_one_client():
    known = quadratic()
    with pytest.raises(fs.SettingError, match=r"^IPPConEx: a centralised method, but there are 10 clients; use .*\)$"):
        run(ipp_conex(known, r=0.5, a=1.0, M=0.4, t0=4.0), known, 1)


SCALES = {"proximal": 1.0, "primal_scale": 1.0, "dual_scale": 1.0}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *(
            (name, value, "a finite number above 0")
            for name in SCALES
            for value in (0, -1.0, np.nan, np.inf, "1", None)
        ),
        *(("offset", value, "a finite number 0 or more") for value in (-0.5, np.nan, "1")),
        *(("tolerance", value, "a finite number 0 or more") for value in (-0.5, np.nan)),
        *(
            (name, value, "a whole number, 1 or more")
            for name in ("inner_steps", "local_steps", "batch_size", "constraint_batch_size")
            for value in (0, -2, 2.5)
        ),
    ],
)
def test_ipp_conex_refuses(name, value, words):
    with pytest.raises(fs.SettingError, match=rf"^IPPConEx: {name}=.*, but it must be {words}$"):
        IPPConEx(**SCALES | {name: value})


@pytest.mark.parametrize("scale", [0.25, 4.0])
def test_ipp_conex_minds_the_constraint_s_scale(scale):
    """In units of the scale the constraint is (g - bound) / scale: the same optimum, its multiplier scale times g's."""
    known = quadratic()
    scaled = dataclasses.replace(known.problem.constraints[0], scale=scale)
    problem = fs.Problem(objective=known.problem.objective, constraints=[scaled])
    algorithm = ipp_conex(known, r=0.5, a=1.0, M=0.4 / scale, t0=4.0)
    whole = presets.centralized(known.clients)
    result = fs.simulate(algorithm, problem, whole, known.start.astype(np.float32), rounds=1000, progress=False)
    np.testing.assert_allclose(result.last, known.optimum, atol=2e-3)
    np.testing.assert_allclose(result.history["multiplier"][0, -1], scale * multiplier_of(known), rtol=1e-2)


def test_ipp_conex_without_a_constraint_is_proximal_descent():
    """Nothing is known of a violation that is not there: y stays at zero, and x goes to the free minimum."""
    known = quadratic()
    free = fs.Problem(objective=known.problem.objective)
    whole = presets.centralized(known.clients)
    algorithm = ipp_conex(known, r=0.5, a=1.0, M=0.4, t0=4.0)
    result = fs.simulate(algorithm, free, whole, known.start.astype(np.float32), rounds=100, progress=False)
    np.testing.assert_allclose(result.last, vectors()[0].mean(axis=0), atol=1e-3)
    assert not result.history["multiplier"].any()
