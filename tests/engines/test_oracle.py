"""The engine against Algorithm 1 written out as a plain NumPy loop, with its options in many combinations."""

import functools
import itertools

import jax
import numpy as np
import pytest
from optax.projections import projection_l2_ball

import fedsgm as fs

ETA, BOUND, TOLERANCE, BETA, ROUNDS, RADIUS, SEED = 0.1, 0.45, 0.01, 4.0, 200, 0.9, 3
KEEP = 2  # of 5 parameters


def top_k(v):
    out = np.zeros_like(v)
    kept = np.argsort(-np.abs(v), kind="stable")[:KEEP]
    out[kept] = v[kept]
    return out


class Client:
    """One client's own functions of the flat vector [b, w] (the order of the dictionary's keys)."""

    def __init__(self, data):
        self.x = np.concatenate([np.ones((len(data["y"]), 1)), data["x"]], axis=1).astype(np.float64)
        self.y = data["y"].astype(np.float64)
        self.share = {label: (self.y == label) / (self.y == label).sum() for label in (0, 1)}

    def value(self, w, label, rows=None):
        """Of one vector, or of each row of a matrix."""
        x, y, weight = self._take(label, rows)
        z = w @ x.T
        return (np.logaddexp(0, z) - y * z) @ weight

    def gradient(self, w, label, rows=None):
        x, y, weight = self._take(label, rows)
        return x.T @ (weight * (1 / (1 + np.exp(-(x @ w))) - y))

    def _take(self, label, rows):
        """A batch is weighted by count / size, so that its sums are unbiased."""
        if rows is None:
            return self.x, self.y, self.share[label]
        return self.x[rows], self.y[rows], self.share[label][rows] * len(self.y) / len(rows)


@functools.partial(jax.jit, static_argnames="size")
def draw(purpose, size, counts):
    """Rows drawn in every round by every client: a function of (seed, round, client), then of the purpose."""

    def rows(round, client, count):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), round), 2), client)
        return jax.random.randint(jax.random.fold_in(key, purpose), (size,), 0, count)

    over_clients = jax.vmap(rows, in_axes=(None, 0, 0))
    return jax.vmap(over_clients, in_axes=(0, None, None))(np.arange(ROUNDS), np.arange(len(counts)), counts)


@functools.cache
def batches(purpose, size, counts):
    return np.asarray(draw(purpose, size, np.array(counts)))


def algorithm_1(
    clients, w0, history, *, rule, participants, local_steps, uplink, downlink, radius, batch_size, constraint_batch
):
    """Lines 1-40, one client after another, in float64.

    Who takes part is the engine's draw. Its word is also taken on a hard switch that is nearer to the bound
    than float32 can tell (under 1e-6); everything else is worked out here.
    """
    people = [Client(clients[j]) for j in range(len(clients))]
    counts = tuple(int(count) for count in clients.counts)
    w, x = w0.astype(np.float64), w0.astype(np.float64)
    memory = np.zeros((len(people), len(w)))
    iterates, estimates = [], []

    def project(v):
        return v * min(1, radius / np.linalg.norm(v)) if radius else v

    for t, who in enumerate(history["participants"][0]):
        assert len(set(who)) == len(who) == (participants or len(people))
        values = []
        for j in who:
            rows = batches(0, constraint_batch, counts)[t, j] if constraint_batch else None
            values.append(people[j].value(w, 1, rows))
        estimate = np.mean(values)
        violation = estimate - BOUND - TOLERANCE
        s = float(violation > 0) if rule == "hard" else min(1.0, max(0.0, 1 + BETA * violation))
        if rule == "hard" and abs(violation) < 1e-6:
            s = float(history["weight"][0, t])
        messages = []
        for j in who:
            local, total = w.copy(), np.zeros_like(w)
            for tau in range(local_steps):
                rows = batches(2 + tau, batch_size, counts)[t, j] if batch_size else None
                step = (1 - s) * people[j].gradient(local, 0, rows) + s * people[j].gradient(local, 1, rows)
                local, total = local - ETA * step, total + step
            if uplink:
                message = top_k(memory[j] + total)
                memory[j] += total - message
            else:
                message = total
            messages.append(message)
        mean = np.mean(messages, axis=0)
        if uplink or downlink:
            x = project(x - ETA * mean)
            w = w + top_k(x - w) if downlink else x
        else:
            w = project(w - ETA * mean)
        iterates.append(w)
        estimates.append(estimate)
    objective, constraint = (np.mean([p.value(np.array(iterates), label) for p in people], axis=0) for label in (0, 1))
    return w, objective, constraint, np.array(estimates)


SWITCHES = {
    "rule": ("hard", "soft"),
    "participants": (None, 3),
    "local_steps": (1, 3),
    "uplink": (False, True),
    "downlink": (False, True),
    "radius": (None, RADIUS),
    "batch_size": (None, 5),
    "constraint_batch": (None, 6),
}
# Which of four bits switch each option, the first bit always being one: a fault that shows itself only where three
# options are set in a certain way is met, as all eight ways of any three are here, in 16 runs of 256.
BITS = dict(zip(SWITCHES, (0b1000, 0b1001, 0b1010, 0b1100, 0b1111, 0b1011, 0b1101, 0b1110), strict=True))
OPTIONS = [
    {name: values[(row & BITS[name]).bit_count() % 2] for name, values in SWITCHES.items()} for row in range(2**4)
]


def test_the_runs_have_every_way_to_set_any_three_options():
    ways = {
        names: {tuple(options[name] for name in names) for options in OPTIONS}
        for size in (3, 4)
        for names in itertools.combinations(SWITCHES, size)
    }
    assert [names for names, found in ways.items() if len(names) == 3 and len(found) < 2**3] == []
    assert sum(len(found) == 2**4 for found in ways.values()) == 56  # of the 70 ways to choose four


def told(options):
    return "-".join(f"{name}={value}" for name, value in options.items() if value) or "none"


@pytest.mark.usefixtures("many_groups")
@pytest.mark.parametrize("options", [*OPTIONS[6:8], *OPTIONS[10:12]], ids=told)
def test_it_is_algorithm_1_with_clients_in_groups_by_size(clients, problem, params, options):
    assert len(problem.prepare(clients, params).groups) > 1
    test_simulate_is_algorithm_1(clients, problem, params, options)


@pytest.mark.parametrize("options", OPTIONS, ids=told)
def test_simulate_is_algorithm_1(clients, problem, params, options):
    def compressor(on):
        return fs.TopK(count=KEEP) if on else fs.Identity()

    radius = options["radius"]
    algorithm = fs.FedSGM(
        step_size=ETA,
        local_steps=options["local_steps"],
        participants=options["participants"],
        rule=fs.Hard() if options["rule"] == "hard" else fs.Soft(BETA),
        tolerance=TOLERANCE,
        uplink=compressor(options["uplink"]),
        downlink=compressor(options["downlink"]),
        project=functools.partial(projection_l2_ball, scale=radius) if radius else None,
        batch_size=options["batch_size"],
        constraint_batch_size=options["constraint_batch"],
    )
    result = fs.simulate(algorithm, problem, clients, params, rounds=ROUNDS, seed=SEED, progress=False)
    start = np.concatenate([params["b"].reshape(1), params["w"]])
    w, objective, constraint, estimates = algorithm_1(clients, start, result.history, **options)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)  # 200 rounds of float32 rounding
    close(np.concatenate([result.last["b"].reshape(1), result.last["w"]]), w)
    close(result.history["objective"][0], objective)
    close(result.history["positive"][0], constraint)
    close(result.history["estimate"][0], estimates)
    close(result.history["violation"][0], estimates - BOUND - TOLERANCE)
    assert np.ptp(objective) > 0.01, "the run must move for the comparison to mean anything"
    assert 0.1 < result.history["weight"].mean() < 0.9, "and take both directions"
