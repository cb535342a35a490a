"""Secure aggregation over NVIDIA FLARE with real processes and certificates."""

from pathlib import Path

import jax
import numpy as np

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.flare import kits
from fedsgm.federation.flare.local import LocalFederation
from fedsgm.federation.inprocess import Fault, InProcess
from support import leaving
from support.leaving import PRIVACY
from support.submitting import submit

ROUNDS = 8


def job_of(federation, folder, make, rounds, told):
    return kits.write_job(
        folder,
        run=folder.name,
        clients=federation.names,
        experiment=f"support.leaving.{make}",
        data="support.leaving.load",
        settings={"rounds": rounds, "folder": str(told)},
    )


def test_the_iterates_are_those_of_the_plain_run_and_a_client_may_leave(tmp_path, monkeypatch):
    """Five processes, one of which ends in the first sum and is back for the next: to the last bit.

    Then a run in which examples are hidden besides, to the rounding of its fixed point.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    told = tmp_path / "told"
    told.mkdir()
    (told / "exit-site-3").touch()
    with LocalFederation(leaving.CLIENTS, modules=["support.leaving"]) as federation:
        found = submit(federation, job_of(federation, tmp_path / "secure", "make", ROUNDS, told), tmp_path / "run")
        private_job = job_of(federation, tmp_path / "private", "make_private", PRIVACY.rounds, told)
        private = submit(federation, private_job, tmp_path / "private-run")
        asked = (federation.state / "site-1" / "secure" / "requests.jsonl").read_text()
    assert not (told / "exit-site-3").exists()
    assert found.history["answered"].tolist() == [[4, *[5] * (ROUNDS - 1)]]
    left_out = [client["left_out"] for client in found.settings["federation"]["clients"]]
    assert left_out == [{}, {}, {"the process of the client's code ended with exit code 7": 1}, {}, {}]
    assert asked.count('"asked": "tell"') == 2 * ROUNDS + 1, "two sums a round, and one at the end"

    stated = leaving.make(ROUNDS)
    clients, _, _ = leaving.task.load(clients=leaving.CLIENTS)
    program = Program.of(stated.algorithm, stated.problem, stated.params)
    plain = InProcess.of(
        program, clients, tmp_path / "plain", lambda *where: Fault.LOSE_REQUEST if where == (0, "client-2") else None
    )
    expected = fs.federate(stated.algorithm, stated.problem, plain, stated.params, rounds=ROUNDS, progress=False)
    np.testing.assert_array_equal(found.history["answered"], expected.history["answered"])
    for mine, theirs in zip(*(jax.tree.leaves(each.last) for each in (found, expected)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for name in ("objective", "minority", "violation"):
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-5, atol=1e-6, err_msg=name)

    stated = leaving.make_private(PRIVACY.rounds)
    program = Program.of(stated.algorithm, stated.problem, stated.params)
    inside = InProcess.of(program, clients, tmp_path / "inside")
    expected = fs.federate(
        stated.algorithm, stated.problem, inside, stated.params, rounds=PRIVACY.rounds, progress=False
    )
    assert private.history["epsilon"][0, -1] <= PRIVACY.epsilon
    for name in ("violation", "radius", "epsilon", "minority_radius"):
        np.testing.assert_allclose(private.history[name], expected.history[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for mine, theirs in zip(*(jax.tree.leaves(each.last) for each in (private, expected)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)
