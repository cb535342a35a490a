"""A problem and a method of one's own for the benchmark: fedsgm benchmark run all --with examples/benchmark_case.py

Shops forecast what they sell from what they know; the large shops' error is least, and the small ones' is bounded.
"""

import numpy as np

import fedsgm as fs
from fedsgm.benchmark.cases import Case, Data, Method
from fedsgm.benchmark.methods import federated


def load(split):
    """Ten shops with thirty days each; a split is another draw of which days are held out."""
    rng = np.random.default_rng(0)
    shops = 0.5 * rng.normal(size=10) + (np.arange(10) >= 7)
    x = np.stack([np.ones(300), rng.normal(size=300)], axis=1).astype(np.float32)
    y = (x[:, 1] * (1 + np.repeat(shops, 30)) + 0.1 * rng.normal(size=300)).astype(np.float32)
    small = np.repeat(np.arange(10) >= 7, 30)
    days = np.stack([np.random.default_rng([split, shop]).permutation(30) for shop in range(10)])
    parts = {"train": days[:, :18], "validation": days[:, 18:24], "test": days[:, 24:]}
    rows = {name: (each + 30 * np.arange(10)[:, None]) for name, each in parts.items()}
    examples = {"x": x, "y": y, "small": small}
    held = {name: {key: a[rows[name].ravel()] for key, a in examples.items()} for name in ("validation", "test")}
    return Data(
        fs.Clients.dealt(examples, list(rows["train"])), held["validation"], held["test"], np.zeros(2, np.float32)
    )


def error(w, example):
    return (example["x"] @ w - example["y"]) ** 2


def problem(bound):
    small = fs.fairness.class_loss(error, label=1, target="small", name="small shops' error")
    return fs.Problem(fs.Mean(error), [small <= bound], weigh="rows")


CASES = [
    Case(
        "shops",
        "what a shop sells; the small shops' error bounded",
        load,
        problem,
        bounds=(0.45, 0.55),
        participants=5,
        rounds=60,
        batch_size=None,
        evaluate_every=1,
        steps=(0.05, 0.2),
        natural="shops",
        source="made up",
        convex=True,
    )
]

METHODS = [
    Method(
        "ceiling",
        "FedSGM, soft with a ceiling",
        lambda case: [{"step": step, "ceiling": share} for step in case.steps for share in (0.5, 0.7, 0.9)],
        lambda case, bound, setting: federated(case, setting["step"], fs.Soft(4 / bound, setting["ceiling"])),
    )
]
