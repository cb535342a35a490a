"""What one dishonest client cannot do to a run, whatever it answers: end it, silence the others, or take its time."""

import pickle
import time

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.federation import Client, Program, preparation
from fedsgm.federation.answers import TOO_LARGE, WRONG_SHAPE, Forms, Report, Update, absurd
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.panel import SUSPENDED, Account
from fedsgm.federation.protocol import FrameError, Kind, Reply, Request, header, pack, unpack
from support import patient
from support.federated import CLIENTS, PROGRAM

ROUNDS = 12


class Lying(InProcess):
    """``lie`` gives what client-1 sends, of the kind that was asked and what it would have sent."""

    lie = None
    rounds = ROUNDS

    def exchange(self, requests, seconds):
        replies = super().exchange(requests, seconds)
        if "client-1" in replies and header(requests["client-1"])[3] < self.rounds:
            reply = Reply.decode(replies["client-1"])
            content = self.lie(header(requests["client-1"])[0], reply.content)
            if content is None:
                del replies["client-1"]
            else:
                replies["client-1"] = Reply(**{**vars(reply), "content": content}).encode()
        return replies


def run(folder, lie, rule=fs.Soft(40.0), rounds=ROUNDS, clients=3, until=ROUNDS, **more):
    """The liar's answers at the end are right, unless it lies ``until`` later."""
    stated = patient.make(rounds=rounds)
    algorithm = fs.FedSGM(step_size=0.3, local_steps=3, rule=rule, uplink=fs.TopK(0.3), **more)
    program = Program.of(algorithm, stated.problem, stated.params)
    transport = Lying.of(program, [patient.load(f"site-{i + 1}") for i in range(clients)], folder)
    transport.lie, transport.rounds = lie, max(rounds, until)
    return fs.federate(algorithm, stated.problem, transport, stated.params, rounds=rounds, progress=False), transport


def left_out(result):
    return [account["left_out"] for account in result.settings["federation"]["clients"]]


def update(norm):
    return Update(None, 0, norm)


def test_of_three_clients_one_cannot_have_the_others_left_out():
    """Messages of a ten-thousandth had both honest ones taken for absurd; one of a million times is left out itself."""
    for dishonest in (1e-4, 1e-30, 0.0, 900.0):
        assert absurd({0: update(1.0), 1: update(dishonest), 2: update(1.1)}, 0.0) == {}
    assert absurd({0: update(1.0), 1: update(1e6), 2: update(1.1)}, 0.0).keys() == {1}
    assert absurd({0: update(1.0), 1: update(1e6)}, 0.0).keys() == {1}, "of two the longer one"
    assert absurd({0: update(1.0), 1: update(1e-4)}, 1.0) == {}, "as long as earlier ones"


def test_messages_of_a_ten_thousandth_silence_nobody(tmp_path):
    def lie(kind, content):
        if kind != Kind.UPDATE:
            return content
        message = PATIENT.decode(content, PATIENT.algorithm.uplink)
        return PATIENT.encode(type(message)(message.indices, message.values * np.float32(1e-4), message.size))

    result, _ = run(tmp_path, lie)
    assert left_out(result) == [{}, {}, {}]
    assert (result.history["answered"] == 3).all()


PATIENT = Program.of(
    fs.FedSGM(0.3, 3, uplink=fs.TopK(0.3)), patient.make(rounds=1).problem, patient.make(rounds=1).params
)


@pytest.mark.parametrize("rule", [fs.PrimalDual(0.5), fs.Soft(40.0)], ids=["primal-dual", "soft"])
def test_statistics_beyond_all_others_do_not_stop_the_run(rule, tmp_path):
    def lie(kind, content):
        if kind == Kind.UPDATE:
            return content
        statistics, evaluations, inspected = unpack(content)
        return pack(((np.float32(3e38),), evaluations, inspected)) if statistics is not None else content

    result, _ = run(tmp_path, lie, rule)
    first, second, third = left_out(result)
    assert first == third == {}
    assert second.keys() == {TOO_LARGE, SUSPENDED}
    assert all(np.isfinite(leaf).all() for leaf in result.last.values())
    assert (result.history["answered"][0] == 2).all()


@pytest.mark.parametrize("claim", [-10.0, 100.0])
@pytest.mark.parametrize("what", ["the constraint", "the objective"])
def test_what_is_not_believed_is_in_no_value_of_the_run_either(claim, what, tmp_path):
    """A claim of -10 made a run FEASIBLE at a true 0.389, also where robust aggregation kept it out of the steps."""
    claims = 1 if what == "the constraint" else 0

    def lie(kind, content):
        if kind == Kind.UPDATE:
            return content
        statistics, evaluations, inspected = unpack(content)
        if evaluations is None:
            return content
        false = [tuple(np.float32(claim) if i == claims else of for i, of in enumerate(each)) for each in evaluations]
        return pack((statistics, tuple(false), inspected))

    result, _ = run(tmp_path, lie, clients=5, until=ROUNDS + 1, robust=fs.Outliers())
    assert (result.history["evaluated"] == 4).all()
    params, honest = result.answer, [patient.load(f"site-{i}") for i in (1, 3, 4, 5)]
    for name, label in (("objective", 0), ("minority", 1)):
        losses = []
        for data in honest:
            scores = data["x"][data["y"] == label] @ params["w"] + params["b"]
            losses.append(np.mean(np.logaddexp(0, scores) - label * scores))
        np.testing.assert_allclose(result.value("train", name, "answer"), np.mean(losses), rtol=1e-5)


def squared(w, example):
    return (w - example["a"]) ** 2


def test_a_model_that_one_client_makes_diverge_is_what_robust_aggregation_is_for(tmp_path):
    """Updates 900 times as long, backwards, pass as no absurd ones: a run without it ends, in a sentence."""

    def lie(kind, content):
        if kind != Kind.UPDATE:
            return content
        message = program.decode(content, program.algorithm.uplink)
        return program.encode(type(message)(message.values * np.float32(-900)))

    problem = fs.Problem(squared, [fs.Mean(lambda w, _: w, name="size") <= 2.0])
    for robust in (None, fs.Outliers()):
        algorithm = fs.FedSGM(0.1, rule=fs.Soft(20.0), robust=robust)
        program = Program.of(algorithm, problem, np.float32(0))
        clients = [{"a": np.arange(5, dtype=np.float32) + j} for j in range(5)]
        transport = Lying.of(program, clients, tmp_path / str(robust))
        transport.lie, transport.rounds = lie, 30
        arguments = (algorithm, problem, transport, np.float32(0))
        if robust is None:
            with pytest.raises(fs.FedSGMError, match="the run diverged"):
                fs.federate(*arguments, rounds=30, progress=False)
        else:
            assert abs(fs.federate(*arguments, rounds=30, progress=False).last - 2) < 0.2, "the bound"


def test_a_client_with_many_rows_or_a_group_of_its_own_is_not_beyond_the_others(tmp_path):
    """Sums grow with the rows of a client: a million times as many are honest."""

    def lie(kind, content):
        if kind == Kind.UPDATE:
            return content
        statistics, evaluations, inspected = unpack(content)
        return content if statistics is None else pack(((np.float32(1e6) * statistics[0],), evaluations, inspected))

    assert left_out(run(tmp_path, lie)[0]) == [{}, {}, {}]


def test_a_client_that_is_silent_is_asked_less_and_less_often(tmp_path):
    """Of 100 rounds it costs 9 their deadline; it is named, and asked again at the end."""
    asked = []

    def lie(kind, _):
        asked.append(kind)

    result, _ = run(tmp_path, lie, rounds=100)
    assert len(asked) == 3 + 6, "rounds 0, 1, 2, 4, 7, 12, 21, 38, 71"
    _, silent, _ = left_out(result)
    assert silent == {"no answer in 60 s": 9, SUSPENDED: 91}
    assert (result.history["answered"] == 2).all()
    assert np.isfinite(result.values["train"]["objective"]).all()


def test_who_is_back_is_asked_again_at_once_and_who_is_needed_always():
    account = Account("client-1")
    for round in range(5):
        account.note(round, good=False, update=False)
        account.note(round, good=False, update=False)
    assert account.failed == 5, "once a round"
    assert [round for round in range(4, 12) if account.is_suspended(round)] == [5, 6, 7, 8]
    account.note(9, good=True, update=False)
    assert account.failed == 5, "statistics alone do not clear it"
    account.note(9, good=True, update=True)
    assert not any(account.is_suspended(round) for round in range(9, 30))


@pytest.mark.parametrize(
    "form",
    [
        b'["' + b",".join([b"0"] * 64) + b'"]',
        b"[" + b",".join([b"[]"] * 10_001) + b"]",
        b"[" + b",".join([b'"0"'] * 10_001) + b"]",
        b"[" * 5000 + b"]" * 5000,
        b'"' + b"9" * 5000 + b'"',
        b'"-1,-1"',
        b'{"a":"1e3"}',
    ],
    ids=["64 dimensions", "parts", "arrays", "depth", "digits", "negative", "no whole number"],
)
def test_trees_without_end_are_refused(form):
    with pytest.raises(FrameError, match="the numbers do not fit their form"):
        unpack(form + b"\0")


def test_reading_copies_nothing():
    """What is left was copied for every part, so that time grew with the square of their number."""
    data = pack(tuple(np.full(n, n, np.float32) for n in range(100)))
    whole = np.frombuffer(data, np.uint8)
    for n, leaf in enumerate(unpack(data)):
        assert (leaf == n).all()
        assert not leaf.size or np.shares_memory(leaf, whole)


def test_descriptions_of_many_parts_are_refused():
    """Empty lists take twenty times the memory of their bytes."""
    frame = preparation.frame({"told": [[] for _ in range(1000)]})
    assert len(preparation.opened(frame)[0]["told"]) == 1000
    with pytest.raises(FrameError, match="more parts than are read"):
        preparation.opened(preparation.frame({"told": [[] for _ in range(200_001)]}))


@pytest.mark.parametrize("fresh", [False, True])
def test_runs_of_days_to_come_are_refused_and_change_nothing(fresh, tmp_path):
    """And a server that has lost its state, with its clock behind, is followed where no request can be a replay."""
    transport = InProcess.of(PROGRAM, CLIENTS, tmp_path / "all")
    fs.federate(PROGRAM.algorithm, PROGRAM.task.task, transport, PROGRAM.params, rounds=2, progress=False)
    client = Client(PROGRAM, CLIENTS[0], tmp_path / "all" / "client-0", fresh=fresh)
    before = client.state
    for number in (2**64 - 1, time.time_ns() + 40 * 86_400 * 10**9):
        request = Request(Kind.UPDATE, number, 0, 0, 0, payload=pack((1.0, 0.0, None))).encode()
        reply = Reply.decode(client.answer(request))
        assert reply.kind == Kind.ERROR
        assert b"a run that begins in days to come" in reply.content
        assert client.state is before
    later = Request(Kind.MEASURE, before.run - 3600 * 10**9, 0, 0, 0).encode()
    reply = Reply.decode(client.answer(later))
    assert reply.kind == (Kind.BEHIND if fresh else Kind.ERROR)


def test_forms_that_clients_send_are_not_kept():
    """Each answer may have another, of up to a megabyte."""
    forms = Forms(PATIENT)
    for n in range(20):
        tree = {f"{n} {i:01000d}": np.float32(0) for i in range(100)}
        assert forms.odd({0: Report(tree, None, None)}) == {0: WRONG_SHAPE}
    assert len(pickle.dumps(forms._fits)) < 20_000
