"""What a fit takes beside fairlearn's ExponentiatedGradient, to the same bound on the same rows.

    python benchmarks/fit_speed.py [--quick]

100,000 rows x 50 features in 10 clients, equal ones and such that the k-th has a share of 1/k (Zipf's law), demographic
parity at most 0.05, the defaults of ``fedsgm fit`` from prepared clients to the answer; ExponentiatedGradient over
scikit-learn's logistic regression with its defaults, with half of the bound, as its bound is on the distance from the
mean of the groups. All take turns in one process, a ratio is taken within a turn; every fit is compiled anew, and no
cache is used. ExponentiatedGradient minimises how often it is wrong, a fit the cross-entropy: both have both.
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
from turns import Turn, brief, machine, ratios
from unequal import FEATURES, ROWS, deal, table

CLIENTS, BOUND = 10, 0.05
EQUAL, ZIPF, REDUCED = "fit, equal clients", "fit, Zipf clients", "ExponentiatedGradient"

Table = dict[str, np.ndarray]
Answer = tuple[np.ndarray, np.ndarray]
"""Of each row the chance that the decision is a yes, and the probability that the model gives it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repetition")
    repetitions = 1 if parser.parse_args().quick else 3
    rows = table()
    rows["x"] = np.column_stack([rows["x"], np.float32(rows["group"])])
    shares = {EQUAL: np.ones(CLIENTS), ZIPF: 1 / np.arange(1, CLIENTS + 1)}
    ways: dict[str, Callable[[Table], Answer]] = {name: fitted(deal(rows, its)) for name, its in shares.items()}
    ways[REDUCED] = reduced
    taken: list[Turn] = []
    found: dict[str, tuple[float, float, float]] = {}
    for _ in range(repetitions):
        taken.append({})
        for name, way in ways.items():
            began, cpu = time.perf_counter(), time.process_time()
            answer = way(rows)
            taken[-1][name] = time.perf_counter() - began, time.process_time() - cpu
            found[name] = judged(rows, *answer)
    print(machine("fairlearn"))
    print(f"{ROWS} rows x {FEATURES} features, {CLIENTS} clients, gap at most {BOUND}, turns: {repetitions}\n")
    print(f"{'':24}{'first: s':>9}{'CPU-s':>8}{'median: s':>11}{'CPU-s':>8}{'right':>8}{'loss':>8}{'gap':>8}")
    for name, (right, loss, gap) in found.items():
        first, middle = taken[0][name], [statistics.median(turn[name][i] for turn in taken) for i in (0, 1)]
        print(f"{name:24}{first[0]:9.1f}{first[1]:8.1f}{middle[0]:11.1f}{middle[1]:8.1f}", end="")
        print(f"{right:8.1%}{loss:8.4f}{gap:8.4f}")
    for name in shares:
        for what, kind in (("wall", 0), ("CPU", 1)):
            each = ", ".join(map(brief, ratios(taken, REDUCED, name, kind)))
            print(f"{REDUCED} / {name}, {what}: {each}")


def judged(rows: Table, yes: np.ndarray, probability: np.ndarray) -> tuple[float, float, float]:
    """How often it is right, its cross-entropy, and the gap that it has."""
    rates = [yes[rows["group"] == group].mean() for group in (0, 1)]
    of_label = np.where(rows["y"] == 1, probability, 1 - probability)
    right = np.where(rows["y"] == 1, yes, 1 - yes).mean()
    return float(right), float(-np.log(of_label).mean()), float(abs(rates[0] - rates[1]))


def fitted(clients: fs.Clients) -> Callable[[Table], Answer]:
    def fit(rows: Table) -> Answer:
        model = MLP()
        gap = demographic_parity(model.score, by="group", groups=2, name="gap")
        problem = fs.Problem(model.loss, [gap <= BOUND], weigh="rows")
        start = model.init(rows["x"].shape[1])
        result = fs.simulate(recipe.algorithm(), problem, clients, start, rounds=recipe.ROUNDS, progress=False)
        scores = np.asarray(jax.vmap(model.score, (None, 0))(result.answer, {"x": rows["x"]}))
        return np.float32(scores > 0.5), scores

    return fit


def reduced(rows: Table) -> Answer:
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moment = DemographicParity(difference_bound=BOUND / 2)
        fitted: Any = ExponentiatedGradient(LogisticRegression(max_iter=1000), moment, eps=BOUND / 2)
        fitted.fit(rows["x"], rows["y"].astype(int), sensitive_features=rows["group"])
        drawn = [(weight, fitted.predictors_[i]) for i, weight in fitted.weights_.items() if weight > 0]
        scores = sum(weight * model.predict_proba(rows["x"])[:, 1] for weight, model in drawn)
        return fitted._pmf_predict(rows["x"])[:, 1], scores


if __name__ == "__main__":
    main()
