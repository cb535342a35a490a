"""Special cases that must coincide, and the five functions run by hand outside any engine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.layout import Layout
from fedsgm.core.algorithm import Flat
from fedsgm.core.drawing import RoundKeys
from fedsgm.core.feedback import Memory

D = 6


@pytest.fixture(scope="module")
def quadratic():
    """f_j = |w - a_j|^2 / 2 and g_j = <b_j, w>, one example a client."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(8, D)) + 1.0, rng.normal(size=(8, D)) * 0.3 + 0.5
    clients = fs.Clients.from_list(
        [{"a": a[j : j + 1].astype(np.float32), "b": b[j : j + 1].astype(np.float32)} for j in range(8)]
    )
    problem = fs.Problem(
        objective=lambda w, example: 0.5 * jnp.sum((w - example["a"]) ** 2),
        constraints=[fs.Mean(lambda w, example: example["b"] @ w, name="budget") <= 0.7],
    )
    return problem, clients, a.astype(np.float32), b.astype(np.float32)


def run(algorithm, quadratic, rounds=60, **more):
    problem, clients, *_ = quadratic
    return fs.simulate(algorithm, problem, clients, np.ones(D, np.float32), rounds=rounds, progress=False, **more)


def assert_same(left, right):
    np.testing.assert_array_equal(left.last, right.last)
    np.testing.assert_array_equal(left.average, right.average)
    np.testing.assert_array_equal(left.history["objective"], right.history["objective"])


def test_one_client_one_step_is_centralised_switching_gradient(clients, problem, params):
    whole = clients[1]
    algorithm = fs.FedSGM(step_size=0.3, rule=fs.Hard())
    result = fs.simulate(algorithm, problem, fs.Clients.from_list([whole]), params, rounds=100, progress=False)
    x = np.concatenate([np.ones((len(whole["y"]), 1)), whole["x"]], axis=1).astype(np.float64)
    y = whole["y"]
    w = np.concatenate([params["b"].reshape(1), params["w"]]).astype(np.float64)
    visited = []
    for _ in range(100):
        loss = np.logaddexp(0, x @ w) - y * (x @ w)
        label = 1 if loss[y == 1].mean() > 0.45 else 0
        if label == 0:
            visited.append(w)
        rows = x[y == label]
        w = w - 0.3 * rows.T @ (1 / (1 + np.exp(-rows @ w)) - label) / len(rows)
    np.testing.assert_allclose(np.r_[result.last["b"], result.last["w"]], w, rtol=1e-4, atol=1e-5)
    average = np.r_[result.average["b"], result.average["w"]]
    np.testing.assert_allclose(average, np.mean(visited, axis=0), rtol=1e-4, atol=1e-5)
    assert 0 < len(visited) < 100


def test_a_very_sharp_soft_rule_is_the_hard_rule(quadratic):
    options = {"step_size": 0.05, "local_steps": 3, "participants": 4, "uplink": fs.TopK(0.5)}
    assert_same(
        run(fs.FedSGM(rule=fs.Soft(1e30), **options), quadratic), run(fs.FedSGM(rule=fs.Hard(), **options), quadratic)
    )


def test_identity_is_no_compression(quadratic):
    options = {"step_size": 0.05, "local_steps": 2, "participants": 4, "rule": fs.Soft(2.0)}
    explicit = fs.FedSGM(uplink=fs.Identity(), downlink=fs.Identity(), **options)
    assert_same(run(explicit, quadratic), run(fs.FedSGM(**options), quadratic))
    assert explicit.init_memory(D) == Memory(None)
    assert explicit.init(Flat(quadratic[0], Layout.of(np.ones(D))), np.ones(D), 8).model is None
    everything = fs.FedSGM(uplink=fs.TopK(1.0), downlink=fs.TopK(1.0), **options)
    np.testing.assert_allclose(
        run(everything, quadratic).history["objective"], run(explicit, quadratic).history["objective"], rtol=1e-5
    )


def test_all_clients_do_not_depend_on_the_sampler(quadratic):
    first = run(fs.FedSGM(step_size=0.05, participants=8), quadratic, seed=1)
    second = run(fs.FedSGM(step_size=0.05, participants=None), quadratic, seed=2)
    assert_same(first, second)
    np.testing.assert_array_equal(first.history["participants"][0, 0], np.arange(8))


def test_participants_are_distinct_and_uniform(quadratic):
    who = run(fs.FedSGM(step_size=0.01, participants=3), quadratic, rounds=4000).history["participants"][0]
    assert all(len(set(row)) == 3 for row in who)
    share = np.bincount(who.ravel(), minlength=8) / 4000
    deviation = np.sqrt(3 / 8 * 5 / 8 / 4000)
    np.testing.assert_allclose(share, 3 / 8, atol=5 * deviation)


def by_hand(algorithm, problem, clients, w0, rounds, seed=0):
    """A whole run from the five functions, one client at a time, yielding (server, memories, updates) a round."""
    layout = Layout.of(w0)
    task = Flat(problem, layout)
    data = problem.prepare(clients, w0)
    n = len(clients)
    server = algorithm.init(task, jnp.asarray(w0), n)
    memories = [jax.tree.map(jnp.asarray, algorithm.init_memory(layout.size)) for _ in range(n)]
    measure = jax.jit(lambda w, data, key: algorithm.measure(task, w, data, key))
    update = jax.jit(
        lambda w, direction, data, memory, key: algorithm.local_update(
            task, task.layout.apart(w), direction, data, None, memory, key
        )
    )
    for t in range(rounds):
        keys = RoundKeys.of(jnp.uint32(seed), jnp.int32(t))
        who = [int(j) for j in algorithm.sample(keys.sampling, n)]
        own = [jax.tree.map(lambda leaf, j=j: leaf[j], data) for j in range(n)]
        w = server.replica
        statistics = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *[measure(w, own[j], keys.client(j))[0] for j in who]
        )
        direction, server, _ = algorithm.decide(task, server, statistics, jnp.array(who), n, keys.server)
        messages = []
        before = list(memories)
        for j in who:
            message, memories[j] = update(w, direction, own[j], memories[j], keys.client(j))
            messages.append(message)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *messages)
        server, broadcast = algorithm.aggregate(task, server, stacked, keys.server)
        np.testing.assert_array_equal(algorithm.receive(w, broadcast), server.replica)
        yield w, server, before, list(memories), messages, direction, who


def test_the_five_functions_by_hand_give_the_engine_s_iterates(quadratic):
    problem, clients, *_ = quadratic
    algorithm = fs.FedSGM(
        step_size=0.05,
        local_steps=2,
        participants=5,
        rule=fs.PrimalDual(0.2),
        uplink=fs.RandK(0.5),
        downlink=fs.TopK(0.5),
    )
    w0 = np.ones(D, np.float32)
    *_, (_, server, *_) = by_hand(algorithm, problem, clients, w0, rounds=15, seed=4)
    result = fs.simulate(algorithm, problem, clients, w0, rounds=15, seed=4, progress=False)
    np.testing.assert_allclose(server.replica, result.last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("uplink", [fs.TopK(count=2), fs.Quantize("int2"), fs.ScaledSign(), fs.Natural()])
def test_the_error_feedback_identity_along_a_run(quadratic, uplink):
    """With everyone taking part, x_t - eta * mean(e) moves by exactly -eta times the mean update."""
    problem, clients, a, b = quadratic
    eta = 0.05
    algorithm = fs.FedSGM(step_size=eta, rule=fs.Hard(), uplink=uplink, downlink=fs.TopK(count=2))
    virtual = np.ones(D)
    for w, server, _, memories, _, direction, _ in by_hand(algorithm, problem, clients, np.ones(D, np.float32), 25):
        mean_step = float(direction.objective) * (w - a.mean(axis=0)) + float(direction.constraint) * b.mean(axis=0)
        virtual = virtual - eta * np.asarray(mean_step, np.float64)
        here = np.asarray(server.model) - eta * np.mean([np.asarray(memory.error) for memory in memories], axis=0)
        np.testing.assert_allclose(here, virtual, rtol=1e-5, atol=2e-6)
    assert np.abs(np.asarray(server.model) - virtual).max() > 1e-3, "the memories must carry something"


def test_clients_left_out_keep_their_memory(quadratic):
    problem, clients, *_ = quadratic
    algorithm = fs.FedSGM(step_size=0.05, participants=3, uplink=fs.TopK(count=1))
    for _, _, before, after, _, _, who in by_hand(algorithm, problem, clients, np.ones(D, np.float32), 6):
        for j in range(8):
            same = np.array_equal(before[j].error, after[j].error)
            assert same == (j not in who)


def test_hard_one_step_all_clients_top_k_both_ways_is_safe_ef(quadratic):
    """Safe-EF (Islamov et al., 2025) in NumPy: EF14 up, primal EF21 down, hard switching."""
    _problem, _clients, a, b = quadratic
    eta, k, bound = 0.05, 2, np.float32(0.7)

    def top(v):
        kept = np.argsort(-np.abs(v), kind="stable")[:k]
        return np.where(np.isin(np.arange(len(v)), kept), v, np.float32(0))

    x = w = np.ones(D, np.float32)
    errors = np.zeros_like(a)
    for _ in range(100):
        violated = np.mean(b @ w) > bound
        gradients = b if violated else w - a
        sent = np.stack([top(e + gradient) for e, gradient in zip(errors, gradients, strict=True)])
        errors = errors + gradients - sent
        x = x - np.float32(eta) * sent.mean(axis=0)
        w = w + top(x - w)
    algorithm = fs.FedSGM(step_size=eta, rule=fs.Hard(), uplink=fs.TopK(count=k), downlink=fs.TopK(count=k))
    np.testing.assert_allclose(run(algorithm, quadratic, rounds=100).last, w, rtol=1e-4, atol=1e-5)


def test_without_memory_what_a_compressor_leaves_out_is_lost(quadratic):
    """In NumPy: the clients' largest entries, and of the server's step its largest; everything else is dropped."""
    _problem, _clients, a, b = quadratic
    eta, k = 0.05, 2

    def top(v):
        kept = np.argsort(-np.abs(v), kind="stable")[:k]
        return np.where(np.isin(np.arange(len(v)), kept), v, np.float32(0))

    w = np.ones(D, np.float32)
    for _ in range(40):
        gradients = b if np.mean(b @ w) > np.float32(0.7) else w - a
        w = w - top(np.float32(eta) * np.mean([top(gradient) for gradient in gradients], axis=0))
    links = {"uplink": fs.TopK(count=k), "downlink": fs.TopK(count=k)}
    without = run(fs.FedSGM(step_size=eta, memory=False, **links), quadratic, rounds=40)
    np.testing.assert_allclose(without.last, w, rtol=1e-4, atol=1e-5)
    assert np.abs(without.last - run(fs.FedSGM(step_size=eta, **links), quadratic, rounds=40).last).max() > 0.01


def test_without_compression_there_is_nothing_to_remember(quadratic):
    options = {"step_size": 0.05, "local_steps": 2, "participants": 4}
    assert_same(run(fs.FedSGM(memory=False, **options), quadratic), run(fs.FedSGM(**options), quadratic))


def test_projection_is_on_the_servers_model_where_the_downlink_is_compressed(quadratic):
    """x stays in X; w, a replica that lags behind, need not."""
    problem, clients, *_ = quadratic

    def project(w):
        return w * jnp.minimum(1, 0.5 / jnp.linalg.norm(w))

    both = fs.FedSGM(step_size=0.3, project=project, uplink=fs.TopK(count=2), downlink=fs.TopK(count=1))
    models, replicas = [], []
    for _, server, *_ in by_hand(both, problem, clients, np.ones(D, np.float32), 20):
        models.append(np.linalg.norm(server.model))
        replicas.append(np.linalg.norm(server.replica))
    assert max(models) <= 0.5 + 1e-6
    assert max(replicas) > 0.5 + 1e-3
    result = run(fs.FedSGM(step_size=0.3, project=project), quadratic, rounds=20)
    assert np.linalg.norm(result.last) <= 0.5 + 1e-6
