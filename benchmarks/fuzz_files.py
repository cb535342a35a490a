"""Damaged files through the commands that read them: each gives an answer, or one sentence and an exit code.

    make fuzz
    python benchmarks/fuzz_files.py [--quick] [--count 500] [--seed 0] [--kind model.json]

Sound files of every kind are made once. Then fields and bytes of them are changed, and digests made right again, or it
would end there. What a command prints has no control characters, and it has so much memory and time and no more.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gzip
import hashlib
import io
import json
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.csv
import pyarrow.parquet

import damages
import fedsgm as fs
from fedsgm.__main__ import main as command
from fedsgm.engines import checkpoint as checkpoints

MEMORY, SECONDS = 2**30, 20  # beyond what the process has, and for one command
BEGUN = "the run would begin"  # what a command says that found nothing wrong with a file


class Wrong(AssertionError):
    """A command that did something else than it should."""


class Sound:
    """A folder with sound files of every kind."""

    def __init__(self, folder: Path) -> None:
        """Made by the commands themselves."""
        self.folder = folder
        self.table, self.fit, self.sweep = folder / "table.csv", folder / "fit", folder / "sweep"
        rng = np.random.default_rng(0)
        rows = ["age,sex,site,day,label"]
        for i in range(60):
            age = rng.integers(18, 80)
            rows.append(f"{age},{'fm'[i % 2]},{'abc'[i % 3]},2024-01-{i % 28 + 1:02d},{'yn'[int(age > 50)]}")
        self.table.write_text("\n".join(rows) + "\n")
        parity = ["--constraint", "demographic_parity(sex) <= 0.1", "--rounds", "4", "--no-progress"]
        with mock.patch.object(fs.Result, "plot", _no_picture):
            call("fit", self.table, "--target", "label", "--clients", "3", *parity, "--out", self.fit)
            self.swept = ["sweep", "neyman-pearson", "--rounds", "2", "--clients", "4", "--participants", "2"]
            self.swept += ["--seeds", "1", "--no-progress", "--vary", "step-size=0.1,0.2", "--out", self.sweep]
            call(*self.swept)
        (folder / "settings.toml").write_bytes((self.fit / "settings.toml").read_bytes())
        (folder / "other.csv").write_bytes(self.table.read_bytes())
        (folder / "other.csv.gz").write_bytes(gzip.compress(self.table.read_bytes()))
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(self.table), folder / "other.parquet")
        self.saved = folder / "saved"
        resumed(self.saved, resume=False)
        journal = checkpoints.Journal(4)
        journal.keep_in(folder / "journal")
        for row in range(4):
            journal.record(row, {"objective": np.float32(row), "who": np.arange(3)})
        journal.flush()


def resumed(folder: Path, resume: bool) -> Any:
    """A tiny run that saves itself, or goes on from what is there."""
    clients = fs.Clients.from_list([{"x": np.arange(3.0) + i} for i in range(3)])
    problem = fs.Problem(objective=fs.Mean(_loss), constraints=[fs.Mean(_loss, name="g") <= 9.0])
    kept = fs.Checkpoint(folder, 4, resume)
    return _simulate(fs.FedSGM(0.1), problem, clients, _START, rounds=4, checkpoint=kept, progress=False)


_simulate = fs.simulate
_START = {"w": np.zeros(2, np.float32)}


def _loss(params: Any, example: Any) -> Any:
    return (params["w"][0] - example["x"]) ** 2


def _no_picture(_: Any, path: Path) -> None:
    Path(path).write_bytes(b"")


def call(*arguments: Any) -> str:
    """``fedsgm ARGUMENTS`` here: how it ended, in a word, if that is as it should be."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    given = mock.patch.object(sys, "argv", ["fedsgm", *map(str, arguments)])
    with given, warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command()
        except SystemExit as stop:
            code = stop.code
    said = [line for line in err.getvalue().splitlines() if not line.startswith(("note: ", "warning: "))]
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out.getvalue() + err.getvalue()):
        raise Wrong(f"control characters: {err.getvalue()!r}")
    if code not in (0, 1, 2) or len(said) != (code != 0) or (said and not re.match(r"error: \S", said[0])):
        raise Wrong(f"exit code {code!r}, and said: {err.getvalue()!r}")
    if said and re.search(r"Errno|malloc|not as much memory", said[0]):
        raise Wrong(f"no sentence, or too much memory: {said[0]}")
    return _outcome(said[0]) if said else "fine"


def _outcome(sentence: str) -> str:
    """A sentence in short, without what differs from file to file."""
    if BEGUN in sentence:
        return "fine"
    return re.sub(r"\S*/\S+|'.*'|[\d.]+", "_", sentence)[:60]


def show(sound: Sound, _: Path) -> str:
    drawn = contextlib.nullcontext() if random.random() < 0.05 else mock.patch.object(fs.Result, "plot", _no_picture)
    with drawn:
        return call("show", sound.fit, "--table", "--plot", sound.folder / "picture.png")


def compare(sound: Sound, path: Path) -> str:
    with mock.patch("fedsgm.results.comparison.plot"):
        call("compare", sound.fit, sound.fit)
    return show(sound, path)


def predict(sound: Sound, _: Path) -> str:
    return call("predict", sound.fit, sound.table, "--out", sound.folder / "predicted.csv")


def fit(sound: Sound, path: Path) -> str:
    call("predict", sound.fit, path, "--out", sound.folder / "predicted.csv")
    return call("fit", path, "--target", "label", "--constraint", "demographic_parity(sex) <= 0.1", "--out", "out")


def configured(_: Sound, path: Path) -> str:
    return call("fit", path.with_name("table.csv"), "--config", path, "--target", "label", "--out", "out")


def sweep(sound: Sound, _: Path) -> str:
    return call(*sound.swept, "--resume")


def checkpoint(sound: Sound, _: Path) -> str:
    try:
        resumed(sound.saved, resume=True)
    except fs.FedSGMError as error:
        return _one_line(error)
    return "fine"


def journal(_: Sound, path: Path) -> str:
    try:
        checkpoints.Journal(4).keep_in(path, path.stat().st_size)
    except fs.FedSGMError as error:
        return _one_line(error)
    return "fine"


def _one_line(error: Exception) -> str:
    if "\n" in str(error) or len(str(error)) > 1000:
        raise Wrong(f"no sentence: {error}")
    return _outcome(str(error))


Damage = Callable[[bytes, random.Random], bytes]
Reads = Callable[[Sound, Path], str]
KINDS: dict[str, tuple[str, Damage, Reads]] = {
    "result.json": ("fit/result.json", damages.damage_json, compare),
    "history.parquet": ("fit/history.parquet", damages.damage_parquet, show),
    "params.safetensors": ("fit/params.safetensors", damages.damage_tensors, predict),
    "model.json": ("fit/model.json", damages.damage_json, predict),
    "settings.toml": ("settings.toml", damages.damage_toml, configured),
    "table.csv": ("other.csv", damages.damage_csv, fit),
    "table.csv.gz": ("other.csv.gz", damages.damage_gzip, fit),
    "table.parquet": ("other.parquet", damages.damage_parquet, fit),
    "sweep.parquet": ("sweep/sweep.parquet", damages.damage_parquet, sweep),
    "checkpoint": ("saved/round-000000004.ckpt", damages.damage_checkpoint, checkpoint),
    "journal": ("journal", damages.damage_journal, journal),
}
"""Every kind of file that a command reads: where a sound one is, what damages it, and what reads it."""


def fuzz(count: int, seed: int, sound: Sound, kinds: list[str]) -> dict[str, Counter[str]]:
    """How often each kind of file, damaged so many times, was read and how that ended."""
    outcomes: dict[str, Counter[str]] = {}
    folder = sound.folder
    wrong = []
    with mock.patch.object(fs, "simulate", _begin):
        for kind in kinds:
            place, damage, reads = KINDS[kind]
            path, rng = folder / place, random.Random(f"{seed} {kind}")
            whole = path.read_bytes()
            outcomes[kind] = Counter()
            for i in range(count):
                with _restored(folder):
                    path.write_bytes(damage(whole, rng))
                    _digested(sound.fit, place)
                    try:
                        with _within(MEMORY), _in_time():
                            outcomes[kind][reads(sound, path)] += 1
                    except Exception as error:
                        at = [
                            f"{Path(each.filename).name}:{each.lineno}"
                            for each in traceback.extract_tb(error.__traceback__)
                        ]
                        wrong.append(f"{kind}, number {i}: {type(error).__name__}: {error} ({' '.join(at[-4:])})")
    if wrong:
        raise Wrong("\n".join((f"{len(wrong)} went wrong with seed {seed}:", *wrong[:20])))
    return outcomes


def _begin(*_: Any, **__: Any) -> Any:
    raise fs.FedSGMError(BEGUN)


def _digested(folder: Path, place: str) -> None:
    """The digest of a file of a run is that of what is there now."""
    name = Path(place).name
    if not place.startswith("fit/") or name not in ("history.parquet", "params.safetensors"):
        return
    digest, path = hashlib.sha256((folder / name).read_bytes()).hexdigest(), folder / "result.json"
    document = json.loads(path.read_bytes())
    document["files"][name] = digest
    path.write_text(json.dumps(document))
    if name == "params.safetensors":
        model = json.loads((folder / "model.json").read_bytes())
        (folder / "model.json").write_text(json.dumps(model | {"digest": digest}))


@contextlib.contextmanager
def _restored(folder: Path) -> Iterator[None]:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    try:
        yield
    finally:
        for path in [path for path in folder.rglob("*") if path.is_file() and path not in before]:
            path.unlink()
        for path, data in before.items():
            path.write_bytes(data)


@contextlib.contextmanager
def _within(more: int) -> Iterator[None]:
    """With so much memory more than there is now."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise Wrong(f"not done after {SECONDS} seconds")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    faulthandler.dump_traceback_later(3 * SECONDS, exit=True)  # where Python is not asked
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500, help="damaged files of each kind")
    parser.add_argument("--quick", action="store_true", help="100 of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="may be given again; all unless told")
    options = parser.parse_args()
    count = 100 if options.quick else options.count
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        outcomes = fuzz(count, options.seed, Sound(Path(folder)), options.kind or [*KINDS])
    total = sum(sum(each.values()) for each in outcomes.values())
    print(f"{total} damaged files in {time.perf_counter() - began:.0f} s, each read or refused in a sentence")
    for kind, counts in outcomes.items():
        print(f"\n{kind}: {counts['fine']} of {sum(counts.values())} did no harm")
        for outcome, times in counts.most_common(8):
            print(f"{times:9}  {outcome}")


if __name__ == "__main__":
    main()
