"""Robust aggregators: one contract for all of them, and what they keep out of a run, in both engines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.structs import replaced
from fedsgm.core.feedback import Memory, settled
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess
from support.federated import CLIENTS, PARAMS, PROBLEM

M, BAD = 11, 2
AGGREGATORS = [fs.Outliers(), fs.NormBound(2.0), fs.Trimmed(0.2), fs.Median(), fs.Krum(BAD)]
ALL = np.ones(M, np.float32)
HONEST = np.random.default_rng(0).normal(1.0, 0.1, (M, 6)).astype(np.float32)


def each(name):
    return pytest.mark.parametrize(name, AGGREGATORS, ids=lambda robust: type(robust).__name__)


@each("robust")
def test_the_order_of_clients_does_not_matter(robust):
    vectors = np.concatenate([HONEST[BAD:], -30 * HONEST[:BAD]])
    order = np.random.default_rng(1).permutation(M)
    there, rejected = robust.combined(vectors, ALL)
    other, moved = robust.combined(vectors[order], ALL)
    np.testing.assert_allclose(other, there, rtol=1e-5)
    np.testing.assert_allclose(moved, rejected[order], atol=1e-6)


@each("robust")
def test_clients_that_agree_are_averaged_and_none_is_rejected_but_by_krum(robust):
    same = np.tile(HONEST[0], (M, 1))
    combined, rejected = robust.combined(same, ALL)
    np.testing.assert_allclose(combined, HONEST[0], rtol=1e-6)
    assert float(np.sum(rejected)) == (BAD if isinstance(robust, fs.Krum) else 0)


@pytest.mark.parametrize("robust", [fs.Outliers(), fs.NormBound(1e6), fs.Trimmed(1e-6)], ids=lambda r: type(r).__name__)
def test_what_leaves_nothing_out_is_the_mean(robust):
    vectors = HONEST[:2] if isinstance(robust, fs.Trimmed) else HONEST
    there, rejected = robust.combined(vectors, ALL[: len(vectors)])
    np.testing.assert_allclose(there, vectors.mean(axis=0), rtol=1e-6)
    assert not np.asarray(rejected).any()


@each("robust")
def test_who_is_not_believed_has_no_part_in_the_step(robust):
    """As if it had not been there, and it counts among those that an aggregator was told of."""
    believed = np.float32([1] * (M - BAD) + [0] * BAD)
    vectors = np.concatenate([HONEST[BAD:], np.full((BAD, 6), 1e9, np.float32)])
    found, rejected = jax.jit(type(robust).combined)(robust, vectors, believed)
    few = HONEST[BAD:]
    alone = robust.combined(few, ALL[: len(few)])[0]
    if isinstance(robust, fs.Krum):  # told of 2 of 11, who are out
        alone = few.mean(axis=0)
    if isinstance(robust, fs.Trimmed):  # told of 3 of 11, of whom 2 are out
        alone = np.sort(few, axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(found, alone, rtol=1e-5)
    assert np.asarray(rejected)[-BAD:].tolist() == [1, 1]


@each("robust")
@pytest.mark.parametrize("size", [1e2, 1e6, 1e12])
def test_as_many_attackers_as_it_is_for_move_it_little_however_far_they_go(robust, size):
    clean = HONEST[BAD:].mean(axis=0)
    bad = np.concatenate([HONEST[BAD:], np.full((BAD, 6), -size, np.float32)])
    far = np.linalg.norm(robust.combined(bad, ALL)[0] - clean)
    # An attacker of bounded length adds twice the median length at most, and takes an honest one's place.
    moved = BAD / M * (2 * np.median(np.linalg.norm(bad, axis=1)) + np.linalg.norm(clean))
    assert far <= (1.001 * moved if isinstance(robust, fs.NormBound) else 0.2)


@pytest.mark.parametrize(("robust", "most"), [(fs.Trimmed(0.2), 3), (fs.Median(), 5)], ids=["Trimmed", "Median"])
def test_the_breakdown_point_is_where_theory_has_it(robust, most):
    for bad in (most, most + 1):
        vectors = np.concatenate([HONEST[bad:], np.full((bad, 6), 1e6, np.float32)])
        assert bool(np.linalg.norm(robust.combined(vectors, ALL)[0]) < 1e3) == (bad == most)


# What 20 honest clients said of the minority's loss in a late round of Neyman-Pearson: two of them have most of it.
UNLIKE = np.float32(
    [
        *(0.0001, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.009, 0.0095),
        *(0.01, 0.012, 0.014, 0.018, 0.03, 0.041, 0.105, 0.115, 0.166, 0.316),
    ]
)
LOSS = fs.Mean(lambda w, _: w, name="loss")


def combined(values, constraint=LOSS <= 0.05, heard=None):
    problem = fs.Problem(lambda w, _: w, [constraint])

    @jax.jit
    def measured(values, heard):
        return problem.combine((values,), 0.0, jax.random.key(0), heard, fs.Outliers())

    return measured(jnp.asarray(values), heard)


def test_honest_clients_that_are_unlike_count_in_full():
    measured = combined(UNLIKE)
    assert not np.asarray(measured.doubted).any()
    np.testing.assert_allclose(measured.report["estimate"], UNLIKE.mean(), rtol=1e-6)


@pytest.mark.parametrize("lie", [-10.0, 10.0, -3e38, 3e38])
@pytest.mark.parametrize("liars", [1, 3])
def test_who_says_what_cannot_be_is_as_one_that_was_not_heard(lie, liars):
    measured = combined(np.concatenate([UNLIKE[liars:], np.full(liars, lie, np.float32)]))
    assert np.asarray(measured.doubted).tolist() == [0] * (20 - liars) + [1] * liars
    np.testing.assert_allclose(measured.report["estimate"], UNLIKE[liars:].mean(), rtol=1e-6)


def test_a_liar_that_is_believed_lowers_the_estimate_by_little():
    """Three of 20 that know all, and claim together the least that is believed: by 15% of the bound, here."""
    lies = jnp.linspace(-1, 0, 401)
    said = jax.vmap(lambda lie: jnp.concatenate([UNLIKE[3:], jnp.full(3, lie)]))(lies)
    found = jax.vmap(lambda values: combined(values).report["estimate"])(said)
    assert 0.05 * 0.05 < UNLIKE.mean() - jnp.min(found) < 0.15 * 0.05


def test_what_is_good_to_say_is_believed_less_far_than_what_is_bad():
    """5 and 50 times as far as the next quarter of the clients is, on that side."""
    values = np.linspace(0, 0.1, 11, dtype=np.float32)
    for constraint, good in ((LOSS <= 0.05, -1), (LOSS >= 0.05, 1)):
        said, expected = [], []
        for far, out in ((4.9, (0, 0)), (5.1, (1, 0)), (49, (1, 0)), (51, (1, 1))):
            for sign, doubted in zip((good, -good), out, strict=True):
                quartiles = np.quantile([*values, sign], [0.25, 0.5, 0.75])
                unit = np.diff(quartiles)[0 if sign < 0 else 1]
                said.append(np.float32([*values, quartiles[1] + sign * far * unit]))
                expected.append(doubted)
        found = jax.vmap(lambda values, of=constraint: combined(values, of).doubted)(np.stack(said))
        assert np.asarray(found)[:, -1].tolist() == expected
        assert not np.asarray(found)[:, :-1].any()


def test_clients_that_agree_to_a_rounding_or_mostly_to_the_digit_are_all_believed():
    assert not np.asarray(combined(np.float32(np.log(2)) + np.float32([0, 6e-8, -6e-8, 0, 0])).doubted).any()
    errors = np.float32([0] * 17 + [0.1, 0.1, 0.2])
    assert not np.asarray(combined(errors).doubted).any()


def test_who_was_not_heard_is_not_judged_by():
    heard = jnp.float32([1] * 18 + [0, 0])
    values = np.concatenate([UNLIKE[:18], np.float32([1e9, np.nan])])
    measured = combined(values, heard=heard)
    assert not np.asarray(measured.doubted).any()
    np.testing.assert_allclose(measured.report["estimate"], UNLIKE[:18].mean(), rtol=1e-6)


def test_a_client_that_says_it_has_most_of_the_rows_is_not_believed():
    problem = fs.Problem(lambda w, _: w, [LOSS <= 0.05], weigh="rows")
    rows = np.float32([100 + i for i in range(M)])
    losses = np.float32([0.04 + 0.001 * i for i in range(M)])
    for said, out in ((250.0, 0), (1e6, 1)):
        rows[-1] = said
        measured = problem.combine(((losses * rows, rows), rows), 0.0, jax.random.key(0), None, fs.Outliers())
        assert np.asarray(measured.doubted).tolist() == [0] * (M - 1) + [out]
        kept = slice(M - out)
        np.testing.assert_allclose(
            measured.report["estimate"], (losses * rows)[kept].sum() / rows[kept].sum(), rtol=1e-5
        )


def gap(total):
    return jnp.abs(total["rate"][0] / total["count"][0] - total["rate"][1] / total["count"][1])


STATISTIC = fs.Statistic(lambda _, e: e, gap, name="gap")
SUMS = {
    "rate": np.float32([[30 + i % 3, 20 - i % 2] for i in range(M)]),
    "count": np.float32([[60, 50 + i % 4] for i in range(M)]),
}


@each("robust")
def test_of_a_statistic_over_everybody_liars_are_left_out(robust):
    problem = fs.Problem(lambda w, _: w, [STATISTIC <= 0.05])
    lies = jax.tree.map(np.copy, SUMS)
    lies["rate"][-2:] = [[-500, 800], [-700, 90]]
    key = jax.random.key(0)
    clean = problem.combine((SUMS,), 0.0, key).report["estimate"]
    fooled = problem.combine((lies,), 0.0, key).report["estimate"]
    measured = problem.combine((lies,), 0.0, key, None, robust)
    assert abs(fooled - clean) > 0.1
    honest = problem.combine((jax.tree.map(lambda a: a[:-BAD], SUMS),), 0.0, key).report["estimate"]
    np.testing.assert_allclose(measured.report["estimate"], honest, rtol=1e-5)
    assert np.asarray(measured.doubted).tolist() == [0] * (M - BAD) + [1, 1]


def test_a_large_client_is_believed_and_one_of_negative_counts_is_not():
    problem, key = fs.Problem(lambda w, _: w, [STATISTIC <= 0.05]), jax.random.key(0)
    for times, out in ((2.5, 0), (-10.0, 1)):
        said = jax.tree.map(np.copy, SUMS)
        for sums in said.values():
            sums[-1] *= times
        measured = problem.combine((said,), 0.0, key, None, fs.Outliers())
        assert np.asarray(measured.doubted).tolist() == [0] * (M - 1) + [out]


def test_a_group_that_most_clients_lack_cannot_be_judged_and_everybody_counts():
    few = jax.tree.map(lambda a: np.where(np.arange(M)[:, None] < 2, a, a * np.float32([1, 0])), SUMS)
    problem, key = fs.Problem(lambda w, _: w, [STATISTIC <= 0.05]), jax.random.key(0)
    robust = problem.combine((few,), 0.0, key, None, fs.Krum(2))
    assert robust.report["estimate"] == problem.combine((few,), 0.0, key).report["estimate"]
    assert not np.asarray(robust.doubted).any()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"robust": fs.Krum}, "must be an aggregator"),
        ({"robust": fs.Trimmed(0.1), "uplink": fs.TopK(0.1)}, "goes entry by entry"),
        ({"robust": fs.Median(), "uplink": fs.Layerwise(fs.RandK(0.1), (31,))}, "goes entry by entry"),
    ],
)
def test_what_cannot_be_combined_is_refused(settings, told):
    with pytest.raises(fs.SettingError, match=told):
        fs.FedSGM(0.1, **settings)


@pytest.mark.parametrize(("make", "told"), [(lambda: fs.Trimmed(0.5), "Median"), (lambda: fs.NormBound(0.5), "factor")])
def test_bad_numbers_are_refused(make, told):
    with pytest.raises(fs.SettingError, match=told):
        make()


def test_too_few_participants_and_the_worst_client_are_refused():
    with pytest.raises(fs.SettingError, match="needs 5 participants or more to leave one out, but there are 3"):
        fs.simulate(fs.FedSGM(0.1, participants=3, robust=fs.Krum(1)), PROBLEM, CLIENTS, PARAMS, rounds=1)
    worst = fs.Problem(PROBLEM.objective, [fs.each_client(PROBLEM.constraints[0].quantity) <= 0.1])
    with pytest.raises(fs.SettingError, match="each_client"):
        fs.simulate(fs.FedSGM(0.1, robust=fs.Krum(1)), worst, CLIENTS, PARAMS, rounds=1)


def test_a_client_whose_message_was_not_used_is_as_one_that_did_not_take_part():
    before, after = Memory(jnp.zeros(4)), Memory(jnp.float32([0, 1, 0, 0]))
    assert settled(after, before, jnp.float32(0.9)).error.tolist() == [0, 1, 0, 0]
    assert settled(after, before, jnp.float32(1)).error.tolist() == [0, 0, 0, 0]


@fs.struct
class Dishonest(fs.FedSGM):
    """Clients with much of the first feature lie: a long message, and no violation."""

    def measure(self, task, w, data, key):
        statistics, kept = super().measure(task, w, data, key)
        return jax.tree.map(lambda a: jnp.where(self._lies(data), -10.0, a), statistics), kept

    def local_update(self, *given):
        message, after = super().local_update(*given)
        scale = jnp.where(self._lies(given[3]), -100.0, 1.0)
        return replaced(message, values=scale * message.values), after

    @staticmethod
    def _lies(data):
        return data.examples["x"][0, 0] > 100


LIAR = 3
EXAMPLES = [CLIENTS[j] for j in range(5)]
EXAMPLES[LIAR] = {"x": EXAMPLES[LIAR]["x"].copy(), "y": EXAMPLES[LIAR]["y"]}
EXAMPLES[LIAR]["x"][0, 0] = 101.0  # the mark
MARKED = fs.Clients.from_list(EXAMPLES)


@pytest.mark.parametrize("robust", [fs.Outliers(), fs.Krum(1), fs.NormBound(2.0)], ids=lambda r: type(r).__name__)
def test_both_engines_reject_the_same_and_take_the_same_steps(robust, tmp_path):
    algorithm = Dishonest(0.05, 2, rule=fs.Soft(40.0), uplink=fs.TopK(0.3), downlink=fs.TopK(0.3), robust=robust)
    simulated = fs.simulate(algorithm, PROBLEM, MARKED, PARAMS, rounds=12, progress=False)
    program = Program.of(algorithm, PROBLEM, PARAMS)
    transport = InProcess.of(program, MARKED, tmp_path)
    federated = fs.federate(algorithm, PROBLEM, transport, PARAMS, rounds=12, progress=False)
    for name in ("rejected", "doubted", "estimate", "weight", "bytes_up"):
        np.testing.assert_allclose(federated.history[name], simulated.history[name], rtol=1e-4, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), federated.last, simulated.last)
    assert (simulated.history["doubted"][0, :, LIAR] == 1).all()
    assert (simulated.history["rejected"][0, :, LIAR] == 1).all()
    account = federated.settings["federation"]["clients"][LIAR]
    assert account["left_out"] == {"statistics that are not believed beside the others'": 12}
    assert (federated.history["answered"] == 4).all()
