"""The CartPole runs that the paper's figures and its table are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import Identity, Quantize, TopK
from fedsgm.core.rules import Hard, Rule, Soft
from fedsgm.paper import lines
from fedsgm.paper.lines import Curve, Look
from fedsgm.paper.study import Run, Scale, Table
from fedsgm.results.result import RECENT, Result
from fedsgm.tasks import cmdp

CLIENTS, BUDGET, EVERY = 10, 30.0, 10
BETA, CEILING = 0.3, 0.5
FIRST_SEED = 1000  # no setting was chosen on these
SEEDS, TABLE_SEEDS = 5, 20  # the paper's number of runs; and of the line whose reward and cost its table has, more
COMPRESSORS = {
    "no compression": Identity(),
    "float16": Quantize("float16"),
    "float8": Quantize("float8"),
    "float4": Quantize("float4"),
    "K/d = 0.5": TopK(0.5),
    "K/d = 0.25": TopK(0.25),
}
PAPER = {  # its table: reward and cost after 100 and after 500 rounds, soft
    "centralised": ((119.9, 33.6), (198.2, 33.2)),
    "no compression": ((67.2, 26.9), (199.4, 27.6)),
    "float16": ((90.5, 31.2), (198.8, 26.9)),
    "float8": ((91.4, 31.4), (199.1, 26.5)),
    "float4": ((49.1, 25.2), (197.2, 25.6)),
    "K/d = 0.5": ((46.5, 23.8), (131.6, 24.0)),
    "K/d = 0.25": ((25.1, 22.7), (25.5, 22.2)),
}
_DATA = "cartpole, a start for each seed, trust region kept"
RULES: Mapping[str, Rule] = {"soft": Soft(BETA), "soft, ceiling 0.5": Soft(BETA, CEILING), "hard": Hard()}


def run(
    scale: Scale,
    rule: str,
    *,
    compression: str = "no compression",
    participants: int = 7,
    centralised: bool = False,
) -> Run:
    """One run: federated and compressed both ways, or centralised with the same trust region."""
    table = (rule, compression, participants, centralised) == ("soft", "no compression", 7, False)
    where = "centralised" if centralised else f"{participants} of {CLIENTS}, {compression}"
    return Run(
        name=f"cartpole, {rule}, {where}",
        algorithm=_algorithm(RULES[rule], COMPRESSORS[compression], None if centralised else participants),
        load=_centralised if centralised else _federated,
        data=_DATA + ", centralised" if centralised else _DATA,
        rounds=scale.of(500, 40),
        seeds=scale.of(TABLE_SEEDS if table else SEEDS, 1),
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
    """All environments with one client."""
    experiment = cmdp.load(clients=CLIENTS)
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


def within_radius(result: Result) -> float:
    """The share of all rounds whose step diverged by no more than twice the radius."""
    problem, kl = result.settings["problem"], result.history["kl"]
    decay = {name: problem["schedule"][name] for name in ("over", "least")}
    return float((kl <= 2 * problem["radius"] * cmdp.HarmonicDecay(**decay)(jnp.arange(kl.shape[1]))).mean())


_LOOK = Look(
    "reward of an episode",
    "cost of an episode",
    ("budget", BUDGET),
    highest=2.5 * BUDGET,
    above_limits=(0, 205),
    spread=0.2,
    title="lines: means over seeds; bands: 0.2 standard deviations to each side",
)


def picture(columns: Mapping[str, Mapping[str, Result]], scale: Scale) -> Any:
    """The reward above, the cost with its budget below, with the paper's bands."""
    return lines.picture(
        {title: [_curve(*named) for named in results.items()] for title, results in columns.items()}, _LOOK, scale
    )


def _curve(label: str, result: Result) -> Curve:
    reward, cost = (result.history[name][:, result.evaluated()] for name in ("reward", "cost"))
    return Curve(label, reward, cost, EVERY, dashed="centralised" in label)
