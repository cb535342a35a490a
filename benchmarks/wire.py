"""What messages cost on the wire, beside the bound, and how fast they are packed and unpacked.

    make bench
    python benchmarks/wire.py [--quick]

A rate is megabytes of 8-byte index-value pairs a second, the best of many repetitions; the entries come in random
order, as Top-K gives them.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln

from fedsgm.core import wire
from fedsgm.core.compression import Dense, Sparse

D = 10**6
INDEX_TARGET, RATE_TARGET, DENSE_TARGET = 1.05, 150, 35


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    best = functools.partial(fastest, 0.2 if parser.parse_args().quick else 1.0)
    print("      d    K/d     bytes   index/bound  all/bound   dense/this   encode MB/s  decode MB/s")
    missed = []
    for d, share in ((31, 0.1), (10_000, 0.01), (D, 0.001), (D, 0.01), (D, 0.1), (D, 0.5)):
        message = sparse(d, round(share * d))
        k = len(message.values)
        data = wire.encode(message, d)
        bound = log2_choices(d, k)
        # The same values without indices have the same header but for a count of the entries.
        index = 8 * (len(data) - len(wire.encode(Dense(message.values), k)) - varint(d)) / bound
        whole = 8 * len(data) / (bound + 32 * k)
        dense = len(wire.encode(Dense(np.zeros(d, np.float32)), d)) / len(data)
        rates = [8e-6 * k / seconds for seconds in (best(wire.encode, message, d), best(wire.decode, data))]
        print(
            f"{d:7}{share:7g}{len(data):10}{index:14.4f}{whole:11.4f}{dense:13.1f}{rates[0]:14.3g}{rates[1]:13.3g}",
            flush=True,
        )
        if d == D and share >= 0.01:
            missed += [f"index at {share:g}"] * (index > INDEX_TARGET)
            missed += [f"rate at {share:g}"] * (min(rates) < RATE_TARGET)
            missed += ["dense"] * (share == 0.01 and dense < DENSE_TARGET)
    print(
        f"targets for d = {D}, K/d 0.01 to 0.5: index <= {INDEX_TARGET}, rates >= {RATE_TARGET} MB/s, "
        f"dense >= {DENSE_TARGET} at 0.01: {'missed: ' + ', '.join(missed) if missed else 'met'}"
    )


def sparse(d: int, k: int) -> Sparse:
    rng = np.random.default_rng(k)
    return Sparse(rng.permutation(d)[:k].astype(np.int32), rng.normal(size=k).astype(np.float32), d)


def log2_choices(d: int, k: int) -> float:
    """log2 of d choose k: no code of the indices takes fewer bits on average."""
    return float(gammaln(d + 1) - gammaln(k + 1) - gammaln(d - k + 1)) / math.log(2)


def varint(number: int) -> int:
    """Bytes of a number in a header."""
    return math.ceil(number.bit_length() / 7)


def fastest(spend: float, run: Callable[..., object], *arguments: object) -> float:
    """Seconds of the fastest of the repetitions that so many seconds are spent on."""
    seconds: list[float] = []
    while len(seconds) < 5 or sum(seconds) < spend:
        began = time.perf_counter()
        run(*arguments)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
