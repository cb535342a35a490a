"""Neyman-Pearson: the effect of partial participation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.claims import alike, compared
from fedsgm.paper.lines import Tuned, by_split, summary
from fedsgm.paper.study import Findings, Scale, Study
from fedsgm.results.result import Result

PARTICIPANTS = (2, 5, 10, 20)
LINES = {
    name: [
        *(np_task.line(f"{name}, m/n = {m / np_task.CLIENTS:g}", rule, participants=m) for m in PARTICIPANTS),
        np_task.centralised(f"{name}, centralised", rule),
    ]
    for name, rule in np_task.RULES.items()
}
ALL = [line for lines in LINES.values() for line in lines]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = {rule: np_task.tuned(lines, results, scale) for rule, lines in LINES.items()}
    claims = []
    for rule, lines in tuned.items():
        few, *_, everyone, central = lines
        fast_few, *_, fast_everyone, _ = np_task.fastest(LINES[rule], results, scale)
        claims += [
            compared(
                f"More participation is faster ({rule})",
                "rounds to the target, each at its fastest step size",
                (everyone.label, fast_everyone.rounds_to(*np_task.TARGET)),
                (few.label, fast_few.rounds_to(*np_task.TARGET)),
            ),
            compared(
                f"More participation lowers the objective ({rule})",
                "mean objective of the last 100 rounds",
                (everyone.label, everyone.settled),
                (few.label, few.settled),
            ),
            alike(
                f"Full participation matches the centralised run ({rule})",
                "mean objective of the last 100 rounds",
                (everyone.label, everyone.settled),
                (central.label, central.settled),
                margin=np_task.ALIKE * float(central.settled.mean()),
            ),
            compared(
                f"More participation keeps the constraint better ({rule})",
                "largest constraint of a run's last 100 rounds",
                (everyone.label, _worst(everyone)),
                (few.label, _worst(few)),
                ours=True,
            ),
        ]
    every = [line for lines in tuned.values() for line in lines]
    return Findings(np_task.picture(tuned, scale), [summary(every), by_split(every)], claims, [_NOTE])


def _worst(line: Tuned) -> np.ndarray:
    return line.constraint[..., line.data.recent].max(axis=-1)


_NOTE = (
    "With all clients, and centralised, nothing is drawn, so that one run a split is all there is. A centralised run "
    "sends nothing through Top-K and takes its five steps a round one after the other, each on a new direction."
)

STUDY = Study(
    "np-participation",
    "Neyman-Pearson: participation m/n",
    "Higher participation improves convergence for both rules and matches the centralised run.",
    lambda scale: np_task.runs(ALL, scale),
    findings,
)
