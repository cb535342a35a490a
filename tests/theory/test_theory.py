"""The paper's promises: the constants by hand, the bounds on problems with a known optimum, and what breaks them."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from optax.projections import projection_box, projection_l2_ball

import fedsgm as fs
from fedsgm import theory
from fedsgm.base.layout import Layout
from fedsgm.core.algorithm import Flat
from fedsgm.engines.device import OnDevice
from fedsgm.engines.rounds import Compiled, Draw, one_round
from fedsgm.theory import estimates

CLIENTS, EACH, SIZE, RADIUS, BOUND = 8, 4, 6, 0.5, 0.15
DELTA = 0.05
# What the tests of sampled plans are about: the estimate's noise.
ASKED = {"query": "participants"} if "query" in {field.name for field in dataclasses.fields(fs.FedSGM)} else {}


def objective(w, example):
    """Linear and a quadratic term whose sign decides whether it is convex."""
    return -example["a"] @ w + 0.5 * example["k"] * jnp.sum(w**2)


def constraint(w, example):
    return example["b"] @ w


PROBLEM = fs.Problem(objective=objective, constraints=[fs.Mean(constraint, name="g") <= BOUND])
BALL = functools.partial(projection_l2_ball, scale=RADIUS)


@dataclasses.dataclass(frozen=True)
class Known:
    """A problem over a ball with every constant that a theorem asks for."""

    clients: fs.Clients
    start: np.ndarray
    optimum: np.ndarray
    value: float
    lipschitz: float
    sigma: float
    gradient_noise: float
    query_noise: float
    curvature: float
    a: np.ndarray
    b: np.ndarray

    def f(self, w):
        return -self.a @ w + 0.5 * self.curvature * w @ w

    def g(self, w):
        return self.b @ w


@functools.cache
def known(curvature=0.5):
    rng = np.random.default_rng(1)
    shape = (CLIENTS, EACH, SIZE)
    a = np.r_[0.8, 0.3, np.zeros(SIZE - 2)] + 0.02 * rng.normal(size=shape)
    b = np.r_[0.9, np.zeros(SIZE - 1)] + 0.004 * rng.normal(size=shape)
    a, b = a.astype(np.float32).astype(float), b.astype(np.float32).astype(float)
    mean_a, mean_b = a.mean(axis=(0, 1)), b.mean(axis=(0, 1))

    def f(w):
        return -mean_a @ w + 0.5 * curvature * w @ w

    solved = scipy.optimize.minimize(
        f,
        np.zeros(SIZE),
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda w: BOUND - mean_b @ w},
            {"type": "ineq", "fun": lambda w: RADIUS**2 - w @ w},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert solved.success
    per_client = b.mean(axis=1)
    data = [
        {"a": a[j].astype(np.float32), "b": b[j].astype(np.float32), "k": np.full(EACH, curvature, np.float32)}
        for j in range(CLIENTS)
    ]
    within = [x - x.mean(axis=1, keepdims=True) for x in (a, b)]
    return Known(
        clients=fs.Clients.from_list(data),
        start=np.r_[-RADIUS, np.zeros(SIZE - 1)],
        optimum=solved.x,
        value=solved.fun,
        # On X and on the little that local steps and compression leave it by.
        lipschitz=max(np.linalg.norm(a.mean(axis=1), axis=1).max() + 1.3 * abs(curvature) * RADIUS, 1.0),
        # Half the largest difference of two clients' constraints over the ball.
        sigma=max(np.linalg.norm(x - y) for x in per_client for y in per_client) * RADIUS / 2,
        # A deviation that is never longer than this is sub-Gaussian with it; the quadratic term has no noise.
        gradient_noise=max(np.linalg.norm(x, axis=-1).max() for x in within),
        query_noise=max(np.linalg.norm(x - y) for rows in b for x in rows for y in rows) * RADIUS / 2,
        curvature=curvature,
        a=mean_a,
        b=mean_b,
    )


def run(on, promised, *, seeds=None, start=None, evaluate_every=0, **settings):
    """A run with what a guarantee says to set."""
    algorithm = fs.FedSGM(
        step_size=promised.step_size,
        tolerance=promised.tolerance,
        rule=fs.Hard() if promised.beta is None else fs.Soft(promised.beta),
        local_steps=promised.given["local_steps"],
        participants=promised.given["participants"],
        **({"project": BALL} | settings),
    )
    start = on.start if start is None else start
    return fs.simulate(
        algorithm,
        PROBLEM,
        on.clients,
        start.astype(np.float32),
        rounds=promised.given["rounds"],
        seeds=seeds,
        evaluate_every=evaluate_every,
        progress=False,
    )


def measured(on, result):
    """Of every seed's average: the objective above the optimum, and the constraint above its bound."""
    averages = np.asarray(result.average, np.float64).reshape(-1, SIZE)
    return np.array([on.f(w) - on.value for w in averages]), np.array([on.g(w) - BOUND for w in averages])


# --- The constants, by hand ---


def test_gamma_by_hand():
    """At q = q0 = 0.1 the roots are whole: sqrt(10 * 0.9) = 3, sqrt(10 * 0.9 * 0.9) = 9 / sqrt(10)."""
    full = 2 * 25 + 10 * math.sqrt(0.9) / 0.1 + 20 * 3 / 0.01
    assert theory.gamma(5, uplink=0.1, downlink=0.1, form="statement") == pytest.approx(full, rel=1e-12)
    assert full == pytest.approx(6144.868329805051, rel=1e-15)
    sampled = 50 + 80 * 2 * (9 / math.sqrt(10)) / 0.001 + 40 * 3 / 0.01 + 100 / 0.01 + 2 * 20 * 3 / 0.01
    setting = {"clients": 20, "participants": 10, "uplink": 0.1, "downlink": 0.1}
    assert theory.gamma(5, **setting, form="statement") == pytest.approx(sampled, rel=1e-12)
    assert theory.gamma(5, **setting) == pytest.approx(sampled - 50 + 1 + 25 / 3, rel=1e-12)
    assert theory.gamma(5, uplink=0.1, downlink=0.1) == pytest.approx(full - 50 + 1 + 5 / 2 + 25 / 3, rel=1e-12)
    assert theory.gamma(5, clients=20, participants=10, form="statement") == 50, "compression's terms are for it alone"
    assert theory.gamma(3) == pytest.approx(1 + 1.5 + 3)


def test_theorem_1_by_hand():
    """D = 3, G = 2, E = 4, T = 1600: Gamma 32, epsilon = sqrt(2 * 36 * 32 / 6400) = 0.6."""
    full = theory.guarantee("hard", rounds=1600, distance=3.0, lipschitz=2.0, local_steps=4, form="statement")
    assert full.gamma == 32
    assert full.epsilon == pytest.approx(0.6)
    assert full.tolerance == full.epsilon == full.violation
    assert full.step_size == pytest.approx(math.sqrt(9 / (2 * 4 * 4 * 1600 * 32)))
    assert full.probability == 1
    proven = theory.guarantee("hard", rounds=1600, distance=3.0, lipschitz=2.0, local_steps=4)
    assert proven.gamma == pytest.approx(1 + 2 + 16 / 3)
    assert proven.epsilon == pytest.approx(math.sqrt(2 * 36 * (25 / 3) / 6400))

    setting = {"rounds": 1600, "distance": 3.0, "lipschitz": 2.0, "local_steps": 4, "clients": 20, "participants": 5}
    sampled = theory.guarantee("hard", **setting, sigma=0.5, delta=0.1, form="statement")
    noise = 0.5 * math.sqrt(2 / 5 * math.log(96_000))
    epsilon = 0.6 + 24 / math.sqrt(8000) * math.sqrt(2 * math.log(30)) + 2 * noise
    assert sampled.epsilon == sampled.tolerance == pytest.approx(epsilon)
    assert sampled.violation == pytest.approx(epsilon + math.sqrt(0.75 / 5 * math.log(16_000)))
    assert sampled.probability == 0.9
    proven = theory.guarantee("hard", **setting, sigma=0.5, delta=0.1)
    assert proven.epsilon == pytest.approx(epsilon - 0.6 - noise + math.sqrt(2 * 36 * (25 / 3) / 6400))
    assert proven.violation == pytest.approx(proven.epsilon + noise)

    compressed = theory.guarantee("hard", **setting, sigma=0.5, delta=0.1, uplink=0.75, form="statement")
    gamma = 32 + 80 / 0.5625 + 4 * 16 * math.sqrt(2.5) / 0.5625
    rest = epsilon - 0.6 + 4 * 12 * 0.5 / (0.75 * 1600)
    assert compressed.epsilon == pytest.approx(math.sqrt(2 * 36 * gamma / 6400) + rest)


def test_theorem_2_needs_twice_its_epsilon():
    """Where the statement stops, the proof goes on to 2 epsilon; 1/beta is half the tolerance in both."""
    setting = {"rounds": 1600, "distance": 3.0, "lipschitz": 2.0, "local_steps": 4}
    stated = theory.guarantee("soft", **setting, form="statement")
    proven = theory.guarantee("soft", **setting)
    assert stated.epsilon == pytest.approx(0.6)
    assert stated.beta == pytest.approx(2 / 0.6)
    assert proven.epsilon == pytest.approx(2 * math.sqrt(2 * 36 * (25 / 3) / 6400))
    assert proven.beta == pytest.approx(2 / proven.epsilon)
    assert proven.tolerance == proven.epsilon == proven.violation


def test_soft_switching_with_sampled_clients_rests_on_the_lemmas():
    setting = {"rounds": 1600, "distance": 3.0, "lipschitz": 2.0, "clients": 20, "participants": 5, "sigma": 0.5}
    hard, soft = (theory.guarantee(rule, **setting) for rule in ("hard", "soft"))
    radius = theory.noise_radius(0.5, 5, 1600, DELTA / 3)
    error = hard.epsilon - radius
    assert (soft.epsilon, soft.tolerance) == pytest.approx((2 * error, 2 * error + radius))
    assert (soft.beta, soft.violation) == pytest.approx((1 / error, 2 * error + 2 * radius))
    assert "no theorem" in soft.source


def test_the_stochastic_theorem_by_hand():
    setting = {"rounds": 100, "distance": 2.0, "lipschitz": 3.0, "local_steps": 2, "clients": 10, "participants": 5}
    noise = {"sigma": 0.4, "delta": 0.1, "gradient_noise": 0.5, "query_noise": 0.6, "query_size": 4}
    stated = theory.guarantee("hard", **setting, **noise, form="statement")
    effective = 3 * 4 * 9 + 4 * 0.25 * (1 + math.log(140_000)) + 4 / 5 * (2 * 9 + 0.25) * math.log(28_000)
    sampling = 24 * math.sqrt(2 / 500 * math.log(70)) + 2 * math.sqrt(2 / 1000 * math.log(70))
    radius = math.sqrt(2 / 5 * (0.16 + 0.09) * math.log(14_000))
    assert stated.gamma * 9 == pytest.approx(effective)
    assert stated.step_size == pytest.approx(math.sqrt(4 / (2 * effective * 2 * 100)))
    assert stated.epsilon == stated.violation == pytest.approx(math.sqrt(8 * effective / 200) + sampling + 2 * radius)
    proven = theory.guarantee("hard", **setting, **noise)
    tighter = effective - 108 + 9 * (2 + 1 + 8 / 3)
    assert proven.epsilon == pytest.approx(math.sqrt(8 * tighter / 200) + sampling + radius)
    assert proven.violation == pytest.approx(proven.epsilon + radius)


def test_the_weakly_convex_theorem_by_hand():
    setting = {"rounds": 100, "distance": 2.0, "lipschitz": 3.0, "local_steps": 2, "clients": 10, "participants": 5}
    bound = theory.multiplier_bound(3.0, 2.0, 1.0, 0.5)
    assert bound == 20
    weak = {"sigma": 0.4, "delta": 0.1, "weak_convexity": 0.25, "proximal": 1.0, "multiplier": bound}
    stated = theory.guarantee("hard", **setting, **weak, form="statement")
    radius = 0.4 * math.sqrt(2 / 5 * math.log(8000))
    sampling = 24 / math.sqrt(500) * math.sqrt(2 * math.log(40))
    epsilon = math.sqrt(4 * 36 * 2 / 100) + 4 * 0.25 / 1600 + sampling + 2 * radius * 21
    assert stated.tolerance == stated.violation == pytest.approx(epsilon)
    assert stated.step_size == pytest.approx(math.sqrt(4 / (4 * 9 * 8 * 100)))
    assert stated.stationarity == pytest.approx(math.sqrt(21 * epsilon / 0.5))
    assert stated.epsilon is None
    proven = theory.guarantee("hard", **setting, **weak)
    gamma = 1 + 1 + 4 / 3
    tighter = math.sqrt(2 * 36 * gamma / 200) + 4 * 0.25 * 2 / (400 * gamma) + sampling + radius * 21
    assert proven.tolerance == pytest.approx(tighter)
    assert proven.violation == pytest.approx(tighter + radius)


def test_statements_round_up_what_is_proven():
    """2 E^2 covers 1 + E/2 + E^2/3 and 3 E^2 covers the stochastic sum; 3 log(T/delta) covers 2 log(6T/delta) from
    T = 36 delta on, so the main text's violation is the weaker claim."""
    for e in range(1, 30):
        assert theory.gamma(e) <= theory.gamma(e, form="statement")
        setting = {"rounds": 50, "distance": 1.0, "lipschitz": 1.0, "local_steps": e, "gradient_noise": 0.3}
        assert theory.guarantee(**setting).gamma <= theory.guarantee(**setting, form="statement").gamma
        both = {"uplink": 0.3, "downlink": 0.6}
        assert theory.gamma(e, **both) <= theory.gamma(e, **both, form="statement")
    for delta in (0.01, 0.5, 0.99):
        for rounds in (36, 100, 10**6):
            assert 3 * math.log(rounds / delta) >= 2 * math.log(6 * rounds / delta)


def test_lemmas_by_hand():
    assert theory.noise_radius(0.5, 8, 100, 0.1) == pytest.approx(0.5 * math.sqrt(2 / 8 * math.log(2000)))
    assert theory.drift_bound(0.1, 2.0, 3) == pytest.approx(0.01 * 27 * 4 / 3)
    noisy = theory.drift_bound(0.1, 2.0, 3, gradient_noise=0.5, clients=4, rounds=10, delta=0.1)
    assert noisy == pytest.approx(0.01 * 27 * (8 / 3 + 0.25 * (1 + math.log(1200))))
    assert theory.memory_bound(2.0, 3, 0.75) == pytest.approx(2 * 0.5 * 6 / 0.75)
    assert theory.replica_bound(0.1, 2.0, 3, 0.5, 0.1) == pytest.approx(0.1 * math.sqrt(160 * 0.9) * 6 / 0.05)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rule": "medium"}, "rule='medium'"),
        ({"form": "sketch"}, "form='sketch'"),
        ({"rounds": 0}, "rounds=0"),
        ({"distance": -1.0}, "distance=-1"),
        ({"lipschitz": math.nan}, "lipschitz=nan"),
        ({"uplink": 1.5}, "uplink=1.5"),
        ({"downlink": 0.0}, "downlink=0"),
        ({"delta": 1.0}, "delta=1"),
        ({"sigma": -0.1}, "sigma=-0.1"),
        ({"clients": 3, "participants": 4}, "participants=4, but there are 3 clients"),
        ({"rule": "soft", "clients": 3, "participants": 2, "form": "statement"}, "no theorem for soft"),
        ({"gradient_noise": 0.1, "uplink": 0.5}, "without compression"),
        ({"gradient_noise": 0.1, "weak_convexity": 0.1}, "together"),
        ({"weak_convexity": 0.5, "proximal": 0.9}, "proximal=0.9"),
        ({"weak_convexity": 0.5, "rule": "soft"}, "rule='hard'"),
        ({"gradient_noise": 0.1, "query_size": 0}, "query_size=0"),
    ],
)
def test_wrong_constants_are_one_sentence(wrong, says):
    with pytest.raises(fs.SettingError, match=says.replace("(", r"\(")) as raised:
        theory.guarantee(**({"rounds": 10, "distance": 1.0, "lipschitz": 1.0} | wrong))
    assert "\n" not in str(raised.value)


# --- The bounds, on problems with a known optimum ---

TOP = fs.TopK(count=5)
SETTINGS = {
    "all": {"rounds": 2000},
    "all, E=4": {"rounds": 2000, "local_steps": 4},
    "all, compressed": {"rounds": 4000, "compressed": True},
    "sampled": {"rounds": 2000, "participants": 4},
    "sampled, compressed": {"rounds": 4000, "participants": 4, "compressed": True},
    "mini-batches": {"rounds": 1500, "participants": 4, "stochastic": True},
}


def promised_for(
    on, rule, form, *, rounds, local_steps=1, participants=None, compressed=False, stochastic=False, beta=None
):
    all_there = participants is None and not stochastic
    q = TOP.contraction(SIZE) if compressed else 1.0
    noise = {"gradient_noise": on.gradient_noise, "query_noise": on.query_noise} if stochastic else {}
    return theory.guarantee(
        rule,
        rounds=rounds,
        # The diameter where a proof needs it, and where the memory is bounded by it.
        distance=np.linalg.norm(on.start - on.optimum) if all_there and not compressed else 2 * RADIUS,
        lipschitz=on.lipschitz,
        local_steps=local_steps,
        clients=CLIENTS,
        participants=participants or CLIENTS,
        uplink=q,
        downlink=q,
        projected=True,
        sigma=on.sigma,
        delta=DELTA,
        beta=beta,
        form=form,
        **noise,
    )


CASES = [
    (rule, form, name)
    for rule in ("hard", "soft")
    for form in theory.FORMS
    for name in SETTINGS
    if not (rule == "soft" and (name == "mini-batches" or (form == "statement" and "sampled" in name)))
]


@pytest.mark.parametrize(("rule", "form", "name"), CASES)
def test_the_average_is_what_was_promised(rule, form, name):
    """With sampled clients or examples over 200 seeds, of which no more than delta may fail."""
    on, setting = known(), dict(SETTINGS[name])
    setting["rounds"] *= 2 if rule == "soft" else 1  # its epsilon is twice the hard rule's
    promised = promised_for(on, rule, form, **setting)
    assert on.f(on.start) - on.value > 1.2 * promised.epsilon, "the start is what is promised: it says nothing"
    chance = promised.probability < 1
    result = run(
        on,
        promised,
        seeds=(200 if form == "proof" and rule == "hard" else 20) if chance else None,
        **({"uplink": TOP, "downlink": TOP} if setting.get("compressed") else {}),
        **({"batch_size": 1, "constraint_batch_size": 1} if setting.get("stochastic") else {}),
    )
    gap, violation = measured(on, result)
    failed = ~((gap <= promised.epsilon) & (violation <= promised.violation))  # an undefined average fails
    assert failed.mean() <= 1 - promised.probability


def test_a_weakly_convex_objective_comes_near_to_stationary():
    """The proximal points are solved for with SciPy at every fiftieth iterate of the average, and g is its mean."""
    on = known(-0.2)
    rho, proximal = 0.2, 1.0
    # At -start the constraint has a slack of 0.45 + BOUND; sigma is 0 because all clients take part.
    slack = BOUND - on.g(on.start)
    multiplier = theory.multiplier_bound(on.lipschitz, 2 * RADIUS, proximal, slack)
    promised = theory.guarantee(
        "hard",
        rounds=4000,
        distance=2 * RADIUS,
        lipschitz=on.lipschitz,
        clients=CLIENTS,
        weak_convexity=rho,
        proximal=proximal,
        multiplier=multiplier,
    )
    assert promised.probability == 1

    def distance_to_stationary(w):
        limits = [
            {"type": "ineq", "fun": lambda y: BOUND - on.g(y)},
            {"type": "ineq", "fun": lambda y: RADIUS**2 - y @ y},
        ]
        solved = scipy.optimize.minimize(
            lambda y: on.f(y) + proximal / 2 * np.sum((y - w) ** 2), w, method="SLSQP", constraints=limits
        )
        return np.linalg.norm(solved.x - w)

    def record(_algorithm, _task, _data, before, info):
        return before.server.replica, info["weight"]

    iterates, weights = rounds_of(on, promised, record)
    kept = iterates[weights < 1]
    assert len(kept)
    assert np.mean(kept @ on.b) - BOUND <= promised.violation
    distances = [distance_to_stationary(w) for w in kept[::50]]
    assert np.mean(distances) <= promised.stationarity
    ours = theory.stationarity(
        PROBLEM, on.clients, kept[0].astype(np.float32), proximal=proximal, weak_convexity=rho, project=BALL
    )
    assert ours == pytest.approx(distances[0], abs=1e-4)
    start = np.linalg.norm(on.start - on.optimum)
    assert promised.stationarity < start, "the promise says nothing"


def rounds_of(on, promised, record, **settings):
    """What ``record`` takes of every round, from the engine's own."""
    algorithm = fs.FedSGM(
        step_size=promised.step_size,
        tolerance=promised.tolerance,
        local_steps=promised.given["local_steps"],
        participants=promised.given["participants"],
        project=BALL,
        **settings,
    )
    start = on.start.astype(np.float32)
    data = jax.tree.map(jnp.asarray, PROBLEM.prepare(on.clients, start))
    task = Flat(PROBLEM, Layout.of(start))
    rounds = promised.given["rounds"]

    program = Compiled(algorithm, task, rounds, CLIENTS, 0)

    def step(state, t):
        draw = Draw.of(program, jnp.uint32(0), t)
        after, info = one_round(program, data, state, draw, t)
        return after, record(algorithm, task, data, state, info)

    ground = OnDevice(program, data, np.zeros(1, np.uint32))
    first = jax.tree.map(lambda a: jnp.asarray(a)[0], ground.start(start[None]))
    _, rows = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(rounds)))(first)
    return tuple(np.asarray(row, np.float64) for row in rows)


@pytest.mark.parametrize("participants", [None, 4])
def test_drift_and_memories_stay_under_their_lemmas(participants):
    on, e = known(), 3
    top = fs.TopK(count=2)
    q = top.contraction(SIZE)
    promised = dataclasses.replace(
        promised_for(on, "hard", "proof", rounds=600, local_steps=e, participants=participants), step_size=0.02
    )

    def record(algorithm, task, data, before, info):
        w = before.server.replica
        direction = fs.Direction(1 - info["weight"], info["weight"], (jnp.ones(1), (None,)))

        def client(one):
            at, far = w, 0.0
            for _ in range(e):
                far = far + jnp.sum((at - w) ** 2)
                at = at - algorithm.step_size * task.direction(at, direction, one, None, None, None)
            return far

        drift = jax.vmap(client)(data)
        return drift, jnp.linalg.norm(before.memory.error, axis=1), jnp.linalg.norm(before.server.model - w)

    drift, memory, apart = rounds_of(on, promised, record, uplink=top, downlink=top)
    limits = (
        theory.drift_bound(0.02, on.lipschitz, e),
        theory.memory_bound(on.lipschitz, e, q),
        theory.replica_bound(0.02, on.lipschitz, e, q, q),
    )
    assert 0.02 * limits[0] < drift.max() <= limits[0]
    assert 0.02 * limits[1] < memory.max() <= limits[1]
    assert 0 < apart.max() <= limits[2]


def test_drift_with_mini_batches_stays_under_its_lemma():
    on, e, rounds = known(), 4, 300
    limit = theory.drift_bound(
        0.02, on.lipschitz, e, gradient_noise=on.gradient_noise, clients=CLIENTS, rounds=rounds, delta=DELTA
    )
    rng = np.random.default_rng(0)
    a = on.clients.examples["a"].astype(float).reshape(CLIENTS, -1, SIZE)
    worst = 0.0
    for _ in range(rounds):
        start = rng.normal(size=SIZE)
        start *= RADIUS / np.linalg.norm(start)
        w, far = np.tile(start, (CLIENTS, 1)), np.zeros(CLIENTS)
        for _ in range(e):
            far += np.sum((w - start) ** 2, axis=1)
            w = w - 0.02 * (-a[np.arange(CLIENTS), rng.integers(EACH, size=CLIENTS)] + on.curvature * w)
        worst = max(worst, far.max())
    assert 0.1 * limit < worst <= limit


# --- The rate ---


def error(on, promised, **settings):
    """What an epsilon-solution bounds: the larger of gap and violation, of the average."""
    gap, violation = measured(on, run(on, promised, **settings))
    return max(gap.max(), violation.max())


def test_the_rate_is_one_over_the_root_of_rounds():
    on = known()
    rounds = np.array([500, 2000, 8000, 32_000])
    for rule in ("hard", "soft"):
        errors = [error(on, promised_for(on, rule, "proof", rounds=int(t))) for t in rounds]
        slope = np.polyfit(np.log(rounds), np.log(errors), 1)[0]
        assert slope <= -0.4, f"{rule}: slope {slope:.3f}"


def test_error_grows_as_the_theorem_says():
    """More local steps at the same rounds, more compression and fewer participants: a larger epsilon and error."""
    on = known()
    pairs = [
        (SETTINGS["all"], SETTINGS["all, E=4"]),
        (SETTINGS["all"] | {"rounds": 4000}, SETTINGS["all, compressed"]),
        (SETTINGS["all"], SETTINGS["sampled"]),
    ]
    for less, more in pairs:
        promises = [promised_for(on, "hard", "proof", **setting) for setting in (less, more)]
        compressed = [{"uplink": TOP, "downlink": TOP} if s.get("compressed") else {} for s in (less, more)]
        errors = [error(on, promise, **extra) for promise, extra in zip(promises, compressed, strict=True)]
        assert promises[0].epsilon < promises[1].epsilon
        assert errors[0] < errors[1]


@pytest.mark.parametrize("share", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("name", ["all", "sampled"])
def test_any_beta_keeps_what_it_promises(share, name):
    """From a fifth of the paper's beta, the ramp five times the error, to five times it."""
    on, setting = known(), SETTINGS[name]
    plain = promised_for(on, "soft", "proof", **setting)
    beta = share * plain.beta
    promised = promised_for(on, "soft", "proof", **setting, beta=beta)
    assert promised.epsilon == pytest.approx(plain.epsilon / 2)
    gap, violation = measured(on, run(on, promised, seeds=20 if promised.probability < 1 else None))
    failed = ~((gap <= promised.epsilon) & (violation <= promised.violation))
    assert failed.mean() <= 1 - promised.probability
    if share < 1 and name == "all":
        assert violation.max() > plain.violation, "a larger ramp lets more through: the promise must grow with it"


# --- Estimates ---


def test_estimates_are_the_known_constants():
    on = known()
    assert estimates.diameter(BALL, on.start) == pytest.approx(2 * RADIUS, rel=1e-5)
    box = functools.partial(projection_box, lower=np.full(SIZE, -2.0), upper=np.full(SIZE, 1.0))
    assert estimates.diameter(box, on.start) == pytest.approx(3 * math.sqrt(SIZE), rel=1e-5)
    assert math.isinf(estimates.diameter(None, on.start))
    assert math.isinf(estimates.diameter(lambda w: w, on.start))
    start = on.start.astype(np.float32)
    # The longest gradient is a - k w at the point of the ball opposite to the longest a: a sample comes near to it.
    a, b = (on.clients.examples[name].astype(float).reshape(CLIENTS, -1, SIZE).mean(axis=1) for name in "ab")
    exact = np.linalg.norm(a, axis=1).max() + on.curvature * RADIUS
    assert 0.95 * exact <= estimates.lipschitz(PROBLEM, on.clients, start, project=BALL) <= exact * (1 + 1e-6)
    assert 0.4 * on.sigma <= estimates.spread(PROBLEM, on.clients, start, project=BALL) <= on.sigma * (1 + 1e-6)
    here = estimates.spread(PROBLEM, on.clients, start)
    values = b @ on.start
    assert here == pytest.approx((values.max() - values.min()) / 2, rel=1e-4)


@pytest.mark.parametrize("size", [3, 40], ids=["narrow", "wide"])
def test_skewness_is_that_of_the_matrices(size):
    """The d x d matrices are formed here, and nowhere else."""
    rng = np.random.default_rng(size)
    a, b = rng.normal(size=(2, 5, size))
    problem = fs.Problem(
        objective=lambda w, example: example["a"] @ w,
        constraints=[
            fs.Mean(lambda w, example: example["b"] @ w, name="g") <= 0.0,
            fs.Mean(lambda w, example: -1.0 + 0 * w[0] * example["b"][0], name="slack") <= 0.0,
        ],
    )
    rows = zip(a.astype(np.float32), b.astype(np.float32), strict=True)
    clients = fs.Clients.from_list([{"a": x[None], "b": y[None]} for x, y in rows])
    found = estimates.skewness(problem, clients, np.zeros(size, np.float32))
    outer = [np.outer(x, y) - np.outer(y, x) for x, y in zip(a, b, strict=True)]
    mean_a, mean_b = a.mean(axis=0), b.mean(axis=0)
    whole = np.outer(mean_a, mean_b) - np.outer(mean_b, mean_a)
    local = np.mean(outer, axis=0)
    expected = {
        "heterogeneity_objective": np.mean(np.sum((a - mean_a) ** 2, axis=1)),
        "heterogeneity_constraint": np.mean(np.sum((b - mean_b) ** 2, axis=1)),
        "skew_global": np.linalg.norm(whole),
        "skew_local": np.linalg.norm(local),
        "skew_of_clients": np.linalg.norm(local - whole),
    }
    assert found == pytest.approx(expected, rel=1e-5)
    v_f, v_g, _, _, of_clients = expected.values()
    assert of_clients <= math.sqrt(2 * v_f * v_g)


def test_skewness_is_recorded_in_every_round(clients, problem, params):
    algorithm = fs.FedSGM(step_size=0.3, rule=fs.Soft(20.0), local_steps=2)
    setting = {"rounds": 12, "seeds": 2, "progress": False}
    result = fs.simulate(algorithm, estimates.Watched(problem), clients, params, **setting)
    plain = fs.simulate(algorithm, problem, clients, params, **setting)
    np.testing.assert_array_equal(result.last["w"], plain.last["w"])
    last = estimates.skewness(problem, clients, jax.tree.map(lambda leaf: np.asarray(leaf)[1], result.last))
    assert {name: result.history[name][1, -1] for name in estimates.SKEWNESS} == pytest.approx(last, rel=1e-4)
    v_f, v_g = (result.history[name] for name in estimates.SKEWNESS[:2])
    assert (result.history["skew_of_clients"] <= np.sqrt(2 * v_f * v_g)).all()


# --- Certificates ---

NP_RADIUS = 3.0
NP_BALL = functools.partial(projection_l2_ball, scale=NP_RADIUS)


def logistic(w, example):
    z = example["x"] @ w
    return jnp.logaddexp(0.0, z) - example["y"] * z


def majority(example):
    return example["y"] == 0


def minority(example):
    return example["y"] == 1


def neyman_pearson(bound):
    return fs.Problem(
        objective=fs.Mean(logistic, where=majority), constraints=[fs.Mean(logistic, where=minority, name="g") <= bound]
    )


def random_neyman_pearson(seed):
    """The bound is halfway between the least that the ball allows and what w = 0 has."""
    rng = np.random.default_rng(seed)
    n, each, d = 6, 20, 5
    y = np.arange(each) % 4 == 0
    x = rng.normal(size=(n, each, d))
    x[:, y] += 0.8 * rng.normal(size=d)
    x = x.astype(np.float32)
    rows = {-1: x[:, y].reshape(-1, d).astype(float), 1: x[:, ~y].reshape(-1, d).astype(float)}

    def loss(w, sign):
        return np.mean(np.logaddexp(0, sign * rows[sign] @ w))

    def slope(w, sign):
        return sign * rows[sign].T @ scipy.special.expit(sign * rows[sign] @ w) / len(rows[sign])

    ball = {"type": "ineq", "fun": lambda w: NP_RADIUS**2 - w @ w, "jac": lambda w: -2 * w}
    exact = {"method": "SLSQP", "options": {"ftol": 1e-14, "maxiter": 1000}}
    least = scipy.optimize.minimize(loss, np.zeros(d), (-1,), jac=slope, constraints=[ball], **exact).fun
    bound = (least + math.log(2)) / 2
    limit = {"type": "ineq", "fun": lambda w: bound - loss(w, -1), "jac": lambda w: -slope(w, -1)}
    solved = scipy.optimize.minimize(loss, np.zeros(d), (1,), jac=slope, constraints=[ball, limit], **exact)
    assert solved.success
    assert loss(solved.x, -1) == pytest.approx(bound, abs=1e-8), "the constraint must be active"
    clients = fs.Clients.from_list([{"x": one, "y": y.astype(np.float32)} for one in x])
    return neyman_pearson(bound), clients, solved


def test_the_certificate_encloses_the_optimum_of_20_random_problems():
    start = np.zeros(5, np.float32)
    algorithm = fs.FedSGM(step_size=0.1, local_steps=2, rule=fs.Soft(40.0), project=NP_BALL)
    close = 0
    for seed in range(20):
        problem, clients, solved = random_neyman_pearson(seed)
        result = fs.simulate(algorithm, problem, clients, start, rounds=300, evaluate_every=0, progress=False)
        result = result.certified(problem, clients, start, project=NP_BALL)
        certificate = result.settings["certificate"]
        assert f"at most {certificate['gap']:.2g} above the best possible" in result.verdict()
        lower, gap = certificate["lower_bound"], certificate["gap"]
        true = certificate["objective"] - solved.fun
        assert lower <= solved.fun + 1e-9
        assert true > 1e-3, "the run is at the optimum: there is nothing to certify"
        assert gap >= true - 1e-9
        close += gap - true <= 0.05 * true or gap - true <= 1e-3
    assert close >= 18


def test_at_the_optimum_gap_and_residual_vanish():
    problem, clients, solved = random_neyman_pearson(0)
    certificate = fs.certificates.certify(
        problem, clients, solved.x.astype(np.float32), project=NP_BALL, tolerance=1e-8
    )
    assert certificate.gap < 1e-6
    assert certificate.residual < 1e-4
    away = fs.certificates.certify(problem, clients, 2 * solved.x.astype(np.float32), project=NP_BALL)
    assert away.residual > 0.01
    assert away.lower_bound == pytest.approx(certificate.lower_bound, abs=2e-6)
    assert away.lower_bound <= solved.fun
    far = fs.certificates.certify(problem, clients, solved.x.astype(np.float32), project=NP_BALL, multipliers=50.0)
    assert solved.fun - 2e-6 <= far.lower_bound <= solved.fun, "wherever the multipliers begin"


def test_multipliers_of_several_constraints_in_closed_form():
    """min |w - (2, 1)|^2 / 2 with w_1 <= 1, w_2 <= 0.5 and a third that is slack: multipliers 1, 0.5 and 0, f* 0.625.

    The objective is strongly convex, so X need not be bounded.
    """
    problem = fs.Problem(
        objective=lambda w, example: 0.5 * jnp.sum((w - example["a"]) ** 2),
        constraints=[
            fs.Mean(lambda w, example: w[0] + 0 * example["a"][0], name="first") <= 1.0,
            fs.Mean(lambda w, example: w[1] + 0 * example["a"][0], name="second") <= 0.5,
            fs.Mean(lambda w, example: w[0] - w[1] + 0 * example["a"][0], name="slack") <= 3.0,
        ],
    )
    a = np.array([[[1.5, 1.0]], [[2.5, 1.0]]], np.float32)
    clients = fs.Clients.from_list([{"a": rows} for rows in a])
    constant = 0.5 * 0.25  # of the two clients' spread around their mean
    certificate = fs.certificates.certify(
        problem, clients, np.array([1.0, 0.5], np.float32), strong_convexity=1.0, tolerance=1e-9
    )
    assert certificate.multipliers == pytest.approx({"first": 1.0, "second": 0.5, "slack": 0.0}, abs=1e-4)
    assert certificate.lower_bound == pytest.approx(0.625 + constant, abs=1e-8)
    assert certificate.lower_bound <= 0.625 + constant + 1e-12
    assert certificate.gap == pytest.approx(0.0, abs=1e-8)
    with pytest.raises(fs.SettingError, match="X is not bounded; give project="):
        fs.certificates.certify(problem, clients, np.zeros(2, np.float32))


def test_a_statistic_has_no_certificate(clients, params):
    ratio = fs.Statistic(lambda p, ex: {"s": ex["y"] * p["b"], "n": 1.0}, lambda t: t["s"] / t["n"], name="rate")
    problem = fs.Problem(objective=lambda p, ex: p["b"] * ex["y"], constraints=[ratio <= 1.0])
    with pytest.raises(fs.SettingError, match="Statistic is not convex"):
        fs.certificates.certify(problem, clients, params, strong_convexity=1.0)
    with pytest.raises(fs.SettingError, match="means over all clients"):
        fs.FedSGM.from_theory(problem, clients, params, rounds=10, distance=1.0)
    mean = fs.Mean(lambda p, ex: p["b"] * ex["y"], name="g")
    some = fs.Mean(lambda p, ex: p["b"] * ex["y"], name="g", missing="absent")
    for constraint in (some <= 1.0, fs.each_client(mean) <= 1.0):
        told = fs.Problem(problem.objective, [constraint])
        with pytest.raises(fs.SettingError, match="means over all clients"):
            fs.FedSGM.from_theory(told, clients, params, rounds=10, distance=1.0)
        with pytest.raises(fs.SettingError, match="means over all clients"):
            fs.certificates.certify(told, clients, params, strong_convexity=1.0)
        with pytest.raises(fs.SettingError, match="means over all clients"):
            fs.estimates.lipschitz(told, clients, params)
    with pytest.raises(fs.SettingError, match="upper bounds, but 'g' has a lower one"):
        fs.FedSGM.from_theory(fs.Problem(problem.objective, [mean >= 1.0]), clients, params, rounds=10, distance=1.0)
    with pytest.raises(fs.SettingError, match="means over all clients"):
        estimates.lipschitz(problem, clients, params)


# --- Runs that are set up from theory ---


def test_from_theory_sets_what_the_guarantee_says_and_the_verdict_tells(tmp_path):
    on = known()
    start = on.start.astype(np.float32)
    given = {"lipschitz": on.lipschitz, "distance": 2 * RADIUS}
    algorithm = fs.FedSGM.from_theory(PROBLEM, on.clients, start, rounds=2000, rule="soft", project=BALL, **given)
    promised = theory.guarantee("soft", rounds=2000, clients=CLIENTS, projected=True, **given)
    assert (algorithm.step_size, algorithm.tolerance) == (promised.step_size, promised.tolerance)
    assert algorithm.rule == fs.Soft(promised.beta)
    assert algorithm.promise == promised
    result = fs.simulate(algorithm, PROBLEM, on.clients, start, rounds=2000, progress=False)
    gap, violation = measured(on, result)
    verdict = result.verdict()
    assert f"over a bound by at most {promised.violation:.2g}, objective at most {promised.epsilon:.2g}" in verdict
    assert "by Theorem 2, soft switching, all clients; as the proof has it" in verdict
    assert f"measured   average: over by at most {violation.max():.2g}" in verdict
    result = result.certified(PROBLEM, on.clients, start, project=BALL)
    result.save(tmp_path)
    again = fs.Result.load(tmp_path)
    assert again.verdict() == result.verdict()
    assert again.settings["algorithm"]["promise"]["epsilon"] == promised.epsilon
    assert again.settings["certificate"]["lower_bound"] == pytest.approx(on.value, abs=1e-5)
    assert gap.max() < 0, "the tolerance lets the objective below the optimum"
    assert "objective below the best possible\n" in again.verdict()
    lower = f"the best possible within them is at least {result.settings['certificate']['lower_bound']:.6g}"
    assert f"over a bound by {violation_of_last(on, result):.2g}; {lower}" in again.verdict()


def violation_of_last(on, result):
    return on.g(np.asarray(result.last, np.float64)) - BOUND


def test_from_theory_measures_what_it_is_not_given():
    on = known()
    start = on.start.astype(np.float32)
    algorithm = fs.FedSGM.from_theory(
        PROBLEM, on.clients, start, rounds=500, participants=4, local_steps=2, uplink=TOP, project=BALL, **ASKED
    )
    promise = algorithm.promise
    assert promise.estimated == ("lipschitz", "sigma")
    assert promise.given["lipschitz"] == estimates.lipschitz(PROBLEM, on.clients, start, project=BALL)
    assert promise.given["sigma"] == estimates.spread(PROBLEM, on.clients, start, project=BALL)
    assert promise.given["distance"] == pytest.approx(2 * RADIUS, rel=1e-5)
    assert promise.given["uplink"] == TOP.contraction(SIZE)
    batches = {"batch_size": 2, "constraint_batch_size": 3, "gradient_noise": 0.1, "query_noise": 0.2}
    stochastic = fs.FedSGM.from_theory(PROBLEM, on.clients, start, rounds=500, project=BALL, **batches)
    assert "stochastic" in stochastic.promise.source
    assert (stochastic.batch_size, stochastic.promise.given["query_size"]) == (2, 3)


def test_the_verdict_tells_what_is_promised_of_a_weakly_convex_objective():
    on = known(-0.2)
    start = on.start.astype(np.float32)
    weak = {"weak_convexity": 0.2, "proximal": 1.0, "multiplier": 2.0, "lipschitz": on.lipschitz}
    algorithm = fs.FedSGM.from_theory(PROBLEM, on.clients, start, rounds=2000, project=BALL, **weak)
    result = fs.simulate(algorithm, PROBLEM, on.clients, start, rounds=2000, evaluate_every=0, progress=False)
    assert f"stationary within {algorithm.promise.stationarity:.2g}\n" in result.verdict()
    assert "by the theorem on weakly convex objectives" in result.verdict()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "X is not bounded; give project="),
        ({"distance": 1.0, "batch_size": 2}, "gradient_noise="),
        ({"distance": 1.0, "constraint_batch_size": 2, "gradient_noise": 0.1}, "query_noise="),
        ({"distance": 1.0, "participants": 3, "uplink": fs.RandK(0.5)}, "deterministic compressors"),
        ({"distance": 1.0, "participants": 9}, "participants=9, but there are 8 clients"),
        ({"distance": 1.0, "rule": "soggy"}, "rule='soggy'"),
    ],
)
def test_from_theory_refuses_what_no_theorem_covers(wrong, says):
    on = known()
    with pytest.raises(fs.SettingError, match=says):
        fs.FedSGM.from_theory(PROBLEM, on.clients, on.start.astype(np.float32), rounds=10, **wrong)


def test_from_theory_covers_steps_on_violated_constraints_that_are_no_longer_than_one_s():
    on = known()
    start = on.start.astype(np.float32)
    bounds = [fs.Mean(constraint, name=name) <= BOUND for name in ("first", "second")]
    given = {"rounds": 100, "distance": 1.0, "lipschitz": on.lipschitz}

    def made(follow):
        problem = dataclasses.replace(PROBLEM, constraints=bounds, follow=follow)
        return fs.FedSGM.from_theory(problem, on.clients, start, **given)

    assert made("shared").step_size == made("largest").step_size
    with pytest.raises(fs.SettingError, match="steps on the largest violation or shared between the violated"):
        made("sum")


def test_a_run_that_leaves_the_theory_is_told_so():
    on = known()
    start = on.start.astype(np.float32)
    setting = {"rounds": 2000, "participants": 4, "project": BALL, "sigma": on.sigma, "lipschitz": on.lipschitz}
    setting |= ASKED
    soft = fs.FedSGM.from_theory(PROBLEM, on.clients, start, rule="soft", **setting)

    def told(algorithm, rounds, problem=PROBLEM):
        with pytest.warns(theory.TheoryWarning) as caught:
            fs.simulate(algorithm, problem, on.clients, start, rounds=rounds, evaluate_every=0, progress=False)
        return [str(warning.message) for warning in caught]

    fs.simulate(soft, PROBLEM, on.clients, start, rounds=2000, evaluate_every=0, progress=False)  # no warning
    blunt = dataclasses.replace(soft, rule=fs.Soft(soft.rule.beta / 10))
    radius = theory.noise_radius(on.sigma, 4, 2000, DELTA / 3)
    least = soft.promise.error + 1 / blunt.rule.beta + radius
    assert told(blunt, 2000) == [
        f"beta is {blunt.rule.beta:g}, which promises the objective within {soft.promise.error:.3g} and the constraint "
        f"within {least + radius:.3g} at a tolerance of {least:.3g}, but the tolerance is {soft.tolerance:.3g}"
    ]
    fitting = fs.FedSGM.from_theory(PROBLEM, on.clients, start, rule="soft", beta=blunt.rule.beta, **setting)
    assert fitting.tolerance == pytest.approx(least)
    fs.simulate(fitting, PROBLEM, on.clients, start, rounds=2000, evaluate_every=0, progress=False)  # no warning
    assert told(soft, 1000) == ["rounds is 1000, but the promise was made for 2000"]
    forgetful = dataclasses.replace(soft, memory=False)
    assert told(forgetful, 2000) == ["error feedback is off, but the promise was made with it"]
    tight = dataclasses.replace(soft, tolerance=1e-4)
    assert any(f"below the noise radius {radius:.3g}" in sentence for sentence in told(tight, 2000))
    impossible = dataclasses.replace(PROBLEM, constraints=[fs.Mean(constraint, name="g") <= -10.0])
    assert told(soft, 2000, impossible) == ["no round was feasible for 1 of 1 seeds: no average is defined"]


def test_separable_data_without_a_bounded_set_have_no_minimiser():
    """Every example is 1-separable along the first axis; with one label turned round they are not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 10, 3)).astype(np.float32)
    y = np.tile(np.arange(10) % 2, (4, 1)).astype(np.float32)
    x[..., 0] = np.where(y == 1, 1 + np.abs(x[..., 0]), -1 - np.abs(x[..., 0]))
    turned = y.copy()
    turned[:, :2] = 1 - turned[:, :2]
    algorithm, problem = fs.FedSGM(step_size=0.5), neyman_pearson(0.3)
    start = np.zeros(3, np.float32)
    found = {}
    for name, labels in (("separable", y), ("turned", turned)):
        clients = fs.Clients.from_list([{"x": x[j], "y": labels[j]} for j in range(4)])
        result = fs.simulate(algorithm, problem, clients, start, rounds=200, evaluate_every=0, progress=False)
        found[name] = [s for s in theory.check(result, problem, clients, start) if "no minimiser" in s]
    assert len(found["separable"]) == 1
    assert not found["turned"]


def test_check_says_what_an_ordinary_run_lacks(clients, problem, params):
    algorithm = fs.FedSGM(step_size=0.3, rule=fs.Soft(20.0), local_steps=2)
    result = fs.simulate(algorithm, problem, clients, params, rounds=12, seeds=2, progress=False)
    assert theory.check(result) == [
        "beta is 20, which promises the objective within M, the theorem's error, and the constraint within M + 0.05 "
        "at a tolerance of M + 0.05, but the tolerance is 0"
    ]
    slack = dataclasses.replace(algorithm, tolerance=0.051)  # M may be 0.001
    result = fs.simulate(slack, problem, clients, params, rounds=12, seeds=2, progress=False)
    assert theory.check(result) == []
