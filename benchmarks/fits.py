"""What `fedsgm fit` comes to on its defaults: public tables, kinds of constraints and bounds, against fairlearn.

    python benchmarks/fits.py run ROWS.jsonl --adult FOLDER    # goes on with what the file has
    python benchmarks/fits.py tell ROWS.jsonl                  # of several such files put together

A seed is another sample of the table, another held-out part and another run. Beside the defaults of the command, for a
logistic model and for a network, there are: the logistic model with ``--step-size 0.3``; what the command did at 0.1.0
(soft rule, beta 40, step size 0.1, every tenth round measured); fairlearn's ExponentiatedGradient over scikit-learn's
logistic regression, with half of the bound, as its bound is on the distance from the mean of the groups; and, for
recall and error rates, that regression with its threshold moved until the training rows keep the bound. The defaults
were chosen on the other tables; FARS was held out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import fedsgm as fs
from fedsgm.data import adult
from fedsgm.data.public import TABLES
from fedsgm.data.table import parse_table
from fedsgm.tables import recipe, sanity
from fedsgm.tables.dealing import Prepared, prepare
from fedsgm.tables.fit import make_problem
from fedsgm.tables.grammar import Wanted, parse

ROWS, SEEDS = 4000, 5
GROUPS = {"credit": "SEX", "compas": "race", "law": "race", "census": "sex", "adult": "sex", "health": "sex"}
HELD_OUT = {"fars": "SEX"}
TARGETS = {name: (table.target, table.positive) for name, table in TABLES.items()} | {"adult": ("income", ">50K")}
GAPS = ("demographic_parity", "equalized_odds")
BOUNDS = (0.1, 0.02, 0.005)
OF_CLASS = ("recall({}) >= 0.7", "recall({}) >= 0.9", "error_rate({}) <= 0.2")
METHODS = ("logistic", "network", "step 0.3", "threshold", "EG", "0.1.0")


def constraints(name: str) -> list[str]:
    by, positive = (GROUPS | HELD_OUT)[name], TARGETS[name][1]
    gaps = [f"{kind}({by}) <= {bound}" for kind, bound in itertools.product(GAPS, BOUNDS)]
    return gaps + [words.format(repr(positive)) for words in OF_CLASS]


def load(name: str, folder: Path) -> dict[str, np.ndarray]:
    """A table without people whose group is unknown, and with nothing so rare that some samples lack it."""
    if name == "adult":
        data = (folder / "adult.data").read_bytes()
        table = parse_table(",".join(adult.COLUMNS).encode() + b"\n" + data, "adult")
        table = {column: values for column, values in table.items() if column not in ("fnlwgt", "education")}
    else:
        given = folder / Path(TABLES[name].member).name  # census is not fetched
        table = TABLES[name].load(given if given.exists() else None)
    known = np.char.lower(table[(GROUPS | HELD_OUT)[name]].astype(str)) != "unknown"
    common = {column: without_rare(values[known]) for column, values in table.items()}
    return {column: values for column, values in common.items() if values is not None}


def without_rare(values: np.ndarray) -> np.ndarray | None:
    """With one category in place of all that fewer than 1 of 100 rows have; None if 99 of 100 have the same."""
    told = np.array(["" if value is None else str(value) for value in values])
    _, place, counts = np.unique(told, return_inverse=True, return_counts=True)
    if counts.max() >= 0.99 * len(values):
        return None
    if values.dtype.kind != "O":
        return values
    return np.where((counts < 0.01 * len(values))[place] & (told != ""), "other", values)


def prepared(table: dict[str, np.ndarray], name: str, wanted: Wanted, seed: int) -> Prepared:
    rows = np.random.default_rng(1000 + seed).permutation(len(next(iter(table.values()))))[:ROWS]
    target, positive = TARGETS[name]
    sample = {column: values[rows] for column, values in table.items()}
    return prepare(sample, target=target, positive=positive, wanted=[wanted], seed=seed)


def fit(method: str, part: Prepared, wanted: Wanted, seed: int) -> dict[str, Any]:
    model = part.target.model((64,) if method == "network" else ())
    problem = make_problem(model, [wanted], part, "rows")
    old = method == "0.1.0"
    if old:
        made = fs.FedSGM(0.1, 2, batch_size=128, rule=fs.Soft(40.0))
    else:
        made = recipe.algorithm(model, **({"step_size": 0.3} if method == "step 0.3" else {}))
    params = model.init(len(part.encoder.features), seed=seed)
    options = {"rounds": recipe.ROUNDS, "seed": seed, "test": part.test, "evaluate_every": 10 if old else 1}

    def run(posed: fs.Problem) -> tuple[fs.Result, sanity.Comparison]:
        result = fs.simulate(made, posed, part.clients, params, progress=False, **options)
        return result, sanity.compare(model, problem, part, result, None)

    result, compared = run(problem)
    if compared.worse and not old:  # as the command does
        again = run(sanity.as_right(problem, model, compared.constant))
        result, compared = (result, compared) if again[1].worse else again
    return {
        "feasible": bool(result.feasible[0]),
        "right": compared.model.good,
        "value": {kind: float(result.value(kind, wanted.name, "answer")[0]) for kind in ("train", "test")},
        "constant": compared.constant.good["train"] if compared.constant.within else None,
        "worse": compared.worse,
    }


def reference(method: str, part: Prepared, wanted: Wanted) -> dict[str, Any]:
    from fairlearn.reductions import DemographicParity, EqualizedOdds, ExponentiatedGradient
    from sklearn.linear_model import LogisticRegression

    train, test, plain = part.clients.together()[0], part.test, LogisticRegression(max_iter=1000)
    assert test is not None
    if method == "EG":
        moment = {GAPS[0]: DemographicParity, GAPS[1]: EqualizedOdds}[wanted.kind](difference_bound=wanted.bound / 2)
        reduced = ExponentiatedGradient(plain, moment, eps=wanted.bound / 2)
        reduced.fit(train["x"], train["y"].astype(int), sensitive_features=train[wanted.column])
        chances = [reduced._pmf_predict(rows["x"])[:, 1] for rows in (train, test)]  # of a randomised decision
    else:
        plain.fit(train["x"], train["y"].astype(int))
        least = wanted.bound if wanted.kind == "recall" else 1 - wanted.bound
        scores = plain.predict_proba(train["x"])[:, 1]
        threshold = np.quantile(scores[train["y"] == 1], 1 - least, method="lower")
        chances = [(plain.predict_proba(rows["x"])[:, 1] >= threshold) * 1.0 for rows in (train, test)]
    found: dict[str, Any] = {"right": {}, "value": {}}
    for kind, rows, yes in zip(("train", "test"), (train, test), chances, strict=True):
        found["right"][kind] = float(np.where(rows["y"] == 1, yes, 1 - yes).mean())
        found["value"][kind] = value(wanted, rows, yes)
    return found


def value(wanted: Wanted, rows: dict[str, np.ndarray], yes: np.ndarray) -> float:
    """The constraint's value, where each is decided to be positive with such a chance."""
    if wanted.kind not in GAPS:
        recall = float(yes[rows["y"] == 1].mean())
        return recall if wanted.kind == "recall" else 1 - recall
    group = rows[wanted.column]
    among = [np.ones(len(yes), bool)] if wanted.kind == GAPS[0] else [rows["y"] == 1, rows["y"] == 0]
    rates = [[yes[chosen & (group == g)].mean() for g in np.unique(group[group >= 0])] for chosen in among]
    return float(max(max(each) - min(each) for each in rates))


def run(path: Path, folder: Path, methods: list[str]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["table"], row["constraint"], row["method"], row["seed"]) for row in rows}
    tables = {name: load(name, folder) for name in (*GROUPS, *HELD_OUT)}
    with path.open("a") as file:
        for method, seed, name in itertools.product(methods, range(SEEDS), tables):
            of_gaps = {"EG": True, "threshold": False}.get(method)
            parts: dict[str, Prepared] = {}
            for words in constraints(name):
                wanted = parse(words)
                key = (name, words, method, seed)
                if key in done or of_gaps not in (None, wanted.kind in GAPS):
                    continue
                if wanted.kind not in parts:
                    parts[wanted.kind] = prepared(tables[name], name, wanted, seed)
                part = parts[wanted.kind]
                began = time.perf_counter()
                if of_gaps is None:
                    found = fit(method, part, wanted, seed)
                else:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        found = reference(method, part, wanted)
                row = dict(zip(("table", "constraint", "method", "seed"), key, strict=True)) | found
                file.write(json.dumps(row | {"seconds": round(time.perf_counter() - began, 2)}) + "\n")
                file.flush()


def tell(path: Path) -> None:
    """Tables in Markdown: every method by kind of constraint, and the differences from the references.

    Held-out rows are few, so a difference there is first averaged over the seeds of a table and constraint; the worst
    is given of these means and of the single runs.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    by = {(row["method"], row["table"], row["constraint"], row["seed"]): row for row in rows}
    below = "points below the reference"
    head = [
        "method",
        "constraints",
        "runs",
        "feasible",
        "below the best feasible constant",
        "right, training / held out",
    ]
    head += [f"{below}, {part}: mean, worst of the tables and bounds, worst run" for part in ("training", "held out")]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    kinds = {"gaps": GAPS, "rates of a class": ("recall", "error_rate")}
    own = [method for method in METHODS if method not in ("threshold", "EG")]
    for method, held, (name, which) in itertools.product(own, (False, True), kinds.items()):
        mine = [
            row
            for row in rows
            if row["method"] == method and row["constraint"].startswith(which) and (row["table"] in HELD_OUT) == held
        ]
        if not mine:
            continue
        cells: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for row in mine:
            cells.setdefault((row["table"], row["constraint"]), []).append(against(row, by))
        each, means = np.concatenate(list(cells.values())), np.array([np.mean(cell, axis=0) for cell in cells.values()])
        right = " / ".join(f"{np.mean([row['right'][part] for row in mine]):.1%}" for part in ("train", "test"))
        told = [f"{each[:, i].mean():+.2f}, {means[:, i].max():+.2f}, {each[:, i].max():+.2f}" for i in (0, 1)]
        print(
            f"| {method} | {name}{', FARS' if held else ''} | {len(mine)} | {sum(row['feasible'] for row in mine)} "
            f"| {sum(row['worse'] for row in mine)} | {right} | {told[0]} | {told[1]} |"
        )


def against(row: dict[str, Any], by: dict[tuple, dict[str, Any]]) -> tuple[float, float]:
    """Points by which a run is right less often than the reference at the same value on the training rows."""
    kind, by_threshold = row["constraint"].partition("(")[0], "threshold"
    if kind in GAPS:
        curve = [
            by[key]
            for words in constraints(row["table"])
            if words.startswith(kind) and (key := ("EG", row["table"], words, row["seed"])) in by
        ]
    else:
        key = (by_threshold, row["table"], row["constraint"], row["seed"])
        curve = [by[key]] if key in by else []
    if not curve:
        return np.nan, np.nan
    curve.sort(key=lambda each: each["value"]["train"])
    at = [each["value"]["train"] for each in curve]
    return tuple(
        100 * (np.interp(row["value"]["train"], at, [each["right"][part] for each in curve]) - row["right"][part])
        for part in ("train", "test")
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "tell"))
    parser.add_argument("rows", type=Path)
    parser.add_argument("--adult", type=Path, default=Path("adult"), help="folder with adult.data")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    given = parser.parse_args()
    sys.exit(run(given.rows, given.adult, given.only) if given.what == "run" else tell(given.rows))
