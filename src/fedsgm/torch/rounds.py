"""The part of a round that stays in JAX: draws, decisions, compression, error feedback.

A client's sums are a few numbers. What it sends of them and how much of each it follows is the core's to say; torch
takes the sums and steps along their gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import replaced, struct
from fedsgm.core import feedback, wire
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import Identity
from fedsgm.core.drawing import RoundKeys
from fedsgm.core.feedback import compressor_of
from fedsgm.core.problem import Problem as Stated
from fedsgm.core.quantities import Mean, Statistic
from fedsgm.core.rules import Direction
from fedsgm.engines import recording
from fedsgm.engines.recording import Found

_SEED = 2**31  # what the key of torch's own draws is made with; the algorithm counts from 0


def check(algorithm: Any, averages: bool) -> None:
    """Refuse what does not go with a torch problem."""
    if not isinstance(algorithm, FedSGM):
        raise SettingError(f"a torch problem is run by FedSGM, not by {type(algorithm).__name__}")
    links = (compressor_of(algorithm.uplink), algorithm.downlink)
    if averages and not (all(isinstance(link, Identity) for link in links) and algorithm.server is None):
        raise SettingError(
            "Problem: buffers='average' is the mean of what every participant sends, so it goes with neither a "
            "compressor nor a server's optimizer; take buffers='local', or Identity() both ways"
        )


def is_linear(stated: Stated) -> bool:
    """Whether what a client follows is the same wherever its sums are, for a whole round."""
    return all(
        isinstance(q.base, Mean) or (isinstance(q, Statistic) and q.gradient == "linearized") for q in stated.quantities
    )


def drawn(algorithm: FedSGM, key: jax.Array, count: Any) -> tuple[Any, Any, jax.Array]:
    """A client's examples for the query and for each step, as :class:`Examples` draws them, and torch's own seed."""

    def rows(purpose: Any, size: int) -> jax.Array:
        return jax.random.randint(jax.random.fold_in(key, purpose), (size,), 0, count)

    query = None if algorithm.constraint_batch_size is None else rows(0, algorithm.constraint_batch_size)
    size, steps = algorithm.batch_size, jnp.arange(algorithm.local_steps)
    batches = None if size is None else jax.vmap(lambda tau: rows(2 + tau, size))(steps)
    return query, batches, jax.random.bits(jax.random.fold_in(key, _SEED))


@jax.jit
def slopes_at(stated: Stated, sums: Any, direction: Direction, kept: Any) -> Any:
    return jax.grad(stated.descended)(sums, direction, kept)


def followed(stated: Stated, direction: Direction, kept: Any) -> Callable[[list[Any]], Any]:
    """What a client follows of its sums, where that depends on them."""

    def slopes(sums: list[Any]) -> Any:
        return jax.tree.map(np.asarray, slopes_at(stated, tuple(sums), direction, kept))

    return slopes


@functools.partial(jax.jit, static_argnums=1)
def draw(algorithm: FedSGM, n: int, seed: Any, t: Any, counts: Any) -> tuple[Any, Any, Any, Any]:
    """The participants, who is asked, and what is drawn for each of both."""
    keys = RoundKeys.of(seed, t)
    who = algorithm.sample(keys.sampling, n)
    asked = algorithm.queried(who, n)
    own = jax.vmap(lambda j: drawn(algorithm, keys.client(j), counts[j]))
    return who, asked, own(who), own(asked)


@struct
class Decided:
    """What a round has come to before its updates: the server and the direction, and what each participant follows."""

    server: Any
    direction: Direction
    statistics: Any
    kept: Any
    slopes: Any
    shares: Any
    step_size: Any
    info: Any


@functools.partial(jax.jit, static_argnums=6)
def decide(
    algorithm: FedSGM, task: Any, server: Any, sums: Any, sizes: Any, who: Any, n: int, asked: Any, at: Any
) -> Decided:
    """Of the sums of those who were asked; ``who`` are the participants' places among them."""
    (seed, t), stated = at, task.task
    algorithm = algorithm.at(t)
    statistics, kept = jax.vmap(functools.partial(stated.told, objective=algorithm.compares))(sums, sizes)
    key = RoundKeys.of(seed, t).server
    direction, server, measured = algorithm.decide(task, server, statistics, asked, n, key)
    own, kept = jax.tree.map(lambda a: a[who], (sums, kept))
    full = own if algorithm.compares else (jnp.zeros(len(who)), *own)
    slopes = jax.vmap(lambda sums, kept: slopes_at(stated, sums, direction, kept))(full, kept)
    shares = jax.vmap(lambda _, kept: jnp.float32(stated.share(direction, kept)))(full, kept)
    info = recording.decided(algorithm, server, direction, measured)
    return Decided(server, direction, statistics, kept, slopes, shares, jnp.float32(algorithm.eta), info)


@jax.jit
def asked(algorithm: FedSGM, task: Any, server: Any, sums: Any, sizes: Any) -> Any:
    """The server once everybody was asked: what they say is of its age in the first round."""
    statistics, _ = jax.vmap(functools.partial(task.task.told, objective=algorithm.compares))(sums, sizes)
    n = len(sizes[0])
    server = algorithm.remember(server, statistics, jnp.arange(n), n)
    return replaced(server, remembered=server.remembered.before())


@jax.jit
def finish(
    algorithm: FedSGM,
    task: Any,
    decided: Decided,
    found: Found,
    memory: Any,
    totals: Any,
    at: Any,
    asked: Any,
    who: Any,
) -> tuple[Any, Found, Any, dict[str, jax.Array]]:
    """The server's step along the participants' messages, their memories, and what is recorded of the round."""
    (seed, t), algorithm = at, algorithm.at(at[1])
    keys = RoundKeys.of(seed, t)

    def send(memory: Any, total: Any, key: jax.Array) -> tuple[Any, Any]:
        return sent(algorithm, memory, total, key, keys.shared, decided.direction.named)

    earlier = memory
    messages, memory = jax.vmap(send)(earlier, totals, jax.vmap(keys.client)(who))
    before, seen, used = decided.server.replica, {}, messages
    if algorithm.robust is not None:
        doubted = decided.info.get("doubted")
        doubted = None if doubted is None else doubted[who]
        used, seen["rejected"] = algorithm.screened(messages, who, len(before), doubted)
        memory = jax.vmap(feedback.settled)(memory, earlier, seen["rejected"])
    server, broadcast = algorithm.aggregate(task, decided.server, used, keys.server)
    nbytes = jax.vmap(wire.size)(messages)
    info = seen | recording.traffic(decided.statistics, asked, decided.direction, nbytes, broadcast, len(who))
    return server, found.averaged(before, decided.direction.objective), memory, decided.info | info


def sent(
    algorithm: FedSGM, memory: Any, total: Any, key: jax.Array, shared: jax.Array, named: jax.Array | None
) -> tuple[Any, Any]:
    """A client's message of the sum of its directions, and its memory."""
    return feedback.send(algorithm.uplink, memory, total, jax.random.fold_in(key, 1), shared, named=named)


drawn_at = jax.jit(drawn)
message = jax.jit(sent)


@functools.partial(jax.jit, static_argnums=3)
def told(stated: Stated, sums: Any, sizes: Any, objective: bool = False) -> tuple[Any, Any]:
    return stated.told(sums, sizes, objective=objective)


@jax.jit
def evaluated(stated: Stated, sums: Any, sizes: Any) -> Any:
    return stated.evaluated(sums, sizes)


@jax.jit
def values_of(stated: Stated, sums: Any, sizes: Any) -> tuple[dict[str, jax.Array], jax.Array]:
    """The true values over all clients, of their sums of every quantity."""
    return stated.summarise(jax.vmap(stated.evaluated)(sums, sizes))


@functools.partial(jax.jit, static_argnums=4)
def compared(found: Found, w: Any, objective: Any, worst: Any, n: int, t: Any) -> Found:
    return found.compared(w, objective, worst, n, t + 1)


def stacked(each: list[Any]) -> Any:
    """Clients' sums, one after another's."""
    return tuple(jax.tree.map(lambda *leaves: np.stack(leaves), *each)) if each[0] else ()
