"""``fedsgm federate`` before any process runs: what it refuses, what it writes, and what travels with a job."""

import contextlib
import importlib.metadata
import importlib.util
import json
import socket
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import yaml
from nvflare.fuel.flare_api import api_spec, flare_api

import fedsgm as fs
from fedsgm.base import trees
from fedsgm.base.describe import describe
from fedsgm.cli import rehearsal, saving
from fedsgm.cli.flags import RunFlags
from fedsgm.cli.setups import SETUPS
from fedsgm.federation import sites
from fedsgm.federation.experiment import find
from fedsgm.federation.flare import kits, local, submit
from fedsgm.federation.flare.submit import Admin, Job
from fedsgm.tasks import fair_classification, neyman_pearson
from support.commands import FILES, TINY, Run, call, run


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
        (
            ("--secure",),
            "secure: uplink=TopK(fraction=0.1, count=None), but only messages of SharedK(...) can be added unseen",
        ),
        (
            ("--secure", "--uplink", "sharedk:0.3", "--engine", "flower"),
            "--secure: the clients' keys are signed by the certificates of FLARE; take --engine flare",
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
    spec = importlib.util.spec_from_file_location("made", tmp_path / "new" / "experiment.py")
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
        "fedsgm.cli.rehearsal.data",
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
    monkeypatch.setenv("FEDSGM_MODULES", "a.b,own_code, fedsgm.cli.rehearsal")
    assert find("own_code.make", [])() == 1
    assert find("fedsgm.cli.rehearsal.data", []) is rehearsal.data


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
        (("init", "new", "--table", "--framework", "torch"), "--framework torch: fedsgm's own models of tables are in"),
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


def test_a_right_that_a_user_lacks_is_named_at_once(tmp_path, monkeypatch):
    """A job of which nothing is heard would be taken for lost, and sent again, after ten minutes."""

    class Session:
        def do_app_command(self, *_):
            raise api_spec.AuthorizationError("user 'me' is not authorized for 'app_command'")

    monkeypatch.setattr(flare_api, "new_secure_session", lambda *_, **__: Session())
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_admin.json").write_text('{"admin": {"username": "me"}}')
    admin = Admin(tmp_path, lambda: None, [].append, 1.0)
    with pytest.raises(fs.SettingError, match=r"not authorized for 'app_command'; give .* local/authorization\.json"):
        submit._status(admin, "7", None)


def test_a_job_is_asked_how_far_it_is_less_and_less_often(monkeypatch):
    """FLARE's server holds a thread for 65 seconds of every answer, and may have 50 in all beside 5 a client."""
    clock, asked = [0.0], []

    def status(*_):
        asked.append(clock[0])
        return {"round": len(asked), "rounds": 0, "lost": {}} if clock[0] < 300 else None

    passing = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: clock.append(clock.pop() + seconds))
    monkeypatch.setattr(submit, "time", passing)
    for name, answer in {"_status": status, "_server_since": lambda _: 0, "_ended": lambda *_: True}.items():
        monkeypatch.setattr(submit, name, answer)
    monkeypatch.setattr(submit, "_fetch", lambda *_: None)
    end = submit._follow(None, "7", submit._Bar(False), None, lambda: None, set(), None)
    assert end.rounds == len(asked) - 1
    assert asked[1] - asked[0] <= 1
    assert max(np.diff(asked)) <= 5.5
    assert max(sum(since <= each < since + 65 for each in asked) for since in asked) <= 20


def test_a_job_is_stopped_on_the_server_before_its_clients():
    called = []

    class Session:
        def call(self, command, *arguments):
            called.append((command, *arguments))
            return {"status": "FINISHED:COMPLETED"} if command == "get_job_meta" else None

    submit._stop(Session(), "7")
    assert called == [("do_app_command", "7", kits.STOP, None), ("get_job_meta", "7"), ("abort_job", "7")]


# A rehearsal, with the processes' own functions but without the processes ---------------------------------------------


class Rehearsal:
    """In place of a federation: what its processes would call is called here, and what they read is written down."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.read, self.modules = folder, {}, []
        self.server, self.kits, self.admin = "localhost", {"localhost": folder}, folder
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(local, "LocalFederation", self._begin)
        monkeypatch.setattr(submit, "submit", self._submit)

    def _begin(self, clients, *, modules, **_):
        self.names, self.modules = kits.names(clients), modules
        return contextlib.nullcontext(self)

    def tend(self):
        pass

    def _submit(self, _, job, **__):
        server, client = (
            json.loads((job.folder / "app" / "config" / f"config_fed_{role}.json").read_text())
            for role in ("server", "client")
        )
        args = submit._client_args(client)
        assert submit._server_args(server)["settings"] == args["settings"]
        self._monkeypatch.setenv("FEDSGM_MODULES", ",".join(self.modules))
        make, load = (find(args[name], []) for name in ("experiment", "data"))
        with self._reading("server"):
            stated = make(**args["settings"])
            test = stated.test()
        shares = []
        for name in self.names:
            with self._reading(name):
                assert describe(make(**args["settings"]).problem) == describe(stated.problem)
                shares.append(load(name, **args["settings"]))
        clients = stated.problem.clients if shares[0] == 0 else fs.Clients.from_list(shares)
        more = {"rounds": stated.rounds, "seed": stated.seed, "seeds": 1, "test": test, "progress": False}
        self.result = fs.simulate(stated.algorithm, stated.problem, clients, stated.params, **more)
        self.result.save(self.folder / "finished")
        return self.folder / "finished"

    @contextlib.contextmanager
    def _reading(self, site):
        real, read = trees.read, self.read.setdefault(site, [])
        with self._monkeypatch.context() as patch:
            patch.setattr(trees, "read", lambda path: (read.append(path.stem), real(path))[1])
            yield


@pytest.fixture
def rehearse(tmp_path, monkeypatch):
    return Rehearsal(tmp_path / "federation", monkeypatch)


def counted(monkeypatch, owner, name):
    """How often a function is called, as a list that grows."""
    calls, real = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **more: (calls.append(1), real(*given, **more))[1])
    return calls


LOCAL = ("federate", "local", "neyman-pearson", "--clients", "3", "--rounds", "4", "--no-progress")


def test_data_is_loaded_once_and_each_site_reads_its_own(rehearse, tmp_path, monkeypatch):
    loads = counted(monkeypatch, neyman_pearson, "load")
    called = call(*LOCAL, "--out", tmp_path / "run", draw=False)
    assert (called.code, called.err) == (0, "")
    assert len(loads) == 1
    assert {site: sorted(files) for site, files in rehearse.read.items()} == {
        "server": ["params", "test"],
        **{name: ["params", name] for name in ("site-1", "site-2", "site-3")},
    }
    assert rehearse.modules == ["fedsgm.cli.rehearsal"]


def test_a_rehearsal_is_the_run_of_one_program(rehearse, tmp_path):
    """What every site reads makes the same run as the data itself."""
    assert call(*LOCAL, "--seed", "3", "--out", tmp_path / "run", draw=False).code == 0
    flags = ("--clients", "3", "--participants", "0", "--rounds", "4", "--seed", "3", "--seeds", "1", "--no-progress")
    assert call("run", "neyman-pearson", *flags, "--out", tmp_path / "one", draw=False).code == 0
    for name in ("history.parquet", "params.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert rehearse.result.settings["clients"] == 3


@pytest.mark.parametrize(("bound", "code", "headline"), [("5", 0, "FEASIBLE: "), ("0.01", 3, "NOT FEASIBLE: ")])
def test_a_finished_run_is_copied_and_loaded_once(bound, code, headline, rehearse, tmp_path, monkeypatch):
    """Its files are the job's, bit for bit, in place of those of a run that was there; its settings are beside them."""
    out = tmp_path / "run"
    assert call("run", "neyman-pearson", *TINY, "--out", out, draw=False).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    saves, loads = (counted(monkeypatch, fs.Result, name) for name in ("save", "load"))
    called = call(*LOCAL, "--bound", bound, "--require-feasible", "--out", out)
    assert (called.code, called.err) == (code, "")
    assert (len(saves), len(loads)) == (1, 1), "the job's own save, and one look at it"
    assert called.out.startswith(headline)
    names = "history.parquet, params.safetensors, settings.toml, result.json, history.png"
    assert called.out.endswith(f"\nSaved in {out}: {names}\n")
    assert {path.name for path in out.iterdir()} == FILES
    for path in (rehearse.folder / "finished").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes() != before[path.name]
    done = Run(out)
    first = (out / "settings.toml").read_text().splitlines()[0]
    assert first == "# fedsgm federate local neyman-pearson --config settings.toml"
    assert done.toml.items() >= {"clients": 3, "bound": float(bound), "rounds": 4, "timeout": 60.0}.items()
    assert not {"seeds", "centralized", "proximal", "out", "port"} & done.toml.keys()


def test_a_damaged_result_of_a_job_replaces_nothing(tmp_path):
    run(tmp_path / "there", "--rounds", "3")
    run(tmp_path / "finished")
    before = {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()}
    damaged = tmp_path / "finished" / "params.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(fs.SettingError, match="missing or altered"):
        saving.copy(tmp_path / "finished", tmp_path / "there", "federate", {"rounds": 9})
    assert {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()} == before


def test_no_share_has_another_client_s_rows(tmp_path):
    """Not even the bytes of one; and together they are all the rows that there are."""
    clients, test, params = neyman_pearson.load(clients=4)
    rehearsal.hand_out(tmp_path, kits.names(4), clients, params, test)
    rows = []
    for j, name in enumerate(kits.names(4)):
        share = rehearsal.data(name, folder=str(tmp_path))
        jax.tree.map(np.testing.assert_array_equal, share, clients[j])
        rows.append({row.tobytes() for row in share["x"]})
        assert len(rows[j]) == clients.counts[j]
    assert len(set.union(*rows)) == clients.counts.sum() == 456
    held_out = {row.tobytes() for row in test["x"]}
    for j, name in enumerate(kits.names(4)):
        content = (tmp_path / f"{name}.safetensors").read_bytes()
        assert all(row in content for row in rows[j])
        assert not any(row in content for other in (*rows[:j], *rows[j + 1 :], held_out) for row in other)
    assert not any(row in (tmp_path / "params.safetensors").read_bytes() for row in set.union(*rows))


def test_a_task_without_data_hands_out_numbers(rehearse, tmp_path):
    flags = ("--clients", "3", "--hidden", "4", "--steps", "8", "--environments", "2", "--rounds", "2", "--no-progress")
    called = call("federate", "local", "cartpole", *flags, "--out", tmp_path / "run", draw=False)
    assert (called.code, called.err) == (0, "")
    assert [rehearsal.data(name, folder=str(rehearse.folder / "data")) for name in rehearse.names] == [0, 1, 2]
    assert trees.read(rehearse.folder / "data" / "test.safetensors") is None
    assert rehearse.result.settings["clients"] == 3


@pytest.mark.parametrize("task", SETUPS)
def test_a_problem_needs_no_data(task, monkeypatch):
    """So that a site can state it with nothing but the settings."""
    for owner, name in ((neyman_pearson, "breast_cancer"), (fair_classification, "adult")):
        monkeypatch.setattr(owner, name, lambda *_, **__: pytest.fail("the data was read"))
    problem, load = SETUPS[task].make()
    assert problem.bounds
    assert callable(load)


def test_the_processes_of_a_federation_may_name_its_modules_and_the_user_s(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(sites.subprocess, "Popen", lambda *_, env, **__: started.append(env["FEDSGM_MODULES"]))
    for listed in (None, "mine.own,other"):
        if listed:
            monkeypatch.setenv("FEDSGM_MODULES", listed)
        for modules in ((), ("fedsgm.cli.rehearsal",)):
            federation = local.LocalFederation(1, modules=modules)
            federation.folder, federation.kits = tmp_path, {"site-1": tmp_path}
            federation.start("site-1")
    assert [set(filter(None, value.split(","))) for value in started] == [
        set(),
        {"fedsgm.cli.rehearsal"},
        {"mine.own", "other"},
        {"fedsgm.cli.rehearsal", "mine.own", "other"},
    ]


def test_a_task_of_the_command_line_is_the_same_in_a_federation(tmp_path):
    """Its settings travel as JSON, and each site reads the rest."""
    own = {"clients": 3, "hidden": "8", "steps": 20, "environments": 2}
    problem, load = SETUPS["cartpole"].make(**own)
    clients, start, test = load()
    params = start(0)
    rehearsal.hand_out(tmp_path, kits.names(3), clients, params, test)
    flags = RunFlags(beta=0.3, participants=2, rounds=7).settings()
    settings = {"task": "cartpole", "own": own, "flags": flags, "folder": str(tmp_path)}
    stated = rehearsal.experiment(**json.loads(json.dumps(settings)), timeout=5.0)
    assert describe(stated.problem) == describe(problem)
    assert (stated.rounds, stated.timeout, stated.algorithm.participants) == (7, 5.0, 2)
    assert stated.algorithm.rule == fs.Soft(0.3)
    jax.tree.map(np.testing.assert_array_equal, stated.params, params)
    assert rehearsal.data("site-2", **settings) == 1
