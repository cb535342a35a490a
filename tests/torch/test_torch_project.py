"""``fedsgm federate init --framework torch`` writes a project that runs as it stands."""

import subprocess
import sys

import numpy as np

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.experiment import find
from fedsgm.federation.flare import kits
from fedsgm.federation.flare.local import LocalFederation
from fedsgm.federation.inprocess import InProcess
from support import digits, torched  # noqa: F401 - for torch's threads
from support.commands import call


def test_a_deployment_in_torch_runs_as_it_stands(tmp_path, monkeypatch):
    """Two of its clients, in this process."""
    new = tmp_path / "new"
    assert call("federate", "init", new, "--framework", "torch").code == 0
    assert {path.name for path in new.glob("*.py")} == {"data.py", "experiment.py", "model.py"}
    assert not list((new / "job").rglob("*.py")), "no code travels"
    assert "pip install 'fedsgm[nvflare,torch]'" in (new / "README.md").read_text()
    for name in ("data", "experiment", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(new)
    stated = find("experiment.make", [new])()
    sites = [find("data.load", [new])(name) for name in ("site-1", "site-2")]
    for name in ("data", "experiment", "model"):
        del sys.modules[name]
    program = Program.of(stated.algorithm, stated.problem, stated.params)
    monkeypatch.setattr("os.fsync", lambda _: None)
    transport = InProcess.of(program, sites, tmp_path / "clients")
    settings = {"rounds": 3, "progress": False}
    federated = fs.federate(stated.algorithm, stated.problem, transport, stated.params, **settings)
    simulated = fs.simulate(stated.algorithm, stated.problem, sites, stated.params, **settings)
    for name, array in simulated.last.items():
        np.testing.assert_allclose(federated.last[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    whole = fs.simulate(
        *(stated.algorithm, stated.problem, sites), rounds=stated.rounds, evaluate_every=10, progress=False
    )
    assert whole.feasible.all()


def test_a_convolutional_network_over_flare_takes_the_steps_of_a_simulated_run(tmp_path, monkeypatch):
    """examples/digits_torch.py at every site: a server and three clients as processes, Dirichlet clients."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _, module = digits.write(tmp_path)
    with LocalFederation(module.SITES, modules=["digits_torch"]) as federation:
        job = kits.write_job(
            tmp_path / "digits",
            run="digits",
            clients=federation.names,
            experiment="digits_torch.make",
            data="digits_torch.load",
        )
        submit = ["federate", "submit", job, "--kit", federation.admin, "--run", "digits", "--out", tmp_path / "run"]
        told = subprocess.run([sys.executable, "-m", "fedsgm", *submit], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    digits.check(module, fs.Result.load(tmp_path / "run"))
