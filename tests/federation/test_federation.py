"""A federated run is the simulated one, whoever carries its messages; and it can be stopped and resumed."""

import dataclasses
import json
import logging

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import fedsgm as fs
from fedsgm.__main__ import app
from fedsgm.engines import recording
from fedsgm.federation import Client, Program, federate
from fedsgm.federation.inprocess import Fault, InProcess
from fedsgm.federation.program import At
from fedsgm.federation.protocol import FrameError, Kind, Reply, Request, one_line, pack, told, unpack
from fedsgm.results.result import KINDS
from support.federated import (
    ALGORITHM,
    CLIENTS,
    PARAMS,
    PROBLEM,
    PROGRAM,
    TEST,
    Server,
    Stopped,
    Watched,
    check_books,
    counting,
)
from support.runs import EVERYTHING

ROUNDS = 25


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """No waiting for the disk: what is killed here is no machine."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def run(folder, *, clients=CLIENTS, algorithm=ALGORITHM, problem=PROBLEM, params=PARAMS, plan=None, **more):
    transport = InProcess.of(Program.of(algorithm, problem, params), clients, folder, plan)
    settings = {"rounds": ROUNDS, "progress": False} | more
    return federate(algorithm, problem, transport, params, **settings)


def assert_same_run(federated, simulated):
    for name, column in simulated.history.items():
        assert federated.history[name].dtype == column.dtype
        np.testing.assert_allclose(federated.history[name], column, rtol=2e-5, atol=2e-6, err_msg=name)
    for name in ("participants", "bytes_up", "bytes_down"):
        np.testing.assert_array_equal(federated.history[name], simulated.history[name], err_msg=name)
    np.testing.assert_array_equal(federated.answer_round, simulated.answer_round)
    for kind in KINDS:
        for left, right in zip(
            jax.tree.leaves(getattr(federated, kind)), jax.tree.leaves(getattr(simulated, kind)), strict=True
        ):
            np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-6, err_msg=kind)
    for part, values in simulated.values.items():
        for name in values:
            np.testing.assert_allclose(federated.values[part][name], values[name], rtol=2e-5, atol=2e-6)


def test_other_parameters_are_measured_beside_the_run(tmp_path):
    """At the end, over all clients, by an evaluation in one program; the run itself is the same."""
    others = [jax.tree.map(lambda leaf, k=k: np.full_like(leaf, k), PARAMS) for k in (0.25, -1.5)]
    found = run(tmp_path / "beside", rounds=3, beside=others)
    simulated = fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=3, progress=False)
    expected = recording.values_of(PROBLEM, CLIENTS, others)
    for mine, theirs in zip(found.settings["federation"]["beside"], expected, strict=True):
        assert mine == pytest.approx({name: theirs[name] for name in mine}, rel=1e-5)
        assert mine.keys() >= {"objective", "minority"}
    assert_same_run(found, simulated)


class Recording(InProcess):
    """Remembers the model that every answering client held in every round."""

    replicas: dict

    def exchange(self, requests, seconds):
        replies = super().exchange(requests, seconds)
        for name in requests:
            state = self.processes[name].state
            self.replicas.setdefault(state.version, []).append(state.replica)
        return replies


def test_the_same_iterates_as_simulate_round_by_round(tmp_path):
    """The Neyman-Pearson run on 5 clients, 3 a round, Top-K both ways."""
    transport = Recording.of(PROGRAM, CLIENTS, tmp_path)
    transport.replicas = {}
    federated = federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=ROUNDS, test=TEST, progress=False)
    simulated = fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=ROUNDS, test=TEST, progress=False)
    assert_same_run(federated, simulated)
    assert sorted(transport.replicas) == list(range(ROUNDS + 1))
    for rounds in range(1, ROUNDS + 1):
        iterate = fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=rounds, test=TEST, progress=False).last
        for replica in transport.replicas[rounds]:
            np.testing.assert_allclose(replica, PROGRAM.task.layout.flatten(iterate), rtol=2e-5, atol=2e-6)
    assert (federated.history["answered"] == 3).all()
    assert (federated.history["evaluated"] == 5).all()
    assert federated.history.keys() - simulated.history.keys() == {
        *("answered", "evaluated", "frames_up", "frames_down")
    }


def test_the_same_for_batches_random_compressors_and_a_multiplier(tmp_path, clients, problem, params):
    """Also for clients of different sizes, and true values only now and then."""
    algorithm = fs.FedSGM(**EVERYTHING)
    sizes = (7, 8, 7, 8, 7)  # two, as each is compiled
    clients = fs.Clients.from_list([jax.tree.map(lambda a, n=n: a[:n], clients[j]) for j, n in enumerate(sizes)])
    settings = {"rounds": 12, "seed": 3, "evaluate_every": 5, "progress": False}
    federated = run(tmp_path, clients=clients, algorithm=algorithm, problem=problem, params=params, **settings)
    simulated = fs.simulate(algorithm, problem, clients, params, **settings)
    assert_same_run(federated, simulated)
    assert np.flatnonzero(federated.history["evaluated"][0]).tolist() == [4, 9, 11]


def test_every_byte_is_counted(tmp_path):
    Counting, sent = counting()
    result = federate(
        ALGORITHM, PROBLEM, Counting.of(PROGRAM, CLIENTS, tmp_path), PARAMS, rounds=8, evaluate_every=0, progress=False
    )
    accounts = result.settings["federation"]["clients"]
    for way in ("up", "down"):
        assert result.history[f"frames_{way}"].sum() == sent[way]
        assert sum(account[f"frames_{way}"] for account in accounts) == sent[way]
    assert result.settings["federation"]["clients"][0]["seconds"] > 0


def test_a_frame_costs_34_bytes_down_and_24_up():
    request = Request(Kind.UPDATE, 2**63, 7, 2**31, 2**32 - 1, 5, (), False, b"payload")
    assert len(request.encode()) == 34 + len(b"payload")
    assert Request.decode(request.encode()) == request
    reply = Reply(Kind.ANSWER, 2**32 - 1, -1, 3, 0.5, b"content")
    assert len(reply.encode()) == 24 + len(b"content")
    assert Reply.decode(reply.encode()) == reply
    model = dataclasses.replace(request, model=(b"one", b"", b"three"))
    assert Request.decode(model.encode()) == model


def test_of_an_error_one_line_is_told():
    assert told(FrameError("the update has a NaN")) == b"the update has a NaN"
    assert len(told(FrameError("x" * 100_000))) == 300
    for error in (ValueError("a row: 1\na row: 2"), fs.SettingError("line 7 of /home/jane/rows.csv: Jane, 41")):
        name = type(error).__name__.encode()
        assert told(error) == name + b" in the client's own code; its log says more"
    assert one_line("a\x1b[2Jb\nc\x07") == r"a\x1b[2Jb c\x07", "a terminal does nothing"
    assert one_line("two\nlines " + "x" * 1000) == "two lines " + "x" * 290


def test_a_tree_travels_as_it_is():
    tree = (
        {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": None},
        [np.float32(1.5), ()],
        np.zeros(0, np.float32),
    )
    back = unpack(pack(tree))
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, back, tree)
    for bad in (b"", b"[", b'["-1"]\0', b'["2"]\0abc', b'["1"]\0abcdefgh', b'["x"]\0', b"3\0", b"[" * 10**5):
        with pytest.raises(FrameError):
            unpack(bad)
    with pytest.raises(FrameError, match="cannot travel"):
        pack({1: np.float32(1)})


def test_a_client_answers_any_bytes_and_is_not_changed_by_them(tmp_path):
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path)
    server = Server(transport)
    for _ in range(3):
        server.step()
    client, rng = transport.processes["client-0"], np.random.default_rng(0)
    request = server.panel._request(server.model, 0, Kind.MEASURE, b"")
    before = client.state
    for _ in range(300):
        data = bytearray(request if rng.random() < 0.7 else rng.bytes(int(rng.integers(80))))
        for at in rng.integers(len(data), size=3) if data else ():
            data[at] ^= 1 << int(rng.integers(8))
        if bytes(data) != request:
            assert Reply.decode(client.answer(bytes(data))).kind == Kind.ERROR
    assert client.state is before
    assert Reply.decode(client.answer(request)).kind == Kind.ANSWER


def test_a_client_catches_up_by_broadcasts_or_by_the_whole_model(tmp_path):
    """One that was away gets what it missed while that is less than the whole, else the whole."""
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path)
    server = Server(transport)
    kinds = {}
    for _ in range(20):
        server.step()
        for client, account in enumerate(server.accounts):
            parts, whole = server.model.since(account.held, 0, client)
            behind = server.round - account.held
            kinds.setdefault(whole, set()).add(behind)
            if not whole:
                assert len(parts) == behind
                assert sum(map(len, parts)) < len(server.model.whole)
    assert {1, 2} <= kinds[False]
    assert max(kinds[False]) < max(kinds[True])
    check_books(server, transport)


def test_a_model_that_differs_is_replaced_by_the_whole(tmp_path):
    """Nobody is left out for it, and no answer is built on it."""
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path)
    server = Server(transport, evaluate_every=1)
    server.step()
    server.step()
    client = transport.processes[f"client-{PROGRAM.sample(At.of(0, 2), 5)[0]}"]
    client.state = dataclasses.replace(client.state, replica=client.state.replica + np.float32(1e-3))
    server.step()
    assert server.history.columns["answered"][2] == 3
    check_books(server, transport)


def test_another_program_is_refused_with_what_to_do(tmp_path, caplog):
    other = Program.of(dataclasses.replace(ALGORITHM, step_size=0.2), PROBLEM, PARAMS)
    assert other.fingerprint != PROGRAM.fingerprint
    assert Program.of(ALGORITHM, PROBLEM, PARAMS).fingerprint == PROGRAM.fingerprint
    transport = InProcess.of(other, CLIENTS, tmp_path)
    with (
        caplog.at_level(logging.CRITICAL),
        pytest.raises(
            fs.FederationError, match=r"fewer than 1 of 3 clients answered, .* start both with the same settings"
        ),
    ):
        federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=2, progress=False)


@pytest.mark.parametrize("stop", [1, 7])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, stop):
    whole = run(tmp_path / "whole", rounds=12, evaluate_every=3)
    transport = InProcess.of(PROGRAM, CLIENTS, tmp_path / "stopped")

    def part(rounds):
        checkpoint = fs.Checkpoint(tmp_path / "server", resume=True)
        return federate(
            ALGORITHM,
            PROBLEM,
            transport,
            PARAMS,
            rounds=rounds,
            evaluate_every=3,
            checkpoint=checkpoint,
            progress=False,
        )

    part(stop)
    for name in transport.clients():
        transport.restart(name)
    resumed = part(12)
    for name, column in whole.history.items():
        if not name.startswith("frames"):  # the measurement at the end of the first part was traffic, too
            np.testing.assert_array_equal(resumed.history[name], column, err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, resumed.last, whole.last)
    jax.tree.map(np.testing.assert_array_equal, resumed.best_feasible, whole.best_feasible)
    jax.tree.map(np.testing.assert_array_equal, resumed.answer, whole.answer)
    np.testing.assert_array_equal(resumed.answer_round, whole.answer_round)
    assert resumed.values.keys() == whole.values.keys()
    jax.tree.map(np.testing.assert_array_equal, resumed.values, whole.values)


@pytest.mark.parametrize("when", ["before its checkpoint", "after its checkpoint"])
def test_a_killed_server_goes_on_bit_for_bit(tmp_path, when):
    """Also where the clients have made an update that no server ever used: it is answered again, not made again."""
    plain = Server(Watched.of(PROGRAM, CLIENTS, tmp_path / "plain"), evaluate_every=2)
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path / "clients")
    server = Server(transport, tmp_path / "server", evaluate_every=2)
    for t in range(12):
        plain.step()
        if t in (3, 4, 8):
            server.kill = when
            with pytest.raises(Stopped):
                server.step()
            server = Server(transport, tmp_path / "server", evaluate_every=2)
        if server.round == t:
            server.step()
        np.testing.assert_array_equal(server.model.replica, plain.model.replica)
        check_books(server, transport)
    assert server.history.columns.keys() == plain.history.columns.keys()
    for name, column in plain.history.columns.items():
        np.testing.assert_array_equal(server.history.columns[name], column, err_msg=name)
    assert [a.answered for a in server.accounts] == [a.answered for a in plain.accounts]
    for attempt in (4, 5):  # no two servers have the same number, though none takes a round
        assert Server(transport, tmp_path / "server").panel.attempt == attempt


def test_a_new_run_starts_afresh_and_an_old_one_is_refused(tmp_path):
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path)
    first = Server(transport)
    first.step()
    transport.book.__init__()
    second = Server(transport)
    for _ in range(4):
        second.step()
        check_books(second, transport)
    old = first.panel._request(first.model, 0, Kind.MEASURE, b"")
    reply = Reply.decode(transport.processes["client-0"].answer(old))
    assert (reply.kind, reply.content) == (Kind.ERROR, b"the request is of an earlier run")


def test_too_few_answers_stop_the_run_with_one_sentence_and_it_can_be_resumed(tmp_path):
    """All is lost from the 10th exchange on; later the network is back."""
    asked = []

    def broken(exchange, client):
        asked.append(client)
        return Fault.LOSE_REQUEST if exchange >= 10 else None

    folder = tmp_path / "server"
    with pytest.raises(
        fs.FederationError,
        match=r"^round 5: fewer than 2 of 3 clients answered, 5 times \(client-\d: no answer; .*\); the run stops "
        r"here, it can be resumed$",
    ):
        run(tmp_path, plan=broken, min_participants=2, checkpoint=folder, evaluate_every=0)
    assert len(asked) == 10 * 3 + 5 * 2 * 3, "a round is repeated, and not for ever"
    resumed = run(tmp_path, min_participants=2, checkpoint=fs.Checkpoint(folder, resume=True), evaluate_every=0)
    whole = run(tmp_path / "whole", evaluate_every=0)
    jax.tree.map(np.testing.assert_array_equal, resumed.last, whole.last)


def test_a_client_may_lack_a_group_that_others_have(tmp_path):
    """A ratio over everybody: what one client lacks is asked of all together only."""

    def sums(params, example):
        score = jax.nn.sigmoid(example["x"] @ params["w"])
        member = example["a"]
        return {"rate": [score * member, score * (1 - member)], "count": [member, 1 - member]}

    def gap(total):
        return total["rate"][0] / total["count"][0] - total["rate"][1] / total["count"][1]

    def loss(params, example):
        return (example["x"] @ params["w"] - example["y"]) ** 2

    rng = np.random.default_rng(0)
    data = [
        {"x": rng.normal(size=(8, 3)).astype(np.float32), "y": rng.normal(size=8).astype(np.float32), "a": group}
        for group in (np.zeros(8, np.float32), np.ones(8, np.float32), np.arange(8) % 2 * np.float32(1))
    ]
    statistic = fs.Statistic(sums, gap, name="gap", members=lambda total: jax.numpy.stack(total["count"]))
    problem = fs.Problem(loss, [statistic <= 0.12])
    params, algorithm = {"w": np.full(3, 0.5, np.float32)}, fs.FedSGM(0.1, rule=fs.Hard())
    with pytest.raises(fs.SettingError, match="group"):
        fs.simulate(algorithm, problem, fs.Clients.from_list(data[:1]), params, rounds=1, progress=False)
    federated = run(tmp_path, clients=data, algorithm=algorithm, problem=problem, params=params, rounds=8)
    simulated = fs.simulate(algorithm, problem, fs.Clients.from_list(data), params, rounds=8, progress=False)
    assert_same_run(federated, simulated)
    assert 0 < simulated.history["weight"].sum() < 8, "both gradients must be followed"
    with pytest.raises(fs.SettingError, match="must return one floating-point number"):
        Client(Program.of(algorithm, fs.Problem(lambda _, example: example["x"]), params), data[0], tmp_path / "bad")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"min_participants": 4}, "min_participants=4, but 3 clients take part in a round"),
        ({"min_participants": 0}, "min_participants=0, but it must be a whole number, 1 or more"),
        ({"timeout": 0.0}, r"timeout=0\.0, but it must be a finite number above 0"),
        ({"rounds": 0}, "rounds=0, but it must be"),
        ({"seed": 2**32}, "seed=4294967296, but it must be at most 4294967295"),
        ({"algorithm": dataclasses.replace(ALGORITHM, participants=6)}, "participants=6, but there are 5 clients"),
    ],
)
def test_wrong_settings(tmp_path, settings, what):
    with pytest.raises(fs.SettingError, match=what):
        run(tmp_path, **settings)


def test_show_prints_each_clients_account(tmp_path, caplog):
    def plan(exchange, client):
        return Fault.RAISE if client == "client-3" and exchange % 4 == 0 else None

    with caplog.at_level(logging.WARNING):
        result = run(tmp_path, plan=plan, rounds=10)
    assert "client-3 is left out: RuntimeError in the client's own code; its log says more" in caplog.text
    (account,) = [a for a in result.settings["federation"]["clients"] if a["name"] == "client-3"]
    left_out = 30 - result.history["answered"].sum()
    assert account["left_out"] == {"RuntimeError in the client's own code; its log says more": left_out}
    assert left_out > 0
    result.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["settings"]["federation"]["clients"]
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")])
    assert shown.exit_code == 0
    (line,) = [line for line in shown.output.splitlines() if line.startswith("client-3")]
    assert line.split()[1:3] == [str(account["answered"]), str(left_out)]
    assert line.endswith(f"RuntimeError in the client's own code; its log says more ({left_out})")


def test_nobody_is_asked_again_for_what_it_has_told(tmp_path):
    """Two rounds are two exchanges each, and one at the end; true values ride on the first of the next round."""
    for every, kinds in ((0, [1, 8, 1, 8, 2]), (1, [1, 8, 3, 8, 2])):
        asked = []

        class Listening(InProcess):
            def exchange(self, requests, seconds, asked=asked):
                asked += {int(Request.decode(request).kind) for request in requests.values()}
                return super().exchange(requests, seconds)

        algorithm = dataclasses.replace(ALGORITHM, participants=None)
        transport = Listening.of(Program.of(algorithm, PROBLEM, PARAMS), CLIENTS, tmp_path / str(every))
        fs.federate(algorithm, PROBLEM, transport, PARAMS, rounds=2, evaluate_every=every, progress=False)
        assert asked == kinds


def test_what_a_client_keeps_is_its_owner_s_alone(tmp_path):
    """Its error memory is made of its data."""
    algorithm = dataclasses.replace(ALGORITHM, participants=None)
    transport = InProcess.of(Program.of(algorithm, PROBLEM, PARAMS), CLIENTS, tmp_path / "clients")
    fs.federate(algorithm, PROBLEM, transport, PARAMS, rounds=1, progress=False)
    kept = list((tmp_path / "clients").rglob("state"))
    assert len(kept) == len(CLIENTS)
    for path in kept:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
