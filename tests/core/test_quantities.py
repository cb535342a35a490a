"""Estimates of constraints by some clients, their standard errors, and constraints of every sense, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.core.pooling import standard_error, total_of
from fedsgm.tasks import cmdp

KEY = jax.random.key(0)
RNG = np.random.default_rng(7)
COSTS = RNG.normal(size=9).astype(np.float32)
HEARD = np.array([1, 0, 1, 1, 0, 0, 1, 1, 0], np.float32)


def loss(w, example):
    return w * example


def share(sums):
    return sums["part"] / sums["all"]


def sums_of(clients, seed=0):
    """Each client's part and whole, and a group's counts."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(20, 60, clients).astype(np.float32)
    return {"part": rng.binomial(whole.astype(int), 0.4).astype(np.float32), "all": whole}


MEAN = fs.Mean(loss, name="mean")
SHARE = fs.Statistic(lambda w, e: {"part": w * e, "all": e}, share, name="share")


def combined(quantity, statistics, heard=None, tolerance=0.0):
    problem = fs.Problem(loss, [quantity <= 0.3])
    return jax.jit(problem.combine)((statistics,), tolerance, KEY, heard)


@pytest.mark.parametrize(("quantity", "statistics"), [(MEAN, COSTS), (SHARE, sums_of(9))], ids=["mean", "statistic"])
def test_only_who_was_heard_counts(quantity, statistics):
    def rubbish(a):
        return np.where(HEARD > 0, a, np.nan)

    here = np.flatnonzero(HEARD)
    alone = combined(quantity, jax.tree.map(lambda a: a[here], statistics))
    masked = combined(quantity, jax.tree.map(rubbish, statistics), HEARD)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), masked, alone)
    everybody = combined(quantity, statistics, np.ones(9, np.float32))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), everybody, combined(quantity, statistics))
    assert combined(quantity, statistics, np.zeros(9, np.float32)).violations[0] == -np.inf


def test_the_error_of_a_mean_is_the_sample_deviation_over_the_root_of_the_count():
    assert combined(MEAN, COSTS).errors[0] == pytest.approx(COSTS.std(ddof=1) / 3, rel=1e-5)
    few = COSTS[HEARD > 0]
    assert combined(MEAN, COSTS, HEARD).errors[0] == pytest.approx(few.std(ddof=1) / np.sqrt(5), rel=1e-5)
    assert combined(MEAN, COSTS[:1]).errors[0] == 0
    assert combined(MEAN, COSTS, np.eye(9, dtype=np.float32)[2]).errors[0] == 0
    assert combined(MEAN, COSTS, np.zeros(9, np.float32)).errors[0] == 0


def test_the_error_of_a_statistic_is_that_of_many_draws():
    """Of clients drawn with replacement: the deviation of the values of many draws, and the mean of their errors."""
    sums = sums_of(400)
    draws = np.random.default_rng(1).integers(0, 400, (4000, 30))
    at = jax.jit(jax.vmap(lambda s: (SHARE.measured(SHARE.pool(s)), SHARE.error(s, SHARE.pool(s)))))
    values, errors = at(jax.tree.map(lambda a: a[draws], sums))
    assert float(np.mean(errors)) == pytest.approx(float(np.std(values)), rel=0.05)


def test_the_error_is_of_what_is_switched_on():
    quantity = fs.Statistic(SHARE.sums, lambda t: t["all"] / 100, switch_on=share, name="share")
    assert combined(quantity, sums_of(9)).errors[0] == combined(SHARE, sums_of(9)).errors[0]


def test_an_undefined_value_has_no_error():
    """Nobody has the group: the constraint is passed over, and a margin of so many errors adds nothing."""
    found = combined(fs.fairness.class_loss(loss, label=1), {"count": np.zeros(4), "loss": np.zeros(4)})
    assert found.violations[0] == -np.inf
    assert found.errors[0] == 0


def test_scales_and_errors_are_of_each_constraint():
    problem = fs.Problem(loss, [MEAN <= 0.3, fs.Constraint(SHARE, 0.1, scale=2.0)])
    measured = problem.combine((COSTS, sums_of(9)), 0.0, KEY)
    np.testing.assert_array_equal(measured.scales, [1, 2])
    assert measured.errors.shape == (2,)
    assert measured.scale == measured.scales[np.argmax(measured.violations)]
    none = fs.Problem(loss).combine((), 0.0, KEY)
    assert none.scale == 1
    assert none.errors.shape == none.scales.shape == (0,)


def test_errors_that_nobody_uses_are_not_computed():
    def violations(statistics):
        return fs.Problem(loss, [MEAN <= 0.3]).combine((statistics,), 0.0, KEY).violations

    compiled = jax.jit(violations).lower(COSTS).compile().as_text()
    assert "sqrt" not in compiled
    assert "sqrt" in jax.jit(standard_error).lower(jnp.asarray(COSTS)).compile().as_text()


def followed(problem, w, clients):
    """The violation at ``w`` over all clients, and the mean of their constraint gradients."""
    data = problem.prepare(clients, w)

    @jax.jit
    def at(w, data):
        statistics, kept = jax.vmap(lambda one: problem.measure(w, one, KEY))(data)
        measured = problem.combine(statistics, 0.0, KEY)
        direction = fs.Direction(jnp.float32(0), jnp.float32(1), measured.guide)
        each = jax.vmap(lambda one, mine: problem.direction(w, direction, one, mine, KEY))(data, kept)
        return measured, jnp.mean(each, axis=0)

    return at(w, data)


def pull(w, example):
    return (w - example["a"]) @ (w - example["a"]) / 2


def push(w, example):
    return w @ example["b"]


def ill(example):
    return example["ill"] == 1


def dealt(n=6, rows=5, d=3, seed=3, nobody=()):
    """Clients that differ; those of ``nobody`` have no ill example."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n, d))
    each = []
    for j in range(n):
        sick = np.zeros(rows, int) if j in nobody else np.arange(rows) % 2
        a, b = mean[j] + rng.normal(size=(2, rows, d))
        each.append({"a": np.float32(a), "b": np.float32(b), "ill": sick})
    return each


EACH = dealt()
CLIENTS = fs.Clients.from_list(EACH)
W = np.float32([0.4, -0.7, 0.2])
PUSH = fs.Mean(push, name="push")
MEANS = np.array([(one["b"] @ W).mean() for one in EACH])
SLOPES = np.array([one["b"].mean(axis=0) for one in EACH])


def sums(w, example):
    return {"hot": jax.nn.sigmoid(push(w, example)) * ill(example), "ill": jnp.float32(ill(example))}


RATE = fs.Statistic(sums, lambda t: t["hot"] / t["ill"], name="rate")


def own_rate(w, one):
    """A client's rate and its gradient; NaN where it has no ill example."""
    sick = one["b"][one["ill"] == 1]
    hot = 1 / (1 + np.exp(-(sick @ w)))
    with np.errstate(invalid="ignore"):
        return hot.sum() / len(sick), (hot * (1 - hot)) @ sick / len(sick)


@pytest.mark.parametrize("bound", [MEANS.mean() - 0.3, MEANS.mean() + 0.3])
def test_at_least_is_at_most_of_the_negative(bound):
    below = fs.Mean(lambda w, e: -push(w, e), name="negative")
    negated, slope = followed(fs.Problem(pull, [fs.Constraint(below, -bound, scale=2.0)]), W, CLIENTS)
    problem = fs.Problem(pull, [fs.Constraint(PUSH, bound, scale=2.0, sense=">=")])
    measured, found = followed(problem, W, CLIENTS)
    assert measured.violations[0] == pytest.approx((bound - MEANS.mean()) / 2, rel=1e-4)
    np.testing.assert_allclose(measured.violations, negated.violations, rtol=1e-5)
    np.testing.assert_allclose(found, slope, rtol=1e-5)
    np.testing.assert_allclose(found, -SLOPES.mean(axis=0), rtol=1e-4)
    assert measured.report["estimate"] == pytest.approx(MEANS.mean(), rel=1e-5), "the quantity's own, not its negative"
    assert problem.combine((np.float32([bound]),), 0.1, KEY).violations[0] == pytest.approx(-0.05, rel=1e-4)


def test_a_statistic_at_least():
    value = np.mean([own_rate(W, one)[0] for one in EACH])  # as many ill ones everywhere
    measured, found = followed(fs.Problem(pull, [RATE >= 0.9]), W, CLIENTS)
    assert measured.violations[0] == pytest.approx(0.9 - value, rel=1e-4)
    np.testing.assert_allclose(found, -np.mean([own_rate(W, one)[1] for one in EACH], axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(-0.5, -0.2), (-0.5, 0.5), (-0.1, 0.9), (0.3, 0.9)])
def test_between_two_bounds_the_larger_violation_is_followed(low, high):
    middle = MEANS.mean()
    low, high = middle + low, middle + high
    measured, found = followed(fs.Problem(pull, [fs.between(low, PUSH, high)]), W, CLIENTS)
    assert measured.violations[0] == pytest.approx(max(middle - high, low - middle), rel=1e-4)
    sign = 1 if middle - high >= low - middle else -1
    np.testing.assert_allclose(found, sign * SLOPES.mean(axis=0), rtol=1e-4)


def test_a_problem_says_the_sense_and_the_range_of_each():
    constraints = [PUSH <= 0.5, fs.Mean(push, name="up") >= 0.1, fs.between(-1.0, fs.Mean(push, name="in"), 2.0)]
    problem = fs.Problem(pull, constraints)
    assert problem.senses == {"push": "<=", "up": ">=", "in": "between"}
    assert problem.bounds == {"push": 0.5, "up": 0.1, "in": 2.0}
    assert problem.ranges == {"push": (-np.inf, 0.5), "up": (0.1, np.inf), "in": (-1.0, 2.0)}


def test_a_number_on_the_left_compares_the_other_way():
    for number in (0.5, np.float64(0.5), np.float32(0.5)):
        assert (number >= PUSH).sense == "<="
        assert (number <= PUSH).sense == ">="


def test_the_average_is_over_who_has_such_examples():
    each = dealt(nobody=(1, 4))
    here = [one for j, one in enumerate(each) if j not in (1, 4)]
    quantity = fs.Mean(push, where=ill, name="push", missing="absent")
    measured, found = followed(fs.Problem(pull, [quantity <= 0.0]), W, fs.Clients.from_list(each))
    theirs = np.array([(one["b"][one["ill"] == 1] @ W).mean() for one in here])
    assert measured.violations[0] == pytest.approx(theirs.mean(), rel=1e-4)
    assert measured.errors[0] == pytest.approx(theirs.std(ddof=1) / 2, rel=1e-4)
    slopes = [one["b"][one["ill"] == 1].mean(axis=0) for one in here]
    np.testing.assert_allclose(found, np.mean(slopes, axis=0), rtol=1e-4)
    refused, gradient = followed(
        fs.Problem(pull, [fs.Mean(push, where=ill, name="push") <= 0.0]), W, fs.Clients.from_list(here)
    )
    np.testing.assert_allclose(refused.violations, measured.violations, rtol=1e-5)
    np.testing.assert_allclose(gradient, found, rtol=1e-5)


@pytest.mark.parametrize("quantile", [1.0, 0.95, 0.8, 0.5, 0.2, 0.01])
@pytest.mark.parametrize("clients", [1, 5, 20, 40])
def test_a_quantile_of_clients_is_numpys(quantile, clients):
    values = np.random.default_rng(clients).normal(size=clients).astype(np.float32)
    above = fs.each_client(PUSH, quantile)
    below = (above >= 0.0).quantity
    pooled = (values, np.ones(clients, bool))
    expected = np.quantile(values, quantile, method="inverted_cdf")
    assert above.measured(pooled) == expected
    assert values[int(above.spread(pooled)["client"])] == values.max()
    assert values[int(below.spread(pooled)["client"])] == values.min()
    assert (values <= expected).mean() >= quantile - 1e-6
    assert below.measured(pooled) == -np.quantile(-values, quantile, method="inverted_cdf")


@pytest.mark.parametrize("sense", ["<=", ">="])
@pytest.mark.parametrize("base", [PUSH, RATE], ids=["mean", "statistic"])
def test_the_worst_client_is_followed_and_named(base, sense):
    each = dealt(nobody=(2,))
    if base is RATE:
        values, slopes = zip(*(own_rate(W, one) for one in each), strict=True)
    else:
        values, slopes = [(one["b"] @ W).mean() for one in each], [one["b"].mean(axis=0) for one in each]
    sign = 1 if sense == "<=" else -1
    worst = int(np.nanargmax(sign * np.array(values)))
    problem = fs.Problem(pull, [fs.Constraint(fs.each_client(base), 0.1, sense=sense)])
    clients = fs.Clients.from_list(each)
    measured, found = followed(problem, W, clients)
    assert measured.violations[0] == pytest.approx(sign * (values[worst] - 0.1), rel=1e-4)
    np.testing.assert_allclose(found, sign * slopes[worst], rtol=1e-4)
    told, violation = problem.summarise(
        jax.vmap(lambda one: problem.evaluate(W, one, KEY))(problem.prepare(clients, W))
    )
    assert told[base.label] == pytest.approx(values[worst], rel=1e-4)
    assert told[f"{base.label}_client"] == worst
    assert violation == pytest.approx(sign * (values[worst] - 0.1), rel=1e-4)


def test_a_temperature_weighs_the_clients_as_the_log_of_the_sum_of_exponentials_does():
    problem = fs.Problem(pull, [fs.each_client(PUSH, soft=0.3) <= 0.1])
    measured, found = followed(problem, W, CLIENTS)
    weights = np.exp(MEANS / 0.3) / np.exp(MEANS / 0.3).sum()
    np.testing.assert_allclose(found, weights @ SLOPES, rtol=1e-4)
    assert measured.violations[0] == pytest.approx(MEANS.max() - 0.1, rel=1e-4), "compared is the worst itself"
    half = followed(fs.Problem(pull, [fs.each_client(PUSH, 0.5, 0.3) <= 0.1]), W, CLIENTS)[1]
    best = np.argsort(MEANS)[:3]
    weights = np.exp(MEANS[best] / 0.3) / np.exp(MEANS[best] / 0.3).sum()
    np.testing.assert_allclose(half, weights @ SLOPES[best], rtol=1e-4)


def test_the_error_of_the_worst_is_its_distance_to_the_next():
    measured, _ = followed(fs.Problem(pull, [fs.each_client(PUSH) <= 0.1]), W, CLIENTS)
    order = np.sort(MEANS)
    assert measured.errors[0] == pytest.approx(order[-1] - order[-2], rel=1e-3)
    values = np.random.default_rng(0).normal(size=(2000, 100)).astype(np.float32)
    quantity = fs.each_client(PUSH, 0.7)
    here = np.ones(100, bool)
    at = jax.jit(jax.vmap(lambda v: (quantity.measured((v, here)), quantity.error(None, (v, here)))))
    medians, errors = at(values)
    assert 1 <= float(np.mean(errors)) / float(np.std(medians)) <= 1.4, "the larger side is taken"


def test_undefined_on_every_client_heard_is_passed_over():
    problem = fs.Problem(pull, [fs.each_client(RATE) <= 0.1])
    measured = problem.combine(((np.zeros(3, np.float32), np.zeros(3, np.float32)),), 0.0, KEY)
    assert measured.violations[0] == -np.inf
    assert measured.errors[0] == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(measured.guide))


def test_only_who_was_heard_can_be_worst():
    problem = fs.Problem(pull, [fs.each_client(PUSH) <= 0.0])
    heard = np.float32(MEANS.max() > MEANS)
    ones = np.ones(6, np.float32)
    measured = problem.combine(((np.float32(MEANS), ones),), 0.0, KEY, heard)
    assert measured.violations[0] == np.float32(np.sort(MEANS)[-2])
    assert measured.guide[1][0][1] == 5, "one of five messages is the one's"


def test_a_cmdp_estimates_by_who_was_heard():
    task = cmdp.load().task
    statistics = {"reward": COSTS, "cost": COSTS + 30, "excess": COSTS + 1}
    measured = task.combine(statistics, 0.5, KEY, HEARD)
    few = COSTS[HEARD > 0]
    assert measured.violations[0] == pytest.approx(few.mean() + 0.5, rel=1e-5)
    assert measured.errors[0] == pytest.approx(few.std(ddof=1) / np.sqrt(5), rel=1e-5)
    assert task.combine(statistics, 0.5, KEY).errors[0] == pytest.approx(COSTS.std(ddof=1) / 3, rel=1e-5)
    np.testing.assert_array_equal(measured.scales, [1])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 20, 101])
def test_a_sum_over_clients_has_one_order(n):
    """That of halves, as in NumPy below, also where the values are made in the same program."""
    rng = np.random.default_rng(n)
    x, w = rng.normal(size=(n, 3, 5)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    heard = np.float32(rng.random(n) < 0.7)

    def halves(values):
        if len(values) == 1:
            return values[0]
        first, second = values[: -(-len(values) // 2)], values[-(-len(values) // 2) :]
        return halves(first + np.concatenate([second, np.zeros_like(first[len(second) :])]))

    values = np.asarray(jax.jit(lambda x, w: x @ w)(x, w))
    np.testing.assert_array_equal(total_of(values), halves(values))
    np.testing.assert_array_equal(jax.jit(lambda x, w: total_of(x @ w))(x, w), halves(values))
    np.testing.assert_allclose(total_of(values), values.astype(np.float64).sum(axis=0), rtol=1e-5, atol=1e-5)
    broken = np.where(heard[:, None] > 0, values, np.nan)
    np.testing.assert_array_equal(total_of(broken, heard), halves(np.where(heard[:, None] > 0, values, 0)))
