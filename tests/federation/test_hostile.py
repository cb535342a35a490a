"""A federation over FLARE with a hostile site, in real processes: it learns nothing, and harms nobody's run."""

import contextlib
import json
import re
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.answers import TOO_LARGE, WRONG_SHAPE
from fedsgm.federation.door import REFUSALS, REQUESTS
from fedsgm.federation.flare import builder, kits, transport
from fedsgm.federation.flare.local import LocalFederation
from fedsgm.federation.flare.transport import ASK, LOOK
from fedsgm.federation.guard import marked
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.panel import SUSPENDED
from fedsgm.federation.protocol import Failure, header
from fedsgm.federation.sessions import REFUSED, refusal
from support import hostile, patient, stopping
from support.submitting import submit
from support.waiting import LONG

TESTS = Path(__file__).parents[1]
ROUNDS = 30
DEADLINE = 5.0  # of each round, where a client is stopped


class Invaded(LocalFederation):
    """``site-2`` runs its own code in place of this library's."""

    def provide(self):
        super().provide()
        path = self.kits["site-2"] / "local" / "resources.json"
        resources = json.loads(path.read_text())
        resources["class_allow_list"].append("support.hostile.")
        path.write_text(json.dumps(resources))
        own = self.kits[self.server] / "local" / "comm_config.json"
        own.write_text(own.read_text().replace(str(builder.LARGEST), str(stopping.LARGEST)))


def write_job(folder, federation, settings):
    """A job whose part for site-2 is that site's own; the others' is as it always is."""
    job = kits.write_job(
        folder,
        run=folder.name,
        clients=federation.names,
        experiment="support.patient.make",
        data="support.patient.load",
        settings=settings,
    )
    own = job / "own"
    subprocess.run(["cp", "-r", job / "app", own], check=True)
    config = json.loads((own / "config" / "config_fed_client.json").read_text())
    config["executors"][0]["executor"]["path"] = "support.hostile.Hostile"
    (own / "config" / "config_fed_client.json").write_text(json.dumps(config))
    meta = json.loads((job / "meta.json").read_text())
    others = [name for name in ("server", *federation.names) if name != "site-2"]
    (job / "meta.json").write_text(json.dumps(meta | {"deploy_map": {"app": others, "own": ["site-2"]}}))
    return job


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Absent(InProcess):
    """A federation in this process whose second client gives no answer before the run's end."""

    def exchange(self, requests, seconds):
        there = {n: r for n, r in requests.items() if n != "client-1" or header(r)[3] == ROUNDS}
        return super().exchange(there, seconds)


class Watch(threading.Thread):
    """The most threads of the server's job processes, and by job the most memory that one has ever had, in MB."""

    def __init__(self, mark):
        super().__init__(daemon=True)
        self._mark, self._over = mark, threading.Event()
        self.threads, self.memory = 0, {}

    def run(self):
        while not self._over.wait(0.3):
            for process in marked(self._mark):
                with contextlib.suppress(psutil.Error, OSError, AttributeError):
                    if "runner_process" in " ".join(process.cmdline()):
                        self.threads = max(self.threads, process.num_threads())
                        status = Path(f"/proc/{process.pid}/status").read_text()
                        self.memory[process.pid] = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024

    def end(self):
        self._over.set()
        self.join()


def run_again(kind, folder):
    """The run of the honest ones in this process."""
    stated = patient.make(rounds=ROUNDS)
    program = Program.of(stated.algorithm, stated.problem, stated.params)
    carried = kind.of(program, [patient.load(f"site-{i + 1}") for i in range(patient.CLIENTS)], folder)
    return fs.federate(*(stated.algorithm, stated.problem, carried, stated.params), rounds=ROUNDS, progress=False)


def test_a_hostile_site_learns_nothing_and_harms_no_run(tmp_path, monkeypatch):
    """Two runs of one federation. In one it puts requests to another site, in the other it lies to the server.

    In a third its process is stopped for some rounds.
    """
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    settings = {"rounds": ROUNDS, "folder": str(tmp_path)}
    with Invaded(
        patient.CLIENTS, state=tmp_path / "state", modules=["support.patient", "support.stopping"]
    ) as federation:
        watch = Watch(federation.mark)
        watch.start()
        asks, lies = (
            submit(
                federation,
                write_job(tmp_path / name, federation, settings | {"lies": name == "lies"}),
                tmp_path / f"{name}-run",
            )
            for name in ("asks", "lies")
        )
        watch.end()
        check_that_a_client_that_is_stopped_is_passed_over(federation, tmp_path)
    check_that_nothing_is_learnt(tmp_path)
    expected = run_again(InProcess, tmp_path / "all")
    assert (asks.history["answered"] == patient.CLIENTS).all()
    assert all(account["left_out"] == {} for account in asks.settings["federation"]["clients"])
    assert_same_bits(asks, expected)

    absent = run_again(Absent, tmp_path / "absent")
    assert_same_bits(lies, absent)
    first, second, third = lies.settings["federation"]["clients"]
    assert first["left_out"] == third["left_out"] == {}
    assert first["answered"] == third["answered"] == ROUNDS
    named = second["left_out"]
    suspended = named.pop(SUSPENDED)
    assert sum(named.values()) == len(hostile.LIES)
    assert named == {
        "the numbers do not fit their form": 4,
        TOO_LARGE: 1,
        "an answer longer than any can be": 1,
        WRONG_SHAPE: 1,
    }
    assert suspended == ROUNDS - len(hostile.LIES), "it is tried less and less often"
    assert watch.threads <= 50 + 5 * patient.CLIENTS
    honest, lied_to = watch.memory.values()
    assert lied_to - honest < 4 * 64, "MB: what came in, and FLARE's copies of it"


def check_that_a_client_that_is_stopped_is_passed_over(federation, tmp_path):
    """It costs 5 of 12 rounds a deadline, the first three and then after 1, 2 and 4 more; and is asked again.

    Before that an answer of its costs one more: its size is above what the server's engine takes.
    """
    job = kits.write_job(
        tmp_path / "stops",
        run="stops",
        clients=federation.names,
        experiment="support.patient.make",
        data="support.stopping.load",
        settings={"rounds": ROUNDS, "folder": str(tmp_path), "timeout": DEADLINE},
    )
    result = submit(federation, job, tmp_path / "stops-run")
    away = [2] * (5 + 1 + 2 + 4)
    answered = [3, 2, 3, *away]
    assert result.history["answered"].tolist() == [answered + [3] * (ROUNDS - len(answered))]
    first, second, third = result.settings["federation"]["clients"]
    assert first["left_out"] == third["left_out"] == {}
    named = second["left_out"]
    assert named.pop(SUSPENDED) == 1 + 2 + 4
    late = {f"no answer in {DEADLINE:g} s", f"still busy with an earlier request after {DEADLINE:g} s"}
    assert named.keys() <= late, "the large answer has not come either"
    assert sum(named.values()) == 1 + 5


class Stalling:
    """An engine's cells, of which ``site-2`` looks alive between requests, but answers nothing while one is open."""

    def __init__(self):
        self.core_cell, self.asked, self.over = self, 0, threading.Event()

    def get_engine(self):
        return self

    def get_cell(self):
        return self

    def get_job_id(self):
        return "job"

    def get_clients(self):
        return [SimpleNamespace(name=name, get_fqcn=lambda name=name: name) for name in ("site-1", "site-2")]

    def send_request(self, *, target, topic, timeout, **_):
        if target.startswith("site-1") or (topic == LOOK and not self.asked):
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, b"ready")
        self.asked += topic == ASK
        self.over.wait(0.05 if topic == LOOK else timeout)
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.TIMEOUT})


def test_requests_that_a_client_keeps_open_take_no_thread_of_another_s(monkeypatch):
    """Each takes one of the server's until its deadline; between them it is lost, and found again."""
    monkeypatch.setattr(transport, "_LOOK_EVERY", 0.1)
    cells = Stalling()
    over = transport.FlareTransport(["site-1", "site-2"], cells, SimpleNamespace(triggered=False))
    try:
        for reason in ["it was lost"] * 2 + ["earlier requests are on their way to it still"] * 20:
            replies = over.exchange({"site-1": b"ask", "site-2": b"ask"}, LONG)
            assert replies == {"site-1": b"ready", "site-2": Failure(reason)}
            over.lost.clear()  # it has answered a probe
        assert cells.asked == 2
    finally:
        cells.over.set()
        over.close()


def assert_same_bits(found, expected):
    for name, array in expected.last.items():
        np.testing.assert_array_equal(found.last[name], array)
    for name in ("objective", "minority", "weight"):
        np.testing.assert_array_equal(found.history[name], expected.history[name], err_msg=name)


def check_that_nothing_is_learnt(tmp_path):
    """Every request of the hostile site was refused, and its name is in the victim's log."""
    got = {}
    for name, answer in lines(tmp_path / "attempts.jsonl"):
        got.setdefault(name, set()).add(answer)
    for name in ("the statistics", "an update of the last run", "a look"):
        answers = {answer for answer in got[name] if answer.startswith("answer: ")}  # not before and after the job
        assert answers == {"answer: " + refusal(REFUSED).hex()}, name
    refuses = "Failure(reason='it is not known to be site-1: it refuses the greeting; its audit log says why')"
    assert refuses in got["a greeting with its own key"]
    assert all(each == refuses or "Error" in each for each in got["a greeting with its own key"])
    assert "" in got["an update in the server's name"], "it was sent"
    refused = lines(tmp_path / "state" / "site-1" / "asks" / REFUSALS)
    assert {line["origin"].partition(".")[0] for line in refused} <= {"site-2", "server"}
    assert {line["refused"] for line in refused} >= {"it comes from another site"}
    asked = lines(tmp_path / "state" / "site-1" / "asks" / REQUESTS)
    assert {line["origin"].partition(".")[0] for line in asked} == {"server"}
    assert [line["round"] for line in asked if line["asked"] == "update"] == list(range(ROUNDS))
