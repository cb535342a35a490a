"""Methods that share a program come to what each would alone; an optimistic step and a bound on each class by hand."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.benchmark import others, registry
from fedsgm.benchmark.methods import METHODS
from fedsgm.benchmark.together import AnyOf, together
from fedsgm.tables import recipe

FILE = Path(__file__).parents[2] / "examples" / "benchmark_case.py"
RULES = [
    fs.Hard(),
    fs.Hard(margin=0.1),
    fs.Soft(5.0),
    fs.Soft(5.0, ceiling=0.5, margin=0.05),
    fs.Penalty(7.0),
    fs.PrimalDual(0.5),
    fs.PrimalDual(0.5, augment=2.0),
    fs.Unconstrained(),
]


def shops(**more):
    case = registry.of((str(FILE),))[0]["shops"]
    return dataclasses.replace(case, **more), case.load(0)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_decides_as_among_others(rule):
    one = together(fs.FedSGM(0.1, rule=rule), 1).rule
    assert type(one) is AnyOf
    assert one.margin == getattr(rule, "margin", 0)
    states = [rule.init(1), one.init(1)]
    for violation in np.float32([-1, -0.1, 0, 0.05, 0.3, np.nan, 0.2, -0.3]):
        (own, states[0]), (shared, states[1]) = (
            each.decide(violation[None], state) for each, state in zip((rule, one), states, strict=True)
        )
        if np.isnan(violation) and isinstance(rule, fs.Soft):
            continue  # it has no weight then, whoever asks
        assert float(shared.objective) == float(own.objective)
        assert float(shared.weight) == float(own.weight)


def test_a_run_has_the_same_bits():
    """One program for all of them rounds as each one's own does."""
    case, data = shops()
    problem = case.problem(0.55)
    algorithms = [METHODS["soft"].algorithm(case, 0.55, {"step": 0.2, "width": 5.0})]
    algorithms.append(together(algorithms[0], 1))
    told = {"rounds": 20, "progress": False}
    own, shared = (fs.simulate(each, problem, data.clients, data.params, **told) for each in algorithms)
    np.testing.assert_array_equal(own.history["objective"], shared.history["objective"])
    np.testing.assert_array_equal(own.answer, shared.answer)


def test_others_stay_apart():
    """Of several constraints a switching rule follows those past their bounds together, which one weight tells."""
    for algorithm, constraints in (
        (fs.FedSGM(0.1, rule=fs.Hard()), 2),
        (fs.FedSGM(0.1, rule=fs.Adaptive()), 1),
        (fs.FedSGM(0.1, rule=fs.Hard(fs.StandardErrors(2.0))), 1),
        (METHODS["ipp-conex"].algorithm(shops()[0], 0.5, {"step": 0.1, "dual_scale": 1.0}), 1),
    ):
        assert together(algorithm, constraints) is algorithm


def test_optimistic_steps_by_hand():
    """x - eta (2 G_t - G_(t-1)), and the plain step first, as of arXiv 2505.09146; the bound is far."""
    case, data = shops(participants=10, local_steps=1, rounds=6)
    algorithm = METHODS["hard-optimistic"].algorithm(case, 1e6, {"step": 0.2, "margin": 0.0})
    result = fs.simulate(algorithm, case.problem(1e6), data.clients, data.params, rounds=6, progress=False)
    rows = {name: np.float64(array) for name, array in data.clients.examples.items()}
    falls = recipe.Falling(1.0, 6, recipe.ANNEAL)
    w, before = np.zeros(2), None
    for t in range(6):
        gradient = 2 * rows["x"].T @ (rows["x"] @ w - rows["y"]) / len(rows["y"])
        w = w - 0.2 * float(falls(t)) * (2 * gradient - (gradient if before is None else before))
        before = gradient
    np.testing.assert_allclose(result.last, w, rtol=1e-4)


def test_every_class_has_the_bound():
    """The constraint of the digits is the largest of ten mean losses."""
    rng = np.random.default_rng(0)
    params = others.cnn_init(324, 0) | {"w": rng.normal(size=(72, 10)).astype(np.float32)}
    found = others.digits()
    rows = {"x": found.x[:200], "y": found.y[:200]}
    losses = np.asarray(jax.vmap(others.cnn_loss, (None, 0))(params, rows))
    expected = max(losses[rows["y"] == digit].mean() for digit in range(10))
    result = fs.simulate(
        *(fs.FedSGM(1e-9), others.every_class(0.1), fs.Clients.from_list([rows]), params), rounds=1, progress=False
    )
    assert result.history["worst digit"][0, 0] == pytest.approx(expected, rel=1e-4)
