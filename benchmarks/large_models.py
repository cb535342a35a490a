"""What large models cost: a round with clients in blocks beside all of them at once, and the memory that is planned.

    python benchmarks/large_models.py [--quick] [logistic small mlp cnn large]

Twenty participants of 50 examples, E = 5, batches of 32, no compression, true values at the end only. A round's time is
that of the longer of two runs less that of the shorter; ratios are medians over turns, in which the block sizes follow
each other. The memory is XLA's own account of the compiled program, of 100 clients, with and without Top-K.
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
import sys
from typing import Any

import jax
import numpy as np

import fedsgm as fs
import turns
from fedsgm.engines import device as engine

ROWS, PARTICIPANTS, TURNS, SECONDS = 50, 20, 5, 0.5
BLOCKS = (PARTICIPANTS, 1, 5, None)  # all at once comes first; None is what the library chooses
WIDTHS = {
    "logistic": (30, 2),
    "small": (60, 60, 10),
    "mlp": (128, 128, 10),
    "cnn": (784, 8, 16, 10),
    "large": (784, 784, 512, 10),
}


def dense(params: Any, x: jax.Array) -> jax.Array:
    for weights, bias in params[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    return x @ params[-1][0] + params[-1][1]


def convolved(params: Any, x: jax.Array) -> jax.Array:
    *kernels, last = params
    x = x.reshape(1, 28, 28, 1)
    for kernel in kernels:
        forms = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=forms))
    return dense([last], x.reshape(-1))


def model(name: str) -> tuple[Any, Any]:
    rng, widths = np.random.default_rng(0), WIDTHS[name]

    def normal(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.prod(shape[:-1]) ** 0.5).astype(np.float32)

    if name == "cnn":
        _, first, second, classes = widths
        last = normal(49 * second, classes), np.zeros(classes, np.float32)
        return convolved, [normal(3, 3, 1, first), normal(3, 3, first, second), last]
    return dense, [(normal(a, b), np.zeros(b, np.float32)) for a, b in itertools.pairwise(widths)]


def posed(name: str, clients: int) -> tuple[fs.Problem, fs.Clients, Any]:
    output, params = model(name)

    def loss(params: Any, example: Any) -> jax.Array:
        return -jax.nn.log_softmax(output(params, example["x"]))[example["y"]]

    rng, (features, *_, classes) = np.random.default_rng(1), WIDTHS[name]
    x = rng.normal(size=(clients * ROWS, features)).astype(np.float32)
    dealt = fs.split({"x": x, "y": rng.integers(classes, size=len(x))}, clients=clients, scheme=fs.iid(), seed=0)
    return fs.Problem(loss, [fs.Mean(loss, name="g") <= 0.6]), dealt, params


def speed(name: str, repetitions: int) -> None:
    problem, clients, params = posed(name, PARTICIPANTS)
    algorithm = fs.FedSGM(0.01, 5, rule=fs.Soft(40.0), batch_size=32)

    def spent(block: int | None, rounds: int) -> float:
        options = {"evaluate_every": 0, "progress": False, "block": block}
        return turns.cost(lambda n: fs.simulate(algorithm, problem, clients, params, rounds=n, **options), rounds)[0]

    for block in BLOCKS:
        spent(block, 1)  # compiles
    rounds = max(2, min(1000, int(2 * SECONDS / max(spent(BLOCKS[0], 3) - spent(BLOCKS[0], 1), 1e-3))))
    taken = [{b: (spent(b, 1 + rounds) - spent(b, 1)) / rounds for b in BLOCKS} for _ in range(repetitions)]
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(params))
    ratios = [statistics.median(turn[b] / turn[BLOCKS[0]] for turn in taken) for b in BLOCKS]
    first = 1e3 * statistics.median(turn[BLOCKS[0]] for turn in taken)
    print(f"{name:9}{size:9}{first:11.2f}" + "".join(f"{ratio:8.2f}" for ratio in ratios), flush=True)


class _Planned(Exception):
    """The memory of the program is known, and nothing has to run."""


def memory(uplink: Any, block: int | None, clients: int = 100) -> float:
    """GB of the compiled program of the large model: what it is given, makes and holds meanwhile."""
    problem, dealt, params = posed("large", clients)
    found = []

    def plan(advance: Any, *arguments: Any) -> Any:
        told = jax.jit(advance, donate_argnums=2).lower(*arguments).compile().memory_analysis()
        parts = told.argument_size_in_bytes, told.output_size_in_bytes, told.temp_size_in_bytes
        data = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[1]))
        found.append((sum(parts) - told.alias_size_in_bytes - data) / 2**30)
        raise _Planned

    real = engine.advance
    engine.advance = functools.partial(plan, real.__wrapped__)
    try:
        algorithm = fs.FedSGM(0.01, 5, rule=fs.Soft(40.0), batch_size=32, uplink=uplink)
        fs.simulate(algorithm, problem, dealt, params, rounds=2, evaluate_every=0, progress=False, block=block)
    except _Planned:
        return found[0]
    finally:
        engine.advance = real
    raise AssertionError("nothing was compiled")


def main(names: list[str], repetitions: int) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; jax {jax.__version__}, numpy {np.__version__}")
    heads = "".join(f"{'chosen' if block is None else block:>8}" for block in BLOCKS)
    print(f"a round's time / that with all {PARTICIPANTS} at once, by clients at a time")
    print(f"model{'numbers':>13}{'ms':>11}{heads}")
    for name in names:
        speed(name, repetitions)
    print("GB beside the data, 100 clients of the large model, all at once and one by one")
    for uplink in (fs.Identity(), fs.TopK(0.01)):
        print(f"  {uplink!r:36}{memory(uplink, 100):8.2f}{memory(uplink, None):8.2f}", flush=True)


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    named = [word for word in sys.argv[1:] if word != "--quick"]
    main(named or [name for name in WIDTHS if not quick or name != "large"], 2 if quick else TURNS)
