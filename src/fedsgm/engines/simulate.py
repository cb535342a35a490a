"""The compiled engine: all clients in one program, rounds in a loop, seeds side by side.

The loop's bounds are arguments of the program, so one compilation serves every number of rounds, every
chunk and every point of resuming, and all of them give the same bits.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.cache import use_compilation_cache
from fedsgm.base.describe import describe
from fedsgm.base.errors import ClientError, SettingError
from fedsgm.base.layout import Layout
from fedsgm.base.progress import Progress
from fedsgm.base.structs import check_count, check_participants, struct
from fedsgm.core import wire
from fedsgm.core.algorithm import FedSGM, Flat, RoundKeys, Server
from fedsgm.core.problem import Problem, Task
from fedsgm.data.clients import Clients, check_finite, length, same_form
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines.checkpoint import Checkpoint, Saved
from fedsgm.results.result import Result

_CAPACITY = 128  # rounds that one call of the compiled program can record
_CHUNK_SECONDS = 0.25  # how long a chunk should take: the bar moves, dispatch costs nothing
_TRAFFIC = ("bytes_up", "bytes_down")


@struct
class State:
    """What one seed's run carries from round to round, and what a checkpoint needs."""

    server: Server
    memory: Any
    average: Any
    average_weight: Any
    best: Any
    best_objective: Any


def simulate(
    algorithm: FedSGM,
    problem: Task,
    clients: Any,
    params: Any,
    *,
    rounds: int,
    seed: int = 0,
    seeds: int | None = None,
    test: Any = None,
    evaluate_every: int = 1,
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool = True,
    debug: bool = False,
) -> Result:
    """Run ``algorithm`` on ``problem`` over ``clients`` from ``params``.

    Args:
        clients: :class:`Clients` for a :class:`Problem`; another task says what its clients are.
        rounds: T.
        seed: the run's seed. With ``seeds=k``, the runs of seeds ``seed, ..., seed + k - 1`` in one program;
            every array of the result then has a leading axis of k.
        test: held-out examples, measured at the end.
        evaluate_every: the true objective and constraints over all clients every so many rounds, and at the
            end; 0 is only at the end.
        checkpoint: a folder, or a :class:`Checkpoint`, to save the run in.
        progress: show progress on standard error.
        debug: run op by op, without compilation; an error names the client and the round.
    """
    check_count("simulate", "rounds", rounds)
    check_count("simulate", "seed", seed, least=0)
    check_count("simulate", "evaluate_every", evaluate_every, least=0)
    if seeds is not None:
        check_count("simulate", "seeds", seeds)
    if seed + (seeds or 1) > 2**32:
        raise SettingError(f"simulate: seed={seed}, but seeds must be below {2**32}")
    n = len(clients)
    check_participants(algorithm.participants, n)
    use_compilation_cache()
    layout = Layout.of(params)
    data = problem.prepare(clients, params)
    held_out = None if test is None else _held_out(problem, test, clients, params)
    w = layout.flatten(jax.tree.map(np.asarray, params))
    settings = {
        "algorithm": describe(algorithm),
        "problem": describe(problem),
        "clients": n,
        "parameters": layout.size,
        "seeds": list(range(seed, seed + (seeds or 1))),
        "evaluate_every": evaluate_every,
    }
    traced = _as_float32(dataclasses.replace(algorithm, promise=None))
    task = Flat(_as_float32(problem), layout)
    seed_array = np.array(settings["seeds"], np.uint32)
    state = _start(traced, w, n, len(seed_array))

    if isinstance(checkpoint, (str, Path)):
        checkpoint = Checkpoint(checkpoint)
    history: list[dict[str, np.ndarray]] = []
    done = 0
    if checkpoint is not None:
        fingerprint = settings | {"data": checkpoints.digest(data), "start": checkpoints.digest(w)}
        saved = checkpoints.resume(checkpoint, fingerprint, rounds)
        if saved is not None:
            done = saved.round
            state, past = _unpack(saved.arrays, state)
            history.append(past)

    each = _one_by_one if debug else _together
    with Progress("FedSGM", rounds, show=progress) as bar, jax.disable_jit(debug):
        size = 16
        while done < rounds:
            stop = min(done + size, rounds)
            if checkpoint is not None:
                stop = min(stop, done + checkpoint.every - done % checkpoint.every)
            began = time.perf_counter()
            state, buffers = _advance(
                traced, task, data, state, seed_array, done, stop, rounds, n, evaluate_every, each
            )
            chunk = {name: np.asarray(buffer)[:, : stop - done] for name, buffer in buffers.items()}
            chunk |= {name: chunk[name].sum(axis=-1, dtype=np.int64) for name in _TRAFFIC}
            seconds = (time.perf_counter() - began) / (stop - done)
            size = max(1, min(_CAPACITY, int(_CHUNK_SECONDS / seconds)))
            history.append(chunk)
            done = stop
            if checkpoint is not None and (done % checkpoint.every == 0 or done == rounds):
                history = [_join(history)]
                checkpoints.save(Path(checkpoint.directory), Saved(done, _pack(state, history[0]), fingerprint))
            bar.update(done, **_shown(chunk, problem.bounds))

        ends = np.stack([state.server.replica, _averages(state), state.best])
        values = {
            part: _evaluate(task, ends, examples)
            for part, examples in (("train", data), ("test", held_out))
            if examples is not None
        }

    table = _join(history)
    first = ("objective", *problem.bounds)
    rest = sorted(table.keys() - {*first, *_TRAFFIC})
    table = {name: table[name] for name in (*first, *rest, *_TRAFFIC)}
    unflatten = layout.unflatten if seeds is not None else lambda stack: layout.unflatten(stack[0])
    last, average, best = (unflatten(vectors) for vectors in ends)
    result = Result(
        history=table,
        last=last,
        average=average,
        best_feasible=best,
        values={
            part: {name: np.asarray(measured[name]) for name in ("objective", *problem.bounds)}
            for part, measured in values.items()
        },
        bounds={name: float(bound) for name, bound in problem.bounds.items()},
        settings=settings | {"rounds": rounds},
    )
    if algorithm.promise is not None:
        from fedsgm import theory

        stated = problem if isinstance(problem, Problem) else None
        for sentence in theory.check(result, stated, clients, params):
            warnings.warn(sentence, theory.TheoryWarning, stacklevel=2)
    return result


Each = Callable[..., Any]
"""``each(fn, who, round, *stacked)`` applies ``fn`` to every client's slice and stacks the answers."""


def _together(fn: Callable[..., Any], _who: jax.Array, _round: jax.Array, *stacked: Any) -> Any:
    return jax.vmap(fn)(*stacked)


def _one_by_one(fn: Callable[..., Any], who: jax.Array, round: jax.Array, *stacked: Any) -> Any:
    answers = []
    for i, client in enumerate(np.asarray(who)):
        try:
            answer = fn(*jax.tree.map(lambda a, i=i: a[i], stacked))
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ClientError(f"client {client}, round {round}: {what}") from error
        for leaf in jax.tree.leaves(answer):
            if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(np.asarray(leaf, np.float32)).all():
                raise ClientError(f"client {client}, round {round}: a NaN or an infinite value in {fn.__name__}")
        answers.append(answer)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *answers)


@functools.partial(jax.jit, static_argnames=("n", "evaluate_every", "each"))
def _advance(
    algorithm: FedSGM,
    task: Flat,
    data: Any,
    states: State,
    seeds: jax.Array,
    start: int,
    stop: int,
    rounds: int,
    n: int,
    evaluate_every: int,
    each: Each,
) -> tuple[State, dict[str, jax.Array]]:
    """Rounds ``start`` to ``stop`` of every seed."""
    data, states = jax.tree.map(jnp.asarray, (data, states))
    one_round = functools.partial(_round, algorithm, task, data, rounds, n, evaluate_every, each)

    def one_seed(state: State, seed: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        # All rounds' draws at once: they depend on (seed, round, client) alone, and small draws cost dispatch.
        draws = jax.vmap(lambda t: Draw.of(algorithm, n, seed, t))(start + jnp.arange(_CAPACITY))
        shapes = functools.partial(_round, algorithm, task, data, rounds, n, evaluate_every, _together)
        info = jax.eval_shape(shapes, state, jax.tree.map(lambda a: a[0], draws), start)[1]
        buffers = jax.tree.map(lambda a: jnp.zeros((_CAPACITY, *a.shape), a.dtype), info)

        def body(t: jax.Array, carry: tuple[State, Any]) -> tuple[State, Any]:
            state, info = one_round(carry[0], jax.tree.map(lambda a: a[t - start], draws), t)
            return state, jax.tree.map(lambda buffer, a: buffer.at[t - start].set(a), carry[1], info)

        return jax.lax.fori_loop(start, stop, body, (state, buffers))

    return jax.lax.map(lambda seed: one_seed(*seed), (states, seeds))


@struct
class Draw:
    """All that is random in one round of one seed."""

    who: jax.Array
    clients: jax.Array
    server: jax.Array

    @classmethod
    def of(cls, algorithm: FedSGM, n: int, seed: jax.Array, round: jax.Array) -> Draw:
        keys = RoundKeys.of(seed, round)
        who = algorithm.sample(keys.sampling, n)
        return cls(who, jax.vmap(keys.client)(who), keys.server)


def _round(
    algorithm: FedSGM,
    task: Flat,
    data: Any,
    rounds: int,
    n: int,
    evaluate_every: int,
    each: Each,
    state: State,
    draw: Draw,
    t: jax.Array,
) -> tuple[State, dict[str, jax.Array]]:
    """One round of one seed: the participants' work, and what there is to see of it."""
    task = Flat(task.task.at(t), task.layout)
    server, w, who = state.server, state.server.replica, draw.who
    everyone = len(who) == n
    take = (lambda tree: tree) if everyone else functools.partial(jax.tree.map, lambda a: a[who])
    theirs, memory = take(data), take(state.memory)

    def measure(data: Any, key: jax.Array) -> Any:
        return algorithm.measure(task, w, data, key)

    statistics, kept = each(measure, who, t, theirs, draw.clients)
    direction, rule, measured = algorithm.decide(task, server.rule, statistics, draw.server)

    def local_update(data: Any, kept: Any, memory: Any, key: jax.Array) -> Any:
        return algorithm.local_update(task, w, direction, data, kept, memory, key)

    messages, memory = each(local_update, who, t, theirs, kept, memory, draw.clients)
    server, broadcast = algorithm.aggregate(task, Server(w, server.model, rule), messages, draw.server)

    info = {"violation": measured.violation, "weight": direction.constraint, "participants": who, **measured.report}
    if rule is not None:  # of the rules, those that carry a multiplier have a state
        info["multiplier"] = rule
    info |= _traffic(statistics, direction, messages, broadcast, who, n)
    info |= task.task.inspect(task.layout.unflatten(w), task.layout.unflatten(server.replica), kept)
    values, worst = _true_values(task, data, server.replica, t, rounds, n, evaluate_every, each)
    better = (worst <= 0) & (values["objective"] < state.best_objective)
    total = state.average_weight + direction.objective
    share = direction.objective / jnp.where(total > 0, total, 1)
    state = State(
        server=server,
        memory=memory if everyone else jax.tree.map(lambda old, new: old.at[who].set(new), state.memory, memory),
        average=state.average + share * (w - state.average),
        average_weight=total,
        best=jnp.where(better, server.replica, state.best),
        best_objective=jnp.where(better, values["objective"], state.best_objective),
    )
    return state, info | values


def _true_values(
    task: Flat, data: Any, w: jax.Array, t: jax.Array, rounds: int, n: int, evaluate_every: int, each: Each
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Objective and constraints over all clients at ``w``, in the rounds where they are wanted; NaN in others."""

    def evaluate(data: Any) -> Any:
        return task.evaluate(w, data, jax.random.key(0))

    def now(each: Each = each) -> Any:
        return task.task.summarise(each(evaluate, jnp.arange(n), t, data))

    if evaluate_every == 1:
        return now()
    wanted = t + 1 == rounds
    if evaluate_every:
        wanted |= (t + 1) % evaluate_every == 0
    shapes = jax.eval_shape(functools.partial(now, _together))
    skipped = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), shapes)
    return jax.lax.cond(wanted, now, lambda: skipped)


@jax.jit
def _evaluate(task: Flat, vectors: jax.Array, data: Any) -> dict[str, jax.Array]:
    """The true values of [kind, seed] parameter vectors."""

    def one(w: jax.Array) -> Any:
        return task.task.summarise(jax.vmap(lambda d: task.evaluate(w, d, jax.random.key(0)))(data))[0]

    return jax.vmap(jax.vmap(one))(vectors)


def _start(algorithm: FedSGM, w: np.ndarray, n: int, seeds: int) -> State:
    """Every seed's state before the first round."""
    state = State(
        server=algorithm.init(w),
        memory=algorithm.init_memory(n, len(w)),
        average=np.zeros_like(w),
        average_weight=np.float32(0),
        best=np.full_like(w, np.nan),
        best_objective=np.float32(np.inf),
    )
    return jax.tree.map(lambda a: np.broadcast_to(np.float32(a), (seeds, *np.shape(a))), state)


def _averages(state: State) -> np.ndarray:
    """The theorems' averages; not a number for a seed whose every round went to the constraint alone."""
    return np.where(np.asarray(state.average_weight)[:, None] > 0, state.average, np.nan)


def _as_float32(tree: Any) -> Any:
    """Continuous settings as float32 scalars, so that 1 and 1.0 are the same program."""
    return jax.tree.map(np.float32, tree)


def _held_out(problem: Task, test: Any, clients: Any, params: Any) -> Any:
    if not isinstance(clients, Clients):
        raise SettingError("the test data: this task has no examples, so leave test out")
    examples = jax.tree.map(np.asarray, test)
    same_form(clients[0], examples, "the test data")
    if not length(examples, "the test data"):
        raise SettingError("the test data has no examples")
    check_finite(examples, "the test data")
    return problem.prepare(Clients.from_list([examples]), params, owner="the test data")


def _traffic(
    statistics: Any, direction: Any, messages: Any, broadcast: Any, who: jax.Array, n: int
) -> dict[str, jax.Array]:
    """Bytes of one round: up, of each participant; down, to each client.

    Statistics and messages go up; the direction goes down to the participants, the broadcast to everyone.
    """
    up = jax.vmap(wire.size)(messages) + wire.nbytes(statistics) // len(who)
    down = jnp.full(n, wire.size(broadcast)).at[who].add(wire.nbytes(direction))
    return dict(zip(_TRAFFIC, (up, down), strict=True))


def _shown(chunk: dict[str, np.ndarray], bounds: dict[str, float]) -> dict[str, float]:
    """The means over seeds of the last round that has them, for the progress bar."""
    names = ("reward", "cost", "weight") if "reward" in chunk else ("objective", "violation", "weight")
    shown = {}
    for name in names:
        measured = np.flatnonzero(~np.isnan(chunk[name]).any(axis=0))
        if len(measured):
            shown[name] = float(chunk[name][:, measured[-1]].mean())
    return shown | ({"budget": float(bounds["cost"])} if "reward" in chunk else {})


def _join(history: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in history], axis=1) for name in history[0]}


def _pack(state: State, history: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A run as named arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    arrays = {"state" + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    return arrays | {f"history/{name}": values for name, values in history.items()}


def _unpack(arrays: dict[str, np.ndarray], like: State) -> tuple[State, dict[str, np.ndarray]]:
    state = jax.tree_util.tree_map_with_path(lambda path, _: arrays["state" + jax.tree_util.keystr(path)], like)
    history = {name.removeprefix("history/"): a for name, a in arrays.items() if name.startswith("history/")}
    return state, history
