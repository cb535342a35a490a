"""The federated run: Algorithm 1 over clients that may be slow, wrong or gone.

A round is two exchanges, ``measure`` and ``update``. Whoever fails in one is left out of that round; the round goes on
with the others. It counts when its checkpoint is written: until then no client has heard of the new model, and a server
that is stopped does the round again. What is decided from many clients' true values rides on the next round's first
exchange.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.describe import describe
from fedsgm.base.errors import SettingError
from fedsgm.base.progress import Progress
from fedsgm.base.structs import check_count, check_number, check_participants
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.problem import Problem, Task
from fedsgm.data.clients import Clients
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines.checkpoint import Checkpoint
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
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool | Progress = True,
) -> Result:
    """Run ``algorithm`` on ``problem`` over the clients that ``transport`` reaches, from ``params``.

    The result is that of :func:`simulate` with one seed. Its history says besides how many participants' messages each
    round used (``answered``) and how many clients the true values are of (``evaluated``); ``settings["federation"]``
    has each client's account.

    Args:
        rounds, seed, evaluate_every: as for :func:`simulate`.
        test: held-out examples on the server, measured at the end.
        min_participants: a round that fewer answer is repeated, a few times; then the run stops.
        timeout: seconds that a client has for an answer.
        checkpoint: a folder, or a :class:`Checkpoint`; the run saves itself there after every round, so that it can be
            resumed with nothing lost or counted twice.
        progress: show progress on standard error, or tell this :class:`Progress` of it.
    """
    check_count("federate", "rounds", rounds)
    check_count("federate", "seed", seed, least=0)
    check_count("federate", "evaluate_every", evaluate_every, least=0)
    check_count("federate", "min_participants", min_participants)
    check_number("federate", "timeout", timeout, above=0)
    if seed >= 2**32:
        raise SettingError(f"federate: seed={seed}, but seeds must be below {2**32}")
    names = list(transport.clients())
    check_participants(algorithm.participants, len(names))
    participants = algorithm.participants or len(names)
    if min_participants > participants:
        raise SettingError(f"min_participants={min_participants}, but {participants} clients take part in a round")
    program = Program.of(algorithm, problem, params)
    held_out = None if test is None else _held_out(problem, test, params)
    settings = {
        "algorithm": describe(algorithm),
        "problem": describe(problem),
        "clients": len(names),
        "parameters": program.size,
        "seeds": [seed],
        "evaluate_every": evaluate_every,
    }
    fingerprint = settings | {"names": names, "start": checkpoints.digest(program.start)}
    run = Run(
        program,
        transport,
        seed=seed,
        rounds=rounds,
        evaluate_every=evaluate_every,
        min_participants=min_participants,
        timeout=timeout,
    )
    if isinstance(checkpoint, (str, Path)):
        checkpoint = Checkpoint(checkpoint)
    if checkpoint is not None:
        run.keep_in(checkpoint, fingerprint)
    with progress if isinstance(progress, Progress) else Progress("FedSGM", rounds, show=progress) as bar:
        while run.round < rounds:
            run.step()
            bar.update(run.round, **_shown(run.history))
        ends, train = run.finish()
    values = {"train": train}
    if held_out is not None:
        tested = [program.summarise([program.evaluate(w, held_out)])[0] for w in ends]
        values["test"] = {name: np.array([[one[name]] for one in tested], np.float32) for name in train}
    layout = program.task.layout
    last, average, best = (layout.unflatten(w) for w in ends)
    return Result(
        history=_columns(run.history, ("objective", *problem.bounds)),
        last=last,
        average=average,
        best_feasible=best,
        values=values,
        bounds={name: float(bound) for name, bound in problem.bounds.items()},
        settings=settings | {"rounds": rounds, "federation": {"clients": [account.row() for account in run.accounts]}},
    )


def _columns(history: dict[str, np.ndarray], first: tuple[str, ...]) -> dict[str, np.ndarray]:
    """In the order that a simulated run's have, with an axis of one seed."""
    last = ("answered", "evaluated", "bytes_up", "bytes_down")
    middle = sorted(history.keys() - {*first, *last})
    return {name: history[name][None] for name in (*first, *middle, *last)}


def _shown(history: dict[str, np.ndarray]) -> dict[str, float]:
    """The last of each that is known, for the progress bar."""
    shown = {}
    for name in ("objective", "violation", "weight"):
        known = history[name][~np.isnan(history[name])] if name in history else np.zeros(0)
        if len(known):
            shown[name] = float(known[-1])
    return shown


def _held_out(problem: Task, test: Any, params: Any) -> Any:
    if not isinstance(problem, Problem):
        raise SettingError("the test data: this task has no examples, so leave test out")
    examples = Clients.from_list([jax.tree.map(np.asarray, test)])
    return jax.tree.map(lambda a: a[0], problem.prepare(examples, params, owner="the test data"))
