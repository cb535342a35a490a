"""Clients' examples, along the first axis of their arrays or along the last."""

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base import sizes
from fedsgm.core.examples import Examples
from fedsgm.engines import simulate as simulation
from support.runs import logistic, positive


def everybody(counts, features=5):
    rng, rows = np.random.default_rng(0), sum(counts)
    x, y = rng.normal(size=(rows, features)).astype(np.float32), np.float32(np.arange(rows) % 2)
    return fs.Clients({"x": x, "y": y}, np.array(counts))


@pytest.mark.parametrize("counts", [(11, 11, 11), (11, 9, 12), (8, 8, 8)])
def test_turned_they_are_the_same(counts):
    """Every client's own come first, and what is padded weighs nothing and is its first example again."""
    rows = Examples(everybody(counts).examples, np.ones((2, sum(counts)), np.float32), None)
    plain, turned = (
        sizes.padded(each, np.array(counts)) for each in (rows, Examples(rows.examples, rows.weights, None, turn=True))
    )
    assert turned.axis == -1
    assert turned.examples["x"].shape[1:] == (5, -(-max(counts) // 8) * 8)
    np.testing.assert_array_equal(turned.count, counts)
    for j, count in enumerate(counts):
        np.testing.assert_array_equal(turned.examples["x"][j, :, :count].T, plain.examples["x"][j, :count])
        np.testing.assert_array_equal(turned.examples["y"][j, :count], plain.examples["y"][j, :count])
        np.testing.assert_array_equal(turned.weights[j, :, :count], 1)
        assert not turned.weights[j, :, count:].any()
        rest = turned.examples["x"][j, :, count:]
        np.testing.assert_array_equal(rest, np.broadcast_to(turned.examples["x"][j, :, :1], rest.shape))


def spied(monkeypatch):
    """A list that tells when examples are turned."""
    asked, made = [], Examples.turned
    monkeypatch.setattr(Examples, "turned", lambda self: asked.append(True) or made(self))
    return asked


SETTINGS = {
    "some": {"participants": 2},
    "all are asked": {"participants": 2, "query": "all", "uplink": fs.TopK(count=2)},
    "of very different sizes": {"participants": 2},
    "memory": {"participants": 2, "query": "memory"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_on_turned_examples_is_the_same_to_rounding(name, monkeypatch):
    clients = everybody((11, 9, 12, 400) if "sizes" in name else (11, 9, 12, 14))
    problem = fs.Problem(logistic, [fs.Mean(logistic, where=positive, name="positive") <= 0.45])
    params = {"w": np.full(5, 0.3, np.float32), "b": np.zeros((), np.float32)}
    algorithm = fs.FedSGM(0.1, 3, rule=fs.Soft(10.0), **SETTINGS[name])

    def run():
        return fs.simulate(algorithm, problem, clients, params, rounds=20, progress=False, evaluate_every=5)

    asked = spied(monkeypatch)
    first = run()
    assert asked
    asked.clear()
    monkeypatch.setattr(simulation, "_is_turned", lambda *_: False)
    second = run()
    assert not asked
    np.testing.assert_array_equal(first.history["participants"], second.history["participants"])
    for what in ("objective", "violation", "weight"):
        np.testing.assert_allclose(first.history[what], second.history[what], rtol=2e-5, atol=2e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6), first.last, second.last)


@pytest.mark.parametrize(
    ("counts", "features", "settings", "turned"),
    [
        ((22, 22), 30, {}, True),
        ((22, 22), 32, {}, False),  # a multiple of eight already
        ((22, 22), 100, {}, False),  # of many features it would be no gain
        ((22, 22), 1, {}, False),
        ((2, 2), 30, {}, False),  # four times the room
        ((22, 22), 30, {"batch_size": 4}, False),
        ((22, 22), 30, {"constraint_batch_size": 4}, False),
    ],
)
def test_whose_are_turned(counts, features, settings, turned, monkeypatch):
    asked = spied(monkeypatch)
    params = {"w": np.zeros(features, np.float32), "b": np.zeros((), np.float32)}
    problem = fs.Problem(logistic, [fs.Mean(logistic, name="all") <= 1])
    fs.simulate(fs.FedSGM(0.1, 2, **settings), problem, everybody(counts, features), params, rounds=2, progress=False)
    assert bool(asked) == turned


def test_a_model_with_a_matrix_has_them_first(monkeypatch):
    asked = spied(monkeypatch)
    problem = fs.Problem(lambda w, example: (example["x"] @ w).sum())
    fs.simulate(fs.FedSGM(0.1, 2), problem, everybody((22, 22)), np.zeros((5, 2), np.float32), rounds=2, progress=False)
    assert not asked
