"""How often does the Neyman-Pearson run end feasible? Ten train splits, three seeds each, as the README's table.

python benchmarks/splits.py
"""

from __future__ import annotations

import numpy as np

import fedsgm as fs
from fedsgm.tasks import neyman_pearson as task

SPLITS, SEEDS = 10, 3


def main() -> None:
    print("| rule, step size | last objective | feasible at the end | feasible in the last 100 rounds | worst there |")
    print("|---|---|---|---|---|")
    for rule in (fs.Hard(), fs.Soft(beta=40.0)):
        for step_size in (1.0, 0.3, 0.1):
            results = [run(rule, step_size, split) for split in range(SPLITS)]
            objective = np.mean([r.value("train", "objective", "last") for r in results])
            ends = sum(int(r.last_feasible.sum()) for r in results)
            share = np.mean([r.feasible_rounds for r in results])
            excess = max(r.excess_history()[:, -100:].max() for r in results)
            name = type(rule).__name__.lower()
            print(
                f"| {name}, {step_size:g} | {objective:.3f} | {ends} of {SPLITS * SEEDS} | {share:.0%} | {excess:.3f} |"
            )


def run(rule: fs.Hard | fs.Soft, step_size: float, split: int) -> fs.Result:
    clients, test, params = task.load(split_seed=split)
    algorithm = fs.FedSGM(
        step_size=step_size, local_steps=5, participants=10, rule=rule, uplink=fs.TopK(0.1), downlink=fs.TopK(0.1)
    )
    problem = task.neyman_pearson(0.05)
    return fs.simulate(algorithm, problem, clients, params, rounds=500, seeds=SEEDS, test=test, progress=False)


if __name__ == "__main__":
    main()
