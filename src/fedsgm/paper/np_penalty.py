"""Neyman-Pearson: FedSGM against penalty-based FedAvg, each seed a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsgm.core.rules import Hard, Penalty, Soft
from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.lines import COLOURS, Tuned, best, by_seed, compared, mark, summary
from fedsgm.paper.study import Claim, Findings, Scale, Study
from fedsgm.results.result import Result

WEIGHTS = (0.001, 0.5, 2.0, 20.0, 100.0)
LINES = [
    np_task.line("FedSGM, hard", Hard()),
    np_task.line("FedSGM, soft", Soft(np_task.BETA)),
    *(np_task.line(f"penalty, rho {rho:g}", Penalty(rho)) for rho in WEIGHTS),
]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    tuned = np_task.tuned(LINES, results, scale)
    _, soft, *penalties = tuned
    claims = [_infeasible(line) for line in penalties[:2]]
    claims.append(
        compared(
            "Rho 100 is slow",
            "mean objective of the last 100 rounds",
            (soft.label, soft.settled),
            (penalties[-1].label, penalties[-1].settled),
        )
    )
    rival = best(penalties)
    claims.append(
        Claim(
            "No penalty weight does as well as soft switching",
            f"runs within the bound in most of the last 100 rounds, and the objective there: soft {soft.kept.sum()}, "
            f"{soft.settled.mean():.4f}; {rival.label} {rival.kept.sum()}, {rival.settled.mean():.4f}",
            bool(rival.kept.sum() < soft.kept.sum() or rival.settled.mean() > soft.settled.mean()),
        )
    )
    return Findings(_picture(tuned, scale), [summary(tuned), by_seed(tuned)], claims)


def _infeasible(line: Tuned) -> Claim:
    over = int((line.ended("train", line.constraint_name) > line.bound).sum())
    says = f"{line.label.partition(', ')[2].capitalize()} converges to an infeasible point"
    return Claim(says, f"runs that end over the bound: {over} of {len(line.kept)}", over == len(line.kept))


def _picture(lines: Sequence[Tuned], scale: Scale) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.0), layout="constrained")
    axis = figure.subplots()
    for line, colour in zip(lines, COLOURS, strict=False):
        objective, constraint = (line.ended("train", name) for name in ("objective", line.constraint_name))
        circle = line.label.startswith("FedSGM")
        axis.scatter(
            objective, constraint, color=colour, marker="o" if circle else "x", s=34, alpha=0.8, label=line.label
        )
    axis.axhline(lines[0].bound, color="red", linestyle=":", linewidth=1.8, label=f"bound {lines[0].bound:g}")
    axis.set(xlabel=np_task.NAMES[0], ylabel=np_task.NAMES[1], xscale="log", yscale="log")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"{mark(scale)}a point a run, {len(lines[0].kept)} runs each, at the end", fontsize=10)
    return figure


STUDY = Study(
    "np-penalty",
    "Neyman-Pearson: FedSGM against penalty FedAvg",
    "Penalty FedAvg is very sensitive to rho: 0.5 already ends infeasible, and a large rho prevents convergence.",
    lambda scale: np_task.runs(LINES, scale),
    findings,
)
