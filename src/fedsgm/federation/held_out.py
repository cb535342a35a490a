"""At the end of a run: what the clients' own held-out examples say of the parameters that it found."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from fedsgm.engines.recording import Ends
from fedsgm.federation.answers import WRONG_SHAPE, Forms, Reasons, read_held_out, values_of
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import Kind
from fedsgm.federation.run import TRIES, Run

log = logging.getLogger(__name__)


def held_out(run: Run, ends: Ends, program: Program) -> dict[str, np.ndarray] | None:
    """Their values over all examples that the clients hold out, of those that answer; None where nobody does."""
    run.panel.up = run.panel.down = 0
    models = list(dict.fromkeys(w.tobytes() for w in ends.vectors if np.isfinite(w).all()))
    answers: dict[int, Any] = {}
    reasons: Reasons = {}
    for _ in range(TRIES):
        missing = {client: Kind.TEST for client in run.everybody if client not in answers}
        if not missing:
            break
        reports, why = run.panel.ask(
            *(run.model, missing, b"".join(models), lambda _, content: read_held_out(content, len(models))),
            odd=lambda _: {},
            enough=lambda answered: len(answered) > 0,
        )
        answers |= reports
        reasons |= why
    run.count_frames()
    if len(answers) < run.min_participants:
        raise run.too_few(list(run.everybody), reasons)
    evaluations = Forms(program).alike({client: each for client, each in answers.items() if each is not None})
    for client in run.everybody:
        if client not in evaluations and answers.get(client, ()) is not None:
            reason = reasons.get(client, WRONG_SHAPE)
            log.warning("what %s holds out is not measured: %s", run.accounts[client].name, reason)
    if not evaluations:
        return None
    found = {model: program.summarise([e[i] for e in evaluations.values()]) for i, model in enumerate(models)}
    return values_of(found, ends)
