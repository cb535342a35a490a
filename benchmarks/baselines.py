"""The paper's Neyman-Pearson run without fedsgm: the loops a person would write, and the arithmetic alone.

The loops are here to be beaten, so they are written with care: each client's data is prepared once, a quantity is a
weighted sum, and the participants are drawn beforehand. What they cost is the cost of a loop over clients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F

LOCAL_STEPS, STEP, BOUND, BETA, KEEP = 5, 1.0, 0.05, 40.0, 3  # Top-K 0.1 of 31 parameters keeps 3

Client = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""x with a column of ones, y, and the weights that make sums over the examples the objective and the constraint."""


def constraint_weight(rule: str, estimate: float) -> float:
    """What share of the local steps goes to the constraint."""
    if rule == "hard":
        return float(estimate > BOUND)
    return min(max(1 + BETA * (estimate - BOUND), 0.0), 1.0)


def numpy_loop(clients: Sequence[Client], participants: np.ndarray, rule: str) -> np.ndarray:
    """A loop over clients in NumPy, with the logistic gradient in closed form: [round, objective and constraint]."""
    n, d = len(clients), clients[0][0].shape[1]
    w, model, memory = np.zeros(d, np.float32), np.zeros(d, np.float32), np.zeros((n, d), np.float32)
    transposed = [np.ascontiguousarray(x.T) for x, *_ in clients]
    values = np.zeros((len(participants), 2), np.float32)

    def losses(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        z = x @ w
        return np.logaddexp(0, z) - y * z

    def largest(v: np.ndarray) -> np.ndarray:
        return np.argpartition(np.abs(v), d - KEEP)[d - KEEP :]

    for t, chosen in enumerate(participants.tolist()):
        estimate = sum(clients[j][3] @ losses(*clients[j][:2]) for j in chosen) / len(chosen)
        share = np.float32(constraint_weight(rule, estimate))
        mean = np.zeros(d, np.float32)
        for j in chosen:
            x, y, objective, constraint = clients[j]
            weights = (1 - share) * objective + share * constraint
            local = w.copy()
            for _ in range(LOCAL_STEPS):
                local -= STEP * (transposed[j] @ (weights * (1 / (1 + np.exp(-(x @ local))) - y)))
            waiting = memory[j]
            waiting += (w - local) / STEP
            kept = largest(waiting)
            mean[kept] += waiting[kept] / len(chosen)
            waiting[kept] = 0
        model -= STEP * mean
        difference = model - w
        kept = largest(difference)
        w[kept] += difference[kept]
        for x, y, objective, constraint in clients:
            loss = losses(x, y)
            values[t] += objective @ loss, constraint @ loss
    return values / n


def torch_loop(clients: Sequence[Client], participants: np.ndarray, rule: str, *, plain: bool) -> np.ndarray:
    """A loop over clients in PyTorch, with autograd: [round, objective and constraint].

    ``plain`` is what one writes from the paper: f_j and g_j are means over the examples of a class, and a soft step
    mixes their gradients. Otherwise every step is one backward pass of one sum with weights prepared beforehand.
    """
    data = [tuple(map(torch.from_numpy, client)) for client in clients]
    n, d = len(data), data[0][0].shape[1]
    w, model, memory = torch.zeros(d), torch.zeros(d), torch.zeros(n, d)
    values = np.zeros((len(participants), 2))

    def mean_loss(w: torch.Tensor, j: int, label: int) -> torch.Tensor:
        x, y, *weights = data[j]
        if not plain:
            return F.binary_cross_entropy_with_logits(x @ w, y, weights[label], reduction="sum")
        return F.binary_cross_entropy_with_logits(x[y == label] @ w, y[y == label])

    def gradient(w: torch.Tensor, j: int, share: float) -> torch.Tensor:
        x, y, objective, constraint = data[j]
        if not plain:
            weights = (1 - share) * objective + share * constraint
            return torch.autograd.grad(F.binary_cross_entropy_with_logits(x @ w, y, weights, reduction="sum"), w)[0]
        step = torch.zeros(d)
        for label, part in ((0, 1 - share), (1, share)):
            if part:
                step += part * torch.autograd.grad(mean_loss(w, j, label), w)[0]
        return step

    def compress(v: torch.Tensor) -> torch.Tensor:
        kept = v.abs().topk(KEEP, sorted=False).indices
        return torch.zeros_like(v).index_copy_(0, kept, v[kept])

    for t, chosen in enumerate(participants.tolist()):
        with torch.no_grad():
            estimate = sum(mean_loss(w, j, 1) for j in chosen) / len(chosen)
        share = constraint_weight(rule, float(estimate))
        messages = []
        for j in chosen:
            local = w.clone().requires_grad_()
            for _ in range(LOCAL_STEPS):
                step = gradient(local, j, share)
                with torch.no_grad():
                    local -= STEP * step
            waiting = memory[j] + (w - local.detach()) / STEP
            messages.append(compress(waiting))
            memory[j] = waiting - messages[-1]
        model -= STEP * torch.stack(messages).mean(dim=0)
        w = w + compress(model - w)
        with torch.no_grad():
            for j in range(n):
                values[t] += float(mean_loss(w, j, 0)), float(mean_loss(w, j, 1))
    return values / n


plain_torch_loop = functools.partial(torch_loop, plain=True)
tuned_torch_loop = functools.partial(torch_loop, plain=False)


def floor(clients: Sequence[Client], m: int) -> Callable[[int], jax.Array]:
    """Only the matrix products of a round, compiled: what no implementation in XLA can go below.

    No loss, sampling, compression or record of anything; every product feeds the next, so that none is dropped.
    """
    longest = max(len(y) for _, y, *_ in clients)
    everyone = jnp.stack([np.pad(x, ((0, longest - len(x)), (0, 0))) for x, *_ in clients])

    @jax.jit
    def run(everyone: jax.Array, rounds: int) -> jax.Array:
        theirs = everyone[:m]

        def round(_: int, w: jax.Array) -> jax.Array:
            query = jnp.mean(theirs @ w)
            local = jnp.broadcast_to(w, (m, w.size))
            for _ in range(LOCAL_STEPS):
                local -= 1e-3 * jnp.einsum("jid,ji->jd", theirs, jnp.einsum("jid,jd->ji", theirs, local) - query)
            w = jnp.mean(local, axis=0)
            return w - 1e-3 * jnp.mean(everyone @ w)

        return jax.lax.fori_loop(0, rounds, round, jnp.zeros(everyone.shape[-1]))

    return lambda rounds: run(everyone, rounds).block_until_ready()
