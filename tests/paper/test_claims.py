"""Verdicts by splits: held against SciPy's tests, and made-up cases that must hold, must fail and must not be shown."""

import numpy as np
import pytest
import scipy.stats

from fedsgm.paper.claims import SLIGHT, alike, compared, mostly


class TestCompared:
    def test_it_is_a_paired_test_of_the_splits_means(self):
        rng = np.random.default_rng(1)
        outcomes = set()
        for shift in np.linspace(-1, 1, 41):
            a, b = rng.normal(size=(2, 10, 3))
            b = b + 10 + shift  # so that 5% is a number to speak of
            a = a + 10
            claim = compared("says", "what", ("a", a), ("b", b))
            means = a.mean(axis=1), b.mean(axis=1)
            above = scipy.stats.ttest_rel(*means[::-1], alternative="greater").pvalue < 0.05
            slight = SLIGHT * b.mean()
            below = scipy.stats.ttest_rel(means[1] - slight, means[0], alternative="less").pvalue < 0.05
            assert claim.holds == (True if above else False if below else None)
            outcomes.add(claim.holds)
        assert outcomes == {True, False, None}

    def test_copies_of_a_run_prove_nothing(self):
        """One number of four is below the other's, in as many copies as one likes."""
        a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([9.0, 2.0, 3.0, 4.0])
        for copies in (1, 100):
            twice = [np.repeat(values[:, None], copies, axis=1) for values in (a, b)]
            assert compared("says", "what", ("a", twice[0]), ("b", twice[1])).verdict == "not shown"
        as_if_independent = compared("says", "what", ("a", np.tile(a, 100)), ("b", np.tile(b, 100)))
        assert as_if_independent.verdict == "holds"

    @pytest.mark.parametrize(
        ("shift", "spread", "verdict"),
        [
            (1.0, 0.5, "holds"),
            (0.01, 0.001, "holds"),  # slight, but there
            (0.0, 0.1, "false"),  # no difference to speak of
            (-1.0, 0.5, "false"),
            (-1.0, 5.0, "not shown"),
            (1.0, 5.0, "not shown"),
        ],
    )
    def test_hand_made(self, shift, spread, verdict):
        wave = np.tile([-1.0, 1.0], 5)
        a = np.full(10, 10.0)
        claim = compared("says", "what", ("a", a[:, None]), ("b", (a + shift + spread * wave)[:, None]))
        assert claim.verdict == verdict
        assert not claim.ours

    @pytest.mark.parametrize(("slight", "verdict"), [(0.05, "false"), (0.01, "not shown")])
    def test_what_is_slight_can_be_told(self, slight, verdict):
        a = np.full(10, 10.0)
        b = a + 0.1 + 0.3 * np.tile([-1.0, 1.0], 5)  # the interval ends at 0.28
        assert compared("says", "what", ("a", a), ("b", b), slight=slight).verdict == verdict

    def test_one_split_or_a_run_that_diverged_shows_nothing(self):
        assert compared("says", "what", ("a", np.zeros(1)), ("b", np.ones(1))).holds is None
        assert compared("says", "what", ("a", np.zeros((1, 3))), ("b", np.ones((1, 3)))).holds is None
        assert compared("says", "what", ("a", np.zeros(4)), ("b", np.array([1, 1, 1, np.nan]))).holds is None

    def test_what_is_measured_is_said(self):
        claim = compared(
            "a is less", "size", ("a", np.array([[1.0], [2.0]])), ("b", np.array([[3.0], [4.0]])), ours=True
        )
        assert claim.measured == "size: b 3.5, a 1.5; difference 2 ± 0 (90% interval, 2 splits)"
        assert (claim.says, claim.holds, claim.ours) == ("a is less", True, True)


class TestAlike:
    def test_it_is_two_one_sided_tests(self):
        rng = np.random.default_rng(2)
        outcomes = set()
        for shift in np.linspace(-3, 3, 41):
            a, b = rng.normal(size=(2, 10, 3))
            claim = alike("says", "what", ("a", a + shift), ("b", b), margin=1.0)
            each = (a + shift).mean(axis=1) - b.mean(axis=1)

            def p(margin, side, each=each):
                return scipy.stats.ttest_1samp(each, margin, alternative=side).pvalue < 0.05

            within = p(-1.0, "greater") and p(1.0, "less")
            beyond = p(1.0, "greater") or p(-1.0, "less")
            assert claim.holds == (True if within else False if beyond else None)
            outcomes.add(claim.holds)
        assert outcomes == {True, False, None}

    @pytest.mark.parametrize(
        ("shift", "spread", "verdict"),
        [(0.0, 0.1, "holds"), (0.5, 0.1, "holds"), (2.0, 0.1, "false"), (-2.0, 0.1, "false"), (0.0, 9.0, "not shown")],
    )
    def test_hand_made(self, shift, spread, verdict):
        values = 10.0 + shift + spread * np.tile([-1.0, 1.0], 5)
        assert alike("says", "what", ("a", values), ("the paper", 10.0), margin=1.0).verdict == verdict

    def test_the_margin_is_said(self):
        claim = alike("says", "what", ("a", np.zeros(2)), ("b", np.zeros(2)), margin=0.5)
        assert claim.measured == "what: a 0, b 0; difference 0 ± 0 (90% interval, 2 runs); margin ±0.5"


def test_most_splits_by_binomial_tests():
    for total in (1, 2, 5, 10, 30):
        for count in range(total + 1):
            claim = mostly("says", "kept", np.arange(total) < count)
            if_half = sum(scipy.stats.binom.pmf(k, total, 0.5) for k in range(count, total + 1))
            if_four_in_five = sum(scipy.stats.binom.pmf(k, total, 0.8) for k in range(count + 1))
            assert claim.holds == (True if if_half < 0.05 else False if if_four_in_five < 0.05 else None)
    found = {count: mostly("", "", np.arange(10) < count).verdict for count in (5, 6, 8, 9)}
    assert found == {5: "false", 6: "not shown", 8: "not shown", 9: "holds"}
    assert mostly("says", "kept", [True] * 9 + [False]).measured == "kept: 9 of 10 splits"
