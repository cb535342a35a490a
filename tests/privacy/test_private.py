"""Differential privacy: sensitivities by construction, an auditor, the account, and the same steps in both engines."""

import json
import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

import fedsgm as fs
from fedsgm.base.structs import replaced
from fedsgm.core.rules import Direction
from fedsgm.engines.recording import values_of
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.program import At
from fedsgm.privacy import accounting
from fedsgm.privacy.task import budgeted, guarded
from support.auditing import lower_bound
from support.federated import CLIENTS, PARAMS, PROBLEM

RANGES = {"objective": (0.0, 3.0), "minority": (0.0, 3.0)}
PRIVACY = fs.Privacy(epsilon=8.0, delta=1e-3, rounds=6, clip=1.0, ranges=RANGES, secret=7)


def linear(w, example):
    return w @ example["x"]


def value(_, example):
    return example["v"]


def gap(total):
    return total[0] / total[1] - total[2] / total[3]


SUMS = fs.Statistic(lambda _, e: e["s"] + 0.0, gap, name="gap")
STATED = fs.Problem(linear, [fs.Mean(value, name="value") <= 0.5, SUMS <= 0.1])
BOUNDS = {"objective": (-1.0, 1.0), "value": (0.0, 1.0), "gap": 2.0}
ABOVE = BOUNDS | {"gap": (0.0, 2.0)}  # none of the sums is negative


def told(privacy, problem=STATED):
    return guarded(fs.FedSGM(0.1, privacy=privacy), problem)


def examples(seed, n=9):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(0, 3, (n, 4)).astype(np.float32),
        "v": rng.uniform(-1, 2, n).astype(np.float32),
        "s": rng.uniform(0, 3, (n, 4)).astype(np.float32),
    }


def releases(task, data, key):
    """All that a client says in a round and at the end, each over the deviation of its noise."""
    w, n = jnp.ones(4), len(data["v"])
    prepared = jax.tree.map(jnp.asarray, task.prepare_one(data, w))
    ones = jnp.float32(1)
    guide = (jnp.float32([0.5, 0.5]), (None, jnp.full(4, 0.3)))
    (said, variances), kept = task.measure(w, prepared, key)
    step = task.direction(w, Direction(ones, ones, guide), prepared, kept, jax.random.fold_in(key, 2))
    finals = [task.evaluate(model, prepared, key) for model in (w, 2 * w)]
    deviation = task.multipliers[1] * 2 * task.privacy.clip / n
    parts = [jnp.ravel(s) / jnp.sqrt(v) for s, v in zip(said, variances, strict=True)]
    parts += [jnp.ravel(s) / jnp.sqrt(v) for each in finals for s, v in zip(*each, strict=True)]
    return jnp.concatenate([*parts, step / deviation])


@pytest.mark.parametrize("ranges", [BOUNDS, ABOVE])
@pytest.mark.parametrize("seed", range(4))
def test_neighbours_differ_by_no_more_than_the_noise_is_made_for(seed, ranges):
    task = told(fs.Privacy(epsilon=2.0, delta=1e-5, rounds=3, clip=1.0, ranges=ranges, secret=1))
    one = examples(seed)
    other = jax.tree.map(np.copy, one)
    for name, extreme in {"x": -1e4, "v": 1e4, "s": [-1e4, -1e4, -1e4, 1e4]}.items():
        other[name][seed] = extreme
    silent = replaced(task, secret=np.zeros(2, np.uint32))
    key = jax.random.key(0)
    # The same noise on both, so that it cancels: at the end it depends on the data, so those are left out here.
    moved = releases(silent, one, key) - releases(silent, other, key)
    said, step = moved[:5], moved[-4:]
    statistics, update = task.multipliers
    assert float(jnp.sum(said**2)) <= 1.001 / statistics**2
    assert float(jnp.sum(step**2)) <= 1.001 / update**2


def test_sums_that_are_never_negative_need_less_noise_for_two_of_them_are_at_right_angles_at_most():
    key, w = jax.random.key(0), jnp.ones(4)
    one, other = examples(1), examples(1)
    one["s"][0], other["s"][0] = [1e4, 0, 0, 0], [0, 0, 1e4, -1e4]
    variances, moved = [], []
    for ranges in (BOUNDS, ABOVE):
        task = told(fs.Privacy(epsilon=2.0, delta=1e-5, rounds=3, clip=1.0, ranges=ranges, secret=1))
        said = [task.measure(w, jax.tree.map(jnp.asarray, task.prepare_one(data, w)), key)[0] for data in (one, other)]
        variances.append(float(said[0][1][1]))
        moved.append(float(jnp.linalg.norm(said[0][0][1] - said[1][0][1])))
    assert variances[1] == pytest.approx(variances[0] / 2, rel=1e-5)
    assert moved[1] == pytest.approx(2 * math.sqrt(2), rel=1e-3), "by the whole sensitivity, and no more"


def audited(task, trials=40_000, seed=0):
    """A lower bound on epsilon, with confidence 0.99, by telling two neighbours apart by all that is released."""
    canary, other = examples(1, 4), examples(1, 4)
    for data, sign in ((canary, 1), (other, -1)):
        data["x"][0], data["v"][0] = [sign * 1e3, 0, 0, 0], sign * 1e3
        data["s"][0] = [sign * 1e3, 0, 0, 0]
    keys = jax.random.split(jax.random.key(seed), 2 * trials)

    def score(data, keys):
        def one(key):  # noise of its own in every trial
            return releases(replaced(task, secret=jax.random.key_data(key)), data, key)

        return np.asarray(jax.lax.map(one, keys, batch_size=2000))

    return lower_bound(score(canary, keys[:trials]), score(other, keys[trials:]), task.privacy.delta)


def test_an_auditor_finds_no_more_than_is_claimed_and_finds_noise_that_was_halved():
    privacy = fs.Privacy(epsilon=1.0, delta=1e-2, rounds=1, clip=1.0, ranges=BOUNDS, secret=1)
    task = told(privacy)
    found = audited(task)
    assert 0.2 < found <= privacy.epsilon
    assert audited(replaced(task, noise=task.noise / 2)) > privacy.epsilon


def test_the_account_is_that_of_dp_accounting_by_hand():
    task = told(fs.Privacy(epsilon=2.0, delta=1e-5, rounds=40, clip=1.0, ranges=BOUNDS, share=0.3))
    statistics, update = task.multipliers
    for rounds in (1, 17, 40):
        accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
        for multiplier in (statistics, update):
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier), rounds)
        ends = dp_accounting.GaussianDpEvent(task.noise / 2)  # a tenth of 40 rounds is 4, of the values of a model
        accountant.compose(ends, 2)
        spent = budgeted(fs.FedSGM(0.1, privacy=task.privacy), task, rounds, seed=0, clients=3)
        assert spent[-1] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-5)
    assert 1.99 < spent[-1] <= 2.0
    assert 1 / statistics**2 + 1 / update**2 == pytest.approx(1 / task.noise**2)


def test_local_steps_share_what_an_update_may_spend():
    one, four = (guarded(fs.FedSGM(0.1, e, privacy=PRIVACY), PROBLEM) for e in (1, 4))
    assert one.multipliers == four.multipliers
    data = jax.tree.map(jnp.asarray, one.prepare_one(CLIENTS[0], PARAMS))
    direction = Direction(jnp.float32(1), jnp.float32(0), (jnp.zeros(1), (None,)))

    def noise(task):
        quiet = replaced(task, noise=np.float32(0))
        steps = [each.direction(PARAMS, direction, data, None, jax.random.key(3)) for each in (task, quiet)]
        return float(steps[0]["w"][0] - steps[1]["w"][0])

    assert noise(four) == pytest.approx(2 * noise(one), rel=1e-3)


def test_both_engines_take_the_same_steps_and_tell_of_the_budget(tmp_path):
    algorithm = fs.FedSGM(0.1, 2, 3, rule=fs.Soft(40.0), uplink=fs.TopK(0.3), downlink=fs.TopK(0.3), privacy=PRIVACY)
    simulated = fs.simulate(algorithm, PROBLEM, CLIENTS, PARAMS, rounds=6, progress=False)
    program = Program.of(algorithm, PROBLEM, PARAMS)
    transport = InProcess.of(program, CLIENTS, tmp_path)
    federated = fs.federate(algorithm, PROBLEM, transport, PARAMS, rounds=6, progress=False)
    for name in ("estimate", "weight", "radius", "epsilon"):
        np.testing.assert_allclose(federated.history[name], simulated.history[name], rtol=1e-3, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), federated.last, simulated.last)
    for result in (simulated, federated):
        assert np.isnan(result.history["objective"][0, :-1]).all(), "no true value is measured on the way"
        assert result.history["epsilon"][0, -1] <= 8
        told = result.verdict()
        assert told.startswith(("FEASIBLE with probability at least 0.95", "NOT SHOWN TO BE FEASIBLE"))
        assert f"epsilon {result.history['epsilon'][0, -1]:.3g} at delta 0.001 for one example" in told
        assert "secret" not in json.dumps(result.settings)
    at = simulated.history["minority_radius"][0, -1]
    assert (
        simulated.excess("train", "last") == simulated.value("train", "minority", "last") - np.float32(0.05 - at)
    ).all()


def test_the_answer_is_the_mean_of_the_models_by_the_squares_of_their_rounds(tmp_path):
    """A run of fewer rounds has the same noise, so it ends with the model that the longer one came through."""
    algorithm = fs.FedSGM(0.1, rule=fs.Hard(), privacy=PRIVACY)
    runs = [fs.simulate(algorithm, PROBLEM, CLIENTS, PARAMS, rounds=k, progress=False) for k in range(1, 7)]
    models, weights = [run.last["w"].astype(np.float64) for run in runs], np.arange(1, 7) ** 2
    transport = InProcess.of(Program.of(algorithm, PROBLEM, PARAMS), CLIENTS, tmp_path)
    federated = fs.federate(algorithm, PROBLEM, transport, PARAMS, rounds=6, progress=False)
    for result in (runs[-1], federated):
        np.testing.assert_allclose(result.answer["w"], np.average(models, axis=0, weights=weights), atol=1e-5)
        assert result.answer_round.tolist() == [6]
    task = guarded(algorithm, PROBLEM)
    for kind in ("last", "answer"):
        exact = values_of(PROBLEM, CLIENTS, [getattr(runs[-1], kind)])[0]["minority"]
        deviation = float(runs[-1].history["minority_radius"][0, -1]) / 1.645
        assert 0 < abs(runs[-1].value("train", "minority", kind)[0] - exact) < 5 * deviation
    # a mean in [0, 3] of clients of so many minority examples, beside the objective, of the noise of a round
    sizes = np.array([(each["y"] == 1).sum() for each in CLIENTS])
    expected = task.noise * np.sqrt(2) * 3 * np.sqrt((1 / sizes**2).sum()) / len(sizes)
    assert deviation == pytest.approx(expected, rel=1e-3)


def test_the_margin_is_widened_by_the_radius_and_the_ramp_is_as_wide_as_the_noise():
    task = guarded(fs.FedSGM(0.1, privacy=PRIVACY), PROBLEM)
    statistics = ((np.full(5, 0.02, np.float32),), np.full((5, 1), 0.01, np.float32))  # variances
    measured = task.combine(statistics, 0.0, jax.random.key(0))
    deviation = 0.1 / math.sqrt(5)
    np.testing.assert_allclose(measured.radius, 1.645 * deviation, rtol=1e-5)
    algorithm = fs.FedSGM(0.1, rule=fs.Soft(1000.0), privacy=PRIVACY)
    margins = measured.radius / measured.scales
    direction, _ = algorithm._decided(measured, margins, None)
    expected = np.clip(1 + (0.02 - 0.05 + 1.645 * deviation) / deviation, 0, 1)
    np.testing.assert_allclose(direction.constraint, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"epsilon": 0}, "epsilon=0"),
        ({"delta": 1.5}, "below 1"),
        ({"share": 1.0}, "below 1"),
        ({"unit": "silo"}, "one of example, client"),
        ({"ranges": {"objective": (1.0, 0.0)}}, "the first must be below"),
        ({"ranges": [1]}, "a dictionary"),
    ],
)
def test_settings_that_promise_nothing_are_refused(change, told):
    given = {"epsilon": 1.0, "delta": 1e-5, "rounds": 5, "clip": 1.0, "ranges": RANGES}
    with pytest.raises(fs.SettingError, match=told):
        fs.Privacy(**given | change)


@pytest.mark.parametrize(
    ("settings", "options", "told"),
    [
        ({}, {"rounds": 7}, "the privacy budget is for 6"),
        ({}, {"rounds": 6, "seeds": 2}, "a budget of its own"),
        ({}, {"rounds": 6, "callbacks": [fs.callbacks.EarlyStopping()]}, "not stopped early"),
        ({"batch_size": 4}, {"rounds": 6}, "leave batch_size out"),
        ({"constraint_batch_size": 4}, {"rounds": 6}, "leave constraint_batch_size out"),
        (
            {"privacy": fs.Privacy(1.0, 1e-3, 6, 1.0, {"objective": (0.0, 1.0)})},
            {"rounds": 6},
            "declare what 'minority'",
        ),
        ({"privacy": 3}, {"rounds": 6}, "must be a Privacy"),
    ],
)
def test_what_would_be_outside_the_account_is_refused(settings, options, told):
    with pytest.raises(fs.SettingError, match=told):
        fs.simulate(fs.FedSGM(0.1, **{"privacy": PRIVACY} | settings), PROBLEM, CLIENTS, PARAMS, **options)


def test_noise_is_another_in_every_run_and_every_answer_unless_a_secret_is_told():
    privacy = replaced(PRIVACY, secret=None)
    program = Program.of(fs.FedSGM(0.1, privacy=privacy), PROBLEM, PARAMS)
    data, at = program.prepare(CLIENTS[0]), At.of(0, 0, 0)
    first, again = (program.measure(program.start, data, at)[0] for _ in range(2))
    assert first[0] != again[0]


def test_more_budget_is_less_noise_and_more_rounds_more():
    noise = accounting.multiplier(1.0, 1e-5, 100, 0.2)
    assert accounting.multiplier(3.0, 1e-5, 100, 0.2) < noise < accounting.multiplier(1.0, 1e-5, 400, 0.2)
