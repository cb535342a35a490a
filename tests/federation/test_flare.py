"""A federation over NVIDIA FLARE with real processes and certificates: the same run, its faults, and nothing left."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import psutil
import pytest
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.private.privacy_manager import PrivacyManager, PrivacyService, Scope

import fedsgm as fs
from fedsgm.base.errors import ClientError
from fedsgm.base.lock import alone
from fedsgm.federation.door import Closed
from fedsgm.federation.flare import kits
from fedsgm.federation.flare.local import LocalFederation
from fedsgm.federation.flare.site import filters
from fedsgm.federation.guard import marked
from fedsgm.federation.panel import SUSPENDED
from fedsgm.federation.resident import Resident, Setup
from fedsgm.federation.sites import Sites, free_port
from fedsgm.results.result import KINDS
from fedsgm.tasks import neyman_pearson
from support import faulty
from support.absences import again, second_away
from support.commands import Run, call
from support.sites import assert_same_model, headlines, people, write
from support.waiting import LONG, until

HERE = Path(__file__).parents[1] / "support"
ROUNDS = 40  # of the faulty federation, which is within its bound after 30


# What was started in the background of a shell ignores Ctrl-C, and so would the command that the tests interrupt.
HEEDING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"


def fedsgm(*arguments, cwd=None, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", HEEDING, sys.executable, "-m", "fedsgm", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def resident(tmp_path, **settings):
    return Resident(Setup("echo.make", "echo.load", settings, "site-1", str(tmp_path), [str(HERE)]))


@pytest.fixture(scope="module")
def echo_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("echo")


@pytest.fixture(scope="module")
def echo(echo_folder):
    client = resident(echo_folder)
    until(lambda: client.status() == "ready", "the client is ready")
    yield client
    child = psutil.Process(client._process.pid)
    client.close()
    assert not child.is_running()


def test_the_process_of_user_code_comes_back_when_it_dies(echo):
    assert echo.ask(b"hello", 60) == b"hello"
    with pytest.raises(ClientError, match="ended with exit code 3"):
        echo.ask(b"exit 3", 60)
    assert echo.ask(b"again", 60) == b"again"
    with pytest.raises(ClientError, match="ValueError in the client's own code; its log says more"):
        echo.ask(b"raise no", 60)
    assert echo.ask(b"still here", 60) == b"still here"


def test_of_requests_that_wait_only_the_newest_is_answered(echo):
    answers = {}

    def ask(request, seconds=60.0):
        try:
            answers[request] = echo.ask(request, seconds)
        except ClientError as error:
            answers[request] = str(error)

    threads = [threading.Thread(target=ask, args=(request,)) for request in (b"sleep 3", b"second", b"third")]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    ask(b"impatient", 0.1)
    ask(b"newest")
    for thread in threads:
        thread.join()
    assert answers[b"sleep 3"] == b"sleep 3"
    assert answers[b"newest"] == b"newest"
    assert {answers[b"second"], answers[b"third"]} == {"the request was overtaken by a newer one"}
    assert answers[b"impatient"] == "still busy with an earlier request after 0.1 s"


def test_a_client_s_folder_is_its_own(echo, echo_folder):
    """Nobody else reads the state that its process will write."""
    assert echo.ask(b"hello", 60) == b"hello"
    with pytest.raises(fs.FedSGMError, match="another job of run 'echo0' is at work"), alone(echo_folder, 0.1):
        pass


def test_a_process_that_hangs_is_started_again(echo):
    """Ten times the time that the server waits are over, and it is asked again."""

    def hang():
        with contextlib.suppress(ClientError):
            echo.ask(b"sleep 600", 0.1)

    hangs = threading.Thread(target=hang)
    hangs.start()
    time.sleep(1.2)
    with pytest.raises(ClientError, match="still busy"):
        echo.ask(b"hello", 0.1)
    hangs.join(LONG)
    assert not hangs.is_alive()
    assert echo.ask(b"again", 60) == b"again"


def test_a_client_that_cannot_be_set_up_says_why_and_ends_with_its_parent(tmp_path):
    client = resident(tmp_path, fail=True)
    why = "its set-up failed: FileNotFoundError in the client's own code; its log says more"
    assert until(lambda: (status := client.status()) != "starting" and status, "the set-up fails") == why
    with pytest.raises(ClientError, match=why):
        client.ask(b"hello", 60)
    client.close()
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; import test_flare, pathlib\n"
        "client = test_flare.resident(pathlib.Path(sys.argv[1])); client.prepare()\n"
        "print(client._process.pid, flush=True); client.ask(b'sleep 600', 600)"
    )
    here = Path(__file__).parent
    parent = subprocess.Popen([sys.executable, "-c", code, tmp_path, here, here.parent], stdout=subprocess.PIPE)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    child.wait(LONG)
    assert not child.is_running()


def greet(federation, kit=None):
    """What the server's port says to somebody with the certificate of ``kit``, or none; nothing if it hangs up."""
    context = ssl.create_default_context(cafile=federation.admin / "startup" / "rootCA.pem")
    context.check_hostname = False
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    try:
        plain = socket.create_connection(("127.0.0.1", federation.port), LONG)
        with plain, context.wrap_socket(plain) as sealed:
            sealed.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return sealed.recv(100)
    except (ssl.SSLError, ConnectionError):
        return b""


class Watched:
    """A job that ``fedsgm federate submit`` runs, as seen from the server's checkpoints; it goes on when told to."""

    def __init__(self, federation, job, out, wait):
        self._federation, self._out, self._wait = federation, out, wait
        wait.touch()
        self._state = federation.state / "server" / job.name
        self._process = fedsgm("federate", "submit", job, "--kit", federation.admin, "--run", job.name, "--out", out)

    @property
    def rounds(self):
        self._federation.tend()
        if self._process.poll():
            raise AssertionError(self._process.communicate()[1])
        return max((int(path.stem.partition("-")[2]) for path in self._state.glob("round-*.ckpt")), default=0)

    def later(self, more=2):
        """Let it take so many rounds more, or a few more than that."""
        now = self.rounds
        self._go_on_until(lambda: self.rounds >= now + more, f"round {now + more}")

    def harm(self, told):
        """Tell a client what to do, and wait until it does."""
        told.touch()
        self._go_on_until(told.with_name(f"done-{told.name}").exists, told.name)

    def _go_on_until(self, happened, what):
        self._wait.unlink()
        until(happened, what)
        self._wait.touch()

    def end(self):
        self._wait.unlink()
        try:
            until(lambda: self.rounds and self._process.poll() == 0, "the job ends")
        except AssertionError as error:
            self._process.kill()
            logs = [path.read_text()[-5000:] for path in self._federation.folder.rglob("log.txt")]
            error.add_note("\n\n".join([self._process.communicate()[1], *logs]))
            raise
        self._process.communicate()
        return fs.Result.load(self._out)


def test_faults_of_a_federation_and_who_is_refused(tmp_path, monkeypatch):
    """User code that ends its process, a client killed in mid-round and the server killed: the run goes on."""
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
    told = tmp_path / "told"
    told.mkdir()
    with LocalFederation(faulty.CLIENTS, modules=["support.faulty"]) as federation:
        job = kits.write_job(
            tmp_path / "faults",
            run="first",
            clients=federation.names,
            experiment="support.faulty.make",
            data="support.faulty.load",
            settings={"rounds": ROUNDS, "folder": str(told)},
        )
        run = Watched(federation, job, tmp_path / "run", wait=told / "wait-site-1")

        assert greet(federation, federation.kits["site-1"]).startswith(b"HTTP/1.1")
        others = kits.provision(kits.project(["site-1"], port=federation.port), tmp_path / "others")
        assert greet(federation) == greet(federation, others["site-1"]) == b""

        run.later(3)
        run.harm(told / "exit-site-2")
        run.later()
        run.harm(told / "hang-site-2")
        lost = run.rounds
        site = psutil.Process(federation.processes["site-2"].pid)
        processes = [site, *site.children(recursive=True)]
        for end in (psutil.Process.suspend, psutil.Process.kill):  # all at once: nobody tells of another's end
            for process in processes:
                end(process)
        run.later()
        before = run.rounds
        federation.processes[federation.server].kill()
        result = run.end()
    assert not marked(federation.mark)
    assert not federation.folder.exists()

    answered = result.history["answered"][0]
    first, second = result.settings["federation"]["clients"]
    assert len(answered) == ROUNDS
    away = before + 2 - lost  # it is passed over for no longer than it was away
    assert (answered[before + 2 + away :] == 2).all(), "everybody is back in the end"
    assert (first["name"], first["answered"], first["left_out"]) == ("site-1", ROUNDS, {})
    assert second["left_out"].pop("the process of the client's code ended with exit code 7") == 1
    assert second["left_out"].pop("it was lost") == 1
    assert second["left_out"].keys() <= {"it left the job", SUSPENDED}
    assert ROUNDS + second["answered"] == answered.sum()
    expected = again(tmp_path / "again", ROUNDS, second_away(answered, result.history["evaluated"][0]))
    for name in ("objective", "minority", "estimate", "weight", "answered", "evaluated"):
        np.testing.assert_allclose(result.history[name], expected.history[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert result.history["minority"][0, -1] < 0.06, "the bound is 0.05"


def command(tmp_path, *arguments):
    """``fedsgm federate local neyman-pearson`` as a process whose temporary files are in a folder of its own."""
    own = tmp_path / "tmp"
    own.mkdir(parents=True)
    return fedsgm("federate", "local", "neyman-pearson", *arguments, cwd=tmp_path, TMPDIR=str(own))


def left(tmp_path):
    """Processes and files that a command has left."""
    alive = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(str(tmp_path)) and process.status() != "zombie":
                alive.append(process)
    return alive, list((tmp_path / "tmp").iterdir())


def test_a_site_whose_filters_would_be_bypassed_refuses_and_says_why(monkeypatch):
    """They act on FLARE's tasks; what this library sends is none."""
    monkeypatch.setattr(PrivacyService, "manager", None)
    context = FLContext()
    assert filters(context) == ""
    scope = Scope()
    scope.set_name("public")
    PrivacyService.initialize(PrivacyManager([scope], "public", None))
    assert filters(context) == "", "a scope without filters"
    scope.add_task_result_filter(SVTPrivacy(), FilterKey.OUT)
    assert "privacy filters for FLARE's tasks (privacy.json)" in filters(context)
    PrivacyService.initialize(None)
    context.set_prop(FLContextKey.RUNNER, SimpleNamespace(task_data_filters={}, task_result_filters={"*": [1]}))
    assert filters(context).startswith("the job has filters for FLARE's tasks")
    with pytest.raises(ClientError, match="filters"):
        Closed(filters(context)).ask(b"", 1.0)


class Ending(Sites):
    """Sites without an engine, whose server ends so many times before it listens."""

    server, times = "server", 2

    def provide(self):
        self.port = free_port()

    def home(self, site):
        (self.folder / site).mkdir(exist_ok=True)
        return self.folder / site

    def command(self, site):
        code = (
            "import pathlib, socket, sys, time\n"
            "count = len(list(pathlib.Path().glob('start-*')))\n"
            "pathlib.Path(f'start-{count}').touch()\n"
            f"if {site == self.server} and count < {self.times}: sys.exit('it was killed')\n"
            f"server = socket.create_server(('127.0.0.1', {self.port if site == self.server else 0}))\n"
            "time.sleep(600)"
        )
        return [sys.executable, "-c", code]


def test_a_server_that_is_killed_while_it_starts_is_started_again():
    with Ending(1) as federation:
        assert federation.processes["server"].poll() is None
        assert len(list(federation.home("server").glob("start-*"))) == 3
    assert not marked(federation.mark)
    Ending.times = 9
    with pytest.raises(fs.FedSGMError, match=r"server ended 4 times; it said: .*it was killed"), Ending(1):
        pass


def test_a_federation_takes_the_steps_of_a_simulated_run(tmp_path):
    """Five processes with Top-K both ways and three participants a round, against one compiled program."""
    settings = ("--clients", 5, "--participants", 3, "--rounds", 12, "--seed", 3)
    process = command(tmp_path, *settings, "--out", "run")
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 0, err
    assert left(tmp_path) == ([], [])
    assert "Saved in run:" in out

    found = fs.Result.load(tmp_path / "run")
    clients, test, params = neyman_pearson.load(clients=5)
    algorithm = fs.FedSGM(
        step_size=0.3,
        local_steps=5,
        participants=3,
        rule=fs.Soft(beta=40.0),
        uplink=fs.TopK(0.1),
        downlink=fs.TopK(0.1),
    )
    problem = neyman_pearson.neyman_pearson()
    expected = fs.simulate(algorithm, problem, clients, params, rounds=12, seed=3, test=test, progress=False)
    assert out.splitlines()[0] == expected.verdict().splitlines()[0]
    np.testing.assert_array_equal(found.history["participants"], expected.history["participants"])
    assert (found.history["answered"] == 3).all()
    for name in ("objective", "minority", "estimate", "violation", "weight"):
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-5, atol=2e-6, err_msg=name)
    for kind in KINDS:
        for mine, theirs in zip(*map(jax.tree.leaves, (getattr(found, kind), getattr(expected, kind))), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6, err_msg=kind)
    for part in ("train", "test"):
        for name, values in expected.values[part].items():
            np.testing.assert_allclose(found.values[part][name], values, rtol=1e-5, atol=2e-6)


def test_a_fit_over_sites_is_that_of_one_table(tmp_path):
    """Three processes with a table each, missing numbers, and categories that one of them alone has, or lacks."""
    own = tmp_path / "tmp"
    own.mkdir()
    tables = write(people(), tmp_path)
    flags = ("--target", "ok", "--constraint", "demographic_parity(sex) <= 0.1", "--rounds", 10, "--evaluate-every", 2)
    process = fedsgm("federate", "fit", *tables, *flags, "--out", "run", cwd=tmp_path, TMPDIR=str(own))
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 0, err
    assert left(tmp_path) == ([], [])
    whole = call("fit", tmp_path / "all.csv", "--client-by", "site", *flags, "--out", tmp_path / "one", draw=False)
    assert whole.code == 0, whole.err
    assert_same_model(Run(tmp_path / "run"), Run(tmp_path / "one"))
    assert headlines(out) == headlines(whole.out)
    assert call("predict", tmp_path / "run", tables[2]).code == 0


def test_a_federation_that_fails_or_is_interrupted_or_killed_leaves_nothing(tmp_path):
    fails = command(tmp_path / "fails", "--clients", 1, "--min-participants", 2)
    stops, dies = (command(tmp_path / name, "--clients", 1) for name in ("stops", "dies"))
    until(lambda: len(left(tmp_path / "stops")[0]) >= 4, "its processes run")
    stops.send_signal(signal.SIGINT)
    _, err = stops.communicate(timeout=LONG)
    assert stops.returncode == 130, err
    assert left(tmp_path / "stops") == ([], [])
    until(lambda: len(left(tmp_path / "dies")[0]) >= 4, "its processes run")
    dies.kill()
    dies.communicate()
    until(lambda: left(tmp_path / "dies") == ([], []), "its processes end")
    _, err = fails.communicate(timeout=LONG)
    assert (fails.returncode, err.splitlines()[-1]) == (
        2,
        "error: min_participants=2, but 1 clients take part in a round",
    )
    assert left(tmp_path / "fails") == ([], [])
