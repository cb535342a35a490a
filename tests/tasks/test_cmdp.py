"""The CMDP task: CartPole is Gymnasium's, a policy step is the natural gradient's, and a run learns."""

import functools
import math

import gymnasium
import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fedsgm as fs
from fedsgm.core.rules import Direction
from fedsgm.tasks import cmdp
from fedsgm.tasks.cmdp import gym, trpo
from fedsgm.tasks.cmdp.environment import Steps, episodes, rollout
from support.runs import assert_identical

KEY = jax.random.key(0)


# The environment


@functools.cache
def transitions(integrator):
    """20,000 transitions of Gymnasium's CartPole, some steps at random: states, actions, next states, ends."""
    environment = gymnasium.make("CartPole-v1").unwrapped
    environment.kinematics_integrator = integrator
    rng = np.random.default_rng(1)
    found = []
    while len(found) < 20_000:
        environment.reset(seed=int(rng.integers(2**31)))
        goal, noise = rng.uniform(-3, 3), rng.uniform(0, 1)
        for _ in range(200):
            state = np.array(environment.state, np.float64)
            lean = np.clip(0.1 * (state[0] - goal) + 0.2 * state[1], -0.2, 0.2) + state[2] + 0.3 * state[3]
            action = int(rng.integers(2)) if rng.random() < noise else int(lean > 0)
            _, _, ended, _, _ = environment.step(action)
            found.append((state, action, np.array(environment.state), ended))
            if ended:
                break
    return tuple(np.array(column) for column in zip(*found, strict=True))


def costs(states):
    """The paper's two conditions, written out."""
    x, angle = states[:, 0], np.abs(states[:, 2])
    bands = [(-2.4, -2.2), (-1.3, -1.1), (-0.1, 0.1), (1.1, 1.3), (2.2, 2.4)]
    return np.any([(low <= x) & (x <= high) for low, high in bands], axis=0) | (angle > 6 * np.pi / 180)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize(("ours", "theirs"), [("euler", "euler"), ("semi-implicit", "semi-implicit euler")])
def test_cartpole_is_gymnasiums(ours, theirs, dtype, tolerance):
    states, actions, expected, ends = transitions(theirs)
    assert 100 < ends.sum() < len(ends) / 2
    with jax.enable_x64(dtype == np.float64):
        step = jax.jit(jax.vmap(functools.partial(cmdp.CartPole(integrator=ours).step, KEY)))
        _, reached, reward, done, info = jax.tree.map(np.asarray, step(states.astype(dtype), actions))
    assert reached.dtype == dtype
    assert np.abs(reached - expected).max() < tolerance
    np.testing.assert_array_equal(done, ends)
    np.testing.assert_array_equal(reward, 1)
    np.testing.assert_array_equal(info["cost"], costs(reached.astype(np.float64)))
    assert 0.1 < info["cost"].mean() < 0.9


def test_a_full_force_is_an_action():
    state = np.float32([0.3, -0.2, 0.05, 0.4])
    force, two = cmdp.CartPole(continuous=True), cmdp.CartPole()
    for push, action in ((1.0, 1), (-1.0, 0), (7.0, 1)):
        np.testing.assert_array_equal(force.move(state, np.float32([push])), two.move(state, np.int32(action)))
    half = force.move(state, np.float32([0.5]))
    between = (force.move(state, np.float32([1.0])) + force.move(state, np.float32([0.0]))) / 2
    np.testing.assert_allclose(half, between, rtol=1e-5)  # the equations are linear in the force


def test_bands_and_angle_can_be_chosen():
    states = np.float32([[0.5, 0, 0, 0], [0.0, 0, 0.15, 0], [0.0, 0, 0, 0]])
    environment = cmdp.CartPole(bands=((0.4, 0.6),), angle=10.0)
    np.testing.assert_array_equal(environment.cost(states), [1, 0, 0])
    np.testing.assert_array_equal(cmdp.CartPole(bands=(), angle=3.0).cost(states), [0, 1, 0])


@pytest.mark.parametrize("continuous", [False, True])
def test_gymnasium_accepts_the_registered_environment(continuous):
    environment = gymnasium.make(gym.ID, continuous=continuous, angle=3.0)
    assert environment.spec.max_episode_steps == 200
    check_env(environment.unwrapped)
    environment.reset(seed=0)
    _, reward, _, _, info = environment.step(environment.action_space.sample())
    assert reward == 1
    assert info == {"cost": 1}  # it starts in the middle band


# Rollouts


def hold(params, observation):
    """A hand-written controller that holds x = 0.8, outside every band."""
    x, speed, angle, turn = observation
    lean = jnp.clip(0.1 * (x - 0.8) + 0.2 * speed, -0.08, 0.08)
    return jnp.array([0.0, params["gain"] * (lean + angle + 0.3 * turn)])


HOLD = cmdp.Custom(hold, cmdp.Categorical())


def play_in_gymnasium(gain, count):
    """Rewards and costs of the controller in Gymnasium's own CartPole."""
    environment = gymnasium.make("CartPole-v1", max_episode_steps=200)
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        (x, speed, angle, turn), _ = environment.reset(seed=int(rng.integers(2**31)))
        reached, ended = [], False
        while not ended:
            push = gain * (np.clip(0.1 * (x - 0.8) + 0.2 * speed, -0.08, 0.08) + angle + 0.3 * turn)
            state, _, fell, late, _ = environment.step(int(rng.random() < 1 / (1 + np.exp(-np.clip(push, -50, 50)))))
            (x, speed, angle, turn), ended = state, fell or late
            reached.append(state)
        found.append((len(reached), costs(np.array(reached)).sum()))
    return np.array(found, float)


@pytest.mark.parametrize(("gain", "count"), [(0.0, 400), (1e3, 40)], ids=["random", "controller"])
def test_returns_are_gymnasiums(gain, count):
    """A random policy lives about 22 steps, nearly all of them forbidden; the controller leaves the band and lives."""
    ours = jax.jit(lambda: episodes(cmdp.CartPole(), HOLD, {"gain": gain}, KEY, count=2000, horizon=200))()
    theirs = play_in_gymnasium(gain, count)
    error = 4 * theirs.std(axis=0) / math.sqrt(count) + 1e-3
    assert (np.abs(np.float64(ours).mean(axis=0) - theirs.mean(axis=0)) < error).all()
    assert theirs[:, 0].mean() == pytest.approx(200 if gain else 22, rel=0.1)


class Counter:
    """Ends after the number of steps that its start drew; the reward of step t is t, the cost 1 if t is even."""

    def reset(self, key):
        state = {"t": jnp.int32(0), "end": jax.random.randint(key, (), 1, 12)}
        return self._seen(state), state

    def step(self, key, state, action):  # noqa: ARG002
        state = {"t": state["t"] + 1, "end": state["end"]}
        gains = state["t"].astype(jnp.float32), (state["t"] % 2 == 0).astype(jnp.float32)
        return self._seen(state), state, gains[0], state["t"] >= state["end"], {"cost": gains[1]}

    def _seen(self, state):
        return jnp.stack([state["t"], state["end"]]).astype(jnp.float32)


def test_to_go_is_that_of_whole_episodes():
    """Every step's rest of the episode is known in closed form from what is seen, wherever the window ends."""
    policy = cmdp.MLP((2, 2), cmdp.Categorical())
    steps, returns = jax.jit(
        lambda: rollout(Counter(), policy, policy.init(0), KEY, environments=40, steps=25, horizon=9)
    )()
    t, end = np.asarray(steps.observations).T
    end = np.minimum(end, 9)  # the horizon ends an episode too
    expected = np.stack([end * (end + 1) / 2 - t * (t + 1) / 2, end // 2 - t // 2], 1)
    np.testing.assert_array_equal(steps.to_go, expected)
    np.testing.assert_array_equal(steps.times, t)
    np.testing.assert_allclose(returns, expected[t == 0].mean(0), rtol=1e-6)
    assert len(t) == 1000
    ahead = t.reshape(40, 25)  # environment by environment: times rise by one or start again
    assert set(np.unique(np.where(ahead[:, 1:] == 0, 1, np.diff(ahead)))) == {1}
    assert len(np.unique(end[t == 0])) == 9


def test_finished_episodes_are_those_that_end_in_the_window():
    policy = cmdp.MLP((2, 2), cmdp.Categorical())
    steps, returns = jax.jit(
        lambda: rollout(Counter(), policy, policy.init(0), KEY, environments=40, steps=25, horizon=9, finished=True)
    )()
    t, end = (a.reshape(40, 25) for a in np.asarray(steps.observations).T)
    end = np.minimum(end, 9).astype(int)
    ended = [end[e, i] for e in range(40) for i in range(25) if t[e, i] == 0 and i + end[e, i] <= 25]
    np.testing.assert_allclose(returns, np.mean([(n * (n + 1) / 2, n // 2) for n in ended], axis=0), rtol=1e-6)
    assert len(ended) < (t == 0).sum()


# The policy step, against dense algebra in float64


def gathered(distribution, outputs, *, samples=40, seed=0, hidden=(5, 4)):
    """A small network, and steps as a rollout would give them, in the current precision."""
    rng = np.random.default_rng(seed)
    policy = cmdp.MLP((3, *hidden, outputs), distribution)
    params = jax.tree.map(lambda a: jnp.asarray(2 * a, float), policy.init(seed))
    observations = jnp.asarray(rng.normal(size=(samples, 3)))
    z = policy.apply(params, observations)
    actions = distribution.sample(z, distribution.noise(jax.random.key(seed), (samples,)))
    to_go = jnp.asarray(rng.normal(size=(samples, 2)))
    return (
        policy,
        params,
        Steps(observations, actions, z, jnp.arange(samples) % 20, to_go),
        jnp.asarray(rng.normal(size=samples)),
    )


DISTRIBUTIONS = [
    pytest.param(cmdp.Categorical(), 2, id="two actions"),
    pytest.param(cmdp.Categorical(), 4, id="four actions"),
    pytest.param(cmdp.Gaussian(2), 4, id="two forces"),
]


def test_every_distribution_is_in_the_list():
    public = (getattr(cmdp, name) for name in cmdp.__all__)
    kinds = {kind for kind in public if isinstance(kind, type) and hasattr(kind, "log_prob")}
    assert kinds - {cmdp.Distribution} == {type(case.values[0]) for case in DISTRIBUTIONS}


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def dense_fisher(policy, params, observations):
    """The Hessian of the mean KL divergence at no change, which is what Fisher information is."""
    w, rebuild = jax.flatten_util.ravel_pytree(params)
    return jax.hessian(lambda w: trpo.kl(policy, params, rebuild(w), observations))(w)


@pytest.mark.parametrize(("distribution", "outputs"), DISTRIBUTIONS)
def test_both_solvers_agree_with_a_dense_solve(distribution, outputs):
    def solve(params, steps, advantage):
        gradient = jax.grad(lambda p: trpo.surrogate(policy, policy.apply(p, steps.observations), steps, advantage))
        g, seen = gradient(params), steps.observations
        general = cmdp.Custom(policy.apply, distribution)
        found = (
            trpo.by_gram(policy, params, g, seen, 1e-3),
            trpo.by_conjugate_gradient(general, params, g, seen, 1e-3, 500),
        )
        return g, dense_fisher(policy, params, seen), found

    with jax.enable_x64(True):
        policy, params, steps, advantage = gathered(distribution, outputs)
        gradient, fisher, found = jax.jit(solve)(params, steps, advantage)
    damped = np.asarray(fisher) + 1e-3 * np.eye(len(fisher))
    expected = np.linalg.solve(damped, flat(gradient))
    for x, square in found:
        assert float(square) == pytest.approx(expected @ damped @ expected, rel=1e-6)
        np.testing.assert_allclose(flat(x), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("distribution", "outputs"), DISTRIBUTIONS)
def test_gradient_against_finite_differences(distribution, outputs):
    """Of the surrogate, away from the parameters that gathered the steps, and of the mean log-likelihood at them."""
    with jax.enable_x64(True):
        policy, params, steps, advantage = gathered(distribution, outputs)
        elsewhere = jax.tree.map(lambda a: a + 0.1 * jnp.cos(jnp.arange(a.size)).reshape(a.shape), params)

        def surrogate(p):
            return trpo.surrogate(policy, policy.apply(p, steps.observations), steps, advantage)

        jax.test_util.check_grads(surrogate, (elsewhere,), order=1, modes=["rev"], eps=1e-5, rtol=1e-6, atol=1e-8)

        def likelihood(p):
            return jnp.mean(distribution.log_prob(policy.apply(p, steps.observations), steps.actions) * advantage)

        gradients = [flat(jax.grad(f)(params)) for f in (surrogate, likelihood)]
        np.testing.assert_allclose(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("distribution", "outputs"), DISTRIBUTIONS)
def test_probabilities_are_normalised_and_samples_follow_them(distribution, outputs):
    z = jnp.float32(np.random.default_rng(3).normal(size=outputs))
    many = distribution.sample(jnp.broadcast_to(z, (20_000, outputs)), distribution.noise(KEY, (20_000,)))
    if isinstance(distribution, cmdp.Categorical):
        p = np.exp([distribution.log_prob(z, jnp.int32(a)) for a in range(outputs)])
        assert p.sum() == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(np.bincount(many, minlength=outputs) / 20_000, p, atol=0.015)
    else:
        mean, std = z[: distribution.size], np.exp(z[distribution.size :])
        np.testing.assert_allclose(many.mean(0), mean, atol=0.03 * std.max())
        np.testing.assert_allclose(many.std(0), std, rtol=0.03)
        at = -0.5 * ((many[0] - mean) / std) ** 2 - np.log(std * math.sqrt(2 * math.pi))
        assert float(distribution.log_prob(z, many[0])) == pytest.approx(float(at.sum()), rel=1e-4)


@functools.cache
def cartpole_batch(hidden=(16, 16)):
    """The paper's task with a smaller network, and what a client of it gathers."""
    experiment = cmdp.load(hidden=hidden, policy_seed=0)
    measure = jax.jit(lambda params, key: experiment.task.measure(params, {"budget": 30.0}, key, batch_size=None))
    return experiment, measure(experiment.params, KEY)[1]


def probabilities(policy, params, observations):
    """Of the actions, in float64."""
    with jax.enable_x64(True):
        z = np.asarray(policy.apply(*jax.tree.map(np.float64, (params, observations))))
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def fisher_by_hand(policy, params, observations):
    """The mean of J^T (diag(p) - p p^T) J, with J the logits' derivatives."""
    w, rebuild = jax.flatten_util.ravel_pytree(params)
    jacobian = np.float64(jax.jit(jax.jacrev(lambda w: policy.apply(rebuild(w), observations)))(w))
    p = probabilities(policy, params, observations)
    of_outputs = p[:, :, None] * np.eye(2) - p[:, :, None] * p[:, None, :]
    return np.einsum("npa,npq,nqb->ab", jacobian, of_outputs, jacobian, optimize=True) / len(p)


@pytest.mark.parametrize("solver", ["gram", "cg"])
@pytest.mark.parametrize("damping", [1e-3, 1e-5])
def test_predicted_kl_of_a_step_is_its_radius(solver, damping):
    """On states of all environments and times, with the damping counted; the true divergence is that, to its order."""
    radius, (experiment, kept) = 1e-8, cartpole_batch()
    task = cmdp.load(hidden=(16, 16), solver=solver, radius=radius, damping=damping, mix="advantages").task
    seen = kept.steps.observations[::5]
    assert set(np.asarray(kept.steps.times[::5])) >= {0, 5, 10}
    fisher = fisher_by_hand(task.policy, experiment.params, seen)

    @jax.jit
    def step(params, weight):
        return task.direction(params, Direction(1 - weight, weight), {}, kept, KEY, batch_size=None)

    p = probabilities(task.policy, experiment.params, seen)
    for weight in (0.0, 0.4, 1.0):
        down = jax.tree.map(np.float64, step(experiment.params, np.float32(weight)))
        q = probabilities(task.policy, jax.tree.map(np.subtract, experiment.params, down), seen)
        kl, x = (p * np.log(p / q)).sum(1).mean(), flat(down)
        # Solved in float32, with a condition number of the Fisher information over the damping.
        rounding = 10 * np.finfo(np.float32).eps * np.linalg.norm(fisher, 2) / damping
        assert x @ fisher @ x / 2 + damping * x @ x / 2 == pytest.approx(radius, rel=max(1e-3, rounding))
        assert kl == pytest.approx(x @ fisher @ x / 2, rel=0.1)


def test_steps_can_be_mixed_after_their_lengths_are_set():
    experiment, kept = cartpole_batch()

    @functools.partial(jax.jit, static_argnums=0)
    def step(mix, objective, weight):
        task = cmdp.load(hidden=(16, 16), mix=mix).task
        return task.direction(experiment.params, Direction(objective, weight), {}, kept, KEY, batch_size=None)

    reward, cost = (flat(step("advantages", *weights)) for weights in ((1.0, 0.0), (0.0, 1.0)))
    np.testing.assert_allclose(flat(step("steps", 0.7, 0.3)), 0.7 * reward + 0.3 * cost, rtol=1e-3, atol=1e-6)
    assert np.abs(flat(step("advantages", 0.7, 0.3)) - 0.7 * reward - 0.3 * cost).max() > 1e-4


@pytest.mark.parametrize("line_search", [False, True])
def test_line_search_keeps_within_the_radius_where_the_quadratic_form_does_not(line_search):
    experiment, kept = cartpole_batch()
    task = cmdp.load(hidden=(16, 16), radius=0.05, damping=1e-4, line_search=line_search).task

    @jax.jit
    def realised(params):
        down = task.direction(params, Direction(1.0, 0.0), {}, kept, KEY, batch_size=None)
        after = jax.tree.map(jnp.subtract, params, down)
        outputs = task.policy.apply(after, kept.steps.observations)
        gained = trpo.surrogate(task.policy, outputs, kept.steps, kept.advantages[0])
        return trpo.kl(task.policy, params, after, kept.steps.observations), gained

    kl, gained = map(float, realised(experiment.params))
    assert (1e-5 < kl <= 0.05 and gained > 0) if line_search else kl > 0.05


def residuals(kept):
    """What is to go minus a ridge regression of it on the features of Duan et al. (2016), in float64."""
    s, t = np.float64(kept.steps.observations), np.float64(kept.steps.times)[:, None] / 200
    x = np.hstack([s, s**2, t, t**2, t**3, np.ones_like(t)])
    y = np.float64(kept.steps.to_go)
    return y - x @ np.linalg.solve(x.T @ x + 1e-3 * np.eye(x.shape[1]), x.T @ y)


def test_advantages_are_the_residuals_of_a_ridge_regression():
    _, kept = cartpole_batch()
    rest = residuals(kept)
    expected = (rest - rest.mean(0)).T
    np.testing.assert_allclose(kept.advantages, expected, atol=0.02 * expected.std())


@pytest.mark.parametrize("gae", [0.0, 0.9, 0.99])
def test_generalised_advantage_estimation_is_a_plain_loop_s(gae):
    """A_t = sum_k gae^k delta_{t+k}, with delta_t = gain_t + V(s_{t+1}) - V(s_t) and no value after an episode's end.

    After the window's last step, what came of the episode takes the place of its value.
    """
    _, kept = cartpole_batch()
    to_go, times = (np.asarray(a).reshape(5, 200, -1) for a in (kept.steps.to_go, kept.steps.times))
    values = to_go - residuals(kept).reshape(5, 200, 2)
    expected = np.zeros((5, 200, 2))
    for e in range(5):
        for t in range(200):
            discount = 1.0
            for later in range(t, 200):
                goes_on = later < 199 and times[e, later + 1] > 0
                gain = to_go[e, later] - (to_go[e, later + 1] if goes_on else 0)  # with all that is after the window
                delta = gain + (values[e, later + 1] if goes_on else 0) - values[e, later]
                expected[e, t] += discount * delta
                discount *= gae
                if not goes_on:
                    break
    expected = expected.reshape(-1, 2)
    expected = (expected - expected.mean(0)).T
    found = jax.jit(lambda: trpo.advantages(kept.steps, 200, 5, gae))()
    np.testing.assert_allclose(found, expected, atol=0.02 * expected.std())


# The task in the engine


def small(**settings):
    """CartPole with a small batch and network, for what does not need to learn."""
    return cmdp.load(clients=4, hidden=(8,), **{"environments": 2, "steps": 30, "fisher_samples": 20, **settings})


def run(experiment, rounds, **settings):
    algorithm = settings.pop("algorithm", experiment.algorithm)
    task, clients, params, _ = experiment
    return fs.simulate(algorithm, task, clients, params, rounds=rounds, progress=False, **settings)


@functools.cache
def small_run():
    """Every compilation takes seconds, so tests share this run."""
    return run(small(), 3, seeds=2)


def test_history_has_reward_cost_and_the_step_taken():
    experiment, result = small(), small_run()
    history = result.history
    np.testing.assert_array_equal(history["reward"], -history["objective"])
    assert result.bounds == {"cost": 30.0}
    np.testing.assert_allclose(experiment.clients, [25, 25 + 10 / 3, 35 - 10 / 3, 35], rtol=1e-6)
    theirs = experiment.clients[history["participants"][0]].mean(1)
    np.testing.assert_allclose(history["violation"][0], history["estimate"][0] - theirs, rtol=1e-5)
    assert (history["kl"] > 0).all()
    assert (history["kl"] < 0.1).all()
    assert 10 < history["reward_estimate"].min() < 40


def test_a_run_resumes_to_the_same_bits(tmp_path):
    experiment = small()
    algorithm = fs.FedSGM(1.0, participants=3, rule=fs.Soft(0.3), uplink=fs.TopK(0.5), downlink=fs.TopK(0.5))
    whole = run(experiment, 7, algorithm=algorithm, seeds=2)
    run(experiment, 4, algorithm=algorithm, seeds=2, checkpoint=fs.Checkpoint(tmp_path, every=2))
    again = run(experiment, 7, algorithm=algorithm, seeds=2, checkpoint=fs.Checkpoint(tmp_path, every=2, resume=True))
    assert_identical(whole, again)


def test_results_are_saved_and_drawn(tmp_path):
    result = small_run()
    result.save(tmp_path / "run")
    loaded = fs.Result.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.history["reward"], result.history["reward"])
    assert "cost" in loaded.verdict()
    result.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_every_seed_starts_from_a_policy_of_its_own():
    experiment = cmdp.load(hidden=(8,))
    first, second = (flat(experiment.params(seed)) for seed in (0, 1))
    assert np.abs(first - second).max() > 0.1
    for seed, start in ((0, first), (1, second)):
        np.testing.assert_array_equal(flat(cmdp.load(hidden=(8,), policy_seed=seed).params), start)
    last = small_run().last[0]["w"]
    assert np.abs(last[0] - last[1]).max() > 0.1  # three steps of seeds 0 and 1


def test_schedule_sets_the_radius_of_a_round():
    task = cmdp.load(radius=0.5, schedule=cmdp.HarmonicDecay(over=10, least=0.2)).task
    for round, factor in ((0, 1), (10, 1 / 2), (30, 1 / 4), (1000, 0.2)):
        assert float(task.at(jnp.int32(round)).radius) == pytest.approx(0.5 * factor)
    assert cmdp.load(schedule=None).task.at(jnp.int32(7)).radius == cmdp.load(schedule=None).task.radius


def test_parameters_that_are_no_numbers_have_no_value():
    experiment = small()
    params = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), experiment.params(0))
    assert np.isnan(experiment.task.evaluate(params, {"client": 0}, KEY)).all()


def test_local_steps_go_on_from_the_same_trajectories():
    """A second local step is of the surrogate where the first one ended: near the first, but not the same."""
    experiment, kept = cartpole_batch()

    @jax.jit
    def step(params):
        return experiment.task.direction(params, Direction(1.0, 0.0), {}, kept, KEY, batch_size=None)

    first = step(experiment.params)
    second = step(jax.tree.map(jnp.subtract, experiment.params, first))
    first, second = flat(first), flat(second)
    assert 0.01 < np.linalg.norm(second - first) / np.linalg.norm(first) < 1.5


def test_picture_of_a_policy(tmp_path):
    from PIL import Image

    experiment = small(horizon=12)
    cmdp.render(experiment.task, experiment.params(0), tmp_path / "policy.gif")
    with Image.open(tmp_path / "policy.gif") as picture:
        assert 4 <= picture.n_frames <= 6  # every second of up to twelve steps; no pole falls in fewer than eight
    with pytest.raises(fs.SettingError, match=r"must end in \.gif"):
        cmdp.render(experiment.task, experiment.params(0), tmp_path / "policy.png")


# What a user can get wrong


class NoCost(Counter):
    def step(self, key, state, action):
        return (*super().step(key, state, action)[:4], {})


class OldStep(Counter):
    def step(self, key, state, action):
        return super().step(key, state, action)[:4]


class Changing(Counter):
    def step(self, key, state, action):
        _, state, *rest = super().step(key, state, action)
        return jnp.zeros(3), state, *rest


LINEAR = cmdp.MLP((2, 2), cmdp.Categorical())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgets": []}, "CMDP: budgets=.* list of finite numbers, one a client"),
        ({"budgets": "30"}, "CMDP: budgets=.* list of finite numbers, one a client"),
        ({"budgets": [30.0, math.nan]}, "CMDP: budgets=.* list of finite numbers, one a client"),
        ({"horizon": 0}, "CMDP: horizon=0, but it must be a whole number"),
        ({"radius": 0.0}, "CMDP: radius=0.0, but it must be a finite number above 0"),
        ({"damping": 0}, "CMDP: damping=0, but it must be a finite number above 0"),
        ({"solver": "lu"}, "CMDP: solver='lu', but it must be cg or gram"),
        ({"mix": "costs"}, "CMDP: mix='costs', but it must be advantages or steps"),
        ({"gae": 1.1}, "CMDP: gae=1.1, but it must be a finite number 0 or more, at most 1"),
        ({"policy": cmdp.Custom(LINEAR.apply, cmdp.Categorical()), "solver": "gram"}, "is for an MLP"),
        ({"finished": True, "horizon": 21}, "finished=True, but of steps=20 an episode of horizon=21 may not"),
        ({"fisher_samples": 41}, "fisher_samples=41, but a batch has 40 steps"),
        ({"environment": NoCost()}, r"must return the cost of the step as info\['cost'\]"),
        ({"environment": OldStep()}, "must return observation, state, reward, done and info"),
        ({"environment": Changing()}, "of the form that reset does"),
        ({"environment": object()}, "has no method reset"),
        (
            {"policy": cmdp.Custom(lambda params, s: (params[0]["w"] * s).sum(), cmdp.Categorical())},
            "must return one vector",
        ),
    ],
)
def test_settings_are_checked(change, message):
    given = {"environment": Counter(), "policy": LINEAR, "budgets": [1.0], "horizon": 9, "environments": 2, "steps": 20}

    def run():
        task = cmdp.CMDP(**{**given, "fisher_samples": 10, **change})
        fs.simulate(fs.FedSGM(1.0), task, task.clients, LINEAR.init(0), rounds=1, progress=False)

    with pytest.raises(fs.SettingError, match=message):
        run()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"integrator": "rk4"}, "integrator='rk4', but it must be euler or semi-implicit"),
        ({"bands": ((1.0, 0.0),)}, "each must be a pair"),
        ({"bands": (1.0,)}, "each must be a pair"),
        ({"angle": -1.0}, "angle=-1.0, but it must be a finite number 0 or more"),
    ],
)
def test_cartpole_checks_its_settings(settings, message):
    with pytest.raises(fs.SettingError, match=message):
        cmdp.CartPole(**settings)


def test_what_has_no_meaning_for_a_cmdp_is_refused():
    experiment = small()
    with pytest.raises(fs.SettingError, match="those of a CMDP are its budgets"):
        run(experiment._replace(clients=np.ones(4)), 1)
    with pytest.raises(fs.SettingError, match="leave test out"):
        run(experiment, 1, test={"x": np.ones(3)})
    for name in ("batch_size", "constraint_batch_size"):
        with pytest.raises(fs.SettingError, match=r"set CMDP\(environments=..., steps=...\)"):
            run(experiment, 1, algorithm=fs.FedSGM(1.0, **{name: 5}))


# It learns


def test_a_short_run_learns():
    """With the ceiling, which needs few rounds: from 21 steps, nearly all forbidden, to long lives near the budget.

    Trajectories are chaotic, down to the machine code: at 60 rounds a seed may still be far above it, at 100 none was.
    """
    algorithm = fs.FedSGM(1.0, participants=7, rule=fs.Soft(0.3, ceiling=0.5))
    experiment = cmdp.load(hidden=(32, 32), mix="advantages")
    history = run(experiment, 100, algorithm=algorithm, seeds=2, evaluate_every=0).history
    reward, cost = history["reward_estimate"], history["estimate"]
    assert ((reward[:, 0] > 15) & (reward[:, 0] < 28)).all()
    assert (reward[:, -10:].mean(axis=1) > 3 * reward[:, 0]).all()
    assert (cost[:, -10:].mean(axis=1) < 45).all()  # budget 30; on the way it is up to 100
    assert (cost < 120).all()
    radius = experiment.task.radius * experiment.task.schedule(np.arange(100))
    assert (history["kl"] <= 2 * radius).mean() >= 0.95  # of the mean of all participants' steps
