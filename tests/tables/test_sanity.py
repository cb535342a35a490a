"""A fit is compared with doing nothing; its default does not end below a constant answer where the former one did."""

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.describe import describe
from fedsgm.tables import recipe, sanity
from fedsgm.tables.dealing import prepare
from fedsgm.tables.fit import make_problem
from fedsgm.tables.grammar import parse
from fedsgm.tables.models import MLP
from support.applications import TIGHT, applications, examinations

FORMER = fs.FedSGM(0.1, 2, batch_size=128, rule=fs.Soft(40.0))  # what fit did at 0.1.0, every tenth round measured


def fitted(algorithm, words, evaluate_every=1, model=None):
    wanted, model = [parse(each) for each in words], model or MLP()
    prepared = prepare(applications(), target="granted", wanted=wanted)
    problem = make_problem(model, wanted, prepared, "rows")
    params = model.init(len(prepared.encoder.features))

    def run(posed):
        options = {"rounds": recipe.ROUNDS, "test": prepared.test, "evaluate_every": evaluate_every, "progress": False}
        return fs.simulate(algorithm, posed, prepared.clients, params, **options)

    result = run(problem)
    return result, sanity.compare(model, problem, prepared, result, run(sanity.unbounded(problem)))


class TestTheDefaultDoesNotCollapse:
    @pytest.mark.parametrize("words", [*TIGHT, "demographic_parity(group) <= 0.005"])
    def test_at_tight_bounds(self, words):
        _, before = fitted(FORMER, [words], evaluate_every=10)
        assert before.worse == (words in TIGHT), "this data is such that the former default ended below a constant"
        result, compared = fitted(recipe.algorithm(), [words])
        assert result.feasible.all()
        assert not compared.worse
        assert compared.model.good["train"] > compared.constant.good["train"] + 0.08
        assert compared.unconstrained.good["train"] - compared.model.good["train"] < 0.03
        assert compared.unconstrained.values.keys() == compared.model.values.keys() == result.bounds.keys()

    def test_where_the_multiplier_must_be_above_one(self):
        result, compared = fitted(recipe.algorithm(), ["recall('yes') >= 0.9"])
        assert result.feasible.all()
        assert result.multiplier[0] > 1
        assert compared.constant.name == "always 'yes'", "the other constant answer has no recall"
        assert compared.model.good["train"] > compared.constant.good["train"] + 0.1

    def test_with_several_constraints(self):
        words = ["demographic_parity(group) <= 0.02", "equalized_odds(group) <= 0.1", "error_rate('yes') <= 0.6"]
        result, compared = fitted(recipe.algorithm(), words)
        assert result.feasible.all()
        assert compared.model.good["train"] > compared.constant.good["train"] + 0.05


def test_a_run_can_be_asked_to_be_right_as_often_as_a_constant():
    wanted = [parse("equalized_odds(group) <= 0.1")]
    prepared = prepare(examinations(), target="passed", wanted=wanted)
    model = prepared.target.model()
    problem = make_problem(model, wanted, prepared, "rows")

    def compared(posed):
        params = model.init(len(prepared.encoder.features))
        result = fs.simulate(recipe.algorithm(), posed, prepared.clients, params, rounds=recipe.ROUNDS, progress=False)
        assert result.feasible.all()
        return sanity.compare(model, problem, prepared, result, None)

    first = compared(problem)
    assert first.worse, "this data is such that the run with the lowest loss is right less often than a constant"
    assert not compared(sanity.as_right(problem, model, first.constant)).worse


class TestComparison:
    def test_constants_by_hand(self):
        _, compared = fitted(recipe.algorithm(rounds=2), ["demographic_parity(group) <= 0.5", "recall('yes') >= 0.5"])
        no, yes = compared.constants
        table = applications()
        assert yes.good["train"] == pytest.approx((table["granted"] == "yes").mean(), abs=0.01)
        assert no.good["train"] == pytest.approx(1 - yes.good["train"])
        assert no.values == pytest.approx({"demographic_parity(group)": 0, "recall(yes)": 0}, abs=1e-6)
        assert yes.values == pytest.approx({"demographic_parity(group)": 0, "recall(yes)": 1}, abs=1e-6)
        assert (no.within, yes.within) == (False, True)
        assert compared.constant is yes

    def test_of_constants_within_the_bounds_the_more_accurate_counts(self):
        good, better = (sanity.Answer(f"always {i}", {"train": right}, {}, True) for i, right in enumerate((0.4, 0.6)))
        over = sanity.Answer("always 2", {"train": 0.9}, {}, False)
        model = sanity.Answer("the model", {"train": 0.5}, {}, True)
        compared = sanity.Comparison(model, None, (good, over, better))
        assert compared.constant is better
        assert compared.worse
        warning = compared.lines()[0]
        assert warning == (
            "WORSE THAN A CONSTANT: always 1: 60.0% right on the training rows, within every bound; the model: "
            "50.0% right."
        )

    @pytest.mark.parametrize(
        ("within", "constant_within", "right", "worse"),
        [(True, True, 0.7, False), (True, True, 0.5, True), (False, True, 0.7, True), (False, False, 0.5, False)],
    )
    def test_worse(self, within, constant_within, right, worse):
        constant = sanity.Answer("always 'no'", {"train": 0.6}, {}, constant_within)
        model = sanity.Answer("the model", {"train": right}, {}, within)
        assert sanity.Comparison(model, None, (constant,)).worse == worse

    def test_goes_through_a_file(self):
        _, compared = fitted(recipe.algorithm(rounds=3), ["demographic_parity(group) <= 0.5"])
        assert sanity.Comparison.from_json(compared.to_json()) == compared

    def test_without_bounds_is_the_unconstrained_run(self):
        """By the rule that ignores constraints, too."""
        _, compared = fitted(recipe.algorithm(rounds=20), ["demographic_parity(group) <= 0.01"])
        plain, _ = fitted(recipe.algorithm(rounds=20, rule=fs.Unconstrained()), ["demographic_parity(group) <= 0.01"])
        assert not sanity.in_the_way(plain)
        gap = plain.history["demographic_parity(group)"][0, plain.history["objective"][0].argmin()]
        assert compared.unconstrained.values["demographic_parity(group)"] == pytest.approx(gap, abs=1e-6)


def test_a_soft_rule_at_odds_with_its_bound_is_said():
    ranges = {"gap": (-np.inf, 0.02), "loss": (-np.inf, 0.5), "recall": (0.9, np.inf)}
    (note,) = sanity.at_odds(describe(fs.Soft(40.0)), ranges)
    assert note.startswith("the soft rule with beta 40 weighs gap from 0.025 below its bound of 0.02")
    assert "--beta 200 or more, or --rule adaptive" in note
    assert not sanity.at_odds(describe(fs.Soft(200.0)), ranges)
    assert not sanity.at_odds(describe(fs.Adaptive()), ranges)
