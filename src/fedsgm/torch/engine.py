"""``simulate`` for torch problems: a loop over rounds, and in a round the clients side by side or one after another.

The participants, the batches and what compressors draw are those of the compiled engine, and what is recorded is too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.cache import use_compilation_cache
from fedsgm.base.errors import ClientError
from fedsgm.base.layout import Layout
from fedsgm.base.progress import Progress
from fedsgm.base.structs import as_float32, replaced, struct
from fedsgm.core.algorithm import FedSGM, Flat
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines import recording
from fedsgm.engines.callbacks import Callback, Listeners
from fedsgm.engines.checkpoint import Checkpoint, Saved
from fedsgm.engines.recording import Ends, Found
from fedsgm.results.result import Result
from fedsgm.torch import rounds as jax_part
from fedsgm.torch.examples import Tensors, Weighed
from fedsgm.torch.preparing import prepare
from fedsgm.torch.together import Together
from fedsgm.torch.worker import Worker


def simulate(
    problem: Any,
    algorithm: FedSGM,
    clients: Any,
    params: Any,
    checkpoint: str | Path | Checkpoint | None,
    *,
    rounds: int,
    seeds: list[int],
    several: bool,
    test: Any,
    evaluate_every: int | None,
    progress: bool,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """As :func:`fedsgm.simulate`, which calls it; a run of ``several`` seeds has arrays with that axis."""
    use_compilation_cache()
    jax_part.check(algorithm, problem.buffers == "average" and bool(problem.settings))
    algorithm.cohort(len(clients))
    starts = [problem.start_of(params, seed) for seed in seeds]
    layout = Layout.of(starts[0])
    w = np.stack([layout.flatten(start) for start in starts])
    worker, stated = Worker(problem, layout), problem.stated
    data = prepare(stated, worker, clients, w[0])
    held_out = None if test is None else prepare(stated, worker, [test], w[0], owner="the test data")
    evaluate_every = recording.rounds_between(evaluate_every, algorithm, clients, layout.size)
    settings = recording.settings_of(
        algorithm, problem, clients=len(data), parameters=layout.size, seeds=seeds, evaluate_every=evaluate_every
    )
    run = Run(algorithm, problem, worker, data, w, seeds, rounds, evaluate_every)
    if checkpoint is not None:
        kept = Checkpoint(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
        run.keep_in(kept, settings | {"data": _digest(data), "start": checkpoints.digest(w)})
    listeners = Listeners(callbacks, settings, problem.ranges, rounds)
    with Progress("FedSGM", rounds, show=progress) as bar, listeners:
        run.go_on(listeners, bar)
    ends, buffers = run.ends(), run.mean_buffers()
    values = {"train": run.values_at(ends.vectors, data)}
    if held_out is not None:
        values["test"] = run.values_at(ends.vectors, held_out, buffers)

    def unflatten(vectors: np.ndarray) -> dict[str, np.ndarray]:
        named = layout.unflatten(vectors) | buffers
        return named if several else {name: array[0] for name, array in named.items()}

    history = checkpoints.joined(run.history)
    result = recording.finished(history, ends, values, listeners.settings(run.done), problem, unflatten)
    recording.check_promise(result, problem)
    listeners.finish(result)
    return result


@struct
class State:
    """What one seed's run carries from round to round, in arrays of NumPy, and what a checkpoint needs."""

    server: Any
    memory: Any
    buffers: Any
    found: Found


class Run:
    """A run under way: the state of every seed, and the history so far."""

    def __init__(
        self,
        algorithm: FedSGM,
        problem: Any,
        worker: Worker,
        data: list[Weighed],
        w: np.ndarray,
        seeds: list[int],
        rounds: int,
        evaluate_every: int,
    ) -> None:
        self.algorithm, self.task = as_float32((algorithm, Flat(problem.stated, worker.layout)))
        self.worker, self.data, self.seeds = worker, data, seeds
        self.rounds, self.evaluate_every = rounds, evaluate_every
        self.counts = np.array([each.rows.count for each in data], np.int32)
        self.sizes = tuple(np.stack([each.sizes for each in data]).T)
        self.every = range(len(problem.stated.quantities))
        self.asked = self.every[0 if algorithm.compares else 1 :]  # of which a client tells the server
        self.linear = jax_part.is_linear(problem.stated)
        drawn = algorithm.batch_size is not None
        self.together = Together.of(worker, data, w[0], drawn) if self.linear else None
        self.history: list[dict[str, np.ndarray]] = []
        self.done = 0
        self._checkpoint: Checkpoint | None = None
        self._fingerprint: dict[str, Any] = {}
        one = [worker.sums(w[0], data[0], self.every, buffers=problem.kept)]
        said = functools.partial(problem.stated.told, objective=algorithm.compares)
        asked = [one[0][i] for i in self.asked]
        told, own = jax.eval_shape(said, asked, data[0].sizes)[0], [size[:1] for size in self.sizes]
        self._unknown = jax.eval_shape(jax_part.values_of, self.task.task, jax_part.stacked(one), own)[0]
        self.states = [self._start(start, problem.kept, told) for start in w]
        if algorithm.asks_first:
            self.states = [self._ask_first(*each) for each in zip(self.states, seeds, strict=True)]

    def _start(self, w: np.ndarray, kept: dict[str, np.ndarray], told: Any) -> State:
        """Before the first round."""
        n = len(self.data)
        server, memory = self.algorithm.init(self.task, w, n, lambda: told), self.algorithm.init_memory(len(w))
        memory = jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], n, axis=0), memory)
        buffers = {name: np.repeat(array[None], n, axis=0) for name, array in kept.items()}
        return State(_host(as_float32(server)), memory, buffers, as_float32(Found.start(w)))

    def _ask_first(self, state: State, seed: int) -> State:
        """Once everybody was asked, as in the first round."""
        everybody = range(len(self.data))
        drawn = jax_part.draw(replaced(self.algorithm, query="all"), len(self.data), seed, 0, self.counts)[3]
        sums = self._sums(state, everybody, self.asked, 0, _host(drawn))
        server = jax_part.asked(self.algorithm, self.task, state.server, sums, self.sizes)
        return replaced(state, server=_host(server))

    def keep_in(self, checkpoint: Checkpoint, fingerprint: dict[str, Any]) -> None:
        """Save the run there from now on, and go on from what is there, if that is wanted."""
        self._checkpoint, self._fingerprint = checkpoint, fingerprint
        saved = checkpoints.resume(checkpoint, fingerprint, self.rounds)
        if saved is not None:
            self.done = saved.round
            self.states = checkpoints.unpack("states", saved.arrays, self.states)
            self.history.append(checkpoints.past(saved, len(self.seeds), ("objective", *self.task.task.bounds)))

    def go_on(self, listeners: Listeners, bar: Progress) -> None:
        """To the end, or to where a callback stops it, which is the end of a run of so many rounds."""
        if self.history:
            listeners.tell(self.history[0])
        while self.done < self.rounds:
            if listeners.stopped:
                self._save()
                self._checkpoint = None
                if not np.isnan(self.history[-1]["objective"][:, -1]).all():
                    return
                self.rounds = self.done + 1
            listeners.tell(self.advance())
            bar.update(self.done, **recording.shown(self.history[-1], self.task.task))

    def advance(self) -> dict[str, np.ndarray]:
        """One round of every seed, and its columns."""
        rows = []
        for i, seed in enumerate(self.seeds):
            self.states[i], row = self._round(self.states[i], seed, self.done)
            rows.append(row)
        columns = {name: np.stack([row[name] for row in rows])[:, None] for name in rows[0]}
        self.history.append(columns)
        self.done += 1
        if self._checkpoint and (self.done % self._checkpoint.every == 0 or self.done == self.rounds):
            self._save()
        return columns

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        self.history = [checkpoints.joined(self.history)]
        arrays = {checkpoints.HISTORY + name: column for name, column in self.history[0].items()}
        arrays |= checkpoints.pack("states", self.states)
        checkpoints.save(Path(self._checkpoint.directory), Saved(self.done, arrays, self._fingerprint))

    def _round(self, state: State, seed: int, t: int) -> tuple[State, dict[str, np.ndarray]]:
        algorithm, task, n, at = self.algorithm, self.task, len(self.data), (np.uint32(seed), np.int32(t))
        who, asked, theirs, of_asked = _host(jax_part.draw(algorithm, n, *at, self.counts))
        sums = self._sums(state, asked, self.asked, t, of_asked)
        places = who if len(asked) > len(who) else np.arange(len(who))
        sizes = [size[asked] for size in self.sizes]
        decided = jax_part.decide(algorithm, task, state.server, sums, sizes, places, n, asked, at)
        totals = self._walk(state, who, decided, t, theirs)
        everybody = n if algorithm.asks_first and t == 0 else len(asked)
        memory = jax.tree.map(lambda a: a[who], state.memory)
        server, found, memory, info = _host(
            jax_part.finish(algorithm, task, decided, state.found, memory, totals, at, everybody, who)
        )
        for old, new in zip(jax.tree.leaves(state.memory), jax.tree.leaves(memory), strict=True):
            old[who] = new
        values = {name: np.full(shape.shape, np.nan, shape.dtype) for name, shape in self._unknown.items()}
        if t + 1 == self.rounds or (self.evaluate_every and (t + 1) % self.evaluate_every == 0):
            sums = self._sums(replaced(state, server=server), range(n), self.every, t)
            values, worst = jax_part.values_of(task.task, sums, self.sizes)
            found = _host(jax_part.compared(found, server.replica, values["objective"], worst, n, at[1]))
        row = {"participants": who} | info | values
        return State(server, state.memory, state.buffers, found), _host(row | recording.in_all(_host(info), n))

    def _sums(self, state: State, who: Any, which: Any, t: int, drawn: Any = None) -> Any:
        """Some clients' sums of some quantities at the model, stacked; of all their examples if none were drawn."""
        if not len(which):
            return ()
        query, _, seeds = drawn or (None, None, [0] * len(who))
        return jax_part.stacked(
            [
                self._at(
                    *(client, t, self.worker.sums, state.server.replica, self.data[client], which),
                    buffers={name: array[client] for name, array in state.buffers.items()},
                    index=None if query is None else query[k],
                    seed=int(seeds[k]),
                )
                for k, client in enumerate(who)
            ]
        )

    def _walk(self, state: State, who: np.ndarray, decided: Any, t: int, drawn: Any) -> np.ndarray:
        """The participants' sums of directions; what their buffers have become is in the state."""
        _, steps, seeds = drawn
        slopes, shares, kept = _host((decided.slopes, decided.shares, decided.kept))
        step_size = float(decided.step_size)
        if self.together is not None:
            told = self.algorithm.local_steps if steps is None else steps
            with contextlib.suppress(Exception):  # one by one, then, which names the client if it fails as well
                return self.together.walk(state.server.replica, who, slopes, told, step_size, shares)
        totals = np.empty((len(who), self.worker.layout.size), np.float32)
        for k, client in enumerate(who):
            own = jax.tree.map(lambda a, k=k: a[k], slopes if self.linear else kept)
            totals[k], after = self._at(
                *(client, t, self.worker.walk, state.server.replica, self.data[client]),
                own if self.linear else jax_part.followed(self.task.task, decided.direction, own),
                steps=self.algorithm.local_steps if steps is None else steps[k],
                step_size=step_size,
                share=float(shares[k]),
                buffers={name: array[client] for name, array in state.buffers.items()},
                seed=int(seeds[k]),
            )
            for name, array in after.items():
                state.buffers[name][client] = array
        return totals

    def _at(self, client: int, t: int, call: Any, *args: Any, **more: Any) -> Any:
        """The call, whose errors name the client and the round."""
        try:
            return call(*args, **more)
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ClientError(f"client {client}, round {t}: {what}") from error

    def ends(self) -> Ends:
        found = jax.tree.map(lambda *leaves: np.stack(leaves), *(state.found for state in self.states))
        return found.ends(np.stack([state.server.replica for state in self.states]), self.done)

    def mean_buffers(self) -> dict[str, np.ndarray]:
        """Of every seed, what the clients' own buffers come to on average."""
        names = self.states[0].buffers
        return {
            name: np.stack([np.mean(state.buffers[name], axis=0).astype(array.dtype) for state in self.states])
            for name, array in names.items()
        }

    def values_at(
        self, vectors: np.ndarray, data: list[Weighed], buffers: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """The true values over the clients of ``data``, of [kind, seed] vectors; undefined where those are."""
        found = {name: np.full(vectors.shape[:2], np.nan, np.float32) for name in self._unknown}
        sizes = tuple(np.stack([each.sizes for each in data]).T)
        for kind, seed in np.argwhere(np.isfinite(vectors).all(axis=2)):
            own = self.states[seed].buffers if buffers is None else {name: a[seed, None] for name, a in buffers.items()}
            sums = [
                self.worker.sums(vectors[kind, seed], each, self.every, buffers={name: a[j] for name, a in own.items()})
                for j, each in enumerate(data)
            ]
            for name, value in jax_part.values_of(self.task.task, jax_part.stacked(sums), sizes)[0].items():
                found[name][kind, seed] = value
        return found


def _host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def _digest(data: list[Weighed]) -> str:
    """A short name for the clients' data: the examples, of tensors, and what each weighs."""
    trees = [(each.rows.tree if isinstance(each.rows, Tensors) else (), each.weights) for each in data]
    return checkpoints.digest(jax.tree.map(lambda tensor: tensor.cpu().numpy(), trees))
