"""Runs with clients of very different sizes, in groups by size, beside the same runs with all padded to the longest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.sizes import BySize
from fedsgm.core.examples import Examples
from fedsgm.engines.device import OnDevice
from fedsgm.tables import fairness
from fedsgm.theory import certificates, estimates
from support.runs import assert_identical

COUNTS = (3, 40, 5, 16, 2, 4)
N, D, ROUNDS = len(COUNTS), 3, 12
RNG = np.random.default_rng(11)


def client(j, count):
    x = RNG.normal(0.3 * j, 1, (count, D)).astype(np.float32)
    rare = (np.arange(count) % 4 == 3).astype(np.int32)  # which the smallest clients do not have
    return {"x": x, "y": np.float32(x[:, 0] > 0.5), "group": np.int32(np.arange(count) % 2), "rare": rare}


PARTS = [client(j, count) for j, count in enumerate(COUNTS)]
CLIENTS = fs.Clients.from_list(PARTS)
TEST = client(1, 40)
START = np.float32([0.2, -0.1, 0.1])


def logistic(w, example):
    z = example["x"] @ w
    return jnp.logaddexp(0.0, z) - example["y"] * z


def score(w, example):
    return jax.nn.sigmoid(example["x"] @ w)


EVERY_KIND = (
    fs.Mean(lambda w, example: example["x"][1] * w[1], name="mean") <= -0.1,
    fs.Mean(logistic, where=lambda example: example["rare"] == 1, name="absent", missing="absent") <= 0.4,
    fairness.demographic_parity(score, by="group", groups=2, scores=True, name="gap") <= 0.005,
    fs.each_client(fs.Mean(logistic, name="loss"), quantile=0.8) <= 0.4,
)


def problem(constraints=EVERY_KIND, **more):
    return fs.Problem(logistic, constraints, **more)


def algorithm(**settings):
    return fs.FedSGM(**{"step_size": 0.2, "local_steps": 2, "rule": fs.Penalty(0.5)} | settings)


def run(made, posed, **more):
    settings = {"rounds": ROUNDS, "seed": 2, "progress": False} | more
    return fs.simulate(made, posed, CLIENTS, START, **settings)


def assert_close(left, right):
    np.testing.assert_array_equal(left.history["participants"], right.history["participants"])
    assert left.history.keys() == right.history.keys()
    for name, column in left.history.items():
        np.testing.assert_allclose(column, right.history[name], rtol=2e-4, atol=2e-5, err_msg=name)
    for kind in ("last", "average", "answer"):
        np.testing.assert_allclose(getattr(left, kind), getattr(right, kind), rtol=2e-4, atol=2e-5, err_msg=kind)
    for part, values in left.values.items():
        for name, found in values.items():
            np.testing.assert_allclose(found, right.values[part][name], rtol=2e-4, atol=2e-5, err_msg=f"{part} {name}")


def over_bounds(result):
    return [result.history[name] - bound for name, bound in result.bounds.items()]


SETTINGS = [
    ({}, "rows"),
    ({"batch_size": 4, "uplink": fs.TopK(count=1)}, "clients"),
    ({"participants": 3, "uplink": fs.TopK(count=1), "downlink": fs.TopK(count=2)}, "clients"),
    ({"participants": 3, "query": "all", "batch_size": 4}, "rows"),
    ({"participants": 3, "query": "memory", "constraint_batch_size": 5}, "rows"),
]


@pytest.mark.parametrize(
    ("settings", "weigh"), SETTINGS, ids=lambda given: given if isinstance(given, str) else "-".join(given)
)
def test_groups_give_the_run_of_one_padded_array(many_groups, settings, weigh):
    """Every kind of constraint; the same participants and batches, and sums to within rounding."""
    made, posed = algorithm(**settings), problem(weigh=weigh)
    data = posed.prepare(CLIENTS, START)
    assert isinstance(data, BySize)
    assert len(data.groups) == 3
    parted = run(made, posed, test=TEST)
    many_groups(False)
    assert isinstance(posed.prepare(CLIENTS, START), Examples)
    whole = run(made, posed, test=TEST)
    assert_close(parted, whole)
    assert all((excess > 0).any() for excess in over_bounds(parted)), "each is followed, beside the objective"


@pytest.mark.usefixtures("many_groups", "_programs_go_with_their_test")
def test_debug_is_the_same_run_and_names_the_client():
    mine = PARTS[3]["x"][0, 0]

    def breaks(w, example):  # on one client alone, and nowhere where the run begins
        return jnp.where((example["x"][0] == mine) & (w[0] != START[0]), jnp.nan, logistic(w, example))

    sound, broken = problem(EVERY_KIND[:1]), problem([fs.Mean(breaks, name="breaks") <= 1.0])
    made = algorithm(local_steps=1, participants=N - 1, batch_size=4)
    fast, slow = (run(made, sound, rounds=1, debug=debug) for debug in (False, True))
    np.testing.assert_allclose(slow.last, fast.last, rtol=1e-4, atol=1e-6)
    with pytest.raises(fs.ClientError, match=r"^client 3, round [12]: a NaN or an infinite value in measure"):
        run(made, broken, evaluate_every=0, debug=True)


@pytest.mark.usefixtures("many_groups")
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path):
    made, posed = algorithm(participants=3, batch_size=4, uplink=fs.TopK(count=1)), problem()
    straight = run(made, posed, seeds=2)
    run(made, posed, seeds=2, rounds=5, checkpoint=fs.Checkpoint(tmp_path, every=5))
    resumed = run(made, posed, seeds=2, checkpoint=fs.Checkpoint(tmp_path, every=5, resume=True))
    assert_identical(straight, resumed)
    other = dataclasses.replace(CLIENTS, examples=CLIENTS.examples | {"y": 1 - CLIENTS.examples["y"]})
    again = {"rounds": ROUNDS, "seed": 2, "seeds": 2, "checkpoint": fs.Checkpoint(tmp_path, every=5, resume=True)}
    with pytest.raises(fs.CheckpointError, match="data"):
        fs.simulate(made, posed, other, START, progress=False, **again)


def test_what_theory_measures_is_the_same(many_groups):
    posed = fs.Problem(
        lambda w, example: 0.5 * jnp.sum((w - example["x"]) ** 2),
        [fs.Mean(lambda w, example: example["x"] @ w, name="g") <= 0.1],
    )

    def measured():
        return [
            estimates.lipschitz(posed, CLIENTS, START, radius=1.0),
            estimates.spread(posed, CLIENTS, START, radius=1.0),
            *estimates.skewness(posed, CLIENTS, START).values(),
            certificates.certify(posed, CLIENTS, START, strong_convexity=1.0).lower_bound,
        ]

    parted = measured()
    many_groups(False)
    # What clients add to the rotation is 0 here but for rounding: the sum of a client's two gradients is w.
    np.testing.assert_allclose(parted, measured(), rtol=1e-5, atol=1e-6)
    means = np.stack([part["x"].astype(float).mean(axis=0) for part in PARTS])
    values = means @ START
    assert estimates.spread(posed, CLIENTS, START) == pytest.approx((values.max() - values.min()) / 2, rel=1e-5)


def test_a_watched_problem_runs(many_groups):
    posed = estimates.Watched(problem(EVERY_KIND[:1]))
    parted = run(algorithm(participants=3), posed, evaluate_every=4)
    many_groups(False)
    assert_close(parted, run(algorithm(participants=3), posed, evaluate_every=4))


def numbers(tree):
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("participants", [None, 6])
def test_memory_is_that_of_the_rows_not_of_the_longest_client(monkeypatch, participants):
    """60 Zipf-sized clients with 100,000 rows; padded to the longest they would take 13 times the rows."""
    total, given = 100_000, []
    shares = 1 / np.arange(1, 61)
    cuts = np.round(np.cumsum(shares / shares.sum())[:-1] * total).astype(int)
    x = np.zeros((total, 50), np.float32)
    clients = fs.Clients.from_list([{"x": part} for part in np.split(x, cuts)])
    assert clients.counts.max() > 20_000
    assert clients.examples["x"].nbytes == x.nbytes

    def spy(ground, _):
        given.append(ground.data)
        raise KeyboardInterrupt  # what is given to the engine is enough

    monkeypatch.setattr(OnDevice, "start", spy)
    posed = fs.Problem(lambda w, example: w @ example["x"])
    made, start = fs.FedSGM(0.1, participants=participants), np.zeros(50, np.float32)
    with pytest.raises(KeyboardInterrupt):
        fs.simulate(made, posed, clients, start, rounds=1, offload=False)
    rows = numbers(Examples(clients.examples, np.zeros((1, total)), None))
    assert numbers(given[0]) < (1.7 if participants is None else 2.7) * rows


def test_equal_clients_are_one_array_as_ever():
    """Even if there is much of it: 40 clients, 100,000 rows."""
    clients = fs.split({"x": np.zeros((100_010, 12), np.float32)}, clients=40)
    data = fs.Problem(lambda w, example: w @ example["x"]).prepare(clients, np.zeros(12, np.float32))
    assert isinstance(data, Examples)
    assert data.examples["x"].shape == (40, 2501, 12)
