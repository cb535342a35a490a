"""The pieces of a certificate, where the Lagrangian's minimum over a ball is known in closed form.

f is the mean of ``|w - a_j|^2 / 2`` and g of ``b_j'w``, so that L's minimum over R^d is at ``a - multiplier b`` and
that over the ball at its projection.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from optax.projections import projection_l2_ball

import fedsgm as fs
from fedsgm import theory
from fedsgm.base.layout import Layout
from fedsgm.theory.certificates import _Lagrangian, certify

D, BOUND, RADIUS = 4, -0.2, 0.8
BALL = functools.partial(projection_l2_ball, scale=RADIUS)
PROBLEM = fs.Problem(
    objective=lambda w, example: 0.5 * jnp.sum((w - example["a"]) ** 2),
    constraints=[fs.Mean(lambda w, example: example["b"] @ w, name="g") <= BOUND],
)
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, 3, D)).astype(np.float32).astype(float)
CLIENTS = fs.Clients.from_list(
    [{"a": a[None], "b": b[None]} for a, b in zip(A.astype(np.float32), B.astype(np.float32), strict=True)]
)


def value(w, multiplier):
    return np.mean(np.sum((w - A) ** 2, axis=1)) / 2 + multiplier * (B.mean(axis=0) @ w - BOUND)


def within(w):
    return w * min(1, RADIUS / np.linalg.norm(w))


def lagrangian(project, diameter, strong_convexity):
    start = np.zeros(D, np.float32)
    data = jax.tree.map(jnp.asarray, PROBLEM.prepare(CLIENTS, start))
    return _Lagrangian(PROBLEM, data, jnp.array([BOUND]), diameter, strong_convexity, Layout.of(start), project)


@pytest.mark.parametrize(
    ("project", "diameter", "strong_convexity"),
    [
        (BALL, 2 * RADIUS, 0.0),
        (BALL, 2 * RADIUS, 1.0),
        (BALL, np.inf, 1.0),
        (None, np.inf, 1.0),
        (BALL, 2 * RADIUS, 0.5),
    ],
    ids=["width", "both", "strength on X", "strength", "half the strength"],
)
def test_the_minimum_is_never_further_below_than_what_can_be_missed(project, diameter, strong_convexity):
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        at = lagrangian(project, diameter, strong_convexity)
        missed = jax.jit(lambda w, m: at.missed(w, jax.grad(at.at)(w, m)))
        for _ in range(50):
            multiplier, w = rng.uniform(0, 3), rng.normal(size=D)
            best = A.mean(axis=0) - multiplier * B.mean(axis=0)
            best = best if project is None else within(best)
            assert at.at(w, jnp.array([multiplier])) == pytest.approx(value(w, multiplier), rel=1e-12)
            assert value(w, multiplier) - missed(w, jnp.array([multiplier])) <= value(best, multiplier) + 1e-12
            assert missed(best, jnp.array([multiplier])) <= 1e-6, "nothing is missed at the minimum"


def test_the_augmented_gradient_is_the_lagrangians_at_the_next_multipliers():
    """Which makes every inner solution a point to take the bound at."""
    rng = np.random.default_rng(2)
    with jax.enable_x64(True):
        at = lagrangian(BALL, 2 * RADIUS, 0.0)
        for _ in range(20):
            w, multipliers, weight = rng.normal(size=D), jnp.array([rng.uniform(0, 2)]), rng.uniform(0.1, 30)
            following = jnp.maximum(0, multipliers + weight * at.parts(w)[1])
            found = jax.grad(at.augmented)(w, multipliers, weight)
            np.testing.assert_allclose(found, jax.grad(at.at)(w, following), rtol=1e-10, atol=1e-12)


def test_the_residual_is_the_largest_of_its_three():
    """At w = 0 inside the ball: the gradient's length, the multiplier's slackness and the violation, by hand."""
    zero = np.zeros(D)
    with jax.enable_x64(True):
        at = lagrangian(None, np.inf, 1.0)
        for multiplier in (0.0, 0.7, 50.0):
            gradient = -A.mean(axis=0) + multiplier * B.mean(axis=0)
            expected = max(np.linalg.norm(gradient), multiplier * abs(BOUND), -BOUND)
            assert at.residual(zero, jnp.array([multiplier])) == pytest.approx(expected, rel=1e-12)
        assert lagrangian(BALL, 2 * RADIUS, 0.0).residual(zero, jnp.array([50.0])) == pytest.approx(50 * -BOUND)


def test_the_multiplier_is_the_one_in_closed_form():
    """Without X: ``b'(a - multiplier b) = c``."""
    a, b = A.mean(axis=0), B.mean(axis=0)
    multiplier = max(0.0, (a @ b - BOUND) / (b @ b))
    assert multiplier > 0.1, "the constraint must be active"
    found = certify(PROBLEM, CLIENTS, np.zeros(D, np.float32), strong_convexity=1.0, tolerance=1e-10)
    assert found.multipliers["g"] == pytest.approx(multiplier, abs=1e-4)
    optimum = value(a - multiplier * b, 0.0)
    assert optimum - 1e-9 <= found.lower_bound <= optimum + 1e-12


@pytest.mark.parametrize("strength", [0.0, 1.0], ids=["width", "strength"])
def test_the_bound_is_close_on_random_problems(strength):
    """A point outside X can have the bound's value and not be the optimum: none is taken for one."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        a, b = rng.normal(size=(2, D)).astype(np.float32)
        clients = fs.Clients.from_list([{"a": 2 * a[None], "b": b[None]}])
        a, b = 2 * a.astype(float), b.astype(float)
        if BOUND / np.linalg.norm(b) < -RADIUS:
            continue  # nothing in the ball is within
        optimum = np.sum((onto_part(a, b) - a) ** 2) / 2
        start = (0.3 * rng.normal(size=D)).astype(np.float32)
        found = certify(PROBLEM, clients, start, project=BALL, strong_convexity=strength, tolerance=1e-6)
        assert optimum - 2e-6 <= found.lower_bound <= optimum + 1e-9


def onto_part(w, b):
    """The projection onto what the half space leaves of the ball."""
    unit, height = b / np.linalg.norm(b), BOUND / np.linalg.norm(b)
    if within(w) @ unit <= height:
        return within(w)
    across = w - (w @ unit) * unit
    return height * unit + across * min(1, np.sqrt(RADIUS**2 - height**2) / np.linalg.norm(across))


# --- How far from stationary ---


def quadratic(curvature):
    """Where it is negative the objective is weakly convex with it, and the proximal problem convex from there on."""
    return fs.Problem(
        objective=lambda w, example: -example["a"] @ w + 0.5 * curvature * jnp.sum(w**2),
        constraints=[fs.Mean(lambda w, example: example["b"] @ w, name="g") <= BOUND],
    )


def nearest(w, curvature, proximal, ball):
    """The proximal point by hand: that of R^d, projected onto the half space, or onto its part of the ball."""
    b = B.mean(axis=0)
    unit, height = b / np.linalg.norm(b), BOUND / np.linalg.norm(b)
    free = (A.mean(axis=0) + proximal * w) / (curvature + proximal)
    if not ball:
        return free - max(0.0, free @ unit - height) * unit
    return onto_part(free, b)


@pytest.mark.parametrize("ball", [False, True], ids=["R^d", "ball"])
@pytest.mark.parametrize(("curvature", "proximal"), [(0.5, 1.0), (-0.2, 0.5), (-0.2, 5.0)])
def test_stationarity_in_closed_form(curvature, proximal, ball):
    problem, weak = quadratic(curvature), max(0.0, -curvature)
    rng = np.random.default_rng(4)
    for scale in (0.1, 0.4, 2.0):
        for _ in range(5):
            w = (scale * rng.normal(size=D)).astype(np.float32)
            exact = np.linalg.norm(w - nearest(w.astype(float), curvature, proximal, ball))
            told = {"proximal": proximal, "weak_convexity": weak, "project": BALL if ball else None}
            assert theory.stationarity(problem, CLIENTS, w, **told) == pytest.approx(exact, abs=1e-5)
            found = theory.stationarity(problem, CLIENTS, w, **told, tolerance=1e-6)
            assert found == pytest.approx(exact, abs=1e-6)


def test_stationarity_against_scipy():
    """f and g logistic, f less a quadratic and so weakly convex, X a ball; from the tree of parameters."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3, 12, D)).astype(np.float32)
    x[..., 0] += 1.0
    flat, rho, proximal, bound = x.reshape(-1, D).astype(float), 0.3, 1.0, 0.5

    def loss(p, sign, example):
        return jnp.logaddexp(0.0, sign * (example["x"][:1] @ p["v"] + example["x"][1:] @ p["w"]))

    def objective(p, example):
        return loss(p, 1.0, example) - rho / 2 * (jnp.sum(p["v"] ** 2) + jnp.sum(p["w"] ** 2))

    problem = fs.Problem(objective, [fs.Mean(lambda p, example: loss(p, -1.0, example), name="g") <= bound])
    clients = fs.Clients.from_list([{"x": rows} for rows in x])
    limits = [
        {"type": "ineq", "fun": lambda y: bound - np.mean(np.logaddexp(0, -flat @ y))},
        {"type": "ineq", "fun": lambda y: RADIUS**2 - y @ y},
    ]
    project = functools.partial(projection_l2_ball, scale=RADIUS)
    active = 0
    for _ in range(5):
        w = rng.normal(size=D).astype(np.float32) / 3

        def near(y, w=w):
            return np.mean(np.logaddexp(0, flat @ y)) - rho / 2 * y @ y + proximal / 2 * np.sum((y - w) ** 2)

        exact = {"method": "SLSQP", "constraints": limits, "options": {"ftol": 1e-15, "maxiter": 1000}}
        solved = scipy.optimize.minimize(near, np.zeros(D), **exact)
        active += abs(limits[0]["fun"](solved.x)) < 1e-6
        params = {"v": w[:1], "w": w[1:]}
        told = {"proximal": proximal, "weak_convexity": rho, "project": project}
        found = theory.stationarity(problem, clients, params, **told)
        assert found == pytest.approx(np.linalg.norm(solved.x - w), abs=2e-5)
        own = {"v": solved.x[:1].astype(np.float32), "w": solved.x[1:].astype(np.float32)}
        assert theory.stationarity(problem, clients, own, **told) < found, "nearer than where it began"
    assert active, "the constraint must matter"


def test_a_stationary_point_is_its_own():
    """The constrained optimum of a convex problem, whatever rho_hat."""
    optimum = nearest(np.zeros(D), 0.5, 1e-9, ball=True).astype(np.float32)
    for proximal in (0.1, 1.0, 10.0):
        found = theory.stationarity(quadratic(0.5), CLIENTS, optimum, proximal=proximal, project=BALL)
        assert found == pytest.approx(0.0, abs=2e-5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"proximal": 0.2, "weak_convexity": 0.2}, "proximal=0.2, but it must be a finite number above 0.2"),
        ({"proximal": 1.0, "weak_convexity": -1.0}, "weak_convexity=-1.0"),
        ({"proximal": 1.0, "tolerance": 0.0}, "tolerance=0.0"),
    ],
)
def test_stationarity_asks_for_what_makes_it_one_point(wrong, says):
    with pytest.raises(fs.SettingError, match=f"stationarity: {says}"):
        theory.stationarity(PROBLEM, CLIENTS, np.zeros(D, np.float32), **wrong)


def test_stationarity_says_when_there_is_no_point():
    never = fs.Problem(PROBLEM.objective, [fs.Mean(lambda w, example: example["b"] @ w, name="g") <= -100.0])
    g, w = fs.Mean(lambda w, example: example["b"] @ w, name="g"), np.zeros(D, np.float32)
    for constraint in (g >= 1.0, fs.between(0.0, g, 1.0)):
        with pytest.raises(fs.SettingError, match="upper bounds, but 'g' has a lower one; bound the negative"):
            theory.stationarity(fs.Problem(PROBLEM.objective, [constraint]), CLIENTS, w, proximal=1.0)
    with pytest.raises(fs.SettingError, match="no point within every bound was found"):
        theory.stationarity(never, CLIENTS, np.zeros(D, np.float32), proximal=1.0, project=BALL)
    ratio = fs.Statistic(lambda w, ex: {"s": ex["a"] @ w, "n": 1.0}, lambda t: t["s"] / t["n"], name="rate")
    problem = fs.Problem(PROBLEM.objective, [ratio <= 1.0])
    with pytest.raises(fs.SettingError, match=r"stationarity: .* a Statistic is not convex in general"):
        theory.stationarity(problem, CLIENTS, np.zeros(D, np.float32), proximal=1.0)
