"""Does another server step help? Optimism, momentum and Adam against the plain step, on Neyman-Pearson.

    python benchmarks/accelerations.py

The paper's setting: n = 20, m = 10, E = 5, Top-K 0.1 both ways, 500 rounds, splits 0 to 4. Each method chooses one of
five steps on three seeds, and is judged on ten others; all send the same bytes. Runs of a split are not independent:
the standard error is of the five splits' means.
"""

from __future__ import annotations

import functools

import numpy as np
import optax

import fedsgm as fs
from fedsgm.tasks.neyman_pearson import load, neyman_pearson

SPLITS, BOUND, ROUNDS = range(5), 0.05, 500
TUNING, JUDGED = (0, 3), (3000, 10)  # the first seed, and how many
STEPS = (10.0, 3.0, 1.0, 0.3, 0.1)
RULES = {"hard": fs.Soft(1e30), "soft 40": fs.Soft(40.0), "soft 100": fs.Soft(100.0)}  # one program for all

# What takes the step, and the local step size; momentum's own steps add up to ten.
METHODS = {
    "plain": lambda step: (step, optax.sgd(step)),
    "optimistic": lambda step: (step, optax.optimistic_gradient_descent(step)),
    "momentum 0.9": lambda step: (step, optax.sgd(step / 10, momentum=0.9)),
    "Nesterov 0.9": lambda step: (step, optax.sgd(step / 10, momentum=0.9, nesterov=True)),
    "Adam": lambda step: (0.3, optax.adam(step / 10)),
}


@functools.cache
def made(method: str, step: float) -> tuple[float, optax.GradientTransformation]:
    return METHODS[method](step)


def run(method: str, step: float, rule: str, split: int, seeds: tuple[int, int]) -> dict[str, np.ndarray]:
    """Of every seed: the answer's objective, the last 100 rounds' means, and the bytes."""
    clients, _, params = load(split_seed=split)
    local, server = made(method, step)
    links = {"uplink": fs.TopK(0.1), "downlink": fs.TopK(0.1)}
    algorithm = fs.FedSGM(local, local_steps=5, participants=10, rule=RULES[rule], server=server, **links)
    result = fs.simulate(
        algorithm,
        neyman_pearson(BOUND),
        clients,
        params,
        rounds=ROUNDS,
        seed=seeds[0],
        seeds=seeds[1],
        progress=False,
    )
    objective, constraint = result.history["objective"], result.history["minority"]
    reached = (objective <= 0.15) & (constraint <= 0.06)
    return {
        "answer": np.where(result.feasible, result.value("train", "objective", "answer"), np.nan),
        "objective": objective[:, -100:].mean(axis=1),
        "constraint": constraint[:, -100:].mean(axis=1),
        "within": (constraint[:, -100:] <= BOUND).mean(axis=1),
        "rounds to": np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, ROUNDS),
        "bytes": (result.history["bytes_up"] + result.history["bytes_down"]).sum(axis=1),
    }


def over_splits(method: str, step: float, rule: str, seeds: tuple[int, int]) -> dict[str, np.ndarray]:
    found = [run(method, step, rule, split, seeds) for split in SPLITS]
    return {name: np.stack([each[name] for each in found]) for name in found[0]}


def score(found: dict[str, np.ndarray]) -> tuple[int, float]:
    """Runs that never were within the bound, then the answers' mean objective."""
    missed = np.isnan(found["answer"])
    return int(missed.sum()), float("inf") if missed.all() else float(np.nanmean(found["answer"]))


def main() -> None:
    print(
        "rule      method        step  within  answer   minus plain's    rounds to   last 100: f       g  within   MB"
    )
    for rule in RULES:
        plain = None
        for method in METHODS:
            step = min(STEPS, key=lambda step: score(over_splits(method, step, rule, TUNING)))
            found = over_splits(method, step, rule, JUDGED)
            plain = found if plain is None else plain
            apart = np.nanmean(found["answer"] - plain["answer"], axis=1)
            error = apart.std(ddof=1) / np.sqrt(len(apart))
            kept = f"{int((~np.isnan(found['answer'])).sum())} of {found['answer'].size}"
            late = [found[name].mean() for name in ("objective", "constraint", "within")]
            print(
                f"{rule:10}{method:13}{step:5g} {kept:>8} {np.nanmean(found['answer']):.4f}  "
                f"{apart.mean():+.4f} +- {error:.4f} {np.median(found['rounds to']):9.0f}"
                f"{late[0]:16.4f} {late[1]:.4f} {late[2]:6.0%} {found['bytes'].mean() / 1e6:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
