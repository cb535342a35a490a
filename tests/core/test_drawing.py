"""K of d without replacement: all different, every choice as likely, by either way of drawing."""

import functools
import math

import jax
import numpy as np
import pytest
from scipy import stats

from fedsgm import FedSGM, RandK
from fedsgm.core import drawing

BOTH = {"permuted": drawing.permuted, "sorted out": drawing.sorted_out}
way = pytest.mark.parametrize("name", BOTH)


def draws(name, k, d, n):
    """By n keys."""
    keys = jax.random.split(jax.random.key(1000 * d + k), n)
    return np.asarray(jax.jit(jax.vmap(functools.partial(BOTH[name], k=k, d=d)))(keys))


@way
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 31, 255, 256, 257, 289, 290, 1000, 65_537])
def test_all_different(name, d):
    for k in sorted({1, max(d // 10, 1), d}):
        drawn = draws(name, k, d, 5)
        assert drawn.dtype == np.int32
        for each in drawn:
            assert len(np.unique(each)) == k
            assert each.min() >= 0
            assert each.max() < d


@way
@pytest.mark.parametrize(("d", "k"), [(7, 1), (12, 2), (17, 3), (31, 2), (300, 1)])
def test_every_choice_is_as_likely(name, d, k):
    """Chi-square over all choices of K of d."""
    n = 60_000
    drawn = np.sort(draws(name, k, d, n), axis=1).astype(np.int64)
    choices = math.comb(d, k)
    _, counts = np.unique(drawn @ d ** np.arange(k), return_counts=True)
    assert len(counts) == choices
    spread = np.sum((counts - n / choices) ** 2) / (n / choices)
    assert stats.chi2.sf(spread, choices - 1) > 1e-4


@pytest.mark.parametrize(("d", "k"), [(256, 128), (1000, 100)])
def test_sums_have_the_mean_and_the_variance(d, k):
    """Of half of the entries, by rows and columns of the permutation's rectangle and at random: hypergeometric."""
    n, place, width = 10_000, np.arange(d), -(-d // (math.isqrt(d - 1) + 1))
    row, column = place // width, place % width
    halves = [place < d // 2, row % 2, column % 2, (row + column) % 2, column < width // 2, row == 0, column == 0]
    halves = np.float64([*halves, *np.random.default_rng(d).integers(0, 2, (5, d))])
    drawn = draws("permuted", k, d, n)
    kept = np.stack([half[drawn].sum(axis=1) for half in halves])
    share = halves.mean(axis=1)
    variance = k * share * (1 - share) * (d - k) / (d - 1)
    assert (np.abs(kept.mean(axis=1) - k * share) < 4.5 * np.sqrt(variance / n)).all()
    assert (np.abs(kept.var(axis=1) / variance - 1) < 4.5 * np.sqrt(2 / n)).all()


def test_the_contraction_of_long_vectors():
    """E||C(x) - x||^2 = (1 - K/d) ||x||^2, on a vector whose length is in few entries."""
    d, n, compressor = 2000, 4000, RandK(0.25)
    x = np.random.default_rng(0).standard_cauchy(d).astype(np.float32)
    messages = jax.jit(jax.vmap(compressor.compress, in_axes=(None, 0)))(x, jax.random.split(jax.random.key(5), n))
    np.testing.assert_array_equal(messages.values, x[np.asarray(messages.indices)])
    left = 1 - np.sum(np.float64(messages.values) ** 2, axis=1) / np.sum(np.float64(x) ** 2)
    assert abs(left.mean() - (1 - compressor.contraction(d))) < 4 * left.std() / np.sqrt(n)


def test_alone_as_in_a_batch():
    """A function of the key, wherever it is drawn; another key draws others."""
    keys = jax.random.split(jax.random.key(0), 6)
    draw = functools.partial(drawing.distinct, k=40, d=1000)
    batch = np.asarray(jax.jit(jax.vmap(jax.vmap(draw)))(keys.reshape(2, 3))).reshape(6, -1)
    for key, together in zip(keys, batch, strict=True):
        np.testing.assert_array_equal(jax.jit(draw)(key), together)
    assert len(np.unique(np.sort(batch, axis=1), axis=0)) == 6


def test_nothing_of_size_d():
    """Ten of a billion."""
    program = jax.jit(functools.partial(drawing.distinct, k=10, d=10**9)).lower(jax.random.key(0)).compile()
    assert program.memory_analysis().temp_size_in_bytes < 10_000
    assert len(np.unique(program(jax.random.key(0)))) == 10


def test_participants_are_drawn_without_an_array_of_all_clients():
    """Three of a million in ascending order; below 256 as the paper's results were drawn."""
    clients, algorithm = 10**6, FedSGM(0.1, participants=3)
    traced = jax.make_jaxpr(lambda key: algorithm.sample(key, clients))(jax.random.key(0))
    assert all(size < 1000 for size in sizes(traced.jaxpr))
    who = np.asarray(algorithm.sample(jax.random.key(0), clients))
    assert (np.diff(who) > 0).all()
    key = jax.random.key(3)
    expected = np.argsort(-np.asarray(jax.random.uniform(key, (20,))))[:3]
    np.testing.assert_array_equal(algorithm.sample(key, 20), np.sort(expected))


def sizes(jaxpr):
    """Of all arrays of a program, those of its inner programs too."""
    for equation in jaxpr.eqns:
        yield from (math.prod(out.aval.shape) for out in equation.outvars)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)
