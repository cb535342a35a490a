"""The paper's penalty picture on Neyman-Pearson: FedSGM untuned against rivals with several settings each.

Five train splits of the breast cancer data with three seeds each; the picture shows split 0.

    python benchmarks/penalty.py     prints a table and draws docs/images/penalty.png
"""

from __future__ import annotations

from pathlib import Path

import fedsgm as fs
from fedsgm.methods import IPPConEx
from fedsgm.methods.presets import centralized
from fedsgm.results import comparison
from fedsgm.tasks.neyman_pearson import load, neyman_pearson

SPLITS, SEEDS, ROUNDS, E = range(5), 3, 500, 5
COMPRESSED = {"participants": 10, "uplink": fs.TopK(0.1), "downlink": fs.TopK(0.1)}


def fedsgm(rule: object) -> fs.FedSGM:
    return fs.FedSGM(0.3, local_steps=E, rule=rule, **COMPRESSED)


METHODS = {
    "FedSGM, soft 40": fedsgm(fs.Soft(40.0)),
    "FedSGM, hard": fedsgm(fs.Hard()),
    **{f"penalty, rho {rho:g}": fedsgm(fs.Penalty(rho)) for rho in (0.1, 1.0, 10.0, 100.0)},
    "primal-dual, step 0.1": fedsgm(fs.PrimalDual(0.1)),
    "primal-dual, step 1": fedsgm(fs.PrimalDual(1.0)),
    "augmented Lagrangian, 10": fedsgm(fs.PrimalDual(0.1, augment=10.0)),
    "centralised, soft 40": fs.FedSGM(0.3, rule=fs.Soft(40.0)),
    "centralised, hard": fs.FedSGM(0.3, rule=fs.Hard()),
    "IPP-ConEx, tuned": IPPConEx(0.1, primal_scale=0.05, dual_scale=2.0, offset=400.0, local_steps=E),
    "IPP-ConEx, small steps": IPPConEx(1.0, primal_scale=50.0, dual_scale=2.0, local_steps=E),
}
DRAWN = ["FedSGM, soft 40", "FedSGM, hard", "penalty, rho 0.1", "penalty, rho 1", "penalty, rho 10", "penalty, rho 100"]


def run(name: str, split: int) -> fs.Result:
    clients, test, params = load(split_seed=split)
    algorithm = METHODS[name]
    alone = name.startswith(("centralised", "IPP"))
    each = E // algorithm.local_steps
    return fs.simulate(
        algorithm,
        neyman_pearson(0.05),
        centralized(clients) if alone else clients,
        params,
        rounds=ROUNDS * each,
        seeds=SEEDS,
        test=test,
        evaluate_every=5 * each,
        progress=False,
    )


def pooled(rows: list[comparison.Row]) -> comparison.Row:
    """All splits' seeds as one row's."""

    def joined(part: str) -> list[float]:
        return [value for row in rows for value in getattr(row, part)]

    minority = [value for row in rows for value in row.constraints["minority"]]
    parts = {part: joined(part) for part in ("seeds", "objective", "excess", "feasible_rounds")}
    return comparison.Row(rows[0].label, rows[0].kind, constraints={"minority": minority}, **parts)


def main() -> None:
    rows, drawn = [], []
    for name in METHODS:
        results = [run(name, split) for split in SPLITS]
        each = [comparison.Row.of(name, result, "last") for result in results]
        rows.append(pooled(each))
        if name in DRAWN:
            drawn.append((each[0], results[0]))
    print(comparison.table(rows))
    picture = Path(__file__).parents[1] / "docs/images/penalty.png"
    comparison.plot([row for row, _ in drawn], picture, [result for _, result in drawn])


if __name__ == "__main__":
    main()
