"""Neyman-Pearson: the effect of local steps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.lines import Tuned, by_seed, compared, summary
from fedsgm.paper.study import Claim, Findings, Scale, Study
from fedsgm.results.result import Result

STEPS = (1, 2, 5, 10)
LINES = [np_task.line(f"{name}, E = {e}", rule, local_steps=e) for name, rule in np_task.RULES.items() for e in STEPS]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = np_task.tuned(LINES, results, scale)
    halves = {"hard": tuned[: len(STEPS)], "soft": tuned[len(STEPS) :]}
    claims = []
    for rule, lines in halves.items():
        step = lines[STEPS.index(np_task.LOCAL_STEPS)].step
        alike = [line.line.at(step, line.data, results) for line in lines]
        claims += _claims(f"{rule}, step size {step:g}", alike)
        if {line.step for line in lines} != {step}:
            claims += _claims(f"{rule}, each step size tuned", lines)
    return Findings(np_task.picture(halves, scale), [summary(tuned), by_seed(tuned)], claims, [_NOTE])


def _claims(what: str, lines: Sequence[Tuned]) -> list[Claim]:
    early = [line.objective[:, line.objective.shape[1] // 5 - 1] for line in lines]  # round 100 of 500
    few, many = lines[0], lines[-1]
    return [
        compared(
            f"More local steps help ({what})",
            "objective after a fifth of the rounds",
            (many.label, early[-1]),
            (few.label, early[0]),
        ),
        _less_and_less(what, [float(values.mean()) for values in early]),
        compared(
            f"The constraint swings more with more local steps ({what})",
            "its standard deviation over a run's last 100 rounds",
            (few.label, few.swing),
            (many.label, many.swing),
        ),
    ]


def _less_and_less(what: str, means: list[float]) -> Claim:
    pairs = list(zip(itertools.pairwise(STEPS), itertools.pairwise(means), strict=True))
    gains = [(before - after) / (more - fewer) for (fewer, more), (before, after) in pairs]
    told = ", ".join(f"{a} to {b}: {gain:.2g}" for ((a, b), _), gain in zip(pairs, gains, strict=True))
    return Claim(f"Each further local step helps less ({what})", f"gain for each step: {told}", gains[0] > gains[-1])


_NOTE = (
    "Ten local steps of one size go further than one does, so E and the step size are two handles of much the same "
    "thing: tuned for each E apart, the step size gives back part of what E does. The claims are put both ways, with "
    "the step size of E = 5 for all, and with each line's own; the picture has each line's own."
)

STUDY = Study(
    "np-local-steps",
    "Neyman-Pearson: local steps E",
    "More local steps speed the objective up, with diminishing gains, and oscillations around the bound grow.",
    lambda scale: np_task.runs(LINES, scale),
    findings,
)
