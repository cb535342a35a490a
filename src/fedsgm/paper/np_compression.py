"""Neyman-Pearson: the effect of Top-K both ways, and of error feedback."""

from __future__ import annotations

from collections.abc import Mapping

from fedsgm.core.compression import Identity, TopK
from fedsgm.core.rules import Rule
from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.claims import alike, compared
from fedsgm.paper.lines import LASTING, Line, by_split, summary
from fedsgm.paper.study import Findings, Scale, Study, Table
from fedsgm.results.result import Result

FRACTIONS = (0.1, 0.25, 0.5, 1.0)


def _lines(name: str, rule: Rule) -> list[Line]:
    with_feedback = [
        np_task.line(f"{name}, K/d = {k:g}", rule, compressor=Identity() if k == 1 else TopK(k)) for k in FRACTIONS
    ]
    without = np_task.line(f"{name}, K/d = {FRACTIONS[0]:g}, no feedback", rule, memory=False)
    return [*with_feedback, without]


LINES = {name: _lines(name, rule) for name, rule in np_task.RULES.items()}
ALL = [line for lines in LINES.values() for line in lines]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = {rule: np_task.tuned(lines, results, scale) for rule, lines in LINES.items()}
    fast = {rule: np_task.fastest(lines, results, scale) for rule, lines in LINES.items()}
    claims = []
    for rule, lines in tuned.items():
        few, *_, whole, forgetful = lines
        fast_few, *_, fast_whole, fast_forgetful = fast[rule]
        claims += [
            alike(
                f"K/d = 0.1 converges as far as no compression ({rule})",
                "mean objective of the last 100 rounds",
                (few.label, few.settled),
                (whole.label, whole.settled),
                margin=np_task.ALIKE * float(whole.settled.mean()),
            ),
            compared(
                f"Compression makes it slower ({rule})",
                "rounds to the target, each at its fastest step size",
                (whole.label, fast_whole.rounds_to(*np_task.TARGET)),
                (few.label, fast_few.rounds_to(*np_task.TARGET)),
            ),
            compared(
                f"Compression makes the constraint less steady ({rule})",
                "its standard deviation over a run's last 100 rounds",
                (whole.label, whole.swing),
                (few.label, few.swing),
            ),
            compared(
                f"That it converges is error feedback's doing ({rule})",
                "rounds to the target, each at its fastest step size",
                (few.label, fast_few.rounds_to(*np_task.TARGET)),
                (forgetful.label, fast_forgetful.rounds_to(*np_task.TARGET)),
            ),
        ]
    (hard, *_), (soft, *_) = tuned.values()
    claims.append(
        compared(
            "Soft switching steadies the compressed run",
            "standard deviation of the constraint over a run's last 100 rounds",
            (soft.label, soft.swing),
            (hard.label, hard.swing),
        )
    )
    every = [line for lines in tuned.values() for line in lines]
    speed = [
        [
            line.label,
            f"{line.step:g}",
            *(f"{line.rounds_to(*np_task.TARGET, steadily=steadily).mean():.0f}" for steadily in (False, True)),
        ]
        for lines in fast.values()
        for line in lines
    ]
    tables = [
        Table(
            "Rounds to the target, means over all splits and seeds",
            ["line", "fastest step size", "rounds", f"until it is kept in every one of {LASTING} rounds"],
            speed,
        ),
        summary(every),
        by_split(every),
    ]
    return Findings(np_task.picture(tuned, scale), tables, claims, _NOTES)


_NOTES = [
    "Without feedback, what Top-K leaves out is lost both ways: of a client's update, and of the server's step.",
    "How speed is measured decides here: until the target is kept in every one of 20 rounds, and not on average, the "
    "swings around the bound count as well, and the run without compression is the later one (second column below).",
]

STUDY = Study(
    "np-compression",
    "Neyman-Pearson: Top-K both ways",
    "Even K/d = 0.1 converges due to error feedback, though slower; the constraint is less stable then, which soft "
    "switching mitigates.",
    lambda scale: np_task.runs(ALL, scale),
    findings,
)
