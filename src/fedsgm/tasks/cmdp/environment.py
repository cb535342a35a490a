"""What an environment must offer, and rollouts in it: many at once, and every return that of a whole episode."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import struct
from fedsgm.tasks.cmdp.policies import Policy


class Environment(Protocol):
    """An environment in JAX, of one agent: observations are vectors, ``info["cost"]`` is the cost of the step.

    ``step`` need not start again after ``done`` nor count steps: the rollout resets and ends episodes at the horizon.
    """

    def reset(self, key: jax.Array) -> tuple[jax.Array, Any]:
        """The first observation and state of an episode."""
        ...

    def step(
        self, key: jax.Array, state: Any, action: jax.Array
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Observation, state, reward, whether the episode is over, and ``{"cost": ...}``."""
        ...


@struct
class Steps:
    """What one client gathered: arrays over its steps, environment by environment."""

    observations: jax.Array
    actions: jax.Array
    outputs: jax.Array
    times: jax.Array
    to_go: jax.Array
    """Reward and cost from this step to the end of its episode, [steps, 2]."""


class _Now(NamedTuple):
    """Where every environment stands."""

    observations: jax.Array
    states: Any
    times: jax.Array


def check(environment: Environment, policy: Policy, params: Any) -> None:
    """Environment, policy and parameters fit each other, or one sentence says what does not."""
    key = jax.random.key(0)
    for name in ("reset", "step"):
        if not callable(getattr(environment, name, None)):
            raise SettingError(f"CMDP: the environment {environment!r} has no method {name}")
    start = jax.eval_shape(environment.reset, key)
    if not isinstance(start, tuple) or len(start) != 2:
        raise SettingError("CMDP: the environment's reset must return observation and state")
    observation, state = start
    outputs = jax.eval_shape(policy.apply, params, observation)
    if getattr(outputs, "ndim", None) != 1:
        raise SettingError("CMDP: the policy's apply(params, observation) must return one vector")
    noise = jax.eval_shape(lambda key: policy.distribution.noise(key, ()), key)
    action = jax.eval_shape(policy.distribution.sample, outputs, noise)
    answer = jax.eval_shape(environment.step, key, state, action)
    if not isinstance(answer, tuple) or len(answer) != 5:
        raise SettingError("CMDP: the environment's step must return observation, state, reward, done and info")
    seen, after, reward, done, info = answer
    if not isinstance(info, dict) or "cost" not in info:
        raise SettingError("CMDP: the environment's step must return the cost of the step as info['cost']")
    for name, value in (("reward", reward), ("done", done), ("info['cost']", info["cost"])):
        if value.shape != ():
            raise SettingError(f"CMDP: the environment's {name} has shape {value.shape}, but it must be one number")
    forms = [[(a.shape, a.dtype) for a in jax.tree.leaves(tree)] for tree in ((observation, state), (seen, after))]
    if forms[0] != forms[1]:
        raise SettingError("CMDP: the environment's step must return observation and state of the form that reset does")


def _begin(start: tuple[jax.Array, Any]) -> _Now:
    observations, states = start
    return _Now(observations, states, jnp.zeros(len(observations), jnp.int32))


def rollout(
    environment: Environment,
    policy: Policy,
    params: Any,
    key: jax.Array,
    *,
    environments: int,
    steps: int,
    horizon: int,
    finished: bool = False,
) -> tuple[Steps, jax.Array]:
    """``steps`` steps of each of ``environments``, and the mean reward and cost of the episodes begun in them.

    An episode that is over is followed by a new one. Those still running at the end are run to their end, for what is
    to go from their steps. Their returns count as well, unless only those that ``finished`` in time shall: a mean that
    favours short episodes.
    """
    reset_key, noise_key, step_key, finish_key = jax.random.split(key, 4)
    starts = jax.vmap(jax.vmap(environment.reset))(jax.random.split(reset_key, (steps + 1, environments)))
    noise = policy.distribution.noise(noise_key, (steps, environments))
    keys = jax.random.split(step_key, (steps, environments))

    def step(now: _Now, given: Any) -> tuple[_Now, Any]:
        noise, keys, start = given
        after, actions, outputs, gains, done = _step(environment, policy, params, now, noise, keys, horizon)
        fresh = _begin(start)
        following = jax.tree.map(lambda a, b: jnp.where(_over(done, a), b, a), after, fresh)
        return following, (now.observations, actions, outputs, now.times, gains, done)

    first = _begin(jax.tree.map(lambda a: a[-1], starts))
    last, (observations, actions, outputs, times, gains, done) = jax.lax.scan(
        step, first, (noise, keys, jax.tree.map(lambda a: a[:-1], starts))
    )
    rest = finish(environment, policy, params, last, last.times > 0, finish_key, horizon)

    def add(to_go: jax.Array, given: Any) -> tuple[jax.Array, jax.Array]:
        gains, done = given
        to_go = gains + jnp.where(done[:, None], 0, to_go)
        return to_go, to_go

    _, to_go = jax.lax.scan(add, rest, (gains, done), reverse=True)
    begun = (times == 0)[..., None]
    if finished:
        latest = jnp.cumsum(begun[::-1], 0)[::-1] == 1
        begun &= ~(latest & (last.times > 0)[:, None])
    returns = jnp.sum(jnp.where(begun, to_go, 0), (0, 1)) / jnp.sum(begun)
    gathered = Steps(observations, actions, outputs, times, to_go)
    return jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1).reshape(-1, *a.shape[2:]), gathered), returns


def episodes(
    environment: Environment, policy: Policy, params: Any, key: jax.Array, *, count: int, horizon: int
) -> jax.Array:
    """The rewards and costs of ``count`` whole episodes, [count, 2]."""
    reset_key, finish_key = jax.random.split(key)
    start = jax.vmap(environment.reset)(jax.random.split(reset_key, count))
    return finish(environment, policy, params, _begin(start), jnp.ones(count, bool), finish_key, horizon)


def finish(
    environment: Environment, policy: Policy, params: Any, now: _Now, live: jax.Array, key: jax.Array, horizon: int
) -> jax.Array:
    """What the live episodes still gain to their end: reward and cost of each environment, [environments, 2]."""
    noise_key, step_key = jax.random.split(key)
    noise = policy.distribution.noise(noise_key, (horizon, len(live)))
    keys = jax.random.split(step_key, (horizon, len(live)))

    def step(carry: Any) -> Any:
        i, now, live, total = carry
        now, _, _, gains, done = _step(environment, policy, params, now, noise[i], keys[i], horizon)
        return i + 1, now, live & ~done, total + jnp.where(live[:, None], gains, 0)

    # The horizon ends every episode; the count of steps is there so that a state that is not a number cannot run on.
    start = (jnp.int32(0), now, live, jnp.zeros((len(live), 2)))
    return jax.lax.while_loop(lambda carry: (carry[0] < horizon) & jnp.any(carry[2]), step, start)[3]


def _step(
    environment: Environment, policy: Policy, params: Any, now: _Now, noise: Any, keys: jax.Array, horizon: int
) -> tuple[_Now, jax.Array, jax.Array, jax.Array, jax.Array]:
    """One step of every environment: where they stand, actions, the policy's outputs, [reward, cost], ends."""
    outputs = jax.vmap(policy.apply, (None, 0))(params, now.observations)
    actions = policy.distribution.sample(outputs, noise)
    observations, states, reward, done, info = jax.vmap(environment.step)(keys, now.states, actions)
    times = now.times + 1
    gains = jnp.stack([reward, info["cost"]], -1).astype(jnp.float32)
    return _Now(observations, states, times), actions, outputs, gains, done | (times >= horizon)


def _over(done: jax.Array, like: jax.Array) -> jax.Array:
    return done.reshape(done.shape + (1,) * (like.ndim - 1))
