"""Clients whose data and memories are off the device, beside the same runs with all of them on it."""

import importlib

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base import sizes
from fedsgm.engines import offload
from support.runs import EVERYTHING, assert_identical

engine = importlib.import_module("fedsgm.engines.simulate")
ROUNDS = 23
SETTINGS = {
    "plain": {"participants": 4, "rule": fs.Soft(10.0)},
    "everything": EVERYTHING,
    "memory": EVERYTHING | {"query": "memory", "uplink": fs.TopK(0.5)},
}


def run(clients, problem, params, settings, **more):
    given = {"rounds": ROUNDS, "seed": 3, "seeds": 2, "progress": False} | more
    algorithm = fs.FedSGM(**{"step_size": 0.1, "local_steps": 2} | settings)
    return fs.simulate(algorithm, problem, clients, params, **given)


def assert_same(left, right):
    """All bits but those of the true values, which are found by another program: they are the same to rounding."""
    true = ("objective", "positive")
    for name in true:
        np.testing.assert_allclose(left.history[name], right.history[name], rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(left.values["train"][name], right.values["train"][name], rtol=1e-6, err_msg=name)
    rest = left.history.keys() - {*true}
    np.testing.assert_equal({k: left.history[k] for k in rest}, {k: right.history[k] for k in rest})
    np.testing.assert_equal([left.last, left.average, left.answer], [right.last, right.average, right.answer])


@pytest.mark.parametrize("every", [1, 4, 0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_run_gives_the_same_bits(clients, problem, params, settings, every):
    kept, brought = (
        run(clients, problem, params, settings, evaluate_every=every, offload=where) for where in (False, True)
    )
    assert_same(kept, brought)
    assert list(kept.history) == list(brought.history)


@pytest.mark.parametrize("equal", [True, False])
def test_windows_of_one_round_and_blocks_of_one_client_are_the_same(clients, problem, params, monkeypatch, equal):
    """And clients of one size, which are brought in without padding."""
    some = fs.Clients.from_list([{k: a[:7] for k, a in clients[j].items()} for j in range(6)]) if equal else clients
    whole = run(some, problem, params, EVERYTHING, offload=True, evaluate_every=5)
    monkeypatch.setattr(offload, "_WINDOW", 1)
    monkeypatch.setattr(offload, "_BLOCK", 1)
    ground = offload.Offloaded
    made = []
    monkeypatch.setattr(engine, "Offloaded", lambda *given: made.append(ground(*given)) or made[-1])
    assert_same(whole, run(some, problem, params, EVERYTHING, offload=True, evaluate_every=5))
    assert made[0].capacity == 1


def test_clients_of_very_different_sizes(clients, problem, params, monkeypatch):
    """In groups by size, each round's own."""
    for name, value in (("_SPARE", 1.0), ("_SHARE", 0.0), ("_NUMBERS", 0)):
        monkeypatch.setattr(sizes, name, value)
    assert len(problem.prepare(clients, params).groups) > 1
    kept, brought = (run(clients, problem, params, EVERYTHING, offload=where) for where in (False, True))
    np.testing.assert_array_equal(kept.history["participants"], brought.history["participants"])
    for name, column in kept.history.items():
        np.testing.assert_allclose(column, brought.history[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_memories_are_in_the_folder_and_a_resumed_run_is_the_same_to_the_bit(clients, problem, params, tmp_path):
    made = EVERYTHING | {"uplink": fs.TopK(0.5)}
    straight = run(clients, problem, params, made, offload=False)
    folder = tmp_path / "memories"
    kept = {"checkpoint": fs.Checkpoint(tmp_path / "run", every=5), "offload": folder}
    run(clients, problem, params, made, rounds=10, **kept)
    (file,) = [path for path in folder.iterdir() if path.name != "lock"]
    assert file.stat().st_size == 2 * 6 * 5 * 4  # seeds, clients, parameters, bytes
    again = kept | {"checkpoint": fs.Checkpoint(tmp_path / "run", every=5, resume=True)}
    resumed = run(clients, problem, params, made, **again)
    assert_identical(run(clients, problem, params, made, offload=True), resumed)
    assert_same(straight, resumed)


def test_a_run_goes_on_where_its_clients_were(clients, problem, params, tmp_path):
    kept = {"checkpoint": fs.Checkpoint(tmp_path, every=5, resume=True), "rounds": 10}
    run(clients, problem, params, EVERYTHING, offload=True, **kept)
    with pytest.raises(fs.CheckpointError, match="made with offload=True, this run has offload=False"):
        run(clients, problem, params, EVERYTHING, offload=False, **kept)


def test_it_is_done_where_there_is_much(clients, problem, params, monkeypatch):
    used = []
    real = offload.Offloaded.advance
    monkeypatch.setattr(offload.Offloaded, "advance", lambda *given: used.append(1) or real(*given))
    some, everyone = {"participants": 2}, {"participants": 6}
    run(clients, problem, params, some)
    assert not used
    monkeypatch.setattr(engine, "_LARGE", 0)
    for kept in (some | {"query": "all"}, everyone):
        run(clients, problem, params, kept)
    run(clients, problem, params, some, offload=False)
    run(clients, problem, params, some | {"uplink": fs.TopK(0.5)})  # memories would have to be put back
    assert not used
    run(clients, problem, params, some)
    assert used
    used.clear()
    monkeypatch.setattr(engine, "_SHARE", 0.0)
    run(clients, problem, params, some | {"uplink": fs.TopK(0.5)})
    assert used


@pytest.mark.parametrize(
    ("settings", "more"), [({}, {}), ({"participants": 2, "query": "all"}, {}), ({"participants": 2}, {"debug": True})]
)
def test_what_cannot_be_is_refused(clients, problem, params, settings, more):
    with pytest.raises(fs.SettingError, match=r"^simulate: offload is for .*; set participants"):
        run(clients, problem, params, settings, offload=True, **more)


def test_memories_as_at_the_start_are_not_written():
    """A client that never took part has what the start says, and takes no room."""
    memories = offload.Memories({"error": np.float32([1, 2])}, (1, 10), None)
    own, rows, memory = memories.of(np.array([[[3, 7], [7, 8]]]), rounds=3)
    np.testing.assert_array_equal(own, [[3, 7, 8]])
    np.testing.assert_array_equal(rows, [[[0, 1], [1, 2], [0, 0]]])
    np.testing.assert_array_equal(memory["error"][0], [[1, 2]] * 3 + [[0, 0]] * 3)
    memories.put(own, {"error": memory["error"] + 1})
    np.testing.assert_array_equal(memories.touched[0], np.isin(np.arange(10), [3, 7, 8]))
    _, _, later = memories.of(np.array([[[2, 8]]]), rounds=1)
    np.testing.assert_array_equal(later["error"][0], [[1, 2], [2, 3]])
