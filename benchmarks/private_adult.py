"""Adult under demographic parity with differential privacy: accuracy and gap at epsilon 1, 3, 8 and without.

Ten silos, a logistic model, a gap of mean scores of at most 0.05, example level, delta 1e-5; and the same with
everybody's rows in one place, which is what a curator whom all trust with their data could do: the central reference.
The gap that is bounded is that of the training data, measured here exactly, as no private run would.

    python benchmarks/private_adult.py            prints a table, draws docs/images/private-adult.png
    python benchmarks/private_adult.py --quick    one seed, without the picture
    python benchmarks/private_adult.py --central  everybody's rows in one place
    python benchmarks/private_adult.py --shares   the statistics' share of the budget, 0.1, 0.2 and 0.4
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fedsgm as fs
from fedsgm.engines.recording import values_of
from fedsgm.tables.models import MLP
from fedsgm.tasks import fair_classification

ROOT = Path(__file__).parents[1]
MODEL, ROUNDS, BOUND, DELTA, SHARE = MLP(hidden=()), 100, 0.05, 1e-5, 0.2
RULE, STEP = fs.Adaptive(0.5, margin=0.01), 3.0
EPSILONS: tuple[float | None, ...] = (1.0, 3.0, 8.0, None)
# One example's sums: its score, the decision and a 1, in its group's place.
RANGES = {"objective": (0.0, 4.0), "demographic_parity": float(np.sqrt(3))}


def algorithm(epsilon: float | None, share: float = SHARE) -> fs.FedSGM:
    privacy = None
    if epsilon is not None:
        privacy = fs.Privacy(epsilon=epsilon, delta=DELTA, rounds=ROUNDS, clip=1.0, ranges=RANGES, share=share)
    return fs.FedSGM(step_size=STEP, rule=RULE, privacy=privacy)


def one(epsilon: float | None, seed: int, made: tuple[Any, ...], share: float = SHARE) -> dict[str, float]:
    """What a run comes to: accuracy and gap held out, and the gap on the training data."""
    problem, clients, test, params = made
    began = time.process_time()
    result = fs.simulate(
        algorithm(epsilon, share), problem, clients, params, rounds=ROUNDS, seed=seed, evaluate_every=0, progress=False
    )
    seconds = time.process_time() - began
    scores = np.asarray(MODEL.scores(result.last, test["x"]))
    gap = abs(scores[test["sex"] == 1].mean() - scores[test["sex"] == 0].mean())
    train = values_of(problem, clients, [result.last])[0]["demographic_parity"]
    sure = result.verdict().startswith("FEASIBLE")
    accuracy = float(((scores > 0.5) == test["y"]).mean())
    return {"accuracy": accuracy, "gap": float(gap), "train": train, "sure": float(sure), "seconds": seconds}


def drawn(found: dict[float | None, list[dict[str, float]]], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    labels = ["none" if epsilon is None else f"{epsilon:g}" for epsilon in found]
    for axis, name, title in ((axes[0], "accuracy", "accuracy, held out"), (axes[1], "train", "gap, training data")):
        for at, runs in enumerate(found.values()):
            axis.plot([at] * len(runs), [run[name] for run in runs], "o", color="tab:blue", alpha=0.6)
            axis.plot([at - 0.2, at + 0.2], [np.mean([run[name] for run in runs])] * 2, color="black")
        axis.set_xticks(range(len(found)), labels)
        axis.set_xlabel("epsilon")
        axis.set_title(title)
    axes[1].axhline(BOUND, linestyle=":", color="tab:red")
    axes[1].set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def row(first: list[str], runs: list[dict[str, float]]) -> str:
    each = {name: np.array([run[name] for run in runs]) for name in ("accuracy", "gap", "train")}
    cells = [f"{values.mean():.4f} ± {values.std():.4f}" for values in each.values()]
    shown, least = f"{sum(int(run['sure']) for run in runs)} of {len(runs)}", min(run["seconds"] for run in runs)
    return f"| {' | '.join([*first, *cells, shown, f'{least:.1f}'])} |"


COLUMNS = "accuracy, held out | gap, held out | gap, training | shown feasible | CPU-s a run |"


def shares(made: tuple[Any, ...]) -> None:
    print(f"| epsilon | share | {COLUMNS}\n|{'---|' * 7}")
    for epsilon in (1.0, 3.0):
        for share in (0.1, 0.2, 0.4):
            runs = [one(epsilon, seed, made, share) for seed in range(5)]
            print(row([f"{epsilon:g}", f"{share:g}"], runs), flush=True)


def table(made: tuple[Any, ...], seeds: int) -> dict[float | None, list[dict[str, float]]]:
    print(f"| epsilon | {COLUMNS}\n|{'---|' * 6}")
    found = {}
    for epsilon in EPSILONS:
        found[epsilon] = [one(epsilon, seed, made) for seed in range(seeds)]
        print(row(["none" if epsilon is None else f"{epsilon:g}"], found[epsilon]), flush=True)
    return found


def main(told: argparse.Namespace) -> None:
    clients, test, params = fair_classification.load(model=MODEL, path=ROOT / "../shared/adult")
    if told.central:
        clients = clients.together()
    made = (fair_classification.fair_classification(BOUND, model=MODEL), clients, test, params)
    if told.shares:
        shares(made)
        return
    found = table(made, 1 if told.quick else 5)
    if not told.quick and not told.central:
        drawn(found, ROOT / "docs/images/private-adult.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for flag in ("--quick", "--central", "--shares"):
        parser.add_argument(flag, action="store_true")
    main(parser.parse_args())
