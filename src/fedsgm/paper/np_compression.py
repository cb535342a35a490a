"""Neyman-Pearson: the effect of Top-K both ways."""

from __future__ import annotations

from collections.abc import Mapping

from fedsgm.core.compression import Identity, TopK
from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.lines import Tuned, by_seed, compared, summary
from fedsgm.paper.study import Claim, Findings, Scale, Study
from fedsgm.results.result import Result

FRACTIONS = (0.1, 0.25, 0.5, 1.0)
LINES = [
    np_task.line(f"{name}, K/d = {k:g}", rule, compressor=Identity() if k == 1 else TopK(k))
    for name, rule in np_task.RULES.items()
    for k in FRACTIONS
]
_NEAR = 1.25


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = np_task.tuned(LINES, results, scale)
    halves = {"hard": tuned[: len(FRACTIONS)], "soft": tuned[len(FRACTIONS) :]}
    claims = []
    for rule, lines in halves.items():
        few, whole = lines[0], lines[-1]
        fifth = few.objective.shape[1] // 5 - 1
        claims += [
            _converges(rule, few, whole),
            compared(
                f"Compression makes it slower ({rule})",
                "objective after a fifth of the rounds",
                (whole.label, whole.objective[:, fifth]),
                (few.label, few.objective[:, fifth]),
            ),
        ]
    (hard, *_), (soft, *_) = halves.values()
    claims.append(
        compared(
            "Soft switching steadies the compressed run",
            "standard deviation of the constraint over a run's last 100 rounds",
            (soft.label, soft.swing),
            (hard.label, hard.swing),
        )
    )
    return Findings(np_task.picture(halves, scale), [summary(tuned), by_seed(tuned)], claims)


def _converges(rule: str, few: Tuned, whole: Tuned) -> Claim:
    ratio = float(few.settled.mean() / whole.settled.mean())
    kept = few.kept.sum() >= whole.kept.sum()
    return Claim(
        f"K/d = 0.1 converges ({rule})",
        f"objective of the last 100 rounds {ratio:.2f} times that without compression (at most {_NEAR} wanted), runs "
        f"within the bound in most of them {few.kept.sum()} against {whole.kept.sum()} of {len(whole.kept)}",
        bool(ratio <= _NEAR and kept),
    )


STUDY = Study(
    "np-compression",
    "Neyman-Pearson: Top-K both ways",
    "Even K/d = 0.1 converges, though slower; the constraint is less stable then, which soft switching mitigates.",
    lambda scale: np_task.runs(LINES, scale),
    findings,
)
