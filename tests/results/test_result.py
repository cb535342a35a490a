"""What a run hands back: saved and loaded bit for bit, and a verdict that says the truth before anything else."""

import dataclasses
import json
import re
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.results.method import Method
from fedsgm.results.result import KINDS
from support.runs import FEATURES, logistic, negative, positive

NAN = np.nan
START = {"w": np.full(FEATURES, 0.3, np.float32), "b": np.float32(-0.2) * np.ones((), np.float32)}
KEYS = {"objective", "violation", "weight", "estimate", "participants", "bytes_up", "bytes_down"}


def made(
    train,
    test=None,
    *,
    bounds=None,
    history=None,
    rounds=4,
    rule="Hard",
    participants=2,
    evaluate_every=1,
    params=None,
    answer_round=3,
):
    """A result by hand: ``train`` and ``test`` are rows [last, average, best] of every value, each [seeds].

    The answer is the best, or else the last, unless the rows have a fourth.
    """
    bounds = {"g": 0.5} if bounds is None else bounds
    values = {"train": train} | ({} if test is None else {"test": test})
    values = {part: {name: np.asarray(rows, np.float32) for name, rows in of.items()} for part, of in values.items()}
    if len(values["train"]["objective"]) == 3:
        none = np.isnan(values["train"]["objective"][2])
        values = {
            part: {name: np.stack([*rows, np.where(none, rows[0], rows[2])]) for name, rows in of.items()}
            for part, of in values.items()
        }
    seeds = values["train"]["objective"].shape[1]
    full = {name: np.full((seeds, rounds), 0.25, np.float32) for name in ("objective", *bounds)}
    full |= {name: np.zeros((seeds, rounds), np.float32) for name in ("violation", "weight", "estimate")}
    full |= {"participants": np.tile(np.arange(participants, dtype=np.int32), (seeds, rounds, 1))}
    full |= {name: np.full((seeds, rounds), 1000, np.int64) for name in ("bytes_up", "bytes_down")}
    full |= {name: np.asarray(a) for name, a in (history or {}).items()}
    params = {"w": np.zeros((seeds, 3), np.float32)} if params is None else params
    settings = {
        "algorithm": {
            "is": "FedSGM",
            "step_size": 0.1,
            "local_steps": 5,
            "participants": participants,
            "rule": {"is": rule},
        },
        "problem": {},
        "clients": 6,
        "parameters": 3,
        "seeds": list(range(seeds)),
        "evaluate_every": evaluate_every,
        "rounds": rounds,
    }
    return fs.Result(
        **dict.fromkeys(KINDS, params),
        history=full,
        answer_round=np.broadcast_to(answer_round, seeds),
        values=values,
        ranges={name: bound if isinstance(bound, tuple) else (-np.inf, bound) for name, bound in bounds.items()},
        settings=settings,
    )


def simulate(problem, clients, algorithm=None, **options):
    algorithm = algorithm or fs.FedSGM(step_size=0.3, participants=3)
    return fs.simulate(algorithm, problem, clients, START, **({"rounds": 12, "progress": False} | options))


def bounded(*bounds):
    """The conftest problem with these bounds: on the positives' loss and, if two, on everyone's too."""
    quantities = (fs.Mean(logistic, where=positive, name="positive"), fs.Mean(logistic, name="everyone"))
    constraints = [quantity <= bound for quantity, bound in zip(quantities, bounds, strict=False)]
    return fs.Problem(objective=fs.Mean(logistic, where=negative), constraints=constraints)


def true_values(clients, params):
    """The two classes' mean losses, averaged over clients, in NumPy and double precision."""
    losses = {0: [], 1: []}
    for j in range(len(clients)):
        data = clients[j]
        z = data["x"].astype(np.float64) @ params["w"] + params["b"]
        loss = np.logaddexp(0, z) - data["y"] * z
        for label, means in losses.items():
            means.append(loss[data["y"] == label].mean())
    return np.mean(losses[0]), np.mean(losses[1])


@pytest.fixture(scope="module")
def several(clients):
    """Three seeds of a run that crosses its bound to and fro."""
    return simulate(bounded(0.45), clients, rounds=60, seeds=3, test=clients[0])


@pytest.fixture(scope="module")
def single(clients):
    """Seed 1 of the same run by itself."""
    return simulate(bounded(0.45), clients, rounds=60, seed=1, test=clients[0])


# What a run records --------------------------------------------------------------------------------------------------


def test_history_has_every_key_in_seeds_by_rounds(several, single):
    for result, seeds in ((several, 3), (single, 1)):
        assert set(result.history) == KEYS | {"positive"}
        for name, array in result.history.items():
            assert array.shape == ((seeds, 60, 3) if name == "participants" else (seeds, 60)), name
    assert several.history["participants"].dtype.kind == "i"
    assert several.history["bytes_up"].dtype == np.int64


def test_seeds_give_the_parameters_a_leading_axis_and_a_seed_none(several, single):
    for kind in KINDS:
        assert {name: a.shape for name, a in getattr(several, kind).items()} == {"w": (3, FEATURES), "b": (3,)}
        assert {name: a.shape for name, a in getattr(single, kind).items()} == {"w": (FEATURES,), "b": ()}
    for part in ("train", "test"):
        assert {name: a.shape for name, a in several.values[part].items()} == {"objective": (4, 3), "positive": (4, 3)}
        assert {name: a.shape for name, a in single.values[part].items()} == {"objective": (4, 1), "positive": (4, 1)}
    assert several.answer_round.shape == (3,)
    assert single.answer_round.tolist() == [several.answer_round[1]]
    assert several.settings["seeds"] == [0, 1, 2]
    assert single.settings["seeds"] == [1]


def test_one_of_several_seeds_is_the_seed_by_itself(several, single):
    for name, array in single.history.items():
        np.testing.assert_array_equal(several.history[name][1:2], array, err_msg=name)
    for kind in KINDS:
        np.testing.assert_array_equal(getattr(several, kind)["w"][1], getattr(single, kind)["w"])


def test_one_seed_asked_for_as_seeds_keeps_its_axis(clients):
    assert simulate(bounded(0.45), clients, rounds=2, seeds=1).last["w"].shape == (1, FEATURES)


def test_the_values_are_those_of_the_parameters(several, clients):
    for kind in KINDS:
        for seed in range(3):
            params = jax.tree.map(lambda a, seed=seed: a[seed], getattr(several, kind))
            expected = true_values(clients, params)
            got = [several.value("train", name, kind)[seed] for name in ("objective", "positive")]
            np.testing.assert_allclose(got, expected, rtol=1e-5)
            expected = true_values(fs.Clients.from_list([clients[0]]), params)
            got = [several.value("test", name, kind)[seed] for name in ("objective", "positive")]
            np.testing.assert_allclose(got, expected, rtol=1e-5)
    for name in ("objective", "positive"):
        np.testing.assert_array_equal(several.history[name][:, -1], several.value("train", name, "last"))


def test_the_rows_have_names():
    values = {"objective": np.arange(8).reshape(4, 2), "g": -np.arange(8).reshape(4, 2)}
    result = made(values, {name: 10 * rows for name, rows in values.items()})
    for i, kind in enumerate(("last", "average", "best_feasible", "answer")):
        assert result.value("train", "objective", kind).tolist() == [2 * i, 2 * i + 1]
        assert result.value("test", "g", kind).tolist() == [-20 * i, -20 * i - 10]
    assert len(KINDS) == 4


def test_the_answer_is_what_the_rounds_say(several, clients):
    """The best feasible round's parameters; its values are those that were recorded, to the last bit."""
    for seed in range(3):
        objective, constraint = (several.history[name][seed] for name in ("objective", "positive"))
        best = np.argmin(np.where(constraint <= np.float32(0.45), objective, np.inf))
        assert several.answer_round[seed] == best + 1
        assert several.value("train", "objective", "answer")[seed] == objective[best]
        assert several.value("train", "positive", "answer")[seed] == constraint[best]
        alone = simulate(bounded(0.45), clients, rounds=int(best) + 1, seed=seed)
        for name, array in alone.last.items():
            np.testing.assert_array_equal(several.answer[name][seed], array)
            np.testing.assert_array_equal(several.best_feasible[name][seed], array)
    assert several.feasible.all()


def test_without_a_constraint_the_answer_has_the_lowest_objective(clients):
    result = simulate(fs.Problem(objective=logistic), clients, fs.FedSGM(step_size=8.0), rounds=20)
    objective = result.history["objective"][0]
    assert objective[-1] > objective.min(), "the last must not be the best, or the test shows nothing"
    assert result.answer_round.tolist() == [np.argmin(objective) + 1]
    assert result.value("train", "objective", "answer") == objective.min()


def test_best_feasible_is_the_feasible_iterate_of_least_objective(several, clients):
    for seed in range(3):
        objective, constraint = (several.history[name][seed] for name in ("objective", "positive"))
        feasible = constraint <= np.float32(0.45)
        assert feasible.any()
        assert not feasible.all()
        least = objective[feasible].min()
        assert objective.min() < least, "the least of all must be infeasible, or the test shows nothing"
        params = jax.tree.map(lambda a, seed=seed: a[seed], several.best_feasible)
        f, g = true_values(clients, params)
        assert f == pytest.approx(least, rel=1e-5)
        assert g <= 0.45 + 1e-6
        assert several.value("train", "objective", "best_feasible")[seed] == pytest.approx(least, rel=1e-6)


def test_the_average_weighs_the_rounds_by_the_objective_s_share(clients):
    """Uniform over the rounds whose estimate was within the bound: runs of 1, 2, ... rounds give the iterates."""
    rounds, problem = 8, bounded(0.6)
    whole = simulate(problem, clients, rounds=rounds)
    iterates = [START, *(simulate(problem, clients, rounds=t).last for t in range(1, rounds))]
    took = 1 - whole.history["weight"][0]
    assert 0 < took.sum() < rounds
    for name in START:
        expected = sum(weight * w[name].astype(np.float64) for weight, w in zip(took, iterates, strict=True))
        np.testing.assert_allclose(whole.average[name], expected / took.sum(), rtol=1e-4, atol=1e-6)


def test_a_bound_that_cannot_be_met(clients):
    """A loss is never below zero: no average, no feasible iterate; the answer is the least violated, and it says so."""
    result = simulate(bounded(-1.0), clients, seeds=3, test=clients[0])
    for kind in ("average", "best_feasible"):
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(getattr(result, kind)))
        assert np.isnan(result.value("train", "objective", kind)).all()
    for params in (result.last, result.answer):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    np.testing.assert_array_equal(result.answer_round, result.history["positive"].argmin(axis=1) + 1)
    np.testing.assert_array_equal(result.value("train", "positive", "answer"), result.history["positive"].min(axis=1))
    assert (result.feasible_rounds == 0).all()
    assert np.isinf(result.multiplier).all()
    lines = result.verdict().splitlines()
    assert lines[0].startswith("NOT FEASIBLE: ")
    assert "3 of 3 seeds" in lines[0]
    assert "no round was feasible" in lines[0]
    over = max(true_values(clients, jax.tree.map(lambda a, s=s: a[s], result.answer))[1] for s in range(3)) + 1
    assert f"over `positive` by up to {over:.2g}" in lines[0]
    assert line(result, "average") == "average    undefined: no round took a step for the objective"
    assert re.search(r"To try: .*bound can be met", lines[-1])


@pytest.mark.parametrize(
    ("link", "message", "bounds"),
    [(fs.Identity(), 8 + 5 * 4, (0.45,)), (fs.TopK(count=2), 9 + 1 + 2 * 4, (0.45, 0.9))],
)
def test_bytes_by_hand(link, message, bounds, clients):
    """Of 5 parameters, 3 of 6 clients. Up: a float for each constraint, and the message. Down: to participants
    two weights and a mark for each constraint, and to everyone the broadcast. Two indices below 5 take a byte."""
    algorithm = fs.FedSGM(step_size=0.3, participants=3, uplink=link, downlink=link)
    history = simulate(bounded(*bounds), clients, algorithm, rounds=3, seeds=3).history
    k = len(bounds)
    np.testing.assert_array_equal(history["bytes_up"], np.full((3, 3), 3 * (4 * k + message)))
    np.testing.assert_array_equal(history["bytes_down"], np.full((3, 3), 3 * (8 + 4 * k) + 6 * message))


def test_evaluation_now_and_then(clients):
    result = simulate(bounded(0.45), clients, rounds=5, seeds=3, evaluate_every=2)
    for name in ("objective", "positive"):
        assert np.isnan(result.history[name][0]).tolist() == [True, False, True, False, False]
    for name in ("violation", "weight", "estimate"):
        assert not np.isnan(result.history[name]).any()
    assert re.search(r"of the last 3 evaluated rounds", result.verdict())
    assert set(result.answer_round) <= {2, 4, 5}
    assert ", of 3 evaluated rounds)" in headline(result)


@pytest.mark.parametrize("rounds", [1, 7])
def test_evaluation_at_the_end_leaves_one_choice(rounds, clients):
    result = simulate(bounded(2.0), clients, rounds=rounds, evaluate_every=0)
    assert result.answer_round.tolist() == [rounds]
    jax.tree.map(np.testing.assert_array_equal, result.answer, result.last)
    of = f"round {rounds}" + ("" if rounds == 1 else ", of the one evaluated round")
    assert headline(result) == f"FEASIBLE: the answer ({of}) is within every bound on the training data."


def test_a_run_that_diverges_keeps_the_rounds_before(clients):
    """Steps that grow without end: the answer is the best of the finite rounds, and everything is finite of it."""
    grow = fs.Problem(
        objective=lambda p, e: jnp.sum(p["w"] ** 2) ** 3 + 0 * e["y"], constraints=[fs.Mean(logistic, name="g") <= 1e3]
    )
    result = simulate(grow, clients, fs.FedSGM(step_size=5.0), rounds=30)
    objective = result.history["objective"][0]
    assert not np.isfinite(objective[-1])
    finite = np.where(np.isfinite(objective) & (result.history["g"][0] <= 1e3), objective, np.inf)
    assert np.isfinite(finite).any()
    assert result.answer_round.tolist() == [np.argmin(finite) + 1]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.answer))
    assert headline(result) == (
        f"FEASIBLE: the answer (round {np.argmin(finite) + 1}) is within every bound on the training data; "
        "the last parameters diverged (not a finite number), so take a smaller step size."
    )


# Derived numbers -----------------------------------------------------------------------------------------------------


def test_excess_is_the_largest_over_the_constraints():
    bounds = {"g": 0.5, "h": -1.0}
    train = {
        "objective": [[1, 1], [NAN, 1], [2, 2]],
        "g": [[0.75, 0.25], [NAN, 0.5], [0.5, 0.25]],
        "h": [[-2, -0.5], [NAN, -1.25], [-1, 3]],
    }
    result = made(train, bounds=bounds)
    for kind, excess in zip(KINDS, [[0.25, 0.5], [NAN, 0], [0, 4], [0, 4]], strict=True):
        np.testing.assert_array_equal(result.excess("train", kind), excess)
    assert result.feasible.tolist() == [True, False]
    assert result.last_feasible.tolist() == [False, False]
    history = {"objective": np.ones((1, 3)), "g": np.array([[0.25, 1, NAN]]), "h": np.array([[-1.5, -3, -3]])}
    result = made({name: np.ones((3, 1)) for name in train}, bounds=bounds, history=history, rounds=3)
    np.testing.assert_array_equal(result.excess_history(), [[-0.25, 0.5, NAN]])


def test_exactly_the_bound_is_feasible():
    """Also where the bound is not a float32: the run compares in float32."""
    result = made({"objective": np.ones((3, 1)), "g": np.full((3, 1), np.float32(0.05))}, bounds={"g": 0.05})
    assert result.excess("train", "answer") == 0
    assert result.feasible.all()
    assert result.last_feasible.all()
    assert result.verdict().startswith("FEASIBLE")


def test_feasible_rounds():
    """The share of the evaluated rounds among the last hundred."""
    ends = {"objective": np.ones((3, 2)), "g": np.zeros((3, 2))}
    g = np.array([[0.4, 0.5, 0.6, NAN], [0.6, 0.7, 0.8, 0.9]])
    history = {"g": g, "objective": np.where(np.isnan(g), NAN, 1.0)}
    np.testing.assert_allclose(made(ends, history=history).feasible_rounds[1], 0)
    long = np.where(np.arange(250) < 180, 0.6, 0.4)[None].repeat(2, axis=0)
    long[1, 149] = 0.0
    long[1, 155] = 0.0
    history = {"g": long, "objective": np.ones((2, 250))}
    np.testing.assert_allclose(made(ends, history=history, rounds=250).feasible_rounds, [0.7, 0.71])
    sparse = np.where((np.arange(250) + 1) % 10 == 0, long, NAN)
    history = {"g": sparse, "objective": np.where(np.isnan(sparse), NAN, 1.0)}
    np.testing.assert_allclose(made(ends, history=history, rounds=250, evaluate_every=10).feasible_rounds, [0.7, 0.7])


def test_a_round_that_diverged_is_not_feasible():
    """Two good rounds of four, the rest not a number, is one half and not all of what was measured."""
    values = np.array([[0.25, 0.25, NAN, NAN]])
    ends = {"objective": [[NAN], [NAN], [0.25]], "g": [[NAN], [NAN], [0.25]]}
    result = made(ends, history={"objective": values, "g": values})
    assert result.feasible_rounds.tolist() == [0.5]


def test_feasible_rounds_of_a_run_measured_only_at_the_end():
    last = np.array([[NAN, NAN, NAN, 0.25], [NAN, NAN, NAN, 0.75]])
    result = made(
        {"objective": np.ones((3, 2)), "g": np.zeros((3, 2))}, history={"objective": last, "g": last}, evaluate_every=0
    )
    assert result.feasible_rounds.tolist() == [1, 0]


def test_multiplier():
    weight = np.array([[0, 0.5, 1, 0.5], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]], np.float32)
    result = made({"objective": np.ones((3, 4)), "g": np.zeros((3, 4))}, history={"weight": weight})
    assert result.multiplier.tolist() == [1.0, 0.0, np.inf, 3.0]
    assert "multiplier about 1 0 inf 3 " in result.verdict()


# The verdict ---------------------------------------------------------------------------------------------------------


def column(*rows):
    """Values of one seed, [last, average, best], or with the answer."""
    return np.array(rows, np.float32)[:, None]


def headline(result):
    lines = result.verdict().splitlines()
    assert lines[1] == "", "the headline stands alone"
    return lines[0]


def line(result, start):
    (found,) = [text.strip() for text in result.verdict().splitlines() if text.strip().startswith(start)]
    return found


class TestVerdict:
    def test_feasible(self):
        train = {"objective": [[0.3, 0.2], [0.3, 0.3], [0.1, 0.2]], "g": [[0.4, 0.45], [0.4, 0.4], [0.5, 0.4]]}
        test = {"objective": np.ones((3, 2)), "g": np.full((3, 2), 0.5)}
        result = made(train, test)
        assert headline(result) == (
            "FEASIBLE: the answer (round 3) is within every bound on the training data (2 of 2 seeds)."
        )
        assert re.fullmatch(r"objective +0\.1 \.\. 0\.2 +1 \.\. 1", line(result, "objective"))
        assert re.fullmatch(r"g +0\.5 +0\.4 \.\. 0\.5 +within +0\.5 \.\. 0\.5 +within", line(result, "g"))
        of = "(training, mean of 2 seeds); within every bound"
        assert line(result, "last") == f"last       objective 0.25, g 0.425 {of}"
        assert line(result, "average") == f"average    objective 0.3, g 0.4 {of}"
        assert "NOT" not in result.verdict()
        assert "To try" not in result.verdict()
        assert "last parameters" not in result.verdict()
        assert result.feasible.all()

    def test_the_answer_is_feasible_and_the_last_is_not(self):
        train = {"objective": column(0.1, NAN, 0.3), "g": column(0.5086, NAN, 0.45)}
        result = made(train, rounds=500, answer_round=481)
        assert headline(result) == (
            "FEASIBLE: the answer (round 481) is within every bound on the training data; "
            "the last parameters are over `g` by 0.0086."
        )
        assert re.fullmatch(r"g +0\.5 +0\.45 +within", line(result, "g"))
        assert line(result, "last") == "last       objective 0.1, g 0.5086 (training); over a bound"
        assert line(result, "average") == "average    undefined: no round took a step for the objective"
        assert result.verdict().splitlines()[-1].startswith("  For last parameters that are within, too: ")
        assert "To try" not in result.verdict()
        assert (result.feasible.tolist(), result.last_feasible.tolist()) == ([True], [False])

    def test_some_seeds_end_badly(self):
        g = np.array([[0.4, 0.75, 0.5], [0.4, 0.4, 0.6], [0.4, 0.5, 0.4]])
        result = made({"objective": np.ones((3, 3)), "g": g}, answer_round=[3, 1, 2])
        assert headline(result) == (
            "FEASIBLE: the answer (rounds 1 .. 3) is within every bound on the training data (3 of 3 seeds); "
            "the last parameters are over `g` by up to 0.25 for 1 of 3 seeds."
        )
        assert line(result, "last").endswith("(training, mean of 3 seeds); over a bound for 1 of 3 seeds")
        assert line(result, "average").endswith("; over a bound for 1 of 3 seeds")
        assert result.feasible.all()
        assert result.last_feasible.tolist() == [True, False, True]

    def test_feasible_on_training_data_alone(self):
        """Said in the first line; the numbers of both are below it."""
        values = column(0.3, 0.3, 0.3)
        train, test = column(0.6, 0.4, 0.4), column(0, 0, 0.62)
        result = made({"objective": values, "g": train}, {"objective": values, "g": test})
        assert headline(result) == (
            "FEASIBLE: the answer (round 3) is within every bound on the training data, but NOT on the held-out data; "
            "the last parameters are over `g` by 0.1."
        )
        assert re.fullmatch(r"g +0\.5 +0\.4 +within +0\.62 +over by 0\.12", line(result, "g"))
        seen = made({"objective": values, "g": column(0.4, 0.4, 0.4)}, {"objective": values, "g": column(0.62, 0, 0)})
        assert "held-out" not in headline(seen), "the last parameters are not what is handed back"

    def test_no_round_was_feasible(self):
        g = column(0.75, NAN, NAN, 0.7)
        result = made({"objective": column(0.1, NAN, NAN, 0.2), "g": g}, history={"g": np.full((1, 4), 0.8)})
        assert headline(result) == (
            "NOT FEASIBLE: the answer (round 3) is over `g` by 0.2 on the training data; "
            "no round was feasible, and this is the least violated."
        )
        assert re.fullmatch(r"g +0\.5 +0\.7 +over by 0\.2", line(result, "g"))
        assert line(result, "last") == "last       objective 0.1, g 0.75 (training); over a bound"
        assert line(result, "average") == "average    undefined: no round took a step for the objective"
        assert result.verdict().splitlines()[-1].startswith("  To try: ")
        assert not result.feasible.any()

    def test_some_seeds_were_never_feasible(self):
        train = {"objective": [[0.1, 0.1], [0.2, NAN], [0.3, NAN]], "g": [[0.75, 0.625], [0.5, NAN], [0.45, NAN]]}
        history = {"g": np.array([[0.75, 0.75, 0.45, 0.75], [0.7, 0.7, 0.625, 0.7]])}
        result = made(train, history=history, rounds=4, answer_round=[3, 2])
        assert headline(result) == (
            "NOT FEASIBLE: the answer (rounds 2 .. 3) is over `g` by up to 0.12 on the training data for 1 of 2 seeds; "
            "no round was feasible, and this is the least violated."
        )
        assert re.fullmatch(r"g +0\.5 +0\.45 \.\. 0\.625 +over by 0\.12", line(result, "g"))
        assert line(result, "last") == (
            "last       objective 0.1, g 0.6875 (training, mean of 2 seeds); over a bound for 2 of 2 seeds"
        )
        assert line(result, "average") == "average    objective 0.2, g 0.5 (training, 1 of 2 seeds); within every bound"
        assert "To try: " in result.verdict()
        assert result.feasible.tolist() == [True, False]

    def test_now_and_then(self):
        result = made({"objective": column(1, 1, 1), "g": column(0, 0, 0)}, evaluate_every=2, rounds=9, answer_round=4)
        empty = np.where(np.isin(np.arange(9), [1, 3, 5, 7, 8]), 0.25, NAN)[None]
        result = dataclasses.replace(result, history=result.history | {"objective": empty, "g": empty})
        assert headline(result).startswith("FEASIBLE: the answer (round 4, of 5 evaluated rounds) is within every ")

    @pytest.mark.parametrize("seeds", [1, 3])
    def test_diverged(self, seeds):
        """Some seed has no round that was finite, so no answer."""
        values = np.full((4, seeds), 0.25)
        values[:, 0] = NAN
        result = made({"objective": values, "g": values}, answer_round=[0, 3, 3][:seeds])
        some = "the one seed" if seeds == 1 else "1 of 3 seeds"
        assert headline(result) == (f"NOT FEASIBLE: {some} diverged (not a finite number); take a smaller step size.")
        assert not result.feasible[0]
        assert "undefined" in line(result, "g")
        assert line(result, "last").startswith("last       undefined: not a finite number" if seeds == 1 else "last")
        assert "To try" not in result.verdict()

    @pytest.mark.parametrize("seeds", [1, 3])
    def test_diverged_after_a_feasible_round(self, seeds):
        values = np.full((3, seeds), 0.25)
        values[0, 0] = NAN
        result = made({"objective": values, "g": values})
        every, some = ("", "") if seeds == 1 else (" (3 of 3 seeds)", " for 1 of 3 seeds")
        assert headline(result) == (
            f"FEASIBLE: the answer (round 3) is within every bound on the training data{every}; the last parameters "
            f"diverged{some} (not a finite number), so take a smaller step size."
        )
        assert result.feasible.all()
        assert result.last_feasible.tolist() == [False, True, True][:seeds]
        assert "For last parameters" not in result.verdict()

    @pytest.mark.parametrize(("name", "value"), [("g", NAN), ("objective", np.inf)])
    def test_diverged_in_one_value_alone(self, name, value):
        """No ``over by nan``, and an infinite objective is no success."""
        train = {"objective": column(0.25, 0.25, 0.25, 0.25), "g": column(0.25, 0.25, 0.25, 0.25)}
        train[name][[0, 3]] = value
        result = made(train)
        assert headline(result).startswith("NOT FEASIBLE: ")
        assert "diverged" in headline(result)
        assert not result.feasible.any()

    def test_no_constraint(self):
        result = made({"objective": column(0.5, 0.25, 0.125)}, bounds={})
        assert headline(result) == "NO CONSTRAINT: the answer (round 3) has the lowest objective."
        assert result.feasible.all()
        assert "within" not in result.verdict()
        assert "multiplier" not in result.verdict()
        assert line(result, "objective").split() == ["objective", "0.125"]
        assert line(result, "last") == "last       objective 0.5 (training)"
        assert line(result, "average") == "average    objective 0.25 (training)"

    def test_no_constraint_and_diverged(self):
        result = made({"objective": column(NAN, NAN, 0.125)}, bounds={})
        assert headline(result) == (
            "NO CONSTRAINT: the answer (round 3) has the lowest objective; the last parameters diverged "
            "(not a finite number), so take a smaller step size."
        )

    def test_several_constraints_are_told_one_by_one(self):
        """The worst is named, and how many more there are."""
        bounds = {"g": 0.5, "h": -1.0, "i": 0.0}
        train = {"objective": column(1, 1, NAN, 1), "g": column(0.25, 0.25, NAN, 0.25)}
        train |= {"h": column(-0.5, -2, NAN, -0.875), "i": column(0.25, 0, NAN, -0.5)}
        history = {"h": np.full((1, 4), 0.0)}
        result = made(train, bounds=bounds, history=history)
        assert "is over `h` by 0.12 on the training data;" in headline(result)
        assert re.fullmatch(r"g +0\.5 +0\.25 +within", line(result, "g"))
        assert re.fullmatch(r"h +-1 +-0\.875 +over by 0\.12", line(result, "h"))
        assert re.fullmatch(r"i +0 +-0\.5 +within", line(result, "i"))
        assert "h -0.5" in line(result, "last")
        good = {name: np.concatenate([rows[:3], np.float32([[-9]])]) for name, rows in train.items()}
        assert headline(made(good, bounds=bounds)).endswith(
            "the last parameters are over `h` by 0.5 and over 1 more bound."
        )

    def test_lower_bounds_and_bands(self):
        """Each is told by the side on which it is missed."""
        bounds = {"recall": (0.75, np.inf), "rate": (0.25, 0.5)}
        train = {"objective": column(1, 1, 1), "recall": column(0.5, 0.75, 0.875), "rate": column(0.125, 0.625, 0.375)}
        result = made(train, bounds=bounds, history={"recall": np.full((1, 4), 0.75), "rate": np.full((1, 4), 0.5)})
        assert result.bounds == {"recall": 0.75, "rate": 0.5}
        assert headline(result) == (
            "FEASIBLE: the answer (round 3) is within every bound on the training data; "
            "the last parameters are under `recall` by 0.25 and past 1 more bound."
        )
        assert re.fullmatch(r"recall +>= 0\.75 +0\.875 +within", line(result, "recall"))
        assert re.fullmatch(r"rate +0\.25 \.\. 0\.5 +0\.375 +within", line(result, "rate"))
        assert line(result, "average").endswith("past a bound")
        assert result.excess("train", "average").tolist() == [0.125]
        assert result.feasible_rounds.tolist() == [1.0]
        train = {name: rows[[2, 1, 2, 0]] for name, rows in train.items()}
        train["recall"][3] = 0.75
        outside = made(train, bounds=bounds, history={"rate": np.full((1, 4), 0.75)})
        assert "NOT FEASIBLE: the answer (round 3) is under `rate` by 0.12 on the training data" in headline(outside)
        assert re.fullmatch(r"rate +0\.25 \.\. 0\.5 +0\.125 +under by 0\.12", line(outside, "rate"))
        assert re.fullmatch(r"recall +>= 0\.75 +0\.75 +within", line(outside, "recall"))

    @pytest.mark.parametrize(("then", "told"), [(6, ""), (5, " of 5 of 6 clients (the others did not reply)")])
    def test_clients_that_did_not_reply(self, then, told):
        """The most clients that it was measured on: in its round, or at the end."""
        evaluated = {"evaluated": np.array([[6, 6, then, 4]], np.int32)}
        result = made({"objective": column(1, 1, 1), "g": column(0, 0, 0)}, history=evaluated)
        assert headline(result) == f"FEASIBLE: the answer (round 3) is within every bound on the training data{told}."
        late = made({"objective": column(1, 1, 1), "g": column(0, 0, 0)}, history=evaluated, answer_round=4)
        assert "of 4 of 6 clients (the others did not reply)." in headline(late)

    def test_rounds_that_seemed_feasible_to_fewer_clients(self):
        history = {"evaluated": np.array([[2, 6, 6, 6]], np.int32), "g": np.array([[0.25, 0.75, 0.75, 0.75]])}
        result = made({"objective": column(1, 1, 1), "g": column(0.75, 0.75, 0.75)}, history=history)
        assert headline(result) == (
            "NOT FEASIBLE: the answer (round 3) is over `g` by 0.25 on the training data; rounds that seemed feasible "
            "were measured on fewer clients, and this is the least violated."
        )

    def test_rounds_work_and_traffic(self):
        g = np.array([[0.75, 0.25, 0.5, 0.25], [0.25, 0.25, 0.25, 1.5]])
        history = {"g": g, "bytes_up": np.full((2, 4), 1500), "bytes_down": np.array([[1e6] * 4, [2e6] * 4], np.int64)}
        result = made({"objective": np.ones((3, 2)), "g": np.zeros((3, 2))}, history=history)
        share, worst = np.mean(g <= 0.5), (g - 0.5).max()
        told = line(result, "rounds")
        assert f"{share:.0%} of the last 4 evaluated rounds within every bound" in told
        assert told.endswith(f"the worst over by {worst:.2g}")
        assert line(result, "work") == "work       4 rounds, 2 of 6 clients a round, E = 5, 3 parameters"
        assert line(result, "traffic").startswith("traffic    6 kB up, 6 MB down")

    def test_a_good_end_tells_how_much_room_was_left(self):
        result = made(
            {"objective": column(1, 1, 1), "g": column(0, 0, 0)}, history={"g": np.array([[0.25, 0.375] * 2])}
        )
        assert line(result, "rounds").endswith(
            "100% of the last 4 evaluated rounds within every bound; the worst within by 0.12"
        )

    @pytest.mark.parametrize("rule", ["Hard", "Soft", "Adaptive", "Penalty", "PrimalDual", "Unconstrained"])
    def test_advice(self, rule):
        """Something to try under every rule, and a multiplier only where the weights are one."""
        result = made({"objective": column(1, NAN, NAN), "g": column(0.75, NAN, NAN)}, rule=rule)
        tip = result.verdict().splitlines()[-1]
        assert tip.startswith("  To try: ")
        softer = made({"objective": column(1, 1, 1), "g": column(0.75, 0.5, 0.5)}, rule=rule).verdict().splitlines()[-1]
        assert softer == tip.replace("To try", "For last parameters that are within, too")
        assert ("--query" in tip) == (rule != "Unconstrained")
        assert ("multiplier about" in result.verdict()) == (rule in ("Hard", "Soft", "Adaptive"))
        everyone = made({"objective": column(1, 1, 1), "g": column(0.75, 0.5, 0.5)}, rule=rule, participants=6)
        assert "--query" not in everyone.verdict()

    @pytest.mark.parametrize(("query", "told"), [("all", "all asked"), ("memory", "the others remembered")])
    def test_who_is_asked(self, query, told):
        def asked(**settings):
            result = made({"objective": column(1, 1, 1), "g": column(0.75, 0.5, 0.5)}, **settings)
            algorithm = result.settings["algorithm"] | {"query": query}
            return dataclasses.replace(result, settings=result.settings | {"algorithm": algorithm})

        assert f"2 of 6 clients a round, {told}, E = 5" in line(asked(), "work")
        assert "--query" not in asked().verdict()
        assert f"2 of 6 clients, {told}, E = 5" in Method.of(asked().settings).title
        assert told not in asked(participants=6).verdict()

    def test_the_document_agrees_with_the_headline(self, tmp_path):
        for last in (0.25, 0.75, NAN, np.inf):
            for answer in (0.25, 0.75, NAN, np.inf):
                made({"objective": column(1, 1, 1, 1), "g": column(last, 0.5, 0.5, answer)}).save(tmp_path)
                document = json.loads((tmp_path / "result.json").read_text())
                assert document["feasible"] is (answer == 0.25)
                if np.isfinite(answer) or not np.isfinite(last):  # what is no number at its best is none at the end
                    assert document["verdict"][0].startswith("FEASIBLE: " if answer == 0.25 else "NOT FEASIBLE: ")


@dataclasses.dataclass(frozen=True)
class Timid:
    """A user's own rule: half of each, with a remark."""

    remark: str = "half and half"

    def init(self, _constraints):
        return None

    def report(self, _state):
        return {}

    def decide(self, _violations, state):
        return fs.Direction(jnp.float32(0.5), jnp.float32(0.5)), state


jax.tree_util.register_dataclass(Timid, data_fields=[], meta_fields=["remark"])


def test_a_user_s_own_rule_gets_a_verdict_and_a_picture(clients, tmp_path):
    result = simulate(bounded(-1.0), clients, fs.FedSGM(step_size=0.1, rule=Timid()), rounds=2)
    assert headline(result).startswith("NOT FEASIBLE: ")
    result.plot(tmp_path / "p.svg")
    result.save(tmp_path)
    assert fs.Result.load(tmp_path).verdict() == result.verdict()


def test_table(several):
    rows = [re.split(r"  +", text) for text in several.table().splitlines()]
    assert rows[0] == [
        "parameters", "seed", "objective (train)", "positive (train)", "objective (test)", "positive (test)"
    ]  # fmt: skip
    assert [row[:2] for row in rows[1:]] == [[kind, str(seed)] for kind in KINDS for seed in range(3)]
    expected = [several.values[part][name] for part in ("train", "test") for name in ("objective", "positive")]
    np.testing.assert_allclose(
        [[float(cell) for cell in row[2:]] for row in rows[1:]], np.stack(expected, -1).reshape(12, 4), rtol=1e-3
    )


# Save and load -------------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    """A user's own kind of parameters."""

    w: np.ndarray
    b: np.ndarray


RNG = np.random.default_rng(3)


def array(*shape):
    return RNG.normal(size=shape).astype(np.float32)


FORMS = {
    "dictionary": {"w": array(2, 3), "b": array(2)},
    "nested": {"first": {"w": array(2, 3, 4), "b": array(2, 4)}, "second": {"w": array(2, 4)}},
    "list": [array(2, 3), array(2), [array(2, 1)]],
    "tuple": (array(2, 3), (array(2), {"x": array(2, 2)})),
    "bare": array(2, 5),
    "scalar": array(),
    "scalars": {"a": array(), "b": [array()]},
    "dots": {"a": {"b": array(2, 3)}, "a.b": array(2, 3)},
    "transposed": array(3, 2).T,
    "empty": {"w": array(2, 3), "none": array(2, 0)},
}


def assert_same_params(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def assert_same(left, right):
    """Equal bit for bit, NaN included."""
    assert list(left.history) == list(right.history)
    for name, values in left.history.items():
        assert values.dtype == right.history[name].dtype, name
        assert values.shape == right.history[name].shape, name
        assert values.tobytes() == right.history[name].tobytes(), name
    for part, values in left.values.items():
        assert list(values) == list(right.values[part])
        for name, rows in values.items():
            np.testing.assert_array_equal(rows, right.values[part][name], err_msg=f"{part} {name}")
            assert rows.dtype == right.values[part][name].dtype
    np.testing.assert_array_equal(left.answer_round, right.answer_round)
    assert left.answer_round.dtype == right.answer_round.dtype
    assert left.bounds == right.bounds
    assert left.settings == right.settings
    assert left.verdict() == right.verdict()
    assert left.table() == right.table()


def loaded(result, folder):
    result.save(folder)
    return fs.Result.load(folder)


def test_a_run_round_trips(several, single, tmp_path):
    for name, result in (("several", several), ("single", single)):
        again = loaded(result, tmp_path / name)
        assert_same(result, again)
        for kind in KINDS:
            assert_same_params(getattr(result, kind), getattr(again, kind))
        assert {path.name for path in (tmp_path / name).iterdir()} == {
            "history.parquet", "params.safetensors", "result.json"
        }  # fmt: skip


def test_a_run_with_nothing_feasible_round_trips(clients, tmp_path):
    """NaN parameters, NaN values and NaN rounds."""
    result = simulate(bounded(-1.0), clients, rounds=5, seeds=3, evaluate_every=2)
    again = loaded(result, tmp_path)
    assert_same(result, again)
    for kind in KINDS:
        assert_same_params(getattr(result, kind), getattr(again, kind))
    assert np.isnan(again.history["objective"][:, 0]).all()
    assert np.isnan(again.average["w"]).all()


@pytest.mark.parametrize("form", FORMS)
def test_parameters_of_any_form_round_trip(form, tmp_path):
    params = FORMS[form]
    again = loaded(made({"objective": column(1, 1, 1), "g": column(0, 0, 0)}, params=params), tmp_path)
    for kind in KINDS:
        assert_same_params(getattr(again, kind), params)


def test_a_user_s_own_node_comes_back_as_a_dictionary(tmp_path):
    model = {"layers": [Model(array(2, 3), array(2)), Model(array(2, 1), array(2))]}
    again = loaded(made({"objective": column(1, 1, 1), "g": column(0, 0, 0)}, params=model), tmp_path)
    for kind in KINDS:
        for before, after in zip(model["layers"], getattr(again, kind)["layers"], strict=True):
            assert isinstance(after, dict)
            assert {key.strip(".") for key in after} == {"w", "b"}
            for key, leaf in after.items():
                np.testing.assert_array_equal(leaf, getattr(before, key.strip(".")))


def test_values_that_are_no_numbers_round_trip(tmp_path):
    train = {"objective": column(np.inf, NAN, 1 / 3), "g": column(-np.inf, NAN, 0.1)}
    result = made(train, history={"g": np.array([[0.1, NAN, np.inf, -0.0]], np.float32)})
    assert_same(result, loaded(result, tmp_path))


def test_settings_that_are_no_numbers_round_trip(tmp_path):
    """In JSON that has no NaN and no Infinity, which strict readers refuse; texts stay texts, and None is None."""
    result = made({"objective": [[0.1], [0.2], [0.3]], "g": [[0.4]] * 3})
    more = {"a": NAN, "b": [np.inf, (-np.inf, 1.5)], "c": {"number": 2.0}, "d": "nan", "e": None, "number": "inf"}
    dataclasses.replace(result, settings=result.settings | {"more": more}).save(tmp_path)

    def refuse(constant):
        raise AssertionError(constant)

    json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)
    loaded = fs.Result.load(tmp_path).settings["more"]
    assert np.isnan(loaded.pop("a"))
    assert loaded == {name: value for name, value in more.items() if name != "a"} | {"b": [np.inf, [-np.inf, 1.5]]}


def test_bounds_of_every_sense_round_trip(tmp_path):
    bounds = {"g": 0.5, "recall": (0.75, np.inf), "rate": (0.25, 0.5)}
    result = made({name: column(0.5, 0.5, 0.5) for name in ("objective", *bounds)}, bounds=bounds)
    result.save(tmp_path)
    assert fs.Result.load(tmp_path).ranges == result.ranges
    assert fs.Result.load(tmp_path).verdict() == result.verdict()


def test_history_of_every_type_round_trips(tmp_path):
    extra = {
        "double": np.array([[0.1, NAN, 1e300, -0.0]]),
        "flag": np.array([[True, False, True, True]]),
        "many": RNG.normal(size=(1, 4, 3)).astype(np.float32),
        "one": np.arange(4, dtype=np.int32).reshape(1, 4, 1),
    }
    result = made({"objective": column(1, 1, 1), "g": column(0, 0, 0)}, history=extra)
    assert_same(result, loaded(result, tmp_path))


def test_saving_again_gives_the_same_files(several, tmp_path):
    loaded(several, tmp_path / "a").save(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_the_history_is_a_plain_table(several, tmp_path):
    """One row for each seed and round, for any reader of Parquet."""
    import pyarrow.parquet

    several.save(tmp_path)
    table = pyarrow.parquet.read_table(tmp_path / "history.parquet")
    assert table.num_rows == 3 * 60
    assert table["seed"].to_pylist() == [0] * 60 + [1] * 60 + [2] * 60
    assert table["round"].to_pylist() == [*range(1, 61)] * 3
    assert table["participants"].to_pylist()[61] == several.history["participants"][1, 1].tolist()


class TestLoadRefuses:
    @pytest.fixture
    def folder(self, tmp_path):
        made({"objective": column(1, 1, 1), "g": column(0, 0, 0)}).save(tmp_path / "run")
        return tmp_path / "run"

    def refused(self, folder, *words):
        with pytest.raises(fs.SettingError) as caught:
            fs.Result.load(folder)
        message = str(caught.value)
        assert "\n" not in message
        assert str(folder) in message
        assert [word for word in words if word not in message] == []

    def test_no_folder_or_another(self, tmp_path):
        self.refused(tmp_path / "nowhere", "not a run")
        self.refused(tmp_path, "not a run", "result.json")
        file = tmp_path / "file"
        file.write_text("text")
        self.refused(file, "not a run")

    @pytest.mark.parametrize("name", ["history.parquet", "params.safetensors"])
    def test_files_that_changed(self, name, folder):
        path = folder / name
        data = path.read_bytes()
        for damage in (data[:-1], data + b"\0", data[:9] + bytes([data[9] ^ 4]) + data[10:], b""):
            path.write_bytes(damage)
            self.refused(folder, name, "altered")
        path.unlink()
        self.refused(folder, name, "missing")
        path.mkdir()
        self.refused(folder, name)

    @pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b"1", b'{"version": 1}', b'{"version": 2}', b"{}"])
    def test_a_result_that_is_none(self, data, folder):
        (folder / "result.json").write_bytes(data)
        self.refused(folder, "result.json")

    @pytest.mark.parametrize("key", ["version", "answer_round", "values", "ranges", "settings", "params", "files"])
    def test_a_part_left_out(self, key, folder):
        path = folder / "result.json"
        document = json.loads(path.read_text())
        del document[key]
        path.write_text(json.dumps(document))
        self.refused(folder, "result.json")

    @pytest.mark.parametrize("key", ["values", "ranges", "settings", "params", "files"])
    def test_a_part_of_another_kind(self, key, folder):
        path = folder / "result.json"
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document | {key: [7]}))
        self.refused(folder, "result.json")


# Pictures ------------------------------------------------------------------------------------------------------------

STARTS = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def png_size(data):
    assert data.startswith(STARTS[".png"])
    return struct.unpack(">II", data[16:24])


def drawn(result, path):
    result.plot(path)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", STARTS)
def test_every_format(suffix, several, tmp_path):
    data = drawn(several, tmp_path / "new" / f"p{suffix}")
    assert data.startswith(STARTS[suffix])
    assert len(data) > 5000
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"p{suffix}"]


def test_a_path_may_be_a_string(single, tmp_path):
    single.plot(str(tmp_path / "p.svg"))
    assert (tmp_path / "p.svg").stat().st_size > 5000


def test_a_picture_of_one_seed_and_of_no_constraint_has_a_sane_size(single, tmp_path):
    width, height = png_size(drawn(single, tmp_path / "p.png"))
    assert 900 <= width <= 2400
    assert 400 <= height <= 1200
    alone = made({"objective": column(1, 1, 1)}, bounds={})
    narrow, same = png_size(drawn(alone, tmp_path / "p.png"))
    assert same == height
    assert narrow < width


def test_a_picture_names_what_it_shows(several, tmp_path):
    """As SVG, whose text is outlines but whose words are in its comments."""
    text = drawn(several, tmp_path / "p.svg").decode()
    words = (
        "objective over all clients",
        "positive over all clients",
        "bound 0.45",
        "mean of 3 seeds",
        "answers",
        "3 of 6 clients",
    )
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(("rounds", "label"), [([3, 0, 2], "answers"), ([4], "answer")])
def test_a_picture_marks_the_answers(rounds, label, tmp_path, drawn):
    """At their rounds, on their seeds' lines; a seed that has none has no mark."""
    seeds = len(rounds)
    history = {name: RNG.uniform(0.1, 1, (seeds, 4)).astype(np.float32) for name in ("objective", "g")}
    made({name: np.ones((3, seeds)) for name in history}, history=history, answer_round=rounds).plot(tmp_path / "p.svg")
    for axis, name in zip(drawn[0].axes, history, strict=True):
        (marks,) = [each for each in axis.lines if each.get_label() == label]
        have = [(r, history[name][seed, r - 1]) for seed, r in enumerate(rounds) if r]
        np.testing.assert_allclose(marks.get_xydata(), have)


def test_several_constraints_have_a_panel_each(tmp_path):
    names = ("objective", "first", "second", "third")
    result = made({name: np.ones((3, 2)) for name in names}, bounds=dict.fromkeys(names[1:], 1.0))
    text = drawn(result, tmp_path / "p.svg").decode()
    assert all(f"{name} over all clients" in text for name in names)


def test_many_constraints_are_in_a_grid_that_a_screen_shows(tmp_path):
    """Ten in one row were 7590 x 540 pixels."""
    names = [f"gap {i}" for i in range(10)]
    result = made({name: np.ones((3, 1)) for name in ("objective", *names)}, bounds=dict.fromkeys(names, 1.0))
    width, height = png_size(drawn(result, tmp_path / "p.png"))
    assert max(width, height) <= 2400


@pytest.mark.parametrize("span", [(0.42, 0.61), (0.031, 0.74), (0.0004, 3.0)])
def test_numbers_of_an_objective_are_plain_and_rounds_begin_at_1(span, tmp_path, drawn):
    history = {"objective": np.geomspace(*span[::-1], 40, dtype=np.float32)[None], "g": np.full((1, 40), 0.4)}
    made({name: column(0.5, 0.5, 0.5) for name in history}, history=history, rounds=40).plot(tmp_path / "p.png")
    axis = drawn[0].axes[0]
    assert axis.get_xlim()[0] == 1
    low, high = axis.get_ylim()
    shown = [tick.get_text() for tick in axis.get_yticklabels() if low <= tick.get_position()[1] <= high]
    assert len(shown) >= 3
    assert all(re.fullmatch(r"[\d.]+", text) for text in shown), shown
    assert not any(tick.get_text() for tick in axis.get_yticklabels(minor=True))


def test_the_legend_covers_no_curve(several, tmp_path, drawn):
    several.plot(tmp_path / "p.png")
    (figure,) = drawn
    box = figure.legends[0].get_window_extent()
    assert not any(axis.get_legend() or axis.get_window_extent().overlaps(box) for axis in figure.axes)


def test_a_band_has_two_lines(tmp_path, drawn):
    bounds = {"recall": (0.75, np.inf), "rate": (0.25, 0.5)}
    made({name: column(0.5, 0.5, 0.5) for name in ("objective", *bounds)}, bounds=bounds).plot(tmp_path / "p.png")
    red = [[line for line in axis.lines if line.get_color() == "red"] for axis in drawn[0].axes]
    assert [[float(line.get_ydata()[0]) for line in lines] for lines in red] == [[], [0.75], [0.25, 0.5]]
    assert [axis.get_title() for axis in drawn[0].axes[1:]] == [
        "recall over all clients, bound 0.75", "rate over all clients, bound 0.25 and 0.5"
    ]  # fmt: skip


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_run_measured_only_at_the_end(seeds, tmp_path):
    last = np.tile(np.float32([NAN, NAN, NAN, 0.25]), (seeds, 1))
    ends = {name: np.full((3, seeds), 0.25) for name in ("objective", "g")}
    result = made(ends, history={"objective": last, "g": last}, evaluate_every=0)
    assert len(drawn(result, tmp_path / "p.svg")) > 5000


@pytest.mark.parametrize("value", [NAN, np.inf])
def test_a_run_that_diverged(value, tmp_path):
    """Nothing to draw is no reason to fail or to warn."""
    values = np.full((3, 1), value)
    history = {name: np.full((1, 4), value, np.float32) for name in ("objective", "g")}
    assert len(drawn(made({"objective": values, "g": values}, history=history), tmp_path / "p.svg")) > 5000


def test_values_of_either_sign(tmp_path):
    history = {"objective": np.array([[-1.0, 0, 1, 2]]), "g": np.array([[-3.0, -2, -1, 0]])}
    result = made({"objective": column(1, 1, 1), "g": column(0, 0, 0)}, bounds={"g": -1.5}, history=history)
    assert len(drawn(result, tmp_path / "p.svg")) > 5000


@pytest.mark.parametrize("name", ["p", "p.jpg", "p.gif", ".png", "p.png.txt"])
def test_another_ending_is_refused(name, single, tmp_path):
    with pytest.raises(fs.SettingError, match=r"must end in \.png, \.svg, \.pdf$") as caught:
        single.plot(tmp_path / name)
    assert name in str(caught.value)
    assert list(tmp_path.iterdir()) == []
