"""Shares of noise: the distribution, what one client can move, and an auditor of the sums."""

import numpy as np
import pytest
from scipy import stats

import fedsgm as fs
from fedsgm.base.structs import replaced
from fedsgm.privacy import shares
from fedsgm.privacy.task import guarded
from support.auditing import lower_bound

PROBLEM = fs.Problem(lambda w, e: w @ e["x"], [fs.Mean(lambda _, e: e["v"], name="value") <= 0.5])
RANGES = {"objective": (-1.0, 1.0), "value": (0.0, 1.0)}
LINK, UNIT, CLIENTS, TRIALS = fs.SharedK(1.0, reach=64.0), 2.0**-30, 5, 200_000


def task_of(**changes):
    given = {"epsilon": 1.0, "delta": 1e-2, "rounds": 1, "clip": 1.0, "ranges": RANGES, "unit": "client"}
    return guarded(fs.FedSGM(1.0, uplink=LINK, privacy=fs.Privacy(**given | changes)), PROBLEM)


@pytest.mark.parametrize("sigma", [0.7, 4.0, 31.5])
def test_the_noise_is_a_discrete_gaussian(sigma):
    drawn = shares.discrete(sigma, 200_000)
    far = int(3 * sigma)
    inner = np.arange(-far, far + 1)
    weights = np.exp(-(np.arange(-400, 401) ** 2) / (2 * sigma**2))
    expected = len(drawn) * np.exp(-(inner**2) / (2 * sigma**2)) / weights.sum()
    counts = np.array([(drawn == k).sum() for k in inner])
    counts, expected = np.append(counts, len(drawn) - counts.sum()), np.append(expected, len(drawn) - expected.sum())
    assert stats.chisquare(counts, expected).pvalue > 1e-6


def told(value, trials=TRIALS):
    """One client's, so many times over: statistics, and the values of two models."""
    each = np.full(trials, value, np.float32)
    return (each,), ((2 * each - 1, each),) * 2, None


def test_what_is_rounded_is_no_longer(monkeypatch):
    monkeypatch.setattr(shares, "discrete", lambda _, size: np.zeros(size, np.int64))
    task = task_of(ranges={"objective": (-1.0, 1.0), "value": (0.1, 0.9)})
    low, high = (shares.of_values(task, told(value, 1), UNIT, CLIENTS) * UNIT for value in (-7.0, 7.0))
    expected = np.array([0.8, 2.0, 0.8, 2.0, 0.8])
    assert (high - low <= expected).all()
    np.testing.assert_allclose(high - low, expected, atol=1e-2)


def test_sums_that_are_never_negative_are_rounded_to_no_more_length(monkeypatch):
    monkeypatch.setattr(shares, "discrete", lambda _, size: np.zeros(size, np.int64))
    sums = fs.Statistic(lambda _, e: e["s"] + 0.0, lambda total: total[0], name="sums")
    given = {"epsilon": 1.0, "delta": 1e-2, "rounds": 1, "clip": 1.0, "unit": "client"}
    privacy = fs.Privacy(**given, ranges={"objective": (-1.0, 1.0), "sums": (0.0, 1.0)})
    task = guarded(fs.FedSGM(1.0, uplink=LINK, privacy=privacy), fs.Problem(PROBLEM.objective, [sums <= 0.1]))
    (said,) = task._within((np.float32([3, -4, 4]),), ("sums",))
    np.testing.assert_allclose(said, [0.6, 0, 0.8], rtol=1e-4)
    whole = shares.of_values(task, ((said,), None, None), UNIT, CLIENTS) * UNIT
    assert (whole <= np.asarray(said)).all()
    np.testing.assert_allclose(whole, said, atol=0.01)


def audited(noise):
    """All that a server sees of a round and of the end: sums over the fewest clients that there can be."""
    task = task_of()
    task = replaced(task, noise=noise * task.noise)
    found = []
    for sign in (1, -1):
        rows = 0
        for client in range(4):
            value, code = ((sign + 1) / 2, int(sign / LINK.step)) if client == 0 else (0.5, 0)
            update = shares.of_update(task, LINK, np.full(TRIALS, code), CLIENTS)
            values = shares.of_values(task, told(value), UNIT, CLIENTS)
            rows = rows + np.concatenate([update, values]).reshape(-1, TRIALS)
        found.append(rows.T.astype(float))
    spread = found[0].std(axis=0)
    return lower_bound(found[0] / spread, found[1] / spread, task.privacy.delta)


def test_an_auditor_of_the_sums_finds_no_more_than_is_claimed_and_finds_noise_that_was_halved():
    assert 0.2 < audited(1.0) <= 1.0
    assert audited(0.5) > 1.0
