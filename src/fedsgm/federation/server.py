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

from fedsgm.base.errors import SettingError
from fedsgm.base.progress import Progress
from fedsgm.base.structs import check_count, check_number
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.task import Task
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines import recording
from fedsgm.engines.checkpoint import Checkpoint
from fedsgm.engines.recording import Ends
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import Transport
from fedsgm.federation.run import Run
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
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool | Progress = True,
) -> Result:
    """Run ``algorithm`` on ``problem`` over the clients that ``transport`` reaches, from ``params``.

    The result is that of :func:`simulate` with one seed. Its history says besides how many participants' messages each
    round used (``answered``) and how many clients the true values are of (``evaluated``); ``settings["federation"]``
    has each client's account.

    Args:
        params, rounds, seed, evaluate_every: as for :func:`simulate`, but the last is every round unless told.
        test: held-out examples on the server, measured at the end; or ``"clients"``, the examples that the clients
            hold out themselves (:class:`fedsgm.federation.Parts`), measured there.
        min_participants: a round that fewer answer is repeated, a few times; then the run stops.
        timeout: seconds that a client has for an answer.
        beside: other parameters, whose true values are measured at the end, too: ``settings["federation"]["beside"]``.
        checkpoint: a folder, or a :class:`Checkpoint`; the run saves itself there after every round, so that it can be
            resumed with nothing lost or counted twice.
        progress: show progress on standard error, or tell this :class:`Progress` of it.
    """
    names = list(transport.clients())
    _check(rounds, seed, evaluate_every, timeout, min_participants, algorithm.cohort(len(names)))
    program = Program.of(algorithm, problem, params, seed)
    pooled = program.pooled if isinstance(test, str) and test == "clients" else None
    held_out = None if test is None or pooled else program.held_out(test)
    settings = recording.settings_of(
        algorithm,
        problem,
        clients=len(names),
        parameters=program.size,
        seeds=[seed],
        evaluate_every=evaluate_every,
    )
    run = Run(
        program,
        transport,
        seed=seed,
        rounds=rounds,
        evaluate_every=evaluate_every,
        min_participants=min_participants,
        timeout=timeout,
        beside=[program.task.layout.flatten(each) for each in beside],
    )
    if checkpoint is not None:
        kept = Checkpoint(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
        run.keep_in(kept, settings | {"names": names, "start": checkpoints.digest(program.start)})
    with progress if isinstance(progress, Progress) else Progress("FedSGM", rounds, show=progress) as bar:
        while run.round < rounds:
            run.step()
            bar.update(run.round, **recording.shown(_with_seed(run.history.columns), problem))
        ends, train, others = run.finish()
        own = run.held_out(ends, pooled) if pooled else None
    ends = Ends(ends.vectors[:, None], ends.rounds[:, None])
    values = {"train": train} | ({} if own is None else {"test": own})
    if held_out is not None:
        values["test"] = program.values_at(ends.vectors, held_out)
    accounts = [account.row() for account in run.accounts]
    result = recording.finished(
        _with_seed(run.history.columns),
        ends,
        values,
        settings | {"rounds": rounds, "federation": {"clients": accounts, "beside": others}},
        problem,
        lambda stack: program.task.layout.unflatten(stack[0]),
    )
    recording.check_promise(result, problem)
    return result


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
