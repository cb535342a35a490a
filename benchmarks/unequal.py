"""What clients of very different sizes cost: runs with Zipf-sized clients beside the same with equal clients.

    python benchmarks/unequal.py [--quick] [--participants 10]

The runs are as those of ``fedsgm fit``: logistic, rows count equally, demographic parity, E = 2, batches of 128, the
query on all rows, true values every 10 rounds. All take turns in one process; a number is the median over turns, a
ratio is taken within a turn. A round's time is that of the longer of two runs less that of the shorter, so that
compiling and preparing are no part of it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

import fedsgm as fs
from fedsgm.tables.fairness import demographic_parity
from fedsgm.tables.models import MLP

ROWS, FEATURES, CLIENTS = 100_000, 50, 60
EXPONENTS = (1.0, 1.2, 1.5)
ROUNDS = (20, 220)
TARGET = 2

Cost = tuple[float, float]
"""Seconds of wall time and of CPU time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--participants", type=int, help="of 60 clients in a round; all unless told")
    options = parser.parse_args()
    rows = table()
    dealt = {"equal": deal(rows, np.ones(CLIENTS))}
    dealt |= {f"Zipf {power:g}": deal(rows, np.arange(1, CLIENTS + 1) ** -power) for power in EXPONENTS}
    runs = {name: run(clients, options.participants) for name, clients in dealt.items()}
    first = {name: cost(runs[name], ROUNDS[0])[1] for name in runs}
    turns = [{name: a_round(runs[name]) for name in runs} for _ in range(3 if options.quick else 7)]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; jax {jax.__version__}, numpy {np.__version__}")
    print(f"{ROWS} rows x {FEATURES} features, {CLIENTS} clients, {options.participants or 'all'} in a round")
    print("first run: CPU-s with compiling, of 20 rounds; held: bytes of Clients over bytes of the rows\n")
    print("clients    largest   held  first run  ms wall   ms CPU   /equal        range    CPU   target")
    for name, clients in dealt.items():
        wall, cpu = (statistics.median(turn[name][i] for turn in turns) for i in (0, 1))
        ratios, of_cpu = (sorted(turn[name][i] / turn["equal"][i] for turn in turns) for i in (0, 1))
        ratio, spread = statistics.median(ratios), f"{ratios[0]:.2f}-{ratios[-1]:.2f}"
        held = nbytes(clients.examples) / sum(nbytes(clients[j]) for j in range(CLIENTS))
        verdict = "" if name == "equal" else f"<= {TARGET}x {'met' if ratio <= TARGET else 'not met'}: {ratio:.2f}x"
        print(f"{name:10}{clients.longest:8}{held:7.2f}{first[name]:11.1f}{1e3 * wall:9.1f}{1e3 * cpu:9.1f}", end="")
        print(f"{ratio:9.2f}{spread:>13}{statistics.median(of_cpu):7.2f}   {verdict}".rstrip())


def table() -> dict[str, np.ndarray]:
    """A label that depends on the features and a group."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    group = rng.integers(0, 2, ROWS).astype(np.int32)
    y = np.float32(x[:, :5].sum(axis=1) + group + rng.logistic(size=ROWS) > 0)
    return {"x": x, "y": y, "group": group}


def deal(rows: dict[str, np.ndarray], shares: np.ndarray) -> fs.Clients:
    """One after another, a client each of about these shares."""
    cuts = np.round(np.cumsum(shares / shares.sum())[:-1] * len(rows["y"])).astype(int)
    parts = zip(*(np.split(column, cuts) for column in rows.values()), strict=True)
    return fs.Clients.from_list([dict(zip(rows, part, strict=True)) for part in parts])


def nbytes(examples: dict[str, np.ndarray]) -> int:
    return sum(column.nbytes for column in examples.values())


def run(clients: fs.Clients, participants: int | None) -> Callable[[int], fs.Result]:
    model = MLP()
    gap = demographic_parity(model.score, by="group", groups=2, name="gap")
    problem = fs.Problem(model.loss, [gap <= 0.05], weigh="rows")
    algorithm = fs.FedSGM(0.1, 2, participants, fs.Soft(40.0), batch_size=128)
    start = model.init(FEATURES)
    return lambda rounds: fs.simulate(
        algorithm, problem, clients, start, rounds=rounds, evaluate_every=10, progress=False
    )


def cost(run: Callable[[int], fs.Result], rounds: int) -> Cost:
    began, cpu = time.perf_counter(), time.process_time()
    run(rounds)
    return time.perf_counter() - began, time.process_time() - cpu


def a_round(run: Callable[[int], fs.Result]) -> Cost:
    short, long = (cost(run, rounds) for rounds in ROUNDS)
    wall, cpu = ((b - a) / (ROUNDS[1] - ROUNDS[0]) for a, b in zip(short, long, strict=True))
    return wall, cpu


if __name__ == "__main__":
    main()
