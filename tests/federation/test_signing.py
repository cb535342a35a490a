"""A client answers its server alone: what others sign, replay, alter or leave unsigned is refused and written down."""

import json
import re
import stat
import time
import tomllib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nvflare.fuel.f3.comm_config import VarName
from nvflare.fuel.f3.streaming.byte_receiver import required_out_seq_chunks
from nvflare.fuel.sec.authz import AuthzContext, Person, parse_policy_config

import fedsgm as fs
from fedsgm.base.errors import ClientError
from fedsgm.core.compression import Dense
from fedsgm.federation import Client, door, resident, signing
from fedsgm.federation.client import WELCOME
from fedsgm.federation.door import REFUSALS, REQUESTS, Audit, Door
from fedsgm.federation.flare import kits
from fedsgm.federation.limits import SPENT, Limits
from fedsgm.federation.protocol import Failure, Kind, Reply, Request, checksum
from fedsgm.federation.resident import Setup
from fedsgm.federation.sessions import REFUSED, STRANGER, Listener, Signed, refusal
from fedsgm.federation.signing import Identity, Unsigned, make_identities
from support.federated import CLIENTS, PROGRAM

SERVER, NAMES = "fl.example.org", ["site-1", "site-2"]
UPDATE = Request(Kind.UPDATE, 17, 0, 3, 0, payload=b"direction").encode()


class Echo:
    """A client that repeats what it is asked, and counts."""

    def __init__(self):
        self.asked = []

    def ask(self, request, _seconds):
        self.asked.append(request)
        if request == b"fail":
            raise ClientError("it was overtaken")
        return b"answer to " + request


class Wire:
    """Carries what is given to the doors, and keeps it; ``alter`` is what happens on the way."""

    def __init__(self, folder, identities, run="first", limits=None):
        self.limits = limits or Limits()
        self.identities, self.run, self.folder = identities, run, folder
        self.echoes = {name: Echo() for name in NAMES}
        self.down, self.up = [], []
        self.alter_down = self.alter_up = lambda _, data: data
        self.doors = {}
        for name in NAMES:
            self.restart(name)

    def restart(self, name):
        listener = Listener(self.identities[name], SERVER, self.run)
        site = self.folder / name
        self.doors[name] = Door(listener, self.echoes[name], Audit(site), self.limits, site)

    def clients(self):
        return NAMES

    def exchange(self, requests, _seconds):
        replies = {}
        for name, request in requests.items():
            data = self.alter_down(name, request)
            self.down.append((name, data))
            replies[name] = self.alter_up(name, self.doors[name].answer(data, "server.job"))
            self.up.append((name, replies[name]))
        return replies

    def log(self, name, file):
        path = self.folder / name / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def wire(tmp_path):
    return Wire(tmp_path, make_identities([SERVER, *NAMES]))


def server(wire, by=SERVER, run="first"):
    return Signed(wire, wire.identities[by], run)


def test_a_signed_request_is_answered_and_written_down(wire):
    signed = server(wire)
    assert signed.exchange({"site-1": UPDATE, "site-2": b"fail"}, 5.0) == {
        "site-1": b"answer to " + UPDATE,
        "site-2": Failure("it was overtaken"),
    }
    signed.exchange({"site-1": UPDATE}, 5.0)
    assert wire.echoes["site-1"].asked == [UPDATE, UPDATE], "the same may be asked again: as another request"
    hello, first, second = wire.log("site-1", REQUESTS)
    assert (hello["asked"], hello["clients"]) == ("hello", 2)
    assert (first["asked"], first["run"], first["round"], first["number"]) == ("update", 17, 3, 1)
    assert second["number"] == 2
    mode = (wire.folder / "site-1" / REQUESTS).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE((wire.folder / "site-1").stat().st_mode) == 0o700
    assert wire.log("site-1", REFUSALS) == []


def refused(wire, name, data):
    """What a door says to bytes, which must be one refusal, with no work done and a line in the log."""
    before, lines = len(wire.echoes[name].asked), len(wire.log(name, REFUSALS))
    assert wire.doors[name].answer(data, "site-2.job") == refusal(REFUSED)
    assert len(wire.echoes[name].asked) == before
    *_, last = wire.log(name, REFUSALS)
    assert len(wire.log(name, REFUSALS)) == lines + 1
    assert last["origin"] == "site-2.job"
    return last["refused"]


def test_whatever_its_server_has_not_signed_for_it_is_refused_and_named(wire, tmp_path):
    signed = server(wire)
    signed.exchange(dict.fromkeys(NAMES, UPDATE), 5.0)
    hello, request = (data for name, data in wire.down if name == "site-1")
    to_other = next(data for name, data in reversed(wire.down) if name == "site-2")

    assert refused(wire, "site-1", UPDATE) == "this is no signed request of this version"
    assert refused(wire, "site-1", b"") == "this is no signed request of this version"
    assert "number 1, but 1 was here" in refused(wire, "site-1", request), "a replay"
    assert wire.doors["site-1"].answer(to_other, "site-2.job") == refusal(STRANGER), "another client's"
    assert wire.log("site-1", REFUSALS)[-1]["refused"] == "it belongs to no conversation that was begun here"
    for at in range(len(request)):  # any byte altered
        damaged = bytearray(request)
        damaged[at] ^= 1
        answer = wire.doors["site-1"].answer(bytes(damaged), "site-2.job")
        assert answer == refusal(STRANGER if 3 <= at < 19 else REFUSED)
    another = next(data for name, data in wire.down if name == "site-2")
    assert refused(wire, "site-1", another) == f"the signature is not that of {SERVER}", "another client's hello"

    for by, run, why in (
        ("site-2", "first", f"the certificate is not that of {SERVER}"),  # a client as server
        (SERVER, "second", f"the signature is not that of {SERVER}"),  # for another run
    ):
        strange = Wire(tmp_path / "strange", wire.identities | {SERVER: wire.identities[by]}, run)
        strange.doors = wire.doors
        reply = Signed(strange, strange.identities[SERVER], run).exchange({"site-1": UPDATE}, 5.0)["site-1"]
        assert reply == Failure("it is not known to be site-1: it refuses the greeting; its audit log says why")
        assert wire.log("site-1", REFUSALS)[-1]["refused"] == why
    others = make_identities([SERVER, *NAMES])
    reply = Signed(wire, others[SERVER], "first").exchange({"site-1": UPDATE}, 5.0)["site-1"]
    assert isinstance(reply, Failure)
    assert "does not chain to this federation's root" in wire.log("site-1", REFUSALS)[-1]["refused"]

    wire.doors["site-1"].answer(
        hello, "site-2.job"
    )  # what the server once said begins nothing that others can go on with
    assert signed.exchange({"site-1": b"more"}, 5.0) == {"site-1": b"answer to more"}
    assert wire.echoes["site-1"].asked == [UPDATE, b"more"]


def test_a_flood_of_greetings_does_not_end_a_conversation(wire):
    signed = server(wire)
    signed.exchange({"site-1": UPDATE}, 5.0)
    hello = wire.down[0][1]
    for _ in range(20):
        assert wire.doors["site-1"].answer(hello, "site-2.job") != refusal(REFUSED)
    assert len(wire.doors["site-1"]._listener._pending) <= 4
    before = len(wire.down)
    assert signed.exchange({"site-1": b"more"}, 5.0) == {"site-1": b"answer to more"}
    assert len(wire.down) == before + 1, "no new greeting was needed"


def test_answers_are_the_client_s_own_and_to_this_request(wire):
    signed = server(wire)
    signed.exchange(dict.fromkeys(NAMES, b"one"), 5.0)
    earlier = dict(wire.up)
    unsigned = Failure("an answer that it has not signed, or to another request")
    for alter in (
        lambda name, _: earlier[name],  # replayed
        lambda *_: earlier["site-2"],  # another's
        lambda _, data: data[:-1],
        lambda _, data: data[:10] + bytes([data[10] ^ 1]) + data[11:],
        lambda _, data: data[:3] + b"\1" + data[4:],  # an answer as an error
        lambda *_: b"",
        lambda *_: b"fA\x01\x00" + b"x" * 70,
    ):
        wire.alter_up = alter
        assert signed.exchange({"site-1": b"two"}, 5.0) == {"site-1": unsigned}
    wire.alter_up = lambda _, data: data
    assert signed.exchange({"site-1": b"three"}, 5.0) == {"site-1": b"answer to three"}


def test_a_client_that_pretends_to_be_another_is_not_greeted(wire):
    wire.identities["site-1"] = Identity("site-1", *[getattr(wire.identities["site-2"], f) for f in FIELDS])
    wire.restart("site-1")
    reply = server(wire).exchange({"site-1": UPDATE}, 5.0)["site-1"]
    assert reply == Failure("it is not known to be site-1: the certificate is not that of site-1")
    assert wire.echoes["site-1"].asked == []


FIELDS = ("certificate", "key", "root")


def test_a_process_that_was_started_again_is_greeted_again(wire):
    signed = server(wire)
    signed.exchange({"site-1": b"one"}, 5.0)
    wire.restart("site-1")
    assert signed.exchange({"site-1": b"two"}, 5.0) == {"site-1": b"answer to two"}
    old = wire.down[1][1]
    assert wire.doors["site-1"].answer(old, "server.job") == refusal(STRANGER), "of before the restart"
    wire.alter_up = lambda *_: refusal(STRANGER)
    assert isinstance(signed.exchange({"site-1": b"three"}, 5.0)["site-1"], Failure)


def test_greetings_of_any_bytes_are_refused(wire):
    rng = np.random.default_rng(0)
    signed = server(wire)
    signed.exchange({"site-1": b"one"}, 5.0)
    hello = json.loads(wire.down[0][1][3:])
    for change in (
        {"key": "00"},
        {"key": 5},
        {"clients": "all"},
        {"clients": [1]},
        {"clients": ["site-1"]},
        {"certificate": hello["certificate"] * 40},
        {"certificate": b"-----BEGIN CERTIFICATE-----".hex()},
        {"signature": ""},
    ):
        refused(wire, "site-1", b"fH\x01" + json.dumps(hello | change).encode())
    for data in (b"[]", b"[" * 100_000, b"\xff", b"{}", b"0" * 200_000):
        refused(wire, "site-1", b"fH\x01" + data)
    for _ in range(200):
        damaged = bytearray(wire.down[0][1])
        damaged[int(rng.integers(3, len(damaged)))] = int(rng.integers(256))
        if bytes(damaged) != wire.down[0][1]:
            answer = wire.doors["site-1"].answer(bytes(damaged), "x")
            same = json.loads(bytes(damaged[3:])) if _is_json(damaged[3:]) else None
            assert answer == refusal(REFUSED) or _folded(same) == _folded(hello)


def _is_json(data):
    try:
        json.loads(bytes(data))
    except ValueError:
        return False
    return True


def _folded(words):
    """A letter of a hexadecimal number may be a capital; the text of a certificate may have other spaces."""
    return None if words is None else {k: v.lower() for k, v in words.items() if k in ("key", "signature")}


def test_logs_are_bounded_and_no_flood_of_refusals_pushes_requests_out(wire, monkeypatch):
    monkeypatch.setattr(door, "_FULL", 2000)
    server(wire).exchange({"site-1": UPDATE}, 5.0)
    for _ in range(200):
        wire.doors["site-1"].answer(b"junk", "evil\x1b[2J")
    files = sorted(path.name for path in (wire.folder / "site-1").iterdir())
    assert files == [REFUSALS, *(f"{REFUSALS}.{i}" for i in range(1, 5)), REQUESTS]
    assert all(path.stat().st_size < 2300 for path in (wire.folder / "site-1").iterdir())
    assert len(wire.log("site-1", REQUESTS)) == 2
    assert wire.log("site-1", REFUSALS)[0]["origin"] == r"evil\x1b[2J"


@pytest.mark.parametrize(
    "make", [lambda: rsa.generate_private_key(65537, 2048), lambda: ec.generate_private_key(ec.SECP384R1())]
)
def test_keys_of_kits_sign(make):
    authority, key = make(), make()
    root = signing._certificate("fedsgm", authority, authority, ca=True)
    own = signing._certificate("site-1", key, authority, ca=False).public_bytes(serialization.Encoding.PEM)
    identity = Identity("site-1", own, key, root)
    signature = identity.sign("purpose", b"a", b"bc")
    identity.check("site-1", own, signature, "purpose", b"a", b"bc")
    for purpose, *parts in (("other", b"a", b"bc"), ("purpose", b"ab", b"c"), ("purpose", b"a", b"bc", b"")):
        with pytest.raises(Unsigned, match="not that of site-1"):
            identity.check("site-1", own, signature, purpose, *parts)


def test_certificates_chain_by_authorities_alone_and_while_they_are_valid(monkeypatch):
    pem = serialization.Encoding.PEM
    authority, middle, key = (Ed25519PrivateKey.generate() for _ in range(3))
    root = signing._certificate("fedsgm", authority, authority, ca=True)
    for ca, passes in ((True, True), (False, False)):
        between = signing._certificate("fedsgm", middle, authority, ca=ca)
        leaf = signing._certificate("site-1", key, middle, ca=False)
        chain = leaf.public_bytes(pem) + between.public_bytes(pem)
        identity = Identity("site-1", chain, key, root)
        if passes:
            identity.check("site-1", chain, identity.sign("p"), "p")
        else:
            with pytest.raises(Unsigned, match="may make none"):
                identity.check("site-1", chain, identity.sign("p"), "p")
    as_authority = signing._certificate("site-1", key, authority, ca=True).public_bytes(pem)
    with pytest.raises(Unsigned, match="not that of site-1"):
        Identity("site-1", as_authority, key, root).check("site-1", as_authority, identity.sign("p"), "p")
    monkeypatch.setattr(signing, "_DAYS", -signing._EARLIER / 2)
    over = signing._certificate("site-1", key, authority, ca=False).public_bytes(pem)
    with pytest.raises(Unsigned, match="not valid today"):
        identity.check("site-1", over, identity.sign("p"), "p")


def test_a_kit_s_files_must_belong_together(tmp_path):
    made = kits.provision(kits.project(["site-1"]), tmp_path)
    mine, server = made["site-1"] / "startup", made["localhost"] / "startup"
    read = Identity.read(mine / "client.key", mine / "client.crt", mine / "rootCA.pem")
    assert read.name == "site-1"
    assert x509.load_pem_x509_certificate(read.certificate).issuer == read.root.subject
    with pytest.raises(fs.SettingError, match="is not usable: the signature is not that of site-1"):
        Identity.read(server / "server.key", mine / "client.crt", mine / "rootCA.pem")
    with pytest.raises(fs.SettingError, match=r"cannot be used \(FileNotFoundError\); get this site's kit anew"):
        Identity.read(mine / "server.key", mine / "client.crt", mine / "rootCA.pem")


def test_a_site_s_own_limits_hold_whatever_its_server_asks(tmp_path):
    """A run of too few clients, a kind that is not let, and a budget that no restart and no other run gives back."""
    identities = make_identities([SERVER, *NAMES])
    measure = Request(Kind.MEASURE | Kind.EVALUATE, 17, 0, 3, 0).encode()
    for limits, request, why in (
        ({"clients": 3}, UPDATE, "this site takes part with at least 3 clients, but the run has 2"),
        ({"kinds": ["measure", "update"]}, measure, "this site does not answer requests of the kind 'evaluate'"),
        ({"kinds": ["measure"]}, UPDATE, "this site does not answer requests of the kind 'update'"),
        ({"kinds": ["measure"]}, b"junk", "this site does not answer requests of the kind 'unreadable'"),
    ):
        wire = Wire(tmp_path / why[-9:], identities, limits=Limits.of(limits))
        assert server(wire).exchange({"site-1": request}, 5.0) == {"site-1": Failure(why)}
        assert wire.echoes["site-1"].asked == []
    for run in ("first", "second"):
        wire = Wire(tmp_path, identities, run, Limits(requests=3))
        signed = server(wire, run=run)
        answers = [signed.exchange({"site-1": UPDATE}, 5.0)["site-1"] for _ in range(2)]
        wire.restart("site-1")
    assert answers == [b"answer to " + UPDATE, Failure("this site's budget of 3 requests is used up; ask its owner")]
    assert stat.S_IMODE((tmp_path / "site-1" / SPENT).stat().st_mode) == 0o600
    (tmp_path / "site-1" / SPENT).write_text("many")
    assert signed.exchange({"site-1": UPDATE}, 5.0) == {
        "site-1": Failure("this site's count of requests cannot be read; ask its owner")
    }


def test_limits_are_read_from_a_file_that_says_what_is_wrong_with_it(tmp_path):
    local, states = tmp_path / "local", tmp_path / "states"
    local.mkdir()
    assert Limits.read([local, states]) == Limits()
    (local / "fedsgm.toml").write_text('clients = 5\nrequests = 100\nkinds = ["measure"]\nquantities = ["minority"]\n')
    assert Limits.read([states, local]) == Limits(5, 100, ("measure",), ("minority",))
    page = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
    shown = re.search(r"```text\n(clients = .*?)```", page, re.S)[1]
    assert Limits.of(tomllib.loads(shown)) == Limits(
        5, 20000, ("measure", "evaluate", "update"), ("objective", "minority")
    )
    for text, why in (
        ("client = 5", "'client' is no limit; there are clients, kinds, quantities, requests"),
        ("clients = true", "clients = True: give a number"),
        ("clients = -1", "clients = -1: give a number"),
        ('kinds = "measure"', "kinds = 'measure': give a list of names"),
        ('kinds = ["gradient"]', "'gradient' is no kind of request"),
        ("clients", "is not to be used as it is"),
    ):
        (local / "fedsgm.toml").write_text(text)
        with pytest.raises(fs.SettingError, match=re.escape(why)):
            Limits.read([local, states])


def test_a_client_measures_the_quantities_that_its_site_lets(tmp_path):
    for allowed in (None, ["objective", *PROGRAM.task.task.bounds]):
        Client(PROGRAM, CLIENTS[0], tmp_path, quantities=allowed)
    with pytest.raises(ClientError, match="does not measure every quantity"):
        Client(PROGRAM, CLIENTS[0], tmp_path, quantities=["objective"])


def test_a_kit_lets_nobody_send_code_by_the_engine_s_own_reading_of_it(tmp_path):
    made = kits.provision(kits.project(["site-1"]), tmp_path)

    def may(site, file, role, right):
        policy, why = parse_policy_config(json.loads((made[site] / "local" / file).read_text()), {})
        assert not why
        person = Person("somebody", "fedsgm", role)
        return policy.evaluate("fedsgm", AuthzContext(right, person, person))[0]

    assert may("site-1", "authorization.json.default", "project_admin", "byoc"), "as FLARE has it"
    for site in ("localhost", "site-1"):
        for role in ("project_admin", "org_admin", "lead", "member"):
            assert not may(site, "authorization.json", role, "byoc")
            assert not may(site, "authorization.json", role, "shell_commands")
        for right in ("submit_job", "manage_job", "download_job", "view", "operate", "app_command"):
            assert may(site, "authorization.json", "project_admin", right)
        assert json.loads((made[site] / "local" / "comm_config.json").read_text())["max_message_size"] == 2**28
        assert (
            not (made[site] / "startup" / f"{'server' if site == 'localhost' else 'client'}.key").stat().st_mode & 0o077
        )


def test_kits_and_the_root_s_key_are_their_owner_s_alone(tmp_path):
    """FLARE writes the key of all certificates, and a site's logs, with tracebacks in them, for everybody to read."""
    made = kits.provision(kits.project(["site-1"]), tmp_path)
    state = made["site-1"].parents[1] / "state"
    assert (state / "cert.json").exists()
    for folder in (state, *made.values()):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_kit_keeps_the_memory_of_its_site_s_processes_from_growing(tmp_path):
    """By names that the engine reads; a stream may have all of its window on its way, part by part."""
    made = kits.provision(kits.project(["site-1"]), tmp_path)
    for site in ("localhost", "site-1"):
        words = json.loads((made[site] / "local" / "comm_config.json").read_text())
        part, window = words[VarName.STREAMING_CHUNK_SIZE], words[VarName.STREAMING_WINDOW_SIZE]
        assert part <= 2**16
        assert required_out_seq_chunks(window, part) == window // part + 1
        script = (made[site] / "startup" / "sub_start.sh").read_text()
        assert "\nexport MALLOC_ARENA_MAX=${MALLOC_ARENA_MAX:-4}\n" in script, "as LocalFederation has it"


def test_a_budget_counts_every_model_that_a_request_has_measured(tmp_path, monkeypatch):
    """By finite differences one request with many models in it would tell what many requests do."""
    monkeypatch.setenv("FEDSGM_MODULES", "support.patient")
    limits, run = Limits(requests=10), time.time_ns()
    names = {"experiment": "support.patient.make", "data": "support.patient.load", "settings": {"rounds": 1}}
    client = resident._client(
        Setup(**names, name="site-1", state_dir=str(tmp_path / "site-1" / "first"), path=[], requests=limits.requests)
    )
    wire = Wire(tmp_path, make_identities([SERVER, *NAMES]), limits=limits)
    wire.echoes["site-1"].ask = lambda request, _: client.answer(request)
    signed, w = server(wire), client.program.start
    whole = (WELCOME.pack(client.program.fingerprint, 0, 0) + client.program.encode(Dense(w)),)

    def ask(kind, models):
        request = Request(kind, run, 0, 0, checksum(w), model=whole, whole=True, payload=w.tobytes() * models)
        answer = signed.exchange({"site-1": request.encode()}, 5.0)["site-1"]
        return answer if isinstance(answer, Failure) else Reply.decode(answer)

    spent = 0
    for kind, models, cost in ((Kind.MEASURE, 0, 1), (Kind.MEASURE | Kind.EVALUATE, 3, 4), (Kind.TEST, 2, 2)):
        assert ask(kind, models).kind == Kind.ANSWER
        spent += cost
        assert int((tmp_path / "site-1" / SPENT).read_text()) == spent
    for kind, models in ((Kind.EVALUATE, 3), (Kind.TEST, 1000)):
        reply = ask(kind, models)
        spent += 1  # for asking
        assert reply.kind == Kind.ERROR
        assert reply.content.startswith(b"this site's budget of 10 requests is used up")
    assert ask(Kind.EVALUATE, 0).kind == Kind.ANSWER
    assert ask(Kind.MEASURE, 0) == Failure("this site's budget of 10 requests is used up; ask its owner")


def test_of_a_long_error_only_its_beginning_is_read(wire):
    """One letter of four bytes makes all of the text's letters that wide."""
    signed = server(wire)
    signed.exchange({"site-1": b"one"}, 5.0)
    size = 2**22
    wire.echoes["site-1"].ask = lambda *_: (_ for _ in ()).throw(ClientError("\U0001f512" + "x" * size))
    tracemalloc.start()
    made = wire.doors["site-1"].answer
    wire.doors["site-1"].answer = lambda *given: (made(*given), tracemalloc.reset_peak())[0]
    before = tracemalloc.get_traced_memory()[0]
    reply = signed.exchange({"site-1": b"two"}, 5.0)["site-1"]
    used = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert used < 5 * size, "what came, and what is signed of it"
    assert reply.reason.startswith("\U0001f512xxx")
