"""Every rule gives weights a client can use and compiles once; each then follows its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsgm import Adaptive, Hard, Penalty, PrimalDual, SettingError, Soft, Unconstrained
from fedsgm.core import rules
from fedsgm.core.rules import Direction, largest

RULES = [
    Hard(),
    Soft(40.0),
    Soft(1e30),
    Soft(0.3, ceiling=0.5),
    Adaptive(),
    Adaptive(0.5),
    Penalty(0.0),
    Penalty(2.5),
    PrimalDual(0.5),
    PrimalDual(0.5, 2.0),
    Unconstrained(),
]
# Minus infinity is the largest violation of a problem without constraints.
VIOLATIONS = np.float32([-np.inf, -1e6, -1, -1 / 40, -1e-3, -0.0, 0, 1e-30, 1e-3, 1 / 40, 1, 1e6])


@jax.jit
def decide_each(rule, violations):
    """The weights at each round's [constraints] violations, one after the other: state goes from round to round."""

    def step(state, each):
        direction, state = rule.decide(each, state)
        return state, (direction.objective, direction.constraint, direction.weight)

    return jax.lax.scan(step, rule.init(violations.shape[1]), violations)


def weights(rule, violations):
    """The weights of the objective and of a single constraint."""
    objective, _, weight = decide_each(rule, np.float32(violations)[:, None])[1]
    return np.asarray(objective), np.asarray(weight)


def several(violations, count=3):
    """Each violation as the largest of several, whose place changes."""
    rows = np.repeat(np.float32(violations)[:, None] - 0.5, count, axis=1)
    rows[np.arange(len(rows)), np.arange(len(rows)) % count] = violations
    return rows


def test_every_rule_is_in_the_list():
    public = {cls for cls in vars(rules).values() if isinstance(cls, type) and hasattr(cls, "decide")} - {rules.Rule}
    assert {type(rule) for rule in RULES} == public


@pytest.mark.parametrize("rule", RULES, ids=str)
class TestContract:
    def test_weights_are_finite_and_not_negative(self, rule):
        for weight in weights(rule, VIOLATIONS):
            assert weight.dtype == np.float32
            assert np.isfinite(weight).all()
            assert (weight >= 0).all()

    def test_something_is_always_followed(self, rule):
        objective, constraint = weights(rule, VIOLATIONS)
        assert (objective + constraint >= 1).all()

    def test_state_keeps_its_form(self, rule):
        for count in (0, 1, 3):
            before = rule.init(count)
            after = jax.eval_shape(rule.decide, jnp.ones(count), before)[1]
            assert jax.tree.structure(after) == jax.tree.structure(before)
            forms = [[(a.shape, a.dtype) for a in jax.tree.leaves(state)] for state in (before, after)]
            assert forms[0] == forms[1]

    def test_reports_numbers_or_one_for_each_constraint(self, rule):
        for count, shape in ((1, ()), (3, (3,))):
            for column in rule.report(rule.init(count)).values():
                assert column.shape == shape
        assert all(np.size(column) for column in rule.report(rule.init(0)).values())

    def test_no_constraint_is_the_objective_alone(self, rule):
        objective, constraint, weight = decide_each(rule, np.zeros((2, 0), np.float32))[1]
        np.testing.assert_array_equal(objective, 1)
        assert not np.any(weight)
        assert not np.any(constraint)

    def test_of_several_constraints_the_largest_violation_counts_or_each_for_itself(self, rule):
        """A rule with one weight goes by the largest violation; one with a weight for each treats them apart."""
        rows = several(VIOLATIONS[1:])
        objective, constraint, weight = decide_each(rule, rows)[1]
        if isinstance(rule, Adaptive):  # its weights are shares of one step, but of multipliers that are each by itself
            alone = [decide_each(rule, rows[:, i : i + 1])[0][0] for i in range(rows.shape[1])]
            np.testing.assert_array_equal(decide_each(rule, rows)[0], alone)
        elif constraint.ndim == 1:
            np.testing.assert_array_equal((objective, weight), weights(rule, VIOLATIONS[1:]))
        else:
            alone = [weights(rule, rows[:, i])[1] for i in range(rows.shape[1])]
            np.testing.assert_array_equal(constraint, np.stack(alone, axis=1))

    def test_other_settings_are_the_same_program(self, rule):
        """Continuous settings are arguments of the compiled program and not part of it."""
        traces = []

        @jax.jit
        def decide(rule, violation, state):
            traces.append(rule)
            return rule.decide(violation, state)[0].weight

        state = rule.init(1)
        answers = []
        for factor in (1, 3):
            scaled = jax.tree.map(lambda a, factor=factor: np.float32(a / 1e3 * factor), rule)
            answers.append(float(decide(scaled, np.float32([-1e-4]), state)))
            expected, _ = scaled.decide(np.float32([-1e-4]), state)
            assert answers[-1] == pytest.approx(float(expected.weight))
        assert len(traces) == 1

    def test_same_under_vmap(self, rule):
        state, rows = rule.init(1), VIOLATIONS[:, None]
        together, _ = jax.vmap(rule.decide, in_axes=(0, None))(rows, state)
        for i in (0, 3, 6, 10):
            alone, _ = rule.decide(rows[i], state)
            for a, b in ((together.objective, alone.objective), (together.constraint, alone.constraint)):
                assert np.broadcast_to(a, (len(rows), *np.shape(b)))[i] == b


def test_settings_reach_the_compiled_program():
    """The same program, other numbers: the answers differ as the formulas do."""
    violation = np.float32([-0.01, 0.5])
    for beta in (10.0, 50.0, 99.0):
        np.testing.assert_allclose(weights(Soft(beta), violation)[1], [1 - beta * 0.01, 1], rtol=1e-5)
    for rho in (0.5, 7.0):
        np.testing.assert_array_equal(weights(Penalty(rho), violation)[1], [0, rho])
    for step in (0.25, 4.0):
        np.testing.assert_array_equal(weights(PrimalDual(step), violation)[1], [0, step / 2])


def test_hard():
    objective, constraint = weights(Hard(), VIOLATIONS)
    np.testing.assert_array_equal(constraint, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1])  # at exactly 0: within the bound
    np.testing.assert_array_equal(objective, 1 - constraint)


def test_soft():
    """s = clip(1 + beta v, 0, 1): 0 up to 1/beta below the bound, 1 from the bound on, a line between."""
    violations = np.float32([-1, -0.25, -0.1875, -0.125, -0.0625, -0.0, 0, 0.125, 1])
    objective, constraint = weights(Soft(4.0), violations)
    np.testing.assert_array_equal(constraint, [0, 0, 0.25, 0.5, 0.75, 1, 1, 1, 1])
    np.testing.assert_array_equal(objective, 1 - constraint)


def test_soft_with_a_ceiling():
    """The same ramp, cut off at the ceiling: never more of a step goes to the constraint."""
    violations = np.float32([-1, -0.1875, -0.125, -0.0625, 0, 1])
    objective, constraint = weights(Soft(4.0, ceiling=0.5), violations)
    np.testing.assert_array_equal(constraint, [0, 0.25, 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(objective, 1 - constraint)
    np.testing.assert_array_equal(weights(Soft(4.0, ceiling=1.0), violations), weights(Soft(4.0), violations))


def test_soft_becomes_hard():
    away = VIOLATIONS[np.abs(VIOLATIONS) > 1e-20]
    assert len(away) > 6
    np.testing.assert_array_equal(weights(Soft(1e30), away), weights(Hard(), away))


def test_adaptive():
    """Of multipliers raised by the violations, each its share of a step, m / (1 + sum m)."""
    violations = np.random.default_rng(0).normal(0.1, 1, (200, 3)).astype(np.float32)
    violations[50, 1] = -np.inf  # a round that cannot tell it leaves that multiplier as it is
    multipliers, expected = np.zeros(3), []
    for row in violations.astype(np.float64):
        multipliers = np.maximum(0, multipliers + 0.3 * np.where(np.isfinite(row), row, 0))
        expected.append(multipliers / (1 + multipliers.sum()))
    state, (objective, constraint, _) = decide_each(Adaptive(0.3), violations)
    np.testing.assert_allclose(constraint, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(objective, 1 - np.sum(expected, axis=1), rtol=1e-4)
    np.testing.assert_allclose(state, multipliers, rtol=1e-4)


def test_programs_of_different_rules_are_never_confused():
    """Compiled programs are found by the structure of what they are given, which must tell the classes apart."""
    rules = [Hard(), Soft(1.0), Adaptive(1.0), Penalty(1.0), PrimalDual(1.0), Unconstrained()]
    structures = [jax.tree.structure(rule) for rule in rules]
    for i, one in enumerate(structures):
        assert [other == one for other in structures] == [j == i for j in range(len(rules))]


def test_penalty():
    objective, constraint = weights(Penalty(2.5), VIOLATIONS)
    np.testing.assert_array_equal(constraint, [0, 0, 0, 0, 0, 0, 0, 2.5, 2.5, 2.5, 2.5, 2.5])
    np.testing.assert_array_equal(objective, 1)


def test_primal_dual():
    """The multiplier rises and falls with the violation, and never below zero."""
    rng = np.random.default_rng(0)
    violations = rng.normal(0, 1, 200).astype(np.float32)
    violations[:3] = -1, 2, 0
    expected, multiplier = [], np.float32(0)
    for violation in violations:
        multiplier = max(np.float32(0), multiplier + np.float32(0.3) * violation)
        expected.append(multiplier)
    assert expected[0] == 0
    objective, constraint = weights(PrimalDual(0.3), violations)
    np.testing.assert_allclose(constraint, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(objective, 1)


def test_primal_dual_state_is_the_multiplier():
    state, (_, constraint, _) = decide_each(PrimalDual(2.0), np.float32([[1], [3]]))
    assert state.tolist() == [8]
    np.testing.assert_array_equal(constraint, [[2], [8]])
    assert PrimalDual(2.0).report(state) == {"multiplier": 8}


def test_primal_dual_has_a_multiplier_for_each_constraint():
    """One constraint is violated and one is not: the first one's multiplier rises, the other's stays at zero."""
    state, (_, constraint, weight) = decide_each(PrimalDual(2.0), np.float32([[1, -1], [3, 2], [-np.inf, -1]]))
    np.testing.assert_array_equal(constraint, [[2, 0], [8, 4], [8, 2]])
    np.testing.assert_array_equal(weight, [2, 12, 10])
    np.testing.assert_array_equal(PrimalDual(2.0).report(state)["multiplier"], [8, 2])


def test_primal_dual_augmented():
    """The weight is that of the augmented Lagrangian, the multiplier the plain rule's; apart by augment * v."""
    rng = np.random.default_rng(1)
    violations = rng.normal(0, 1, 200).astype(np.float32)
    violations[:3] = -1, 2, -1
    multipliers, expected, multiplier = [], [], 0.0
    for violation in violations.astype(np.float64):
        multiplier = max(0.0, multiplier + 0.3 * violation)
        multipliers.append(multiplier)
        expected.append(max(0.0, multiplier + 1.5 * violation))
    state, (objective, _, constraint) = decide_each(PrimalDual(0.3, 1.5), violations[:, None])
    np.testing.assert_allclose(constraint, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state, multipliers[-1:], rtol=1e-4)
    np.testing.assert_array_equal(objective, 1)
    assert constraint[2] == 0, "0.3 are left of the multiplier, but the weight is never negative"
    assert multipliers[2] == pytest.approx(0.3)


def test_primal_dual_without_augmentation_is_the_plain_rule():
    np.testing.assert_array_equal(weights(PrimalDual(0.5, 0.0), VIOLATIONS), weights(PrimalDual(0.5), VIOLATIONS))


@pytest.mark.parametrize("augment", [0.0, 2.0])
@pytest.mark.parametrize("unknown", [-np.inf, np.nan])
def test_primal_dual_keeps_its_multiplier_where_the_violation_is_unknown(augment, unknown):
    state, (_, _, constraint) = decide_each(PrimalDual(2.0, augment), np.float32([[1], [unknown], [unknown], [3]]))
    assert state.tolist() == [8]
    np.testing.assert_array_equal(constraint, [2 + augment, 2, 2, 8 + 3 * augment])


def test_unconstrained():
    objective, constraint = weights(Unconstrained(), VIOLATIONS)
    np.testing.assert_array_equal(objective, 1)
    np.testing.assert_array_equal(constraint, 0)


@pytest.mark.parametrize("value", [0, 0.0, -1, float("nan"), float("inf"), "40", None, True, [40.0]], ids=repr)
@pytest.mark.parametrize(("rule", "name"), [(Soft, "beta"), (PrimalDual, "step"), (Adaptive, "step")])
def test_refuses_what_is_not_above_zero(rule, name, value):
    with pytest.raises(SettingError, match=rf"^{rule.__name__}: {name}=.*, but it must be a finite number above 0$"):
        rule(value)


@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), "1", None, False], ids=repr)
@pytest.mark.parametrize(("rule", "name"), [(Penalty, "rho"), (lambda value: PrimalDual(1.0, value), "augment")])
def test_refuses_what_is_below_zero(rule, name, value):
    with pytest.raises(SettingError, match=rf"^\w+: {name}=.*, but it must be a finite number 0 or more$"):
        rule(value)


@pytest.mark.parametrize("value", [0, -0.5, 1.5, float("nan"), "1", None, True], ids=repr)
def test_soft_refuses_a_ceiling_that_is_no_share(value):
    message = r"^Soft: ceiling=.*, but it must be a finite number above 0, at most 1$"
    with pytest.raises(SettingError, match=message):
        Soft(4.0, ceiling=value)


def test_largest_and_weight():
    assert largest(jnp.float32([-1, 3, 2])) == 3
    assert largest(jnp.zeros(0)) == -np.inf
    assert Direction(jnp.float32(1), jnp.float32(0.25)).weight == 0.25
    assert Direction(jnp.float32(1), jnp.float32([0.25, 0.5])).weight == 0.75
