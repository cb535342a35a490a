"""What a round costs as a run grows: in clients, participants, local steps, seeds and parameters.

    make bench
    python benchmarks/scaling.py [--quick] [--only clients] [--picture docs/images/scaling.png]

One number grows at a time; the points of a line take turns, and a point is the median over turns of what many rounds
take longer than few, so that no start and no compiling is in it. True values are measured at the end only. But for the
parameters, the model is logistic with 31 of them and each client has two rows; there it is a network with one hidden
layer as wide as its features, 2 of 4 clients in a round, 16 rows each, with and without Top-K 0.1 both ways.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fedsgm as fs
import turns
from fedsgm.results import drawing
from fedsgm.tables.models import MLP

FEATURES, FEW, SECONDS, MEMORY_TARGET = 30, 2, 0.2, 4.0
TOP = fs.TopK(0.1)
TITLES = {
    "clients": ("clients n, 100 in a round", (20, 100, 1000, 10_000, 100_000, 1_000_000)),
    "participants": ("participants m of 1,000 clients", (1, 10, 100, 1000)),
    "local steps": ("local steps E, 10 of 20 clients", (1, 5, 25, 125)),
    "seeds": ("seeds in one run, 10 of 20 clients", (1, 4, 16, 64)),
    "parameters": ("parameters d of a network, 2 of 4 clients", (36, 1_024, 10_000, 99_856, 1_000_000, 9_998_244)),
}
Run = Callable[[int], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="no largest points, fewer repetitions")
    parser.add_argument("--only", choices=TITLES, help="this line alone")
    parser.add_argument("--picture", type=Path, help="draw it there")
    options = parser.parse_args()
    print(turns.machine())
    found = {}
    for name, (title, numbers) in TITLES.items():
        if options.only not in (None, name):
            continue
        found[title] = measure(name, numbers[: -1 if options.quick else None], 3 if options.quick else 5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\npeak {peak:.2f} GB, <= {MEMORY_TARGET:g} GB {'met' if peak <= MEMORY_TARGET else 'not met'}")
    if options.picture:
        draw(found, options.picture)


def lines(name: str, number: int) -> dict[str, Run]:
    """The runs of one point."""
    if name == "parameters":
        return {"not compressed": network(number, fs.Identity()), "Top-K 0.1 both ways": network(number, TOP)}
    kinds = {
        "clients": lambda: logistic(number, min(number, 100)),
        "participants": lambda: logistic(1000, number),
        "local steps": lambda: logistic(20, 10, local_steps=number),
        "seeds": lambda: logistic(20, 10, seeds=number),
    }
    return {"": kinds[name]()}


def logistic(n: int, m: int, *, local_steps: int = 5, seeds: int = 1) -> Run:
    return simulate(MLP(), FEATURES, n, 2 * n, fs.FedSGM(0.1, local_steps, m, fs.Soft(40.0)), seeds)


def network(d: int, link: object) -> Run:
    width = math.isqrt(d) - 1  # with its biases and the logit, (width + 1)^2 parameters
    return simulate(MLP((width,)), width, 4, 64, fs.FedSGM(0.1, 5, 2, fs.Soft(40.0), uplink=link, downlink=link), 1)


def simulate(model: MLP, features: int, n: int, rows: int, algorithm: fs.FedSGM, seeds: int) -> Run:
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=(rows, features)).astype(np.float32), "y": np.arange(rows, dtype=np.float32) % 2}
    clients, start = fs.split(table, clients=n, scheme=fs.iid(), seed=0), model.init(features)
    problem = fs.Problem(model.loss, [fs.Mean(model.loss, name="g") <= 0.6])
    options = {"seeds": seeds, "evaluate_every": 0, "progress": False}
    return lambda rounds: fs.simulate(algorithm, problem, clients, start, rounds=rounds, **options)


def measure(name: str, numbers: tuple[int, ...], repetitions: int) -> dict[str, dict[int, float]]:
    """Seconds a round of every point of every line, all points in turns."""
    clocks = {(label, number): enough(run) for number in numbers for label, run in lines(name, number).items()}
    taken = [{point: clock()[0] for point, clock in clocks.items()} for _ in range(repetitions)]
    found: dict[str, dict[int, float]] = {}
    print(f"\n{name}, load {os.getloadavg()[0]:.1f}\n{'':20}{'':>10}{'ms a round':>12}{'/ the first':>12}")
    for label, number in clocks:
        seconds = statistics.median(turn[label, number] for turn in taken)
        growth = statistics.median(turn[label, number] / turn[label, numbers[0]] for turn in taken)
        found.setdefault(label, {})[number] = seconds
        print(f"{label:20}{number:>10}{1e3 * seconds:12.3f}{turns.brief(growth):>12}", flush=True)
    return found


def enough(run: Run) -> Callable[[], turns.Cost]:
    """A clock with as many rounds as take some time, and no less than the start; the program is compiled meanwhile."""
    run(FEW)
    many, start = 2 * FEW, turns.cost(run, FEW)[0]
    while turns.cost(run, many)[0] - start < max(SECONDS, start) and many < 50_000:
        many *= 2
    return turns.steady(run, FEW, many)


def draw(found: dict[str, dict[str, dict[int, float]]], path: Path) -> None:
    figure = Figure(figsize=(12, 7), layout="constrained")
    grid = figure.add_gridspec(2, 6)
    places = [grid[0, :2], grid[0, 2:4], grid[0, 4:], grid[1, :3], grid[1, 3:]]
    for place, (title, each) in zip(places, found.items(), strict=True):
        axis = figure.add_subplot(place, xlabel=title, ylabel="ms a round")
        for label, points in each.items():
            axis.plot(list(points), [1e3 * seconds for seconds in points.values()], marker="o", label=label or "fedsgm")
        first = next(iter(each.values()))
        numbers = list(first)
        ends = np.array([numbers[0], numbers[-1]])
        axis.plot(
            ends, 1e3 * first[numbers[0]] * ends / ends[0], "--", color="gray", linewidth=1, label="in proportion"
        )
        taken = [1e3 * seconds for points in each.values() for seconds in points.values()]
        axis.set_ylim(min(taken) / 2, 10 * max(taken))
        for which in "xy":
            drawing.plain_log(axis, which)
        axis.grid(alpha=0.3)
    drawing.legend_below(figure, figure.axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
