"""How many passes over the vector does an exact Top-K take inside a compiled program, and Rand-K?

    make bench
    python benchmarks/topk.py [--quick]

A pass is ``np.abs(x).sum()``. K/d is 0.1. All take turns, again and again, so that whatever else the machine does falls
on all of them; a time is the least of all turns. Every call is made from Python, which costs a compiled program some
microseconds: that is most of the time of short vectors.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base import native
from fedsgm.core import topk
from fedsgm.core.compression import RandK

SHARE = 0.1
SIZES = (1_000, 17_000, 1_000_000, 10_000_000)
D = 1_000_000
TARGETS = {"kernel": 8, "counting": 20}
SLOW = {"lax.top_k", "Rand-K by sorting"}  # seconds a call at the largest size: one turn is enough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="no vectors of 10 million")
    options = parser.parse_args()
    why = native.missing()
    print(f"kernel: {'in use' if why is None else why}")
    print(f"{'d':>9}{'pass us':>10}" + "".join(f"{name:>19}" for name in ways(10)) + "   in passes")
    missed = []
    for d in SIZES[: 3 if options.quick else None]:
        took = times(d)
        alone = took.pop("pass")
        passes = {name: seconds / alone for name, seconds in took.items()}
        print(f"{d:>9}{1e6 * alone:>10.1f}" + "".join(f"{number:>19.1f}" for number in passes.values()), flush=True)
        if d == D:
            missed = [name for name, most in TARGETS.items() if passes.get(name, 0) > most]
    said = ", ".join(f"{name} <= {most}" for name, most in TARGETS.items())
    print(f"targets for d = {D}, in passes: {said}: {'missed: ' + ', '.join(missed) if missed else 'met'}")


def ways(k: int) -> dict[str, Callable[..., Any]]:
    """Functions of a vector and a key."""
    found: dict[str, Callable[..., Any]] = {}
    if native.missing() is None:
        found["kernel"] = lambda x, _: topk.by_kernel(x, k)
    found["counting"] = lambda x, _: topk.by_counting(x, k)
    found["lax.top_k"] = lambda x, _: jax.lax.top_k(jnp.abs(x), k)
    found["Rand-K"] = RandK(count=k).compress
    found["Rand-K by sorting"] = lambda x, key: x[jax.lax.top_k(jax.random.uniform(key, x.shape), k)[1]]
    return found


def times(d: int) -> dict[str, float]:
    """Seconds of the fastest call of each."""
    x, key = np.random.default_rng(d).standard_normal(d).astype(np.float32), jax.random.key(0)
    on_device = jnp.asarray(x)
    calls: dict[str, Callable[[], Any]] = {"pass": lambda: np.abs(x).sum()}
    for name, way in ways(round(SHARE * d)).items():
        calls[name] = functools.partial(jax.jit(way), on_device, key)
        jax.block_until_ready(calls[name]())
    least = dict.fromkeys(calls, float("inf"))
    for turn in range(20):
        for name, call in calls.items():
            spent, again = 0.0, 0
            while (spent < 0.02 or again < 2) and not (name in SLOW and d >= D and (turn or again)):
                began = time.perf_counter()
                jax.block_until_ready(call())
                took = time.perf_counter() - began
                least[name], spent, again = min(least[name], took), spent + took, again + 1
    return least


if __name__ == "__main__":
    main()
