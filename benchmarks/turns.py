"""How the benchmarks measure: contenders take turns, again and again, so that whatever else the machine does falls on
all of them. A time is the median over turns; a ratio is taken within a turn, and its median is what a target is for.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedsgm.engines import work

Cost = tuple[float, float]
"""Seconds of wall time and of CPU time."""

Turn = dict[str, Cost]
"""What each contender took in one turn."""

_MANY = 2**40
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}


def machine(*packages: str) -> str:
    """Where these numbers come from; without it they mean nothing."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy", *packages))
    return f"{os.cpu_count()} x {model}, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, {versions}"


def cost(run: Callable[[int], object], rounds: int) -> Cost:
    """Of so many rounds as of a long run: a short one's program is compiled to be light, and slower."""
    wall, cpu = time.perf_counter(), time.process_time()
    with work.alike(_MANY):
        run(rounds)
    return time.perf_counter() - wall, time.process_time() - cpu


def clock(run: Callable[[int], object], rounds: int) -> Callable[[], Cost]:
    """Seconds a round, of ``rounds`` in one go."""

    def timed() -> Cost:
        wall, cpu = cost(run, rounds)
        return wall / rounds, cpu / rounds

    return timed


def steady(run: Callable[[int], object], few: int, many: int) -> Callable[[], Cost]:
    """Seconds a round: what ``many`` rounds take longer than ``few``, so that no start is in it."""

    def timed() -> Cost:
        short, long = cost(run, few), cost(run, many)
        wall, cpu = ((b - a) / (many - few) for a, b in zip(short, long, strict=True))
        return wall, cpu

    return timed


def take(clocks: Mapping[str, Callable[[], Cost]], repetitions: int) -> list[Turn]:
    """Every contender once to warm up, then all of them in turns."""
    for run in clocks.values():
        run()
    return [{name: run() for name, run in clocks.items()} for _ in range(repetitions)]


def ratios(turns: list[Turn], name: str, other: str, kind: int = 0) -> list[float]:
    """Of ``name`` over ``other`` in every turn, of wall time or, with 1, of CPU time; in ascending order."""
    return sorted(turn[name][kind] / turn[other][kind] for turn in turns)


def table(turns: list[Turn], unit: str, said: Mapping[str, Callable[[float], str]]) -> None:
    """Every contender against fedsgm; ``said`` gives the words on a target for a ratio."""
    print(f"{'':18}{unit + ' wall':>12}{unit + ' CPU':>12}{'/fedsgm':>9}{'range':>15}{'CPU':>8}   target")
    for name in turns[0]:
        wall, cpu = (_UNITS[unit] * statistics.median(turn[name][i] for turn in turns) for i in (0, 1))
        each = ratios(turns, name, "fedsgm")
        ratio, spread = statistics.median(each), f"{brief(each[0])}-{brief(each[-1])}"
        of_cpu = brief(statistics.median(ratios(turns, name, "fedsgm", 1)))
        words = said[name](ratio) if name in said else ""
        times = f"{wall:12.1f}{'-' if math.isnan(cpu) else f'{cpu:.1f}':>12}"
        print(f"{name:18}{times}{brief(ratio):>9}{spread:>15}{of_cpu:>8}   {words}".rstrip(), flush=True)


def brief(ratio: float) -> str:
    """Three digits, or all of a large number."""
    return "-" if math.isnan(ratio) else f"{ratio:.0f}" if ratio >= 1000 else f"{ratio:.3g}"


def at_least(target: float) -> Callable[[float], str]:
    """The words on a contender that should take so many times as long as fedsgm."""
    return lambda ratio: judge(ratio, target, ratio >= target, ">=")


def floor_within(target: float) -> Callable[[float], str]:
    """The words on a floor, of which fedsgm should take at most so many times as long."""
    return lambda ratio: "fedsgm " + judge(1 / ratio, target, 1 / ratio <= target, "<=")


def judge(ratio: float, target: float, met: bool, sign: str) -> str:
    return f"{sign} {target}x {'met' if met else 'not met'}: {brief(ratio)}x"
