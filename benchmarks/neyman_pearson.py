"""How fast is a run? The paper's Neyman-Pearson experiment against loops in NumPy and PyTorch.

    make bench
    python benchmarks/neyman_pearson.py [--quick] [--part rounds|command]

Every contender is first shown to compute the same run. Then all take turns, again and again, so that whatever else
the machine does falls on all of them; a number is the median over turns, a ratio is taken within a turn.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch

import baselines
import fedsgm as fs
import turns
from fedsgm.tasks import neyman_pearson as task

SEEDS, PARTICIPANTS, CHECKED = 3, 10, 50
RULES = {"hard": fs.Hard(), "soft": fs.Soft(beta=baselines.BETA)}
SAID = {
    "NumPy loop": turns.at_least(15),
    "PyTorch loop": turns.at_least(300),
    "products only": turns.floor_within(3),
}
COMMAND_TARGET = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--part", choices=("all", "rounds", "command"), default="all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(turns.machine("torch") + ", PyTorch on one thread")
    if options.part != "command":
        for rule in RULES:
            compare_rounds(rule, repetitions=3 if options.quick else 9)
    if options.part != "rounds":
        compare_command(repetitions=3 if options.quick else 5)


read = functools.cache(task.load)  # reading the data is no part of a round


def simulate(rule: str, rounds: int) -> fs.Result:
    clients, _, params = read()
    algorithm = fs.FedSGM(
        step_size=baselines.STEP,
        local_steps=baselines.LOCAL_STEPS,
        participants=PARTICIPANTS,
        rule=RULES[rule],
        uplink=fs.TopK(0.1),
        downlink=fs.TopK(0.1),
    )
    problem = task.neyman_pearson(baselines.BOUND)
    return fs.simulate(algorithm, problem, clients, params, rounds=rounds, seeds=SEEDS, progress=False)


def load() -> list[baselines.Client]:
    """The same clients as plain arrays."""
    clients, _, _ = read()
    loaded = []
    for j in range(len(clients)):
        y = clients[j]["y"]
        x = np.column_stack([clients[j]["x"], np.ones_like(y)])
        loaded.append((x, y, (1 - y) / np.sum(1 - y), y / np.sum(y)))
    return loaded


def compare_rounds(rule: str, repetitions: int) -> None:
    """What one round of one seed costs, the true values over all clients included and the start of a run not."""
    clients = load()
    participants = check_same(rule, clients)
    bare = baselines.floor(clients, PARTICIPANTS)
    bare(1)

    def alone(loop: Callable[..., np.ndarray]) -> Callable[[int], np.ndarray]:
        return lambda rounds: loop(clients, participants[:rounds], rule)

    clocks = {
        "fedsgm": turns.steady(lambda rounds: simulate(rule, rounds // SEEDS), 500 * SEEDS, 3000 * SEEDS),
        "NumPy loop": turns.clock(alone(baselines.numpy_loop), 200),
        "PyTorch loop": turns.clock(alone(baselines.plain_torch_loop), 20),
        "PyTorch, tuned": turns.clock(alone(baselines.tuned_torch_loop), 20),
        "products only": turns.clock(bare, 6000),
    }
    taken = turns.take(clocks, repetitions)
    print(f"\n{rule} switching, one round of one seed, median of {repetitions}")
    turns.table(taken, "us", SAID)


def check_same(rule: str, clients: list[baselines.Client]) -> np.ndarray:
    """The loops must reach fedsgm's values with fedsgm's participants, or there is nothing to compare."""
    history = simulate(rule, 200).history
    participants = history["participants"][0]
    expected = np.stack([history["objective"][0], history["minority"][0]], axis=-1)[:CHECKED]
    loops = {
        "the NumPy loop": baselines.numpy_loop,
        "the PyTorch loop": baselines.plain_torch_loop,
        "the tuned PyTorch loop": baselines.tuned_torch_loop,
    }
    for name, loop in loops.items():
        reached = loop(clients, participants[:CHECKED], rule)
        error = np.max(np.abs(reached[-1] / expected[-1] - 1))
        if not error < 1e-3:
            sys.exit(f"{name}, {rule}: {reached[-1]} after {CHECKED} rounds, but fedsgm has {expected[-1]}")
        print(f"{rule}: after {CHECKED} rounds {name} is within {error:.0e} of fedsgm", flush=True)
    return participants


def compare_command(repetitions: int) -> None:
    """From the command to its verdict, once compiled programs are on disk, against the import alone."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"FEDSGM_CACHE": f"{folder}/cache", "PYTHONUNBUFFERED": "1"}

        def run(name: str) -> tuple[float, float, float]:
            arguments = ["-m", "fedsgm", "run", "neyman-pearson", "--seeds", str(SEEDS), "--out", f"{folder}/{name}"]
            return process(arguments, environment, until="FEASIBLE")

        first = run("first")
        taken = [(run(f"run-{i}"), process(["-c", "import jax"], environment)) for i in range(repetitions)]
    print(f"\nfrom command to verdict, {SEEDS} seeds, median of {repetitions}; a first run takes {first[0]:.2f} s")
    print(f"{'':15}{'s verdict':>10}{'s exit':>9}{'s CPU':>9}")
    for i, name in enumerate(("fedsgm run", "import jax")):
        verdict, end, cpu = (statistics.median(turn[i][k] for turn in taken) for k in range(3))
        print(f"{name:15}{verdict:10.2f}{end:9.2f}{cpu:9.2f}")
    to_verdict, to_exit, cpu = (statistics.median(ours[k] / alone[k] for ours, alone in taken) for k in range(3))
    print(f"{'ratio':15}{to_verdict:10.2f}{to_exit:9.2f}{cpu:9.2f}   ", end="")
    print(turns.judge(to_verdict, COMMAND_TARGET, to_verdict < COMMAND_TARGET, "<"))


def process(arguments: list[str], environment: dict[str, str], until: str | None = None) -> tuple[float, float, float]:
    """Seconds until a line with ``until`` in it is printed (else until the end), until the end, and of CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start, said = time.perf_counter(), None
    with subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if said is None and until is not None and until in line:
                said = time.perf_counter() - start
    end = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode or (until and said is None):
        sys.exit(f"python {' '.join(arguments)} ended with status {child.returncode} and no line with {until}")
    return said or end, end, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
