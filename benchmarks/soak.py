"""Does a federation stay up? Threads, memory and time of every process over thousands of rounds.

    make soak
    python benchmarks/soak.py [--clients 3] [--rounds 10000]

A server and clients as processes on this machine, over NVIDIA FLARE with mutual TLS and signed requests. Memory is the
slope of a line through what was resident after the first fifth of the rounds; time is that of the last thousand rounds
over that of a thousand after the first hundred. CPU time beside it is what other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import os
import platform
import threading
import time
from pathlib import Path

import numpy as np
import psutil

import fedsgm as fs
from fedsgm.federation import Experiment

THREADS, SLOPE, SLOWER = (50, 5), 1.0, 1.2  # beside 5 a client; MB per 1,000 rounds; times
_EVERY = 2.0  # seconds between two looks


def make(rounds: int, **_) -> Experiment:
    from fedsgm.tasks import neyman_pearson as task

    links = fs.TopK(0.1)
    algorithm = fs.FedSGM(step_size=0.3, local_steps=1, rule=fs.Soft(40.0), uplink=links, downlink=links)
    start = task.load(clients=3)[2]
    return Experiment(algorithm, task.neyman_pearson(), start, rounds, evaluate_every=0, timeout=120.0)


def load(name: str, **_) -> dict[str, np.ndarray]:
    from fedsgm.tasks import neyman_pearson as task

    return task.load(clients=10)[0][int(name.rpartition("-")[2]) - 1]


def kind_of(process: psutil.Process) -> str | None:
    """What a process of the federation is."""
    words = " ".join(process.cmdline())
    if "fedsgm.federation.resident" in words:
        return "a client's code"
    for part, name in (
        ("runner_process", "the server's job"),
        ("worker_process", "a client's job"),
        ("server_train", "the server"),
        ("client_train", "a client"),
    ):
        if part in words:
            return name
    return None


class Watch(threading.Thread):
    """Looks at the processes again and again: round, threads and resident MB of each kind's largest."""

    def __init__(self, mark: str, state: Path) -> None:
        super().__init__(daemon=True)
        self._mark, self._state = mark, state
        self.over = threading.Event()
        self.seen: dict[str, list[tuple[int, int, float]]] = {}
        self.times: list[tuple[int, float, float]] = []  # rounds that are done, the clock, CPU seconds of all processes

    def run(self) -> None:
        from fedsgm.federation.guard import marked

        while not self.over.wait(_EVERY):
            done = max((int(path.stem.partition("-")[2]) for path in self._state.glob("round-*.ckpt")), default=0)
            clock, used = time.perf_counter(), 0.0
            found: dict[str, tuple[int, float]] = {}
            for process in marked(self._mark):
                try:
                    kind, threads = kind_of(process), process.num_threads()
                    resident = process.memory_info().rss / 2**20
                    used += sum(process.cpu_times()[:2])
                except psutil.Error:
                    continue
                if kind is not None and done:
                    before = found.get(kind, (0, 0.0))
                    found[kind] = max(before[0], threads), max(before[1], resident)
            self.times.append((done, clock, used))
            for kind, (threads, resident) in found.items():
                self.seen.setdefault(kind, []).append((done, threads, resident))


def seconds(times: list[tuple[int, float, float]], first: int, last: int) -> tuple[float, float]:
    """Of a round between two of them, as nearly as they were seen, by the clock and of CPU time."""
    rounds, *both = np.array(times).T
    wall, used = (float(np.diff(np.interp([first, last], rounds, each))[0] / (last - first)) for each in both)
    return wall, used


def soak(clients: int, rounds: int) -> bool:
    from fedsgm.federation.flare import kits
    from fedsgm.federation.flare.local import LocalFederation
    from fedsgm.federation.flare.submit import Job, submit

    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]  # where the sites find this module
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    with LocalFederation(clients, modules=["soak"]) as federation:
        job = kits.write_job(
            federation.folder / "job",
            run="soak",
            clients=federation.names,
            experiment="soak.make",
            data="soak.load",
            settings={"rounds": rounds},
        )
        watch = Watch(federation.mark, federation.state / "server" / "soak")
        watch.start()
        try:
            here = federation.kits[federation.server]
            submit(federation.admin, Job.read(job), least=clients, show=False, here=here)
        finally:
            watch.over.set()
            watch.join()
        files = sum(path.stat().st_size for path in federation.state.rglob("*") if path.is_file()) / 2**20
    thousand = min(1000, rounds // 3)
    early, used_early = seconds(watch.times, min(100, rounds // 10), min(100, rounds // 10) + thousand)
    late, used_late = seconds(watch.times, rounds - thousand, rounds)
    print(f"\n{clients} clients, {rounds} rounds: {early:.3f} s a round at first, {late:.3f} at last, ", end="")
    print(f"{late / early:.2f} times, and {used_late / used_early:.2f} times the CPU time")
    print(f"{files:.1f} MB of states, checkpoints and audit logs at the end")
    most, met = THREADS[0] + THREADS[1] * clients, late / early <= SLOWER
    print(f"{'process':18} {'threads':>8} {'MB at first':>12} {'MB at last':>11} {'MB per 1,000 rounds':>20}")
    for kind, seen in sorted(watch.seen.items()):
        during = [each for each in seen if each[0] < rounds]  # after that the result is put together
        warm = np.array([each for each in during if each[0] > rounds / 5], float)
        slope = float(np.polyfit(warm[:, 0], warm[:, 2], 1)[0] * 1000) if len(warm) > 2 else float("nan")
        threads = max(each[1] for each in seen)
        met &= threads <= most and slope < SLOPE
        print(f"{kind:18} {threads:8d} {during[0][2]:12.1f} {during[-1][2]:11.1f} {slope:20.2f}")
    print(f"targets: threads <= {most}, less than {SLOPE:g} MB, {SLOWER:g} times: {'met' if met else 'MISSED'}")
    return met


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=10_000)
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.python_implementation()} {platform.python_version()}")
    met = [soak(clients, given.rounds) for clients in given.clients or (3, 10)]
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
