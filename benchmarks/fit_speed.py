"""What a fit takes beside fairlearn's ExponentiatedGradient, to the same bound on the same rows.

    python benchmarks/fit_speed.py [--quick]

100,000 rows x 50 features in 10 equal clients, demographic parity at most 0.05, the defaults of ``fedsgm fit`` from
prepared clients to the answer; ExponentiatedGradient over scikit-learn's logistic regression with its defaults, with
half of the bound, as its bound is on the distance from the mean of the groups. Both take turns in one process, a ratio
is taken within a turn; every fit is compiled anew, and no cache is used.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ["FEDSGM_CACHE"] = ""

import jax
import numpy as np

import fedsgm as fs
from fedsgm.tables import recipe
from fedsgm.tables.fairness import demographic_parity
from fedsgm.tables.models import MLP

ROWS, FEATURES, CLIENTS, BOUND = 100_000, 50, 10, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repetition")
    turns = 1 if parser.parse_args().quick else 3
    rows = table()
    ways = {"fedsgm fit": fit, "ExponentiatedGradient": reduced}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    found: dict[str, tuple[float, float]] = {}
    for _ in range(turns):
        for name, way in ways.items():
            (wall, cpu), found[name] = timed(way, rows)
            taken[name].append((wall, cpu))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; jax {jax.__version__}, numpy {np.__version__}")
    print(f"{ROWS} rows x {FEATURES} features, {CLIENTS} clients, gap at most {BOUND}, {turns} turns\n")
    print(f"{'':24}{'first: s':>9}{'CPU-s':>8}{'median: s':>11}{'CPU-s':>8}{'right':>8}{'gap':>8}")
    for name, (right, gap) in found.items():
        first, middle = taken[name][0], [statistics.median(column) for column in zip(*taken[name], strict=True)]
        print(f"{name:24}{first[0]:9.1f}{first[1]:8.1f}{middle[0]:11.1f}{middle[1]:8.1f}{right:8.1%}{gap:8.4f}")
    mine, other = taken.values()
    for what, which in (("wall", 0), ("CPU", 1)):
        ratios = [theirs[which] / own[which] for own, theirs in zip(mine, other, strict=True)]
        print(f"ExponentiatedGradient / fit, {what}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


def table() -> dict[str, np.ndarray]:
    """A label that depends on the features and a group."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    group = rng.integers(0, 2, ROWS).astype(np.int32)
    y = np.float32(x[:, :5].sum(axis=1) + group + rng.logistic(size=ROWS) > 0)
    return {"x": np.column_stack([x, np.float32(group)]), "y": y, "group": group}


def timed(way: Callable[[Any], np.ndarray], rows: dict[str, np.ndarray]) -> tuple[tuple[float, float], Any]:
    """What it takes, how often it is right and what gap it has, where it decides with these chances."""
    began, cpu = time.perf_counter(), time.process_time()
    yes = way(rows)
    taken = time.perf_counter() - began, time.process_time() - cpu
    rates = [yes[rows["group"] == group].mean() for group in (0, 1)]
    return taken, (float(np.where(rows["y"] == 1, yes, 1 - yes).mean()), float(abs(rates[0] - rates[1])))


def fit(rows: dict[str, np.ndarray]) -> np.ndarray:
    model = MLP()
    gap = demographic_parity(model.score, by="group", groups=2, name="gap")
    problem = fs.Problem(model.loss, [gap <= BOUND], weigh="rows")
    clients = fs.split(rows, clients=CLIENTS, scheme=fs.iid(), seed=0)
    start = model.init(rows["x"].shape[1])
    result = fs.simulate(recipe.algorithm(), problem, clients, start, rounds=recipe.ROUNDS, progress=False)
    return np.float32(jax.vmap(model.score, (None, 0))(result.answer, {"x": rows["x"]}) > 0.5)


def reduced(rows: dict[str, np.ndarray]) -> np.ndarray:
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moment = DemographicParity(difference_bound=BOUND / 2)
        fitted = ExponentiatedGradient(LogisticRegression(max_iter=1000), moment, eps=BOUND / 2)
        fitted.fit(rows["x"], rows["y"].astype(int), sensitive_features=rows["group"])
        return fitted._pmf_predict(rows["x"])[:, 1]


if __name__ == "__main__":
    main()
