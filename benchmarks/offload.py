"""What clients off the device cost: the rounds of ten thousand with large memories, in files, and reading a million.

    python benchmarks/offload.py [--quick]

A linear model of 100,000 parameters with Top-K 0.01 up, 20 of 10,000 clients a round: their memories are 4 GB, in a
folder. Then a million clients from blocks of rows that a generator gives, and from a Parquet file, by a key. It is run
in a process of its own each time, whose peak of resident memory less that of mapped files is told.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet

import fedsgm as fs

N, D, M = 10_000, 100_000, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and clients")
    quick = parser.parse_args().quick
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; jax {jax.__version__}, numpy {np.__version__}")
    rounds, clients = (100, 100_000) if quick else (1000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        apart(memories, Path(folder), rounds)
        apart(from_blocks, Path(folder), clients)
        apart(from_parquet, Path(folder), clients)


def apart(task: Callable[[Path, int], str], folder: Path, number: int) -> None:
    """A task in a new process: what it says, with its peak."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(task, folder, number, there))
    process.start()
    there.close()  # so that it is heard where the task ends without a word
    print(here.recv(), flush=True)
    process.join()


def _tell(task: Callable[[Path, int], str], folder: Path, number: int, pipe: Any) -> None:
    said = task(folder, number)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, own = (int(status[name].split()[0]) / 2**20 for name in ("VmHWM", "RssAnon"))
    pipe.send(f"{said}; peak {peak:.2f} GB with mapped files, {own:.2f} GB of its own at the end")


def memories(folder: Path, rounds: int) -> str:
    rng = np.random.default_rng(0)
    clients = fs.Clients(
        {"at": rng.integers(0, D, 4 * N), "y": rng.normal(size=4 * N).astype(np.float32)}, np.full(N, 4)
    )
    problem = fs.Problem(lambda w, example: (w[example["at"]] - example["y"]) ** 2 + 1e-4 * jnp.sum(w**2))
    algorithm = fs.FedSGM(0.1, 2, M, uplink=fs.TopK(0.01))
    options = {"offload": folder / "memories", "evaluate_every": 0, "progress": False}

    def spent(rounds: int) -> float:
        began = time.perf_counter()
        fs.simulate(algorithm, problem, clients, np.zeros(D, np.float32), rounds=rounds, **options)
        return time.perf_counter() - began

    spent(1)  # compiles
    short = spent(10)
    each = (spent(10 + rounds) - short) / rounds
    (file,) = (path for path in (folder / "memories").iterdir() if path.name != "lock")
    size, held = file.stat().st_size / 2**30, 512 * file.stat().st_blocks / 2**30
    kept = f"memories {size:.2f} GB in a file, {held:.2f} written"
    return f"{N} clients, {D} parameters, {M} a round: {1e3 * each:.1f} ms a round; {kept}"


def blocks(clients: int) -> Iterator[dict[str, np.ndarray]]:
    """Two rows of 30 numbers for each client, in no order."""
    rng = np.random.default_rng(0)
    keys = rng.permutation(np.repeat(np.arange(clients), 2))
    for some in np.array_split(keys, 20):
        yield {"site": some, "x": rng.normal(size=(len(some), 30)).astype(np.float32)}


def from_blocks(_: Path, clients: int) -> str:
    began = time.perf_counter()
    made = fs.Clients.from_batches(blocks(clients), key="site")
    return f"{len(made)} clients from blocks: {time.perf_counter() - began:.1f} s"


def from_parquet(folder: Path, clients: int) -> str:
    path, writer = folder / "rows.parquet", None
    for block in blocks(clients):
        x = pa.FixedSizeListArray.from_arrays(block["x"].reshape(-1), 30)
        table = pa.table({"site": block["site"], "x": x})
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()
    began = time.perf_counter()
    made = fs.Clients.from_parquet(path, key="site")
    return f"{len(made)} clients from Parquet: {time.perf_counter() - began:.1f} s"


if __name__ == "__main__":
    main()
