"""Callbacks hear of every round, may stop a run, and what they write can be read back by whoever it is for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.engines.callbacks import Listeners, News
from fedsgm.engines.trackers import MLflow, TensorBoard
from fedsgm.federation.inprocess import Fault, InProcess
from support.federated import ALGORITHM, CLIENTS, PARAMS, PROBLEM, PROGRAM
from support.runs import assert_identical

SETTINGS = {"seeds": [0, 1]}


def simulate(rounds=40, **more):
    return fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=rounds, progress=False, **{"seeds": 2} | more)


class StopAt:
    """Stops at a round, and remembers all that it hears."""

    def __init__(self, done, every=5):
        self.done, self.every, self.heard = done, every, []

    def __call__(self, news):
        self.heard.append(news)
        return "enough" if news.done >= self.done else None

    def told(self, name):
        return np.concatenate([news.history[name] for news in self.heard if news.new], axis=1)


def test_all_rounds_are_told_and_the_end(tmp_path):
    heard = StopAt(1000)
    result = simulate(callbacks=[heard], checkpoint=fs.Checkpoint(tmp_path, every=15))
    for name, column in result.history.items():
        np.testing.assert_array_equal(heard.told(name), column)
    assert heard.heard[-1].result is result
    assert [news.done for news in heard.heard] == sorted(news.done for news in heard.heard)
    assert result.settings["rounds"] == 40
    assert "stopped" not in result.settings


@pytest.mark.parametrize(("every", "ends"), [(1, 20), (10, 20), (7, 21), (0, 21)])
def test_a_run_that_is_stopped_is_one_of_so_many_rounds(every, ends):
    """At a round whose true values are measured; that may be the one after."""
    result = simulate(callbacks=[StopAt(18)], evaluate_every=every)
    assert result.settings["rounds"] == ends
    assert result.settings["stopped"] == {"of": 40, "why": "enough"}
    assert "of 40 rounds: enough" in result.verdict()
    assert_identical(result, simulate(ends, evaluate_every=every))


@pytest.mark.parametrize("every", [1, 7])
def test_it_goes_on_from_there_to_the_same_bits(every, tmp_path):
    kept = fs.Checkpoint(tmp_path, every=1000, resume=True)
    simulate(callbacks=[StopAt(18)], evaluate_every=every, checkpoint=kept)
    heard = StopAt(1000)
    result = simulate(evaluate_every=every, checkpoint=kept, callbacks=[heard])
    assert_identical(result, simulate(evaluate_every=every))
    assert heard.heard[0].done == 20, "what was done before is told first"
    np.testing.assert_array_equal(heard.told("weight"), result.history["weight"])


def test_offloaded_runs_stop_alike():
    given = {"evaluate_every": 7, "offload": True}
    assert_identical(simulate(callbacks=[StopAt(18)], **given), simulate(21, **given))


def test_torch_runs_stop_alike(tmp_path):
    from support.torched import torch_problem

    def run(rounds, **more):
        return fs.simulate(ALGORITHM, torch_problem(), CLIENTS, rounds=rounds, progress=False, **more)

    for every, ends in ((1, 3), (2, 4)):
        stopped = run(6, callbacks=[StopAt(3, every=1)], evaluate_every=every, checkpoint=tmp_path / str(every))
        assert_identical(stopped, run(ends, evaluate_every=every))
        kept = fs.Checkpoint(tmp_path / str(every), resume=True)
        assert_identical(run(6, evaluate_every=every, checkpoint=kept), run(6, evaluate_every=every))


def federate(folder, rounds, **more):
    def plan(exchange, name):
        return Fault.LOSE_REQUEST if name == "client-1" and exchange < 4 else None

    transport = InProcess.of(PROGRAM, CLIENTS, folder, plan)
    return fs.federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=rounds, progress=False, **more)


def test_a_federated_run_tells_of_its_clients_and_stops(tmp_path):
    heard = StopAt(8, every=1)
    stopped = federate(tmp_path / "a", 30, callbacks=[heard], checkpoint=tmp_path / "server")
    assert stopped.settings["rounds"] == 9, "the true values of a round come with the next one"
    assert_identical(stopped, federate(tmp_path / "b", 9))
    for name in ("objective", "minority", "weight", "answered", "evaluated"):
        np.testing.assert_array_equal(heard.told(name), stopped.history[name])
    first = next(account for account in heard.heard[0].clients if account["name"] == "client-1")
    assert heard.heard[0].done == 0
    assert first["left_out"] == {"no answer": 1} or first["answered"] == 0
    assert heard.heard[-1].result is stopped


def test_a_private_run_is_watched_but_not_stopped():
    settings = {"seeds": [0], "algorithm": {"privacy": {"epsilon": 1.0}}}
    with pytest.raises(fs.SettingError, match="not stopped early"):
        Listeners([fs.callbacks.EarlyStopping()], settings, {}, 9)
    told = Listeners([lambda news: news.done >= 6], settings, {}, 9)
    told.tell({"weight": np.zeros((1, 5))})
    with pytest.raises(fs.SettingError, match="not stopped early"):
        told.tell({"weight": np.zeros((1, 1))})


def test_what_ends_a_run_is_told():
    heard = []

    def fails(news):
        heard.append(news)
        if news.error is None:
            raise RuntimeError("of the user's own")

    with pytest.raises(RuntimeError, match="of the user's own"):
        simulate(callbacks=[fails])
    assert str(heard[-1].error) == "of the user's own"


def news(done, objective, constraint):
    history = {"objective": np.array(objective, np.float32), "c": np.array(constraint, np.float32)}
    return News(SETTINGS, {"c": (-np.inf, 0.0)}, 1000, done, history)


def test_early_stopping_waits_for_every_seed():
    """Of two seeds: the first is best in round 2, the second feasible from round 5 on and best there."""
    objective = [[3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]]
    constraint = [[0] * 12, [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]]
    for size in (1, 3):
        stop, answers = fs.callbacks.EarlyStopping(patience=4), {}
        for done in range(size, 13, size):
            part = slice(done - size, done)
            answers[done] = bool(stop(news(done, [row[part] for row in objective], [row[part] for row in constraint])))
        assert [done for done, answer in answers.items() if answer] == [done for done in answers if done >= 9]
    assert not stop(news(12, *(np.zeros((2, 12)) - np.arange(12), np.zeros((2, 12))))), "a run anew, which gets better"


def test_early_stopping_leaves_runs_alone_that_get_better_or_are_never_feasible():
    better, worse = fs.callbacks.EarlyStopping(patience=2), fs.callbacks.EarlyStopping(patience=2)
    falling = np.tile(10.0 - np.arange(10), (2, 1))
    assert not better(news(10, falling, np.zeros((2, 10))))
    assert not worse(news(10, np.ones((2, 10)), np.ones((2, 10))))
    with pytest.raises(fs.SettingError, match="patience"):
        fs.callbacks.EarlyStopping(patience=0)


def test_lines_of_json_are_the_history(tmp_path):
    (tmp_path / "log.jsonl").write_text("of a run before\n")
    result = simulate(callbacks=[fs.callbacks.JSONLines(tmp_path / "log.jsonl")], evaluate_every=7)
    *lines, last = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert len(lines) == 2 * 40
    for line in lines:
        at = line["seed"], line["round"] - 1
        assert line["weight"] == result.history["weight"][at]
        assert line.get("objective", np.nan) == pytest.approx(result.history["objective"][at], nan_ok=True)
    assert last == {"rounds": 40, "feasible": bool(result.feasible.all()), "verdict": result.verdict().splitlines()[0]}


def test_tensorboards_reader_gives_back_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = simulate(callbacks=[TensorBoard(tmp_path)], evaluate_every=7)
    for i, seed in enumerate((0, 1)):
        reader = EventAccumulator(str(tmp_path / f"seed-{seed}"), size_guidance={"tensors": 0, "scalars": 0})
        reader.Reload()
        for name in ("objective", "minority", "weight", "bytes_up"):
            events = reader.Tensors(name)
            column = result.history[name][i].astype(np.float32)
            rounds = np.flatnonzero(np.isfinite(column))
            assert [event.step for event in events] == (rounds + 1).tolist()
            found = [
                np.frombuffer(e.tensor_proto.tensor_content, np.float32)[0]
                if e.tensor_proto.tensor_content
                else e.tensor_proto.float_val[0]
                for e in events
            ]
            np.testing.assert_array_equal(found, column[rounds])


TRACKED = """
import fedsgm as fs
from fedsgm.engines.trackers import Trackio
from support.federated import ALGORITHM, CLIENTS, PARAMS, PROBLEM
given = {"rounds": 10, "seeds": 2, "evaluate_every": 3, "progress": False}
fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, **given, callbacks=[Trackio(name="np")])
"""


def test_trackios_reader_gives_back_what_was_logged(tmp_path):
    """In processes of its own: the library reads where its folder is once, when it is imported."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path), "PYTHONPATH": path}

    def call(*command):
        found = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=True)
        return found.stdout

    assert call("-c", TRACKED) == "", "standard output is the command's"
    result = simulate(10, evaluate_every=3)
    for i, name in ((0, "objective"), (1, "minority")):
        flags = ("--project", "fedsgm", "--run", f"np-seed-{i}", "--metric", name, "--json")
        metrics = json.loads(call("-c", "from trackio.cli import main; main()", "get", "metric", *flags))["values"]
        column = result.history[name][i]
        rounds = np.flatnonzero(np.isfinite(column))
        assert [metric["step"] for metric in metrics] == (rounds + 1).tolist()
        assert [metric["value"] for metric in metrics] == column[rounds].astype(float).tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # between MLflow and what it stands on
def test_mlflows_reader_gives_back_what_was_logged(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    result = simulate(callbacks=[MLflow(name="np")], evaluate_every=7)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedsgm").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "np")
    assert run.data.tags["verdict"] == result.verdict().splitlines()[0]
    assert run.data.params["clients"] == "5"
    for i in (0, 1):
        for name in ("objective", "weight", "bytes_up"):
            metrics = client.get_metric_history(run.info.run_id, f"seed-{i}/{name}")
            column = result.history[name][i]
            rounds = np.flatnonzero(np.isfinite(column))
            assert [metric.step for metric in metrics] == (rounds + 1).tolist()
            assert [metric.value for metric in metrics] == column[rounds].astype(float).tolist()
