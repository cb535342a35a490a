"""What a round costs as the number of clients grows, with 100 of them in a round.

    python benchmarks/many_clients.py [1000 10000 100000 1000000]

A logistic model of 31 parameters, two examples a client, E = 5, the soft rule, true values at the end only. A round's
time is that of the longer of two runs less that of the shorter, the median of five; the numbers take turns.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time

import jax
import numpy as np

import fedsgm as fs
from fedsgm.tables.models import MLP

FEATURES, ROUNDS, TURNS = 30, (100, 2100), 5


def main(numbers: list[int]) -> None:
    dealt = {n: deal(n) for n in numbers}
    for clients in dealt.values():
        run(clients, 1)  # compiles
    turns = [
        {n: run(clients, ROUNDS[1]) - run(clients, ROUNDS[0]) for n, clients in dealt.items()} for _ in range(TURNS)
    ]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; jax {jax.__version__}, numpy {np.__version__}")
    print("  clients   ms a round   / the first")
    for n in numbers:
        spent = statistics.median(turn[n] for turn in turns) / (ROUNDS[1] - ROUNDS[0])
        ratio = statistics.median(turn[n] / turn[numbers[0]] for turn in turns)
        print(f"{n:9}{1e3 * spent:13.3f}{ratio:14.2f}")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")


MODEL = MLP()
PROBLEM = fs.Problem(MODEL.loss, [fs.Mean(MODEL.loss, name="g") <= 0.6])


def deal(n: int) -> fs.Clients:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * n, FEATURES)).astype(np.float32)
    return fs.split({"x": x, "y": np.tile(np.float32([0, 1]), n)}, clients=n, scheme=fs.iid(), seed=0)


def run(clients: fs.Clients, rounds: int) -> float:
    algorithm, options = fs.FedSGM(0.1, 5, 100, fs.Soft(40.0)), {"evaluate_every": 0, "progress": False}
    began = time.perf_counter()
    fs.simulate(algorithm, PROBLEM, clients, MODEL.init(FEATURES), rounds=rounds, **options)
    return time.perf_counter() - began


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1000, 10_000, 100_000, 1_000_000])
