"""CartPole: the paper's table of compressors, reward and cost after 100 and 500 rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsgm.paper import cartpole
from fedsgm.paper.cartpole import PAPER
from fedsgm.paper.claims import alike, compared
from fedsgm.paper.lines import COLOURS, mark
from fedsgm.paper.study import Claim, Findings, Run, Scale, Study, Table
from fedsgm.results.result import Result

RULES = ("soft", "soft, ceiling 0.5")
LEARNT = 190.0
ALIKE = 20.0  # a tenth of the largest reward


def _lines(scale: Scale) -> dict[tuple[str, str], Run]:
    return {
        (rule, row): cartpole.run(scale, rule, centralised=True)
        if row == "centralised"
        else cartpole.run(scale, rule, compression=row)
        for rule in scale.of(RULES, RULES[:1])
        for row in scale.of(tuple(PAPER), ("no compression", "K/d = 0.25"))
    }


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    lines = {key: results[run.name] for key, run in _lines(scale).items()}
    rules = list(dict.fromkeys(rule for rule, _ in lines))
    rows = [
        [
            row,
            _pair(*PAPER[row][0]),
            _pair(*PAPER[row][1]),
            *(cell for rule in rules for cell in _cells(lines[rule, row])),
        ]
        for row in dict.fromkeys(row for _, row in lines)
    ]
    header = ["", "paper, 100", "paper, 500"]
    header += [
        f"{rule}{what}" for rule in rules for what in (", 100", ", 500", f": learnt and within {cartpole.BUDGET:g}")
    ]
    named = {f"{rule}, {row}": result for (rule, row), result in lines.items()}
    tables = [Table("Reward / cost after 100 and 500 rounds, means over seeds", header, rows), cartpole.by_seed(named)]
    claims = [
        claim
        for rule in rules
        for claim in _claims(rule, {row: result for (own, row), result in lines.items() if own == rule})
    ]
    notes = [_note(lines)] if RULES[1] in rules else []
    return Findings(_picture(lines, scale), tables, claims, notes)


def _pair(reward: float, cost: float) -> str:
    """An asterisk, as in the paper, where the cost is over the budget."""
    return f"{reward:.1f} / {cost:.1f}{'*' * (cost > cartpole.BUDGET)}"


def _good(result: Result) -> np.ndarray:
    reward, cost = cartpole.at(result, 500)
    return (reward >= LEARNT) & (cost <= cartpole.BUDGET)


def _cells(result: Result) -> list[str]:
    means = [_pair(*(float(values.mean()) for values in cartpole.at(result, t))) for t in (100, 500)]
    return [*means, f"{_good(result).sum()} of {len(_good(result))}"]


def _claims(rule: str, lines: Mapping[str, Result]) -> list[Claim]:
    """Every row against the paper's, and against the row without compression."""
    ours = rule != RULES[0]
    claims = []
    for row, result in lines.items():
        reward, cost = cartpole.at(result, 500)
        wanted = PAPER[row][1][0]
        end = (row, reward)
        told = f"{row}, {rule}"
        claims += [
            alike(f"{told}: the paper's reward", "at round 500", end, ("the paper", wanted), margin=ALIKE, ours=ours),
            compared(
                f"{told}: within the budget", "cost at round 500", (row, cost), ("budget", cartpole.BUDGET), ours=ours
            ),
        ]
    plain, speed = "no compression", "mean reward of all rounds"
    for row in (row for row in lines if row.startswith("float")):
        pair = _speed(row, lines[row]), _speed(plain, lines[plain])
        says = f"{row}, {rule}: quantisation costs hardly a round"
        claims.append(alike(says, speed, *pair, margin=ALIKE, ours=ours))
    for row in (row for row in lines if row.startswith("K/d")):
        pair = _speed(row, lines[row]), _speed(plain, lines[plain])
        claims.append(compared(f"{row}, {rule}: Top-K slows learning", speed, *pair, ours=ours))
    return claims


def _speed(row: str, result: Result) -> tuple[str, np.ndarray]:
    """Of the seeds that every line has."""
    return row, result.history["reward"][: cartpole.SEEDS, result.evaluated()].mean(axis=1)


def _picture(lines: Mapping[tuple[str, str], Result], scale: Scale) -> Any:
    """Reward against cost at the end, a point a seed; the paper's mean as a star."""
    from matplotlib.figure import Figure

    rules = list(dict.fromkeys(rule for rule, _ in lines))
    figure = Figure(figsize=(1.6 + 5.2 * len(rules), 4.6), layout="constrained")
    axes = figure.subplots(1, len(rules), squeeze=False, sharex=True, sharey=True)[0]
    for axis, rule in zip(axes, rules, strict=True):
        for colour, row in zip(COLOURS, PAPER, strict=False):
            if (rule, row) not in lines:
                continue
            reward, cost = cartpole.at(lines[rule, row], 500)
            axis.scatter(reward, cost, color=colour, s=26, alpha=0.75, label=row)
            axis.scatter(*PAPER[row][1], color=colour, marker="*", s=130, edgecolor="black", linewidth=0.6)
        axis.axhline(cartpole.BUDGET, color="red", linestyle=":", linewidth=1.8, label=f"budget {cartpole.BUDGET:g}")
        axis.set(title=rule, xlabel="reward at the end (stars: the paper's means)", xlim=(0, 205))
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("cost at the end")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, frameon=False, loc="outside right center")
    figure.suptitle(
        f"{mark(scale)}a point a seed, after {next(iter(lines.values())).settings['rounds']} rounds", fontsize=10
    )
    return figure


def _note(lines: Mapping[tuple[str, str], Result]) -> str:
    costs = [result.history["estimate"] for (rule, _), result in lines.items() if "ceiling" in rule]
    means = [cost.mean(axis=0) for cost in costs]
    return (
        "With the soft rule as the paper has it, runs can settle where ending the episode early is what keeps the cost "
        "down. A ceiling of 0.5 on the soft weight, `Soft(beta=0.3, ceiling=0.5)`, keeps half of every step on the "
        "reward and leaves that state within a few rounds. Its price: the participants' cost, a mean over seeds, is up "
        f"to {max(mean.max() for mean in means):.0f} in the first {max(mean.argmax() for mean in means) + 1} rounds, "
        f"and up to {max(cost.max() for cost in costs):.0f} in single rounds of single runs, also later; no theorem "
        "covers it."
    )


STUDY = Study(
    "cartpole-compression",
    "CartPole: quantisation and Top-K (the paper's table)",
    "Quantisation with error feedback hardly slows learning down and stays within the budget; Top-K does slow it.",
    lambda scale: list(_lines(scale).values()),
    findings,
)
