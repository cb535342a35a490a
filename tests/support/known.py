"""Problems with a known optimum, in closed form or from SciPy."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
import scipy.optimize

import fedsgm as fs


def gamma(local_steps, q, q0, *, clients=1, participants=1):
    """Gamma of Theorem 1 (full participation) and of its partial form, with the compression terms."""
    value = 2 * local_steps**2
    ratio = clients / participants
    if participants < clients:
        if min(q, q0) < 1:
            value += 16 * local_steps * ratio * math.sqrt(10 * (1 - q) * (1 - q0)) / (q0 * q**2)
            value += 8 * local_steps * math.sqrt(10 * (1 - q0)) / (q0 * q) + 20 * local_steps / q**2
            value += ratio * 4 * local_steps * math.sqrt(10 * (1 - q)) / q**2
    else:
        value += 2 * local_steps * math.sqrt(1 - q) / q + 4 * local_steps * math.sqrt(10 * (1 - q0)) / (q0 * q)
    return value


@dataclasses.dataclass(frozen=True)
class Known:
    """A problem with its optimum and its constants."""

    problem: fs.Problem
    clients: fs.Clients
    start: np.ndarray
    optimum: np.ndarray
    value: float
    bound: float
    lipschitz: float  # G
    radius: float  # of X, a ball around zero
    deviation: float  # sigma: half the largest difference of two clients' constraints over X
    objective: object
    constraint: object


@functools.cache
def quadratic():
    """f_j = |w - a_j|^2 / 2, g_j = <b_j, w>: the optimum is a - multiplier * b, in closed form."""
    rng = np.random.default_rng(0)
    n, d = 10, 8
    direction = rng.normal(size=d)
    direction /= np.linalg.norm(direction)
    a = 0.8 * direction + 0.05 * rng.normal(size=(n, d))
    b = direction + 0.004 * rng.normal(size=(n, d))
    bound = 0.2
    mean_a, mean_b = a.mean(axis=0), b.mean(axis=0)
    multiplier = (mean_b @ mean_a - bound) / (mean_b @ mean_b)
    assert multiplier > 0.3, "the constraint must be active"
    optimum = mean_a - multiplier * mean_b
    radius = 1.0
    assert np.linalg.norm(optimum) < radius
    spread = max(np.linalg.norm(x - y) for x in b for y in b)
    return Known(
        problem=fs.Problem(
            objective=lambda w, example: 0.5 * jnp.sum((w - example["a"]) ** 2),
            constraints=[fs.Mean(lambda w, example: example["b"] @ w, name="g") <= bound],
        ),
        clients=fs.Clients.from_list(
            [{"a": a[j : j + 1].astype(np.float32), "b": b[j : j + 1].astype(np.float32)} for j in range(n)]
        ),
        start=radius * direction,
        optimum=optimum,
        value=0.5 * np.mean(np.sum((optimum - a) ** 2, axis=1)),
        bound=bound,
        # On X, and on the little that local steps leave it by, no gradient is longer than this.
        lipschitz=max(1.05 * radius + np.linalg.norm(a, axis=1).max(), np.linalg.norm(b, axis=1).max()),
        radius=radius,
        deviation=spread * radius / 2,
        objective=lambda w: 0.5 * np.mean(np.sum((w - a) ** 2, axis=1)),
        constraint=lambda w: mean_b @ w,
    )


def quadratic_from_inside():
    """The same from a start within the bound, where only steps on the objective lead to the optimum."""
    known = quadratic()
    inside = dataclasses.replace(known, start=-known.start)
    assert inside.constraint(inside.start) < inside.bound
    return inside


@functools.cache
def neyman_pearson():
    """Logistic loss of two overlapping classes over a ball; the optimum comes from SciPy.

    Clients hold different majority examples and the same minority examples, so sigma is 0.
    """
    rng = np.random.default_rng(3)
    n, d, each = 10, 4, 12
    positives = rng.normal(size=(8, d)) + 0.7
    negatives = rng.normal(size=(n, each, d)) - 0.7 + 0.3 * rng.normal(size=(n, 1, d))
    positives, negatives = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (positives, negatives))
    flat = negatives.reshape(-1, d)
    radius, bound = 3.0, 0.25

    def objective(w):
        return np.mean(np.logaddexp(0, flat @ w))

    def constraint(w):
        return np.mean(np.logaddexp(0, -positives @ w))

    limits = [
        {"type": "ineq", "fun": lambda w: bound - constraint(w)},
        {"type": "ineq", "fun": lambda w: radius**2 - w @ w},
    ]
    solved = scipy.optimize.minimize(
        objective, np.zeros(d), method="SLSQP", constraints=limits, options={"ftol": 1e-12, "maxiter": 500}
    )
    assert solved.success
    assert abs(constraint(solved.x) - bound) < 1e-6, "the constraint must be active"

    def loss(w, example):
        z = example["x"] @ w
        return jnp.logaddexp(0.0, z) - example["y"] * z

    y = np.r_[np.zeros(each), np.ones(len(positives))].astype(np.float32)
    start = np.full(d, -radius / math.sqrt(d))
    return Known(
        problem=fs.Problem(
            objective=fs.Mean(loss, where=lambda example: example["y"] == 0),
            constraints=[fs.Mean(loss, where=lambda example: example["y"] == 1, name="g") <= bound],
        ),
        clients=fs.Clients.from_list(
            [{"x": np.concatenate([rows, positives]).astype(np.float32), "y": y} for rows in negatives]
        ),
        start=start,
        optimum=solved.x,
        value=solved.fun,
        bound=bound,
        lipschitz=1.0,  # a logistic loss is |x|-Lipschitz and every |x| is 1
        radius=radius,
        deviation=0.0,
        objective=objective,
        constraint=constraint,
    )


def multiplier_of(known, h=1e-6):
    """From stationarity, grad f + multiplier * grad g + nu * w = 0 with nu = 0 inside X, by central differences."""

    def gradient(function):
        steps = h * np.eye(known.optimum.size)
        return np.array([(function(known.optimum + s) - function(known.optimum - s)) / (2 * h) for s in steps])

    columns = [gradient(known.constraint)]
    if np.linalg.norm(known.optimum) > known.radius - 1e-6:
        columns.append(known.optimum)
    solution, *_ = np.linalg.lstsq(np.stack(columns, axis=1), -gradient(known.objective))
    return solution[0]
