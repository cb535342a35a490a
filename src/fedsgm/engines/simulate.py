"""The compiled engine: all clients in one program, rounds in a loop, seeds side by side.

The loop's bounds are arguments of the program, so one compilation serves every number of rounds, every
chunk and every point of resuming, and all of them give the same bits.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base import sizes
from fedsgm.base.cache import use_compilation_cache, whole_program
from fedsgm.base.errors import ClientError, SettingError
from fedsgm.base.layout import Layout, is_function, start_of
from fedsgm.base.progress import Progress
from fedsgm.base.structs import as_float32, check_count, replaced, static, struct
from fedsgm.core.algorithm import Flat, RoundKeys
from fedsgm.core.task import Algorithm, Task
from fedsgm.data.clients import Clients
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines import recording
from fedsgm.engines.checkpoint import Checkpoint, Saved
from fedsgm.engines.recording import Ends, Found
from fedsgm.results.result import Result

_CAPACITY = 128  # rounds that one call of the compiled program can record
_HISTORY = "history/"  # before the names of columns in a checkpoint
_CHUNK_SECONDS = 0.25  # how long a chunk should take: the bar moves, dispatch costs nothing


@struct
class State:
    """What one seed's run carries from round to round, and what a checkpoint needs."""

    server: Any
    memory: Any
    found: Found


def simulate(
    algorithm: Algorithm,
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
        params: a pytree of arrays; or a function of the seed that gives one, so that every run has its own start.
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
    seed_list = _check(rounds, seed, seeds, evaluate_every)
    use_compilation_cache()
    starts = _starts(params, seed_list)
    params, layout = starts[0], Layout.of(starts[0])
    data = sizes.ready(problem.prepare(clients, params), algorithm.cohort(len(clients)), algorithm.draws)
    like = clients[0] if isinstance(clients, Clients) else None
    held_out = None if test is None else recording.held_out(problem, test, params, like)
    w = np.stack([layout.flatten(jax.tree.map(np.asarray, start)) for start in starts])
    settings = recording.settings_of(
        algorithm, problem, clients=len(clients), parameters=layout.size, seeds=seed_list, evaluate_every=evaluate_every
    )
    traced, task = as_float32((algorithm, Flat(problem, layout)))
    program = Compiled(traced, task, rounds, len(clients), evaluate_every, debug)
    run = Run(program, w, np.array(seed_list, np.uint32), jax.device_put(data))
    if checkpoint is not None:
        kept = Checkpoint(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
        run.keep_in(kept, settings | {"data": checkpoints.digest(data), "start": checkpoints.digest(w)})
    with Progress("FedSGM", rounds, show=progress) as bar, jax.disable_jit(debug):
        while run.done < rounds:
            run.advance()
            bar.update(run.done, **recording.shown(run.history[-1], problem))
        ends = run.ends()
        parts = {"train": run.data} | ({} if held_out is None else {"test": held_out})
        values = {part: recording.values_at(task, ends.vectors, examples) for part, examples in parts.items()}

    unflatten = layout.unflatten if seeds is not None else lambda stack: layout.unflatten(stack[0])
    result = recording.finished(_join(run.history), ends, values, settings | {"rounds": rounds}, problem, unflatten)
    recording.check_promise(result, problem, clients, params)
    return result


def _check(rounds: int, seed: int, seeds: int | None, evaluate_every: int) -> list[int]:
    """The seeds, after a look at all numbers."""
    check_count("simulate", "rounds", rounds)
    check_count("simulate", "seed", seed, least=0)
    check_count("simulate", "evaluate_every", evaluate_every, least=0)
    if seeds is not None:
        check_count("simulate", "seeds", seeds)
    if seed + (seeds or 1) > 2**32:
        raise SettingError(f"simulate: seed={seed}, but seeds must be below {2**32}")
    return list(range(seed, seed + (seeds or 1)))


def _starts(params: Any, seeds: list[int]) -> list[Any]:
    """Every seed's first parameters."""
    if not is_function(params):
        return [params] * len(seeds)
    starts = [start_of(params, seed) for seed in seeds]
    for seed, start in zip(seeds, starts, strict=True):
        if Layout.of(start) != Layout.of(starts[0]):
            raise SettingError(f"params: those of seed {seed} have another form than those of seed {seeds[0]}")
    return starts


@struct
class Compiled:
    """All that a compiled round is made of; with ``debug``, one client after another."""

    algorithm: Algorithm
    task: Flat
    rounds: Any
    n: int = static()
    evaluate_every: int = static()
    debug: bool = static(default=False)

    def each(self, fn: Callable[..., Any], who: jax.Array, round: jax.Array, *stacked: Any) -> Any:
        """``fn`` of every client's slice, its answers stacked."""
        if self.debug:
            return sizes.over(fn, *stacked, who, each=lambda fn: functools.partial(_one_by_one, round, fn))
        return sizes.over(fn, *stacked)


class Run:
    """A run under way: the state of every seed, and the history so far."""

    def __init__(self, program: Compiled, w: np.ndarray, seeds: np.ndarray, data: Any) -> None:
        self.program, self.seeds, self.data = program, seeds, data
        self.state = _start(program, w, data, seeds)
        self.history: list[dict[str, np.ndarray]] = []
        self.done = 0
        self._size = 16  # rounds of the next chunk
        self._checkpoint: Checkpoint | None = None
        self._fingerprint: dict[str, Any] = {}

    def keep_in(self, checkpoint: Checkpoint, fingerprint: dict[str, Any]) -> None:
        """Save the run there from now on, and go on from what is there, if that is wanted."""
        self._checkpoint, self._fingerprint = checkpoint, fingerprint
        saved = checkpoints.resume(checkpoint, fingerprint, int(self.program.rounds))
        if saved is not None:
            self.done = saved.round
            self.state = checkpoints.unpack("state", saved.arrays, self.state)
            kept = {name: a for name, a in saved.arrays.items() if name.startswith(_HISTORY)}
            self.history.append({name.removeprefix(_HISTORY): a for name, a in kept.items()})

    def advance(self) -> None:
        """One chunk of rounds."""
        rounds, every = int(self.program.rounds), self._checkpoint.every if self._checkpoint else None
        stop = min(self.done + self._size, rounds)
        if every:
            stop = min(stop, self.done + every - self.done % every)
        began = time.perf_counter()
        self.state, buffers = _advance(self.program, self.data, self.state, self.seeds, self.done, stop)
        chunk = {name: np.asarray(buffer)[:, : stop - self.done] for name, buffer in buffers.items()}
        chunk |= recording.in_all(chunk, self.program.n)
        seconds = (time.perf_counter() - began) / (stop - self.done)
        self._size = max(1, min(_CAPACITY, int(_CHUNK_SECONDS / seconds)))
        self.history.append(chunk)
        self.done = stop
        if self._checkpoint and every and (stop % every == 0 or stop == rounds):
            self.history = [_join(self.history)]
            arrays = {_HISTORY + name: column for name, column in self.history[0].items()}
            arrays |= checkpoints.pack("state", self.state)
            checkpoints.save(Path(self._checkpoint.directory), Saved(stop, arrays, self._fingerprint))

    def ends(self) -> Ends:
        return self.state.found.ends(self.state.server.replica, self.done)


def _one_by_one(round: jax.Array, fn: Callable[..., Any], *stacked: Any) -> Any:
    *theirs, who = stacked
    answers = []
    for i, client in enumerate(np.asarray(who)):
        try:
            answer = fn(*jax.tree.map(lambda a, i=i: a[i], theirs))
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ClientError(f"client {client}, round {round}: {what}") from error
        for leaf in jax.tree.leaves(answer):
            if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(np.asarray(leaf, np.float32)).all():
                raise ClientError(f"client {client}, round {round}: a NaN or an infinite value in {fn.__name__}")
        answers.append(answer)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *answers)


@whole_program
def _advance(
    program: Compiled, data: Any, states: State, seeds: jax.Array, start: int, stop: int
) -> tuple[State, dict[str, jax.Array]]:
    """Rounds ``start`` to ``stop`` of every seed."""
    data, states = jax.tree.map(jnp.asarray, (data, states))

    def one_seed(state: State, seed: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        # All rounds' draws at once: they depend on (seed, round, client) alone, and small draws cost dispatch.
        draws = jax.vmap(lambda t: Draw.of(program, seed, t))(start + jnp.arange(_CAPACITY))
        shapes = functools.partial(_round, replaced(program, debug=False), data)
        info = jax.eval_shape(shapes, state, jax.tree.map(lambda a: a[0], draws), start)[1]
        buffers = jax.tree.map(lambda a: jnp.zeros((_CAPACITY, *a.shape), a.dtype), info)

        def body(t: jax.Array, carry: tuple[State, Any]) -> tuple[State, Any]:
            state, info = _round(program, data, carry[0], jax.tree.map(lambda a: a[t - start], draws), t)
            return state, jax.tree.map(lambda buffer, a: buffer.at[t - start].set(a), carry[1], info)

        return jax.lax.fori_loop(start, stop, body, (state, buffers))

    return jax.lax.map(lambda seed: one_seed(*seed), (states, seeds))


@struct
class Draw:
    """All that is random in one round of one seed."""

    who: jax.Array
    clients: jax.Array
    asked: jax.Array
    asked_clients: jax.Array
    server: jax.Array

    @classmethod
    def of(cls, program: Compiled, seed: jax.Array, round: jax.Array) -> Draw:
        keys = RoundKeys.of(seed, round)
        who = program.algorithm.sample(keys.sampling, program.n)
        asked = program.algorithm.queried(who, program.n)
        theirs = jax.vmap(keys.client)(who)
        return cls(who, theirs, asked, theirs if asked is who else jax.vmap(keys.client)(asked), keys.server)


def _round(program: Compiled, data: Any, state: State, draw: Draw, t: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    """One round of one seed: the participants' work, and what there is to see of it."""
    algorithm, task, each = program.algorithm.at(t), program.task.at(t), program.each
    server, w, who = state.server, state.server.replica, draw.who
    everyone = len(who) == program.n
    take = (lambda data: data) if everyone else functools.partial(sizes.take, who=who)
    theirs, memory = take(data), take(state.memory)

    def measure(data: Any, key: jax.Array) -> Any:
        return algorithm.measure(task, w, data, key)

    asks_all = len(draw.asked) > len(who)
    statistics, kept = each(measure, draw.asked, t, data if asks_all else theirs, draw.asked_clients)
    kept = take(kept) if asks_all else kept
    direction, server, measured = algorithm.decide(task, server, statistics, draw.asked, program.n, draw.server)
    info = {"participants": who} | recording.decided(algorithm, server, direction, measured)

    def local_update(data: Any, kept: Any, memory: Any, key: jax.Array) -> Any:
        return algorithm.local_update(task, w, direction, data, kept, memory, key)

    theirs = sizes.to_draw_from(data, who, theirs) if algorithm.draws else theirs
    messages, memory = each(local_update, who, t, theirs, kept, memory, draw.clients)
    server, broadcast = algorithm.aggregate(task, server, messages, draw.server)
    first = jnp.where(t == 0, program.n, len(who)) if algorithm.asks_first else len(draw.asked)
    info |= recording.traffic(statistics, first, direction, messages, broadcast, len(who))

    def inspect(kept: Any) -> Any:
        return task.inspect(w, server.replica, kept)

    if task.task.inspects:
        info |= jax.tree.map(jnp.mean, each(inspect, who, t, kept))
    values, worst = _true_values(program, task, data, server.replica, t)
    found = state.found.averaged(w, direction.objective)
    state = State(
        server=server,
        memory=memory if everyone else jax.tree.map(lambda old, new: old.at[who].set(new), state.memory, memory),
        found=found.compared(server.replica, values["objective"], worst, program.n, t + 1),
    )
    return state, info | values


def _true_values(
    program: Compiled, task: Flat, data: Any, w: jax.Array, t: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Objective and constraints over all clients at ``w``, in the rounds where they are wanted; NaN in others."""

    def evaluate(data: Any) -> Any:
        return task.evaluate(w, data)

    def now(program: Compiled = program) -> Any:
        return task.task.summarise(program.each(evaluate, jnp.arange(program.n), t, data))

    if program.evaluate_every == 1:
        return now()
    wanted = t + 1 == program.rounds
    if program.evaluate_every:
        wanted |= (t + 1) % program.evaluate_every == 0
    shapes = jax.eval_shape(functools.partial(now, replaced(program, debug=False)))
    skipped = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), shapes)
    return jax.lax.cond(wanted, now, lambda: skipped)


def _start(program: Compiled, w: np.ndarray, data: Any, seeds: np.ndarray) -> State:
    """Every seed's state before the first round."""
    algorithm, n = program.algorithm, program.n
    measure = functools.partial(algorithm.measure, program.task)
    statistics, _ = jax.eval_shape(measure, w[0], sizes.one_of(data), jax.random.key(0))
    memory = jax.tree.map(lambda a: np.broadcast_to(a, (n, *np.shape(a))), algorithm.init_memory(w.shape[1]))
    states = [
        as_float32(State(algorithm.init(program.task, start, n, statistics), memory, Found.start(start))) for start in w
    ]
    state = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    return _ask_first(program, data, state, seeds) if algorithm.asks_first else state


@whole_program
def _ask_first(program: Compiled, data: Any, states: State, seeds: jax.Array) -> State:
    """Every seed's state once everybody was asked, as in the first round: what they say is of its age then."""
    everybody = jnp.arange(program.n)

    def one_seed(state: State, seed: jax.Array) -> State:
        task, keys = program.task.at(jnp.int32(0)), RoundKeys.of(seed, jnp.int32(0))

        def measure(data: Any, key: jax.Array) -> Any:
            return program.algorithm.measure(task, state.server.replica, data, key)[0]

        statistics = program.each(measure, everybody, jnp.int32(0), data, jax.vmap(keys.client)(everybody))
        server = program.algorithm.remember(state.server, statistics, everybody, program.n)
        return replaced(state, server=replaced(server, remembered=server.remembered.before()))

    return jax.lax.map(lambda seed: one_seed(*seed), (states, seeds))


def _join(history: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in history], axis=1) for name in history[0]}
