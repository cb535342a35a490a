"""CartPole: reward and cost, hard and soft switching, federated and centralised; the trust region kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fedsgm.paper import cartpole
from fedsgm.paper.claims import compared
from fedsgm.paper.study import Findings, Run, Scale, Study, Table
from fedsgm.results.result import Result

_COMPRESSION = "K/d = 0.5"
RULES = ("soft", "hard")


def _lines(scale: Scale) -> dict[str, Run]:
    compressed = {rule: cartpole.run(scale, rule, compression=_COMPRESSION) for rule in RULES}
    if scale.quick:
        return compressed
    plain = {f"{rule}, no compression": cartpole.run(scale, rule) for rule in RULES}
    return plain | {f"{rule}, centralised": cartpole.run(scale, rule, centralised=True) for rule in RULES} | compressed


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    lines = {label: results[run.name] for label, run in _lines(scale).items()}
    groups = {
        f"federated, m/n = 0.7, {_COMPRESSION}": {label: lines[label] for label in lines if label in RULES},
        "federated, m/n = 0.7, no compression": {label: lines[label] for label in lines if "no compression" in label},
        "centralised": {label: lines[label] for label in lines if "centralised" in label},
    }
    claims = []
    for where in ("", ", no compression") if "soft, no compression" in lines else ("",):
        soft, hard = (lines[rule + where] for rule in RULES)
        claims += [
            compared(
                f"Soft switching learns faster than hard{where}",
                "minus the mean reward of all rounds",
                *_paired(("soft", -_mean_reward(soft)), ("hard", -_mean_reward(hard))),
            ),
            compared(
                f"Soft switching keeps the budget better than hard{where}",
                "share of the last 100 rounds over the budget",
                *_paired(("soft", cartpole.over_budget(soft)), ("hard", cartpole.over_budget(hard))),
            ),
        ]
    if "hard, centralised" in lines:
        claims.append(
            compared(
                "With hard switching, federation helps the objective",
                "minus the mean reward of all rounds",
                ("federated", -_mean_reward(lines["hard"])),
                ("centralised", -_mean_reward(lines["hard, centralised"])),
            )
        )
    header = [
        "run",
        "reward / cost, round 100",
        "paper",
        "round 500",
        "paper",
        "mean reward of all rounds",
        "last 100 rounds over budget",
        "rounds within twice the radius",
    ]
    rows = [
        [
            f"{label}, {len(_mean_reward(result))} seeds",
            *_beside_the_paper(label, result),
            f"{_mean_reward(result).mean():.1f}",
            f"{cartpole.over_budget(result).mean():.0%}",
            f"{cartpole.within_radius(result):.1%}",
        ]
        for label, result in lines.items()
    ]
    tables = [Table("Means over seeds", header, rows), cartpole.by_seed(lines)]
    return Findings(cartpole.picture({title: group for title, group in groups.items() if group}, scale), tables, claims)


def _beside_the_paper(label: str, result: Result) -> list[str]:
    """Reward and cost at rounds 100 and 500, each followed by what the paper's table has for soft switching."""
    rule, _, where = label.partition(", ")
    cells = []
    for round, paper in zip((100, 500), cartpole.PAPER[where or _COMPRESSION], strict=True):
        cells.append(" / ".join(f"{values.mean():.1f}" for values in cartpole.at(result, round)))
        cells.append(" / ".join(f"{value:.1f}" for value in paper) if rule == "soft" else "")
    return cells


def _paired(*lines: tuple[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """The runs of the seeds that both have."""
    seeds = min(len(values) for _, values in lines)
    return ((label, values[:seeds]) for label, values in lines)


def _mean_reward(result: Result) -> np.ndarray:
    return result.history["reward"][:, result.evaluated()].mean(axis=1)


STUDY = Study(
    "cartpole-main",
    "CartPole: reward and cost, hard and soft switching",
    "Soft switching stabilises learning and converges faster in both; with hard switching the federated run learns "
    "the objective better than the centralised one.",
    lambda scale: list(_lines(scale).values()),
    findings,
)
