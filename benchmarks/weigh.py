"""Rows or clients that count equally, where clients have very different sizes: the loss over all rows, on Adult.

    python benchmarks/weigh.py ADULT_FOLDER

prints a line for each run as it ends: the clients, how much larger the largest is than the mean, E, the step size, what
counts equally, and of the answer the loss over the training rows, the accuracy on the held-out ones, and the gap.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np

import fedsgm as fs
from fedsgm.data import adult
from fedsgm.data.table import parse_table
from fedsgm.tables.dealing import prepare
from fedsgm.tables.fit import make_problem
from fedsgm.tables.grammar import parse
from fedsgm.tables.models import MLP

ROWS, ROUNDS, ZIPF = 12_000, 200, 30
WANTED = [parse("demographic_parity(sex) <= 0.05")]


def main() -> None:
    data = Path(sys.argv[1], "adult.data").read_bytes()
    table = parse_table(",".join(adult.COLUMNS).encode() + b"\n" + data, "adult")
    table = {name: values[:ROWS] for name, values in table.items() if name not in ("fnlwgt", "education")}
    shares = np.arange(1, ZIPF + 1) ** -1.2
    drawn = np.random.default_rng(0).choice(ZIPF, ROWS, p=shares / shares.sum())
    table["random"] = drawn.astype(str).astype(object)
    print("| clients by | number | largest / mean | E | step | equal | loss over rows | held out right | gap |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for by in ("race", "native-country", "random"):
        drop = [] if by == "random" else ["random"]
        prepared = prepare(table, target="income", wanted=WANTED, client_by=by, drop=drop)
        counts, model = prepared.clients.counts, MLP()
        together = prepared.clients.together()[0]
        for local_steps, step, weigh in itertools.product((2, 1), (0.1, 0.3), ("clients", "rows")):
            result = fs.simulate(
                fs.FedSGM(step, local_steps, batch_size=128, rule=fs.Soft(40.0, 0.5)),
                make_problem(model, WANTED, prepared, weigh),
                prepared.clients,
                model.init(len(prepared.encoder.features)),
                rounds=ROUNDS,
                evaluate_every=10,
                progress=False,
            )
            w, b = result.answer[0]["w"], result.answer[0]["b"]
            logits = together["x"].astype(np.float64) @ w + b
            loss = np.mean(np.logaddexp(0, logits) - together["y"] * logits)
            right = np.mean((prepared.test["x"] @ w + b > 0) == (prepared.test["y"] == 1))
            gap = result.value("train", WANTED[0].name, "answer")[0]
            print(
                f"| {by} | {len(counts)} | {counts.max() / counts.mean():.1f} | {local_steps} | {step} | {weigh} "
                f"| {loss:.4f} | {right:.1%} | {gap:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
