"""How fast is a round of the CartPole experiment? Against Gymnasium with PyTorch, and against its own floor.

    make bench
    python benchmarks/cartpole.py [--quick]

All contenders do the paper's round without compression: 7 clients, each with 5 environments of 200 steps, running
episodes finished, a ridge baseline, the natural gradient on 200 states by the Gram form, and a step of a given KL
divergence. They take turns, so that what else the machine does falls on all of them; a ratio is taken within a turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import torch

import fedsgm as fs
import turns
from fedsgm.tasks import cmdp

CLIENTS, ENVIRONMENTS, STEPS, HORIZON, FISHER, DAMPING, RIDGE, RADIUS, BETA = 7, 5, 200, 200, 200, 1e-3, 1e-3, 1e-3, 0.3
BUDGETS = np.linspace(25, 35, 10)[:CLIENTS]
TARGET, FLOOR_TARGET = 10, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    repetitions = 3 if parser.parse_args().quick else 7
    torch.set_num_threads(1)
    print(turns.machine("torch", "gymnasium") + ", PyTorch on one thread")
    clocks = {
        "fedsgm": turns.clock(simulate, 60),
        "clients apart": turns.clock(torch_trpo("sync", together=1), 2),
        "sync vector": turns.clock(torch_trpo("sync", together=CLIENTS), 2),
        "NumPy vector": turns.clock(torch_trpo("vector_entry_point", together=CLIENTS), 4),
        "floor": turns.clock(floor(), 60),
    }
    taken = turns.take(clocks, repetitions)
    print(f"\none round, {CLIENTS} clients, median of {repetitions}")
    rivals = dict.fromkeys(("clients apart", "sync vector", "NumPy vector"), turns.at_least(TARGET))
    turns.table(taken, "ms", rivals | {"floor": turns.floor_within(FLOOR_TARGET)})


def simulate(rounds: int) -> fs.Result:
    """The experiment as a user runs it, true values at the end only; all contenders start from the same policy."""
    same = {"radius": RADIUS, "schedule": None, "damping": DAMPING, "mix": "advantages", "finished": False}
    task, _, params, _ = cmdp.load(clients=CLIENTS, policy_seed=0, **same)
    algorithm = fs.FedSGM(1.0, rule=fs.Soft(BETA))
    return fs.simulate(algorithm, task, task.clients, params, rounds=rounds, evaluate_every=0, progress=False)


def torch_trpo(mode: str, together: int) -> Callable[[int], None]:
    """``together`` clients have their environments in one vector and every product done at once.

    One is a client by itself, as in a federation and as one writes it first; all of them are the best that can be done
    in PyTorch. ``mode`` is Gymnasium's: "sync" steps any environments one by one, "vector_entry_point" is its CartPole
    written anew for arrays.
    """
    total = together * ENVIRONMENTS
    environments = gymnasium.make_vec("CartPole-v1", total, vectorization_mode=mode, max_episode_steps=HORIZON)
    start = cmdp.load(policy_seed=0).params

    @torch.no_grad()
    def run(rounds: int) -> None:
        layers = [(torch.tensor(layer["w"]), torch.tensor(layer["b"])) for layer in start]
        for t in range(rounds):
            groups = [gather(environments, layers, together, t + 1000 * i) for i in range(CLIENTS // together)]
            excess = np.mean(np.concatenate([costs for _, costs in groups]) - BUDGETS)
            share = float(np.clip(1 + BETA * excess, 0, 1))
            steps = [step(layers, *batch, share) for batch, _ in groups]
            layers = [
                (w + sum(s[i][0] for s in steps) / len(steps), b + sum(s[i][1] for s in steps) / len(steps))
                for i, (w, b) in enumerate(layers)
            ]

    return run


Layers = list[tuple[torch.Tensor, torch.Tensor]]


def forward(layers: Layers, x: torch.Tensor) -> list[torch.Tensor]:
    inputs = [x]
    for w, b in layers[:-1]:
        inputs.append(torch.tanh(inputs[-1] @ w + b))
    return [*inputs, inputs[-1] @ layers[-1][0] + layers[-1][1]]


def gather(
    environments: gymnasium.vector.VectorEnv, layers: Layers, clients: int, seed: int
) -> tuple[tuple, np.ndarray]:
    """A batch of every client, [clients, steps, ...], and every client's mean cost of an episode."""
    rng = np.random.default_rng(seed)
    total = clients * ENVIRONMENTS
    observations, _ = environments.reset(seed=seed)
    rows, running, age = [], np.ones(total, bool), np.zeros(total)
    while len(rows) < STEPS or running.any():
        logits = forward(layers, torch.from_numpy(observations))[-1].numpy()
        actions = (rng.random(total) < 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))).astype(np.int64)
        reached, reward, fell, late, _ = environments.step(actions)
        x, angle = reached[:, 0], np.abs(reached[:, 2])
        bands = np.any([(low <= x) & (x <= high) for low, high in cmdp.CartPole().bands], axis=0)
        cost = (bands | (angle > np.pi / 30)) * reward  # the step that only resets has no reward, and no cost
        over = fell | late
        rows.append((observations, actions, reward, cost, over, age.copy()))
        age = np.where(reward > 0, age + 1, 0) * ~over
        running = ~over if len(rows) <= STEPS else running & ~over
        observations = reached
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    to_go, rest = np.zeros((len(rows), total, 2)), np.zeros((total, 2))
    for t in range(len(rows) - 1, -1, -1):
        rest = np.stack([columns[2][t], columns[3][t]], 1) + rest * ~columns[4][t][:, None]
        to_go[t] = rest
    begun = (columns[5] == 0) & (columns[2] > 0)
    begun[STEPS:] = False

    def by_client(a: np.ndarray) -> torch.Tensor:
        apart = a[:STEPS].reshape(STEPS, clients, ENVIRONMENTS, *a.shape[2:])
        return torch.from_numpy(np.moveaxis(apart, 0, 2).reshape(clients, STEPS * ENVIRONMENTS, *a.shape[2:]))

    costs = [to_go[begun[:, j], j, 1] for j in range(total)]
    means = [np.concatenate(costs[c * ENVIRONMENTS : (c + 1) * ENVIRONMENTS]).mean() for c in range(clients)]
    batch = tuple(map(by_client, (columns[0], columns[1], to_go.astype(np.float32), columns[5].astype(np.float32))))
    return batch, np.array(means)


def step(
    layers: Layers, s: torch.Tensor, actions: torch.Tensor, to_go: torch.Tensor, times: torch.Tensor, share: float
) -> Layers:
    """The mean of the clients' trust-region steps."""
    n = s.shape[1]
    t = times[..., None] / HORIZON
    features = torch.cat([s, s * s, t, t**2, t**3, torch.ones_like(t)], -1)
    normal = features.mT @ features + RIDGE * torch.eye(features.shape[-1])
    rest = to_go - features @ torch.linalg.solve(normal, features.mT @ to_go)
    rest -= rest.mean(1, keepdim=True)
    advantage = (1 - share) * rest[..., 0] - share * rest[..., 1]

    *inputs, logits = forward(layers, s)
    p = torch.softmax(logits, -1)
    score = torch.nn.functional.one_hot(actions, 2) - p
    gradient = products(inputs, slopes(layers, inputs, score * advantage[..., None] / n))

    spread = n // FISHER
    some = [a[:, ::spread] for a in inputs]
    root = torch.sqrt(p.prod(-1, keepdim=True)) * torch.tensor([-1.0, 1.0])
    deltas = slopes(layers, some, root[:, ::spread])
    pairs = list(zip(some, deltas, strict=True))
    gram = sum((a @ a.mT + 1) * (d @ d.mT) for a, d in pairs)
    along = sum(((a @ w + b[:, None]) * d).sum(-1) for (a, d), (w, b) in zip(pairs, gradient, strict=True))
    factor = torch.linalg.cholesky(gram + DAMPING * FISHER * torch.eye(FISHER))
    y = torch.cholesky_solve(along[..., None], factor)
    back = products(some, [d * y for d in deltas])
    x = [((w - dw) / DAMPING, (b - db) / DAMPING) for (w, b), (dw, db) in zip(gradient, back, strict=True)]

    norm = sum((w**2).sum((-2, -1)) + (b**2).sum(-1) for w, b in x)
    length = torch.sqrt(2 * RADIUS / (FISHER * (y[..., 0] ** 2).sum(-1) + DAMPING * norm).clamp_min(1e-30))
    return [((length[:, None, None] * w).mean(0), (length[:, None] * b).mean(0)) for w, b in x]


def slopes(layers: Layers, inputs: list[torch.Tensor], last: torch.Tensor) -> list[torch.Tensor]:
    found = [last]
    for (w, _), a in zip(layers[:0:-1], inputs[:0:-1], strict=True):
        found.append((found[-1] @ w.T) * (1 - a**2))
    return found[::-1]


def products(inputs: list[torch.Tensor], slopes: list[torch.Tensor]) -> Layers:
    return [(a.mT @ d, d.sum(1)) for a, d in zip(inputs, slopes, strict=True)]


def floor() -> Callable[[int], object]:
    """Stepping the environments with the policy, then only the products and the solve of the clients' steps."""
    layers = [jnp.asarray(layer["w"]) for layer in cmdp.load(policy_seed=0).params]
    environment, total = cmdp.CartPole(), CLIENTS * ENVIRONMENTS

    def rollout(layers: list[jax.Array], state: jax.Array) -> jax.Array:
        def one(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            w1, w2, w3 = layers
            logits = jnp.tanh(jnp.tanh(state @ w1) @ w2) @ w3
            after = environment.move(state, logits[:, 1] > logits[:, 0])
            return jnp.clip(after, -1, 1), state

        return jax.lax.scan(one, state, None, STEPS)[1]

    def update(layers: list[jax.Array], s: jax.Array) -> jax.Array:
        w1, w2, w3 = layers
        a1 = s @ w1
        a2 = a1 @ w2
        z = a2 @ w3
        d2 = z @ w3.T
        g1, g2, g3 = s.T @ (d2 @ w2.T), a1.T @ d2, a2.T @ z
        s, b1, b2 = (a[:FISHER] for a in (s, a1, a2))
        e2 = (b2 @ w3) @ w3.T
        e1 = e2 @ w2.T
        gram = b2 @ b2.T + (b1 @ b1.T) * (e2 @ e2.T) + (s @ s.T) * (e1 @ e1.T)
        along = jnp.sum((b1 @ g2) * e2 + (s @ g1) * e1, -1) + jnp.sum(b2 @ g3, -1)
        y = jax.scipy.linalg.solve(gram + 10 * jnp.diag(jnp.diag(gram)) + jnp.eye(FISHER), along, assume_a="pos")
        x1, x2, x3 = g1 - s.T @ (e1 * y[:, None]), g2 - b1.T @ (e2 * y[:, None]), g3 - (b2.T @ y)[:, None]
        return (jnp.sum(x1) + jnp.sum(x2) + jnp.sum(x3)) / 1e9

    @jax.jit
    def run(layers: list[jax.Array], rounds: int) -> jax.Array:
        def round(_: int, moved: jax.Array) -> jax.Array:
            states = rollout(layers, jnp.full((total, 4), 0.01) + moved)
            apart = states.reshape(STEPS, CLIENTS, ENVIRONMENTS, 4).swapaxes(0, 1).reshape(CLIENTS, -1, 4)
            return jnp.clip(jnp.mean(jax.lax.map(lambda s: update(layers, s), apart)), -1e-3, 1e-3)

        return jax.lax.fori_loop(0, rounds, round, jnp.float32(0))

    return lambda rounds: run(layers, rounds).block_until_ready()


if __name__ == "__main__":
    main()
