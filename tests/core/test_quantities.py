"""Estimates of constraints by some clients, their standard errors, and constraints of every sense, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.core.quantities import standard_error

KEY = jax.random.key(0)
RNG = np.random.default_rng(7)
COSTS = RNG.normal(size=9).astype(np.float32)
HEARD = np.array([1, 0, 1, 1, 0, 0, 1, 1, 0], np.float32)


def loss(w, example):
    return w * example


def share(sums):
    return sums["part"] / sums["all"]


def sums_of(clients, seed=0):
    """Each client's part and whole, and a group's counts."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(20, 60, clients).astype(np.float32)
    return {"part": rng.binomial(whole.astype(int), 0.4).astype(np.float32), "all": whole}


MEAN = fs.Mean(loss, name="mean")
SHARE = fs.Statistic(lambda w, e: {"part": w * e, "all": e}, share, name="share")


def combined(quantity, statistics, heard=None, tolerance=0.0):
    problem = fs.Problem(loss, [quantity <= 0.3])
    return jax.jit(problem.combine)((statistics,), tolerance, KEY, heard)


@pytest.mark.parametrize(("quantity", "statistics"), [(MEAN, COSTS), (SHARE, sums_of(9))], ids=["mean", "statistic"])
def test_only_who_was_heard_counts(quantity, statistics):
    def rubbish(a):
        return np.where(HEARD > 0, a, np.nan)

    here = np.flatnonzero(HEARD)
    alone = combined(quantity, jax.tree.map(lambda a: a[here], statistics))
    masked = combined(quantity, jax.tree.map(rubbish, statistics), HEARD)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), masked, alone)
    everybody = combined(quantity, statistics, np.ones(9, np.float32))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), everybody, combined(quantity, statistics))
    assert combined(quantity, statistics, np.zeros(9, np.float32)).violations[0] == -np.inf


def test_the_error_of_a_mean_is_the_sample_deviation_over_the_root_of_the_count():
    assert combined(MEAN, COSTS).errors[0] == pytest.approx(COSTS.std(ddof=1) / 3, rel=1e-5)
    few = COSTS[HEARD > 0]
    assert combined(MEAN, COSTS, HEARD).errors[0] == pytest.approx(few.std(ddof=1) / np.sqrt(5), rel=1e-5)
    assert combined(MEAN, COSTS[:1]).errors[0] == 0
    assert combined(MEAN, COSTS, np.eye(9, dtype=np.float32)[2]).errors[0] == 0
    assert combined(MEAN, COSTS, np.zeros(9, np.float32)).errors[0] == 0


def test_the_error_of_a_statistic_is_that_of_many_draws():
    """Of clients drawn with replacement: the deviation of the values of many draws, and the mean of their errors."""
    sums = sums_of(400)
    draws = np.random.default_rng(1).integers(0, 400, (4000, 30))
    at = jax.jit(jax.vmap(lambda s: (SHARE.measured(SHARE.pool(s)), SHARE.error(s, SHARE.pool(s)))))
    values, errors = at(jax.tree.map(lambda a: a[draws], sums))
    assert float(np.mean(errors)) == pytest.approx(float(np.std(values)), rel=0.05)


def test_the_error_is_of_what_is_switched_on():
    quantity = fs.Statistic(SHARE.sums, lambda t: t["all"] / 100, switch_on=share, name="share")
    assert combined(quantity, sums_of(9)).errors[0] == combined(SHARE, sums_of(9)).errors[0]


def test_an_undefined_value_has_no_error():
    """Nobody has the group: the constraint is passed over, and a margin of so many errors adds nothing."""
    found = combined(fs.fairness.class_loss(loss, label=1), {"count": np.zeros(4), "loss": np.zeros(4)})
    assert found.violations[0] == -np.inf
    assert found.errors[0] == 0


def test_scales_and_errors_are_of_each_constraint():
    problem = fs.Problem(loss, [MEAN <= 0.3, fs.Constraint(SHARE, 0.1, scale=2.0)])
    measured = problem.combine((COSTS, sums_of(9)), 0.0, KEY)
    np.testing.assert_array_equal(measured.scales, [1, 2])
    assert measured.errors.shape == (2,)
    assert measured.scale == measured.scales[np.argmax(measured.violations)]
    none = fs.Problem(loss).combine((), 0.0, KEY)
    assert none.scale == 1
    assert none.errors.shape == none.scales.shape == (0,)


def test_errors_that_nobody_uses_are_not_computed():
    def violations(statistics):
        return fs.Problem(loss, [MEAN <= 0.3]).combine((statistics,), 0.0, KEY).violations

    compiled = jax.jit(violations).lower(COSTS).compile().as_text()
    assert "sqrt" not in compiled
    assert "sqrt" in jax.jit(standard_error).lower(jnp.asarray(COSTS)).compile().as_text()
