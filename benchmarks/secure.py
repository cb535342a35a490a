"""What do secure aggregation and differential privacy cost? Seconds, exchanges and bytes of a round, beside plain ones.

    make bench
    python benchmarks/secure.py [--quick]

All have the same compressor. First in one process, with clients that do next to nothing, so that what is measured is
keys, masks, shares, noise and frames. Then real processes over NVIDIA FLARE, five clients, d = 31.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import fedsgm as fs
from fedsgm.federation import Experiment, Program, federate
from fedsgm.federation.inprocess import InProcess

SIZES = ((5, 1_000), (5, 100_000), (20, 1_000))
RANGES = {"objective": (0.0, 4.0), "size": (0.0, 4.0)}
WAYS = {
    "plain": (False, None),
    "secure": (True, None),
    "private examples": (False, "example"),
    "private clients": (False, "client"),
    "secure, private clients": (True, "client"),
}
"""Whether the server sees sums alone, and what noise hides."""


def loss(params, example):
    return ((params - example["x"]) ** 2).mean() / 2


def size(params, _example):
    return (params**2).mean()


def problem() -> fs.Problem:
    return fs.Problem(loss, [fs.Mean(size, name="size") <= 0.1])


def algorithm(share: float = 1.0, hides: str | None = None, rounds: int = 1) -> fs.FedSGM:
    privacy = None
    if hides is not None:
        privacy = fs.Privacy(epsilon=8.0, delta=1e-3, rounds=rounds, clip=1.0, ranges=RANGES, unit=hides)
    return fs.FedSGM(step_size=0.3, rule=fs.Hard(), uplink=fs.SharedK(share, reach=64.0, bits=20), privacy=privacy)


def make(rounds: int, secure: bool, **_) -> Experiment:
    """What the federation runs: this file is the sites' own code."""
    from fedsgm.tasks import neyman_pearson as task

    start = task.load(clients=5)[2]
    return Experiment(algorithm(0.3), task.neyman_pearson(), start, rounds, evaluate_every=0, secure=secure)


def load(name: str, **_):
    from fedsgm.tasks import neyman_pearson as task

    return task.load(clients=5)[0][int(name.rpartition("-")[2]) - 1]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of a round: CPU seconds, exchanges, and bytes up and down of all clients."""

    seconds: float
    exchanges: float
    up: float
    down: float


class Counting(InProcess):
    """With the times at which each exchange began."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.began: list[float] = []

    def exchange(self, requests, seconds):
        self.began.append(time.process_time())
        return super().exchange(requests, seconds)


def together(clients: int, d: int, rounds: int, secure: bool, hides: str | None) -> Cost:
    """The rounds after the first two, in one process."""
    rng, start = np.random.default_rng(0), np.zeros(d, np.float32)
    shares = [{"x": rng.normal(size=(1, d)).astype(np.float32)} for _ in range(clients)]
    made = algorithm(hides=hides, rounds=rounds)
    with tempfile.TemporaryDirectory() as folder:
        transport = Counting.of(Program.of(made, problem(), start), shares, folder, secure=secure)
        settings = {"rounds": rounds, "evaluate_every": 0, "progress": False, "secure": secure}
        result = federate(made, problem(), transport, start, **settings)
    each, first = (4, 10) if secure else (2, 4)
    last = first + each * (rounds - 2)
    seconds = (transport.began[last] - transport.began[first]) / (rounds - 2)
    up, down = (float(result.history[f"frames_{way}"][0, 2:-1].mean()) for way in ("up", "down"))
    return Cost(seconds, each, up, down)


def apart(rounds: int, secure: bool) -> tuple[float, float, float]:
    """Seconds of a round, and bytes of frames up and down, of a federation of five processes."""
    from fedsgm.federation.flare import kits
    from fedsgm.federation.flare.local import LocalFederation
    from fedsgm.federation.flare.submit import Job, submit

    name = "secure" if secure else "plain"
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the sites find this module
    with LocalFederation(5, modules=["secure"]) as federation:
        job = kits.write_job(
            federation.folder / "job",
            run=name,
            clients=federation.names,
            experiment="secure.make",
            data="secure.load",
            settings={"rounds": rounds, "secure": secure},
        )
        state, times = federation.state / "server" / name, {}
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                done = max((int(path.stem.partition("-")[2]) for path in state.glob("round-*.ckpt")), default=0)
                times.setdefault(done, time.perf_counter())
                time.sleep(0.002)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            done = submit(federation.admin, Job.read(job), least=5, show=False, here=federation.kits[federation.server])
            result = fs.Result.load(done)
        finally:
            over.set()
            watcher.join()
    took = [times[k + 1] - times[k] for k in times if k >= 3 and k + 1 in times and k + 1 < rounds]
    up, down = (float(result.history[f"frames_{way}"][0, 3:-1].mean()) for way in ("up", "down"))
    return float(np.median(took)), up, down


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no processes")
    quick = parser.parse_args().quick
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}")
    print("In one process, a round of all clients and the server: CPU seconds, exchanges, kB up and down")
    for clients, d in SIZES:
        for name, way in WAYS.items():
            cost = together(clients, d, 6 if quick else 12, *way)
            print(
                f"  {clients:3} clients, {d:7,} entries, {name:23} {cost.seconds:8.4f} s {cost.exchanges:3.0f} "
                f"{cost.up / 1e3:9.1f} kB {cost.down / 1e3:9.1f} kB"
            )
    if quick:
        return
    print("Over FLARE, 5 processes, d = 31: seconds of a round, kB of frames up and down of all clients")
    for secure in (False, True):
        seconds, up, down = apart(60, secure)
        print(f"  {'secure' if secure else 'plain':6} {seconds:7.3f} s {up / 1e3:8.1f} kB {down / 1e3:8.1f} kB")


if __name__ == "__main__":
    main()
