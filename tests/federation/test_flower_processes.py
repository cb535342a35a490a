"""Flower with real processes, TLS and keys: the same run, its faults, who is refused, and nothing left behind."""

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

import fedsgm as fs
from fedsgm.federation import guard
from fedsgm.federation.flower import apps, credentials
from fedsgm.federation.flower.local import FlowerFederation
from fedsgm.federation.sites import free_port
from fedsgm.tasks import neyman_pearson
from support import faulty, harm
from support.absences import NAMES, again, unsent
from support.commands import Run, call
from support.sites import assert_same_model, headlines, people, write
from support.waiting import LONG, until

HERE = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    path = (str(HERE / "impatient"), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


def fedsgm(folder, *arguments):
    """What a command prints that starts a federation over Flower and leaves nothing of it."""
    own = folder / "tmp"
    own.mkdir()
    command = [sys.executable, "-m", "fedsgm", "federate", *map(str, arguments), "--engine", "flower", "--out", "run"]
    environment = os.environ | {"TMPDIR": str(own)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(own.iterdir()) == []
    return done.stdout


def test_a_federation_over_flower_takes_the_steps_of_a_simulated_run(tmp_path):
    """TLS and registered keys, Top-K both ways and two participants a round, against one compiled program."""
    settings = ("--clients", 3, "--participants", 2, "--rounds", 3, "--seed", 3)
    said = fedsgm(tmp_path, "local", "neyman-pearson", *settings)
    found = fs.Result.load(tmp_path / "run")
    clients, test, params = neyman_pearson.load(clients=3)
    algorithm = fs.FedSGM(0.3, 5, 2, fs.Soft(beta=40.0), uplink=fs.TopK(0.1), downlink=fs.TopK(0.1))
    problem = neyman_pearson.neyman_pearson()
    expected = fs.simulate(algorithm, problem, clients, params, rounds=3, seed=3, test=test, progress=False)
    assert said.splitlines()[0] == expected.verdict().splitlines()[0]
    np.testing.assert_array_equal(found.history["participants"], expected.history["participants"])
    assert (found.history["answered"] == 2).all()
    for name in ("objective", "minority", "estimate", "violation", "weight"):
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-5, atol=2e-6, err_msg=name)
    for name, array in expected.last.items():
        np.testing.assert_allclose(found.last[name], array, rtol=1e-5, atol=2e-6, err_msg=name)


def test_a_fit_over_flower_is_that_of_one_table(tmp_path):
    """Two processes with a table each."""
    frame = people()
    tables = write(frame[frame["site"] != "west"], tmp_path)[:2]
    flags = ("--target", "ok", "--constraint", "demographic_parity(sex) <= 0.1", "--rounds", 2, "--evaluate-every", 2)
    said = fedsgm(tmp_path, "fit", *tables, *flags)
    whole = call("fit", tmp_path / "all.csv", "--client-by", "site", *flags, "--out", tmp_path / "one", draw=False)
    assert whole.code == 0, whole.err
    assert_same_model(Run(tmp_path / "run"), Run(tmp_path / "one"))
    assert headlines(said) == headlines(whole.out)


def strangers(federation, folder):
    """What nodes say that run on their own and may not join, by what they come with."""
    ca = ("--root-certificates", str(federation.folder / "certificates" / credentials.CA))
    credentials.make_key(folder / "key")
    key = ("--auth-supernode-private-key", str(folder / "key"))
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{federation.port}", "--host", "127.0.0.1", "--port"]
    environment = os.environ | federation.environment("site-1") | {guard.MARK: federation.mark}
    started = {}
    for what, arguments in {"another key": (*key, *ca), "no key": ca, "no TLS": ("--insecure",)}.items():
        output = folder / f"{what}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, str(free_port()), "--max-retries", "2", *arguments],
                stdout=file,
                stderr=file,
                env=environment,
            )
        started[what] = (process, output)
    for what, (process, output) in started.items():
        process.wait(LONG)
        yield what, output.read_text()


def end_at_once(federation, site):
    """Kill a node and all that it has started, so that nobody tells of another's end."""
    home = str(federation.home(site) / "flwr")
    processes = [process for process in guard.marked(federation.mark) if process.environ().get("FLWR_HOME") == home]
    assert len(processes) >= 4, "the node, its SuperExec, the resident process and the client's code"
    for end in (psutil.Process.suspend, psutil.Process.kill):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)


def test_faults_of_a_federation_over_flower_and_who_is_refused(tmp_path):
    """Messages lost, late and repeated, a client killed and the SuperLink killed: no update is lost or doubled."""
    rounds, told = 4, tmp_path / "told"
    told.mkdir()
    with FlowerFederation(faulty.CLIENTS) as federation, ThreadPoolExecutor(1) as pool:
        app = apps.write_app(
            tmp_path / "app",
            run="first",
            clients=federation.names,
            experiment="faulty.make",
            data="faulty.load",
            settings={"rounds": rounds, "folder": str(told), "timeout": 60.0},
            files=[HERE / "faulty.py", HERE / "harm.py"],
        )
        with (app / "server_app.py").open("a") as file:
            file.write(f"\nimport harm\n\nharm.begin({str(told)!r})\n")
        run = pool.submit(federation.run, app, "first", show=False)

        refusals = {
            "another key": "Failed to activate SuperNode",
            "no key": "All SuperNodes must be registered",
            "no TLS": "Connection attempt failed",
        }
        for what, said in strangers(federation, tmp_path):
            assert "SuperNode ID" not in said
            assert refusals.pop(what) in said
        assert not refusals
        let_in = federation.home("site-1") / "output.txt"
        until(lambda: "SuperNode ID" in let_in.read_text(), "who is registered is let in")

        server = federation.state / "server" / "first"

        def later(more):
            now = done(server)
            until(lambda: run.done() or done(server) >= now + more, f"{more} rounds more")
            assert not run.done(), run.result()

        later(1)
        end_at_once(federation, "site-2")
        later(1)
        federation.processes[federation.server].kill()
        result = fs.Result.load(run.result(LONG))
        tries = harm.tries(told)
        kept = list(unsent([federation.state / name / "first" for name in NAMES], tries))
    assert not guard.marked(federation.mark)
    assert not federation.folder.exists()

    struck = (told / harm.STRUCK).read_text().split()
    assert {fault.name for fault in harm.SCHEDULE if fault} <= set(struck), "every fault must strike"
    expected = again(tmp_path / "again", rounds, tries)
    for name in ("objective", "minority", "estimate", "weight", "answered", "evaluated"):
        np.testing.assert_allclose(result.history[name], expected.history[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert result.history["answered"].sum() < 2 * rounds, "somebody was left out"
    for mine, theirs in zip(kept, unsent([tmp_path / "again" / name for name in NAMES], tries), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, err_msg="updates that the server has not used")


def done(folder):
    """Rounds that a server has kept."""
    return max((int(path.stem.partition("-")[2]) for path in folder.glob("round-*.ckpt")), default=0)
