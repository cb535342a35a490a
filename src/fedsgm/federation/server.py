"""The federated run: Algorithm 1 over clients that may be slow, wrong or gone.

A round is two exchanges, ``measure`` and ``update``. Whoever fails in one is left out of that round; the round goes on
with the others. It counts when its checkpoint is written: until then no client has heard of the new model, and a server
that is stopped does the round again. What is decided from many clients' true values rides on the next round's first
exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base.errors import FederationError, SettingError
from fedsgm.base.progress import Progress
from fedsgm.base.structs import check_count, check_number
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.task import Task
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines import recording
from fedsgm.engines.callbacks import Callback, Listeners
from fedsgm.engines.checkpoint import Checkpoint
from fedsgm.engines.recording import Ends
from fedsgm.federation.held_out import held_out as held_out_by
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import Transport
from fedsgm.federation.run import Run
from fedsgm.privacy.private import Private
from fedsgm.privacy.task import planned
from fedsgm.results.result import Result


def federate(
    algorithm: FedSGM,
    problem: Task,
    transport: Transport,
    params: Any,
    *,
    rounds: int,
    seed: int = 0,
    test: Any = None,
    evaluate_every: int = 1,
    min_participants: int = 1,
    timeout: float = 60.0,
    beside: Sequence[Any] = (),
    secure: bool = False,
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool | Progress = True,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run ``algorithm`` on ``problem`` over the clients that ``transport`` reaches, from ``params``.

    The result is that of :func:`simulate` with one seed. Its history says besides how many participants' messages each
    round used (``answered``) and how many clients the true values are of (``evaluated``); ``settings["federation"]``
    has each client's account.

    >>> import tempfile
    >>> import fedsgm as fs
    >>> from fedsgm.federation import Program
    >>> from fedsgm.federation.inprocess import InProcess
    >>> clients = fs.split({"a": np.arange(8, dtype=np.float32)}, clients=4)
    >>> size = fs.Mean(lambda w, example: w, name="size")
    >>> problem = fs.Problem(lambda w, example: (w - example["a"]) ** 2, [size <= 2.0])
    >>> algorithm, start = fs.FedSGM(0.1), np.float32(0)
    >>> with tempfile.TemporaryDirectory() as folder:  # clients in this process, in place of sites
    ...     transport = InProcess.of(Program.of(algorithm, problem, start), clients, folder)
    ...     result = fs.federate(algorithm, problem, transport, start, rounds=20, progress=False)
    >>> same = fs.simulate(algorithm, problem, clients, start, rounds=20, progress=False)
    >>> bool(np.isclose(result.last, same.last)), int(result.history["answered"].sum())
    (True, 80)

    Args:
        params, rounds, seed, evaluate_every: as for :func:`simulate`, but the last is every round unless told.
        test: held-out examples on the server, measured at the end; or ``"clients"``, the examples that the clients
            hold out themselves (:class:`fedsgm.federation.Parts`), measured there.
        min_participants: a round that fewer answer is repeated, a few times; then the run stops.
        timeout: seconds that a client has for an answer.
        beside: other parameters, whose true values are measured at the end, too: ``settings["federation"]["beside"]``.
        secure: the server sees sums of statistics and updates alone, over more than two thirds of the clients; the
            uplink is ``SharedK``, and a round that fewer answer is repeated. See ``docs/secure.md``.
        checkpoint: a folder, or a :class:`Checkpoint`; the run saves itself there after every round, so that it can be
            resumed with nothing lost or counted twice.
        progress: show progress on standard error, or tell this :class:`Progress` of it.
        callbacks: as for :func:`simulate`; they hear of a round when the next is done, and of the clients' accounts.
    """
    names = list(transport.clients())
    _check(rounds, seed, evaluate_every, timeout, min_participants, algorithm.cohort(len(names)))
    problem, _ = planned(algorithm, problem, rounds, seed, names)
    evaluate_every = _measured_every(problem, evaluate_every, beside)
    program = Program.of(algorithm, problem, params, seed)
    pooled = program.pooled if isinstance(test, str) and test == "clients" else None
    held_out = None if test is None or pooled else program.held_out(test)
    sizes = {"clients": len(names), "parameters": program.size}
    settings = recording.settings_of(algorithm, problem, seeds=[seed], evaluate_every=evaluate_every, **sizes)
    kind = _kind(secure, algorithm, problem, len(names), test)
    asked = {"rounds": rounds, "evaluate_every": evaluate_every, "min_participants": min_participants}
    also = [program.task.layout.flatten(each) for each in beside]
    run = kind(program, transport, seed=seed, timeout=timeout, beside=also, **asked)
    if checkpoint is not None:
        kept = Checkpoint(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
        run.keep_in(kept, settings | {"names": names, "start": checkpoints.digest(program.start)})
    listeners = Listeners(callbacks, settings, problem.ranges, rounds)
    with progress if isinstance(progress, Progress) else Progress("FedSGM", rounds, show=progress) as bar, listeners:
        told = _go_on(run, listeners, bar, problem)
        ends, train, others = run.finish()
        _tell(listeners, run, told, run.round)
        own = held_out_by(run, ends, pooled) if pooled else None
    ends = Ends(ends.vectors[:, None], ends.rounds[:, None])
    values = {"train": train} | ({} if own is None else {"test": own})
    if held_out is not None:
        values["test"] = program.values_at(ends.vectors, held_out)
    accounts = [account.row() for account in run.accounts]
    settings = listeners.settings(run.rounds) | {"federation": {"clients": accounts, "beside": others}}
    settings |= recording.worst_clients(train, problem.ranges)
    unflatten = program.task.layout.unflatten
    result = recording.finished(
        *(_with_seed(run.history.columns), ends, values, settings, problem), lambda stack: unflatten(stack[0])
    )
    recording.check_promise(result, problem)
    listeners.finish(result, accounts)
    return result


def _measured_every(problem: Task, told: int, beside: Sequence[Any]) -> int:
    """After how many rounds true values are measured: those of a private run are not."""
    if isinstance(problem, Private) and beside:
        raise SettingError("federate: a private run measures its own models alone; leave beside out")
    return 0 if isinstance(problem, Private) else told


def _go_on(run: Run, listeners: Listeners, bar: Progress, problem: Task) -> int:
    """To the end, or to where a callback stops it; of so many rounds callbacks are told then."""
    told = _tell(listeners, run, 0, run.round - 1)
    while run.round < run.rounds and not listeners.stopped and run.affords():
        run.step()
        bar.update(run.round, **recording.shown(_with_seed(run.history.columns), problem))
        told = _tell(listeners, run, told, run.round - 1)
    if run.round < run.rounds and not listeners.stopped:
        listeners.stopped = "the privacy budget is spent"
        if not run.round:
            raise FederationError("the privacy budget was spent before a round was done; see why clients do not answer")
    run.rounds = run.round
    run.history.cut(run.round)
    return told


def _tell(listeners: Listeners, run: Run, told: int, until: int) -> int:
    """Callbacks, of the rounds since those that they were told of; so many they know then."""
    until = max(told, until)
    if listeners.callbacks and (until or run.round):
        columns = {name: column[None, told:until] for name, column in run.history.columns.items()}
        listeners.tell(columns, [account.row() for account in run.accounts])
    return until


def _kind(secure: bool, algorithm: FedSGM, problem: Task, clients: int, test: Any) -> type[Run]:
    """What runs it; secure aggregation is imported where it is wanted."""
    if not secure:
        return Run
    from fedsgm.federation.secure import SecureRun, check

    check(algorithm, problem, clients, test)
    return SecureRun


def _check(
    rounds: int, seed: int, evaluate_every: int, timeout: float, min_participants: int, participants: int
) -> None:
    check_count("federate", "rounds", rounds)
    check_count("federate", "seed", seed, least=0, most=2**32 - 1)
    check_count("federate", "evaluate_every", evaluate_every, least=0)
    check_count("federate", "min_participants", min_participants)
    check_number("federate", "timeout", timeout, above=0)
    if min_participants > participants:
        raise SettingError(f"min_participants={min_participants}, but {participants} clients take part in a round")


def _with_seed(history: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With the axis of one seed."""
    return {name: column[None] for name, column in history.items()}
