"""Whose statistics decide: the participants', everybody's, or everybody's last; against NumPy, in both engines."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsgm as fs
from fedsgm.base.structs import Scheduled
from fedsgm.federation import Program
from fedsgm.federation.inprocess import Fault, InProcess, seeded
from fedsgm.tables import fairness
from support.runs import assert_identical, logistic, negative, positive

N, M, ROUNDS, D = 6, 2, 9, 4
RNG = np.random.default_rng(5)
A, B = RNG.normal(size=(N, D)).astype(np.float32), RNG.normal(size=(N, D)).astype(np.float32)
CLIENTS = fs.Clients.from_list([{"a": A[j : j + 1], "b": B[j : j + 1], "g": np.array([j % 2])} for j in range(N)])
START = np.ones(D, np.float32)
MEAN = fs.Mean(lambda w, example: example["b"] @ w, name="mean")
RATIO = fs.Statistic(  # a ratio of sums, no mean over clients
    lambda w, example: {"top": jnp.tanh(example["b"] @ w), "bottom": 1 + example["a"][0] ** 2},
    lambda total: total["top"] / total["bottom"],
    name="ratio",
)
OBJECTIVE = fs.Mean(lambda w, example: 0.5 * jnp.sum((w - example["a"]) ** 2))


def problem(quantity):
    return fs.Problem(objective=OBJECTIVE, constraints=[quantity <= (-1.0 if quantity is MEAN else -0.2)])


def algorithm(query, **more):
    return fs.FedSGM(**{"step_size": 0.1, "participants": M, "rule": fs.Soft(3.0), "query": query} | more)


def run(query, quantity=MEAN, rounds=ROUNDS, **more):
    made = algorithm(query, **more)
    return fs.simulate(made, problem(quantity), CLIENTS, START, rounds=rounds, seed=4, progress=False)


def path(query, quantity, **more):
    """w_t at the beginning of every round."""
    return [START, *(run(query, quantity, rounds=t, **more).last for t in range(1, ROUNDS))]


def own(quantity, w):
    """Every client's own statistics, in float64."""
    inside = B.astype(np.float64) @ np.asarray(w, np.float64)
    return inside if quantity is MEAN else np.stack([np.tanh(inside), 1 + A[:, 0].astype(np.float64) ** 2], axis=1)


def pooled(quantity, statistics):
    return statistics.mean() if quantity is MEAN else statistics[:, 0].sum() / statistics[:, 1].sum()


@pytest.mark.parametrize("unheard", ["asked", "left out"])
@pytest.mark.parametrize("quantity", [MEAN, RATIO], ids=["mean", "ratio"])
def test_memory_is_what_numpy_remembers(quantity, unheard):
    result = run("memory", quantity, unheard=unheard)
    last, age = [None] * N, np.full(N, -1)
    if unheard == "asked":
        last, age = list(own(quantity, START)), np.zeros(N, int)
    for t, w in enumerate(path("memory", quantity, unheard=unheard)):
        who = result.history["participants"][0, t]
        age = np.where(age >= 0, age + (t > 0), age)
        for j in who:
            last[j], age[j] = own(quantity, w)[j], 0
        heard = [statistics for statistics in last if statistics is not None]
        assert result.history["heard"][0, t] == len(heard)
        np.testing.assert_allclose(result.history["age"][0, t], age[age >= 0].mean(), rtol=1e-6)
        expected = pooled(quantity, np.array(heard))
        np.testing.assert_allclose(result.history["estimate"][0, t], expected, rtol=1e-5, atol=1e-6)
    assert age.max() > 1, "some answers must have grown old"


@pytest.mark.parametrize("quantity", [MEAN, RATIO], ids=["mean", "ratio"])
def test_all_is_the_true_value(quantity):
    result = run("all", quantity)
    name = quantity.name
    np.testing.assert_allclose(result.history["estimate"][0, 1:], result.history[name][0, :-1], rtol=1e-5, atol=1e-6)
    assert (result.history["heard"] == N).all()
    sampled = run("participants", quantity)
    assert np.abs(sampled.history["estimate"][0, 1:] - sampled.history[name][0, :-1]).max() > 0.05


def test_heard_in_every_round_the_three_are_one():
    """To the rounding of the estimate, which is about 1; the weight is three times that less the bound, and one."""
    together = [run(query, participants=None) for query in ("participants", "all", "memory")]
    for other in together[1:]:
        for name in ("estimate", "violation", "weight", "objective", "mean", "bytes_up", "bytes_down"):
            atol = {"violation": 1e-6, "weight": 3e-6}.get(name, 0)
            np.testing.assert_allclose(other.history[name], together[0].history[name], 1e-6, atol, err_msg=name)
    assert (together[2].history["age"] == 0).all()


def test_the_participants_do_the_work_whoever_answers():
    """At a common direction the step is that of the same participants, whatever was asked of the others."""
    some, every = (run(query, rule=fs.Unconstrained()) for query in ("participants", "all"))
    np.testing.assert_array_equal(some.last, every.last)
    np.testing.assert_array_equal(some.history["participants"], every.history["participants"])


def test_the_gradient_of_a_statistic_is_unbiased_with_all_answering():
    """Over many rounds' participants at one model, the mean constraint step is the gradient of the pooled value."""
    moved = []
    for seed in range(300):
        made = algorithm("all", rule=fs.Hard(), step_size=1.0)
        far = fs.Problem(objective=OBJECTIVE, constraints=[RATIO <= -5.0])  # always violated
        done = fs.simulate(made, far, CLIENTS, START, rounds=1, seed=seed, evaluate_every=0, progress=False)
        moved.append(START - done.last)

    def value(w):
        each = [RATIO.sums(w, {"a": A[j], "b": B[j]}) for j in range(N)]
        return RATIO.value(jax.tree.map(lambda *a: sum(a), *each))

    expected = np.asarray(jax.grad(value)(START))
    error = np.std(moved, axis=0) / np.sqrt(len(moved))
    assert (np.abs(np.mean(moved, axis=0) - expected) < 4 * error + 1e-6).all()
    assert np.abs(expected).max() > 4 * error.max()


def test_bytes():
    """A query is a number a client; the model is sent to everybody anyway."""
    some, every, memory = (run(query).history["bytes_up"][0] for query in ("participants", "all", "memory"))
    np.testing.assert_array_equal(every - some, 4 * (N - M))
    np.testing.assert_array_equal(memory - some, [4 * (N - M)] + [0] * (ROUNDS - 1))
    left_out = run("memory", unheard="left out").history["bytes_up"][0]
    np.testing.assert_array_equal(left_out, some)
    downs = [run(query).history["bytes_down"] for query in ("participants", "all", "memory")]
    np.testing.assert_array_equal(downs[0], downs[1])
    np.testing.assert_array_equal(downs[0], downs[2])


SEVERAL = fs.Problem(
    objective=logistic,
    constraints=[
        fs.Mean(logistic, where=positive, name="positive") <= 0.45,
        fs.Mean(logistic, where=negative, name="negative") <= 0.5,
        fairness.class_loss(logistic, label=1, name="class") <= 0.5,
    ],
)
KINDS = {
    "all": {"query": "all"},
    "all, batches, multipliers": {
        "query": "all",
        "constraint_batch_size": 3,
        "batch_size": 4,
        "rule": fs.PrimalDual(0.2),
    },
    "memory": {"query": "memory"},
    "memory, left out, batches": {"query": "memory", "unheard": "left out", "constraint_batch_size": 3},
    "standard errors": {"rule": fs.Hard(margin=fs.StandardErrors(1.645))},
    "schedule": {"step_size": optax.exponential_decay(0.2, 3, 0.5)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_agree_and_resume_to_the_same_bits(kind, clients, params, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    settings = {
        "step_size": 0.1,
        "local_steps": 2,
        "participants": 3,
        "rule": fs.Soft(10.0),
        "uplink": fs.TopK(count=2),
    }
    made = fs.FedSGM(**settings | KINDS[kind])

    def simulate(rounds, **more):
        return fs.simulate(made, SEVERAL, clients, params, rounds=rounds, seed=2, progress=False, **more)

    whole = simulate(ROUNDS)
    kept = fs.Checkpoint(tmp_path / "simulated", every=4, resume=True)
    simulate(5, checkpoint=kept)
    assert_identical(simulate(ROUNDS, checkpoint=kept), whole)

    transport = InProcess.of(Program.of(made, SEVERAL, params), clients, tmp_path / "clients")
    kept = fs.Checkpoint(tmp_path / "server", resume=True)
    fs.federate(made, SEVERAL, transport, params, rounds=5, seed=2, checkpoint=kept, progress=False)
    federated = fs.federate(made, SEVERAL, transport, params, rounds=ROUNDS, seed=2, checkpoint=kept, progress=False)
    for name, column in whole.history.items():
        assert federated.history[name].dtype == column.dtype, name
        np.testing.assert_allclose(federated.history[name], column, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("query", ["all", "memory"])
def test_absent_clients_are_remembered_or_missed(query, tmp_path, monkeypatch):
    """With a third of all exchanges lost the run goes on; the history says of how many clients the estimate is."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    made = algorithm(query)
    plan = seeded(3, {Fault.LOSE_REPLY: 0.3})
    transport = InProcess.of(Program.of(made, problem(MEAN), START), CLIENTS, tmp_path, plan)
    result = fs.federate(made, problem(MEAN), transport, START, rounds=30, seed=4, evaluate_every=0, progress=False)
    heard = result.history["heard"][0]
    if query == "all":
        assert heard.min() < N
    else:
        assert heard[-1] == N
        assert (np.diff(heard) >= 0).all(), "who was heard once is remembered"
        assert result.history["age"].max() > 0


@pytest.mark.parametrize("rule", [fs.Hard, lambda margin: fs.Soft(3.0, margin=margin)], ids=["hard", "soft"])
@pytest.mark.parametrize("margin", [0.0, 0.4])
def test_margins_are_in_units_of_the_constraint(rule, margin):
    scaled = fs.Problem(objective=OBJECTIVE, constraints=[fs.Constraint(MEAN, -1.0, scale=4.0)])
    made = algorithm("participants", rule=rule(margin))
    history = fs.simulate(made, scaled, CLIENTS, START, rounds=ROUNDS, seed=4, progress=False).history
    v = (history["estimate"] + 1.0 + margin) / 4
    expected = v > 0 if rule is fs.Hard else np.clip(1 + 3 * v, 0, 1)
    np.testing.assert_allclose(history["weight"], expected, atol=1e-6)
    np.testing.assert_allclose(history["violation"], (history["estimate"] + 1.0) / 4, atol=1e-6)
    assert 0 < history["weight"].mean() < 1


def test_standard_errors_are_those_of_sampling_without_replacement():
    made = algorithm("participants", rule=fs.Soft(3.0, margin=fs.StandardErrors(2.0)), participants=4)
    history = fs.simulate(made, problem(MEAN), CLIENTS, START, rounds=ROUNDS, seed=4, progress=False).history
    paths = [START]
    for t in range(1, ROUNDS):
        paths.append(fs.simulate(made, problem(MEAN), CLIENTS, START, rounds=t, seed=4, progress=False).last)
    for t, w in enumerate(paths):
        own_values = (B @ np.asarray(w))[history["participants"][0, t]]
        error = own_values.std(ddof=1) / np.sqrt(4) * np.sqrt(1 - 4 / N)
        expected = np.clip(1 + 3 * (own_values.mean() + 1.0 + 2 * error), 0, 1)
        np.testing.assert_allclose(history["weight"][0, t], expected, rtol=1e-4, atol=1e-5)


def test_with_everybody_answering_there_is_no_error_to_keep_away_from():
    plain, wide = (run("all", rule=fs.Soft(3.0, margin=fs.StandardErrors(z))) for z in (0.0, 5.0))
    assert_identical(plain, wide)


def test_a_schedule_is_the_step_size_of_its_round():
    """f = |w - a|^2 / 2 with one client a round of one step: w <- w - eta_t (w - a), by hand."""
    schedule = optax.piecewise_constant_schedule(0.5, {3: 0.1})
    made = fs.FedSGM(schedule, local_steps=2, rule=fs.Unconstrained())
    result = fs.simulate(made, problem(MEAN), CLIENTS, START, rounds=6, progress=False)
    w, a = START.astype(np.float64), A.mean(axis=0).astype(np.float64)
    for t in range(6):
        eta = 0.5 if t < 3 else 0.05
        first = w - a
        w = w - eta * (first + (w - eta * first) - a)
    np.testing.assert_allclose(result.last, w, rtol=1e-5)
    half = optax.piecewise_constant_schedule(0.25, {3: 0.1})
    scaled = fs.FedSGM(Scheduled(half, 2.0), local_steps=2, rule=fs.Unconstrained())
    again = fs.simulate(scaled, problem(MEAN), CLIENTS, START, rounds=6, progress=False)
    np.testing.assert_allclose(again.last, result.last, rtol=1e-6)
    constant = fs.FedSGM(optax.constant_schedule(0.1), local_steps=2)
    plain = fs.simulate(fs.FedSGM(0.1, local_steps=2), problem(MEAN), CLIENTS, START, rounds=6, progress=False)
    same = fs.simulate(constant, problem(MEAN), CLIENTS, START, rounds=6, progress=False)
    np.testing.assert_allclose(same.last, plain.last, rtol=1e-6)
    assert "scheduled step size" in fs.results.method.Method.of(same.settings).title


def test_another_schedule_is_another_run(tmp_path):
    for rate in (0.5, 0.6):
        made = fs.FedSGM(optax.exponential_decay(0.1, 10, rate))
        kept = fs.Checkpoint(tmp_path, resume=True)
        if rate == 0.5:
            fs.simulate(made, problem(MEAN), CLIENTS, START, rounds=2, checkpoint=kept, progress=False)
        else:
            with pytest.raises(fs.CheckpointError, match="decay_rate"):
                fs.simulate(made, problem(MEAN), CLIENTS, START, rounds=3, checkpoint=kept, progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query": "some"}, "FedSGM: query='some', but it must be one of participants, all, memory"),
        ({"query": None}, "FedSGM: query=None"),
        ({"unheard": "no"}, "FedSGM: unheard='no', but it must be one of asked, left out"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(fs.SettingError, match=message):
        fs.FedSGM(0.1, **settings)


@pytest.mark.parametrize("rule", [fs.Hard, lambda margin: fs.Soft(1.0, margin=margin)])
@pytest.mark.parametrize("margin", [-0.1, "1", None, float("nan"), True])
def test_refuses_margins(rule, margin):
    with pytest.raises(fs.SettingError, match=r"margin=.*, but it must be a finite number 0 or more"):
        rule(margin)


def test_refuses_errors_below_zero():
    with pytest.raises(fs.SettingError, match="StandardErrors: count=-1, but it must be a finite number 0 or more"):
        fs.StandardErrors(-1)


def test_a_margin_or_a_query_is_told(clients, params):
    made = dataclasses.replace(algorithm("all"), rule=fs.Hard(margin=0.25))
    result = fs.simulate(made, SEVERAL, clients, params, rounds=3, progress=False)
    assert "margin 0.25" in fs.results.method.Method.of(result.settings).title
