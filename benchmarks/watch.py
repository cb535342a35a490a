"""What watching a run costs, and how soon its page shows a client that was killed.

    python benchmarks/watch.py [--quick]

The cost is measured in one process, where the federated run, its clients and the page are: the same rounds with and
without, in turn, in CPU time, with somebody who asks for the page every second of it: so it is what it would be on a
machine that does nothing else. The client is killed in a federation of real processes over FLARE.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil

import fedsgm as fs
from fedsgm.engines.watch import Watch
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess
from fedsgm.tasks.neyman_pearson import load, neyman_pearson

ALGORITHM = fs.FedSGM(step_size=0.1, local_steps=5, rule=fs.Soft(beta=40.0), uplink=fs.TopK(0.1))


def seconds(rounds: int, watched: bool) -> float:
    """CPU time of the rounds in process."""
    clients, _, params = load(clients=5)
    problem = neyman_pearson()
    program = Program.of(ALGORITHM, problem, params)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        transport = InProcess.of(program, clients, folder)
        callbacks, over = [], threading.Event()
        if watched:
            watch = stack.enter_context(Watch())
            callbacks = [watch.run()]
            asking = threading.Thread(target=ask, args=(watch.address, over))
            asking.start()
        began = time.process_time()
        fs.federate(ALGORITHM, problem, transport, params, rounds=rounds, progress=False, callbacks=callbacks)
        took = time.process_time() - began
        over.set()
        if watched:
            asking.join()
    return took


def ask(address: str, over: threading.Event) -> None:
    """As a browser does: the page once, and every second what is new since the version that it has."""
    with urllib.request.urlopen(address) as answer:
        answer.read()
    last, seen = time.process_time(), -1
    while not over.wait(0.5):
        if time.process_time() < last + 1:
            continue
        last = time.process_time()
        with urllib.request.urlopen(f"{address}state?seen={seen}") as answer:
            if answer.status == 200:
                seen = json.load(answer)["version"]


def killed(rounds: int) -> float:
    """Seconds from a client's end until the page says so."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["federate", "local", "neyman-pearson", "--clients", "4", "--rounds", str(rounds), "--no-progress"]
        command += ["--watch", "--out", str(Path(folder) / "run")]
        run = subprocess.Popen([sys.executable, "-m", "fedsgm", *command], stderr=subprocess.PIPE, text=True)
        assert run.stderr is not None
        address = re.search(r"http://\S+", run.stderr.readline())
        assert address is not None
        try:
            while (state(address[0]) or {"done": 0})["done"] < 10:
                time.sleep(0.5)
            for process in psutil.Process(run.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any("site-2" in word for word in process.cmdline()):
                        process.kill()
            began = time.monotonic()
            while not any(row.get("gone") or row["left_out"] for row in state(address[0])["clients"]["rows"]):
                time.sleep(0.1)
            return time.monotonic() - began
        finally:
            run.terminate()
            run.wait()


def state(address: str) -> dict:
    with urllib.request.urlopen(f"{address}state") as answer:
        runs = json.load(answer)["runs"]
    return runs[0] if runs else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    quick = parser.parse_args().quick
    rounds, times = (100, 3) if quick else (300, 7)
    seconds(10, True)
    pairs = np.array([[seconds(rounds, watched) for watched in (False, True)] for _ in range(times)])
    ratios = pairs[:, 1] / pairs[:, 0]
    print(
        f"CPU time watched over not, {times} x {rounds} federated rounds: median {np.median(ratios):.3f}, "
        f"{ratios.min():.3f} .. {ratios.max():.3f}; a round {1000 * np.median(pairs[:, 0]) / rounds:.1f} ms"
    )
    print(f"a killed client is on the page after {killed(100000):.1f} s")


if __name__ == "__main__":
    main()
