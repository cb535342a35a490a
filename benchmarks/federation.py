"""What does a round of a real federation cost? Seconds at d = 31, and bytes at the socket at d = 1,000,000.

    make bench
    python benchmarks/federation.py [--quick]

A server and three clients as processes on this machine, over NVIDIA FLARE with mutual TLS. Everything that clients and
server send passes through a relay that counts; Top-1% both ways is set against dense. The first rounds, in which every
client gets the whole model, are not counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import socket
import statistics
import threading
import time
from pathlib import Path

import numpy as np

import fedsgm as fs
from fedsgm.federation import Experiment

CLIENTS, LARGE, FIRST = 3, 1_000_000, 3
SECONDS, TIMES = 0.2, 35.0


def loss(params, example):
    """Half the squared distance to the example, in the mean over the coordinates."""
    return ((params - example["x"]) ** 2).mean() / 2


def size(params, _example):
    return (params**2).mean()


def make(kind: str, rounds: int, **_) -> Experiment:
    """What the federation runs; every site finds this file on its path."""
    from fedsgm.tasks import neyman_pearson as task

    if kind == "small":
        links, problem, start = fs.TopK(0.1), task.neyman_pearson(), task.load(clients=CLIENTS)[2]
    else:
        links = fs.TopK(0.01) if kind == "top" else fs.Identity()
        problem = fs.Problem(loss, [fs.Mean(size, name="size") <= 0.1])
        start = np.zeros(LARGE, np.float32)
    algorithm = fs.FedSGM(step_size=0.3, local_steps=1, rule=fs.Hard(), uplink=links, downlink=links)
    return Experiment(algorithm, problem, start, rounds, evaluate_every=0, timeout=120.0)


def load(name: str, kind: str, **_) -> dict[str, np.ndarray]:
    from fedsgm.tasks import neyman_pearson as task

    number = int(name.rpartition("-")[2])
    if kind == "small":
        return task.load(clients=CLIENTS)[0][number - 1]
    return {"x": np.random.default_rng(number).normal(size=(2, LARGE)).astype(np.float32)}


class Relay:
    """Passes on what clients and server say to each other, and counts it."""

    def __init__(self, port: int) -> None:
        self.up = self.down = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except ConnectionRefusedError:  # it does not listen yet
                client.close()
                continue
            for end in (client, server):
                end.settimeout(None)  # whatever the default is: silence is no end
            threading.Thread(target=self._pump, args=(client, server, "up"), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, "down"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(data))
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()


def rounds_of(folder: Path) -> int:
    """How many rounds the server has saved."""
    return max((int(path.stem.partition("-")[2]) for path in folder.glob("round-*.ckpt")), default=0)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of a round: seconds, CPU seconds of all processes, bytes up and down for a client."""

    seconds: float
    cpu: float
    up: float
    down: float


def used(mark: str) -> float:
    """CPU seconds that a federation's processes have taken."""
    from fedsgm.federation.guard import marked

    times = [process.cpu_times() for process in marked(mark)]
    return sum(taken.user + taken.system for taken in times)


def measure(kind: str, rounds: int) -> Cost:
    """Run a job, and see what its rounds cost."""
    from fedsgm.federation.flare import kits
    from fedsgm.federation.flare.local import LocalFederation
    from fedsgm.federation.flare.submit import Job, submit

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the sites find this module
    with LocalFederation(CLIENTS, begin=False, modules=["federation"]) as federation:
        relay = Relay(federation.port)
        for name in federation.names:  # they reach the server through the relay
            config = federation.kits[name] / "startup" / "fed_client.json"
            config.write_text(config.read_text().replace(f":{federation.port}", f":{relay.port}"))
        federation.begin()
        job = kits.write_job(
            federation.folder / "job",
            run=kind,
            clients=federation.names,
            experiment="federation.make",
            data="federation.load",
            settings={"kind": kind, "rounds": rounds},
        )
        state = federation.state / "server" / kind
        times: dict[int, float] = {}
        ends: list[tuple[int, float, int, int]] = []
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                done = rounds_of(state)
                if FIRST <= done < rounds and done not in times:
                    times[done] = time.perf_counter()
                    if not ends or done == rounds - 1:
                        ends.append((done, used(federation.mark), relay.up, relay.down))
                time.sleep(0.002)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            submit(federation.admin, Job.read(job), least=CLIENTS, show=False, here=federation.kits[federation.server])
        finally:
            over.set()
            watcher.join()
    took = [times[done + 1] - times[done] for done in times if done + 1 in times]
    first, *rest = zip(*ends, strict=True)
    count = first[-1] - first[0]
    cpu, up, down = (end[-1] - end[0] for end in rest)
    return Cost(statistics.median(took), cpu / count, up / count / CLIENTS, down / count / CLIENTS)


def met(reached: bool) -> str:
    return "met" if reached else "not met"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    many, few = (40, 8) if parser.parse_args().quick else (150, 12)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy", "nvflare"))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, {versions}")
    small = measure("small", many)
    print(f"\n{CLIENTS} clients, d = 31, a round: {small.seconds:.3f} s, < {SECONDS} s {met(small.seconds < SECONDS)}")
    print(f"  {small.cpu:.3f} CPU-s; {small.up / 1e3:.1f} kB up and {small.down / 1e3:.1f} kB down for a client")
    sparse, dense = measure("top", few), measure("dense", few)
    print(f"\n{CLIENTS} clients, d = {LARGE:,}, bytes at the socket for a client and round")
    for way in ("up", "down"):
        mine, whole = getattr(sparse, way), getattr(dense, way)
        verdict = f"{whole / mine:.1f}x fewer, >= {TIMES:g}x {met(whole / mine >= TIMES)}"
        print(f"  {way:5}{mine / 1e3:9.1f} kB, dense {whole / 1e3:9.1f} kB: {verdict}")
    for name, cost in (("sparse", sparse), ("dense", dense)):
        print(f"  {name}: {cost.seconds:.2f} s and {cost.cpu:.2f} CPU-s a round")


if __name__ == "__main__":
    main()
