"""Which iterates are kept of a run: against a plain search over all that was seen, whatever order it came in."""

import jax
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.engines import recording
from fedsgm.engines.recording import Found, Kept
from fedsgm.tables.models import MLP

SIZE = 3


def random_rounds(seed, *, clients, length=40):
    """Iterates with objective, violation and the number of clients that these are of; few values, so many ties."""
    rng = np.random.default_rng(seed)
    rounds = []
    for t in range(1, length + 1):
        w = rng.normal(size=SIZE).astype(np.float32)
        objective, worst = (np.float32(rng.integers(-3, 4) / 4) for _ in range(2))
        broken = rng.integers(12)
        if broken == 0:
            objective = np.float32(rng.choice([np.nan, np.inf, -np.inf]))
        elif broken == 1:
            worst = np.float32(rng.choice([np.nan, np.inf]))
        elif broken == 2:
            w[rng.integers(SIZE)] = rng.choice([np.nan, np.inf])
        elif broken == 3:
            w, objective, worst = np.full(SIZE, np.nan, np.float32), np.float32(np.nan), np.float32(np.nan)
        rounds.append((w, objective, worst, int(rng.integers(max(1, clients - 2), clients + 1)), t))
    return rounds


def searched(rounds, *, feasible):
    """Of those of most clients the first with the least objective within the bounds, or with the least violation."""
    sound = [one for one in rounds if np.isfinite([*one[0], one[1]]).all() and one[2] < np.inf]
    sound = [one for one in sound if one[2] <= 0 or not feasible]
    if not sound:
        return None
    most = max(one[3] for one in sound)
    return min((one for one in sound if one[3] == most), key=lambda one: one[1] if feasible else one[2])


def assert_kept(kept, expected):
    if expected is None:
        assert np.isnan(kept.w).all()
        assert (kept.round, kept.evaluated) == (0, 0)
        return
    np.testing.assert_array_equal(kept.w, expected[0])
    assert (kept.round, kept.evaluated) == (expected[4], expected[3])


def found_in(rounds):
    compared = jax.jit(Found.compared, static_argnums=4)
    found = Found.start(np.zeros(SIZE, np.float32))
    for one in rounds:
        found = compared(found, *one)
    return found


@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("feasible_at_all", [True, False])
def test_what_is_kept_is_what_a_search_finds(clients, feasible_at_all):
    """The answer is the best, unless more clients are known to be over their bounds everywhere."""
    answers = set()
    for seed in range(60):
        rounds = random_rounds(seed, clients=clients)[: 1 + seed]
        if not feasible_at_all:
            rounds = [(w, f, np.abs(worst) + 1, n, t) for w, f, worst, n, t in rounds]
        found = found_in(rounds)
        best, least = (searched(rounds, feasible=feasible) for feasible in (True, False))
        assert_kept(found.best, best)
        assert_kept(found.least, least)
        expected = best if best is not None and best[3] == least[3] else least
        assert_kept(found.answer, expected)
        answers.add("none" if expected is None else "best" if expected is best else "least")
    assert ("best" in answers) == feasible_at_all
    assert ("least" in answers) == (clients == 5 or not feasible_at_all), "what is known of fewer does not count"


def test_the_first_of_equals_is_kept():
    w = np.eye(SIZE, dtype=np.float32)
    ties = [(w[t], np.float32(1), np.float32(-1), 2, t + 1) for t in range(3)]
    found = found_in(ties)
    assert (found.best.round, found.least.round, found.answer.round) == (1, 1, 1)
    assert found_in([*ties, (w[1], np.float32(9), np.float32(-1), 3, 4)]).answer.round == 4, "of more clients"


def test_no_finite_round_leaves_nothing():
    nothing = [(np.full(SIZE, np.nan, np.float32), np.float32(np.nan), np.float32(np.nan), 1, t) for t in (1, 2, 3)]
    ends = found_in(nothing).ends(np.zeros(SIZE), 3)
    assert ends.rounds.tolist() == [3, 0, 0, 0]
    assert np.isnan(ends.vectors[1:]).all()


def test_of_several_seeds_each_has_its_own():
    """[kind, seed]: the last, average, best and answer; a best where there is one, else the least violated."""
    rounds = [
        [(np.full(SIZE, t, np.float32), np.float32(t), np.float32(worst), 4, t)] for t, worst in ((1, -1), (2, 1))
    ]
    seeds = jax.tree.map(lambda *leaves: np.stack(leaves), *map(found_in, rounds))
    last = np.zeros((2, SIZE), np.float32)
    ends = seeds.ends(last, 7)
    assert ends.vectors.shape == (4, 2, SIZE)
    assert ends.rounds.tolist() == [[7, 7], [0, 0], [1, 0], [1, 2]]
    np.testing.assert_array_equal(ends.vectors[3], [[1] * SIZE, [2] * SIZE])
    np.testing.assert_array_equal(ends.vectors[2, 0], [1] * SIZE)
    assert np.isnan(ends.vectors[2, 1]).all()
    told = Kept(last + 5, np.zeros(2), np.ones(2), np.array([3, 4]))
    assert seeds.ends(last, 7, told).rounds[3].tolist() == [3, 4]


def test_values_of_parameters_that_there_are_none_of_are_undefined():
    """Also of decisions: a comparison with what is not a number is a decision, and seems to be within a bound."""
    clients = fs.Clients.from_list([{"x": np.zeros((4, 1), np.float32), "y": np.array([0, 1, 0, 1], np.float32)}])
    model = MLP()
    wrong = fs.fairness.error_rate(model.score)  # half, whatever is decided, as all examples are alike
    result = fs.simulate(
        fs.FedSGM(0.1), fs.Problem(model.loss, [wrong <= 0.4]), clients, model.init(1), rounds=2, progress=False
    )
    assert result.value("train", "error_rate", "last") == 0.5
    assert np.isnan(result.value("train", "error_rate", "best_feasible"))


def sized(n, rows):
    return fs.Clients.from_list([{"a": np.zeros(rows, np.float32)}] * n)


@pytest.mark.parametrize(
    ("settings", "n", "rows", "every"),
    [
        ({"local_steps": 5}, 10, 20, 1),  # 200 examples beside 200 + 3 x 1000
        ({"local_steps": 1}, 10, 20, 2),  # 200 beside 200 + 600, a quarter
        ({"local_steps": 5, "participants": 5}, 10, 20, 1),  # 200 beside 100 + 1500, an eighth
        ({"local_steps": 5, "participants": 1}, 10, 20, 4),  # 200 beside 20 + 300, 0.625
        ({"local_steps": 5, "participants": 1, "query": "all"}, 10, 20, 2),  # 200 beside 200 + 300, 0.4
        ({"local_steps": 1, "batch_size": 2}, 10, 20, 4),  # 200 beside 200 + 60, 0.77
        ({"local_steps": 1, "batch_size": 2, "constraint_batch_size": 4}, 10, 20, 10),  # 200 beside 40 + 60
        ({"participants": 1}, 1000, 2, 100),  # 2000 beside 8: 1250 rounds, but a hundred are the most
    ],
)
def test_true_values_are_a_fifth_of_a_large_runs_work(settings, n, rows, every):
    algorithm, clients = fs.FedSGM(0.1, **settings), sized(n, rows)
    assert recording.rounds_between(None, algorithm, clients, 2**20) == every
    assert recording.rounds_between(None, algorithm, clients, 2**20 // (n * rows)) == 1
    assert recording.rounds_between(0, algorithm, clients, 2**20) == 0
    assert recording.rounds_between(7, algorithm, clients, 2**20) == 7


def test_a_large_run_says_how_often_it_was_measured(monkeypatch):
    monkeypatch.setattr(recording, "_CHEAP", 0)
    problem = fs.Problem(lambda w, example: (w - example["a"]) ** 2)
    algorithm = fs.FedSGM(0.1, 5, 1)
    result = fs.simulate(algorithm, problem, sized(10, 20), np.float32(1), rounds=10, progress=False)
    assert result.settings["evaluate_every"] == 4
    assert list(np.flatnonzero(~np.isnan(result.history["objective"])) + 1) == [4, 8, 10]
