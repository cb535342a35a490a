"""What counts equally in a mean, clients or rows, and what an example weighs; against NumPy, in both engines."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm import theory
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess

N, M, ROUNDS, D, BOUND, BETA, ETA, E = 6, 2, 8, 3, -0.5, 3.0, 0.05, 2
SIZES = (1, 4, 2, 8, 3, 5)
RNG = np.random.default_rng(8)
PARTS = [
    {
        "a": RNG.normal(j, 1, (k, D)).astype(np.float32),
        "b": RNG.normal(size=(k, D)).astype(np.float32),
        "ill": np.arange(k) % 2 == 1,  # the first client has none
        "w": RNG.integers(1, 4, k).astype(np.float32),
    }
    for j, k in enumerate(SIZES)
]
CLIENTS = fs.Clients.from_list(PARTS)
START = np.ones(D, np.float32)


def distance(w, example):
    return 0.5 * jnp.sum((w - example["a"]) ** 2)


def push(w, example):
    return example["b"] @ w


def is_ill(example):
    return example["ill"]


PUSH = fs.Mean(push, where=is_ill, name="push", missing="absent")


def problem(**more):
    return fs.Problem(distance, [PUSH <= BOUND], **{"weigh": "rows"} | more)


def algorithm(query="participants", **more):
    settings = {"step_size": ETA, "local_steps": E, "participants": M, "rule": fs.Soft(BETA), "query": query}
    return fs.FedSGM(**settings | more)


def run(made, posed, clients=CLIENTS, **more):
    return fs.simulate(made, posed, clients, START, rounds=ROUNDS, seed=4, progress=False, **more)


def by_numpy(query, participants):
    """Algorithm 1 in float64, for the participants of each round: the estimates and weights, and w at the end."""
    a, b = ([part[name].astype(np.float64) for part in PARTS] for name in "ab")
    b = [rows[part["ill"]] for rows, part in zip(b, PARTS, strict=True)]
    sizes, ill = np.array([len(rows) for rows in a]), np.array([len(rows) for rows in b])
    w, estimates, weights = START.astype(np.float64), [], []
    last = np.array([rows.sum(axis=0) @ w for rows in b])  # memory: everybody was asked before the first round
    for who in participants:
        heard = np.array(who) if query == "participants" else np.arange(N)
        new = who if query == "memory" else heard
        last[new] = [b[j].sum(axis=0) @ w for j in new]
        estimates.append(last[heard].sum() / ill[heard].sum())
        s = np.clip(1 + BETA * (estimates[-1] - BOUND), 0, 1)
        weights.append(s)
        messages = []
        for j in who:
            at, total = w, 0
            share = (
                len(heard) * sizes[j] / sizes[heard].sum()
            )  # its local steps are of its own mean, its message is longer
            for _ in range(E):
                objective = len(heard) / sizes[heard].sum() * (at - a[j]).sum(axis=0)
                constraint = len(heard) / ill[heard].sum() * b[j].sum(axis=0)
                total = total + (1 - s) * objective + s * constraint
                at = w - ETA * total / share
            messages.append(total)
        w = w - ETA * np.mean(messages, axis=0)
    return np.array(estimates), np.array(weights), w


@pytest.mark.parametrize("query", ["participants", "all", "memory"])
def test_rows_are_weighed_as_numpy_weighs_them(query, tmp_path):
    """In both engines, with as many bytes: up the constraint's sum and weight and the objective's weight."""
    made, posed = algorithm(query), problem()
    result = run(made, posed)
    estimates, weights, w = by_numpy(query, result.history["participants"][0])
    np.testing.assert_allclose(result.history["estimate"][0], estimates, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.history["weight"][0], weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.last, w, rtol=1e-4, atol=1e-5)
    assert 0 < weights.mean() < 1
    everybody = np.concatenate([part["a"] for part in PARTS])
    expected = 0.5 * ((w - everybody) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(result.history["objective"][0, -1], expected, rtol=1e-4)

    transport = InProcess.of(Program.of(made, posed, START), CLIENTS, tmp_path)
    federated = fs.federate(made, posed, transport, START, rounds=ROUNDS, seed=4, progress=False)
    for name in ("objective", "push", "estimate", "weight"):
        np.testing.assert_allclose(federated.history[name], result.history[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for name in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(federated.history[name], result.history[name], err_msg=name)
    clients = run(made, problem(weigh="clients"))
    asked = N if query == "all" else M
    more = np.full(ROUNDS, asked * 4)  # of clients: the constraint's mean, and whether there is one
    more[0] = N * 4 if query == "memory" else more[0]
    np.testing.assert_array_equal(result.history["bytes_up"][0] - clients.history["bytes_up"][0], more)


@pytest.mark.usefixtures("many_groups")
@pytest.mark.parametrize("query", ["participants", "all", "memory"])
def test_groups_of_clients_by_size_are_weighed_the_same(query):
    assert len(problem().prepare(CLIENTS, START).groups) > 1
    result = run(algorithm(query), problem())
    estimates, weights, w = by_numpy(query, result.history["participants"][0])
    np.testing.assert_allclose(result.history["estimate"][0], estimates, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.history["weight"][0], weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.last, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("constrained", [True, False])
def test_everybody_s_rows_are_one_client_s(constrained):
    """With all clients and single steps, it is the method on all data in one place."""
    made = algorithm(participants=None, local_steps=1)
    posed = problem() if constrained else fs.Problem(distance, weigh="rows")
    apart, together = run(made, posed), run(made, posed, CLIENTS.together())
    np.testing.assert_allclose(apart.last, together.last, rtol=1e-5)
    np.testing.assert_allclose(apart.history["objective"], together.history["objective"], rtol=1e-5)
    unequal = run(made, problem(weigh="clients"))
    assert np.abs(unequal.last - apart.last).max() > 0.1, "it is another problem than that of equal clients"


def test_equal_clients_are_the_same_either_way():
    equal = fs.Clients.from_list([jax.tree.map(lambda a: a[:2], part) for part in PARTS if len(part["a"]) > 1])
    rows, clients = (run(algorithm(), problem(weigh=weigh), equal) for weigh in ("rows", "clients"))
    np.testing.assert_allclose(rows.last, clients.last, rtol=1e-5)
    np.testing.assert_allclose(rows.history["push"], clients.history["push"], rtol=1e-5, atol=1e-6)


def directions(posed, heard):
    """Each client's gradient of the objective, told what the server knows of those that were heard."""
    data = jax.tree.map(jnp.asarray, posed.prepare(CLIENTS, START))
    statistics, _ = jax.vmap(lambda one: posed.measure(START, one, jax.random.key(0)))(data)
    measured = posed.combine(jax.tree.map(lambda a: a[heard], statistics), 0.0, jax.random.key(0))
    told = fs.core.rules.Direction(jnp.float32(1), jnp.float32(0), measured.guide)
    each = jax.vmap(lambda one: posed.direction(START, told, one, None, jax.random.key(0)))(data)
    return np.asarray(each, np.float64)


def test_a_uniform_draw_is_unbiased_where_everybody_is_heard():
    """Over all pairs of participants; told of the pair alone, it is the gradient over the pair's own rows."""
    sums = np.stack([(START - part["a"].astype(np.float64)).sum(axis=0) for part in PARTS])
    exact = sums.sum(axis=0) / sum(SIZES)
    pairs = [np.array(pair) for pair in itertools.combinations(range(N), 2)]
    every = directions(problem(), np.arange(N))
    np.testing.assert_allclose(np.mean([every[pair].mean(axis=0) for pair in pairs], axis=0), exact, rtol=1e-5)
    for pair in pairs:
        own = sums[pair].sum(axis=0) / np.array(SIZES)[pair].sum()
        np.testing.assert_allclose(directions(problem(), pair)[pair].mean(axis=0), own, rtol=1e-5, atol=1e-6)


def test_the_standard_error_of_a_ratio():
    """The residuals of the clients' sums, by NumPy; who was not heard counts for nothing."""
    totals, weights = RNG.normal(size=7), RNG.integers(1, 9, 7).astype(float)
    heard = np.array([1, 1, 0, 1, 0, 1, 1.0])
    quantity = fs.core.quantities.ByRows(PUSH)
    statistics = (jnp.float32(totals), jnp.float32(weights))
    for mask in (None, heard):
        which = np.ones(7, bool) if mask is None else mask > 0
        t, c = totals[which], weights[which]
        residuals = (t - t.sum() / c.sum() * c) / c.mean()
        expected = residuals.std(ddof=1) / np.sqrt(len(t))
        told = None if mask is None else jnp.float32(mask)
        found = quantity.error(statistics, quantity.pool(statistics, told), told)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


# What an example weighs ----------------------------------------------------------------------------------------------


def own_weight(example):
    return example["w"]


def repeated(part):
    return {name: np.repeat(values, part["w"].astype(int), axis=0) for name, values in part.items()}


CONSTRAINTS = {
    "mean": PUSH <= BOUND,
    "statistic": fs.Statistic(
        lambda w, e: {"top": jnp.tanh(push(w, e)), "bottom": jnp.float32(1)},
        lambda total: total["top"] / total["bottom"],
        name="ratio",
    )
    <= -0.2,
    "each client": fs.each_client(fs.Mean(push, name="push")) <= 0.5,
}


@pytest.mark.parametrize("weigh", ["rows", "clients"])
@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_a_weight_is_so_many_examples(weigh, kind):
    """A row of weight 3 is a row three times."""
    made = algorithm("all")
    weighted = fs.Problem(distance, [CONSTRAINTS[kind]], weigh=weigh, weight=own_weight)
    plain = fs.Problem(distance, [CONSTRAINTS[kind]], weigh=weigh)
    one = run(made, weighted, test=PARTS[3])
    three = run(made, plain, fs.Clients.from_list([repeated(part) for part in PARTS]), test=repeated(PARTS[3]))
    np.testing.assert_allclose(one.last, three.last, rtol=1e-4, atol=1e-5)
    for name in ("objective", "estimate"):
        np.testing.assert_allclose(one.history[name], three.history[name], rtol=1e-4, atol=1e-5)
    for name in one.values["test"]:
        np.testing.assert_allclose(one.values["test"][name], three.values["test"][name], rtol=1e-4, atol=1e-5)
    assert np.abs(one.last - run(made, plain).last).max() > 1e-3


def test_batches_of_weighted_examples_are_unbiased():
    """The mean of many batches' sums is the sum; five standard errors."""
    posed = problem(weight=own_weight)
    one = jax.tree.map(lambda a: jnp.asarray(a[3]), posed.prepare(CLIENTS, START))
    keys = jax.random.split(jax.random.key(0), 4000)
    found = jax.vmap(lambda key: posed._sums(START, one.batch(3, key), range(2)))(keys)
    for each, exact in zip(found, posed._sums(START, one, range(2)), strict=True):
        each = np.asarray(each, np.float64)
        assert abs(each.mean() - exact) < 5 * each.std() / np.sqrt(len(each))


def test_zero_is_absent():
    """An example of weight 0 is as if it were not there."""
    some = [part | {"w": np.where(np.arange(len(part["w"])) == 1, 0, 1).astype(np.float32)} for part in PARTS]
    without = [jax.tree.map(lambda a, keep=part["w"] > 0: a[keep], part) for part in some]
    made = algorithm("all")
    posed = fs.Problem(distance, [fs.Mean(push, name="push") <= BOUND], weigh="rows", weight=own_weight)
    left, right = (run(made, posed, fs.Clients.from_list(parts)) for parts in (some, without))
    np.testing.assert_allclose(left.last, right.last, rtol=1e-5)


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weigh": "row"}, r"^Problem: weigh='row', but it must be one of clients, rows$"),
        ({"weight": "w"}, r"^Problem: weight='w', but it must be a function of one example$"),
    ],
)
def test_settings(settings, words):
    with pytest.raises(fs.SettingError, match=words):
        problem(**settings)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (lambda e: e["a"], r"^Problem: weight must return one number per example$"),
        (lambda e: 2.0 - e["w"], r"^client 0: example 0 weighs -1, but a weight is 0 or more$"),
        (lambda e: e["w"] / 0 * 0, r"^client 0: example 0 weighs nan, but a weight is 0 or more$"),
        (lambda e: e["w"] * 0, r"^client 0 has no example that the objective averages over"),
    ],
)
def test_weights(weight, words):
    parts = [part | {"w": np.full_like(part["w"], 3)} for part in PARTS]
    with pytest.raises(fs.SettingError, match=words):
        run(algorithm(), problem(weight=weight), fs.Clients.from_list(parts))


@pytest.mark.parametrize(
    "call",
    [
        lambda posed: fs.FedSGM.from_theory(posed, CLIENTS, START, rounds=10, distance=1.0),
        lambda posed: theory.estimates.lipschitz(posed, CLIENTS, START),
        lambda posed: theory.certificates._check_convex("certify", posed),
    ],
)
def test_no_theorem_weighs_rows(call):
    with pytest.raises(fs.SettingError, match=r"clients count equally; take weigh='clients'$"):
        call(fs.Problem(distance, [fs.Mean(push) <= BOUND], weigh="rows"))
