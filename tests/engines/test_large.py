"""Runs with clients in blocks, beside the same runs with all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base import blocks
from fedsgm.engines import device
from fedsgm.engines import simulate as engine

ROUNDS = 6
TOP = fs.TopK(0.4)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
SETTINGS = {
    "plain": {},
    "memories": {"uplink": TOP, "downlink": TOP, "participants": 3},
    "random": {"uplink": fs.RandK(0.5), "participants": 4},
    "layers and signs": {"uplink": fs.Quantize("int4", block=2), "downlink": fs.ScaledSign()},
    "batches": {"batch_size": 3, "constraint_batch_size": 2, "participants": 5},
    "asked": {"query": "memory", "participants": 2},
    "all asked": {"query": "all", "participants": 4, "uplink": TOP},
}


def run(clients, problem, params, block, seeds=2, **settings):
    made = fs.FedSGM(**{"step_size": 0.1, "local_steps": 3, "rule": fs.Soft(2.0)} | settings)
    return fs.simulate(
        made, problem, clients, params, rounds=ROUNDS, seeds=seeds, evaluate_every=2, progress=False, block=block
    )


def assert_same_run(one, other):
    """Who takes part and how many bytes travel is the same; sums may be taken in another order."""
    exact = ("participants", "bytes_up", "bytes_down")
    for name, column in one.history.items():
        np.testing.assert_allclose(column, other.history[name], **({"rtol": 0} if name in exact else TOLERANCE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE), one.last, other.last)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_clients_in_blocks_are_the_run_with_all_at_once(clients, problem, params, settings):
    together = run(clients, problem, params, len(clients), **settings)
    for block in (1, 2):
        assert_same_run(run(clients, problem, params, block, **settings), together)


def test_clients_of_very_different_sizes_in_blocks(clients, problem, params, many_groups):
    for settings in (SETTINGS["memories"], SETTINGS["batches"], {"weigh": "rows"}):
        posed = fs.Problem(problem.objective, problem.constraints, weigh="rows") if "weigh" in settings else problem
        made = {name: value for name, value in settings.items() if name != "weigh"}
        many_groups(True)
        assert_same_run(run(clients, posed, params, 2, **made), run(clients, posed, params, len(clients), **made))


def test_a_resumed_run_in_blocks_is_the_whole_one(clients, problem, params, tmp_path):
    made = fs.FedSGM(0.2, 3, 3, uplink=TOP, downlink=TOP)
    options = {"progress": False, "block": 2}
    whole = fs.simulate(made, problem, clients, params, rounds=ROUNDS, **options)
    for rounds in (4, ROUNDS):
        kept = fs.Checkpoint(tmp_path, every=2, resume=rounds > 4)
        resumed = fs.simulate(made, problem, clients, params, rounds=rounds, checkpoint=kept, **options)
    jax.tree.map(np.testing.assert_array_equal, resumed.last, whole.last)


def vectors_of(program, length):
    """The shapes of all arrays of a program, with those inside its loops, that have rows of this length."""
    shapes, jaxprs = set(), [program]
    while jaxprs:
        jaxpr = jaxprs.pop()
        for equation in jaxpr.eqns:
            shapes |= {v.aval.shape for v in equation.outvars if v.aval.shape[-1:] == (length,)}
            inner = jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr"))
            jaxprs += [getattr(p, "jaxpr", p) for p in inner if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
    return shapes


@pytest.mark.parametrize(("uplink", "held"), [(fs.Identity(), False), (fs.TopK(0.1), True)])
def test_a_large_model_has_no_array_of_a_vector_for_each_client(monkeypatch, uplink, held):
    """But for the memories of compression: of these there is one array, and none for the participants beside it."""
    d, n, m = blocks._VECTOR, 6, 4
    clients = fs.Clients.from_list([{"a": np.float32([j, j + 1])} for j in range(n)])
    problem = fs.Problem(lambda w, example: jnp.mean((w - example["a"]) ** 2))
    made, seen = device.advance.__wrapped__, []

    def spy(*arguments):
        seen.append(jax.make_jaxpr(made)(*arguments).jaxpr)
        return real(*arguments)

    real = device.advance
    monkeypatch.setattr(device, "advance", spy)

    def shapes(block):
        algorithm = fs.FedSGM(0.1, 2, m, uplink=uplink)
        fs.simulate(algorithm, problem, clients, np.zeros(d, np.float32), rounds=1, progress=False, block=block)
        return {shape[:-1] for shape in vectors_of(seen.pop(), d)}

    assert (m,) in shapes(m)
    alone = shapes(None)
    assert (m,) not in alone
    assert ((n,) in alone) is held


def test_the_state_is_given_away(clients, problem, params, monkeypatch):
    """A large state is not held twice: the one that goes in is gone when the next is there."""
    states, advance = [], device.advance
    monkeypatch.setattr(engine, "_CHUNK_SECONDS", 0.0)

    def spy(program, data, state, *rest):
        states.append(state)
        return advance(program, data, state, *rest)

    monkeypatch.setattr(device, "advance", spy)
    algorithm = fs.FedSGM(0.1, participants=3, uplink=TOP, downlink=TOP)
    fs.simulate(algorithm, problem, clients, params, rounds=20, progress=False)
    assert len(states) > 2
    assert all(state.memory.error.is_deleted() and state.server.replica.is_deleted() for state in states)
