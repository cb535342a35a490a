"""Flower as the engine, in this process: the same run, the same books under faults, a node's process, and apps."""

import contextlib
import importlib.metadata
import json
import logging
import multiprocessing.connection
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.config_utils import load_and_validate

import fedsgm as fs
from fedsgm.federation import Failure
from fedsgm.federation.flare import kits
from fedsgm.federation.flower import apps, client_app, transport
from fedsgm.federation.flower.transport import RECORD, FlowerTransport
from fedsgm.federation.inprocess import Fault, InProcess, seeded
from fedsgm.federation.panel import SUSPENDED
from support.commands import call
from support.federated import (
    ALGORITHM,
    CLIENTS,
    PARAMS,
    PROBLEM,
    PROGRAM,
    Server,
    Stopped,
    check_books,
    check_model,
)
from support.grid import Clock, Grid, OverFlower, error, patched, reply
from support.waiting import LONG, until

HERE = Path(__file__).parents[1] / "support"


@pytest.fixture
def fast(monkeypatch):
    """No waiting for the disk, and no lines about who is left out."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def over_flower(monkeypatch, folder, plan=None):
    return patched(monkeypatch, OverFlower.of(PROGRAM, CLIENTS, folder, plan))


# Behind a Grid in this process ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast")
def test_without_faults_it_is_the_run_of_any_transport(tmp_path, monkeypatch):
    carried = over_flower(monkeypatch, tmp_path / "flower")
    settings = {"rounds": 8, "seed": 4, "progress": False}
    found = fs.federate(ALGORITHM, PROBLEM, carried, PARAMS, **settings)
    plain = InProcess.of(PROGRAM, CLIENTS, tmp_path / "plain")
    expected = fs.federate(ALGORITHM, PROBLEM, plain, PARAMS, **settings)
    for name in expected.history.keys() - {"seconds"}:
        np.testing.assert_array_equal(found.history[name], expected.history[name], err_msg=name)
    assert all(not account["left_out"] for account in found.settings["federation"]["clients"])


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("fault", Fault)
def test_a_fault_that_strikes_again_and_again(tmp_path, monkeypatch, fault):
    """One message in five: no update is lost or counted twice, and nobody waits longer than the deadline."""
    plan = seeded(1, {fault: 0.2})
    if fault == Fault.ABSURD_NORM:  # held against the others of a round, of whom most are right

        def plan(exchange, client):
            return fault if client == f"client-{exchange % 5}" else None

    carried = over_flower(monkeypatch, tmp_path, plan)
    server = Server(carried)
    for _ in range(15):
        server.step()
        check_books(server, carried)
    left_out = sum(sum(account.left_out.values()) for account in server.accounts)
    if fault in (Fault.REQUEST_TWICE, Fault.DELETE_STATE):
        assert left_out == 0, "nobody need be left out for that"
    else:
        assert left_out > 3, "the fault must strike"
    if fault != Fault.DELETE_STATE:
        check_model(server, carried.book)
    assert carried.clock.now <= carried.exchanges * (server.panel.timeout + 0.5)


@pytest.mark.usefixtures("fast")
def test_a_third_of_all_messages_lost(tmp_path, monkeypatch):
    """30% of the requests and 30% of the replies."""
    plan = seeded(2, {Fault.LOSE_REQUEST: 0.3, Fault.LOSE_REPLY: 0.7 * 0.3})
    carried = over_flower(monkeypatch, tmp_path, plan)
    server = Server(carried)
    for _ in range(60):
        server.step()
        check_books(server, carried)
    check_model(server, carried.book)
    assert server.history.columns["answered"][:60].mean() < 2
    reasons = {reason for account in server.accounts for reason in account.left_out}
    assert reasons == {"no answer in 60 s", SUSPENDED}


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kill", ["before its checkpoint", "after its checkpoint"])
def test_a_server_that_is_killed_and_resumed(tmp_path, monkeypatch, kill):
    """With clients that die, and messages that are lost, late or come twice, as well."""
    rates = dict.fromkeys((Fault.KILL_AFTER_WRITE, Fault.LOSE_REPLY, Fault.LATE_REPLY, Fault.REQUEST_TWICE), 0.06)
    carried = over_flower(monkeypatch, tmp_path / "clients", seeded(3, rates))
    server = Server(carried, tmp_path / "server")
    for t in range(18):
        server.kill = kill if t % 3 == 2 else None
        try:
            server.step()
        except Stopped:
            server = Server(carried, tmp_path / "server")
        check_books(server, carried)
    check_model(server, carried.book)
    assert server.round == (12 if kill == "before its checkpoint" else 18)


def exchange(monkeypatch, answer, nodes, names=("site-1", "site-2"), seconds=10.0):
    """What a transport makes of what nodes answer, and how long it took."""
    clock = Clock()
    monkeypatch.setattr(transport, "time", clock)
    carried = FlowerTransport(names, Grid(nodes, answer, clock))
    return carried.exchange({name: name.encode() for name in names}, seconds), clock.now


def forged(message, content):
    """An answer to a message of another node."""
    told = reply(message, content)
    told.metadata.__dict__["_src_node_id"] = 99
    return told


def unrelated(message):
    told = reply(message, {"bytes": b"mine"})
    told.metadata.__dict__["_reply_to_message_id"] = "another"
    return told


NONE = "its answer is none of fedsgm's"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda message: Message(RecordDict(), reply_to=message), NONE),
        (lambda message: Message(RecordDict({RECORD: ConfigRecord()}), reply_to=message), NONE),
        (lambda message: reply(message, {"bytes": "text"}), NONE),
        (lambda message: reply(message, {"bytes": [b"a", b"b"]}), NONE),
        (lambda message: forged(message, {"bytes": b"mine"}), NONE),
        (lambda message: reply(message, {"bytes": b"12345"}), "its answer is too large"),
        (lambda message: reply(message, {"reason": "no\ndata " + 400 * "x"}), "no data " + 292 * "x"),
        (lambda message: reply(message, {"reason": ""}), "an error without a reason"),
        (lambda message: error(message, "Node Unavailable"), "Node Unavailable"),
        (lambda _: ValueError("objects that are none"), "its answer cannot be read (ValueError)"),
        (unrelated, "no answer in 10 s"),
    ],
)
def test_whatever_a_node_answers_the_others_are_heard(monkeypatch, answer, reason):
    monkeypatch.setattr(transport, "LARGEST", 4)
    replies, took = exchange(
        monkeypatch,
        lambda node, message: [(1.0, answer(message) if node == 7 else reply(message, {"bytes": b"good"}))],
        {7: "site-1", 8: "site-2"},
    )
    assert replies == {"site-1": Failure(reason), "site-2": b"good"}
    assert took < 10.5


def named(own):
    """Nodes that say who they are when they are asked, and then answer with the name that they are called."""

    def answer(node, message):
        record = message.content[RECORD]
        if record["kind"] == "who":
            return [(1.0, reply(message, {"name": own[node]}))]
        return [(1.0, reply(message, {"bytes": f"{node} as {record['name']}".encode()}))]

    return answer


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ({7: "site-1", 8: "site-2"}, {"site-1": b"7 as site-1", "site-2": b"8 as site-2"}),  # what they say is nothing
        ({7: "", 8: ""}, {"site-1": b"8 as site-1", "site-2": b"7 as site-2"}),
        ({7: "", 8: "", 9: ""}, {"site-1": Failure("it is not connected"), "site-2": b"7 as site-2"}),
        ({7: "site-1", 8: ""}, {"site-1": b"7 as site-1", "site-2": Failure("it is not connected")}),
        ({7: "site-1", 8: "site-1"}, dict.fromkeys(("site-1", "site-2"), Failure("it is not connected"))),
        ({7: "site-3"}, dict.fromkeys(("site-1", "site-2"), Failure("it is not connected"))),
        ({}, dict.fromkeys(("site-1", "site-2"), Failure("it is not connected"))),
    ],
)
def test_a_node_is_the_client_that_its_key_was_registered_as(monkeypatch, nodes, found):
    """Where no key has a name, nodes say it themselves; a name that two have is nobody's."""
    assert exchange(monkeypatch, named({7: "site-2", 8: "site-1", 9: "site-1"}), nodes)[0] == found


def waiting(monkeypatch, statuses, nodes):
    clock = Clock()
    monkeypatch.setattr(transport, "time", clock)

    def answer(node, message):
        assert message.content[RECORD]["kind"] == "look"
        return [(1.0, reply(message, {"status": statuses[node]}))]

    FlowerTransport(["site-1", "site-2"], Grid(nodes, answer, clock)).await_clients(30.0)
    return clock.now


def test_the_run_begins_when_the_clients_are_there(monkeypatch, caplog):
    both = {7: "site-1", 8: "site-2"}
    assert waiting(monkeypatch, {7: "ready", 8: "ready"}, both) < 2
    assert not caplog.messages
    assert waiting(monkeypatch, {7: "ready", 8: "its set-up failed: no data"}, both) < 2
    assert 30 < waiting(monkeypatch, {7: "ready"}, {7: "site-1"}) < 32
    assert caplog.messages == ["site-2: its set-up failed: no data", "site-2: it has not joined"]
    with pytest.raises(fs.FedSGMError, match=r"^no client joined within 30 s; see that their nodes run"):
        waiting(monkeypatch, {}, {})
    with pytest.raises(fs.FedSGMError, match=r"^no client could be set up; site-1: no data$"):
        waiting(monkeypatch, {7: "no data", 8: "none"}, both)


# A node's resident process --------------------------------------------------------------------------------------------


def context(run="echo", folder=None, name="site-1", **settings):
    """What Flower tells a ClientApp of its node and its run."""
    config = {"run": run, "clients": "site-1, site-2", "experiment": "echo.make", "data": "echo.load"}
    node = {"name": name} | ({} if folder is None else {"folder": str(folder)})
    return SimpleNamespace(node_config=node, run_config=config | {"settings": json.dumps(settings)})


def asked(request=b"", kind="ask", name="site-1", seconds=60.0):
    return {"kind": kind, "name": name, "bytes": request, "seconds": seconds}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node whose folder has the code of ``echo``; its resident processes end with it."""
    shutil.copy(HERE / "echo.py", tmp_path)
    anchor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started, start = [], client_app._start
    monkeypatch.setattr(client_app.os, "getppid", lambda: anchor.pid)
    monkeypatch.setattr(client_app, "_start", lambda *given: started.append(start(*given)) or started[-1])
    yield tmp_path
    anchor.communicate(b"\n")
    for process in started:
        process.wait(LONG)
    until(lambda: not residents(tmp_path), "the resident process ends")


def residents(folder):
    """The living processes that were started in the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder) and process.status() != "zombie":
                found.append(process)
    return found


def test_a_node_s_process_stays_and_tells_what_went_wrong(node):
    here = context(folder=node)
    assert client_app._reply(asked(kind="look"), here) == {"status": "ready"}
    first = residents(node)
    assert client_app._reply(asked(b"hello"), here) == {"bytes": b"hello"}
    assert client_app._reply(asked(b"again"), here) == {"bytes": b"again"}
    assert residents(node) == first
    assert client_app._reply(asked(b"raise no"), here) == {
        "reason": "ValueError in the client's own code; its log says more"
    }
    assert client_app._reply(asked(b"exit 3"), here) == {
        "reason": "the process of the client's code ended with exit code 3"
    }
    assert client_app._reply(asked(b"hello"), here) == {"bytes": b"hello"}
    state = node / "fedsgm" / "echo"
    assert [path.stat().st_mode & 0o077 for path in (state, state / client_app.NOTE)] == [0, 0], "its owner's alone"
    with contextlib.chdir(state), pytest.raises(multiprocessing.AuthenticationError):
        multiprocessing.connection.Client(client_app.SOCKET, "AF_UNIX", authkey=b"guessed")
    assert client_app._reply(asked(b"hello"), here) == {"bytes": b"hello"}, "who does not know the token stops nothing"

    changed = client_app._reply(asked(kind="look"), context(folder=node, fail=True))
    assert changed == {"status": "its set-up failed: FileNotFoundError in the client's own code; its log says more"}
    assert not {process.pid for process in first} & {process.pid for process in residents(node)}


def test_a_node_answers_for_itself_alone(node):
    here = context(folder=node)
    assert client_app._reply(asked(kind="who"), here) == {"name": "site-1"}
    refused = "the node is site-1 by its own configuration, not site-2"
    assert client_app._reply(asked(b"hello", name="site-2"), here) == {"reason": refused}
    simulated = context(name="")
    simulated.node_config["partition-id"] = 1
    assert client_app._reply(asked(kind="who"), simulated) == {"name": "site-2"}
    for name, run in (("../site-1", "echo"), ("site-1", "../echo"), ("site-1", "")):
        with pytest.raises(ValueError, match="is no name of a client or a run"):
            client_app._reply(asked(name=name), context(run, node, name=""))
    assert not residents(node)
    told = client_app.query(Message(RecordDict(), 5, "query"), here)
    assert told.content[RECORD] == {"reason": "KeyError: 'fedsgm'"}


def test_a_message_does_not_pay_for_jax():
    code = "import client_app, sys; print({'jax', 'fedsgm', 'numpy'} & set(sys.modules) - {'numpy'})"
    folder = Path(client_app.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# Apps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [(), ("--framework", "torch"), ("--table",)])
def test_what_init_writes_is_an_app_of_flower(tmp_path, kind):
    """By Flower's own check, and with what the run asks of its configuration."""
    folder = tmp_path / "app"
    called = call(
        "federate", "init", folder, "--engine", "flower", "--clients", "12", "--server", "fl.example.org", *kind
    )
    assert called.code == 0, called.err
    files = {path.name for path in folder.iterdir()}
    assert called.out.splitlines() == sorted(str(folder / name) for name in files)
    more = {"model.py"} if "torch" in kind else set()
    assert files == {"README.md", "client_app.py", "data.py", "experiment.py", "pyproject.toml", "server_app.py"} | more
    config, warned = load_and_validate(folder / "pyproject.toml")
    assert not warned
    said = config["tool"]["flwr"]["app"]["config"]
    assert (said["run"], said["clients"].split(", ")) == ("first", kits.names(12))
    readme = (folder / "README.md").read_text()
    assert "fl.example.org:9092" in readme
    assert "{" not in readme, "no word is left open"
    for name in ("experiment.py", "data.py"):
        assert "local/custom" not in (folder / name).read_text()


def test_the_page_s_diff_is_the_page_s_app():
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    whole = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    added = re.search(r"--- task.py\n(.*?)```", page, re.S).group(1)
    lines = [line.removeprefix("+") for line in added.splitlines()]
    assert [line for line in lines if f"{line}\n" not in whole] == []
    assert len(lines) <= 12


def test_the_environment_decides_what_flower_tells_others():
    quiet = apps.quiet({"FLWR_TELEMETRY_ENABLED": "1", "HOME": "/home"})
    assert quiet == apps.QUIET | {"FLWR_TELEMETRY_ENABLED": "1", "HOME": "/home"}
    assert quiet["FLWR_DISABLE_UPDATE_CHECK"] == quiet["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


@pytest.mark.parametrize("version", [None, "1.42.0"])
def test_another_flower_or_none_is_said(version, monkeypatch):
    def found(_):
        if version is None:
            raise importlib.metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(importlib.metadata, "version", found)
    called = call("federate", "local", "neyman-pearson", "--engine", "flower")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert called.err.endswith("pip install 'fedsgm[flower]'\n")


def test_the_library_and_its_commands_import_no_engine():
    code = "import sys, fedsgm, fedsgm.__main__; print({'flwr', 'torch', 'nvflare'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
