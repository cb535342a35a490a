"""A statistic of several parts: the largest is bounded, and a rule that weighs each by itself sees them all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess

RNG = np.random.default_rng(0)
CLIENTS = fs.Clients.from_list(
    [{"a": RNG.normal(1.0, 0.3, (n, 2)).astype(np.float32), "group": np.arange(n) % 2} for n in (4, 6, 5)]
)
START = np.float32([2.0, -1.5])
ROUNDS = 60


def distance(w, example):
    return 0.5 * jnp.sum((w - example["a"]) ** 2)


def sums(w, example):
    member = jax.nn.one_hot(example["group"], 2)
    return {"count": member, "push": member * (example["a"] @ w)}


def means(total):
    return total["push"] / total["count"]


def differences(total):
    first, second = means(total)
    return jnp.stack([first - second, second - first])


WHOLE = fs.Statistic(sums, differences, name="gap", parts=2)
APART = [fs.Statistic(sums, lambda total, i=i: differences(total)[i], name=f"part {i}") for i in range(2)]
BOUND = 0.05


def problem(constraints):
    return fs.Problem(distance, constraints, weigh="rows")


def run(constraints, rule, **more):
    made = fs.FedSGM(0.1, 2, rule=rule)
    return fs.simulate(made, problem(constraints), CLIENTS, START, rounds=ROUNDS, progress=False, **more)


def gap(w):
    """By NumPy: the mean pushes of the two groups, over all clients."""
    rows = [CLIENTS[j] for j in range(len(CLIENTS))]
    a, group = (np.concatenate([part[name] for part in rows]) for name in ("a", "group"))
    return abs(np.subtract(*((a[group == g].astype(np.float64) @ w).mean() for g in (0, 1))))


def test_the_largest_part_is_what_is_measured():
    result = run([WHOLE <= BOUND], fs.Adaptive())
    np.testing.assert_allclose(result.value("train", "gap", "last")[0], gap(result.last), rtol=1e-4, atol=1e-6)
    assert gap(START) > BOUND
    assert result.history["gap"][0].min() < 0.6 * gap(START)


def test_each_part_is_weighed_by_itself():
    """As if the parts were constraints of their own: the same steps."""
    whole, apart = run([WHOLE <= BOUND], fs.Adaptive(0.5)), run([part <= BOUND for part in APART], fs.Adaptive(0.5))
    np.testing.assert_allclose(whole.last, apart.last, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole.history["weight"], apart.history["weight"], rtol=1e-4, atol=1e-6)
    assert 0 < whole.history["weight"].max() < 1


def test_a_rule_of_one_weight_follows_the_largest_part():
    def largest(total):
        return jnp.max(differences(total))

    one = fs.Statistic(sums, largest, name="gap")
    parts, plain = (run([quantity <= BOUND], fs.Soft(10.0)) for quantity in (WHOLE, one))
    np.testing.assert_allclose(parts.last, plain.last, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parts.history["weight"], plain.history["weight"], rtol=1e-4, atol=1e-6)


def test_parts_stand_beside_other_constraints():
    size = fs.Mean(lambda w, _: jnp.sum(w), name="size")
    both = run([size <= 1.5, WHOLE <= BOUND], fs.Adaptive(0.5))
    apart = run([size <= 1.5, *(part <= BOUND for part in APART)], fs.Adaptive(0.5))
    np.testing.assert_allclose(both.last, apart.last, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(both.history["size"], apart.history["size"], rtol=1e-5)


def test_a_federated_run_takes_the_same_steps(tmp_path):
    made, posed = fs.FedSGM(0.1, 2, rule=fs.Adaptive(0.5)), problem([WHOLE <= BOUND])
    transport = InProcess.of(Program.of(made, posed, START), CLIENTS, tmp_path)
    federated = fs.federate(made, posed, transport, START, rounds=ROUNDS, progress=False)
    simulated = run([WHOLE <= BOUND], fs.Adaptive(0.5))
    for name in ("objective", "gap", "weight", "bytes_up", "bytes_down"):
        np.testing.assert_allclose(federated.history[name], simulated.history[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_part_that_is_undefined_is_passed_over():
    def some(total):
        return jnp.stack([differences(total)[0], jnp.float32(jnp.nan)])

    partly = fs.Statistic(sums, some, name="gap", parts=2)
    first = run([partly <= BOUND], fs.Adaptive(0.5))
    alone = run([APART[0] <= BOUND], fs.Adaptive(0.5))
    np.testing.assert_allclose(first.last, alone.last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("switch_on", [None, means])
def test_other_numbers_than_parts_are_refused(switch_on):
    wrong = fs.Statistic(sums, differences, name="gap", parts=3, switch_on=switch_on)
    with pytest.raises(fs.SettingError, match=r"its value must return 3 numbers, as parts= says"):
        run([wrong <= BOUND], fs.Adaptive())
    with pytest.raises(fs.SettingError, match=r"Statistic: parts=0"):
        fs.Statistic(sums, differences, parts=0)
