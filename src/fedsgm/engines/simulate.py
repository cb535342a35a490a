"""The compiled engine: all clients in one program, rounds in a loop, seeds side by side.

The loop's bounds are arguments of the program, so one compilation serves every number of rounds, every
chunk and every point of resuming, and all of them give the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base import sizes
from fedsgm.base.cache import use_compilation_cache
from fedsgm.base.errors import CheckpointError, SettingError
from fedsgm.base.layout import Layout, starts_of
from fedsgm.base.lock import held
from fedsgm.base.progress import Progress
from fedsgm.base.structs import LARGEST_SEED, as_float32, check_count, replaced
from fedsgm.core import wire
from fedsgm.core.algorithm import Flat
from fedsgm.core.examples import Examples
from fedsgm.core.problem import Problem
from fedsgm.core.task import Algorithm, Task
from fedsgm.data.clients import Clients
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines import recording, work
from fedsgm.engines.callbacks import Callback, Listeners
from fedsgm.engines.checkpoint import Checkpoint, Saved
from fedsgm.engines.device import OnDevice, all_devices
from fedsgm.engines.hosts import agreed, all_there
from fedsgm.engines.offload import Offloaded
from fedsgm.engines.recording import Ends
from fedsgm.engines.rounds import Compiled, first_memory
from fedsgm.privacy.private import Private
from fedsgm.privacy.task import plain, planned
from fedsgm.results.reading import ALWAYS
from fedsgm.results.result import Result

_LARGE = 2**24  # bytes of clients' data, from which they are kept off the device where there is nothing to bring back
_NARROW = 64  # entries of an example: those of more gain nothing by another layout (see _is_turned)
_PADDED = 1.5  # times the room of all examples, at most, that it may take
_SHARE = 0.25  # of a device's memory, that clients may take
_MOST_SEEDS = 2**16  # at once
_CHUNK_SECONDS = 0.25  # how long a chunk should take: the bar moves, dispatch costs nothing


def simulate(
    algorithm: Algorithm,
    problem: Task,
    clients: Any,
    params: Any = None,
    *,
    rounds: int,
    seed: int = 0,
    seeds: int | None = None,
    test: Any = None,
    evaluate_every: int | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    offload: bool | str | Path | None = None,
    progress: bool = True,
    debug: bool = False,
    block: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run ``algorithm`` on ``problem`` over ``clients`` from ``params``.

    >>> import fedsgm as fs
    >>> clients = fs.split({"a": np.arange(8, dtype=np.float32)}, clients=4)
    >>> size = fs.Mean(lambda w, example: w, name="size")
    >>> problem = fs.Problem(lambda w, example: (w - example["a"]) ** 2, [size <= 2.0])
    >>> result = fs.simulate(fs.FedSGM(0.1), problem, clients, np.float32(0), rounds=50, progress=False)
    >>> bool(result.feasible.all()), bool(1.8 < result.answer <= 2.0)  # the mean is 3.5
    (True, True)

    Args:
        clients: :class:`Clients` for a :class:`Problem`; another task says what its clients are.
        params: a pytree of arrays, or a function of the seed that gives one; a PyTorch problem's module has its own.
        rounds: T.
        seed: the run's seed. With ``seeds=k``, the runs of seeds ``seed, ..., seed + k - 1`` in one program;
            every array of the result then has a leading axis of k.
        test: held-out examples, measured at the end.
        evaluate_every: the true objective and constraints over all clients every so many rounds, and at the end; 0 is
            only at the end. None is every round, or, where that is much beside the round's work, less often.
        checkpoint: a folder, or a :class:`Checkpoint`, to save the run in.
        offload: True keeps clients' data and memories off the device, a folder keeps the memories in files there, and
            only the participants' are brought in, a few rounds' at a time. Unless told, that is done where part of the
            clients take part and all of theirs is large. The query must be the participants' own, or ``"memory"``.
        progress: show progress on standard error.
        debug: run op by op, without compilation; an error names the client and the round.
        block: how many clients are worked on at once, at most; None is a number that suits the model's size.
        callbacks: functions that are told of rounds as they come, and may stop the run (:mod:`fedsgm.callbacks`).
    """
    seed_list = _check(rounds, seed, seeds, evaluate_every, block)
    stated, (problem, epsilon) = problem, planned(algorithm, problem, rounds, seed, clients)
    evaluate_every, offload = _kept_private(problem, seeds, evaluate_every, offload)
    if hasattr(problem, "simulate"):  # another framework's, with an engine of its own
        if offload or debug or block:
            raise SettingError("simulate: offload, debug and block are for problems in JAX; leave them out")
        told = {"rounds": rounds, "seeds": seed_list, "several": seeds is not None, "test": test, "progress": progress}
        told |= {"evaluate_every": evaluate_every, "callbacks": callbacks}
        with _hold(checkpoint):
            return problem.simulate(algorithm, clients, params, checkpoint, **told)
    use_compilation_cache()
    starts = starts_of(params, seed_list)
    params, layout = starts[0], Layout.of(starts[0])
    held_out = None if test is None else recording.held_out(stated, test, params, _one_of(clients))
    evaluate_every = recording.rounds_between(evaluate_every, algorithm, clients, layout.size)
    w = np.stack([layout.flatten(jax.tree.map(np.asarray, start)) for start in starts])
    sizes = {"clients": len(clients), "parameters": layout.size}
    settings = recording.settings_of(algorithm, problem, seeds=seed_list, evaluate_every=evaluate_every, **sizes)
    traced, task = as_float32((algorithm, Flat(problem, layout)))
    light = work.small(algorithm, clients, layout.size, rounds=rounds, seeds=len(w), evaluate_every=evaluate_every)
    program = Compiled(traced, task, rounds, len(clients), evaluate_every, debug, block, light=light)
    with _hold(checkpoint, offload), all_there():
        ground, data = _ground(program, problem, clients, params, np.array(seed_list, np.uint32), offload)
        run = Run(ground, w, epsilon)
        if checkpoint is not None:
            kept = Checkpoint(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
            made_of = {"data": checkpoints.digest(data), "start": checkpoints.digest(w)}
            run.keep_in(kept, settings | made_of | {"offload": isinstance(ground, Offloaded)})
        listeners = Listeners(callbacks, settings, problem.ranges, rounds, listens=jax.process_index() == 0)
        with Progress("FedSGM", rounds, show=progress) as bar, jax.disable_jit(debug), listeners:
            run.go_on(listeners, bar)
            bar.doing("measuring what was found")
            ends = run.ends()
            values = {"train": ground.values(ends.vectors)}
            if held_out is not None:
                values["test"] = recording.values_at(plain(task), ends.vectors, held_out)
    unflatten = layout.unflatten if seeds is not None else lambda stack: layout.unflatten(stack[0])
    history, settings = checkpoints.joined(run.history), listeners.settings(run.done)
    settings |= recording.worst_clients(values["train"], problem.ranges)
    result = recording.finished(history, ends, values, settings, problem, unflatten)
    recording.check_promise(result, problem, clients, params)
    listeners.finish(result)
    return result


def _one_of(clients: Any) -> Any:
    """One client's examples, where clients have any."""
    return clients[0] if isinstance(clients, Clients) else None


def _kept_private(
    problem: Task, seeds: int | None, evaluate_every: int | None, offload: bool | str | Path | None
) -> tuple[int | None, bool | str | Path | None]:
    """When true values are measured, which is not on the way in a private run; its clients stay on the device."""
    if not isinstance(problem, Private):
        return evaluate_every, offload
    if seeds is not None:
        raise SettingError("simulate: each seed of a private run would spend a budget of its own; leave seeds out")
    return 0, False


@contextlib.contextmanager
def _hold(checkpoint: Any, offload: Any = None) -> Iterator[None]:
    """The folders that a run keeps itself and its clients' memories in; of several processes, the first holds them."""
    with contextlib.ExitStack() as stack:
        if checkpoint is not None and jax.process_index() == 0:
            stack.enter_context(held(Path(getattr(checkpoint, "directory", checkpoint)), "checkpoint"))
        if isinstance(offload, (str, Path)):
            stack.enter_context(held(Path(offload), "offload"))
        yield


def _check(rounds: int, seed: int, seeds: int | None, evaluate_every: int | None, block: int | None) -> list[int]:
    """The seeds, after a look at all numbers."""
    check_count("simulate", "rounds", rounds)
    check_count("simulate", "seed", seed, least=0, most=LARGEST_SEED)
    check_count("simulate", "evaluate_every", 1 if evaluate_every is None else evaluate_every, least=0)
    check_count("simulate", "seeds", 1 if seeds is None else seeds, most=_MOST_SEEDS)
    check_count("simulate", "block", 1 if block is None else block)
    if seed + (seeds or 1) > 2**32:
        raise SettingError(f"simulate: seed={seed}, but seeds must be below {2**32}")
    return list(range(seed, seed + (seeds or 1)))


def _ground(
    program: Compiled, problem: Task, clients: Any, params: Any, seeds: np.ndarray, offload: bool | str | Path | None
) -> tuple[OnDevice | Offloaded, Any]:
    """Where the clients' data and memories are in the run; and the data."""
    algorithm, n, d = program.algorithm, program.n, program.task.layout.size
    m, devices = algorithm.cohort(n), None if program.debug else all_devices()
    able = m < n and _asked(algorithm, m, n) == m and devices is None and not program.debug
    if offload and not (able and isinstance(problem, Problem)):
        raise SettingError(
            "simulate: offload is for a Problem, on one device and without debug, some of whose clients take part and "
            "are asked; set participants, leave out query='all', or leave out offload"
        )
    if not isinstance(problem, Problem):
        data = problem.prepare(clients, params)
        if isinstance(data, Examples) and _is_turned(program, clients):
            data = data.turned()
        data = sizes.ready(data, m, algorithm.draws)
        devices = None if isinstance(data, sizes.BySize) else devices
        return OnDevice(replaced(program, devices=devices), data, seeds), data
    rows, counts = problem.weighed(clients, params), clients.counts
    rows = replaced(rows, turn=_is_turned(program, clients))
    large = _large(wire.nbytes(rows), len(seeds) * n * wire.nbytes(first_memory(program, d)))
    ground: OnDevice | Offloaded
    if able and (offload or (offload is None and large)):
        folder = Path(offload) if isinstance(offload, (str, Path)) else None
        ground = Offloaded(program, rows, counts, seeds, d, folder)
    elif devices is not None:
        own = functools.partial(sizes.padded, rows, counts)
        ground = OnDevice(replaced(program, devices=devices), own, seeds)
    else:
        ground = OnDevice(program, sizes.ready(sizes.arranged(rows, counts), m, algorithm.draws), seeds)
    return ground, (rows, counts)


def _is_turned(program: Compiled, clients: Any) -> bool:
    """Whether examples are along the last axis: full batches of few features, no multiple of eight, are faster there.

    That is so of linear models on CPUs: a round takes 0.34 to 0.87 of the time, and with 100 features up to 1.2.
    """
    algorithm: Any = program.algorithm
    batches = algorithm.draws or getattr(algorithm, "constraint_batch_size", None) is not None
    if batches or program.task.layout.matrices or jax.default_backend() != "cpu":
        return False
    width = max(math.prod(a.shape[1:]) for a in jax.tree.leaves(clients.examples))
    padded = np.sum(-(-clients.counts // 8) * 8)
    return 1 < width < _NARROW and width % 8 > 0 and bool(padded <= _PADDED * np.sum(clients.counts))


def _large(data: int, memories: int) -> bool:
    """Whether clients of so many bytes are kept off the device.

    On a CPU, to bring data in beside the rounds is no slower than to gather them in the rounds, and takes the same time
    however many they are. Memories have to be put back as well: a round takes up to half as long again.
    """
    told = jax.local_devices()[0].memory_stats()  # None of a CPU
    room = told["bytes_limit"] if told else _memory()
    return data + memories > _SHARE * room or (told is None and not memories and data > _LARGE)


def _memory() -> float:
    """Bytes of this machine, where it tells."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf


def _asked(algorithm: Algorithm, m: int, n: int) -> int:
    """How many of n clients are asked in a round in which m take part."""
    return len(jax.eval_shape(lambda: algorithm.queried(jnp.arange(m), n)))


class Run:
    """A run under way: the state of every seed, and the history so far."""

    def __init__(self, ground: OnDevice | Offloaded, w: np.ndarray, epsilon: np.ndarray | None = None) -> None:
        self.ground, self._epsilon = ground, epsilon  # after each round, of a private run
        self.rounds = int(ground.program.rounds)
        self.state = ground.start(w)
        self.history: list[dict[str, np.ndarray]] = []
        self.done = 0
        self._size = 16  # rounds of the next chunk
        self._checkpoint: Checkpoint | None = None
        self._fingerprint: dict[str, Any] = {}

    def keep_in(self, checkpoint: Checkpoint, fingerprint: dict[str, Any]) -> None:
        """Save the run there from now on, and go on from what is there, if that is wanted."""
        self._checkpoint, self._fingerprint = checkpoint, fingerprint
        saved = checkpoints.resume(checkpoint, fingerprint, self.rounds)
        self.done = 0 if saved is None else saved.round
        first = agreed(self.done)
        if first != self.done:
            raise CheckpointError(
                f"{checkpoint.directory}: this process sees round {self.done} there, and the first process round "
                f"{first}; it must be one folder that all processes share"
            )
        if saved is not None:
            self.state = self.ground.unpacked(saved.arrays, self.state)
            names = (*ALWAYS, *self.ground.program.task.task.bounds)
            self.history.append(checkpoints.past(saved, len(self.ground.seeds), names))
            if self._epsilon is not None and np.isfinite(self.history[-1]["objective"][:, -1]).any():
                raise CheckpointError(
                    f"{checkpoint.directory}: this private run has ended and told its values; begin anew"
                )

    def go_on(self, listeners: Listeners, bar: Progress) -> None:
        """To the end, or to where a callback stops it."""
        if self.history:
            listeners.tell(self.history[0])
        while self.done < self.rounds and not agreed(bool(listeners.stopped)):
            listeners.tell(self.advance(listeners))
            bar.update(self.done, **recording.shown(self.history[-1], self.ground.program.task.task))
        if self.done < self.rounds:
            self._end(listeners)

    def _end(self, listeners: Listeners) -> None:
        """End before the time: as a run of so many rounds does, with true values of the last.

        Where they are not measured yet, that is the round after this; a run that goes on from the checkpoint has none.
        """
        self._save()
        self._checkpoint = None
        if np.isnan(self.history[-1]["objective"][:, -1]).all():
            self.rounds = self.done + 1
            self.ground.program = replaced(self.ground.program, rounds=self.rounds)
            listeners.tell(self.advance(listeners))

    def advance(self, listeners: Listeners) -> dict[str, np.ndarray]:
        """One chunk of rounds, and their columns."""
        every = self._checkpoint.every if self._checkpoint else None
        stop = listeners.until(self.done, min(self.done + self._size, self.rounds))
        if every:
            stop = min(stop, self.done + every - self.done % every)
        stop = self.ground.until(self.done, stop)
        began = time.perf_counter()
        self.state, chunk = self.ground.advance(self.state, self.done, stop)
        chunk |= recording.in_all(chunk, self.ground.program.n)
        chunk |= {} if self._epsilon is None else {"epsilon": self._epsilon[None, self.done : stop]}
        seconds = (time.perf_counter() - began) / (stop - self.done)
        self._size = agreed(max(1, min(self.ground.capacity, int(_CHUNK_SECONDS / seconds))))
        self.history.append(chunk)
        self.done = stop
        if every and (stop % every == 0 or stop == self.rounds):
            self._save()
        return chunk

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        self.history = [checkpoints.joined(self.history)]
        arrays = {checkpoints.HISTORY + name: column for name, column in self.history[0].items()}
        saved = Saved(self.done, arrays | self.ground.packed(self.state), self._fingerprint)
        checkpoints.save(Path(self._checkpoint.directory), saved, jax.process_index(), jax.process_count())

    def ends(self) -> Ends:
        found, last = jax.tree.map(np.asarray, (self.state.found, self.state.server.replica))
        private = isinstance(self.ground.program.task.task, Private)
        ends = found.ends(last, self.done, found.mean(self.done) if private else None)
        if not ((ends.rounds >= 0) & (ends.rounds <= self.done)).all():
            raise CheckpointError("the checkpoint has found something in a round that there was none of; start again")
        return ends
