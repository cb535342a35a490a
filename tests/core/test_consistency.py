"""Clients' messages against what they say: what is found for certain, whom it never touches, and in both engines."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.layout import Layout
from fedsgm.base.structs import replaced
from fedsgm.core.algorithm import Flat
from fedsgm.core.drawing import RoundKeys
from fedsgm.federation import Program
from fedsgm.federation.answers import INCONSISTENT
from fedsgm.federation.inprocess import InProcess
from support.federated import CLIENTS, PARAMS, PROBLEM

N, D, LIAR = 7, 3, 2
RANDOM = np.random.default_rng(0)
QUADRATICS = fs.Clients.from_list(
    [
        {"a": RANDOM.uniform(0.2, 2, 1), "b": RANDOM.normal(0, 3, (1, D)), "c": RANDOM.normal(0, 3, (1, D))}
        for _ in range(N)
    ]
)


def loss(w, example):
    return example["a"] * jnp.sum((w - example["b"]) ** 2) / 2


def near(w, example):
    """Of the same curvature as the loss, so that the rule may give them any weights."""
    return example["a"] * jnp.sum((w - example["c"]) ** 2) / 2


FREE = fs.Problem(loss)
BOUND = fs.Problem(loss, [fs.Mean(near, name="near") <= 5.0])


def scores(problem, rounds=8, send=lambda v: v, say=lambda s: s, rule=fs.Hard(), participants=None, robust=None):
    """The state after so many rounds of the five functions, where LIAR alone changes what it sends and says."""
    algorithm = fs.FedSGM(0.1, 1, participants, rule=rule, robust=robust or fs.Outliers(1e9))
    start = np.zeros(D, np.float32)
    task, data = Flat(problem, Layout.of(start)), jax.tree.map(jnp.asarray, problem.prepare(QUADRATICS, start))

    @jax.jit
    def a_round(server, t):
        keys, w = RoundKeys.of(jnp.uint32(0), t), server.replica
        who = algorithm.sample(keys.sampling, N)
        here, lies = jax.tree.map(lambda a: a[who], data), who == LIAR
        each = jax.vmap(lambda own: algorithm.measure(task, w, own, keys.shared)[0])(here)
        told = jax.tree.map(lambda a: jnp.where(lies, say(a), a), each)
        direction, server, measured = algorithm.decide(task, server, told, who, N, keys.server)
        apart = task.layout.apart(w)

        def update(own):
            return algorithm.local_update(task, apart, direction, own, None, algorithm.init_memory(D), keys.shared)[0]

        message = jax.vmap(update)(here)
        sent = jnp.where(lies[:, None], send(message.values), message.values)
        used = algorithm.screened(replaced(message, values=sent), who, D, measured.doubted[who])[0]
        return algorithm.aggregate(task, server, used, keys.server)[0]

    server = algorithm.init(task, jnp.asarray(start), N)
    for t in range(rounds):
        server = a_round(server, jnp.int32(t))
    return server.consistency


def score(found):
    return np.asarray(found.error / found.total)


@pytest.mark.parametrize(("times", "expected"), [(1, 0), (0, 1), (-1, 4), (3, 4), (2.5, 2.25)])
def test_messages_of_so_many_times_the_slope_are_wrong_by_their_square(times, expected):
    """e = (1 - c) times the change, exactly so for quadratics; and no one else's score moves."""
    found = scores(FREE, send=lambda v: times * v)
    np.testing.assert_allclose(score(found)[LIAR], expected, rtol=1e-3, atol=1e-4)
    assert np.delete(score(found), LIAR).max() < 1e-4
    assert np.asarray(found.doubted).tolist() == [float(j == LIAR and times not in (1, 0)) for j in range(N)]


@pytest.mark.parametrize("rule", [fs.Hard(), fs.Soft(0.1)], ids=lambda rule: type(rule).__name__)
def test_honest_clients_fit_whatever_the_rule_weighs_and_however_unlike_they_are(rule):
    assert score(scores(BOUND, rounds=40, rule=rule)).max() < 1e-3
    found = np.asarray(scores(BOUND, rounds=12, rule=rule, send=lambda v: -v).doubted)
    assert found.tolist() == [float(j == LIAR) for j in range(N)]


def test_a_mirrored_client_is_as_one_with_other_data():
    """What nobody can find out: values that are told the other way, and their slopes."""
    found = scores(FREE, send=lambda v: -v, say=lambda s: 7 - s)
    assert score(found).max() < 1e-4


def test_values_that_are_told_the_other_way_are_found_with_true_messages():
    found = scores(FREE, say=lambda s: 7 - s)
    assert np.asarray(found.doubted).tolist() == [float(j == LIAR) for j in range(N)]


def test_where_nothing_moves_any_more_nobody_is_doubted():
    """The last digits of a value are no change."""
    found = scores(BOUND, rounds=1500, rule=fs.Soft(0.1))
    assert float(jnp.linalg.norm(found.step)) < 1e-5
    assert not np.asarray(found.doubted).any()


def test_of_few_participants_those_that_take_part_twice_running_are_judged():
    found = scores(FREE, rounds=30, participants=3, send=lambda v: -v)
    known = np.asarray(found.total) > 0
    assert known[LIAR]
    assert 3 < known.sum() <= N
    assert np.asarray(found.doubted).tolist() == [float(j == LIAR) for j in range(N)]
    assert score(found)[known & (np.arange(N) != LIAR)].max() < 1e-4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("what", ["send", "say"])
def test_what_is_no_number_ends_with_its_client(bad, what):
    """In a run where its messages and statistics are left out, as an engine does with what is not finite."""
    found = scores(FREE, rounds=2, **{what: lambda a: jnp.full_like(a, bad)}, robust=fs.Median())
    assert np.isfinite(np.asarray([found.error, found.total])).all()
    assert np.delete(np.asarray(found.doubted), LIAR).sum() == 0


def test_one_bad_round_counts_no_more_than_ten():
    """It counts as much as ten rounds in which all that is sent misses all that changes."""
    found = scores(FREE, rounds=2, send=lambda v: 1e6 * v, robust=fs.Median())
    assert found.doubted[LIAR] == 1
    assert float(found.error[LIAR]) == 10.0


@pytest.mark.parametrize(
    ("settings", "compared"),
    [
        ({}, True),
        ({"uplink": fs.Quantize("int8")}, True),
        ({"batch_size": 4}, True),
        ({"uplink": fs.TopK(0.5)}, False),
        ({"constraint_batch_size": 4}, False),
        ({"robust": None}, False),
    ],
)
def test_values_of_the_objective_are_sent_where_messages_are_held_against_them(settings, compared):
    given = {"robust": fs.Outliers()} | settings
    results = [
        fs.simulate(fs.FedSGM(0.1, **more), PROBLEM, CLIENTS, PARAMS, rounds=2, progress=False)
        for more in (given, given | {"robust": None})
    ]
    more = results[0].history["bytes_up"] - results[1].history["bytes_up"]
    assert (more == (4 * len(CLIENTS) if compared else 0)).all()


@fs.struct
class Flipped(fs.FedSGM):
    """A client whose mark says so sends its update flipped, and true statistics."""

    def local_update(self, *given):
        message, after = super().local_update(*given)
        sign = jnp.where(given[3].examples["x"][0, 0] > 100, -1.0, 1.0)
        return replaced(message, values=sign * message.values), after


EXAMPLES = [CLIENTS[j] for j in range(5)]
EXAMPLES[LIAR] = EXAMPLES[LIAR] | {"x": EXAMPLES[LIAR]["x"].copy()}
EXAMPLES[LIAR]["x"][0, 0] = 101.0  # the mark
MARKED = fs.Clients.from_list(EXAMPLES)
ALGORITHM = Flipped(0.01, 2, rule=fs.Soft(40.0), downlink=fs.TopK(0.5), robust=fs.Outliers(1e9))
ROUNDS = 12


def simulated(rounds=ROUNDS, algorithm=ALGORITHM, **more):
    return fs.simulate(algorithm, PROBLEM, MARKED, PARAMS, rounds=rounds, progress=False, **more)


def test_both_engines_find_the_same_client_and_take_the_same_steps(tmp_path):
    first = simulated()
    transport = InProcess.of(Program.of(ALGORITHM, PROBLEM, PARAMS), MARKED, tmp_path)
    federated = fs.federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=ROUNDS, progress=False)
    for name in ("rejected", "doubted", "estimate", "weight", "bytes_up"):
        np.testing.assert_allclose(federated.history[name], first.history[name], rtol=1e-4, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), federated.last, first.last)
    doubted = first.history["doubted"][0]
    assert doubted[2:, LIAR].all(), "two rounds are compared after the second"
    assert not np.delete(doubted, LIAR, axis=1).any()
    left = [account["left_out"] for account in federated.settings["federation"]["clients"]]
    assert left == [{INCONSISTENT: ROUNDS - 2} if j == LIAR else {} for j in range(5)]


@pytest.mark.parametrize("query", ["participants", "all", "memory"])
def test_a_run_that_goes_on_is_the_run(query, tmp_path):
    few = dataclasses.replace(ALGORITHM, query=query, participants=None if query == "participants" else 4)
    whole = simulated(algorithm=few)
    for engine in ("simulate", "federate"):
        for rounds in (5, ROUNDS):
            kept = fs.Checkpoint(tmp_path / engine, every=1, resume=True)
            if engine == "simulate":
                found = simulated(rounds, few, checkpoint=kept)
            else:
                transport = InProcess.of(Program.of(few, PROBLEM, PARAMS), MARKED, tmp_path / f"clients {rounds}")
                given = {"rounds": rounds, "progress": False, "checkpoint": kept}
                found = fs.federate(few, PROBLEM, transport, PARAMS, **given)
        exact = 0 if engine == "simulate" else 1e-5
        for name in ("doubted", "estimate"):
            np.testing.assert_allclose(found.history[name], whole.history[name], rtol=exact, atol=exact)
        jax.tree.map(lambda a, b, e=exact: np.testing.assert_allclose(a, b, atol=e), found.last, whole.last)
    assert whole.history["doubted"][0, -1, LIAR] == 1
