"""Neyman-Pearson: FedSGM against penalty-based FedAvg, each seed a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsgm.core.rules import Hard, Penalty, Soft
from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.claims import alike, compared, mostly
from fedsgm.paper.lines import COLOURS, Tuned, best, by_split, mark, summary
from fedsgm.paper.study import Claim, Findings, Scale, Study
from fedsgm.results import drawing
from fedsgm.results.result import Result

WEIGHTS = (0.001, 0.5, 2.0, 10.0, 20.0, 100.0)
LINES = [
    np_task.line("FedSGM, hard", Hard()),
    np_task.line("FedSGM, soft", Soft(np_task.BETA)),
    *(np_task.line(f"penalty, rho {rho:g}", Penalty(rho), steps=np_task.WIDE[:5]) for rho in WEIGHTS),
]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = np_task.tuned(LINES, results, scale)
    hard, soft, *penalties = tuned
    _, fast_soft, *_, fast_heavy = np_task.fastest(LINES, results, scale)
    rival = best(penalties)
    claims = [
        _infeasible(penalties[WEIGHTS.index(0.5)]),
        _infeasible(penalties[WEIGHTS.index(0.001)], ours=True),
        compared(
            "Rho 100 is slow",
            "rounds to the target, each at its fastest step size",
            (soft.label, fast_soft.rounds_to(*np_task.TARGET)),
            (fast_heavy.label, fast_heavy.rounds_to(*np_task.TARGET)),
        ),
        compared(
            "No penalty weight does as well as soft switching",
            f"mean objective of the last 100 rounds, {soft.kept.sum()} and {rival.kept.sum()} of {rival.kept.size} "
            "runs within the bound in most of them",
            (soft.label, soft.settled),
            (rival.label, rival.settled),
            ours=True,
        ),
        alike(
            "A tuned penalty is about as good as hard switching",
            f"mean objective of the last 100 rounds, {rival.kept.sum()} and {hard.kept.sum()} of {rival.kept.size} "
            "runs within the bound in most of them",
            (rival.label, rival.settled),
            (hard.label, hard.settled),
            margin=np_task.ALIKE * float(hard.settled.mean()),
            ours=True,
        ),
    ]
    return Findings(_picture(tuned, scale), [summary(tuned), by_split(tuned)], claims)


def _infeasible(line: Tuned, *, ours: bool = False) -> Claim:
    says = f"{line.label.partition(', ')[2].capitalize()} converges to an infeasible point"
    return mostly(says, "over the bound in most of the last 100 rounds", ~line.kept_splits, ours=ours)


def _picture(lines: Sequence[Tuned], scale: Scale) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.0), layout="constrained")
    axis = figure.subplots()
    for line, colour in zip(lines, COLOURS, strict=False):
        objective, constraint = (line.ended("train", name).ravel() for name in ("objective", line.constraint_name))
        circle = line.label.startswith("FedSGM")
        axis.scatter(
            objective, constraint, color=colour, marker="o" if circle else "x", s=34, alpha=0.8, label=line.label
        )
    axis.axhline(lines[0].bound, color="red", linestyle=":", linewidth=1.8, label=f"bound {lines[0].bound:g}")
    axis.set(xlabel=np_task.NAMES[0], ylabel=np_task.NAMES[1])
    for which in "xy":
        drawing.plain_log(axis, which)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"{mark(scale)}a point a run, {lines[0].kept.size} runs each, at the end", fontsize=10)
    return figure


STUDY = Study(
    "np-penalty",
    "Neyman-Pearson: FedSGM against penalty FedAvg",
    "Penalty FedAvg is very sensitive to rho: 0.5 already ends infeasible, and a large rho prevents convergence.",
    lambda scale: np_task.runs(LINES, scale),
    findings,
)
