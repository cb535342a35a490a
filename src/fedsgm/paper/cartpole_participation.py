"""CartPole: the effect of partial participation under soft switching."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsgm.paper import cartpole
from fedsgm.paper.claims import compared
from fedsgm.paper.study import Findings, Run, Scale, Study, Table
from fedsgm.results.result import Result

PARTICIPANTS = (3, 5, 7, 10)
RULES = ("soft", "soft, ceiling 0.5")


def _lines(scale: Scale) -> dict[str, dict[str, Run]]:
    """By rule and label. With 7 clients the run is the compression table's, which may have more seeds."""
    return {
        rule: {
            f"m/n = {m / cartpole.CLIENTS:g}": cartpole.run(scale, rule, participants=m)
            for m in scale.of(PARTICIPANTS, (3, 10))
        }
        for rule in scale.of(RULES, RULES[:1])
    }


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    columns = {
        rule: {label: results[run.name] for label, run in lines.items()} for rule, lines in _lines(scale).items()
    }
    claims, rows = [], []
    for rule, lines in columns.items():
        few, *_, everyone = lines
        claims += [
            compared(
                f"More participation learns faster ({rule})",
                "minus the mean reward of all rounds",
                (everyone, -_learnt(lines[everyone]).mean(axis=1)),
                (few, -_learnt(lines[few]).mean(axis=1)),
                ours=rule != "soft",
            ),
            compared(
                f"More participation is steadier ({rule})",
                "standard deviation of the reward over the second half of a run",
                (everyone, _second_half(lines[everyone]).std(axis=1)),
                (few, _second_half(lines[few]).std(axis=1)),
                ours=rule != "soft",
            ),
        ]
        for label, result in lines.items():
            ends = (" / ".join(f"{values.mean():.1f}" for values in cartpole.at(result, t)) for t in (100, 500))
            rows.append([f"{rule}, {label}", *ends, f"{cartpole.over_budget(result).mean():.0%}"])
    header = ["run", "reward / cost, round 100", "round 500", "last 100 rounds over budget"]
    every = {f"{rule}, {label}": result for rule, lines in columns.items() for label, result in lines.items()}
    tables = [Table("Means over seeds", header, rows), cartpole.by_seed(every)]
    return Findings(cartpole.picture(columns, scale), tables, claims)


def _learnt(result: Result) -> np.ndarray:
    return result.history["reward"][: cartpole.SEEDS, result.evaluated()]


def _second_half(result: Result) -> np.ndarray:
    rewards = _learnt(result)
    return rewards[:, rewards.shape[1] // 2 :]


STUDY = Study(
    "cartpole-participation",
    "CartPole: participation m/n under soft switching",
    "Lower participation is less stable and slower.",
    lambda scale: [run for lines in _lines(scale).values() for run in lines.values()],
    findings,
)
