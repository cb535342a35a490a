"""Neyman-Pearson: the effect of local steps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.lines import by_seed, compared, summary
from fedsgm.paper.study import Claim, Findings, Scale, Study
from fedsgm.result import Result

STEPS = (1, 2, 5, 10)
LINES = [np_task.line(f"{name}, E = {e}", rule, local_steps=e) for name, rule in np_task.RULES.items() for e in STEPS]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = np_task.tuned(LINES, results, scale)
    halves = {"hard": tuned[: len(STEPS)], "soft": tuned[len(STEPS) :]}
    claims = []
    for rule, lines in halves.items():
        early = [line.objective[:, line.objective.shape[1] // 5 - 1] for line in lines]  # round 100 of 500
        claims += [
            compared(
                f"More local steps help ({rule})",
                "objective after a fifth of the rounds",
                (lines[-1].label, early[-1]),
                (lines[0].label, early[0]),
            ),
            _less_and_less(rule, [values.mean() for values in early]),
            compared(
                f"The constraint swings more with more local steps ({rule})",
                "its standard deviation over a run's last 100 rounds",
                (lines[0].label, lines[0].swing),
                (lines[-1].label, lines[-1].swing),
            ),
        ]
    return Findings(np_task.picture(halves, scale), [summary(tuned), by_seed(tuned)], claims)


def _less_and_less(rule: str, means: list[float]) -> Claim:
    pairs = list(zip(itertools.pairwise(STEPS), itertools.pairwise(means), strict=True))
    gains = [(before - after) / (more - fewer) for (fewer, more), (before, after) in pairs]
    told = ", ".join(f"{a} to {b}: {gain:.2g}" for ((a, b), _), gain in zip(pairs, gains, strict=True))
    return Claim(f"Each further local step helps less ({rule})", f"gain for each step: {told}", gains[0] > gains[-1])


STUDY = Study(
    "np-local-steps",
    "Neyman-Pearson: local steps E",
    "More local steps speed the objective up, with diminishing gains, and oscillations around the bound grow.",
    lambda scale: np_task.runs(LINES, scale),
    findings,
)
