"""Limits of constraints on new data: as often right as they say, on populations whose true values are known."""

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.tables import confidence, fairness
from fedsgm.tables.models import MLP

MODEL = MLP()
PARAMS = [{"w": np.float32([1.0]), "b": np.float32(0.0)}]
RATES = {0: 0.2, 1: 0.28}  # of positive decisions; those of class 1 are decided so 1.5 times as often


def drawn(rng, rows, rates=RATES):
    """Rows whose decisions have known rates in each group, by the one feature."""
    group = (rng.random(rows) < 0.3).astype(np.int32)
    y = (rng.random(rows) < 0.5).astype(np.float32)
    rate = np.where(group == 1, rates[1], rates[0]) * np.where(y == 1, 1.5, 0.5)
    return {"x": np.where(rng.random(rows) < rate, 1, -1).astype(np.float32)[:, None], "y": y, "group": group}


def posed(*constraints):
    return fs.Problem(MODEL.loss, list(constraints), weigh="rows")


PARITY = fairness.demographic_parity(MODEL.score, by="group", groups=2)
ODDS = fairness.equalized_odds(MODEL.score, by="group", groups=2)
RECALL = fairness.recall(MODEL.score, label=1)
TRUE = {"demographic_parity": 0.08, "equalized_odds": 0.12, "recall_1": 1.5 * (0.7 * 0.2 + 0.3 * 0.28)}


@pytest.mark.parametrize("rows", [150, 1000])
@pytest.mark.parametrize("quantity", [PARITY, ODDS, RECALL], ids=lambda each: each.label)
def test_limits_hold_as_often_as_they_say(quantity, rows):
    """Of 400 samples at most 5 % miss, and four standard errors of such a count more."""
    rng = np.random.default_rng(0)
    problem = posed(quantity <= 0.5)
    found = np.array([confidence.limits(problem, PARAMS, drawn(rng, rows), 0.95)[quantity.label] for _ in range(400)])
    missed = ~((found[:, 0] <= TRUE[quantity.label]) & (TRUE[quantity.label] <= found[:, 1]))
    assert missed.mean() <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 400)
    wide = np.median(found[:, 1] - found[:, 0])
    assert 0.02 < wide < 0.9, "limits that say nothing would hold, too"


def test_a_rate_s_limits_are_those_of_agresti_and_coull_nearly():
    """One rate, one part: with a row of each outcome added, the normal interval."""
    rows = drawn(np.random.default_rng(1), 400)
    own = rows["y"] == 1
    yes = (rows["x"][own, 0] > 0).sum()
    share, total = (yes + 1) / (own.sum() + 2), own.sum() + 2
    (low, high) = confidence.limits(posed(RECALL >= 0.1), PARAMS, rows, 0.95)["recall_1"]
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(share * (1 - share) / total), rel=1e-3)
    assert (high + low) / 2 == pytest.approx(yes / own.sum(), rel=1e-5)


def test_a_group_without_an_error_is_not_certain():
    rows = drawn(np.random.default_rng(2), 60) | {"x": np.full((60, 1), -1, np.float32)}
    low, high = confidence.limits(posed(PARITY <= 0.1), PARAMS, rows, 0.95)["demographic_parity"]
    assert low < 0 < 0.05 < high


def test_weights_count_rows():
    """A row of weight 2 gives the values of two rows, and a larger error, as it is one draw."""
    rows = drawn(np.random.default_rng(3), 300)
    weighted = fs.Problem(MODEL.loss, [RECALL >= 0.1], weight=lambda example: example["weight"], weigh="rows")
    once = rows | {"weight": np.ones(300, np.float32)}
    twice = rows | {"weight": np.where(np.arange(300) % 2, 3, 1).astype(np.float32)}
    plain = confidence.limits(posed(RECALL >= 0.1), PARAMS, rows, 0.9)["recall_1"]
    assert confidence.limits(weighted, PARAMS, once, 0.9)["recall_1"] == pytest.approx(plain, rel=1e-5)
    heavy = np.concatenate([np.arange(300), *([np.arange(1, 300, 2)] * 2)])
    share = (rows["x"][heavy][rows["y"][heavy] == 1] > 0).mean()
    low, high = confidence.limits(weighted, PARAMS, twice, 0.9)["recall_1"]
    assert (low + high) / 2 == pytest.approx(share, rel=1e-4)
    assert high - low > plain[1] - plain[0]


def test_bounds_are_moved_inwards_and_something_is_left():
    problem = posed(PARITY <= 0.1, RECALL >= 0.8)
    moved = confidence.tightened(problem, {"demographic_parity": 0.03, "recall_1": 0.05})
    assert moved.ranges["demographic_parity"][1] == pytest.approx(0.07)
    assert moved.ranges["recall_1"][0] == pytest.approx(0.85)
    most = confidence.tightened(problem, {"demographic_parity": 9.0, "recall_1": 9.0})
    assert most.ranges["demographic_parity"][1] == pytest.approx(0.02)
    assert most.ranges["recall_1"][0] == pytest.approx(0.96)


def test_margins_make_room_for_the_held_out_rows_error():
    """Twice the limit's distance on so many rows as are held out."""
    rng = np.random.default_rng(4)
    train, held = drawn(rng, 40_000), drawn(rng, 1_000)
    problem = posed(PARITY <= 0.1)
    (margin,) = confidence.margins(problem, PARAMS, train, 1_000, 0.95).values()
    low, high = confidence.limits(problem, PARAMS, held, 0.95, one_sided=True)["demographic_parity"]
    assert margin == pytest.approx(high - low, rel=0.1)


def test_kept():
    problem = posed(PARITY <= 0.1, RECALL >= 0.8)
    found = {"demographic_parity": (0.01, 0.09), "recall_1": (0.7, 0.9)}
    assert confidence.kept(problem, found) == {"demographic_parity": True, "recall_1": False}
    assert not any(confidence.kept(problem, dict.fromkeys(found, (np.nan, np.nan))).values())


def test_a_network_s_numbers_are_its_own():
    """Any model: the value that the limits are about is the one that NumPy finds."""
    net = MLP((4,))
    params = net.init(1, seed=0)
    params[-1]["w"] = np.random.default_rng(0).normal(size=4).astype(np.float32)
    rows = drawn(np.random.default_rng(5), 500)
    decided = np.asarray(jax.vmap(net.score, (None, 0))(params, rows)) > 0.5
    recall = decided[rows["y"] == 1].mean()
    quantity = fairness.recall(net.score, label=1)
    low, high = confidence.limits(fs.Problem(net.loss, [quantity >= 0.1]), params, rows, 0.95)["recall_1"]
    assert low <= recall <= high
