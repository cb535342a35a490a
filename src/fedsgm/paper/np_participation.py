"""Neyman-Pearson: the effect of partial participation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.lines import Tuned, by_seed, compared, summary
from fedsgm.paper.study import Findings, Scale, Study
from fedsgm.results.result import Result

CLIENTS = 20
PARTICIPANTS = (2, 5, 10, 20)
LINES = [
    line
    for name, rule in np_task.RULES.items()
    for line in (
        *(np_task.line(f"{name}, m/n = {m / CLIENTS:g}", rule, participants=m) for m in PARTICIPANTS),
        np_task.centralised(f"{name}, centralised", rule),
    )
]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = np_task.tuned(LINES, results, scale)
    half = len(tuned) // 2
    halves = {"hard": tuned[:half], "soft": tuned[half:]}
    claims = []
    for rule, lines in halves.items():
        few, everyone = lines[0], lines[len(PARTICIPANTS) - 1]
        claims += [
            compared(
                f"More participation lowers the objective ({rule})",
                "mean objective of the last 100 rounds",
                (everyone.label, everyone.settled),
                (few.label, few.settled),
            ),
            compared(
                f"More participation keeps the constraint better ({rule})",
                "largest constraint of a run's last 100 rounds",
                (everyone.label, _worst(everyone)),
                (few.label, _worst(few)),
            ),
        ]
    return Findings(np_task.picture(halves, scale), [summary(tuned), by_seed(tuned)], claims)


def _worst(line: Tuned) -> np.ndarray:
    return line.constraint[:, line.data.recent].max(axis=1)


STUDY = Study(
    "np-participation",
    "Neyman-Pearson: participation m/n",
    "Higher participation improves convergence for both rules and matches the centralised run.",
    lambda scale: np_task.runs(LINES, scale),
    findings,
)
