"""The pieces of a certificate, where the Lagrangian's minimum over a ball is known in closed form.

f is the mean of ``|w - a_j|^2 / 2`` and g of ``b_j'w``, so that L's minimum over R^d is at ``a - multiplier b`` and
that over the ball at its projection.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.projections import projection_l2_ball

import fedsgm as fs
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
            if project is None or np.isfinite(diameter):
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
