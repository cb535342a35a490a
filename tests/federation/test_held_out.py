"""Examples that the clients hold out are measured there, and count as if they were all in one place."""

import logging

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm import theory
from fedsgm.federation import Parts, Program, federate
from fedsgm.federation.answers import read_held_out
from fedsgm.federation.inprocess import Fault, InProcess
from fedsgm.federation.protocol import FrameError, Kind, Request, pack
from support.federated import CLIENTS, PARAMS, PROBLEM, counting
from support.runs import logistic, negative, positive

ROUNDS = 6


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def take(examples, rows):
    return jax.tree.map(lambda a: a[rows], examples)


@pytest.fixture(scope="module")
def parts(clients):
    """The shared clients' examples, a quarter held out; the last client has nothing to hold out, another one class."""
    found = []
    for j in range(len(clients)):
        held = np.arange(clients.counts[j]) % 4 == j % 2
        if j == 3:
            held &= clients[j]["y"] == 0
        found.append(Parts(take(clients[j], ~held), take(clients[j], held)))
    return [*found[:-1], Parts(clients[len(clients) - 1])]


def run(folder, problem, parts, params, transport=InProcess, plan=None, **more):
    algorithm = fs.FedSGM(0.2, 2, rule=fs.Soft(20.0))
    carried = transport.of(Program.of(algorithm, problem, params), parts, folder, plan)
    settings = {"rounds": ROUNDS, "test": "clients", "progress": False} | more
    return federate(algorithm, problem, carried, params, **settings)


def simulated(problem, parts, params):
    held = [part.test for part in parts if part.test is not None]
    together = jax.tree.map(lambda *arrays: np.concatenate(arrays), *held)
    clients = fs.Clients.from_list([part.train for part in parts])
    algorithm = fs.FedSGM(0.2, 2, rule=fs.Soft(20.0))
    return fs.simulate(algorithm, problem, clients, params, rounds=ROUNDS, test=together, progress=False)


PROBLEMS = {
    "rows": {"weigh": "rows", "constraints": [fs.Mean(logistic, where=positive, name="p") <= 0.45]},
    "clients": {"weigh": "clients", "constraints": [fs.Mean(logistic, where=positive, name="p") <= 0.45]},
    "each client": {
        "constraints": [
            fs.each_client(fs.Mean(logistic, name="loss"), name="worst") <= 0.5,
            fs.Mean(logistic, where=positive, missing="absent", name="p") >= 0.2,
        ]
    },
    "weights": {"weight": lambda example: example["x"][0] ** 2, "weigh": "rows"},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_they_are_measured_as_in_one_place(name, parts, params, tmp_path):
    """Also by clients that lack a class, or everything, among what they hold out."""
    problem = fs.Problem(objective=fs.Mean(logistic, where=negative), **PROBLEMS[name])
    found, expected = run(tmp_path, problem, parts, params), simulated(problem, parts, params)
    assert found.values["test"].keys() == expected.values["test"].keys()
    for part in ("train", "test"):
        for each, values in expected.values[part].items():
            np.testing.assert_allclose(found.values[part][each], values, rtol=2e-5, atol=2e-6, err_msg=each)
    assert found.verdict().splitlines()[0] == expected.verdict().splitlines()[0]


def test_where_nobody_holds_anything_out_there_is_nothing_to_measure(parts, params, problem, tmp_path):
    alone = [part.train for part in parts]
    assert run(tmp_path, problem, alone, params).values.keys() == {"train"}


def test_the_bytes_are_counted(parts, params, problem, tmp_path):
    Counting, sent = counting()
    result = run(tmp_path, problem, parts, params, Counting)
    for way in ("up", "down"):
        assert result.history[f"frames_{way}"].sum() == sent[way]


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.NAN, Fault.WRONG_SHAPE])
def test_a_client_that_does_not_tell_is_left_out_and_named(fault, parts, params, problem, tmp_path, caplog):
    last = []

    def plan(exchange, client):
        return fault if last and exchange >= last[0] and client == "client-2" else None

    class Ending(InProcess):
        def exchange(self, requests, seconds):
            if Request.decode(next(iter(requests.values()))).kind == Kind.TEST and not last:
                last.append(self.exchanges)
            return super().exchange(requests, seconds)

    with caplog.at_level(logging.WARNING):
        result = run(tmp_path, problem, parts, params, Ending, plan)
    rest = [Parts(part.train, None if j == 2 else part.test) for j, part in enumerate(parts)]
    expected = simulated(problem, rest, params)
    for name, values in expected.values["test"].items():
        np.testing.assert_allclose(result.values["test"][name], values, rtol=2e-5, atol=2e-6, err_msg=name)
    assert "what client-2 holds out is not measured: " in caplog.text


def test_what_comes_back_is_looked_at():
    good = pack((np.float32(1), np.float32(2)))
    assert read_held_out(good, 2) == (1, 2)
    assert read_held_out(pack(None), 2) is None
    for bad in (pack((np.float32(1),)), pack({"a": np.float32(1)}), pack((np.float32(np.nan),) * 2), b"", b"[1"):
        with pytest.raises(FrameError):
            read_held_out(bad, 2)


def test_a_task_without_examples_has_none_to_hold_out(tmp_path):
    problem = theory.estimates.Watched(PROBLEM)  # which has, but cannot say what they come to together
    with pytest.raises(fs.SettingError, match="this task has no examples of its own to hold out, so leave test out"):
        run(tmp_path, problem, [CLIENTS[0]] * 2, PARAMS)
    with pytest.raises(fs.SettingError, match="the test data: examples must be arrays"):
        run(tmp_path, PROBLEM, [CLIENTS[0]] * 2, PARAMS, test="client")
