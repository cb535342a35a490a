"""The gradient of a gap between groups: exact ("linearized") against each client's own ("local").

Adult, dealt out by label and group. A logistic model is trained without the constraint; from there the hard rule has
to bring the gap within its bound.

    python benchmarks/directions.py [--adult FOLDER]     prints a table and draws docs/images/directions.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fedsgm as fs
from fedsgm.results import drawing
from fedsgm.tables.models import MLP
from fedsgm.tasks.fair_classification import fair_classification, load

MODEL = MLP(())
BOUND, ROUNDS, SEEDS, EVERY = 0.05, 300, 5, 2
COLOURS = {"linearized": "tab:blue", "local": "tab:orange"}


def run(alpha: float, adult: str | None) -> dict[str, np.ndarray]:
    """The gap over all clients, [seeds, measurements], for each direction."""
    clients, _, params = load(mix="label-group", alpha=alpha, model=MODEL, path=adult)

    def simulate(rule: object, gradient: str, start: object, rounds: int, **more: int) -> fs.Result:
        participants = None if isinstance(rule, fs.Unconstrained) else 5
        algorithm = fs.FedSGM(0.1, local_steps=2, participants=participants, rule=rule, batch_size=256)
        problem = fair_classification(BOUND, model=MODEL, gradient=gradient)
        return fs.simulate(algorithm, problem, clients, start, rounds=rounds, progress=False, **more)

    start = simulate(fs.Unconstrained(), "local", params, 500, evaluate_every=0).last
    gaps = {}
    for gradient in COLOURS:
        result = simulate(fs.Hard(), gradient, start, ROUNDS, seeds=SEEDS, evaluate_every=EVERY)
        gaps[gradient] = result.history["demographic_parity"][:, EVERY - 1 :: EVERY]
    return gaps


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--adult", help="folder with the Adult files")
    adult = options.parse_args().adult
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    rounds = np.arange(EVERY, ROUNDS + 1, EVERY)
    print("| Dirichlet alpha | direction | first within the bound (round, each seed) | within in the last 100 rounds |")
    print("|---|---|---|---|")
    for axis, alpha in zip(axes, (0.1, 0.3), strict=True):
        for gradient, gap in run(alpha, adult).items():
            within = gap <= np.float32(BOUND)
            first = [str(rounds[row.argmax()]) if row.any() else "never" for row in within]
            share = within[:, rounds > ROUNDS - 100].mean()
            print(f"| {alpha:g} | {gradient} | {', '.join(first)} | {share:.0%} |", flush=True)
            for row in gap:
                axis.plot(rounds, row, color=COLOURS[gradient], alpha=0.2, linewidth=0.7)
            axis.plot(rounds, gap.mean(axis=0), color=COLOURS[gradient], linewidth=1.8, label=f"{gradient}, mean")
        axis.axhline(BOUND, color="red", linestyle=":", linewidth=1.6, label=f"bound {BOUND:g}")
        axis.set(xlabel="round", title=f"Dirichlet alpha {alpha:g}, by label and group", ylim=(0, None))
        axis.grid(alpha=0.25)
        drawing.rounds_from_one(axis, ROUNDS)
    axes[0].set_ylabel("gap over all clients")
    drawing.legend_below(figure, axes)
    drawing.write(figure, Path(__file__).parents[1] / "docs/images/directions.png")


if __name__ == "__main__":
    main()
