"""A federated run whose server sees sums alone is the plain run, whoever drops out; and nothing else can be seen."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from scipy import stats

import fedsgm as fs
from fedsgm.core.drawing import distinct
from fedsgm.federation import Program, federate, masking
from fedsgm.federation.inprocess import Fault, InProcess
from fedsgm.federation.program import pack_direction
from fedsgm.federation.protocol import FrameError, Kind, Request
from fedsgm.federation.run import Run
from fedsgm.federation.secure import SecureRun
from fedsgm.privacy import secure
from fedsgm.privacy.task import guarded
from support.federated import CLIENTS, PARAMS, PROBLEM

LINKS = {"uplink": fs.SharedK(0.25, history=0.25), "downlink": fs.TopK(0.3)}
ALGORITHM = fs.FedSGM(step_size=0.3, local_steps=5, rule=fs.Soft(beta=40.0), **LINKS)
PROGRAM = Program.of(ALGORITHM, PROBLEM, PARAMS)
ROUNDS = 6


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """No waiting for the disk: what is killed here is no machine."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def run(folder, *, secure=True, algorithm=ALGORITHM, problem=PROBLEM, plan=None, kind=InProcess, **more):
    ready = algorithm is ALGORITHM and problem is PROBLEM
    program = PROGRAM if ready else Program.of(algorithm, problem, PARAMS)
    transport = kind.of(program, CLIENTS, folder, plan, secure=secure)
    settings = {"rounds": ROUNDS, "progress": False, "secure": secure} | more
    return federate(algorithm, problem, transport, PARAMS, **settings)


def assert_same_iterates(found, expected):
    for mine, theirs in zip(*(jax.tree.leaves(each.last) for each in (found, expected)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_iterates_are_those_of_the_plain_run(tmp_path):
    """To the last bit: whole numbers add up in any order, and a hard rule does not see the rounding of statistics."""
    hard = dataclasses.replace(ALGORITHM, rule=fs.Hard())
    for name, algorithm in (("hard", hard), ("drawn", dataclasses.replace(hard, participants=4, query="all"))):
        found, expected = (run(tmp_path / f"{name}{s}", secure=s, algorithm=algorithm) for s in (True, False))
        assert_same_iterates(found, expected)
        np.testing.assert_array_equal(found.history["participants"], expected.history["participants"])
        for column in ("objective", "minority", "violation"):
            np.testing.assert_allclose(found.history[column], expected.history[column], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.history["answered"], expected.history["answered"])
        assert "worst_clients" in expected.settings
        assert "worst_clients" not in found.settings, "nobody's own values are known"


def accepted(params, example):
    return {"n": 1.0, "hot": jax.nn.sigmoid(params["b"] + example["x"] @ params["w"])}


@pytest.mark.parametrize("weigh", ["clients", "rows"])
def test_every_kind_of_sum(tmp_path, weigh):
    """A statistic over everybody, a mean that some clients have no example of, several at once."""
    rare = fs.Mean(
        lambda params, _: params["b"] ** 2,
        where=lambda example: example["x"][0] > 3,
        name="rare",
        missing="absent",
    )
    rate = fs.Statistic(accepted, lambda total: total["hot"] / total["n"], name="rate")
    problem = fs.Problem(PROBLEM.objective, [*PROBLEM.constraints, rate <= 0.3, rare <= 0.1], weigh=weigh)
    found, expected = (run(tmp_path / str(s), secure=s, problem=problem) for s in (True, False))
    for column in ("objective", "minority", "rate", "rare", "violation", "weight"):
        np.testing.assert_allclose(
            found.history[column], expected.history[column], rtol=1e-4, atol=1e-5, err_msg=column
        )


NAMED = fs.SharedK(0.3, history=0.5)


def sums_and_names(monkeypatch):
    """A list that gets, of each sum of updates, the numbers, how many clients are in it, and the entries named."""
    seen, real = [], SecureRun._update

    def update(self, who, direction):
        updates, reasons = real(self, who, direction)
        whole = next(iter(updates.values())).message
        seen.append((np.asarray(whole.codes), len(updates), np.asarray(direction.named), np.asarray(whole.key)))
        return updates, reasons

    monkeypatch.setattr(SecureRun, "_update", update)
    return seen


@pytest.mark.parametrize("privacy", [False, True])
def test_the_entries_are_named_by_the_sums_alone(tmp_path, monkeypatch, privacy):
    """Whoever has the sums of the updates, with their noise, has named the entries of every round: by plain NumPy."""
    uplink = dataclasses.replace(NAMED, reach=64.0) if privacy else NAMED
    algorithm = dataclasses.replace(BY_CLIENT if privacy else ALGORITHM, uplink=uplink)
    seen = sums_and_names(monkeypatch)
    run(tmp_path, algorithm=algorithm)
    d, many = 31, uplink.named(31)
    rate, last = np.zeros(d), np.full(d, -1)
    assert many == 4
    for t, (numbers, clients, named, key) in enumerate(seen):
        grown = np.abs(rate * (t - last))
        assert np.array_equal(named, np.sort(np.argsort(-grown, kind="stable")[:many])), t
        others = np.setdiff1d(np.arange(d), named)
        drawn = others[np.asarray(distinct(jax.random.wrap_key_data(key), len(numbers) - many, d - many))]
        sent = np.concatenate([named, drawn])[numbers != 0]
        rate[sent] = (numbers[numbers != 0] * uplink.step / clients) / (t - last[sent])
        last[sent] = t
    names = [tuple(named) for _, _, named, _ in seen]
    assert len(seen) == ROUNDS
    assert len(set(names)) > 2, "they are others from round to round"


def test_named_entries_are_those_of_the_simulated_run(tmp_path):
    links = {"uplink": NAMED, "downlink": fs.Identity()}
    algorithm = dataclasses.replace(ALGORITHM, rule=fs.Hard(), participants=4, query="all", **links)
    drawn = dataclasses.replace(algorithm, uplink=dataclasses.replace(NAMED, history=0))
    simulated, others = (
        fs.simulate(each, PROBLEM, CLIENTS, PARAMS, rounds=ROUNDS, progress=False) for each in (algorithm, drawn)
    )
    plain, sums = (run(tmp_path / str(secure), secure=secure, algorithm=algorithm) for secure in (False, True))
    assert_same_iterates(plain, sums)
    for mine, theirs in zip(*(jax.tree.leaves(each.last) for each in (plain, simulated)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)
    for way in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(plain.history[way], simulated.history[way])
    np.testing.assert_array_equal(simulated.history["bytes_up"], others.history["bytes_up"])
    told = simulated.history["bytes_down"] - others.history["bytes_down"]
    assert (told == 4 * 4 * 4).all(), "four bytes for each of four entries, to each of four participants"


def slope(params, example):
    return params @ example["c"]


def test_no_update_is_lost_where_messages_are_of_named_entries(tmp_path, monkeypatch):
    """With linear losses every update is -c: what was used and what is in the memory add up to as many as there were.

    One client loses a reply, which goes back into its memory, is away, and comes back in another process.
    """
    rng = np.random.default_rng(0)
    clients = [{"c": rng.normal(size=(1, 20)).astype(np.float32)} for _ in range(5)]
    start, used, real = np.zeros(20, np.float32), np.zeros((5, 20)), Run._update

    def update(self, who, direction):
        updates, reasons = real(self, who, direction)
        for client, each in updates.items():
            used[client] += self.program.dense(each.message, self.program.algorithm.uplink)
        return updates, reasons

    monkeypatch.setattr(Run, "_update", update)
    problem = fs.Problem(slope, [fs.Mean(lambda params, _: params @ params, name="size") <= 1e6])
    algorithm = fs.FedSGM(0.1, rule=fs.Hard(), uplink=fs.SharedK(0.4, history=0.5))
    plan = {(5, "client-2"): Fault.LOSE_REPLY, (6, "client-2"): Fault.LOSE_REQUEST}
    plan |= {(8, "client-2"): Fault.LOSE_REQUEST, (10, "client-2"): Fault.KILL_BEFORE_WRITE}
    transport = InProcess.of(
        Program.of(algorithm, problem, start), clients, tmp_path, lambda *where: plan.get(where), secure=False
    )
    result = federate(algorithm, problem, transport, start, rounds=9, progress=False, evaluate_every=0)
    assert result.history["answered"].tolist() == [[5, 5, 4, 4, 4, 4, 5, 5, 5]]
    for number, name in enumerate(transport.clients()):
        made = 9 if number != 2 else 6  # that of the reply that was lost among them
        memory = transport.processes[name].store.read().memory.error
        np.testing.assert_allclose(used[number] + memory, made * clients[number]["c"][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("named", [None, [1, 2, 3], [1, 2, 2, 5], [3, 2, 1, 0], [-1, 2, 3, 4], [1, 2, 3, 31]])
def test_named_entries_that_cannot_be_are_refused(named):
    """Where there must be four of 31, in ascending order; and any where all are drawn."""
    for uplink, right in ((NAMED, [0, 4, 29, 30]), (dataclasses.replace(NAMED, history=0), None)):
        program = Program.of(dataclasses.replace(ALGORITHM, uplink=uplink), PROBLEM, PARAMS)
        one, entries = np.float32(1), [None if each is None else np.int32(each) for each in (right, named)]
        found = program.direction(pack_direction(fs.Direction(one, one, None, entries[0])))
        assert (found.named is None) if right is None else (found.named.tolist() == right)
        if named is None and right is None:
            continue
        with pytest.raises(FrameError, match="not those of the uplink"):
            program.direction(pack_direction(fs.Direction(one, one, None, entries[1])))


# A secure run exchanges keys, meet, and in each round values, tell, update, tell; a plain one values and update.
LOST = {
    "keys": (0, {0}),
    "meet": (1, {0}),
    "values": (2, {0}),
    "told of values": (3, {1}),  # it is in that sum, and has no keys for the next
    "update": (4, {1}),
    "told of update": (5, set()),  # it is in both sums
}


@pytest.mark.parametrize("step", LOST)
@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.KILL_BEFORE_WRITE])
def test_a_client_that_drops_out_at_any_step(tmp_path, step, fault):
    """The run is the plain one in which the same client is lost at the exchange that this comes to."""
    at, then = LOST[step]
    found = run(
        tmp_path / "secure", plan=lambda exchange, name: fault if (exchange, name) == (at, "client-2") else None
    )
    plainly = {(exchange, "client-2") for exchange in then}
    made = step == "update" and fault is Fault.LOSE_REPLY  # the update, which goes back into the memory
    lost = Fault.LOSE_REPLY if made else Fault.LOSE_REQUEST
    expected = run(tmp_path / "plain", secure=False, plan=lambda *where: lost if where in plainly else None)
    np.testing.assert_array_equal(found.history["answered"], expected.history["answered"])
    for mine, theirs in zip(*(jax.tree.leaves(each.last) for each in (found, expected)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
    left_out = [client["left_out"] for client in found.settings["federation"]["clients"]]
    assert [bool(each) for each in left_out] == [False, False, bool(then), False, False]


def test_below_the_threshold_the_run_stops(tmp_path):
    def two_are_gone(_exchange, name):
        return Fault.LOSE_REQUEST if name in ("client-1", "client-3") else None

    with pytest.raises(fs.FederationError, match="fewer than 4 of 5 clients answered"):
        run(tmp_path, plan=two_are_gone)


def test_an_update_that_fails_is_repeated_without_another_sum_of_statistics(tmp_path):
    """Two are lost in the first update; in the second try all are there, and the values are those of the first."""
    asked = []

    class Watching(InProcess):
        def exchange(self, requests, seconds):
            asked.append({Request.decode(data).kind for data in requests.values()})
            return super().exchange(requests, seconds)

    def plan(exchange, name):
        return Fault.LOSE_REQUEST if exchange in (4, 5) and name in ("client-1", "client-3") else None

    found = run(tmp_path / "secure", plan=plan, kind=Watching, rounds=2)
    first = asked[: asked.index({Kind.MEASURE | Kind.EVALUATE})]
    assert first.count({Kind.MEASURE}) == 1
    assert first.count({Kind.UPDATE}) == 3
    assert_same_iterates(found, run(tmp_path / "plain", secure=False, rounds=2))


def started(folder, **more):
    transport = InProcess.of(PROGRAM, CLIENTS, folder, secure=True)
    return transport, SecureRun(PROGRAM, transport, seed=0, rounds=ROUNDS, evaluate_every=0, **more)


def test_one_list_of_survivors_for_a_round(tmp_path):
    """A server that says a sum has failed and asks again without one client: two sums that differ by it. Also anew."""
    transport, server = started(tmp_path)
    everybody = list(range(5))
    first, _ = server.sums.ask(server.model, Kind.MEASURE, everybody, b"", masking.WIDE)
    assert first.survivors == everybody
    again, _ = server.sums.ask(server.model, Kind.MEASURE, everybody, b"", masking.WIDE)
    np.testing.assert_array_equal(first.numbers, again.numbers)
    for restart in (False, True):
        if restart:
            for name in transport.clients():
                transport.restart(name)
            server.sums.ask(server.model, Kind.MEASURE, everybody, b"", masking.WIDE)  # they have no keys: all are lost
        other, why = server.sums.ask(server.model, Kind.MEASURE, everybody[:-1], b"", masking.WIDE)
        assert other is None
        assert "two sums would show a client" in why[0]


def test_a_server_that_puts_a_key_in_a_client_s_place_is_caught(tmp_path):
    """Its own key with the client's name, with its own certificate, and with a client's card of another place."""

    class Between(InProcess):
        forge = None

        def exchange(self, requests, seconds):
            changed = {}
            for name, data in requests.items():
                asked = Request.decode(data)
                if asked.kind == Kind.MEET:
                    told = json.loads(asked.payload)
                    told["cards"][2][1] = self.forge(told["cards"][2][1])
                    asked = dataclasses.replace(asked, payload=json.dumps(told).encode())
                changed[name] = asked.encode()
            found = super().exchange(changed, seconds)
            return self._as_if_asked(requests, changed, found)

        def _as_if_asked(self, requests, changed, replies):
            """The panel looks for the request that it made."""
            from fedsgm.federation.protocol import Failure, Reply, checksum_of

            return {
                name: reply
                if isinstance(reply, Failure) or changed[name] == requests[name]
                else dataclasses.replace(Reply.decode(reply), request=checksum_of(requests[name])).encode()
                for name, reply in replies.items()
            }

    mine = secure.Member(b"server", 2).public.hex()
    transport = Between.of(PROGRAM, CLIENTS, tmp_path, secure=True)

    def endorsed(card):
        plain = {"run": card["run"], "number": card["number"], "public": mine}
        return json.loads(masking.endorsed(transport.identity, json.dumps(plain).encode()))

    forgeries = {
        lambda card: card | {"public": mine}: "not that of client-2: the signature",
        lambda card: endorsed(card) | {"name": card["name"]}: "not that of client-2: the certificate",
        endorsed: "the server among them",
        lambda card: card | {"number": 3}: "another run or place",
    }
    for forge, why in forgeries.items():
        transport.forge = forge
        with pytest.raises(fs.FederationError, match=why):
            federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=1, secure=True, progress=False)


@pytest.mark.parametrize("public", ["", "00" * 32, "01" * 31])
def test_a_key_that_none_can_agree_with_leaves_out_whose_it_is(tmp_path, public):
    """Passed on to the others, it would have none of them make an offer."""
    transport = InProcess.of(PROGRAM, CLIENTS, tmp_path / "one", secure=True)
    dishonest = transport.processes["client-2"]._secure
    real = dishonest._card

    def card(state):
        told = json.loads(real(state)) | {"public": public}
        return masking.endorsed(dishonest._identity, json.dumps(told).encode())

    dishonest._card = card
    found = federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=2, secure=True, progress=False)
    assert (found.history["answered"] == 4).all()
    left_out = [client["left_out"] for client in found.settings["federation"]["clients"]]
    assert left_out == [{}, {}, {"a public key is none that keys can be agreed on with": 2}, {}, {}]
    expected = run(
        tmp_path / "plain", secure=False, rounds=2, plan=lambda _, n: Fault.LOSE_REQUEST if n == "client-2" else None
    )
    assert_same_iterates(found, expected)


def lying(folder, **more):
    """A federation whose ``client-1`` tells no share that it was dealt."""
    transport = InProcess.of(PROGRAM, CLIENTS, folder, secure=True, **more)
    secured = transport.processes["client-1"]._secure
    real = secured._card

    def card(state):
        found = real(state)
        tell = secured._member.tell
        secured._member.tell = lambda who: dict.fromkeys(tell(who), bytes(secure.SEED))
        return found

    secured._card = card
    return transport


def test_false_shares_harm_no_sum_and_leave_out_whose_they_are(tmp_path):
    """The run is the plain one in which that client is lost after the first sum, which it is in."""
    transport = lying(tmp_path / "secure")
    found = federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=ROUNDS, secure=True, progress=False)
    left_out = [client["left_out"] for client in found.settings["federation"]["clients"]]
    assert left_out == [{}, {masking.FALSE: ROUNDS}, {}, {}, {}]
    assert (found.history["answered"] == 4).all()
    expected = run(
        tmp_path / "plain",
        secure=False,
        plan=lambda exchange, name: Fault.LOSE_REQUEST if exchange and name == "client-1" else None,
    )
    for mine, theirs in zip(*(jax.tree.leaves(each.last) for each in (found, expected)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def test_who_deals_false_shares_is_named(tmp_path, monkeypatch):
    """One that drops out, whose key the shares do not give, costs a try; one in the sum ends the run, by its name."""
    made, real = secure.Member.offer, secure.Shamir.split

    def offer(self):
        if self.number == 2:
            monkeypatch.setattr(secure.Shamir, "split", lambda most, n, _, ssss: real(most, n, bytes(16), ssss=ssss))
        found = made(self)
        monkeypatch.setattr(secure.Shamir, "split", real)
        return found

    monkeypatch.setattr(secure.Member, "offer", offer)
    gone = run(tmp_path / "gone", plan=lambda e, name: Fault.LOSE_REQUEST if (e, name) == (2, "client-2") else None)
    left_out = [client["left_out"] for client in gone.settings["federation"]["clients"]]
    tried = {"the shares that client 2 has dealt are not of its key": 1}
    assert left_out == [tried, tried, {masking.FALSE: ROUNDS + 1}, tried, tried]
    expected = run(
        tmp_path / "plain", secure=False, plan=lambda _, name: Fault.LOSE_REQUEST if name == "client-2" else None
    )
    for mine, theirs in zip(*(jax.tree.leaves(each.last) for each in (gone, expected)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
    with pytest.raises(fs.FederationError, match=f"client-2: {masking.FALSE}"):
        run(tmp_path / "there")


def test_a_client_started_anew_and_a_server_resumed(tmp_path):
    """New keys are met by everybody, and the run goes on where it was."""
    plan = {(10, "client-1"): Fault.KILL_BEFORE_WRITE}  # it measures in the third round
    found = run(tmp_path / "secure", plan=lambda *where: plan.get(where))
    assert found.history["answered"].tolist() == [[5, 5, 4, 5, 5, 5]]

    transport = InProcess.of(PROGRAM, CLIENTS, tmp_path / "clients", secure=True)
    for rounds in (3, ROUNDS):
        kept = fs.Checkpoint(tmp_path / "server", resume=rounds == ROUNDS)
        resumed = federate(
            ALGORITHM, PROBLEM, transport, PARAMS, rounds=rounds, secure=True, progress=False, checkpoint=kept
        )
    assert_same_iterates(resumed, run(tmp_path / "whole"))


def nibbles(words, width):
    """How likely halves of bytes as unequal as these are, were they uniform (chi-square)."""
    rows = np.stack([words >> np.uint64(4 * i) & np.uint64(15) for i in range(2 * width)])
    return stats.chisquare(np.bincount(rows.astype(int).ravel(), minlength=16)).pvalue


@pytest.mark.parametrize("left_out", [None, b"own", b"pair"])
def test_all_that_the_server_received_is_uniform_below_the_whole(tmp_path, monkeypatch, left_out):
    """From the masked vectors it takes the masks whose seeds it was told: what is left of any four clients is noise.

    Where masks are left out it is not: the same test then finds it.
    """
    seen, real, streams = [], secure.unmasked, secure.stream

    def unmasked(offers, masked, told, clients):
        seen.append((offers, masked, told))
        return real(offers, masked, told, clients)

    def stream(seed, purpose, like):
        return np.zeros_like(like) if left_out and purpose.startswith(left_out) else streams(seed, purpose, like)

    monkeypatch.setattr(secure, "unmasked", unmasked)
    monkeypatch.setattr(secure, "stream", stream)
    algorithm = dataclasses.replace(ALGORITHM, uplink=fs.SharedK(1.0))
    run(tmp_path, algorithm=algorithm, rounds=12)
    raw: dict[tuple, list] = {}
    bare: dict[tuple, list] = {}
    for _, masked, told in seen:
        width = 3 if len(masked[0]) == 31 else 8
        own = {j: streams(secure.combined({k: told[k][j] for k in told}, 5), b"own", masked[j]) for j in masked}
        own = own if left_out != b"own" else {j: np.zeros_like(masked[j]) for j in masked}
        for size in range(1, 5):
            for some in itertools.combinations(masked, size):
                raw.setdefault((width, *some), []).append(sum_of(masked, some))
                bare.setdefault((width, *some), []).append(sum_of({j: masked[j] - own[j] for j in masked}, some))
    found = {where: nibbles(np.concatenate(words), where[0]) for where, words in raw.items()}
    taken = {where: nibbles(np.concatenate(words), where[0]) for where, words in bare.items()}
    assert len(found) == len(taken) == 2 * 30
    assert min(found.values()) > 1e-6, "one kind of masks is enough until shares are told"
    assert (min(taken.values()) > 1e-6) == (left_out != b"pair")
    whole = [sum_of(masked, masked) for _, masked, _ in seen if len(masked[0]) == 31]
    assert (nibbles(np.concatenate(whole), 3) > 1e-6) == (left_out != b"own"), "before shares are told, noise as well"


def sum_of(vectors, some):
    return np.sum([vectors[j] for j in some], axis=0, dtype=vectors[0].dtype).astype(np.uint64)


EACH = fs.Problem(PROBLEM.objective, [fs.each_client(PROBLEM.constraints[0].quantity) <= 0.1])


@pytest.mark.parametrize(
    ("changes", "problem", "more", "why"),
    [
        ({"query": "memory"}, PROBLEM, {}, "query='memory' keeps each client's answer"),
        ({"uplink": fs.TopK(0.1)}, PROBLEM, {}, "only messages of SharedK"),
        ({"rule": fs.Hard(margin=fs.StandardErrors(1.0))}, PROBLEM, {}, "margin in standard errors"),
        ({"participants": 3, "query": "all"}, PROBLEM, {}, "participants=3, but a sum must be of at least 4 of 5"),
        ({"participants": 4}, PROBLEM, {}, "take query='all'"),
        ({"robust": fs.Median()}, PROBLEM, {}, "robust aggregation looks at each client's message"),
        ({}, EACH, {}, "'minority' bounds each client's own value"),
        ({}, PROBLEM, {"test": "clients"}, "hold examples out on the server"),
    ],
)
def test_what_needs_to_see_a_client_is_refused(tmp_path, changes, problem, more, why):
    with pytest.raises(fs.SettingError, match=why):
        run(tmp_path, algorithm=dataclasses.replace(ALGORITHM, **changes), problem=problem, **more)


def test_two_clients_and_no_certificates_are_refused(tmp_path):
    two = InProcess.of(PROGRAM, [CLIENTS[0], CLIENTS[1]], tmp_path, secure=True)
    with pytest.raises(fs.SettingError, match="2 clients, but a sum hides nobody among fewer than 3"):
        federate(ALGORITHM, PROBLEM, two, PARAMS, rounds=1, secure=True, progress=False)
    plain = InProcess.of(PROGRAM, CLIENTS, tmp_path / "plain")
    with pytest.raises(fs.SettingError, match="certificates are needed, which a federation over FLARE has"):
        federate(ALGORITHM, PROBLEM, plain, PARAMS, rounds=1, secure=True, progress=False)


def test_a_secure_client_answers_no_server_in_the_clear(tmp_path):
    transport = InProcess.of(PROGRAM, CLIENTS, tmp_path, secure=True)
    with pytest.raises(fs.FederationError, match="has no keys for this run yet"):
        federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=1, progress=False)
    plain = InProcess.of(PROGRAM, CLIENTS, tmp_path / "plain")
    plain.identity = transport.identity
    with pytest.raises(fs.FederationError, match="runs without secure aggregation"):
        federate(ALGORITHM, PROBLEM, plain, PARAMS, rounds=1, secure=True, progress=False)


def test_no_way_back_to_an_earlier_model(tmp_path):
    """A sum at a model is told when it was masked there, wherever the server has led the client since."""
    _, server = started(tmp_path)
    everybody = list(range(5))
    before = server.model
    assert server.sums.ask(before, Kind.MEASURE, everybody, b"", masking.WIDE)[0] is not None
    for _ in range(2):
        server.step()
    server.panel.attempt += 1
    for account in server.accounts:
        account.held = -1  # the whole of the earlier model is sent
    for who in (everybody, everybody[:-1]):
        again, why = server.sums.ask(before, Kind.MEASURE, who, b"", masking.WIDE)
        assert again is None
        assert "two sums would show a client" in why[0]


def survivors_by_model(monkeypatch):
    """Of every model, whose statistics there are in each sum."""
    sums, real = {}, masking.Sums.ask

    def ask(self, model, kind, who, payload, size):
        found, why = real(self, model, kind, who, payload, size)
        if found is not None and kind != Kind.UPDATE:
            beside = np.frombuffer(payload, np.float32).reshape(-1, PROGRAM.size)
            for w in (model.replica, *beside):
                sums.setdefault(w.tobytes(), []).append(found.survivors)
        return found, why

    monkeypatch.setattr(masking.Sums, "ask", ask)
    return sums


def test_no_model_is_summed_twice_with_a_client_missing_the_second_time(tmp_path, monkeypatch):
    """The best iterate was in a sum already: another at the end would show who has left since."""
    sums = survivors_by_model(monkeypatch)
    wide = fs.Problem(PROBLEM.objective, [PROBLEM.constraints[0].quantity <= 0.6])
    rounds_end = 2 + 4 * ROUNDS  # exchanges: keys, meet, and in each round values, tell, update, tell

    def plan(exchange, name):
        return Fault.LOSE_REQUEST if exchange >= rounds_end and name == "client-3" else None

    gone = run(tmp_path / "gone", problem=wide, plan=plan)
    assert all(len(survivors) == 1 for survivors in sums.values())
    assert sorted(len(survivors) for (survivors,) in sums.values()) == [4, 4, *[5] * ROUNDS], "the last and the average"
    expected = run(tmp_path / "plain", problem=wide, secure=False)
    at = int(gone.answer_round[0]) - 1
    assert 0 <= at < ROUNDS - 1
    for kind in ("best_feasible", "answer"):
        for name in ("objective", "minority"):
            value = gone.value("train", name, kind)
            np.testing.assert_allclose(value, expected.history[name][:, at], rtol=1e-4, atol=1e-6)


def test_an_average_that_is_the_start_alone_is_not_summed_again(tmp_path, monkeypatch):
    """The bound holds at the start, and no more after a step on the objective."""
    sums = survivors_by_model(monkeypatch)
    hard = dataclasses.replace(ALGORITHM, rule=fs.Hard())
    size = fs.Mean(lambda params, _: jax.numpy.sum(params["w"] ** 2), name="size")
    result = run(tmp_path, algorithm=hard, problem=fs.Problem(PROBLEM.objective, [size <= 1e-9]), rounds=2)
    assert result.history["weight"].tolist() == [[0, 1]]
    for mine, theirs in zip(*map(jax.tree.leaves, (result.average, PARAMS)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [len(survivors) for survivors in sums.values()] == [1, 1, 1]
    assert np.isnan(result.value("train", "objective", "average")).all()


RANGES = {"objective": (0.0, 3.0), "minority": (0.0, 3.0)}
PRIVATE = fs.Privacy(epsilon=8.0, delta=1e-3, rounds=ROUNDS, clip=1.0, ranges=RANGES, secret=7)


def test_examples_are_hidden_in_sums_as_they_are_without(tmp_path):
    """The noise of single examples is each client's own: the run is the plain private one."""
    algorithm = dataclasses.replace(ALGORITHM, rule=fs.Adaptive(0.5), privacy=PRIVATE)
    found, expected = (run(tmp_path / str(s), secure=s, algorithm=algorithm) for s in (True, False))
    for column in ("violation", "radius", "epsilon", "minority_radius"):
        np.testing.assert_allclose(found.history[column], expected.history[column], rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(*(jax.tree.leaves(each.last) for each in (found, expected)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


BY_CLIENT = dataclasses.replace(
    ALGORITHM,
    rule=fs.Unconstrained(),
    uplink=fs.SharedK(1.0, reach=64.0),
    privacy=dataclasses.replace(PRIVATE, unit="client"),
)


def sums_of(monkeypatch, folder, rounds=3, **more):
    """What the server sees of a run: numbers of each sum, and how many clients are in it."""
    seen, real = [], masking.Sums.ask

    def ask(self, model, kind, *given):
        found, why = real(self, model, kind, *given)
        seen.append((kind, found.survivors, found.numbers))
        return found, why

    monkeypatch.setattr(masking.Sums, "ask", ask)
    result = run(folder, algorithm=BY_CLIENT, rounds=rounds, **more)
    monkeypatch.setattr(masking.Sums, "ask", real)
    return seen, result


@pytest.mark.parametrize("lost", [None, "client-2"])
def test_clients_share_the_noise_of_a_sum(tmp_path, monkeypatch, lost):
    """The sums are those without noise and noise of what four of five add, or five: never less than is needed."""

    def plan(_, name):
        return Fault.LOSE_REQUEST if name == lost else None

    seen, result = sums_of(monkeypatch, tmp_path / "noisy", plan=plan)
    monkeypatch.setattr("fedsgm.privacy.shares.discrete", lambda _, size: np.zeros(size, np.int64))
    quiet, _ = sums_of(monkeypatch, tmp_path / "quiet", plan=plan)
    task, clients = guarded(BY_CLIENT, PROBLEM), 5 if lost is None else 4
    assert {len(survivors) for _, survivors, _ in seen} == {clients}
    wider = np.sqrt(clients / 4)
    assert quiet[0][0] == Kind.MEASURE
    statistic = float(task.deviations(task.multipliers[0], ("minority",))[0]) * wider
    assert abs(seen[0][2] - quiet[0][2])[0] * masking.UNIT < 5 * statistic
    first = next(numbers for kind, _, numbers in seen if kind == Kind.UPDATE)
    silent = next(numbers for kind, _, numbers in quiet if kind == Kind.UPDATE)
    noise = (first - silent) * BY_CLIENT.uplink.step  # of the first round: the later ones are at other models
    deviation = float(task.of_update) * wider
    assert stats.kstest(noise / deviation, "norm").pvalue > 1e-4
    assert stats.chi2.cdf(np.sum((noise / deviation) ** 2), len(noise)) > 1e-5, "no less than is needed"
    np.testing.assert_allclose(result.history["radius"][0, 0], 1.645 * statistic / clients, rtol=1e-3)
    assert result.history["epsilon"][0, -1] <= 8


def test_what_is_on_a_client_s_disk_has_no_noise(tmp_path, monkeypatch):
    """Neither its memory nor the message that it takes back where the server did not use it."""
    program, kept = Program.of(BY_CLIENT, PROBLEM, PARAMS), []
    for name in ("noisy", "quiet"):
        transport = InProcess.of(program, CLIENTS, tmp_path / name, secure=True)
        federate(BY_CLIENT, PROBLEM, transport, PARAMS, rounds=1, secure=True, progress=False)
        kept.append([process.store.read() for process in transport.processes.values()])
        monkeypatch.setattr("fedsgm.privacy.shares.discrete", lambda _, size: np.zeros(size, np.int64))
    for noisy, quiet in zip(*kept, strict=True):
        assert noisy.sent.message == quiet.sent.message
        np.testing.assert_array_equal(noisy.memory.error, quiet.memory.error)


def test_noise_that_has_no_room_is_refused(tmp_path):
    for link in (fs.SharedK(1.0, reach=4.0), fs.SharedK(1.0, reach=1024.0, bits=8)):
        with pytest.raises(fs.SettingError, match=r"does not fit into .*; take SharedK\(..., reach="):
            run(tmp_path, algorithm=dataclasses.replace(BY_CLIENT, uplink=link))
