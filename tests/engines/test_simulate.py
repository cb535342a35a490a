"""The engine: chunks, seeds, evaluation, one compilation, clients of different sizes, debug mode."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.layout import Layout
from fedsgm.core.algorithm import Flat
from fedsgm.engines import device, rounds
from fedsgm.engines.device import OnDevice
from support.runs import EVERYTHING, FEATURES, assert_identical, logistic, negative, positive

engine = importlib.import_module("fedsgm.engines.simulate")  # the package's attribute of that name is the function


@pytest.mark.parametrize("seconds", [0.0, 1e-3, 100.0])
def test_the_result_is_the_same_bits_for_any_chunk(clients, problem, params, monkeypatch, seconds):
    """Chunks of one round, of some, and as long as they can be."""
    algorithm = fs.FedSGM(**EVERYTHING)
    whole = fs.simulate(algorithm, problem, clients, params, rounds=150, seeds=2, progress=False)
    monkeypatch.setattr(engine, "_CHUNK_SECONDS", seconds)
    assert_identical(whole, fs.simulate(algorithm, problem, clients, params, rounds=150, seeds=2, progress=False))


def test_a_shorter_run_is_the_beginning_of_a_longer_one(clients, problem, params):
    algorithm = fs.FedSGM(**EVERYTHING)
    short = fs.simulate(algorithm, problem, clients, params, rounds=37, progress=False)
    long = fs.simulate(algorithm, problem, clients, params, rounds=90, progress=False)
    for name in short.history:
        np.testing.assert_array_equal(short.history[name], long.history[name][:, :37], err_msg=name)


def test_seeds_in_one_program_are_the_runs_one_by_one(clients, problem, params):
    algorithm = fs.FedSGM(**EVERYTHING)
    together = fs.simulate(algorithm, problem, clients, params, rounds=40, seed=5, seeds=3, progress=False)
    for i, seed in enumerate((5, 6, 7)):
        alone = fs.simulate(algorithm, problem, clients, params, rounds=40, seed=seed, progress=False)
        np.testing.assert_allclose(together.last["w"][i], alone.last["w"], rtol=1e-5)
        np.testing.assert_array_equal(together.history["participants"][i], alone.history["participants"][0])
    assert np.ptp(together.last["w"], axis=0).max() > 1e-3, "seeds must differ"


def own_start(seed):
    rng = np.random.default_rng(seed)
    return {"b": rng.normal(), "w": rng.normal(size=FEATURES)}


def test_every_seed_may_start_from_parameters_of_its_own(clients, problem, tmp_path):
    """Each run is the one from its own start, and resumes to the same bits."""
    algorithm = fs.FedSGM(**EVERYTHING)

    def run(start, **more):
        return fs.simulate(algorithm, problem, clients, start, **{"rounds": 30, "progress": False, **more})

    together = run(own_start, seed=5, seeds=3)
    for i, seed in enumerate((5, 6, 7)):
        np.testing.assert_allclose(together.last["w"][i], run(own_start(seed), seed=seed).last["w"], rtol=1e-5)
    np.testing.assert_allclose(run(own_start, seed=6).last["w"], together.last["w"][1], rtol=1e-5)
    first = run(own_start, seed=5, seeds=3, rounds=1, evaluate_every=0)
    assert np.ptp(first.last["w"], axis=0).max() > 0.5
    run(own_start, seed=5, seeds=3, rounds=10, checkpoint=fs.Checkpoint(tmp_path, 10))
    resumed = run(own_start, seed=5, seeds=3, checkpoint=fs.Checkpoint(tmp_path, 10, resume=True))
    assert_identical(together, resumed)
    with pytest.raises(fs.CheckpointError, match="start="):
        run(own_start(5), seed=5, seeds=3, checkpoint=fs.Checkpoint(tmp_path, 10, resume=True))
    with pytest.raises(fs.SettingError, match="params: those of seed 1 have another form than those of seed 0"):
        run(lambda seed: {"w": np.zeros(FEATURES + seed)}, seeds=2)


def test_true_values_are_those_of_the_model_each_round_produced(clients, problem, params):
    """At full participation the next round's estimate is this round's true constraint."""
    result = fs.simulate(fs.FedSGM(0.1, local_steps=2), problem, clients, params, rounds=30, progress=False)
    np.testing.assert_allclose(result.history["positive"][0, :-1], result.history["estimate"][0, 1:], rtol=1e-6)
    for name in ("objective", "positive"):
        np.testing.assert_array_equal(result.history[name][:, -1], result.value("train", name, "last"))


@pytest.mark.parametrize("every", [0, 1, 7, 50])
def test_evaluate_every(clients, problem, params, every):
    algorithm = fs.FedSGM(0.1, participants=3)
    full = fs.simulate(algorithm, problem, clients, params, rounds=50, progress=False)
    some = fs.simulate(algorithm, problem, clients, params, rounds=50, evaluate_every=every, progress=False)
    measured = [t for t in range(50) if t == 49 or (every and (t + 1) % every == 0)]
    assert np.flatnonzero(~np.isnan(some.history["objective"][0])).tolist() == measured
    np.testing.assert_allclose(some.history["positive"][0, measured], full.history["positive"][0, measured], rtol=1e-6)
    np.testing.assert_array_equal(some.last["w"], full.last["w"])
    np.testing.assert_array_equal(some.history["estimate"], full.history["estimate"])


def test_one_compilation_for_all_continuous_settings(clients, params, monkeypatch):
    """Step size, beta, bound, tolerance, seed and rounds are arguments of the program, which is traced once."""
    traced = []
    real = rounds.one_round
    monkeypatch.setattr(rounds, "one_round", lambda *given: traced.append(1) or real(*given))

    def go(step_size, beta, bound, tolerance, seed, many, local_steps=1):
        problem = fs.Problem(logistic, [fs.Mean(logistic, where=positive, name="loss") <= bound])
        algorithm = fs.FedSGM(
            step_size, local_steps=local_steps, rule=fs.Soft(beta), tolerance=tolerance, participants=3
        )
        fs.simulate(algorithm, problem, clients, params, rounds=many, seed=seed, progress=False)

    go(0.1, 10.0, 0.5, 0.0, 0, 20)
    compiled = len(traced)
    assert compiled == 1
    go(0.2, 20, 1, 0.1, 3, 300)
    go(1e-3, 7.5, 0.25, 0.02, 9, 7)
    assert len(traced) == compiled
    go(0.1, 10.0, 0.5, 0.0, 0, 20, local_steps=2)  # which is another program
    assert len(traced) > compiled


def test_only_participants_work(clients, problem, params):
    """Counted in the compiled round: the work grows with m, and two of six clients cost a third of all six."""
    layout = Layout.of(params)
    data = problem.prepare(clients, params)

    def flops(m):
        algorithm = fs.FedSGM(0.1, local_steps=1, participants=m)
        program = rounds.Compiled(algorithm, Flat(problem, layout), 1, 6, 1)
        ground = OnDevice(program, data, np.zeros(1, np.uint32))
        state = jax.tree.map(lambda a: a[0], ground.start(layout.flatten(params)[None]))
        draw = jax.eval_shape(lambda: rounds.Draw.of(program, 0, 0))

        def replica(data, state, draw):  # the true values over all clients are not asked for
            after, _ = rounds.one_round(program, data, state, draw, 0)
            return after.server.replica

        return jax.jit(replica).lower(data, state, draw).compile().cost_analysis()["flops"]

    per_client = (flops(5) - flops(2)) / 3
    assert 0.8 < flops(2) / (2 * per_client) < 1.2


def test_padding_never_reaches_a_function(params, problem):
    """A client alone and beside a much larger one has the same values; a loss that is NaN at zero stays finite."""
    rng = np.random.default_rng(0)
    small = {"x": rng.normal(size=(4, 4)).astype(np.float32), "y": np.array([0, 1, 0, 1], np.float32)}
    large = {"x": rng.normal(size=(50, 4)).astype(np.float32), "y": (np.arange(50) % 2).astype(np.float32)}
    both = problem.prepare(fs.Clients.from_list([small, large]), params)
    alone = problem.prepare(fs.Clients.from_list([small]), params)
    first = jax.tree.map(lambda a: a[0], both)
    key = jax.random.key(0)
    np.testing.assert_allclose(
        problem.evaluate(params, first, key),
        problem.evaluate(params, jax.tree.map(lambda a: a[0], alone), key),
        rtol=1e-6,
    )
    singular = fs.Problem(lambda p, example: -jnp.log(example["x"][0] ** 2) + p["b"] ** 2)
    result = fs.simulate(
        fs.FedSGM(0.1), singular, fs.Clients.from_list([small, large]), params, rounds=3, progress=False
    )
    assert np.isfinite(result.last["b"]).all()


def test_mini_batches_are_unbiased(clients, problem, params):
    """Over many draws the mean of a client's batch values and gradients is its full-batch one."""
    data = jax.tree.map(lambda a: jnp.asarray(a[3]), problem.prepare(clients, params))
    keys = jax.random.split(jax.random.key(1), 20_000)
    direction = fs.Direction(jnp.float32(0.4), jnp.float32(0.6), (jnp.ones(1), (None,)))

    def gradient(key, size):
        return problem.direction(params, direction, data, None, key, batch_size=size)

    draws = jax.jit(jax.vmap(lambda key: gradient(key, 5)))(keys)
    exact = gradient(keys[0], None)
    for name in ("w", "b"):
        error = np.std(draws[name], axis=0) / np.sqrt(len(keys))
        assert (np.abs(np.mean(draws[name], axis=0) - exact[name]) < 5 * error).all()
    values = jax.jit(jax.vmap(lambda key: problem.measure(params, data, key, batch_size=5)[0][0]))(keys)
    full = problem.measure(params, data, keys[0], batch_size=None)[0][0]
    assert abs(np.mean(values) - full) < 5 * np.std(values) / np.sqrt(len(keys))
    assert np.std(values) > 0.01


@pytest.mark.usefixtures("_programs_go_with_their_test")
def test_debug_mode_is_the_same_run(clients, problem, params):
    algorithm = fs.FedSGM(**EVERYTHING)
    plain = fs.simulate(algorithm, problem, clients, params, rounds=4, progress=False)
    slow = fs.simulate(algorithm, problem, clients, params, rounds=4, progress=False, debug=True)
    np.testing.assert_allclose(slow.last["w"], plain.last["w"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(slow.history["participants"], plain.history["participants"])


def test_several_constraints_follow_the_most_violated(clients, params):
    """The violation is the largest of (g_i - c_i) / scale_i, and every constraint is recorded by name."""
    first = fs.Mean(logistic, where=positive, name="first") <= 0.45
    second = fs.Constraint(fs.Mean(logistic, where=negative, name="second"), 0.9, scale=2.0)
    problem = fs.Problem(lambda p, _: p["w"] @ p["w"], [first, second])
    result = fs.simulate(fs.FedSGM(0.1), problem, clients, params, rounds=60, progress=False)
    history = {name: values[0].astype(np.float64) for name, values in result.history.items()}
    largest = np.maximum(history["first"] - 0.45, (history["second"] - 0.9) / 2)
    np.testing.assert_allclose(history["violation"][1:], largest[:-1], atol=1e-6)
    assert set(result.bounds) == {"first", "second"}


def test_a_problem_without_constraints_is_fedavg(clients, params):
    result = fs.simulate(fs.FedSGM(0.3), fs.Problem(logistic), clients, params, rounds=300, progress=False)
    assert (result.history["weight"] == 0).all()
    assert result.history["objective"][0, -1] < result.history["objective"][0, 0]
    assert result.feasible.all()


def test_any_pytree_of_parameters(clients):
    def loss(p, example):
        return (example["x"] @ p[0] + p[1]["bias"][0, 0] - example["y"]) ** 2

    start = [np.zeros(4, np.float64), {"bias": np.zeros((1, 1), np.float16)}]
    result = fs.simulate(fs.FedSGM(0.01), fs.Problem(loss), clients, start, rounds=5, seeds=2, progress=False)
    assert isinstance(result.last, list)
    assert result.last[0].shape == (2, 4)
    assert result.last[1]["bias"].shape == (2, 1, 1)
    assert result.last[1]["bias"].dtype == np.float32


def test_progress_is_plain_lines_when_nobody_watches(clients, problem, params, capsys, monkeypatch):
    monkeypatch.setattr("fedsgm.base.progress._LINE_EVERY", 0.0)
    fs.simulate(fs.FedSGM(0.1), problem, clients, params, rounds=30)
    out, err = capsys.readouterr()
    assert out == ""
    assert "round 30 of 30" in [line for line in err.splitlines() if "round" in line][-1]


def test_progress_is_a_bar_when_a_person_watches(clients, problem, params, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fs.simulate(fs.FedSGM(0.1), problem, clients, params, rounds=30)
    assert "30/30" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["", "here"])
def test_the_compilation_cache_goes_where_the_user_says(monkeypatch, tmp_path, folder):
    """FEDSGM_CACHE moves it; set to nothing, there is none."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("FEDSGM_CACHE", folder and str(tmp_path / folder))
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        engine.use_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == (str(tmp_path / "here" / "compiled") if folder else None)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_compilation_cache_of_the_users_own_is_left_alone(monkeypatch, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("FEDSGM_CACHE", str(tmp_path))
    try:
        jax.config.update("jax_compilation_cache_dir", "/their/own")
        engine.use_compilation_cache()
        assert jax.config.jax_compilation_cache_dir == "/their/own"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_data_goes_to_the_device_once(clients, problem, params, monkeypatch):
    """Every chunk is given the same arrays, which are on the device already."""
    given = []
    advance = device.advance
    monkeypatch.setattr(engine, "_CHUNK_SECONDS", 0.0)

    def spy(program, data, *rest):
        given.append(jax.tree.leaves(data))
        return advance(program, data, *rest)

    monkeypatch.setattr(device, "advance", spy)
    fs.simulate(fs.FedSGM(0.1), problem, clients, params, rounds=20, progress=False)
    assert len(given) > 2
    assert all(isinstance(leaf, jax.Array) for leaf in given[0])
    assert all(a is b for later in given[1:] for a, b in zip(given[0], later, strict=True))
