"""``fedsgm federate init --framework torch`` writes a project that runs as it stands."""

import subprocess
import sys
from pathlib import Path

import numpy as np

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.experiment import find
from fedsgm.federation.flare import kits
from fedsgm.federation.flare.local import LocalFederation
from fedsgm.federation.inprocess import InProcess
from support import torched  # noqa: F401 - for torch's threads
from support.commands import call


def test_a_deployment_in_torch_runs_as_it_stands(tmp_path, monkeypatch):
    """Two of its clients, in this process."""
    new = tmp_path / "new"
    assert call("federate", "init", new, "--framework", "torch").code == 0
    custom = new / "job" / "app" / "custom"
    assert sorted(path.name for path in custom.iterdir()) == ["experiment.py", "model.py"]
    assert "pip install 'fedsgm[nvflare,torch]'" in (new / "README.md").read_text()
    for name in ("data", "experiment", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for folder in (new, custom):
        monkeypatch.syspath_prepend(folder)
    stated = find("experiment.make", [custom])()
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
    """examples/digits_torch.py as the code of a job: a server and three clients as processes, Dirichlet clients."""
    text = (Path(__file__).parents[2] / "examples" / "digits_torch.py").read_text()
    example = tmp_path / "digits_torch.py"
    example.write_text(text.replace("make(rounds=60)", "make(rounds=3)"))
    monkeypatch.syspath_prepend(tmp_path)
    stated = find("digits_torch.make", [tmp_path])()
    module = sys.modules.pop("digits_torch")
    with LocalFederation(module.SITES) as federation:
        job = kits.write_job(
            tmp_path / "digits",
            run="digits",
            clients=federation.names,
            experiment="digits_torch.make",
            data="digits_torch.load",
            files=[example],
        )
        submit = ["federate", "submit", job, "--kit", federation.admin, "--run", "digits", "--out", tmp_path / "run"]
        told = subprocess.run([sys.executable, "-m", "fedsgm", *submit], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    federated = fs.Result.load(tmp_path / "run")
    simulated = fs.simulate(
        *(stated.algorithm, stated.problem, module.deal()), rounds=stated.rounds, evaluate_every=1, progress=False
    )
    np.testing.assert_array_equal(federated.history["answered"], [[3, 3, 3]])
    for name, array in simulated.last.items():
        np.testing.assert_allclose(federated.last[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    for name in simulated.bounds:
        np.testing.assert_allclose(federated.history[name], simulated.history[name], rtol=1e-4, err_msg=name)
    assert set(federated.to_module(module.Net()).state_dict()) == set(simulated.last)
