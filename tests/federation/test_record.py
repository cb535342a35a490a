"""What a federated run records is what a simulated one does: the step's divergence, promises, reward and cost."""

import dataclasses
import functools
import warnings

import numpy as np
import pytest
from optax.projections import projection_l2_ball

import fedsgm as fs
from fedsgm import theory
from fedsgm.federation import Failure, Program
from fedsgm.federation.answers import Report
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.protocol import FrameError, Kind, Reply, Request, pack, unpack
from fedsgm.tasks import cmdp
from support.federated import CLIENTS, PARAMS, PROBLEM

ROUNDS, SEED = 5, 3  # the clients of a CMDP do not know the seed, which the first policy is made with
PLAY = {"environments": 2, "steps": 20, "horizon": 20, "fisher_samples": 20, "evaluation_episodes": 2}
SMALL = cmdp.load(clients=3, hidden=(8,), **PLAY)
ALGORITHM = fs.FedSGM(1.0, participants=2, rule=fs.Soft(0.3), uplink=fs.TopK(0.5), downlink=fs.TopK(0.5))


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(scope="module")
def simulated():
    return fs.simulate(
        ALGORITHM, SMALL.task, SMALL.clients, SMALL.params, rounds=ROUNDS, seed=SEED, evaluate_every=2, progress=False
    )


def transport(folder, kind=InProcess):
    return kind.of(Program.of(ALGORITHM, SMALL.task, SMALL.params), range(len(SMALL.clients)), folder)


def federate(to, **more):
    settings = {"rounds": ROUNDS, "seed": SEED, "evaluate_every": 2, "progress": False} | more
    return fs.federate(ALGORITHM, SMALL.task, to, SMALL.params, **settings)


def test_a_federated_cmdp_has_the_columns_of_a_simulated_one(simulated, tmp_path):
    """Each participant says what it saw of the step when it hears of the next model; the last round's at the end."""
    federated = federate(transport(tmp_path))
    assert not np.isnan(federated.history["kl"]).any()
    for name in ("kl", "estimate", "reward_estimate", "violation", "weight", "cost", "reward", "objective"):
        np.testing.assert_allclose(federated.history[name], simulated.history[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for name in ("bytes_up", "bytes_down", "participants"):
        np.testing.assert_array_equal(federated.history[name], simulated.history[name], err_msg=name)


def test_a_client_that_was_restarted_looks_back_all_the_same(simulated, tmp_path):
    class Restarted(InProcess):
        def exchange(self, requests, seconds):
            for name, request in requests.items():
                if Request.decode(request).kind & Kind.INSPECT:
                    self.restart(name)
            return super().exchange(requests, seconds)

    federated = federate(transport(tmp_path, Restarted))
    np.testing.assert_allclose(federated.history["kl"], simulated.history["kl"], rtol=1e-3)


def test_without_a_witness_the_round_has_no_kl(tmp_path):
    """Everybody who took part is gone when the next round begins; the others go on."""

    class Gone(InProcess):
        def exchange(self, requests, seconds):
            replies = super().exchange(requests, seconds)
            for name, request in requests.items():
                asked = Request.decode(request)
                if asked.round == 2 and asked.kind & Kind.INSPECT:
                    replies[name] = Failure("gone")
            return replies

    kl = federate(transport(tmp_path, Gone), evaluate_every=0).history["kl"][0]
    assert np.isnan(kl[1])
    assert not np.isnan(np.delete(kl, 1)).any()


@pytest.mark.parametrize("inspected", [{"kl": np.zeros(2)}, {"lk": np.zeros(())}, {}, (np.zeros(()),), np.zeros(())])
def test_what_a_client_says_it_saw_must_be_the_columns(inspected):
    with pytest.raises(FrameError, match="wrong shape"):
        Report.read(pack((None, None, inspected)), Kind.INSPECT, 1, ("kl",))


def test_the_bar_shows_reward_cost_and_budget(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("fedsgm.base.progress.Progress.update", lambda *_, **values: shown.append(values))
    federate(transport(tmp_path), evaluate_every=1)
    assert shown[-1].keys() == {"reward", "cost", "weight", "budget"}


def test_a_federated_run_checks_its_promise(tmp_path):
    ball = functools.partial(projection_l2_ball, scale=1.0)
    plan = {"rounds": 8, "project": ball, "distance": 2.0, "lipschitz": 10.0, "sigma": 0.0}
    algorithm = fs.FedSGM.from_theory(PROBLEM, CLIENTS, PARAMS, **plan)

    def run(folder, rounds):
        to = InProcess.of(Program.of(algorithm, PROBLEM, PARAMS), CLIENTS, folder)
        return fs.federate(algorithm, PROBLEM, to, PARAMS, rounds=rounds, progress=False)

    with warnings.catch_warnings():
        warnings.simplefilter("error", theory.TheoryWarning)
        assert "promised" in run(tmp_path / "kept", 8).verdict()
    with pytest.warns(theory.TheoryWarning, match="rounds is 5, but the promise was made for 8"):
        run(tmp_path / "left", 5)


def test_a_constraint_may_be_called_reward(tmp_path):
    """It is no CMDP's for that: the bar and the picture show the objective."""
    quantity = dataclasses.replace(PROBLEM.constraints[0].quantity, name="reward")
    problem = fs.Problem(PROBLEM.objective, [quantity <= 0.3])
    algorithm = fs.FedSGM(0.1)
    simulated = fs.simulate(algorithm, problem, CLIENTS, PARAMS, rounds=2, progress=False)
    simulated.plot(tmp_path / "p.svg")
    to = InProcess.of(Program.of(algorithm, problem, PARAMS), CLIENTS, tmp_path / "clients")
    federated = fs.federate(algorithm, problem, to, PARAMS, rounds=2, progress=False)
    np.testing.assert_allclose(federated.history["reward"], simulated.history["reward"], rtol=1e-5)


@pytest.mark.parametrize("kind", [Kind.MEASURE, Kind.EVALUATE])
def test_an_array_of_many_dimensions_ends_no_run(kind, tmp_path):
    """NumPy has 64 and no room for one more, which is what stacking it needs."""
    wide = np.zeros((1,) * 64, np.float32)

    class Wide(InProcess):
        def exchange(self, requests, seconds):
            replies = super().exchange(requests, seconds)
            if "client-0" in requests and Request.decode(requests["client-0"]).kind & kind:
                reply = Reply.decode(replies["client-0"])
                tree = list(unpack(reply.content))
                tree[0 if kind == Kind.MEASURE else 1] = (wide,)
                replies["client-0"] = dataclasses.replace(reply, content=pack(tuple(tree))).encode()
            return replies

    algorithm = fs.FedSGM(0.1)
    program = Program.of(algorithm, PROBLEM, PARAMS)
    assert not program.can_decide((wide,))
    assert not program.can_summarise((wide,))
    result = fs.federate(algorithm, PROBLEM, Wide.of(program, CLIENTS, tmp_path), PARAMS, rounds=3, progress=False)
    assert "the numbers do not fit their form" in str(result.settings["federation"]["clients"][0]["left_out"])
    assert (result.history["answered"][0, 1:] == 4).all()
