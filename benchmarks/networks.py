"""How fast is a round of a network? Against loops in NumPy and PyTorch, and against the same without compression.

    make bench
    python benchmarks/networks.py [--quick] [--rows 64]

One hidden ReLU layer, 20 clients with as many rows each, 10 of them in a round, E = 5 full-batch steps, the soft rule,
Top-K 0.1 both ways, no true values on the way. Every loop is first shown to reach fedsgm's parameters. NumPy and
PyTorch run on one thread and on all, and the faster counts. The floor is a compiled program of the products of the
local steps.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl
import torch

import fedsgm as fs
import network_loops as loops
import turns
from fedsgm.base.layout import Layout
from fedsgm.tables.models import MLP

CLIENTS, PARTICIPANTS, CHECKED, TOLERANCE = 20, 10, 3, 1e-3
SIZES = {128: (20, 120, 100), 1000: (1, 41, 8)}
"""Features and width of the hidden layer, and the rounds of the shorter and the longer run, and of a loop."""
TARGET, SHARE_TARGET = 3, 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--rows", type=int, default=64, help="of a client")
    options = parser.parse_args()
    print(turns.machine("torch"))
    for width, rounds in SIZES.items():
        compare(Network(width, options.rows), rounds, repetitions=3 if options.quick else 7)


class Network:
    """A network, its clients, and the run of each contender as a function of the number of rounds."""

    def __init__(self, width: int, rows: int) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(CLIENTS * rows, width)).astype(np.float32)
        noise = rng.logistic(size=len(x)) * np.sqrt(width)
        y = np.float32(x @ rng.normal(size=width) + noise > 0)
        self.width, self.rows = width, rows
        parts = [{"x": x[j::CLIENTS], "y": y[j::CLIENTS]} for j in range(CLIENTS)]
        self.clients = fs.Clients.from_list(parts)
        self.model = MLP(hidden=(width,))
        self.start = self.model.init(width)
        self.flat = Layout.of(self.start).flatten(self.start)
        self.plain = [(p["x"], p["y"], (1 - p["y"]) / np.sum(1 - p["y"]), p["y"] / np.sum(p["y"])) for p in parts]

    @functools.cached_property
    def problem(self) -> fs.Problem:
        kinds = {label: lambda example, label=label: example["y"] == label for label in (0, 1)}
        constraint = fs.Mean(self.model.loss, where=kinds[1], name="positive") <= loops.BOUND
        return fs.Problem(fs.Mean(self.model.loss, where=kinds[0]), [constraint])

    def simulate(self, rounds: int, link: object) -> fs.Result:
        algorithm = fs.FedSGM(
            loops.STEP, loops.LOCAL_STEPS, PARTICIPANTS, fs.Soft(loops.BETA), uplink=link, downlink=link
        )
        options = {"evaluate_every": 0, "progress": False}
        return fs.simulate(algorithm, self.problem, self.clients, self.start, rounds=rounds, **options)

    def floor(self) -> Callable[[int], object]:
        """The products of all participants' local steps, one client after another, each feeding the next."""
        x = jnp.stack([client[0] for client in self.plain[:PARTICIPANTS]])
        first = jnp.asarray(self.start[0]["w"])

        @jax.jit
        def run(x: jax.Array, w: jax.Array, rounds: int) -> jax.Array:
            def client(w: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
                def step(_: int, w: jax.Array) -> jax.Array:
                    return w - 1e-6 * (x.T @ (x @ w))

                return jax.lax.fori_loop(0, loops.LOCAL_STEPS, step, w), None

            return jax.lax.fori_loop(0, rounds, lambda _, w: jax.lax.scan(client, w, x)[0], w)

        return lambda rounds: run(x, first, rounds).block_until_ready()


def compare(network: Network, rounds: tuple[int, int, int], repetitions: int) -> None:
    d, top = len(network.flat), fs.TopK(loops.SHARE)
    print(f"\nd = {d:,}, {network.rows} rows a client", flush=True)
    participants = check_same(network)
    few, many, looped = rounds
    again = np.resize(participants, (looped, PARTICIPANTS))
    clocks = {
        "fedsgm": turns.steady(lambda rounds: network.simulate(rounds, top), few, many),
        "not compressed": turns.steady(lambda rounds: network.simulate(rounds, fs.Identity()), few, many),
    }
    for threads in sorted({1, os.cpu_count() or 1}):
        for name, loop in (("NumPy", loops.numpy_loop), ("PyTorch", loops.torch_loop)):
            run = on_threads(threads, functools.partial(run_loop, loop, network, again))
            clocks[f"{name}, {threads} thread{'s'[: threads > 1]}"] = turns.clock(run, looped)
    clocks["products only"] = turns.clock(network.floor(), looped)
    taken = turns.take(clocks, repetitions)
    print(f"one round, median of {repetitions}")
    turns.table(taken, "ms", {})
    rivals = [name for name in clocks if "thread" in name]
    best = min(rivals, key=lambda name: statistics.median(turns.ratios(taken, name, "fedsgm")))
    ratio = statistics.median(turns.ratios(taken, best, "fedsgm"))
    print(f"the best loop, {best}: {turns.judge(ratio, TARGET, ratio >= TARGET, '>=')}")
    print(compression(taken))


def compression(taken: list[turns.Turn]) -> str:
    """The words on what part of a round is compression. It cannot be below 0: a turn that says so was disturbed."""
    shares = sorted(1 - ratio for ratio in turns.ratios(taken, "not compressed", "fedsgm"))
    share = statistics.median(shares)
    verdict = "met" if share <= SHARE_TARGET else "not met"
    if shares[0] < 0:
        verdict = "undecided: the turns differ too much"
    spread = f"{100 * shares[0]:.0f} to {100 * shares[-1]:.0f}%"
    return f"compression's share of a round: {100 * share:.0f}% ({spread}), <= {100 * SHARE_TARGET:.0f}% {verdict}"


def run_loop(loop: Callable[..., np.ndarray], network: Network, participants: np.ndarray, rounds: int) -> np.ndarray:
    return loop(network.plain, participants[:rounds], network.flat, network.width)


def on_threads(threads: int, run: Callable[[int], object]) -> Callable[[int], object]:
    def limited(rounds: int) -> object:
        torch.set_num_threads(threads)
        with threadpoolctl.threadpool_limits(threads):
            return run(rounds)

    return limited


def check_same(network: Network) -> np.ndarray:
    """The loops must reach fedsgm's parameters with fedsgm's participants, or there is nothing to compare.

    The error is relative to how far the parameters have moved.
    """
    result = network.simulate(CHECKED, fs.TopK(loops.SHARE))
    participants = result.history["participants"][0]
    expected = Layout.of(network.start).flatten(jax.tree.map(np.asarray, result.last))
    for name, loop in (("NumPy", loops.numpy_loop), ("PyTorch", loops.torch_loop)):
        reached = run_loop(loop, network, participants, CHECKED)
        error = np.linalg.norm(reached - expected) / np.linalg.norm(expected - network.flat)
        if not error < TOLERANCE:
            sys.exit(f"d = {len(expected)}: the {name} loop is {error:.1e} from fedsgm after {CHECKED} rounds")
        weights = np.array2string(result.history["weight"][0], precision=2)
        print(f"after {CHECKED} rounds (weights {weights}) the {name} loop is within {error:.0e} of fedsgm", flush=True)
    return participants


if __name__ == "__main__":
    main()
