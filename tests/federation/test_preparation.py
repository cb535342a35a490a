"""Experiments that depend on everybody's data: who describes what, who is told, and what goes wrong."""

import dataclasses
import functools
import json
import logging

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.federation import Experiment, Parts, Preparation
from fedsgm.federation.agreement import carry_out
from fedsgm.federation.inprocess import Fault
from fedsgm.federation.panel import SUSPENDED
from fedsgm.federation.preparation import MAGIC, frame, opened
from fedsgm.federation.protocol import FrameError, seal
from support.sites import Recorded, run, transport

ROUNDS = 4


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def loss(params, example):
    return (params["w"] - example["a"]) ** 2


def size(params, _):
    return params["w"]


@dataclasses.dataclass(frozen=True)
class Centred:
    """Numbers that are centred by the mean of everybody's; the site's last is held out."""

    rounds: int = ROUNDS
    timeout: float = 5.0
    question: str = "what is your mean?"

    def load(self, given):
        if isinstance(given, Exception):
            raise given
        return np.asarray(given, np.float32)

    def describe(self, data, client):
        return {"client": client, "sum": float(data.sum()), "count": len(data)}

    def agree(self, descriptions):
        each = list(descriptions.values())
        assert [one["client"] for one in each] == list(range(len(each)))
        return {"mean": sum(one["sum"] for one in each) / sum(one["count"] for one in each)}

    def state(self, agreed):
        problem = fs.Problem(loss, [fs.Mean(size) <= agreed["mean"]])
        algorithm = fs.FedSGM(0.1, rule=fs.Soft(20.0), uplink=fs.Quantize("float16"))
        return Experiment(algorithm, problem, {"w": np.float32(0)}, self.rounds, test="clients", timeout=self.timeout)

    def examples(self, data, client, agreed):
        assert client in range(3)
        centred = {"a": data - np.float32(agreed["mean"])}
        return Parts(*(jax.tree.map(lambda a, rows=rows: a[rows], centred) for rows in (slice(-1), slice(-1, None))))

    def review(self, examples, params, agreed):
        return [agreed["mean"], float(params["w"]), len(examples.train["a"])]

    def conclude(self, agreed, result, reviews):
        rows = {name: rows for name, (mean, _, rows) in reviews.items() if mean == agreed["mean"]}
        review = rows | {"w": [w for _, w, _ in reviews.values()]}
        return dataclasses.replace(result, settings=result.settings | {"review": review})

    def keep(self, agreed, result, folder):
        pass


DATA = ([1.0, 2.0, 3.0], [5.0, 6.0], [7.0, 8.0, 9.0, 40.0])
MEAN = np.mean(np.concatenate(DATA))


@functools.cache
def expected():
    """In one program, with the mean known."""
    stated = Centred()
    experiment = stated.state({"mean": MEAN})
    parts = [stated.examples(np.asarray(each, np.float32), j, {"mean": MEAN}) for j, each in enumerate(DATA)]
    test = jax.tree.map(lambda *arrays: np.concatenate(arrays), *(part.test for part in parts))
    clients = fs.Clients.from_list([part.train for part in parts])
    return fs.simulate(
        experiment.algorithm, experiment.problem, clients, experiment.params, rounds=ROUNDS, test=test, progress=False
    )


def assert_same(result, other):
    for part in ("train", "test"):
        for name, values in other.values[part].items():
            np.testing.assert_allclose(result.values[part][name], values, rtol=2e-5, atol=2e-6, err_msg=name)


def test_one_job_agrees_runs_and_reviews(tmp_path):
    carried = transport(Centred(), DATA, tmp_path)
    result, agreed = carry_out(Centred(), carried, run)
    assert isinstance(Centred(), Preparation)
    assert agreed == {"mean": pytest.approx(MEAN)}
    assert_same(result, expected())
    answer = [float(result.answer["w"])] * 3
    assert result.settings["review"] == {"site-1": 2, "site-2": 1, "site-3": 3, "w": answer}
    prepared = [(way, len(data)) for _, way, data in carried.frames if data[:2] == MAGIC]
    counted = result.settings["federation"]["preparation"]
    assert counted == {way: sum(size for each, size in prepared if each == way) for way in ("up", "down")}
    words = [opened(data)[0].get("ask") for _, way, data in carried.frames if data[:2] == MAGIC and way == "down"]
    assert words == ["describe"] * 3 + ["agree"] * 3 + ["review"] * 3


@pytest.mark.parametrize("when", [2, 3, 7, 12, 13])
def test_a_process_that_was_started_again_is_told_again(when, tmp_path):
    """At any moment, also for the review: nothing is lost by it."""

    class Restarting(Recorded):
        def exchange(self, requests, seconds):
            if self.exchanges == when:
                self.restart("site-2")
            return super().exchange(requests, seconds)

    result, _ = carry_out(Centred(), transport(Centred(), DATA, tmp_path, kind=Restarting), run)
    assert_same(result, expected())
    assert result.settings["review"].keys() == {"site-1", "site-2", "site-3", "w"}
    assert all(not account["left_out"] for account in result.settings["federation"]["clients"])


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.CORRUPT_REPLY, Fault.CORRUPT_REQUEST])
def test_a_description_that_is_lost_is_asked_for_again(fault, tmp_path):
    def plan(exchange, client):
        return fault if exchange < 2 and client == "site-1" else None

    assert_same(carry_out(Centred(), transport(Centred(), DATA, tmp_path, plan), run)[0], expected())


def test_a_client_that_never_describes_its_data_stops_the_run_and_it_can_go_on(tmp_path):
    """Fewer would agree on something else."""
    carried = transport(Centred(), DATA, tmp_path, lambda _, client: Fault.LOSE_REQUEST if client == "site-2" else None)
    with pytest.raises(fs.FederationError, match=r"^site-2: no answer; every client must describe its data before the"):
        carry_out(Centred(), carried, run)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (fs.SettingError("its file is empty"), "its file is empty"),
        (ValueError("row 7: Jane Doe"), "ValueError in the client's own code; its log says more"),
        (FileNotFoundError(2, "No such file", "/home/jane/rows.csv"), "FileNotFoundError in the client's own code"),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["load", "describe"])
def test_an_error_names_the_client_and_quotes_nothing(error, words, where, tmp_path, monkeypatch, caplog):
    given = [DATA[0], error if where == "load" else DATA[1], DATA[2]]
    if where == "describe":
        real = Centred.describe

        def describe(self, data, client):
            if client == 1:
                raise error
            return real(self, data, client)

        monkeypatch.setattr(Centred, "describe", describe)
    with caplog.at_level(logging.CRITICAL):
        carried = transport(Centred(), given, tmp_path)
        with pytest.raises(fs.SettingError) as stopped:
            carry_out(Centred(), carried, run)
    assert str(stopped.value).startswith(f"site-2: {words}")
    for secret in (b"Jane", b"jane", b"/home"):
        assert secret not in carried.said("up")


def test_a_client_that_cannot_use_what_was_agreed_on_is_left_out(tmp_path, monkeypatch, caplog):
    real = Centred.examples

    def examples(self, data, client, agreed):
        if client == 2:
            raise KeyError("Jane Doe")
        return real(self, data, client, agreed)

    monkeypatch.setattr(Centred, "examples", examples)
    with caplog.at_level(logging.CRITICAL):
        result, _ = carry_out(Centred(), transport(Centred(), DATA, tmp_path), run)
    (left,) = [each["left_out"] for each in result.settings["federation"]["clients"] if each["left_out"]]
    assert left == {"KeyError in the client's own code; its log says more": 3, SUSPENDED: ROUNDS - 3}
    assert result.settings["review"].keys() == {"site-1", "site-2", "w"}


def test_a_run_goes_on_under_what_was_agreed_on_before(tmp_path):
    """With a client gone that described its data then; and not if something else is asked now."""
    folder = tmp_path / "server"

    def kept(experiment, carried):
        return run(experiment, carried, fs.Checkpoint(folder, resume=True))

    first = transport(Centred(rounds=2), DATA, tmp_path)
    _, agreed = carry_out(Centred(rounds=2), first, kept, folder)
    changed = transport(Centred(), [[100.0] * 3, *DATA[1:]], tmp_path)
    result, again = carry_out(Centred(), changed, kept, folder)
    assert again == agreed
    assert len(result.history["objective"][0]) == ROUNDS
    with pytest.raises(fs.CheckpointError, match="made for another question to the clients; use the same settings"):
        carry_out(Centred(question="another"), changed, kept, folder)
    (folder / "agreed.json").write_text("[")
    with pytest.raises(fs.CheckpointError, match="has a checkpoint, but not what its clients agreed on"):
        carry_out(Centred(), changed, kept, folder)


def test_before_its_first_round_a_run_is_agreed_on_anew(tmp_path):
    """Whatever was kept: what was wrong with the data may have been put right since."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "agreed.json").write_text(json.dumps({"asked": {}, "agreed": {"mean": 0.0}}))
    _, agreed = carry_out(Centred(), transport(Centred(), DATA, tmp_path), run, tmp_path / "server")
    assert agreed["mean"] == pytest.approx(MEAN)
    kept = json.loads((tmp_path / "server" / "agreed.json").read_text())
    assert (kept["agreed"], kept["asked"]["clients"]) == (agreed, ["site-1", "site-2", "site-3"])


def test_frames_of_a_preparation_are_read_with_care():
    words = {"ask": "describe", "client": 3, "text": "ü\0"}
    assert opened(frame(words, b"\0\1")) == (words, b"\0\1")
    good = frame(words)
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        with pytest.raises(FrameError):
            opened(bytes(data))
    bad = (b"[1]", b'{"a": NaN}', b'{"a": 1e', b"[" * 10**5, b"\xff", b"")
    for data in (b"", b"fP", b"fS", *(seal(MAGIC + text + b"\0") for text in bad)):
        with pytest.raises(FrameError):
            opened(data)
    with pytest.raises(ValueError, match="Out of range float"):
        frame({"a": float("nan")})


def test_a_client_of_a_preparation_answers_any_bytes(tmp_path, caplog):
    carried = transport(Centred(), DATA, tmp_path)
    client, rng = carried.processes["site-1"], np.random.default_rng(1)
    odd = [{"ask": "agree"}, {"ask": None}, {}, {"ask": "agree", "client": 0, "agreed": 3}, {"ask": "describe"}]
    with caplog.at_level(logging.CRITICAL):
        for request in (*map(frame, odd), b"", b"fP", *(rng.bytes(40) for _ in range(50))):
            words, _ = opened(client.answer(request))
            assert words.keys() & {"error", "forgot", "damaged"}
    assert opened(client.answer(frame({"ask": "review"}, b"")))[0]["forgot"]
