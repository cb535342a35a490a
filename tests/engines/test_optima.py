"""Known optima. Tolerances are the theorems' own: the averaged iterate must be an epsilon-solution.

Each case also checks that its epsilon says something: the start is worse than epsilon by a wide margin.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
from optax.projections import projection_l2_ball

import fedsgm as fs
from support.known import gamma, multiplier_of, neyman_pearson, quadratic, quadratic_from_inside

DELTA = 0.01  # how often a statement on sampled clients may fail; each run has a fixed seed


@dataclasses.dataclass(frozen=True)
class Setting:
    rounds: int
    fraction: float  # Top-K both ways; 1 is no compression
    participants: int | None


SETTINGS = {
    "plain, all": Setting(10_000, 1.0, None),
    "plain, half": Setting(25_000, 1.0, 5),
    "top-k, all": Setting(25_000, 0.5, None),
    "top-k, half": Setting(125_000, 0.75, 5),
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
    rounds, g = 50_000, gamma(1, q, q)
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
    multiplier = multiplier_of(known)
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
    np.testing.assert_allclose(result.history["weight"][0, -1], multiplier_of(known), rtol=1e-3)


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
        np.testing.assert_allclose(result.multiplier, multiplier_of(known), rtol=0.05)
