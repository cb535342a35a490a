"""Neyman-Pearson: the sharpness beta of soft switching."""

from __future__ import annotations

from collections.abc import Mapping

from fedsgm.core.rules import Hard, Soft
from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.lines import by_seed, compared, summary
from fedsgm.paper.study import Claim, Findings, Scale, Study
from fedsgm.results.result import Result

BETAS = (20.0, 40.0, 100.0, 400.0)
LINES = [*(np_task.line(f"beta {beta:g}", Soft(beta)) for beta in BETAS), np_task.line("hard", Hard())]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = np_task.tuned(LINES, results, scale)
    low, middle, _, high, hard = tuned
    claims = [
        compared(
            "Beta 20 is more conservative than 40",
            "mean constraint of the last 100 rounds",
            (low.label, low.level),
            (middle.label, middle.level),
        ),
        compared(
            "Beta 20 is less steady than 40",
            "standard deviation of the constraint over a run's last 100 rounds",
            (middle.label, middle.swing),
            (low.label, low.swing),
        ),
        _nears(*(float(line.level.mean()) for line in (middle, high, hard))),
    ]
    return Findings(np_task.picture({"soft switching": tuned}, scale), [summary(tuned), by_seed(tuned)], claims)


def _nears(middle: float, high: float, hard: float) -> Claim:
    return Claim(
        "High beta nears the hard rule",
        f"mean constraint of the last 100 rounds: beta 40 {middle:.4f}, beta 400 {high:.4f}, hard {hard:.4f}",
        abs(high - hard) < abs(middle - hard) / 2,
    )


STUDY = Study(
    "np-beta",
    "Neyman-Pearson: soft switching's beta",
    "Beta 20 is less stable and more conservative than the suggested 40; high beta behaves like hard switching.",
    lambda scale: np_task.runs(LINES, scale),
    findings,
)
