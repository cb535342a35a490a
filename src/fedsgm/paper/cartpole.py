"""The CartPole runs that the paper's figures and its table are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsgm.algorithm import FedSGM
from fedsgm.compression import Identity, Quantize, TopK
from fedsgm.paper.lines import COLOURS, draw, mark
from fedsgm.paper.study import Run, Scale, Table
from fedsgm.result import RECENT, Result
from fedsgm.rules import Hard, Rule, Soft
from fedsgm.tasks import cmdp

CLIENTS, BUDGET, EVERY = 10, 30.0, 10
BETA, CEILING = 0.3, 0.5
FIRST_SEED = 1000  # no setting was chosen on these
COMPRESSORS = {
    "no compression": Identity(),
    "float16": Quantize("float16"),
    "float8": Quantize("float8"),
    "float4": Quantize("float4"),
    "K/d = 0.5": TopK(0.5),
    "K/d = 0.25": TopK(0.25),
}
RULES: Mapping[str, Rule] = {"soft": Soft(BETA), "soft, ceiling 0.5": Soft(BETA, CEILING), "hard": Hard()}


def run(
    scale: Scale,
    rule: str,
    *,
    compression: str = "no compression",
    participants: int = 7,
    centralised: bool = False,
    seeds: int = 10,
) -> Run:
    """One run: federated and compressed both ways, or centralised with a trust region of the same effect."""
    where = "centralised" if centralised else f"{participants} of {CLIENTS}, {compression}"
    return Run(
        name=f"cartpole, {rule}, {where}",
        algorithm=_algorithm(RULES[rule], COMPRESSORS[compression], None if centralised else participants),
        load=_centralised if centralised else _federated,
        data="cartpole, centralised, radius 0.0005" if centralised else "cartpole, radius 0.003",
        rounds=scale.of(500, 40),
        seeds=scale.of(seeds, 1),
        seed=FIRST_SEED,
        evaluate_every=EVERY,
        long=True,
    )


def _algorithm(rule: Rule, compressor: Any, participants: int | None) -> FedSGM:
    return FedSGM(step_size=1.0, participants=participants, rule=rule, uplink=compressor, downlink=compressor)


def _federated() -> tuple[Any, Any, Any, Any]:
    experiment = cmdp.load(clients=CLIENTS)
    return experiment.task, experiment.clients, experiment.params, None


def _centralised() -> tuple[Any, Any, Any, Any]:
    """All environments with one client. A mean over clients shortens a step, which a smaller radius makes up for."""
    experiment = cmdp.load(clients=CLIENTS, radius=0.0005)
    task, clients = experiment.task.centralized(experiment.clients)
    return task, clients, experiment.params, None


def at(result: Result, round: int) -> tuple[np.ndarray, np.ndarray]:
    """Every seed's reward and cost after so many rounds, or at the end of a shorter run."""
    t = min(round, result.settings["rounds"]) - 1
    return result.history["reward"][:, t], result.history["cost"][:, t]


def by_seed(results: Mapping[str, Result]) -> Table:
    """Every seed's reward and cost at the end: one row a seed."""
    columns = {name: at(result, 500) for name, result in results.items()}
    most = max(len(rewards) for rewards, _ in columns.values())
    rows = [
        [
            f"seed {FIRST_SEED + i}",
            *(f"{rewards[i]:.1f} / {costs[i]:.1f}" if i < len(rewards) else "" for rewards, costs in columns.values()),
        ]
        for i in range(most)
    ]
    header = ["run", *(name.removeprefix("cartpole, ") for name in columns)]
    return Table("Every seed: reward / cost at the end", header, rows, folded=True)


def over_budget(result: Result) -> np.ndarray:
    """Of every seed's last rounds, the share in which the participants' mean cost is over their budgets."""
    recent = min(RECENT, result.settings["rounds"] // 5)
    return (result.history["violation"][:, -recent:] > 0).mean(axis=1)


def picture(columns: Mapping[str, Mapping[str, Result]], scale: Scale) -> Any:
    """A column for each group of runs: the reward above, the cost with its budget below; bands of 0.2 deviations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(columns), 6.4), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
    for column, (title, results) in enumerate(columns.items()):
        top, bottom = axes[:, column]
        for i, (label, result) in enumerate(results.items()):
            style: dict[str, Any] = {"every": EVERY, "dashed": "centralised" in label, "spread": 0.2}
            for axis, name in ((top, "reward"), (bottom, "cost")):
                measured = result.history[name][:, result.evaluated()]
                draw(axis, measured, label, COLOURS[i % len(COLOURS)], **style)
        top.set(title=title, ylim=(0, 205))
        bottom.set(xlabel="round", ylim=(0, 2.5 * BUDGET))
        bottom.axhline(BUDGET, color="red", linestyle=":", linewidth=1.8, label=f"budget {BUDGET:g}")
        if column == 0:
            top.set_ylabel("reward of an episode")
            bottom.set_ylabel("cost of an episode")
        bottom.legend(fontsize=8, frameon=False, ncols=2, loc="upper right")
        for axis in (top, bottom):
            axis.grid(alpha=0.25)
    figure.suptitle(f"{mark(scale)}mean and 0.2 standard deviations over seeds", fontsize=10)
    return figure
