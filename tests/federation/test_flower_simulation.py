"""Apps of ``fedsgm federate init`` in Flower's simulation: ``flwr run`` gives the run of ``simulate``."""

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w

import fedsgm as fs
from fedsgm.federation import guard
from fedsgm.federation.flower import apps
from fedsgm.federation.sites import free_port
from support import digits, torched  # noqa: F401 - for torch's threads
from support.commands import Run, call
from support.sites import assert_same_model, people, write
from support.waiting import until


@pytest.fixture(scope="module")
def flwr_run(tmp_path_factory):
    """``flwr run`` of an app in the simulation of a SuperLink of its own; the folder of the result."""
    home, mark, port = tmp_path_factory.mktemp("flower"), secrets.token_hex(16), free_port()
    link = {"address": f"127.0.0.1:{port}", "insecure": True}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "here", "here": link}}))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    own = {guard.MARK: mark, "FLWR_HOME": str(home), "FEDSGM_STATE": str(home / "state"), "PATH": path}
    environment = apps.quiet(os.environ) | own
    at = ("--host", "127.0.0.1", "--port", str(port))
    with (home / "superlink.txt").open("wb") as output:
        link = subprocess.Popen(
            ["flower-superlink", "--insecure", "--simulation", *at], stdout=output, stderr=output, env=environment
        )
    until(lambda: listens(port), "the SuperLink listens")

    def run(app, run, clients, **config):
        told = " ".join(f'{name}="{value}"' for name, value in ({"run": run} | config).items())
        command = ["flwr", "run", app, "here", "--stream", "--run-config", told]
        done = subprocess.run(
            [*command, "--federation-config", f"num-supernodes={clients}"],
            env=environment,
            capture_output=True,
            text=True,
        )
        result = home / "state" / "server" / run / "result"
        assert result.is_dir(), done.stdout + done.stderr
        return result

    yield run
    guard.end(mark, str(home))
    link.wait()


def listens(port):
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def init(folder, *kind):
    called = call("federate", "init", folder, "--engine", "flower", *kind)
    assert called.code == 0, called.err
    return folder


def test_a_convolutional_network_in_torch(tmp_path, monkeypatch, flwr_run):
    """examples/digits_torch.py in the app of ``--framework torch``: Dirichlet clients and a bound on each digit."""
    app = init(tmp_path / "app", "--framework", "torch", "--clients", "3")
    monkeypatch.syspath_prepend(app)
    _, module = digits.write(app)
    finished = flwr_run(app, "digits", module.SITES, experiment="digits_torch.make", data="digits_torch.load")
    digits.check(module, fs.Result.load(finished))


def test_a_fit_of_tables(tmp_path, flwr_run):
    """The app of ``--table``, told where the tables are and what to fit: the fit of all rows in one file."""
    app = init(tmp_path / "app", "--table", "--clients", "2")
    frame = people()
    for number, table in enumerate(write(frame[frame["site"] != "west"], tmp_path)[:2], 1):
        table.rename(tmp_path / f"site-{number}.csv")
    edit(app / "data.py", 'Path(__file__).with_name(f"{name}.csv")', f'Path({str(tmp_path)!r}) / f"{{name}}.csv"')
    edit(app / "experiment.py", 'target="approved"', 'target="ok"')
    edit(app / "experiment.py", "rounds=500", "rounds=2, evaluate_every=2")
    finished = flwr_run(app, "table", 2)
    flags = ("--target", "ok", "--constraint", "demographic_parity(sex) <= 0.05", "--rounds", 2, "--evaluate-every", 2)
    whole = call("fit", tmp_path / "all.csv", "--client-by", "site", *flags, "--out", tmp_path / "one", draw=False)
    assert whole.code == 0, whole.err
    result = fs.Result.load(finished)
    assert_same_model(SimpleNamespace(result=result, history=result.history, folder=finished), Run(tmp_path / "one"))


def edit(file, before, after):
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
