"""Known optima. Tolerances are the theorems' own: the averaged iterate must be an epsilon-solution.

Each case also checks that its epsilon says something: the start is worse than epsilon by a wide margin.
"""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from optax.projections import projection_l2_ball

import fedsgm as fs

DELTA = 0.01  # how often a statement on sampled clients may fail; each run has a fixed seed


def gamma(local_steps, q, q0, *, clients=1, participants=1):
    """Gamma of Theorem 1 (full participation) and of its partial form, with the compression terms."""
    value = 2 * local_steps**2
    ratio = clients / participants
    if participants < clients:
        if min(q, q0) < 1:
            value += 16 * local_steps * ratio * math.sqrt(10 * (1 - q) * (1 - q0)) / (q0 * q**2)
            value += 8 * local_steps * math.sqrt(10 * (1 - q0)) / (q0 * q) + 20 * local_steps / q**2
            value += ratio * 4 * local_steps * math.sqrt(10 * (1 - q)) / q**2
    else:
        value += 2 * local_steps * math.sqrt(1 - q) / q + 4 * local_steps * math.sqrt(10 * (1 - q0)) / (q0 * q)
    return value


@dataclasses.dataclass(frozen=True)
class Known:
    """A problem with its optimum and its constants."""

    problem: fs.Problem
    clients: fs.Clients
    start: np.ndarray
    optimum: np.ndarray
    value: float
    bound: float
    lipschitz: float  # G
    radius: float  # of X, a ball around zero
    deviation: float  # sigma: half the largest difference of two clients' constraints over X
    objective: object
    constraint: object


@functools.cache
def quadratic():
    """f_j = |w - a_j|^2 / 2, g_j = <b_j, w>: the optimum is a - multiplier * b, in closed form."""
    rng = np.random.default_rng(0)
    n, d = 10, 8
    direction = rng.normal(size=d)
    direction /= np.linalg.norm(direction)
    a = 0.8 * direction + 0.05 * rng.normal(size=(n, d))
    b = direction + 0.004 * rng.normal(size=(n, d))
    bound = 0.2
    mean_a, mean_b = a.mean(axis=0), b.mean(axis=0)
    multiplier = (mean_b @ mean_a - bound) / (mean_b @ mean_b)
    assert multiplier > 0.3, "the constraint must be active"
    optimum = mean_a - multiplier * mean_b
    radius = 1.0
    assert np.linalg.norm(optimum) < radius
    spread = max(np.linalg.norm(x - y) for x in b for y in b)
    return Known(
        problem=fs.Problem(
            objective=lambda w, example: 0.5 * jnp.sum((w - example["a"]) ** 2),
            constraints=[fs.Mean(lambda w, example: example["b"] @ w, name="g") <= bound],
        ),
        clients=fs.Clients.from_list(
            [{"a": a[j : j + 1].astype(np.float32), "b": b[j : j + 1].astype(np.float32)} for j in range(n)]
        ),
        start=radius * direction,
        optimum=optimum,
        value=0.5 * np.mean(np.sum((optimum - a) ** 2, axis=1)),
        bound=bound,
        # On X, and on the little that local steps leave it by, no gradient is longer than this.
        lipschitz=max(1.05 * radius + np.linalg.norm(a, axis=1).max(), np.linalg.norm(b, axis=1).max()),
        radius=radius,
        deviation=spread * radius / 2,
        objective=lambda w: 0.5 * np.mean(np.sum((w - a) ** 2, axis=1)),
        constraint=lambda w: mean_b @ w,
    )


def quadratic_from_inside():
    """The same from a start within the bound, where only steps on the objective lead to the optimum."""
    known = quadratic()
    inside = dataclasses.replace(known, start=-known.start)
    assert inside.constraint(inside.start) < inside.bound
    return inside


@functools.cache
def neyman_pearson():
    """Logistic loss of two overlapping classes over a ball; the optimum comes from SciPy.

    Clients hold different majority examples and the same minority examples, so sigma is 0.
    """
    rng = np.random.default_rng(3)
    n, d, each = 10, 4, 12
    positives = rng.normal(size=(8, d)) + 0.7
    negatives = rng.normal(size=(n, each, d)) - 0.7 + 0.3 * rng.normal(size=(n, 1, d))
    positives, negatives = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (positives, negatives))
    flat = negatives.reshape(-1, d)
    radius, bound = 3.0, 0.25

    def objective(w):
        return np.mean(np.logaddexp(0, flat @ w))

    def constraint(w):
        return np.mean(np.logaddexp(0, -positives @ w))

    limits = [
        {"type": "ineq", "fun": lambda w: bound - constraint(w)},
        {"type": "ineq", "fun": lambda w: radius**2 - w @ w},
    ]
    solved = scipy.optimize.minimize(
        objective, np.zeros(d), method="SLSQP", constraints=limits, options={"ftol": 1e-12, "maxiter": 500}
    )
    assert solved.success
    assert abs(constraint(solved.x) - bound) < 1e-6, "the constraint must be active"

    def loss(w, example):
        z = example["x"] @ w
        return jnp.logaddexp(0.0, z) - example["y"] * z

    y = np.r_[np.zeros(each), np.ones(len(positives))].astype(np.float32)
    start = np.full(d, -radius / math.sqrt(d))
    return Known(
        problem=fs.Problem(
            objective=fs.Mean(loss, where=lambda example: example["y"] == 0),
            constraints=[fs.Mean(loss, where=lambda example: example["y"] == 1, name="g") <= bound],
        ),
        clients=fs.Clients.from_list(
            [{"x": np.concatenate([rows, positives]).astype(np.float32), "y": y} for rows in negatives]
        ),
        start=start,
        optimum=solved.x,
        value=solved.fun,
        bound=bound,
        lipschitz=1.0,  # a logistic loss is |x|-Lipschitz and every |x| is 1
        radius=radius,
        deviation=0.0,
        objective=objective,
        constraint=constraint,
    )


@dataclasses.dataclass(frozen=True)
class Setting:
    rounds: int
    fraction: float  # Top-K both ways; 1 is no compression
    participants: int | None


SETTINGS = {
    "plain, all": Setting(20_000, 1.0, None),
    "plain, half": Setting(50_000, 1.0, 5),
    "top-k, all": Setting(50_000, 0.5, None),
    "top-k, half": Setting(200_000, 0.75, 5),
}


def theory(known, setting, q):
    """Step size and epsilon of Theorem 1 at E = 1."""
    n, m, rounds = len(known.clients), setting.participants or len(known.clients), setting.rounds
    g = gamma(1, q, q, clients=n, participants=m)
    distance = np.linalg.norm(known.start - known.optimum) if m == n else 2 * known.radius
    step_size = math.sqrt(distance**2 / (2 * known.lipschitz**2 * rounds * g))
    epsilon = math.sqrt(2 * distance**2 * known.lipschitz**2 * g / rounds)
    noise = 0.0
    if m < n:
        noise += n / m * 2 * distance * known.lipschitz * math.sqrt(1 - q) / (q * rounds)
        noise += 4 * known.lipschitz * distance / math.sqrt(m * rounds) * math.sqrt(2 * math.log(3 / DELTA))
        noise += 2 * known.deviation * math.sqrt(2 / m * math.log(6 * rounds / DELTA))
    return step_size, epsilon, noise


@pytest.mark.parametrize("rule", ["hard", "soft"])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("make", [quadratic, quadratic_from_inside, neyman_pearson])
def test_the_average_is_an_epsilon_solution(make, setting, rule):
    """Soft needs twice the main term (its proof); with sampled clients the paper has no theorem for it, and hard's
    sampling terms are used."""
    known = make()
    compressor = fs.Identity() if setting.fraction == 1 else fs.TopK(setting.fraction)
    q = compressor.contraction(known.start.size)
    step_size, epsilon, noise = theory(known, setting, q)
    epsilon = epsilon + noise if rule == "hard" else 2 * epsilon + noise
    start_gap = known.objective(known.start) - known.value
    start_violation = known.constraint(known.start) - known.bound
    assert max(start_gap, start_violation) > 1.5 * epsilon, "epsilon is vacuous here"
    algorithm = fs.FedSGM(
        step_size=step_size,
        participants=setting.participants,
        rule=fs.Hard() if rule == "hard" else fs.Soft(2 / epsilon),
        tolerance=epsilon,
        uplink=compressor,
        downlink=compressor,
        project=functools.partial(projection_l2_ball, scale=known.radius),
    )
    result = fs.simulate(
        algorithm,
        known.problem,
        known.clients,
        known.start.astype(np.float32),
        rounds=setting.rounds,
        evaluate_every=0,
        progress=False,
    )
    average = np.asarray(result.average, np.float64)
    assert np.isfinite(average).all(), "no round was feasible"
    assert known.objective(average) - known.value <= epsilon
    assert known.constraint(average) - known.bound <= epsilon


@pytest.mark.parametrize("compressor", [fs.Identity(), fs.TopK(0.5)], ids=["plain", "top-k"])
@pytest.mark.parametrize("make", [quadratic, neyman_pearson])
def test_the_exact_penalty_reaches_the_optimum(make, compressor):
    """Above the multiplier the penalty is exact: it is a subgradient method on F = f + rho [g]_+, whose average is
    within epsilon of the optimum; then f is within epsilon and g within epsilon / (rho - multiplier)."""
    known = make()
    rho = 4.0
    q = compressor.contraction(known.start.size)
    rounds, g = 100_000, gamma(1, q, q)
    distance = np.linalg.norm(known.start - known.optimum)
    lipschitz = (1 + rho) * known.lipschitz
    epsilon = math.sqrt(2 * distance**2 * lipschitz**2 * g / rounds)
    algorithm = fs.FedSGM(
        step_size=math.sqrt(distance**2 / (2 * lipschitz**2 * rounds * g)),
        rule=fs.Penalty(rho),
        uplink=compressor,
        downlink=compressor,
        project=functools.partial(projection_l2_ball, scale=known.radius),
    )
    start = known.start.astype(np.float32)
    result = fs.simulate(
        algorithm, known.problem, known.clients, start, rounds=rounds, evaluate_every=0, progress=False
    )
    average = np.asarray(result.average, np.float64)
    multiplier = _multiplier(known)
    assert multiplier < rho
    violation = max(0.0, known.constraint(average) - known.bound)
    assert known.objective(average) + rho * violation - known.value <= epsilon
    assert known.objective(average) - known.value <= epsilon
    assert violation <= epsilon / (rho - multiplier)


def test_primal_dual_reaches_the_optimum_and_its_multiplier():
    """On a strongly convex problem with a linear constraint the saddle point attracts: what is left is rounding."""
    known = quadratic()
    algorithm = fs.FedSGM(step_size=0.05, rule=fs.PrimalDual(0.05))
    start = known.start.astype(np.float32)
    result = fs.simulate(algorithm, known.problem, known.clients, start, rounds=3000, evaluate_every=0, progress=False)
    np.testing.assert_allclose(result.last, known.optimum, atol=1e-4)
    np.testing.assert_allclose(result.history["weight"][0, -1], _multiplier(known), rtol=1e-3)


def test_unconstrained_reaches_the_free_minimum():
    known = quadratic()
    free = np.mean([known.clients[j]["a"][0] for j in range(len(known.clients))], axis=0)
    algorithm = fs.FedSGM(step_size=0.1, local_steps=4, rule=fs.Unconstrained())
    start = known.start.astype(np.float32)
    result = fs.simulate(algorithm, known.problem, known.clients, start, rounds=200, progress=False)
    np.testing.assert_allclose(result.last, free, atol=1e-5)


def test_the_multiplier_comes_for_free():
    """At stationarity sum(s) / sum(1 - s) estimates the multiplier; the first rounds weigh little in a long run."""
    known = quadratic()
    start = known.optimum.astype(np.float32)
    for rule in (fs.Hard(), fs.Soft(50.0)):
        algorithm = fs.FedSGM(step_size=0.002, rule=rule)
        result = fs.simulate(
            algorithm, known.problem, known.clients, start, rounds=20_000, evaluate_every=0, progress=False
        )
        np.testing.assert_allclose(result.multiplier, _multiplier(known), rtol=0.05)


def _multiplier(known, h=1e-6):
    """From stationarity, grad f + multiplier * grad g + nu * w = 0 with nu = 0 inside X, by central differences."""

    def gradient(function):
        steps = h * np.eye(known.optimum.size)
        return np.array([(function(known.optimum + s) - function(known.optimum - s)) / (2 * h) for s in steps])

    columns = [gradient(known.constraint)]
    if np.linalg.norm(known.optimum) > known.radius - 1e-6:
        columns.append(known.optimum)
    solution, *_ = np.linalg.lstsq(np.stack(columns, axis=1), -gradient(known.objective))
    return solution[0]
