"""How fast is a run? The paper's Neyman-Pearson experiment against loops in NumPy and PyTorch.

    make bench
    python benchmarks/neyman_pearson.py [--quick] [--part rounds|command]

Every contender is first shown to compute the same run. Then all take turns, again and again, so that whatever else
the machine does falls on all of them; a number is the median over turns, a ratio is taken within a turn.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import baselines
import fedsgm as fs
from fedsgm.tasks import neyman_pearson as task

SEEDS, PARTICIPANTS, CHECKED = 3, 10, 50
RULES = {"hard": fs.Hard(), "soft": fs.Soft(beta=baselines.BETA)}
TARGETS = {"NumPy loop": 10, "PyTorch loop": 300}
COMMAND_TARGET = 4

Cost = tuple[float, float]
"""Seconds of wall time and of CPU time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--part", choices=("all", "rounds", "command"), default="all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    if options.part != "command":
        for rule in RULES:
            compare_rounds(rule, repetitions=3 if options.quick else 9)
    if options.part != "rounds":
        compare_command(repetitions=3 if options.quick else 5)


def machine() -> str:
    """Where these numbers come from; without it they mean nothing."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy", "torch"))
    return f"{os.cpu_count()} x {model}; Python {platform.python_version()}, {versions}, PyTorch on one thread"


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
    """What one round of one seed costs, the true values over all clients included."""
    clients = load()
    participants = check_same(rule, clients)
    bare = baselines.floor(clients, PARTICIPANTS)
    bare(1)
    clocks = {
        "fedsgm": clock(lambda rounds: simulate(rule, rounds // SEEDS), 2000 * SEEDS),
        "NumPy loop": clock(lambda rounds: baselines.numpy_loop(clients, participants[:rounds], rule), 200),
        "PyTorch loop": clock(lambda rounds: baselines.plain_torch_loop(clients, participants[:rounds], rule), 20),
        "PyTorch, tuned": clock(lambda rounds: baselines.tuned_torch_loop(clients, participants[:rounds], rule), 20),
        "products only": clock(bare, 6000),
    }
    for run in clocks.values():
        run()
    turns = [{name: run() for name, run in clocks.items()} for _ in range(repetitions)]

    print(f"\n{rule} switching, one round of one seed, median of {repetitions}")
    print(f"{'':15}{'us wall':>9}{'us CPU':>9}{'/fedsgm':>9}{'range':>13}{'CPU':>7}   target")
    for name in clocks:
        wall, cpu = (statistics.median(turn[name][i] for turn in turns) for i in (0, 1))
        ratios = sorted(turn[name][0] / turn["fedsgm"][0] for turn in turns)
        cpu_ratio = statistics.median(turn[name][1] / turn["fedsgm"][1] for turn in turns)
        ratio, spread = statistics.median(ratios), f"{ratios[0]:.3g}-{ratios[-1]:.3g}"
        verdict = judge(ratio, TARGETS[name], ratio >= TARGETS[name], ">=") if name in TARGETS else ""
        print(f"{name:15}{wall * 1e6:9.1f}{cpu * 1e6:9.1f}{ratio:9.3g}{spread:>13}{cpu_ratio:7.3g}   {verdict}")


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


def clock(run: Callable[[int], object], rounds: int) -> Callable[[], Cost]:
    """Seconds a round, of ``rounds`` in one go."""

    def timed() -> Cost:
        wall, cpu = time.perf_counter(), time.process_time()
        run(rounds)
        return (time.perf_counter() - wall) / rounds, (time.process_time() - cpu) / rounds

    return timed


def compare_command(repetitions: int) -> None:
    """From the command to its verdict, once compiled programs are on disk, against the import alone."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"FEDSGM_CACHE": f"{folder}/cache", "PYTHONUNBUFFERED": "1"}

        def run(name: str) -> tuple[float, float, float]:
            arguments = ["-m", "fedsgm", "run", "neyman-pearson", "--seeds", str(SEEDS), "--out", f"{folder}/{name}"]
            return process(arguments, environment, until="FEASIBLE")

        first = run("first")
        turns = [(run(f"run-{i}"), process(["-c", "import jax"], environment)) for i in range(repetitions)]
    print(f"\nfrom command to verdict, {SEEDS} seeds, median of {repetitions}; a first run takes {first[0]:.2f} s")
    print(f"{'':15}{'s verdict':>10}{'s exit':>9}{'s CPU':>9}")
    for i, name in enumerate(("fedsgm run", "import jax")):
        verdict, end, cpu = (statistics.median(turn[i][k] for turn in turns) for k in range(3))
        print(f"{name:15}{verdict:10.2f}{end:9.2f}{cpu:9.2f}")
    to_verdict, to_exit, cpu = (statistics.median(ours[k] / alone[k] for ours, alone in turns) for k in range(3))
    print(f"{'ratio':15}{to_verdict:10.2f}{to_exit:9.2f}{cpu:9.2f}   ", end="")
    print(judge(to_verdict, COMMAND_TARGET, to_verdict < COMMAND_TARGET, "<"))


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


def judge(ratio: float, target: float, met: bool, sign: str) -> str:
    return f"{sign} {target}x {'met' if met else 'not met'}: {ratio:.3g}x"


if __name__ == "__main__":
    main()
