"""Trust-region policy steps: advantages, the natural gradient, and a length set by the KL divergence.

A step moves along x = (F + damping I)^-1 g, where g is the surrogate's gradient and F the Fisher information of the
policy on a sample of the states, and is as long as makes x^T (F + damping I) x / 2 the radius: the KL divergence on
that sample to second order, and the damping's share, which stands for the states that x was not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedsgm.tasks.cmdp.environment import Steps
from fedsgm.tasks.cmdp.policies import MLP, Policy

_RIDGE = 1e-3
_BACKTRACK, _TRIES = 0.7, 20
_TINY = 1e-30
_RESIDUAL = 1e-10  # of what CG starts with: the number of iterations is what ends it


def advantages(steps: Steps, horizon: int, environments: int, gae: Any) -> jax.Array:
    """Reward's and cost's advantages, each of mean zero: [2, steps].

    The critic is a ridge regression of what is to go on [s, s^2, t, t^2, t^3, 1], the client's own and new each round,
    so that none travels. With residuals e_t of that regression, zero after an episode's end, generalised advantage
    estimation is A_t = e_t - e_{t+1} + gae A_{t+1}: the residual itself at ``gae`` 1. Advantages are not divided by
    their spread: their size is what tells how much reward and cost weigh against each other.
    """
    s = steps.observations.reshape(len(steps.times), -1)
    t = (steps.times / horizon)[:, None]
    features = jnp.concatenate([s, s * s, t, t**2, t**3, jnp.ones_like(t)], 1)
    normal = features.T @ features + _RIDGE * jnp.eye(features.shape[1])
    weights = jax.scipy.linalg.solve(normal, features.T @ steps.to_go, assume_a="pos")
    rest = steps.to_go - features @ weights
    by_time = jnp.swapaxes(rest.reshape(environments, -1, 2), 0, 1)
    begins = steps.times.reshape(environments, -1).T == 0
    ends = jnp.concatenate([begins[1:], jnp.ones((1, environments), bool)])

    def add(after: tuple[jax.Array, jax.Array], given: Any) -> tuple[Any, jax.Array]:
        rest, end = given
        advantage = rest - jnp.where(end[:, None], 0, after[0] - gae * after[1])
        return (rest, advantage), advantage

    nothing = jnp.zeros((environments, 2))
    _, found = jax.lax.scan(add, (nothing, nothing), (by_time, ends), reverse=True)
    found = jnp.swapaxes(found, 0, 1).reshape(-1, 2)
    return (found - jnp.mean(found, 0)).T


def surrogate(policy: Policy, outputs: jax.Array, steps: Steps, advantage: jax.Array) -> jax.Array:
    """The mean of ratio times advantage; where the ratio is one, its gradient is the policy gradient."""
    log_prob = policy.distribution.log_prob
    ratio = jnp.exp(log_prob(outputs, steps.actions) - log_prob(steps.outputs, steps.actions))
    return jnp.mean(ratio * advantage)


def kl(policy: Policy, before: Any, after: Any, observations: jax.Array) -> jax.Array:
    """The mean KL divergence from the policy before to the one after."""
    outputs = [_outputs(policy, params, observations) for params in (before, after)]
    return jnp.mean(policy.distribution.kl(*outputs))


def by_conjugate_gradient(
    policy: Policy, params: Any, gradient: Any, observations: jax.Array, damping: jax.Array, iterations: int
) -> tuple[Any, jax.Array]:
    """x and x^T (F + damping I) x for any policy, from products with its Jacobian."""
    outputs, forward = jax.linearize(lambda params: _outputs(policy, params, observations), params)
    backward = jax.linear_transpose(forward, params)
    roots = policy.distribution.fisher_root(outputs)

    def along(x: Any) -> jax.Array:
        return jnp.einsum("nor,no->nr", roots, forward(x)) / math.sqrt(len(observations))

    def damped(x: Any) -> Any:
        (product,) = backward(jnp.einsum("nor,nr->no", roots, along(x)) / math.sqrt(len(observations)))
        return jax.tree.map(lambda a, b: a + damping * b, product, x)

    x, _ = jax.scipy.sparse.linalg.cg(damped, gradient, maxiter=iterations, tol=_RESIDUAL)
    return x, jnp.sum(along(x) ** 2) + damping * sum(jnp.vdot(a, a) for a in jax.tree.leaves(x))


def by_gram(
    policy: MLP, params: Any, gradient: Any, observations: jax.Array, damping: jax.Array
) -> tuple[Any, jax.Array]:
    """x and x^T (F + damping I) x by an exact solve as large as the sample.

    With F = J^T J / M and (J J^T + damping M I) y = J g, x = (g - J^T y) / damping. Entries of J J^T are sums over
    layers of products of two inner products, of inputs and of derivatives: J is never formed.
    """
    factors = policy.factors(params, observations, policy.distribution.fisher_root)
    samples, rank = factors[0][1].shape[:2]

    def inner(a: jax.Array) -> jax.Array:
        return a @ a.T

    gram = sum(
        jnp.repeat(jnp.repeat(inner(inputs) + 1, rank, 0), rank, 1) * inner(slopes.reshape(samples * rank, -1))
        for inputs, slopes in factors
    )
    along: Any = sum(
        jnp.einsum("nrw,nw->nr", slopes, inputs @ layer["w"] + layer["b"])
        for (inputs, slopes), layer in zip(factors, gradient, strict=True)
    )
    system = gram + damping * samples * jnp.eye(samples * rank)
    y = jax.scipy.linalg.solve(system, along.reshape(-1), assume_a="pos").reshape(samples, rank)

    def back(inputs: jax.Array, slopes: jax.Array, layer: dict[str, jax.Array]) -> dict[str, jax.Array]:
        each = jnp.einsum("nrw,nr->nw", slopes, y)
        return {"b": (layer["b"] - jnp.sum(each, 0)) / damping, "w": (layer["w"] - inputs.T @ each) / damping}

    x = [back(*factor, layer) for factor, layer in zip(factors, gradient, strict=True)]
    square = samples * jnp.sum(y**2) + damping * sum(jnp.vdot(a, a) for a in jax.tree.leaves(x))
    return x, square


def trust_region_step(
    policy: Policy,
    params: Any,
    steps: Steps,
    advantage: jax.Array,
    radius: jax.Array,
    solve: Callable[[Any], tuple[Any, jax.Array]],
    *,
    line_search: bool,
) -> Any:
    """The change of the parameters that raises the surrogate; ``solve(gradient)`` gives x and its square."""
    outputs, backward = jax.vjp(lambda params: _outputs(policy, params, steps.observations), params)
    value, slope = jax.value_and_grad(lambda outputs: surrogate(policy, outputs, steps, advantage))(outputs)
    x, square = solve(backward(slope)[0])
    length = jnp.sqrt(2 * radius / jnp.maximum(square, _TINY))
    if line_search:

        def moved(share: jax.Array) -> Any:
            return jax.tree.map(lambda a, b: a + share * length * b, params, x)

        def too_long(share: jax.Array) -> jax.Array:
            after = _outputs(policy, moved(share), steps.observations)
            within = jnp.mean(policy.distribution.kl(outputs, after)) <= radius
            return ~(within & (surrogate(policy, after, steps, advantage) > value))

        share = jax.lax.while_loop(lambda s: (s > 0) & too_long(s), _shorter, jnp.float32(1))
        length *= share
    return jax.tree.map(lambda a: length * a, x)


def _shorter(share: jax.Array) -> jax.Array:
    """The next share of a step to try; none at all after the last."""
    return jnp.where(share > _BACKTRACK**_TRIES, _BACKTRACK * share, 0)


def _outputs(policy: Policy, params: Any, observations: jax.Array) -> jax.Array:
    return jax.vmap(policy.apply, (None, 0))(params, observations)
