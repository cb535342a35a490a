"""What the proofs assume, what a run gives of it, and what is promised then."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from optax.projections import projection_box, projection_l2_ball

import fedsgm as fs
from fedsgm import theory

CONSTANTS = {"rounds": 1600, "distance": 3.0, "lipschitz": 2.0, "local_steps": 4, "clients": 20}
SAMPLED = CONSTANTS | {"participants": 5, "sigma": 0.5, "delta": 0.1}
TWO = fs.Clients.from_list([{"s": np.array([s], np.float32)} for s in (-1.0, 1.0)])
BALL = functools.partial(projection_l2_ball, scale=1.0)
START = np.zeros(2, np.float32)
PROBLEM = fs.Problem(
    objective=lambda w, example: w[0] + example["s"] * w[1],
    constraints=[fs.Mean(lambda w, example: -w[0] + 0.1 * example["s"], name="g") <= 0.2],
)
KNOWN = {"lipschitz": math.sqrt(2), "project": BALL}


# --- Random compressors ---


def test_a_random_compressor_is_promised_for_in_expectation():
    """The sums are bounded in the mean over runs, and |A| that divides them is random: no run by itself is bounded."""
    for rule in ("hard", "soft"):
        for projected in (False, True):
            told = CONSTANTS | {"rule": rule, "uplink": 0.5, "projected": projected}
            sure, drawn = (theory.guarantee(**told, random=random) for random in (False, True))
            assert (sure.kind, sure.probability) == ("always", 1)
            assert (drawn.kind, drawn.probability) == ("expectation", None)
            assert dataclasses.replace(drawn, kind="always", probability=1.0) == sure, "the numbers are the same"
    assert theory.guarantee(**CONSTANTS, random=True).kind == "always", "what is not compressed draws nothing"
    assert theory.guarantee(**SAMPLED).kind == "probability"
    with pytest.raises(fs.SettingError, match="with sampled clients the theorem is for deterministic compressors"):
        theory.guarantee(**SAMPLED, random=True, downlink=0.5)


@pytest.mark.parametrize("way", ["uplink", "downlink"])
@pytest.mark.parametrize(
    ("compressor", "kind"),
    [
        (fs.RandK(count=1), "expectation"),
        (fs.Natural(), "expectation"),
        (fs.Layerwise(fs.Natural(), sizes=(1, 1)), "expectation"),
        (fs.TopK(count=1), "always"),
        (fs.ScaledSign(), "always"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_the_plan_knows_which_compressors_draw(way, compressor, kind):
    algorithm = fs.FedSGM.from_theory(PROBLEM, TWO, START, rounds=50, **KNOWN, **{way: compressor})
    assert algorithm.promise.kind == kind


def test_the_verdict_tells_an_expectation_in_words_and_the_mean_keeps_it():
    rounds, seeds = 4000, 20
    algorithm = fs.FedSGM.from_theory(PROBLEM, TWO, START, rounds=rounds, uplink=fs.RandK(count=1), **KNOWN)
    result = fs.simulate(algorithm, PROBLEM, TWO, START, rounds=rounds, seeds=seeds, evaluate_every=0, progress=False)
    verdict, promise = result.verdict(), algorithm.promise
    assert f"objective at most {promise.epsilon:.2g} above the best possible,\n" in verdict
    assert "the objective in the mean over runs, each counted by the rounds in its average\n" in verdict
    assert "probability" not in verdict
    counted = (1 - result.history["weight"]).sum(axis=1)
    gap = result.value("train", "objective", "average") + 0.2  # the optimum has w = (-0.2, 0)
    assert (counted * (gap - promise.epsilon)).mean() <= 0
    assert (result.excess("train", "average") <= promise.violation).all()


# --- Any beta ---


@pytest.mark.parametrize("seed", range(20))
def test_any_beta_promises_the_error_and_the_error_with_its_ramp(seed):
    """M is the hard rule's error: the same sums are bounded, whoever weighs them."""
    rng = np.random.default_rng(seed)
    beta = 10 ** rng.uniform(-3, 3)
    for told in (CONSTANTS, CONSTANTS | {"uplink": 0.3}, SAMPLED, SAMPLED | {"query": "all"}):
        hard = theory.guarantee("hard", **told)
        radius = hard.violation - hard.tolerance
        found = theory.guarantee("soft", **told, beta=beta)
        assert found.beta == beta
        assert found.error == found.epsilon == hard.error == pytest.approx(hard.tolerance - radius)
        assert found.tolerance == pytest.approx(hard.error + 1 / beta + radius)
        assert found.violation == pytest.approx(hard.error + 1 / beta + 2 * radius)
        assert found.step_size == hard.step_size
        plain = theory.guarantee("soft", **told)
        same = theory.guarantee("soft", **told, beta=plain.beta)
        assert (same.tolerance, same.violation) == pytest.approx((plain.tolerance, plain.violation))
        assert plain.epsilon == pytest.approx(2 * same.epsilon), "the paper's proof promises twice what holds"
        sharp = theory.guarantee("soft", **told, beta=1e12)
        assert (sharp.tolerance, sharp.violation) == pytest.approx((hard.tolerance, hard.violation))


def test_a_beta_is_the_soft_rules_and_the_statement_has_its_own():
    with pytest.raises(fs.SettingError, match=r"beta=2.0, but the hard rule has none; rule='soft' does"):
        theory.guarantee("hard", **CONSTANTS, beta=2.0)
    with pytest.raises(fs.SettingError, match="beta=0, but it must be a finite number above 0"):
        theory.guarantee("soft", **CONSTANTS, beta=0)
    stated = theory.guarantee("soft", **CONSTANTS, form="statement")
    sharper = theory.guarantee("soft", **CONSTANTS, form="statement", beta=2 * stated.beta)
    assert dataclasses.replace(sharper, beta=stated.beta) == stated
    with pytest.raises(fs.SettingError, match=r"at least 2 / epsilon = 3.33; form='proof' covers any"):
        theory.guarantee("soft", **CONSTANTS, form="statement", beta=stated.beta / 2)


def test_a_plan_takes_a_beta():
    algorithm = fs.FedSGM.from_theory(PROBLEM, TWO, START, rounds=50, rule="soft", beta=7.0, **KNOWN)
    promise = algorithm.promise
    assert algorithm.rule == fs.Soft(7.0)
    assert algorithm.tolerance == pytest.approx(promise.error + 1 / 7)


# --- A compressed downlink ---


def test_a_compressed_downlink_leads_out_of_X_by_no_more_than_the_replicas_bound():
    """The lemma on sampling takes the diameter for |w_t - w*|. The server's model slides along the circle opposite to
    the optimum, and Top-1 sends its larger coordinate alone: the clients' model is outside, and further away."""
    problem = fs.Problem(
        objective=lambda w, example: 0.1 * w[0] + example["s"] * w[1],
        constraints=[fs.Mean(lambda w, example: 0 * w[0] * example["s"] - 1.0, name="g") <= 0.0],
    )
    lipschitz, start, optimum = math.hypot(0.1, 1), np.array([1.0, 0.0], np.float32), np.array([-1.0, 0.0])
    told = {"rounds": 50, "distance": 2.0, "lipschitz": lipschitz, "clients": 2, "participants": 1, "projected": True}
    promised = theory.guarantee("hard", **told, downlink=0.5)
    algorithm = fs.FedSGM(promised.step_size, participants=1, downlink=fs.TopK(count=1), project=BALL)
    outside = theory.replica_bound(promised.step_size, lipschitz, 1, 1.0, 0.5)
    furthest = 0.0
    for rounds in (1, 2, 5, 20):
        result = fs.simulate(algorithm, problem, TWO, start, rounds=rounds, seeds=4, evaluate_every=0, progress=False)
        last = np.asarray(result.last, np.float64)
        assert (np.linalg.norm(last, axis=1) <= 1 + outside).all()
        furthest = max(furthest, np.linalg.norm(last - optimum, axis=1).max())
    assert 2.001 < furthest <= 2 + outside


@pytest.mark.parametrize("rule", ["hard", "soft"])
def test_the_sampling_error_counts_how_far_out_it_leads(rule):
    for told in (SAMPLED | {"downlink": 0.3}, SAMPLED | {"downlink": 0.3, "uplink": 0.4}):
        found = theory.guarantee(rule, **told)
        q = told.get("uplink", 1.0)
        outside = theory.replica_bound(found.step_size, 2.0, 4, q, 0.3)
        rest = math.sqrt(2 * 9 * 4 * found.gamma / (4 * 1600)) + 4 * 2 * 3 * 2 * math.sqrt(1 - q) / (q * 1600)
        sampling = 4 * 2 * (3 + outside) / math.sqrt(5 * 1600) * math.sqrt(2 * math.log(3 / 0.1))
        assert found.error == pytest.approx(rest + sampling, rel=1e-12)
        assert outside > 0.01
    with_all = theory.guarantee(rule, **CONSTANTS, downlink=0.3, projected=True)
    assert with_all.error == pytest.approx(math.sqrt(2 * 9 * 4 * with_all.gamma / (4 * 1600))), "x_t is in X"


# --- What is said of the constraint ---


def test_the_constraint_is_held_to_its_bound_and_not_to_its_value_at_the_optimum():
    """Theorem 1 (ii) as printed, g(average) - g(w*) <= epsilon, where the optimum is strictly feasible: |w| / 10 with
    w <= 1 from w = 0.9 on, whose rounds are all within and far from w* = 0."""
    problem = fs.Problem(
        objective=lambda w, example: 0.1 * jnp.abs(w[0]) + 0 * example["s"],
        constraints=[fs.Mean(lambda w, example: w[0] + 0 * example["s"], name="g") <= 1.0],
    )
    promised = theory.guarantee("hard", rounds=100, distance=0.9, lipschitz=1.0, clients=2)
    algorithm = fs.FedSGM(step_size=promised.step_size, tolerance=promised.tolerance)
    result = fs.simulate(algorithm, problem, TWO, np.array([0.9], np.float32), rounds=100, progress=False)
    objective, constraint = (float(result.value("train", name, "average")[0]) for name in ("objective", "g"))
    assert objective <= promised.epsilon
    assert constraint - 1.0 <= promised.violation
    assert constraint - 0.0 > 3 * promised.epsilon, "g(w*) is 0, one below the bound"


# --- Who answers the constraint query ---


def test_where_all_clients_answer_the_estimate_has_no_noise():
    """Sampling the gradients costs what it did; sigma does nothing."""
    quiet = SAMPLED | {"sigma": 0.0}
    for rule, form in (("hard", "proof"), ("hard", "statement"), ("soft", "proof")):
        found = theory.guarantee(rule, **SAMPLED, query="all", form=form)
        plain = theory.guarantee(rule, **quiet, form=form)
        for name in ("error", "epsilon", "violation", "tolerance", "beta", "step_size", "probability", "kind"):
            assert getattr(found, name) == getattr(plain, name), name
        assert found.violation < theory.guarantee(rule, **SAMPLED, form=form).violation
    weak = {"weak_convexity": 0.3, "proximal": 1.1, "multiplier": 4.0}
    asked, plain = theory.guarantee(**SAMPLED, **weak, query="all"), theory.guarantee(**quiet, **weak)
    assert (asked.stationarity, asked.violation) == (plain.stationarity, plain.violation)
    all_there = {"participants": 20, "sigma": 0.5}
    for query in ("all", "memory"):
        found = theory.guarantee(**CONSTANTS, **all_there, query=query)
        assert found.epsilon == theory.guarantee(**CONSTANTS).epsilon, "with m = n there is nothing to choose"
    with pytest.raises(fs.SettingError, match="no theorem covers query='memory'"):
        theory.guarantee(**SAMPLED, query="memory")
    with pytest.raises(fs.SettingError, match="query='some', but it must be 'participants', 'all' or 'memory'"):
        theory.guarantee(**SAMPLED, query="some")


def test_batches_of_all_clients_queries_average_over_all():
    noise = {"gradient_noise": 0.7, "query_noise": 0.9, "query_size": 3}
    found = theory.guarantee(**SAMPLED, **noise, query="all")
    radius = theory.noise_radius(0.9 / math.sqrt(3), 20, 1600, 0.1 / 7)
    assert found.violation - found.tolerance == pytest.approx(radius)
    assert found.tolerance == pytest.approx(found.error + radius)


def test_a_promise_says_what_of_independence_it_rests_on():
    told = {query: theory.guarantee(**SAMPLED, query=query) for query in ("participants", "all")}
    assert told["participants"].source.endswith("if the estimate is independent of the gradients")
    assert told["all"].source.endswith("every client asked")
    assert "independent" not in theory.guarantee(**CONSTANTS).source


def test_a_plan_has_all_clients_answer_where_they_are_sampled():
    def plan(**settings):
        return theory.plan(PROBLEM, TWO, START, rounds=50, **KNOWN, **settings)

    drawn, everyone, listed = plan(participants=1), plan(), plan(participants=1, query="participants")
    assert [(each["query"], each["promise"].query) for each in (drawn, everyone, listed)] == [
        ("all", "all"),
        ("participants", "participants"),
        ("participants", "participants"),
    ]
    assert drawn["promise"].estimated == (), "what has no effect is not measured"
    assert listed["promise"].violation > drawn["promise"].violation


# Two clients, one drawn. Where the estimate allows a step on the objective it is always the same client's, so the run
# slides along the boundary to that client's optimum. The estimate's sigma is small and the promise is firm.
CORNER = np.array([0.5, 1.0], np.float32)
BOX = functools.partial(projection_box, lower=-CORNER, upper=CORNER)


def one_of_two(promised_for, asked, *, apart=0.005):
    """The gap and the violation of the average on each of three seeds, and the promise; the optimum is 0, at w = 0.

    ``promised_for`` and ``asked`` are who answers the constraint query, of the promise and of the run; ``apart`` is
    half of what the clients' constraints differ by.
    """
    problem = fs.Problem(
        objective=lambda w, example: -1.2 * w[0] + 0.5 * jnp.abs(w[1]) + example["s"] * w[1],
        constraints=[fs.Mean(lambda w, example: w[0] + apart * example["s"], name="g") <= 0.0],
    )
    told = {"rounds": 200_000, "clients": 2, "participants": 1, "sigma": 0.005}
    told |= {"distance": 2 * float(np.linalg.norm(CORNER)), "lipschitz": math.hypot(1.2, 1.5)}
    promised = theory.guarantee("hard", **told, query=promised_for)
    algorithm = fs.FedSGM(promised.step_size, tolerance=promised.tolerance, participants=1, project=BOX, query=asked)
    setting = {"rounds": told["rounds"], "seeds": 3, "evaluate_every": 0, "progress": False}
    result = fs.simulate(algorithm, problem, TWO, START, **setting)
    return result.value("train", "objective", "average"), result.excess("train", "average"), promised


def test_the_same_clients_for_estimate_and_gradient_break_the_promise():
    """The proofs for sampled clients assume that the two are independent; Algorithm 1 as listed draws one S_t for both
    and does not give it."""
    gap, _, promised = one_of_two("participants", "participants")
    assert (gap > promised.epsilon).all(), f"{gap} within {promised.epsilon}"


def test_an_exact_estimate_keeps_the_promise():
    """Both clients' constraints have one slope, so that with their mean for each a run is that of asking both."""
    gap, violation, promised = one_of_two("all", "participants", apart=0.0)
    assert (gap <= promised.epsilon).all()
    assert (violation <= promised.violation).all()


def test_asking_all_clients_keeps_the_promise():
    gap, violation, promised = one_of_two("all", "all")
    assert (gap <= promised.epsilon).all()
    assert (violation <= promised.violation).all()


def test_remembering_all_clients_keeps_the_promise():
    """No theorem covers it; what is remembered is a step or two old, and a step is short."""
    gap, violation, promised = one_of_two("all", "memory")
    assert (gap <= promised.epsilon).all()
    assert (violation <= promised.violation).all()
