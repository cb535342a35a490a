"""The flags ``--watch``, ``--log`` and ``--track``: who hears of a command's runs."""

import json
import re
import tracemalloc
import urllib.request

import numpy as np
import pytest

from fedsgm.engines import watch
from fedsgm.engines.callbacks import Listeners
from fedsgm.federation.news import Noted, Relayed
from support.commands import RUN, TINY, Run, assert_one_error, call


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_has_every_round_and_changes_nothing_else(tmp_path):
    logged = call(*RUN, *TINY, "--seeds", "2", "--log", tmp_path / "log.jsonl", "--out", tmp_path / "a", draw=False)
    assert (logged.code, logged.err) == (0, "")
    call(*RUN, *TINY, "--seeds", "2", "--out", tmp_path / "b", draw=False)
    found, plain = Run(tmp_path / "a"), Run(tmp_path / "b")
    assert (found.settings, found.toml) == (plain.settings, plain.toml)
    *rows, last = lines(tmp_path / "log.jsonl")
    assert [(row["round"], row["seed"]) for row in rows] == [(t, seed) for t in range(1, 6) for seed in (0, 1)]
    assert [row["minority"] for row in rows] == found.history["minority"].T.ravel().tolist()
    assert last["verdict"] == found.document["verdict"][0]


def test_a_fit_logs_its_other_runs_by_name(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.integers(9)},{'ab'[i % 2]},{'yes' if rng.random() < 0.2 + 0.6 * (i % 2) else 'no'}" for i in range(120)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["age,group,bought", *rows]))
    flags = (
        "--target",
        "bought",
        "--constraint",
        "demographic_parity(group) <= 0.01",
        "--rounds",
        "3",
        "--no-progress",
    )
    called = call("fit", tmp_path / "t.csv", *flags, "--log", tmp_path / "l.jsonl", "--out", tmp_path / "a", draw=False)
    assert called.code == 0, called.err
    names = {line.get("run") for line in lines(tmp_path / "l.jsonl")}
    assert {None, "unconstrained"} <= names


def test_watch_serves_the_page_while_the_run_goes_on(tmp_path, monkeypatch):
    """Whoever asks for it in the last round is told of that, and the address is gone with the command."""
    seen = []
    plain = Listeners.finish

    def finish(self, *given):
        plain(self, *given)
        for each in made:
            with urllib.request.urlopen(f"{each.address}state") as answer:
                seen.append(json.load(answer))

    made = []
    real = watch.Watch.__init__
    monkeypatch.setattr(watch.Watch, "__init__", lambda self: (real(self), made.append(self))[0])
    monkeypatch.setattr(watch, "_LAST", 0.0)
    monkeypatch.setattr(Listeners, "finish", finish)
    called = call(*RUN, *TINY, "--watch", "--out", tmp_path / "run", draw=False)
    assert called.code == 0
    assert re.fullmatch(r"Watch it: http://127\.0\.0\.1:\d+/[\w-]{22}/\n", called.err)
    assert seen[0]["runs"][0]["label"] == "run"
    assert seen[0]["runs"][0]["headline"] in called.out
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(made[0].address)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # between MLflow and what it stands on
def test_track(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    called = call(*RUN, *TINY, "--track", "tensorboard", "--track", "mlflow", "--out", tmp_path / "run", draw=False)
    assert called.code == 0, called.err
    assert list((tmp_path / "run" / "tensorboard" / "seed-0").glob("events.*"))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedsgm").experiment_id])
    last = Run(tmp_path / "run").history["objective"][0, -1]
    assert run.data.metrics["objective"] == last


def test_what_cannot_be_is_said(tmp_path, monkeypatch):
    assert_one_error(call(*RUN, *TINY, "--track", "paper", "--out", tmp_path / "a"), 2, "paper")
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.summary", None)
    wanted = call(*RUN, *TINY, "--track", "tensorboard", "--out", tmp_path / "a")
    assert_one_error(wanted, 2, r"pip install 'fedsgm\[tensorboard\]'")
    federated = ("federate", "local", "neyman-pearson", "--engine", "flower", "--rounds", "1", "--watch")
    assert_one_error(call(*federated, "--out", tmp_path / "a"), 2, "--engine flare")


def test_what_a_server_tells_reaches_callbacks_here_once():
    """In words of JSON, in parts, some of them told again; then the rest of the result."""
    heard, noted = [], Noted()
    relayed = Relayed([heard.append])
    server = Listeners([noted], {"seeds": [0]}, {"c": (-np.inf, 1.0)}, 9)
    rounds = np.arange(9, dtype=np.float32)[None] / 3
    columns = {"objective": rounds, "c": np.full((1, 9), np.nan, np.float32), "who": np.arange(18).reshape(1, 9, 2)}
    account = {"name": "site-1", "answered": 1, "left_out": {}}
    relayed.hear(noted.since(0), {}, {})
    assert heard == []
    for start, stop in ((0, 4), (4, 7)):
        server.tell({name: column[:, start:stop] for name, column in columns.items()}, [account])
        said = noted.since(relayed.seen)
        for lost in ({}, {}, {"site-1": 0.0}):
            relayed.hear(said, lost, {})
    for name, column in columns.items():
        found = np.concatenate([news.history[name] for news in heard if news.new], axis=1)
        np.testing.assert_array_equal(found, column[:, :7])
        assert found.dtype == column.dtype
    assert [(news.done, news.clients[0].get("gone")) for news in heard] == [
        *((4, None), (4, "lost"), (7, None), (7, "lost")),
    ]
    assert heard[0].ranges == {"c": (-np.inf, 1.0)}


def test_what_a_server_keeps_to_tell_does_not_grow_by_more_than_the_rounds_numbers():
    """It is told of one round at a time, thousands of times: a small part of 1 MB per 1,000 rounds."""
    noted, rounds = Noted(), 3000
    server = Listeners([noted], {"seeds": [0]}, {}, rounds)
    columns = {f"value {i}": np.arange(rounds, dtype=np.float32)[None] for i in range(12)}

    def tell(first, last):
        for t in range(first, last):
            server.tell({name: column[:, t : t + 1] for name, column in columns.items()}, [])

    tell(0, 1000)
    tracemalloc.start()
    try:
        tell(1000, 3000)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 100_000
    told = json.loads(noted.since(2998))
    assert (told["first"], told["columns"]["value 3"]) == (2998, ["float32", [2998.0, 2999.0]])
