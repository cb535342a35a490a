"""``fedsgm federate`` before any process runs: what it refuses, what it writes, and what travels with a job."""

import importlib.metadata
import importlib.util
import json
import socket
import sys

import jax
import numpy as np
import pytest
import yaml
from nvflare.fuel.flare_api import api_spec, flare_api

import fedsgm as fs
from fedsgm.base.describe import describe
from fedsgm.cli import rehearsal
from fedsgm.cli.flags import RunFlags
from fedsgm.cli.setups import SETUPS
from fedsgm.federation.experiment import find
from fedsgm.federation.flare import kits, submit
from fedsgm.federation.flare.submit import Admin, Job
from fedsgm.tasks import neyman_pearson
from support.commands import call


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--port", "PORT"), "--port PORT: it cannot be used (Address already in use); leave it out for a free one"),
        (("--port", "70000"), "--port 70000: a port is between 1 and 65535; 0 is a free one"),
        (("--participants", "4"), "participants=4, but there are 3 clients"),
        (
            ("--rule", "ipp-conex"),
            "--rule ipp-conex: it runs on all data in one place; take another rule here",
        ),
        (("--checkpoint", "HELD"), "HELD holds a checkpoint; add --resume to go on from it, or choose an empty folder"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_starts(arguments, error, tmp_path, monkeypatch):
    held = tmp_path / "held" / "server" / "local"
    held.mkdir(parents=True)
    (held / "round-000000001.ckpt").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))  # nothing is made there
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {"PORT": str(taken.getsockname()[1]), "HELD": str(tmp_path / "held")}
        given = [words.get(argument, argument) for argument in arguments]
        called = call("federate", "local", "neyman-pearson", "--clients", "3", *given)
    for word, meant in words.items():
        error = error.replace(word, meant)
    assert called.err.splitlines()[-1] == f"error: {error}"
    assert called.code == (1 if "--checkpoint" in arguments else 2)


@pytest.mark.parametrize("version", [None, "2.8.1"])
def test_another_flare_or_none_is_said(version, monkeypatch):
    def found(_):
        if version is None:
            raise importlib.metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(importlib.metadata, "version", found)
    called = call("federate", "local", "neyman-pearson")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert called.err.endswith("pip install 'fedsgm[nvflare]'\n")


def test_a_deployment_says_the_same_everywhere(tmp_path, monkeypatch):
    assert call("federate", "init", tmp_path / "new", "--clients", "12", "--server", "fl.example.org").code == 0
    stated = yaml.safe_load((tmp_path / "new" / "project.yml").read_text())
    own = kits.project(kits.names(12), server="fl.example.org", port=8002)
    assert stated == own
    job = Job.read(tmp_path / "new" / "job")
    assert job.clients == kits.names(12) == sorted(kits.names(12))
    copy = job.named("again", tmp_path / "copy")
    assert (copy.run, copy.clients) == ("again", job.clients)
    configs = [json.loads(path.read_text()) for path in sorted((tmp_path / "copy").rglob("config_fed_*.json"))]
    parts = [configs[0]["executors"][0]["executor"], configs[1]["workflows"][0]]
    for name in ("run", "experiment", "settings"):
        assert parts[0]["args"][name] == parts[1]["args"][name]
    monkeypatch.syspath_prepend(tmp_path / "new")
    monkeypatch.delitem(sys.modules, "data", raising=False)  # the template, where its doctests are collected too
    examples = find("data.load", [tmp_path / "new"])("site-02")
    del sys.modules["data"]
    jax.tree.map(np.testing.assert_array_equal, examples, neyman_pearson.load(clients=12)[0][1])
    spec = importlib.util.spec_from_file_location("made", tmp_path / "copy" / "app" / "custom" / "experiment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    experiment = module.make()
    result = fs.simulate(
        experiment.algorithm,
        experiment.problem,
        fs.Clients.from_list([examples]),
        experiment.params,
        rounds=experiment.rounds,
        progress=False,
    )
    assert result.feasible.all()


def test_a_job_names_only_functions_that_a_site_lets_it(tmp_path, monkeypatch):
    """Its own code's, the site's and those of listed modules, where they are defined; nothing else is even imported."""
    (tmp_path / "own_code.py").write_text("from subprocess import run\ndef make(): return 1\nthing = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find("own_code.make", [tmp_path])() == 1
    assert find("fedsgm.cli.rehearsal.data", []) is rehearsal.data
    for name in (
        "os.system",
        "sys.exit",
        "subprocess.run",
        "this.s",
        "__main__.make",
        "",
        ".",
        ".make",
        "nowhere.make",
        "own_code.make",
    ):
        with pytest.raises(fs.SettingError, match=r"FEDSGM_MODULES lists the installed modules that jobs may name$"):
            find(name, [tmp_path / "elsewhere"])
    assert "this" not in sys.modules
    for name, error in {
        "own_code.run": "'own_code.run' is defined in subprocess; name a function where it is defined",
        "own_code.thing": "'own_code.thing' is no function but a int",
        "own_code.other": "there is no function 'own_code.other' here",
    }.items():
        with pytest.raises(fs.SettingError, match=error):
            find(name, [tmp_path])
    monkeypatch.setenv("FEDSGM_MODULES", "a.b,own_code")
    assert find("own_code.make", [])() == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "error"),
    [
        (
            "client",
            '"executors"',
            "executors",
            "is no job of fedsgm, as fedsgm federate init writes one (JSONDecodeError",
        ),
        ("client", '"run"', '"runs"', "as fedsgm federate init writes one (KeyError('run'))"),
        ("client", "first", "second", "names the run 'first' and config_fed_client.json 'second'"),
        ("server", '"first"', "1", "a run's name has letters, digits, dots, hyphens and underscores, but it is 1"),
        ("server", '"args": {', '"args": [], "more": {', "is no job of fedsgm, as fedsgm federate init writes one"),
    ],
)
def test_a_job_that_was_spoilt_is_refused(file, old, new, error, tmp_path):
    kits.write_job(tmp_path / "job", run="first", clients=["site-1"], experiment="a.b", data="c.d")
    path = tmp_path / "job" / "app" / "config" / f"config_fed_{file}.json"
    path.write_text(path.read_text().replace(old, new, 1))
    called = call("federate", "submit", tmp_path / "job", "--kit", ".")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert error in called.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("init", "."), "is there already; choose a folder that is not, or an empty one"),
        (("init", "new", "--server", "no host"), "give the host name that the clients reach the server by"),
        (("init", "new", "--port", "0"), "--port 0: a port is between 1 and 65535"),
        (("init", "new", "--clients", "0"), "clients=0, but it must be a whole number"),
        (("submit", "nothing", "--kit", "."), "nothing is no job of fedsgm"),
        (("submit", "job", "--kit", "."), "is no start-up kit of an admin"),
        (("submit", "job", "--kit", ".", "--run", "../up"), "a run's name has letters, digits"),
    ],
)
def test_what_is_wrong_with_a_deployment_is_said(arguments, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kits.write_job(tmp_path / "job", run="first", clients=["site-1"], experiment="a.b", data="c.d")
    called = call("federate", *arguments)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert error in called.err


def test_a_server_that_does_not_answer_is_waited_for_as_long_as_wanted(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise api_spec.NoConnection("cannot connect")

    monkeypatch.setattr(flare_api, "new_secure_session", refuse)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_admin.json").write_text('{"admin": {"username": "me"}}')
    said, tended = [], []
    admin = Admin(tmp_path, lambda: tended.append(1), said.append, 1.2)
    with pytest.raises(fs.FedSGMError, match=r"not answered for 1\.2 s; see that it runs .* \(cannot connect\)$"):
        admin.call("get_system_info")
    assert said == ["waiting for the federation's server"]
    assert 1 <= len(tended) <= 3


def test_a_job_is_stopped_on_the_server_before_its_clients():
    called = []

    class Session:
        def call(self, command, *arguments):
            called.append((command, *arguments))
            return {"status": "FINISHED:COMPLETED"} if command == "get_job_meta" else None

    submit._stop(Session(), "7")
    assert called == [("do_app_command", "7", kits.STOP, None), ("get_job_meta", "7"), ("abort_job", "7")]


def test_a_task_of_the_command_line_is_the_same_in_a_federation():
    """Its settings travel as JSON, a client's data is its share, and a task without data needs its client's number."""
    own = {"clients": 3, "hidden": "8", "steps": 20, "environments": 2}
    settings = {"task": "cartpole", "own": own, "flags": RunFlags(beta=0.3, participants=2, rounds=7).settings()}
    stated = rehearsal.experiment(**json.loads(json.dumps(settings)), timeout=5.0)
    problem, _, params, _ = SETUPS["cartpole"](**own)
    assert describe(stated.problem) == describe(problem)
    assert (stated.rounds, stated.timeout, stated.algorithm.participants) == (7, 5.0, 2)
    assert stated.algorithm.rule == fs.Soft(0.3)
    jax.tree.map(np.testing.assert_array_equal, stated.params, params)
    assert rehearsal.data("site-2", **settings) == 1
    mine = rehearsal.data("site-2", task="neyman-pearson", own={"clients": 3, "split": 1})
    jax.tree.map(np.testing.assert_array_equal, mine, neyman_pearson.load(clients=3, split_seed=1)[0][1])
