"""A run as an engine's server carries it out: from what was stated to the result in a folder."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from fedsgm.base.errors import CheckpointError, FedSGMError
from fedsgm.base.progress import Progress
from fedsgm.engines.checkpoint import Checkpoint
from fedsgm.federation.agreement import carry_out
from fedsgm.federation.experiment import Experiment
from fedsgm.federation.news import Noted
from fedsgm.federation.preparation import Preparation
from fedsgm.federation.protocol import Transport
from fedsgm.results.result import Result


def run(stated: Experiment | Preparation, transport: Transport, state: Path, out: Path, report: Report) -> Result:
    """Run it with its checkpoint in ``state``, going on from one that is there, and save the result in ``out``."""
    federate = functools.partial(_federate, state, report)
    if isinstance(stated, Preparation):
        result, agreed = carry_out(stated, transport, federate, state)
        result.save(out)
        stated.keep(agreed, result, out)
    else:
        result = federate(stated, transport)
        result.save(out)
    return result


def outcome(error: Exception | None, again: str) -> dict[str, Any]:
    """What is told of a run's end. ``again`` says how to begin a run of another name."""
    if error is None:
        return {"error": None}
    what = str(error)
    if not isinstance(error, FedSGMError):
        what = f"{type(error).__name__}: {what.partition(chr(10))[0]}"
    if isinstance(error, CheckpointError):
        what += f" (that is, {again})"
    return {"error": what, "kind": type(error).__name__}


class Report(Progress):
    """Progress for somebody on another machine to ask for: ``done`` has the round, how many there are, and values.

    ``noted`` has what callbacks there are to be told.
    """

    def __init__(self) -> None:
        super().__init__("", 0, show=False)
        self.done: dict[str, Any] = {"round": 0, "rounds": 0, "values": {}}
        self.noted = Noted()

    def update(self, done: int, **values: float) -> None:
        self.done.update(round=done, values={name: float(value) for name, value in values.items()})


def _federate(state: Path, report: Report, experiment: Experiment, transport: Transport) -> Result:
    from fedsgm.federation.server import federate

    report.done["rounds"] = experiment.rounds
    return federate(
        experiment.algorithm,
        experiment.problem,
        transport,
        experiment.params,
        rounds=experiment.rounds,
        seed=experiment.seed,
        test=experiment.test() if callable(experiment.test) else experiment.test,
        evaluate_every=experiment.evaluate_every,
        min_participants=experiment.min_participants,
        timeout=experiment.timeout,
        beside=experiment.beside,
        secure=experiment.secure,
        checkpoint=Checkpoint(state, every=1, resume=True),
        progress=report,
        callbacks=[report.noted],
    )
