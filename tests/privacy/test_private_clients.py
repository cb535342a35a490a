"""Client level: messages cut after the compressor, noise on the sums, an auditor, the account, the same in engines."""

import dataclasses

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

import fedsgm as fs
from fedsgm.base.layout import Layout
from fedsgm.base.structs import as_float32, replaced
from fedsgm.core import feedback
from fedsgm.core.algorithm import Flat
from fedsgm.core.feedback import Memory
from fedsgm.engines.recording import summarised
from fedsgm.federation import Program
from fedsgm.federation.inprocess import Fault, InProcess
from fedsgm.privacy.task import guarded
from support.auditing import lower_bound
from support.federated import CLIENTS, PARAMS, PROBLEM

RANGES = {"objective": (0.0, 3.0), "minority": (0.0, 3.0)}
PRIVACY = fs.Privacy(epsilon=8.0, delta=1e-3, rounds=6, clip=0.5, ranges=RANGES, unit="client", secret=7)
ALGORITHM = fs.FedSGM(
    0.1, 2, 3, rule=fs.Soft(40.0), uplink=fs.TopK(0.3), downlink=fs.TopK(0.3), batch_size=8, privacy=PRIVACY
)
LINKS = [
    fs.Identity(),
    fs.TopK(0.3),
    fs.RandK(0.3),
    fs.SharedK(0.5),
    fs.ScaledSign(),
    fs.Quantize("int4", block=8),
    fs.Quantize("float8"),
    fs.Layerwise(fs.TopK(0.5), (10, 21)),
]


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_what_is_sent_is_no_longer_than_the_clip_and_the_rest_is_remembered(link):
    rng = np.random.default_rng(3)
    memory, shared = feedback.init(link, 31, longest=1.0), jax.random.key(9)
    assert memory.error is not None, "an uplink that does not compress leaves out what is cut"
    for scale in (1e-3, 1.0, 1e6):
        update = jnp.asarray(scale * rng.normal(size=31), jnp.float32)
        message, after = feedback.send(link, memory, update, jax.random.key(1), shared, 1.0)
        sent = feedback.received(link, message, 31)
        whole = feedback.received(link, link.compress(memory.error + update, shared), 31)
        assert np.linalg.norm(np.float64(sent)) <= 1.0
        if np.linalg.norm(whole) > 2:
            assert np.linalg.norm(sent) > (0.9 if not isinstance(link, fs.SharedK) else 0.5)
        np.testing.assert_allclose(after.error + sent, memory.error + update, rtol=1e-5, atol=1e-6 * scale)
        memory = after


def test_entries_are_named_by_the_noisy_mean():
    """What the server remembers of a round is what its step was, noise and all; of a plain run, what was sent."""
    link = fs.SharedK(0.5, history=0.25)
    for privacy in (None, PRIVACY):
        algorithm = dataclasses.replace(
            ALGORITHM, uplink=link, downlink=fs.Identity(), privacy=privacy, batch_size=None
        )
        traced, task = as_float32((algorithm, Flat(guarded(algorithm, PROBLEM), Layout.of(PARAMS))))
        server = traced.init(task, task.layout.flatten(PARAMS), 5)
        message = link.compress(jnp.ones(31), jax.random.key(3), server.history.largest())
        mean = link.decompress(message, 31)
        after, _ = traced.aggregate(
            task, server, jax.tree.map(lambda a: jnp.stack([a] * 3), message), jax.random.key(0)
        )
        step = (server.replica - after.replica) / 0.1
        np.testing.assert_allclose(after.history.rate, step, rtol=1e-4, atol=1e-5)
        assert (np.abs(step - mean).max() < 1e-5) == (privacy is None)


def test_a_message_that_is_not_finite_is_not_sent_and_one_that_cannot_be_cut_is_refused():
    update = jnp.array([np.nan, 1.0])
    message, _ = feedback.send(fs.Identity(), Memory(None), update, jax.random.key(0), None, 1.0)
    np.testing.assert_array_equal(message.values, 0)
    with pytest.raises(fs.SettingError, match="cannot be cut to a length"):
        feedback.send(fs.Natural(), Memory(None), update, jax.random.key(0), None, 1.0)


def objective(w, example):
    return w @ example["x"]


STATED = fs.Problem(
    objective,
    [
        fs.Mean(lambda _, e: e["v"], name="value") <= 0.5,
        fs.Statistic(lambda _, e: e["s"] + 0.0, lambda total: total[0], name="sums") <= 0.1,
    ],
)
BOUNDS = {"objective": (-1.0, 1.0), "value": (0.0, 1.0), "sums": 2.0}


def federation(sign):
    """Three clients, of which the first is as far out as its data can be."""
    rng = np.random.default_rng(0)
    one = {"x": rng.normal(0, 0.1, (3, 2, 4)), "v": rng.uniform(0, 1, (3, 2)), "s": rng.normal(0, 0.1, (3, 2, 4))}
    one["x"][0], one["v"][0], one["s"][0] = [sign * 1e3, 0, 0, 0], sign * 1e3, [sign * 1e3, 0, 0, 0]
    each = [{name: a[j].astype(np.float32) for name, a in one.items()} for j in range(3)]
    return fs.Clients.from_list(each)


def released(task, algorithm, data, key):
    """What leaves the server in a round and at the end: estimates, the model, and the values of two models."""
    w = jnp.ones(4)
    keys = jax.vmap(lambda j: jax.random.fold_in(key, j))(jnp.arange(3))
    statistics, kept = jax.vmap(lambda d, k: algorithm.measure(task, w, d, k))(data, keys)
    server = algorithm.init(task, w, 3)
    direction, server, measured = algorithm.decide(task, server, statistics, jnp.arange(3), 3, key)
    update = jax.vmap(
        lambda d, kept, k: algorithm.local_update(task, task.layout.apart(w), direction, d, kept, Memory(None), k)
    )
    server, _ = algorithm.aggregate(task, server, update(data, kept, keys)[0], key)
    values = [summarised(task, at, jax.vmap(lambda d, at=at: task.evaluate(at, d))(data))[0] for at in (w, 2 * w)]
    ends = [each[name] for each in values for name in ("objective", "value", "sums")]
    return jnp.concatenate([measured.violations, server.replica, jnp.stack(ends)])


def audited(noise=1.0, trials=40_000):
    privacy = fs.Privacy(epsilon=1.0, delta=1e-2, rounds=1, clip=1.0, ranges=BOUNDS, unit="client", secret=1)
    algorithm = fs.FedSGM(1.0, rule=fs.Unconstrained(), memory=False, privacy=privacy)
    task = guarded(algorithm, STATED)
    task = replaced(task, noise=noise * task.noise)
    found = []
    for j, sign in enumerate((1, -1)):
        data = jax.tree.map(jnp.asarray, task.prepare(federation(sign), jnp.ones(4)))

        def one(key, data=data):
            flat = Flat(replaced(task, secret=jax.random.key_data(key)), Layout.of(np.ones(4, np.float32)))
            return released(flat, as_float32(algorithm), data, key)

        keys = jax.random.split(jax.random.key(j), trials)
        found.append(np.asarray(jax.lax.map(one, keys, batch_size=2000)))
    spread = found[0].std(axis=0)
    return lower_bound(found[0] / spread, found[1] / spread, privacy.delta)


def test_an_auditor_finds_no_more_than_is_claimed_and_finds_noise_that_was_halved():
    assert 0.2 < audited() <= 1.0
    assert audited(noise=0.5) > 1.0


def run(folder, algorithm=ALGORITHM, **more):
    transport = InProcess.of(Program.of(algorithm, PROBLEM, PARAMS), CLIENTS, folder, more.pop("plan", None))
    return fs.federate(algorithm, PROBLEM, transport, PARAMS, **{"rounds": 6, "progress": False} | more)


def test_both_engines_take_the_same_steps(tmp_path):
    simulated = fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=6, progress=False)
    federated = run(tmp_path)
    for name in ("estimate", "weight", "radius", "epsilon", "bytes_up", "minority_radius"):
        np.testing.assert_allclose(federated.history[name], simulated.history[name], rtol=1e-3, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), federated.last, simulated.last)
    for result in (simulated, federated):
        assert np.isnan(result.history["objective"][0, :-1]).all(), "no true value is measured on the way"
        assert len(set(result.history["bytes_up"][0])) == 1, "lengths of messages tell nothing"
        told = result.verdict()
        assert told.startswith(("FEASIBLE with probability at least 0.95", "NOT SHOWN TO BE FEASIBLE"))
        assert f"epsilon {result.history['epsilon'][0, -1]:.3g} at delta 0.001 for one client" in told
    accounts = federated.settings["federation"]["clients"]
    assert len({each["frames_up"] / each["answered"] for each in accounts if each["answered"] == 3}) <= 1


def test_noise_is_of_the_sum_and_not_of_a_client():
    """The model of one round differs from that without noise by what the sum needs, over how many there are."""
    steps = []
    for noise in (1.0, 0.0):
        task = guarded(ALGORITHM, PROBLEM)
        task = as_float32(Flat(replaced(task, noise=noise * task.noise), Layout.of(PARAMS)))
        sums = feedback.Summed(jnp.zeros(31), jnp.float32(3))
        steps.append(
            jax.vmap(lambda key, task=task, sums=sums: sums.mean(task.task, key))(
                jax.random.split(jax.random.key(0), 4000)
            )
        )
    noise = np.asarray(steps[0] - steps[1])
    expected = float(guarded(ALGORITHM, PROBLEM).multipliers[1]) * 2 * 0.5 / 3
    np.testing.assert_allclose(noise.std(), expected, rtol=0.01)
    assert abs(noise.mean()) < 4 * expected / np.sqrt(noise.size)


def by_hand(task, measured, updated, finals=0):
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    for multiplier, count in zip((*task.multipliers, task.noise), (measured, updated, finals), strict=True):
        if count:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
    return accountant.get_epsilon(task.privacy.delta)


@pytest.mark.parametrize("query", ["participants", "all"])
@pytest.mark.parametrize("unit", ["example", "client"])
def test_the_account_is_of_the_client_that_is_drawn_most(query, unit):
    privacy = dataclasses.replace(PRIVACY, unit=unit, rounds=6)
    algorithm = dataclasses.replace(ALGORITHM, query=query, privacy=privacy, batch_size=None)
    result = fs.simulate(algorithm, PROBLEM, CLIENTS, PARAMS, rounds=6, progress=False)
    task, drawn = guarded(algorithm, PROBLEM), result.history["participants"][0]
    for t in (2, 5):
        most = int(np.bincount(drawn[: t + 1].ravel()).max())
        measured = t + 1 if query == "all" else most
        expected = by_hand(task, measured, most, 2 if t == 5 else 0)
        assert result.history["epsilon"][0, t] == pytest.approx(expected, rel=1e-4)
    assert result.history["epsilon"][0, -1] < 8
    if query == "all":
        return
    least = int(np.bincount(drawn.ravel()).max())
    fits = dataclasses.replace(algorithm, privacy=dataclasses.replace(privacy, rounds=least))
    spent = fs.simulate(fits, PROBLEM, CLIENTS, PARAMS, rounds=6, progress=False).history["epsilon"]
    assert 7.9 < spent[0, -1] <= 8, "less noise for the rounds that one client really takes part in"
    fewer = dataclasses.replace(algorithm, privacy=dataclasses.replace(privacy, rounds=least - 1))
    with pytest.raises(fs.SettingError, match=rf"draws one client for more; set Privacy\(rounds={least}\)"):
        fs.simulate(fewer, PROBLEM, CLIENTS, PARAMS, rounds=6, progress=False)


EACH = fs.Problem(PROBLEM.objective, [fs.each_client(PROBLEM.constraints[0].quantity) <= 0.1])
ABSENT = fs.Problem(PROBLEM.objective, [fs.Mean(lambda *_: 0.0, name="minority", missing="absent") <= 0.1])


@pytest.mark.parametrize(
    ("changes", "problem", "why"),
    [
        ({"robust": fs.Krum(1)}, PROBLEM, "robust aggregation"),
        ({"query": "memory"}, PROBLEM, "query='memory' tells of absent clients"),
        ({"rule": fs.Hard(margin=fs.StandardErrors(1.0))}, PROBLEM, "standard errors"),
        ({}, dataclasses.replace(PROBLEM, weigh="rows"), "how many examples a client has"),
        ({}, ABSENT, "missing='absent' tells who has examples"),
        ({}, EACH, "each client's own value"),
        ({"uplink": fs.Natural()}, PROBLEM, "cannot be cut to a length"),
    ],
)
def test_what_tells_of_one_client_is_refused(changes, problem, why):
    with pytest.raises(fs.SettingError, match=why):
        fs.simulate(dataclasses.replace(ALGORITHM, **changes), problem, CLIENTS, PARAMS, rounds=2, progress=False)


class TestRepeats:
    """What a round that is done again spends is counted, and the run ends when there is no more."""

    def lost(self, *where):
        """The replies to these exchanges of all clients but one."""
        return lambda exchange, name: Fault.LOSE_REPLY if exchange in where and name != "client-0" else None

    @pytest.mark.parametrize("unit", ["example", "client"])
    def test_a_round_that_is_done_again(self, tmp_path, unit):
        privacy = dataclasses.replace(PRIVACY, unit=unit)
        everybody = dataclasses.replace(ALGORITHM, participants=None, batch_size=None, privacy=privacy)
        # Exchanges: 0 measure, 1 update, 2 measure, twice as too few answer, and again in another try.
        result = run(tmp_path, everybody, min_participants=3, plan=self.lost(2, 3))
        task, (epsilon,) = guarded(everybody, PROBLEM), result.history["epsilon"]
        assert epsilon[0] == pytest.approx(by_hand(task, 1, 1), rel=1e-4)
        assert epsilon[1] == pytest.approx(by_hand(task, 4, 2), rel=1e-4), "three questions in the second round"
        rounds = len(epsilon)
        share = privacy.share
        assert rounds == 5, "the sixth would spend more than there is"
        assert (rounds + 2) * share + rounds * (1 - share) <= 6
        assert epsilon[-1] == pytest.approx(by_hand(task, rounds + 2, rounds, 2), rel=1e-4)
        assert epsilon[-1] <= 8
        assert result.settings["stopped"] == {"of": 6, "why": "the privacy budget is spent"}
        assert "stopped    of 6 rounds: the privacy budget is spent" in result.verdict()

    def test_an_update_that_is_asked_for_again_is_the_same_and_costs_nothing(self, tmp_path):
        everybody = dataclasses.replace(ALGORITHM, participants=None)
        result = run(tmp_path, everybody, min_participants=3, plan=self.lost(1))
        task = guarded(everybody, PROBLEM)
        assert result.history["epsilon"][0, 0] == pytest.approx(by_hand(task, 1, 1), rel=1e-4)
        assert len(result.history["epsilon"][0]) == 6

    def test_a_server_that_is_stopped_counts_what_it_may_have_asked_for(self, tmp_path):
        everybody = dataclasses.replace(ALGORITHM, participants=None)
        program = Program.of(everybody, PROBLEM, PARAMS)
        transport = InProcess.of(program, CLIENTS, tmp_path / "clients")

        def go(**more):
            return fs.federate(everybody, PROBLEM, transport, PARAMS, rounds=6, progress=False, **more)

        class Stopped(BaseException):
            pass

        def stop(exchange, _):
            if exchange == 5:  # the update of the third round
                raise Stopped

        transport.plan = stop
        with pytest.raises(Stopped):
            go(checkpoint=tmp_path / "server")
        transport.plan = lambda *_: None
        result = go(checkpoint=fs.Checkpoint(tmp_path / "server", resume=True))
        assert result.history["epsilon"].shape == (1, 5)
        task = guarded(everybody, PROBLEM)
        np.testing.assert_allclose(result.history["epsilon"][0, 2], by_hand(task, 4, 4), rtol=1e-4)
        with pytest.raises(fs.FederationError, match="its privacy budget is spent"):
            go(checkpoint=fs.Checkpoint(tmp_path / "server", resume=True))

    def test_nothing_is_left_for_a_first_round(self, tmp_path):
        few = dataclasses.replace(ALGORITHM, participants=None, privacy=dataclasses.replace(PRIVACY, rounds=1))
        with pytest.raises(fs.FederationError, match="spent before a round was done"):
            run(tmp_path, few, rounds=1, min_participants=3, plan=self.lost(0))
