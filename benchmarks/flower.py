"""What does a round over Flower cost, and what are its seconds made of?

    make bench
    python benchmarks/flower.py [--quick]

A SuperLink and three SuperNodes as processes on this machine, with TLS and registered keys, beside the same run over
NVIDIA FLARE. A round is two exchanges. Each is watched from the server (seconds from its requests to its last answer),
from the nodes (how long each message had a Python process of its own), and by the clients themselves (seconds of work).
What is left is waiting: Flower's nodes look for messages every 3 s, and for answers every 0.5 s.
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
MESSAGE = "flwr-clientapp"


class Watch:
    """Looks at a federation's processes: when each process of a message was there, and the CPU seconds of all."""

    def __init__(self, mark: str, state: Path) -> None:
        self.rounds: dict[int, float] = {}
        self.messages: dict[int, tuple[float, float]] = {}  # first and last seen, by process
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
        from fedsgm.federation.guard import marked

        while not self._over.is_set():
            now = time.perf_counter()
            self.rounds.setdefault(rounds_of(self._state), now)
            for process in marked(self._mark):
                try:
                    words, taken = process.cmdline(), process.cpu_times()
                except psutil.Error:
                    continue
                name = next((Path(word).name for word in words if Path(word).name.startswith(("flwr-", "flower-"))), "")
                self.cpu[process.pid] = (name or "resident", taken.user + taken.system)
                if name == MESSAGE:
                    self.messages[process.pid] = (self.messages.get(process.pid, (now, now))[0], now)
            time.sleep(0.05)


def over_flower(rounds: int) -> None:
    """Run it, and print what its rounds are made of."""
    import federation as task
    import fedsgm as fs
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
        with Watch(federation.mark, federation.state / "server" / "small") as watch:
            result = fs.Result.load(federation.run(app, "small", show=False))
    times = [watch.rounds[done] for done in sorted(watch.rounds) if FIRST <= done <= rounds]
    seconds = [later - earlier for earlier, later in itertools.pairwise(times)]
    lived = [last - first for first, last in watch.messages.values() if times[0] <= first and last <= times[-1]]
    work = [account["seconds"] / account["answered"] for account in result.settings["federation"]["clients"]]
    a_round, a_message = statistics.median(seconds), statistics.median(lived)
    print(
        f"\n{CLIENTS} clients, d = 31, over Flower: {a_round:.2f} s a round, {min(seconds):.2f} to {max(seconds):.2f}"
    )
    print(
        f"  {2 * a_message:.2f} s are two messages' own Python processes ({a_message:.2f} s each, {CLIENTS} at a time)"
    )
    print(f"  {max(work):.3f} s are the clients' work, the first round's compilation included")
    print(f"  {a_round - 2 * a_message:.2f} s are left: waiting for the next look, and carrying")
    spent: dict[str, list[float]] = {}
    for name, taken in watch.cpu.values():
        spent.setdefault(name, []).append(taken)
    print("  CPU seconds of the whole run, and processes:")
    for name, each in sorted(spent.items(), key=lambda pair: -sum(pair[1])):
        print(f"    {name:20}{sum(each):8.1f}{len(each):5}")


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
