"""FedSGM against a tuned penalty and a tuned primal-dual method on Neyman-Pearson: objective at equal violation.

Every family has fifteen settings, five of its own parameter or of a margin below the bound times three step sizes,
tried on five splits with three seeds each; both rivals have two families. What is chosen there is run again with ten
seeds that nothing was chosen on, on the same splits.

    python benchmarks/trade_off.py     prints the tables and draws docs/images/trade-off.png
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

import fedsgm as fs
from fedsgm.tasks import neyman_pearson as task

SPLITS, ROUNDS, LAST, BOUND = 5, 500, 100, 0.05
TUNING, FRESH = (0, 3), (5000, 10)  # the first seed and how many
STEPS = (1.0, 0.3, 0.1)
OURS, RIVALS = ("soft", "hard"), ("penalty", "penalty 10", "primal-dual", "primal-dual 0.3")
MARGINS = (0.0, 0.0025, 0.005, 0.01, 0.02)
FAMILIES: dict[str, list[tuple[Any, float]]] = {  # a rule, and how far below the bound it is told to stay
    "soft": [(fs.Soft(beta), 0.0) for beta in (20.0, 40.0, 100.0, 200.0, 400.0)],
    "hard": [(fs.Hard(), margin) for margin in MARGINS],
    "penalty": [(fs.Penalty(rho), 0.0) for rho in (2.0, 5.0, 10.0, 20.0, 50.0)],
    "penalty 10": [(fs.Penalty(10.0), margin) for margin in MARGINS],
    "primal-dual": [(fs.PrimalDual(step), 0.0) for step in (0.01, 0.03, 0.1, 0.3, 1.0)],
    "primal-dual 0.3": [(fs.PrimalDual(0.3), margin) for margin in MARGINS],
}
QUERIES = ("participants", "all", "memory")


@dataclasses.dataclass(frozen=True)
class Runs:
    """What a setting came to in the last rounds, [split, seed]."""

    objective: np.ndarray
    constraint: np.ndarray
    within: np.ndarray
    average: np.ndarray  # whether the theorems' average is feasible
    answer: np.ndarray  # the least objective within the bound; infinite where no round was

    @property
    def kept(self) -> int:
        """The runs that are within the bound in most of the last rounds."""
        return int((self.within > 0.5).sum())


@functools.cache
def run(setting: tuple[Any, float], step: float, query: str, participants: int, first: int, seeds: int) -> Runs:
    rule, margin = setting
    algorithm = fs.FedSGM(
        step,
        local_steps=5,
        participants=participants,
        rule=rule,
        uplink=fs.TopK(0.1),
        downlink=fs.TopK(0.1),
        query=query,
    )
    found = []
    for split in range(SPLITS):
        clients, _, params = task.load(split_seed=split)
        problem = task.neyman_pearson(BOUND - margin)
        result = fs.simulate(
            algorithm, problem, clients, params, rounds=ROUNDS, seed=first, seeds=seeds, progress=False
        )
        last = {name: result.history[name][:, -LAST:] for name in ("objective", "minority")}
        within = last["minority"] <= np.float32(BOUND)
        found.append(
            (
                last["objective"].mean(axis=1),
                last["minority"].mean(axis=1),
                within.mean(axis=1),
                result.value("train", "minority", "average") <= np.float32(BOUND),
                np.where(within, last["objective"], np.inf).min(axis=1),
            )
        )
    return Runs(*map(np.stack, zip(*found, strict=True)))


def row(label: str, step: float, runs: Runs) -> str:
    total = runs.within.size
    return (
        f"| {label} | {step:g} | {runs.objective.mean():.4f} | {runs.constraint.mean():.4f} | {runs.within.mean():.0%} "
        f"| {runs.kept} of {total} | {int(runs.average.sum())} of {total} | {runs.answer.mean():.4f} |"
    )


HEAD = (
    "| rule, query | step size | f | g | rounds within | runs kept | average feasible | answer's f |\n"
    "|---|---|---|---|---|---|---|---|"
)


def kept(participants: int, step: float, betas: Sequence[float]) -> None:
    """The bound kept, by who is asked, on fresh seeds."""
    print(f"\n### {participants} of 20 clients a round\n\n{HEAD}")
    today = run((fs.Soft(40.0), 0.0), 0.3, "participants", participants, *FRESH)
    print(row("soft 40, participants", 0.3, today))
    for query in QUERIES:
        for rule, name in [*((fs.Soft(beta), f"soft {beta:g}") for beta in betas), (fs.Hard(), "hard")]:
            print(row(f"{name}, {query}", step, run((rule, 0.0), step, query, participants, *FRESH)), flush=True)


def tuned(family: str, query: str, level: float, participants: int) -> tuple[Any, float] | None:
    """Of a family's settings the one with the least objective whose constraint is at most the level, while tuning."""
    tried = [(setting, step) for setting in FAMILIES[family] for step in STEPS]
    found = [(run(*one, query, participants, *TUNING), one) for one in tried]
    good = [(runs.objective.mean(), i) for i, (runs, _) in enumerate(found) if runs.constraint.mean() <= level]
    return tried[min(good)[1]] if good else None


def equal_violation(participants: int, levels: Sequence[float]) -> None:
    """What each family comes to at the same constraint, on fresh seeds, and how the best of ours compares."""
    print(f"\n### At equal violation, {participants} of 20 clients a round, fresh seeds\n")
    print("| mean g at most | family, query | chosen | f | g | runs kept | answer's f |\n|---|---|---|---|---|---|---|")
    for level in levels:
        ends = {}
        for query in ("participants", "all"):
            for family in FAMILIES:
                chosen = tuned(family, query, level, participants)
                if chosen is None:
                    print(f"| {level:g} | {family}, {query} | none | | | | |")
                    continue
                runs = run(*chosen, query, participants, *FRESH)
                ends[family, query] = runs
                print(
                    f"| {level:g} | {family}, {query} | {said(chosen[0])}, step {chosen[1]:g} "
                    f"| {runs.objective.mean():.4f} | {runs.constraint.mean():.4f} "
                    f"| {runs.kept} of {runs.within.size} | {runs.answer.mean():.4f} |",
                    flush=True,
                )
        for query in ("participants", "all"):
            ours, rivals = (
                [(ends[family, query].objective.mean(), family) for family in families if (family, query) in ends]
                for families in (OURS, RIVALS)
            )
            if ours and rivals:
                print(f"| {level:g} | {versus(min(ours)[1], min(rivals)[1], query, ends)} | | | | | |")


def versus(ours: str, rival: str, query: str, ends: dict[tuple[str, str], Runs]) -> str:
    """The difference of the mean objectives with its 95% interval, the splits being the independent runs."""
    difference = (ends[ours, query].objective - ends[rival, query].objective).mean(axis=1)
    half = scipy.stats.t.ppf(0.975, SPLITS - 1) * difference.std(ddof=1) / np.sqrt(SPLITS)
    return f"{ours} against {rival}, {query}: {difference.mean():+.4f} ± {half:.4f}"


def said(setting: tuple[Any, float]) -> str:
    rule, margin = setting
    own = [f"{name} {getattr(rule, name):g}" for name in ("beta", "rho", "step") if hasattr(rule, name)]
    return ", ".join([*own, *([f"margin {margin:g}"] if margin else [])]) or "no margin"


def draw(participants: Sequence[int]) -> None:
    """The trade-off: for each family's parameter the step size with the least f + 10 (g - bound)+ while tuning."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(participants), 4.6), layout="constrained")
    axes = figure.subplots(1, len(participants), squeeze=False)[0]
    for axis, m in zip(axes, participants, strict=True):
        for family, colour in zip(
            FAMILIES, ("tab:blue", "tab:green", "tab:orange", "tab:red", "tab:purple", "tab:brown"), strict=True
        ):
            for query, line in (("participants", ":"), ("all", "-")):
                points = []
                for setting in FAMILIES[family]:
                    step = min(STEPS, key=lambda step: worth(run(setting, step, query, m, *TUNING)))
                    runs = run(setting, step, query, m, *FRESH)
                    points.append((runs.constraint.mean(), runs.objective.mean()))
                axis.plot(
                    *zip(*points, strict=True), line, marker="o", markersize=4, color=colour, label=f"{family}, {query}"
                )
        axis.axvline(BOUND, color="red", linestyle=":", linewidth=1.6, label="bound 0.05")
        axis.set(xlabel="constraint, mean of the last 100 rounds", title=f"{m} of 20 clients a round")
        axis.set(xlim=(0.03, 0.065), ylim=(0.04, 0.085) if m > 5 else (0.06, 0.16))
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("objective, likewise")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(
        f"Neyman-Pearson, {SPLITS} splits, {FRESH[1]} fresh seeds: lower and left of the bound is better", fontsize=10
    )
    path = Path(__file__).parents[1] / "docs/images/trade-off.png"
    figure.savefig(path, dpi=150)


def worth(runs: Runs) -> float:
    """For choosing a step size alone: the objective, and ten times what the constraint is over."""
    return float(runs.objective.mean() + 10 * max(runs.constraint.mean() - BOUND, 0.0))


def main() -> None:
    kept(10, 1.0, (100.0,))
    for step in (0.3, 0.1):
        kept(2, step, (40.0, 100.0))
    for m in (10, 2):
        equal_violation(m, (0.05, 0.045, 0.04))
    draw((10, 2))


if __name__ == "__main__":
    main()
