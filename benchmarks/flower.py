"""What does a round over Flower cost, and what are its seconds made of?

    make bench
    python benchmarks/flower.py [--quick]

A SuperLink and three SuperNodes as processes on this machine, with TLS and registered keys, beside the same run over
NVIDIA FLARE. A round is two exchanges; the parts are those of the client that answers last. Flower's nodes look for
messages every 3 s and for answers every 0.5 s, and start a Python process for every message.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import os
import platform
import statistics
import threading
import time
from pathlib import Path

import psutil

CLIENTS, FIRST = 3, 2  # rounds that are not counted: in the first, programs are compiled
PARTS = {
    "waiting until the node has looked and starts the message's process": (0, 1),
    "that process's start: Python, Flower's imports, the app's installation": (1, 2),
    "the request in the resident process, with the client's work": (2, 3),
    "the way back: the node looks for the answer, the server for that": (3, 4),
}
# What the app does besides: it writes down when things happen.
CLIENT = """

import psutil

_answer = _reply


def _reply(asked, context):
    called = time.time()
    try:
        return _answer(asked, context)
    finally:
        with open(os.path.join(os.environ["FEDSGM_STATE"], "clients.txt"), "a") as file:
            file.write(f"{psutil.Process().create_time()} {called} {time.time()}\\n")
"""
SERVER = """
import os
import time

from fedsgm.federation.flower.transport import FlowerTransport

_ask = FlowerTransport._ask


def ask(self, records, seconds):
    began, replies = time.time(), _ask(self, records, seconds)
    with open(os.path.join(os.environ["FEDSGM_STATE"], "server.txt"), "a") as file:
        file.write(f"{began} {time.time()}\\n")
    return replies


FlowerTransport._ask = ask
"""


class Watch:
    """Looks at a run: when each round was done, and the CPU seconds of the federation's processes."""

    def __init__(self, mark: str, state: Path) -> None:
        self.rounds: dict[int, float] = {}
        self.cpu: dict[int, tuple[str, float]] = {}
        self._mark, self._state, self._over = mark, state, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        from federation import rounds_of
        from fedsgm.federation.guard import MARK

        others: set[int] = set()  # a process is asked once whose it is: asking all again would slow the run
        for turn in itertools.count():
            if self._over.is_set():
                return
            self.rounds.setdefault(rounds_of(self._state), time.time())
            for pid in [] if turn % 5 else psutil.pids():
                try:
                    process = psutil.Process(pid) if pid not in others else None
                    if process is None or process.environ().get(MARK) != self._mark:
                        others.add(pid)
                        continue
                    words, taken = [Path(word).name for word in process.cmdline()], process.cpu_times()
                except psutil.Error:
                    continue
                name = next((word for word in words if word.startswith(("flwr-", "flower-"))), "resident")
                self.cpu[pid] = (name, taken.user + taken.system)
            time.sleep(0.05)


def numbers(path: Path) -> list[list[float]]:
    return [[float(word) for word in line.split()] for line in path.read_text().splitlines()]


def over_flower(rounds: int) -> None:
    """Run it, and print what its rounds are made of."""
    import federation as task
    from fedsgm.federation.flower import apps
    from fedsgm.federation.flower.local import FlowerFederation

    with FlowerFederation(CLIENTS) as federation:
        app = apps.write_app(
            federation.folder / "app",
            run="small",
            clients=federation.names,
            experiment="federation.make",
            data="federation.load",
            settings={"kind": "small", "rounds": rounds},
            files=[Path(task.__file__)],
        )
        for name, more in {"client_app.py": CLIENT, "server_app.py": SERVER}.items():
            (app / name).write_text((app / name).read_text() + more)
        with Watch(federation.mark, federation.state / "server" / "small") as watch:
            federation.run(app, "small", show=False)
        exchanges, messages = (numbers(federation.state / f"{side}.txt") for side in ("server", "clients"))
    times = [watch.rounds[done] for done in sorted(watch.rounds) if FIRST <= done <= rounds]
    seconds = [later - earlier for earlier, later in itertools.pairwise(times)]
    a_round = statistics.median(seconds)
    print(
        f"\n{CLIENTS} clients, d = 31, over Flower: {a_round:.1f} s a round, {min(seconds):.1f} to {max(seconds):.1f}"
    )
    whole = []
    for began, ended in exchanges:
        last = max((each for each in messages if began <= each[0] and each[2] <= ended), key=lambda each: each[2])
        if times[0] - 1 <= began and ended <= times[-1]:
            whole.append((began, *last, ended))
    for what, (start, end) in PARTS.items():
        print(f"  {2 * statistics.mean(each[end] - each[start] for each in whole):5.2f} s {what}")
    spent: dict[str, list[float]] = {}
    for name, taken in watch.cpu.values():
        spent.setdefault(name, []).append(taken)
    print("  CPU seconds of the whole run, and processes:")
    for name, each in sorted(spent.items(), key=lambda pair: -sum(pair[1])):
        print(f"    {name:20}{sum(each):6.1f}{len(each):5}")


def main() -> None:
    from federation import measure

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    flower, flare = (6, 20) if parser.parse_args().quick else (12, 60)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flwr", "nvflare"))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, {versions}")
    over_flower(flower)
    print(f"\nThe same over NVIDIA FLARE: {measure('small', flare).seconds:.3f} s a round")


if __name__ == "__main__":
    main()
