"""Each theorem as the paper prints it, in its own symbols; what a theorem is told; and which one is asked."""

import dataclasses
import inspect
import math

import numpy as np
import pytest

import fedsgm as fs
from fedsgm import theory
from fedsgm.theory import guarantees, planning
from fedsgm.theory.setting import Setting

LEAST = {"rounds": 10, "distance": 1.0, "lipschitz": 1.0}
CASES = {
    "hard_all": {},
    "hard_sampled": {"participants": 5},
    "soft_all": {"rule": "soft"},
    "soft_sampled": {"rule": "soft", "participants": 5, "form": "proof"},
    "stochastic": {"participants": 5, "gradient_noise": 0.7, "query_noise": 0.9, "query_size": 3},
    "weakly_convex": {"participants": 5, "weak_convexity": 0.3, "proximal": 1.1, "multiplier": 4.0},
}


def drawn(seed, **more):
    """A setting whose constants are all random."""
    rng = np.random.default_rng(seed)
    constants = {
        "rounds": int(rng.integers(10, 10_000)),
        "distance": rng.uniform(0.1, 5),
        "lipschitz": rng.uniform(0.1, 5),
        "local_steps": int(rng.integers(1, 9)),
        "clients": 20,
        "sigma": rng.uniform(0, 2),
        "delta": rng.uniform(0.01, 0.5),
    }
    return Setting(**(constants | more))


def ways(seed):
    rng = np.random.default_rng(seed)
    return {"uplink": rng.uniform(0.05, 1), "downlink": rng.uniform(0.05, 1)}


def symbols(s):
    return s.distance, s.lipschitz, s.local_steps, s.rounds, s.clients, s.participants, s.delta


# --- The statements, term by term as they are printed ---


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("compressed", [False, True])
def test_theorem_1_and_2_with_all_clients(seed, compressed):
    for rule in ("hard", "soft"):
        s = drawn(seed, rule=rule, form="statement", **(ways(seed) if compressed else {}))
        D, G, E, T, *_ = symbols(s)
        q, q0 = s.uplink, s.downlink
        Gamma = 2 * E**2 + 2 * E * math.sqrt(1 - q) / q + 4 * E * math.sqrt(10 * (1 - q0)) / (q0 * q)
        epsilon = math.sqrt(2 * D**2 * G**2 * Gamma / (E * T))
        found = (guarantees.hard_all if rule == "hard" else guarantees.soft_all)(s)
        assert (found.tolerance, found.epsilon, found.violation) == pytest.approx((epsilon,) * 3)
        assert found.step_size == pytest.approx(math.sqrt(D**2 / (2 * G**2 * E * T * Gamma)))
        assert found.beta == (None if rule == "hard" else pytest.approx(2 / epsilon))
        assert (found.probability, found.stationarity) == (1, None)
        assert found.source.startswith(f"Theorem {1 if rule == 'hard' else 2}, {rule} switching, all clients")
        assert found.source.endswith(f"{', compressed' * compressed}; as the statement has it")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("compressed", [False, True])
def test_theorem_1_with_sampled_clients(seed, compressed):
    s = drawn(seed, participants=6, form="statement", **(ways(seed) if compressed else {}))
    D, G, E, T, n, m, delta = symbols(s)
    q, q0 = s.uplink, s.downlink
    Gamma = 2 * E**2
    if compressed:
        Gamma += 16 * E * (n / m) * math.sqrt(10 * (1 - q) * (1 - q0)) / (q0 * q**2)
        Gamma += 8 * E * math.sqrt(10 * (1 - q0)) / (q0 * q) + 20 * E / q**2
        Gamma += (n / m) * 4 * E * math.sqrt(10 * (1 - q)) / q**2
    epsilon = math.sqrt(2 * D**2 * G**2 * Gamma / (E * T)) + (n / m) * 2 * D * G * math.sqrt(1 - q) / (q * T)
    epsilon += 4 * G * D / math.sqrt(m * T) * math.sqrt(2 * math.log(3 / delta))
    epsilon += 2 * s.sigma * math.sqrt(2 / m * math.log(6 * T / delta))
    found = guarantees.hard_sampled(s)
    assert (found.tolerance, found.epsilon) == pytest.approx((epsilon, epsilon))
    assert found.violation == pytest.approx(epsilon + math.sqrt(3 * s.sigma**2 / m * math.log(T / delta)))
    assert found.step_size == pytest.approx(math.sqrt(D**2 / (2 * G**2 * E * T * Gamma)))
    assert (found.beta, found.probability) == (None, 1 - delta)


@pytest.mark.parametrize("seed", range(20))
def test_the_stochastic_theorem(seed):
    s = drawn(seed, participants=6, form="statement", gradient_noise=0.7, query_noise=0.9, query_size=3)
    D, G, E, T, n, m, delta = symbols(s)
    sigma_xi, sigma_b, N_b = s.gradient_noise, s.query_noise, s.query_size
    G_eff = 3 * E**2 * G**2 + E**2 * sigma_xi**2 * (1 + math.log(7 * n * T * E / delta))
    G_eff += 4 / m * (E * G**2 + sigma_xi**2) * math.log(28 * T / delta)
    epsilon = math.sqrt(2 * D**2 * G_eff / (E * T)) + 4 * G * D * math.sqrt(2 / (m * T) * math.log(7 / delta))
    epsilon += 2 * D * sigma_xi * math.sqrt(2 / (m * E * T) * math.log(7 / delta))
    epsilon += 2 * math.sqrt(2 / m * (s.sigma**2 + sigma_b**2 / N_b) * math.log(14 * T / delta))
    found = guarantees.stochastic(s)
    assert (found.tolerance, found.epsilon, found.violation) == pytest.approx((epsilon,) * 3)
    assert found.step_size == pytest.approx(math.sqrt(D**2 / (2 * G_eff * E * T)))
    assert found.gamma == pytest.approx(G_eff / G**2)
    # With all clients the estimate's noise is that of the queries alone, and the promise still one of chance.
    everyone = guarantees.stochastic(dataclasses.replace(s, participants=None))
    unspread = guarantees.stochastic(dataclasses.replace(s, participants=None, sigma=0.0))
    assert (everyone.epsilon, everyone.probability) == (unspread.epsilon, 1 - delta)


@pytest.mark.parametrize("seed", range(20))
def test_the_weakly_convex_theorem(seed):
    s = drawn(seed, participants=6, form="statement", weak_convexity=0.3, proximal=1.1, multiplier=4.0)
    D, G, E, T, _, m, delta = symbols(s)
    rho, rho_hat, Lambda = s.weak_convexity, s.proximal, s.multiplier
    epsilon = math.sqrt(4 * D**2 * G**2 * E / T) + D**2 * rho / (8 * E * T)
    epsilon += 4 * G * D / math.sqrt(m * T) * math.sqrt(2 * math.log(4 / delta))
    epsilon += 2 * s.sigma * math.sqrt(2 / m * math.log(8 * T / delta)) * (1 + Lambda)
    found = guarantees.weakly_convex(s)
    assert (found.tolerance, found.violation) == pytest.approx((epsilon, epsilon))
    assert found.step_size == pytest.approx(math.sqrt(D**2 / (4 * G**2 * E**3 * T)))
    assert found.stationarity == pytest.approx(math.sqrt((1 + Lambda) * epsilon / (rho_hat - 2 * rho)))
    assert found.epsilon is None
    everyone = guarantees.weakly_convex(dataclasses.replace(s, participants=None))
    assert everyone.tolerance == pytest.approx(math.sqrt(4 * D**2 * G**2 * E / T) + D**2 * rho / (8 * E * T))
    assert everyone.probability == 1


@pytest.mark.parametrize("seed", range(20))
def test_what_the_lemmas_give_soft_switching_with_sampled_clients(seed):
    """M is what the hard rule's proof leaves beside its one radius; both proofs end with the same sums."""
    s = drawn(seed, participants=6, rule="soft", **ways(seed))
    radius = theory.noise_radius(s.sigma, 6, s.rounds, s.delta / 3)
    hard = guarantees.hard_sampled(dataclasses.replace(s, rule="hard"))
    M = hard.epsilon - radius
    found = guarantees.soft_sampled(s)
    assert (found.epsilon, found.tolerance) == pytest.approx((2 * M, 2 * M + radius))
    assert (found.violation, found.beta) == pytest.approx((2 * M + 2 * radius, 1 / M))
    assert found.step_size == hard.step_size


def test_the_proof_for_a_projected_run_is_that_for_sampled_clients():
    """Compressed and with all clients: at m = n, with no error of sampling and no noise."""
    for seed in range(20):
        s = drawn(seed, projected=True, **ways(seed))
        D, G, E, T, *_ = symbols(s)
        q, q0 = s.uplink, s.downlink
        Gamma = 1 + E**2 / 3 + 16 * E * math.sqrt(10 * (1 - q) * (1 - q0)) / (q0 * q**2)
        Gamma += 8 * E * math.sqrt(10 * (1 - q0)) / (q0 * q) + 20 * E / q**2 + 4 * E * math.sqrt(10 * (1 - q)) / q**2
        epsilon = math.sqrt(2 * D**2 * G**2 * Gamma / (E * T)) + 2 * D * G * math.sqrt(1 - q) / (q * T)
        assert guarantees.hard_all(s).epsilon == pytest.approx(epsilon)
        assert guarantees.soft_all(dataclasses.replace(s, rule="soft")).epsilon == pytest.approx(2 * epsilon)
        stated = guarantees.hard_all(dataclasses.replace(s, form="statement"))
        free = guarantees.hard_all(dataclasses.replace(s, form="statement", projected=False))
        assert stated == free, "the statement says nothing of X"


# --- Which theorem, and what it is told ---


@pytest.mark.parametrize("name", CASES)
def test_a_setting_has_its_theorem(name):
    for form in theory.FORMS:
        told = drawn(1, **({"form": form} | CASES[name]))
        assert guarantees.theorem(told) is getattr(guarantees, name)
        asked = {field.name: getattr(told, field.name) for field in dataclasses.fields(told)}
        assert theory.guarantee(**asked) == getattr(guarantees, name)(told)
        rule = asked.pop("rule")
        assert theory.guarantee(rule, **asked) == theory.guarantee(**asked, rule=rule)


def test_the_guarantee_has_what_its_theorem_is_about():
    always = set(LEAST) | {"local_steps", "clients", "participants", "uplink", "downlink", "sigma", "delta"}
    more = {"stochastic": {"gradient_noise", "query_noise", "query_size"}}
    more["weakly_convex"] = {"weak_convexity", "proximal", "multiplier"}
    for name, case in CASES.items():
        told = drawn(2, **case)
        given = guarantees.theorem(told)(told).given
        assert set(given) == always | more.get(name, set())
        assert given == {key: getattr(told, key) for key in given} | {"participants": case.get("participants", 20)}


def test_a_setting_is_frozen_and_all_but_the_rule_is_named():
    told = Setting("soft", **LEAST)
    assert (told.rule, told.drawn, told.sampled, told.compressed, told.stated) == ("soft", 1, False, False, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.rounds = 3
    with pytest.raises(fs.SettingError, match="rounds=0"):
        dataclasses.replace(told, rounds=0)
    with pytest.raises(TypeError):
        Setting("soft", 10, 1.0, 1.0)
    with pytest.raises(TypeError, match="lipschitz"):
        theory.guarantee("hard", rounds=10, distance=1.0)
    with pytest.raises(TypeError, match="stepsize"):
        theory.guarantee("hard", **LEAST, stepsize=0.1)


WRONG = [
    ({"rule": "medium"}, "guarantee: rule='medium', but it must be 'hard' or 'soft'"),
    ({"rule": ["hard"]}, "guarantee: rule=['hard'], but it must be 'hard' or 'soft'"),
    ({"form": None}, "guarantee: form=None, but it must be 'proof' or 'statement'"),
    ({"rounds": 1.5}, "guarantee: rounds=1.5, but it must be a whole number, 1 or more"),
    ({"local_steps": True}, "guarantee: local_steps=True, but it must be a whole number, 1 or more"),
    ({"clients": 0}, "guarantee: clients=0, but it must be a whole number, 1 or more"),
    ({"participants": 0}, "guarantee: participants=0, but it must be a whole number, 1 or more"),
    ({"participants": 2}, "participants=2, but there are 1 clients"),
    ({"distance": "far"}, "guarantee: distance='far', but it must be a finite number above 0"),
    ({"lipschitz": math.inf}, "guarantee: lipschitz=inf, but it must be a finite number above 0"),
    ({"sigma": -1}, "guarantee: sigma=-1, but it must be a finite number 0 or more"),
    ({"uplink": 0}, "guarantee: uplink=0, but it must be a finite number above 0"),
    ({"downlink": 1.5}, "guarantee: downlink=1.5, but it must be above 0 and at most 1"),
    ({"delta": 1}, "guarantee: delta=1, but it must be above 0 and below 1"),
    ({"gradient_noise": -1}, "guarantee: gradient_noise=-1, but it must be a finite number 0 or more"),
    (
        {"gradient_noise": 0, "query_noise": None},
        "guarantee: query_noise=None, but it must be a finite number 0 or more",
    ),
    ({"gradient_noise": 0, "query_size": 0}, "guarantee: query_size=0, but it must be a whole number, 1 or more"),
    ({"weak_convexity": 0.5}, "guarantee: proximal=None, but it must be a finite number above 1"),
    ({"weak_convexity": -1}, "guarantee: weak_convexity=-1, but it must be a finite number 0 or more"),
    (
        {"weak_convexity": 0, "proximal": 1, "multiplier": -1},
        "guarantee: multiplier=-1, but it must be a finite number 0 or more",
    ),
    (
        {"weak_convexity": 0.5, "downlink": 0.5},
        "guarantee: with a weakly convex objective the paper's theorem is for rule='hard' without compression",
    ),
    (
        {"gradient_noise": 0.5, "rule": "soft"},
        "guarantee: with mini-batch gradients the paper's theorem is for rule='hard' without compression",
    ),
    (
        {"gradient_noise": 0.5, "weak_convexity": 0.5},
        "guarantee: the paper has no theorem for mini-batches and a weakly convex objective together",
    ),
    (
        {"rule": "soft", "clients": 3, "participants": 2, "form": "statement"},
        "guarantee: the paper states no theorem for soft switching with sampled clients; form='proof' gives a bound",
    ),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[says[:40] for _, says in WRONG])
def test_a_setting_checks_itself(wrong, says):
    for make in (Setting, theory.guarantee):
        with pytest.raises(fs.SettingError) as raised:
            make(**(LEAST | wrong))
        assert str(raised.value) == says


def test_what_a_theorem_has_no_use_for_is_not_looked_at():
    assert theory.guarantee(**LEAST, query_size=0, proximal=-1.0) == theory.guarantee(**LEAST)


# --- The plan's settings ---


@pytest.mark.parametrize("name", ["stepsize", "projected", "query_size", "tolerance"])
def test_a_plan_names_a_setting_that_there_is_not(name, clients, problem, params):
    """Among them what a theorem is told, but a run knows of itself."""
    says = f"from_theory: {name}=3, but there is no such setting; there are rounds, local_steps,"
    with pytest.raises(fs.SettingError, match=says):
        fs.FedSGM.from_theory(problem, clients, params, rounds=10, distance=1.0, lipschitz=1.0, **{name: 3})


def test_every_setting_of_a_theorem_and_of_a_run_has_its_place():
    """A field that is added to either is taken by the plan or known by it."""
    theirs = {field.name for field in dataclasses.fields(Setting)}
    runs = {field.name for field in dataclasses.fields(fs.FedSGM)}
    taken = {*planning._CHOSEN, "query", *planning._MEASURED, *planning._TOLD}
    assert theirs - taken == {"rounds", "clients", "random", "projected", "query_size"}
    assert runs - taken == {"step_size", "tolerance", "promise", "server", "unheard", "memory", "robust", "privacy"}
    assert taken <= theirs | runs
    for name in planning._CHOSEN:
        default = inspect.signature(fs.FedSGM).parameters[name].default
        assert getattr(planning._Chosen(), name) == default, name
