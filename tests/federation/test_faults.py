"""Whatever befalls clients, messages and the server: no update is lost or counted twice, and the run goes on.

``check_books`` compares, after every round, each client's disk with what really happened.
"""

import dataclasses
import logging
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fedsgm as fs
from fedsgm.federation import Client, Failure, Program
from fedsgm.federation.inprocess import Fault, InProcess, seeded
from fedsgm.federation.panel import Followed
from fedsgm.federation.program import At
from fedsgm.federation.protocol import Kind, Reply, Request, pack, unpack
from fedsgm.federation.run import TRIES, Run
from support.federated import (
    ALGORITHM,
    CLIENTS,
    PARAMS,
    PROBLEM,
    PROGRAM,
    Server,
    Stopped,
    Watched,
    check_books,
    check_model,
    true_values,
)

BOUND = 0.05


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """No waiting for the disk, and no lines about who is left out."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def steps(server, transport, rounds, tail=10):
    """That many rounds with the books checked; the mean true values of the last of them."""
    values = []
    for t in range(rounds):
        server.step()
        check_books(server, transport)
        if t >= rounds - tail:
            values.append(true_values(server.model.replica))
    return np.mean(values, axis=0)


@pytest.mark.parametrize("fault", Fault)
def test_a_fault_that_strikes_again_and_again(tmp_path, fault):
    """One message in five. No update is lost or counted twice, and the run ends where it would without faults.

    Two participants a round, about as many as get through, leave the constraint up to a sixth above its bound.
    """
    plan = seeded(1, {fault: 0.2})
    if fault == Fault.ABSURD_NORM:  # held against the others of a round, of whom most are right

        def plan(exchange, client):
            return fault if client == f"client-{exchange % 5}" else None

    transport = Watched.of(PROGRAM, CLIENTS, tmp_path / "clients", plan)
    server = Server(transport)
    objective, constraint = steps(server, transport, 45)
    assert constraint <= BOUND * 1.2
    assert objective < 0.75 * np.log(2), "the loss where it began is log 2"
    left_out = sum(sum(account.left_out.values()) for account in server.accounts)
    if fault in (Fault.REQUEST_TWICE, Fault.DELETE_STATE):
        assert left_out == 0, "nobody need be left out for that"
    else:
        assert left_out > 10, "the fault must strike"
    if fault in (Fault.LATE_REPLY, Fault.REPLY_TWICE):
        assert any("an answer to another request" in account.left_out for account in server.accounts)
    if fault != Fault.DELETE_STATE:
        check_model(server, transport.book)


def test_a_wrong_shape_from_all_or_most(tmp_path):
    """What the problem's functions cannot take is refused also where there is nothing, or nothing right, to compare."""
    right = set()
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path, lambda _, c: None if c in right else Fault.WRONG_SHAPE)
    server = Server(transport)
    with pytest.raises(fs.FederationError, match=r"^round 0: .* wrong shape"):
        server.step()
    assert server.panel.attempt == TRIES, "each try has its own number"
    right.add(f"client-{PROGRAM.sample(At.of(0, 0), 5)[1]}")
    server.step()
    assert server.history.columns["answered"][0] == 1
    check_books(server, transport)


def test_participants_that_are_gone_are_replaced(tmp_path):
    """With one participant a round, a client that is gone would stop the run whenever it is drawn."""
    algorithm = dataclasses.replace(ALGORITHM, participants=1)
    program = Program.of(algorithm, PROBLEM, PARAMS)
    transport = InProcess.of(program, CLIENTS, tmp_path, lambda _, c: Fault.LOSE_REQUEST if c == "client-2" else None)
    result = fs.federate(algorithm, PROBLEM, transport, PARAMS, rounds=20, evaluate_every=0, progress=False)
    assert (result.history["answered"] == 1).all()
    assert 2 in [program.sample(At.of(0, t), 5)[0] for t in range(20)]
    assert 2 not in result.history["participants"]
    assert result.history["evaluated"][0, -1] == 4


def test_the_verdict_tells_of_clients_that_are_left_out(tmp_path):
    """The bound is met by all who answer; one never does."""
    problem = fs.Problem(PROBLEM.objective, [PROBLEM.constraints[0].quantity <= 10.0])
    algorithm = dataclasses.replace(ALGORITHM, participants=None)
    program = Program.of(algorithm, problem, PARAMS)
    gone = InProcess.of(program, CLIENTS, tmp_path, lambda _, c: Fault.LOSE_REQUEST if c == "client-2" else None)
    lines = fs.federate(algorithm, problem, gone, PARAMS, rounds=3, progress=False).verdict().splitlines()
    assert lines[0] == (
        "FEASIBLE: the answer (round 3) is within every bound on the training data of 4 of 5 clients "
        "(the others did not reply)."
    )
    assert "  left out   client-2 from 3 rounds: no answer" in lines


def test_a_request_that_comes_twice_changes_nothing(tmp_path):
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path / "twice", lambda *_: Fault.REQUEST_TWICE)
    server, plain = Server(transport), Server(Watched.of(PROGRAM, CLIENTS, tmp_path / "once"))
    for _ in range(8):
        server.step()
        plain.step()
        np.testing.assert_array_equal(server.model.replica, plain.model.replica)
    assert transport.book.writes == sum(map(len, transport.book.updates)), "no update is made a second time"


def test_a_round_done_again_with_another_direction_takes_the_first_ones_place(tmp_path):
    """As after a stopped server. The answer and the memory are those of a client that never met the first one."""
    model = Followed(PROGRAM, PROGRAM.start)
    parts, whole = model.since(-1, 0, 2)

    def ask(client, attempt, weight):
        payload = pack((np.float32(1 - weight), np.float32(weight), (np.ones(1), (None,))))
        request = Request(Kind.UPDATE, 1, attempt, 0, model.checksum, -1, parts, whole, payload)
        return Reply.decode(client.answer(request.encode()))

    twice, once = (Client(PROGRAM, CLIENTS[2], tmp_path / name) for name in ("twice", "once"))
    first, second, alone = ask(twice, 0, 0.0), ask(twice, 1, 0.8), ask(once, 1, 0.8)
    assert first.content != second.content == alone.content
    np.testing.assert_array_equal(twice.store.read().memory.error, once.store.read().memory.error)
    assert ask(twice, 0, 0.0).kind == Kind.ERROR, "what the stopped server asked may still come, and must not count"
    assert ask(twice, 1, 0.8).content == second.content


def test_a_lost_answer_goes_back_into_the_memory(tmp_path):
    """The client's next message has what the lost one had: memory + message + update, compressed."""
    lost = {}
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path, lambda n, c: Fault.LOSE_REPLY if n == 3 and c in lost else None)
    server = Server(transport, seed=0)
    server.step()
    who = PROGRAM.sample(At.of(0, 1), 5)
    client = next(c for c in who if server.accounts[c].used == 0)
    name = f"client-{client}"
    lost[name] = True
    server.step()
    state = transport.processes[name].store.read()
    assert state.sent.round == 1
    assert server.accounts[client].used == 0
    lost.clear()
    while server.accounts[client].used < 1:
        server.step()
        check_books(server, transport)
    after = transport.processes[name].store.read()
    message = PROGRAM.dense(PROGRAM.decode(state.sent.message, ALGORITHM.uplink), ALGORITHM.uplink)
    np.testing.assert_array_equal(after.sent.before.error, state.memory.error + message)


def test_requests_that_a_newer_one_has_overtaken_are_refused(tmp_path):
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path)
    server = Server(transport, evaluate_every=1)
    old = []
    exchange = transport.exchange

    def listening(requests, seconds):
        old.append(dict(requests))
        return exchange(requests, seconds)

    transport.exchange = listening
    for _ in range(3):
        server.step()
    for late in old[:-2]:
        for name, request in late.items():
            before = transport.processes[name].state
            reply = Reply.decode(transport.processes[name].answer(request))
            assert reply.kind == Kind.ERROR
            assert b"is here already" in reply.content
            assert transport.processes[name].state is before


def test_a_third_of_all_messages_lost(tmp_path):
    """30% of the requests and 30% of the replies, for 200 rounds.

    Of three participants about 1.25 get through a round. So it must end where runs without faults end that have
    one participant a round: by the few clients' estimates, the constraint settles a little above its bound.
    """
    plan = seeded(2, {Fault.LOSE_REQUEST: 0.3, Fault.LOSE_REPLY: 0.7 * 0.3})
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path, plan)
    server = Server(transport)
    objective, constraint = steps(server, transport, 200, tail=50)
    check_model(server, transport.book)
    alone = dataclasses.replace(ALGORITHM, participants=1)
    plain = fs.simulate(alone, PROBLEM, CLIENTS, PARAMS, rounds=200, seeds=6, progress=False).history
    assert constraint <= plain["minority"][:, -50:].mean(axis=1).max()
    assert objective <= plain["objective"][:, -50:].mean(axis=1).max() * 1.2
    assert server.history.columns["answered"][:200].mean() < 1.5


@pytest.mark.parametrize("seed", [2, 3])
def test_a_third_of_all_messages_lost_and_every_client_remembered(tmp_path, seed):
    """The bound is kept that the participants' estimate misses, which the few that get through are lucky to allow."""
    kept = {}
    for query in ("participants", "memory"):
        program = Program.of(dataclasses.replace(ALGORITHM, query=query), PROBLEM, PARAMS)
        plan = seeded(seed, {Fault.LOSE_REQUEST: 0.3, Fault.LOSE_REPLY: 0.7 * 0.3})
        transport = InProcess.of(program, CLIENTS, tmp_path / query, plan)
        server = Run(program, transport, seed=0, rounds=200, evaluate_every=0)
        models = []
        for _ in range(200):
            server.step()
            models.append(server.model.replica)
        kept[query] = np.array([true_values(w)[1] for w in models[-50:]])
    assert kept["participants"].mean() > BOUND
    assert (kept["participants"] <= BOUND).mean() < 0.5
    assert kept["memory"].mean() <= BOUND
    assert (kept["memory"] <= BOUND).mean() > 0.9


class Meddling(InProcess):
    """Clients whose replies ``meddle(name, request, reply)`` may change, or turn into a failure."""

    def exchange(self, requests, seconds):
        replies = super().exchange(requests, seconds)
        return {name: self.meddle(name, Request.decode(requests[name]), reply) for name, reply in replies.items()}


def without_the_first(folder, gone_in, *, step_size, rounds):
    """The constraint, con = 4/3 w, is about the first client alone; while it is gone, every model seems feasible."""
    shares = [{"x": np.full(4, 2.0, np.float32), "c": np.full(4, c, np.float32)} for c in (4.0, 0.0, 0.0)]
    clients = fs.Clients.from_list(shares)
    problem = fs.Problem(
        objective=lambda w, e: (w[0] - e["x"]) ** 2,
        constraints=[fs.Mean(lambda w, e: e["c"] * w[0], name="con") <= 1.0],
    )
    algorithm, start = fs.FedSGM(step_size=step_size), np.array([1.5], np.float32)  # con = 2, over its bound
    transport = Meddling.of(Program.of(algorithm, problem, start), clients, folder)
    gone = Failure("its machine is down")
    transport.meddle = lambda name, asked, reply: gone if name == "client-0" and gone_in(asked.round) else reply
    return fs.federate(algorithm, problem, transport, start, rounds=rounds, progress=False)


def test_the_best_iterate_is_not_one_that_seemed_feasible_without_a_client(tmp_path):
    """It is gone for two rounds."""
    result = without_the_first(tmp_path, lambda t: t in (1, 2), step_size=0.05, rounds=60)
    assert result.history["evaluated"][0, :4].tolist() == [2, 2, 3, 3]
    assert (result.history["con"][0, :2] == 0).all(), "it seemed feasible"
    assert result.best_feasible[0] * 4 / 3 == pytest.approx(1.0, abs=0.1)
    assert result.best_feasible[0] * 4 / 3 <= 1.0
    np.testing.assert_array_equal(result.answer, result.best_feasible)
    assert result.feasible.all()


def test_the_answer_is_not_one_that_only_seemed_feasible(tmp_path):
    """The steps are too short for the bound: the least violated of all clients' rounds is less over it."""
    result = without_the_first(tmp_path, lambda t: t in (1, 2), step_size=0.01, rounds=12)
    assert (result.history["con"][0, :2] == 0).all(), "it seemed feasible"
    assert (result.history["con"][0, 2:] > 1).all(), "and none was"
    known = np.where(result.history["evaluated"][0] == 3, result.history["con"][0], np.inf)
    assert result.answer_round.tolist() == [np.argmin(known) + 1]
    assert result.value("train", "con", "answer")[0] == known.min() < result.value("train", "con", "best_feasible")[0]
    assert result.answer[0] * 4 / 3 == pytest.approx(known.min(), rel=1e-6)
    assert not result.feasible.any()
    assert (
        result.verdict()
        .splitlines()[0]
        .endswith("; rounds that seemed feasible were measured on fewer clients, and this is the least violated.")
    )


def test_a_client_that_is_gone_for_good_does_not_hold_the_answer_back(tmp_path):
    """No round was within all three clients' bounds. What is best for those who are left is the answer, and said so."""
    result = without_the_first(tmp_path, lambda t: t >= 4, step_size=0.01, rounds=40)
    assert result.history["evaluated"][0].tolist() == [3] * 3 + [2] * 37
    assert (result.history["con"][0, :3] > 1).all()
    assert result.answer_round[0] > 3
    assert result.answer_round[0] == np.argmin(np.where(np.arange(40) < 3, np.inf, result.history["objective"][0])) + 1
    assert result.verdict().splitlines()[0] == (
        f"FEASIBLE: the answer (round {result.answer_round[0]}) is within every bound on the training data "
        "of 2 of 3 clients (the others did not reply)."
    )


@pytest.mark.parametrize("uplink", [fs.Quantize("int8"), fs.Natural()])
def test_a_client_that_alone_has_something_to_say_is_heard(tmp_path, uplink):
    """Two of three clients keep the constraint easily: their messages are a quantiser's dust beside the third's.

    Of 32 features, which a simulation takes in the same order of sums: a last bit can be a factor of two to Natural.
    """
    rng = np.random.default_rng(0)
    y = np.repeat(np.float32([1, 0]), [20, 40])
    shares = []
    for apart in (1, 8, 8):
        x = rng.normal(size=(60, 32)).astype(np.float32)
        x[:, 0] += apart * (2 * y - 1)
        shares.append({"x": x, "y": y})
    clients = fs.Clients.from_list(shares)

    def hinge(w, e):
        return jax.nn.relu(1 - (2 * e["y"] - 1) * (e["x"] @ w))

    problem = fs.Problem(
        objective=fs.Mean(hinge, where=lambda e: e["y"] == 0),
        constraints=[fs.Mean(hinge, where=lambda e: e["y"] == 1, name="minority") <= 0.05],
    )
    algorithm, start = fs.FedSGM(step_size=0.05, local_steps=5, uplink=uplink), np.zeros(32, np.float32)
    transport = InProcess.of(Program.of(algorithm, problem, start), clients, tmp_path)
    settings = {"rounds": 200, "evaluate_every": 0, "progress": False}
    result = fs.federate(algorithm, problem, transport, start, **settings)
    assert (result.history["answered"] == 3).all()
    expected = fs.simulate(algorithm, problem, clients, start, **settings)
    np.testing.assert_allclose(result.last, expected.last, rtol=1e-4, atol=1e-5)


def test_an_answer_of_another_form_that_comes_alone_stops_nothing(tmp_path):
    """Silent when all are asked at the end, and then, asked again alone, lists where the others have tuples."""
    silent = iter([True])

    def listed(tree):
        if isinstance(tree, dict):
            return {key: listed(value) for key, value in tree.items()}
        return [listed(each) for each in tree] if isinstance(tree, tuple) else tree

    def meddle(name, asked, reply):
        if name != "client-1" or asked.kind != Kind.EVALUATE:
            return reply
        if next(silent, False):
            return Failure("no answer")
        answer = Reply.decode(reply)
        content = (None, tuple(map(listed, unpack(answer.content)[1])))
        return dataclasses.replace(answer, content=pack(content)).encode()

    algorithm = dataclasses.replace(ALGORITHM, participants=None)
    transport = Meddling.of(Program.of(algorithm, PROBLEM, PARAMS), CLIENTS, tmp_path)
    transport.meddle = meddle
    result = fs.federate(algorithm, PROBLEM, transport, PARAMS, rounds=2, evaluate_every=0, progress=False)
    assert result.history["evaluated"][0, -1] == 4


def test_a_run_that_diverges_says_so(tmp_path):
    """It is no matter of missing clients, and not to be resumed."""
    problem = fs.Problem(objective=lambda w, e: ((w - e["x"]) ** 2).sum(), constraints=[])
    clients = fs.Clients.from_list([{"x": np.ones((4, 2), np.float32)}] * 3)
    algorithm, start = fs.FedSGM(step_size=50.0, local_steps=5, rule=fs.Unconstrained()), np.zeros(2, np.float32)
    transport = InProcess.of(Program.of(algorithm, problem, start), clients, tmp_path)
    with pytest.raises(fs.FedSGMError, match=r"diverged .* smaller step size") as raised:
        fs.federate(algorithm, problem, transport, start, rounds=60, progress=False)
    assert not isinstance(raised.value, fs.FederationError)


def test_a_damaged_state_counts_as_none(tmp_path):
    transport = Watched.of(PROGRAM, CLIENTS, tmp_path)
    server = Server(transport)
    for _ in range(4):
        server.step()
    path = tmp_path / "client-1" / "state"
    path.write_bytes(path.read_bytes()[:-1])
    transport.restart("client-1")
    assert transport.processes["client-1"].state is None
    transport.book.updates[1].clear()
    transport.book.used[1].clear()
    for _ in range(4):
        server.step()
        check_books(server, transport)


FAULTS = st.dictionaries(
    st.tuples(st.integers(0, 4), st.integers(0, 4)),  # which exchange of the round, which client
    st.sampled_from([f for f in Fault if f != Fault.ABSURD_NORM]),
    max_size=6,
)


class Federation(RuleBasedStateMachine):
    """Any sequence of faults of clients, messages and the server."""

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.faults, self.first = {}, 0
        self.transport = Watched.of(PROGRAM, CLIENTS, self.path / "clients", self.plan)
        self.deleted = False
        self.server = Server(self.transport, self.path / "server", evaluate_every=2, min_participants=2)

    def plan(self, exchange, client):
        fault = self.faults.get((exchange - self.first, int(client[-1])))
        self.deleted |= fault == Fault.DELETE_STATE
        return fault

    @rule(faults=FAULTS, kill=st.sampled_from([None, None, "before its checkpoint", "after its checkpoint"]))
    def round(self, faults, kill):
        self.faults, self.first, self.server.kill = faults, self.transport.exchanges, kill
        before = self.server.round
        try:
            self.server.step()
            assert self.server.round == before + 1
        except (Stopped, fs.FederationError):
            self.resume()
        self.faults = {}

    @rule()
    def resume(self):
        self.server = Server(self.transport, self.path / "server", evaluate_every=2, min_participants=2)

    @rule(client=st.integers(0, 4))
    def restart_client(self, client):
        self.transport.restart(f"client-{client}")

    @rule(client=st.integers(0, 4))
    def delete_state(self, client):
        self.transport.delete(f"client-{client}")
        self.deleted = True

    @invariant()
    def books(self):
        check_books(self.server, self.transport)
        if not self.deleted:
            check_model(self.server, self.transport.book)

    def teardown(self):
        self.folder.cleanup()


Federation.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
test_any_sequence_of_faults = Federation.TestCase
