"""Local steps on what rows come to are the steps on the parameters, and are taken where they are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.layout import Layout
from fedsgm.core import walk as walks
from fedsgm.core.algorithm import Flat
from fedsgm.engines import rounds
from fedsgm.engines.device import OnDevice
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess

ROWS, FEATURES, WIDTH, STEPS, ETA = 12, 80, 64, 4, 0.003
RNG = np.random.default_rng(3)
WORDS = RNG.normal(size=(ROWS, 3, FEATURES)).astype(np.float32)
X, Y = WORDS[:, 0], np.float32(RNG.normal(size=ROWS))
KEY = jax.random.key(0)


def normal(*shape):
    return (RNG.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


PARAMS = {"a": normal(FEATURES, WIDTH), "b": normal(WIDTH), "c": normal(WIDTH)}
TURNED = PARAMS | {"a": np.ascontiguousarray(PARAMS["a"].T)}


def squared(out, y):
    return (jnp.sum(out) - y) ** 2


def network(params, x, y):
    return squared(jnp.tanh(x @ params["a"] + params["b"]) * params["c"], y)


def matrix_first(params, x, y):
    return squared(jnp.tanh(params["a"] @ x + params["b"]) * params["c"], y)


def two_matrices(params, x, y):
    return squared(jnp.tanh(x @ params["a"]) * (params["d"] @ x) * params["c"] + params["b"], y)


def decayed(params, x, y):
    return network(params, x, y) + 0.1 * jnp.sum(params["a"] ** 2)


def deep(params, x, y):
    return squared(jnp.tanh(jnp.tanh(x @ params["a"]) @ params["d"]), y)


def twice(params, x, y):
    return squared(jnp.tanh((x @ params["a"]) + (2 * x) @ params["a"]), y)


def summed(loss, x=X):
    """The gradient of the sum over these examples."""

    def follow(params, _key):
        return jax.grad(lambda params: jnp.sum(jax.vmap(loss, (None, 0, 0))(params, x, Y)) / ROWS)(params)

    return follow


def of_batches(params, key):
    x, y = (jnp.asarray(a)[jax.random.randint(key, (ROWS,), 0, ROWS)] for a in (X, Y))
    return jax.grad(lambda params: jnp.mean(jax.vmap(network, (None, 0, 0))(params, x, y)))(params)


def held(params, _key):
    return summed(lambda p, x, y: network(p | {"a": jax.lax.stop_gradient(p["a"])}, x, y))(params, _key)


def at_one(params, key):
    return summed(network)(params, key) | {"a": jnp.ones((FEATURES, WIDTH))}


def shortened(params, key):
    found = summed(network)(params, key)
    return jax.tree.map(lambda a: a / (1 + jnp.linalg.norm(a)), found)


def signs_of_rows(params, _key):
    """A product with rows that is no gradient: their own signs take the place of what comes back."""
    out = X @ params["a"]
    return {"a": jnp.abs(X).T @ out, "b": params["b"], "c": params["c"]}


def all_steps(follow, params, steps=STEPS, share=1.0):
    """The sum of directions, and the walk that it was found on."""
    layout = Layout.of(params)
    path = walks.walk(layout, layout.apart(jnp.asarray(layout.flatten(params))), follow, steps)
    total = path.nothing
    for tau in range(steps):
        total = path.after(tau, total, ETA, share, jax.random.fold_in(KEY, tau))
    return layout.unflatten(np.asarray(path.update(total))), path


def by_hand(follow, params, steps=STEPS, share=1.0):
    """The same, as Algorithm 1 has it, in float64 where sums are taken."""
    at, total = params, jax.tree.map(np.zeros_like, params)
    for tau in range(steps):
        more = follow(jax.tree.map(jnp.asarray, at), jax.random.fold_in(KEY, tau))
        total = jax.tree.map(lambda total, more: total + np.asarray(more, np.float64), total, more)
        at = jax.tree.map(lambda w, total: np.float32(w - ETA * total / share), params, total)
    return total


SQUARE = normal(WIDTH, WIDTH)
ON_ROWS = {
    "rows first": (summed(network), PARAMS, {0}),
    "matrix first": (summed(matrix_first), TURNED, {0}),
    "rows of words": (summed(lambda p, x, y: jnp.sum(jax.vmap(network, (None, 0, None))(p, x, y)), WORDS), PARAMS, {0}),
    "words at once": (summed(network, WORDS), PARAMS, {0}),
    "words at once, matrix first": (
        summed(lambda p, x, y: squared(jnp.tanh(p["a"] @ x.T + p["b"][:, None]) * p["c"][:, None], y), WORDS),
        TURNED,
        {0},
    ),
    "two matrices": (summed(two_matrices), PARAMS | {"d": normal(WIDTH, FEATURES)}, {0, 3}),
    "the first of two layers": (summed(deep), PARAMS | {"d": SQUARE}, {0}),
}
PLAIN = {
    "weight decay": (summed(decayed), PARAMS),
    "met twice": (summed(twice), PARAMS),
    "batches": (of_batches, PARAMS),
    "something made of the gradient": (shortened, PARAMS),
    "no gradient": (signs_of_rows, PARAMS),
    "a gradient of zero": (held, PARAMS),
    "a direction of ones": (at_one, PARAMS),
}


@pytest.mark.parametrize("share", [1.0, 2.5])
@pytest.mark.parametrize(("follow", "params", "leaves"), ON_ROWS.values(), ids=ON_ROWS)
def test_steps_on_rows_are_the_steps_on_the_matrix(follow, params, leaves, share, monkeypatch):
    take(monkeypatch, True)
    found, path = all_steps(follow, params, share=share)
    assert set(path.products) == leaves
    expected = by_hand(follow, params, share=share)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected)


@pytest.mark.parametrize(("follow", "params"), PLAIN.values(), ids=PLAIN)
def test_what_is_more_than_a_product_is_walked_as_it_is(follow, params, monkeypatch):
    take(monkeypatch, True)
    found, path = all_steps(follow, params)
    assert type(path) is walks.Walk
    expected = by_hand(follow, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected)


def take(monkeypatch, on_rows):
    """Walk on rows wherever it can be done, or never."""
    monkeypatch.setattr(walks.Product, "pays", lambda _self, _steps: on_rows)


def operations(x, steps):
    """Of the program of all steps on these rows, as XLA counts them."""
    layout = Layout.of(PARAMS)

    def path_from(w, x):
        def follow(params, _key):
            return jax.grad(lambda params: jnp.sum(jax.vmap(network, (None, 0, None))(params, x, 1.0)))(params)

        return walks.walk(layout, layout.apart(w), follow, steps)

    def whole(w, x, total):
        path = path_from(w, x)
        for tau in range(steps):
            total = path.after(jnp.int32(tau), total, ETA, 1.0, KEY)
        return path.update(total)

    w = jnp.asarray(layout.flatten(PARAMS))
    return jax.jit(whole).lower(w, x, path_from(w, x).nothing).compile().cost_analysis()["flops"]


@pytest.mark.parametrize("rows", [2, 12, 50, 80, 150, 400])
@pytest.mark.parametrize("steps", [2, 5])
def test_the_way_with_fewer_operations_is_taken(rows, steps, monkeypatch):
    x = RNG.normal(size=(rows, FEATURES)).astype(np.float32)
    chosen, ways = operations(x, steps), []
    for on_rows in (False, True):
        take(monkeypatch, on_rows)
        ways.append(operations(x, steps))
    assert max(ways) > 1.05 * min(ways)
    assert chosen == min(ways)


def test_one_step_and_small_models_are_walked_as_they_are():
    assert type(all_steps(summed(network), PARAMS, steps=1)[1]) is walks.Walk
    small = {"a": normal(FEATURES, 4), "b": normal(4), "c": normal(4)}
    assert type(all_steps(summed(network), small)[1]) is walks.Walk


def test_the_product_that_the_query_had_is_not_taken_again(monkeypatch):
    """In a compiled round, whose operations XLA counts, of a loop's body once; beside one without ``products``."""

    def loss(params, example):
        return network(params, example["x"], example["y"])

    kinds = [fs.Mean(loss, where=lambda example, k=k: example["y"] == k) for k in (0, 1)]
    problem, layout = fs.Problem(kinds[0], [kinds[1] <= 0.5]), Layout.of(PARAMS)
    clients = fs.Clients.from_list([{"x": X, "y": np.float32(np.arange(ROWS) % 2)}] * 3)
    program = rounds.Compiled(fs.FedSGM(0.1, STEPS, 2), Flat(problem, layout), 1, 3, 0)
    ground = OnDevice(program, problem.prepare(clients, PARAMS), np.zeros(1, np.uint32))
    state = jax.tree.map(lambda a: a[0], ground.start(layout.flatten(PARAMS)[None]))
    draw = jax.eval_shape(lambda: rounds.Draw.of(program, 0, 0))

    def flops():
        def replica(data, state, draw):
            return rounds.one_round(program, data, state, draw, 0)[0].server.replica

        return jax.jit(replica).lower(ground.data, state, draw).compile().cost_analysis()["flops"]

    once = flops()
    monkeypatch.delattr(fs.FedSGM, "products")
    one_product = 2 * ROWS * FEATURES * WIDTH
    assert flops() - once == pytest.approx(one_product, rel=0.05)


def test_engines_walk_on_rows_to_the_same_run(monkeypatch, tmp_path):
    """Several participants, seeds, compression and a weight of rows; beside the same run on the parameters."""
    parts = [
        {"x": RNG.normal(size=(n, FEATURES)).astype(np.float32), "y": np.float32(np.arange(n) % 2)} for n in (6, 9, 7)
    ]
    clients, taken = fs.Clients.from_list(parts), []
    first = fs.Mean(lambda p, e: network(p, e["x"], e["y"]), name="all")
    problem = fs.Problem(first, [fs.Mean(lambda p, _: jnp.mean(p["c"] ** 2), name="size") <= 0.01], weigh="rows")
    algorithm = fs.FedSGM(0.05, STEPS, 2, fs.Soft(2.0), uplink=fs.TopK(0.5), downlink=fs.TopK(0.5))
    before = walks.OnRows.__init__
    monkeypatch.setattr(walks.OnRows, "__init__", lambda self, *given: (taken.append(1), before(self, *given))[1])
    runs = []
    for on_rows in (True, False):
        take(monkeypatch, on_rows)
        jax.clear_caches()
        runs.append(fs.simulate(algorithm, problem, clients, PARAMS, rounds=8, seeds=2, progress=False))
        assert bool(taken) is on_rows
        taken.clear()
    for name, column in runs[0].history.items():
        np.testing.assert_allclose(column, runs[1].history[name], rtol=1e-4, atol=1e-6, err_msg=name)
    take(monkeypatch, True)
    jax.clear_caches()
    transport = InProcess.of(Program.of(algorithm, problem, PARAMS), clients, tmp_path)
    federated = fs.federate(algorithm, problem, transport, PARAMS, rounds=8, progress=False)
    assert taken
    for name in ("objective", "size", "weight"):
        np.testing.assert_allclose(federated.history[name], runs[1].history[name][:1], rtol=1e-4, atol=1e-6)
