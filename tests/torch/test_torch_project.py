"""``fedsgm federate init --framework torch`` writes a project that runs as it stands."""

import sys

import numpy as np

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.experiment import find
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
