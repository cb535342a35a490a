"""What a figure or table of the paper is made of: runs, which are kept, and what is said of them.

A run is kept as soon as it is done, in a folder of its own that ``fedsgm show`` reads, and a long one has checkpoints;
so a study that was killed goes on where it was and ends with the same files. Two studies share the runs they both have.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fedsgm
from fedsgm.base.describe import describe
from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.base.progress import Progress
from fedsgm.engines.checkpoint import Checkpoint
from fedsgm.engines.simulate import simulate
from fedsgm.results.result import Result

_CHECKPOINT_EVERY = 50


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of a study is run."""

    quick: bool = False
    adult: Path | None = None  # folder with the Adult files, if they are there already

    def of(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full


Load = Callable[[], tuple[Any, Any, Any, Any]]
"""Gives the problem, the clients, the starting parameters and the held-out examples."""


@dataclasses.dataclass(frozen=True)
class Run:
    """An algorithm on a problem with all its seeds.

    ``data`` names what ``load`` gives: together with the settings it tells one run from another, so that the data are
    loaded only for a run that is not there yet.
    """

    name: str
    algorithm: Any
    load: Load
    data: str
    rounds: int
    seeds: int
    seed: int = 0
    evaluate_every: int = 1
    long: bool = False  # takes minutes, so that it has checkpoints and a bar of its own

    @property
    def folder(self) -> str:
        """The name of its folder: readable, and another one for other settings."""
        settings = {
            "version": fedsgm.__version__,
            "algorithm": told(self.algorithm),
            "data": self.data,
            "run": [self.rounds, self.seeds, self.seed, self.evaluate_every],
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        return f"{re.sub('[^a-z0-9.]+', '-', self.name.lower()).strip('-')}-{digest}"


def told(thing: Any) -> Any:
    """Settings without what is as by default, so that a new option leaves the runs that do not use it as they are."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return describe(thing)
    given = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    changed = {field.name: field.default != given[field.name] for field in dataclasses.fields(thing)}
    return {"is": type(thing).__name__, **{name: told(value) for name, value in given.items() if changed[name]}}


def collect(title: str, runs: Sequence[Run], out: Path, *, progress: bool) -> dict[str, Result]:
    """Every run's result by its name: those that ``out`` has as they are, the others simulated.

    Long runs show their own rounds, short ones a bar of all together.
    """
    results = {}
    long = any(run.long for run in runs)
    with Progress(title, len(runs), show=progress and not long, unit="run") as bar:
        for i, run in enumerate(runs, start=1):
            kept = _kept(run, out / run.folder)
            if kept is None and progress and long:
                print(f"{title}: {run.name}, run {i} of {len(runs)}", file=sys.stderr, flush=True)
            results[run.name] = kept or _simulate(run, out, progress and long)
            bar.update(i)
    return results


def seconds(runs: Sequence[Run], out: Path) -> float:
    """How long the runs took, whenever that was."""
    return sum(json.loads((out / run.folder / "seconds.json").read_bytes()) for run in runs)


def _kept(run: Run, folder: Path) -> Result | None:
    if not (folder / "seconds.json").exists():  # written last
        return None
    try:
        return Result.load(folder)
    except SettingError as error:
        raise SettingError(f"{error}; remove the folder to run {run.name!r} again") from None


def _simulate(run: Run, out: Path, progress: bool) -> Result:
    problem, clients, params, test = run.load()
    checkpoints = out / run.folder / "checkpoint"
    began = time.perf_counter()
    result = simulate(
        run.algorithm,
        problem,
        clients,
        params,
        rounds=run.rounds,
        seed=run.seed,
        seeds=run.seeds,
        test=test,
        evaluate_every=run.evaluate_every,
        checkpoint=Checkpoint(checkpoints, _CHECKPOINT_EVERY, resume=True) if run.long else None,
        progress=progress,
    )
    result.save(out / run.folder)
    took = time.perf_counter() - began
    write_atomically(out / run.folder / "seconds.json", json.dumps(round(took, 1)).encode())
    shutil.rmtree(checkpoints, ignore_errors=True)
    return result


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something said of a figure, as a statistic; ``holds`` is None where the runs are too few to tell.

    The paper says it, unless it is ``ours``; only the paper's are counted on the page.
    """

    says: str
    measured: str
    holds: bool | None
    ours: bool = False

    @property
    def verdict(self) -> str:
        return "not shown" if self.holds is None else "holds" if self.holds else "false"


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under a title; one of single seeds is folded away on the page."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False


@dataclasses.dataclass(frozen=True)
class Findings:
    """What a study shows: its picture, its tables, and the claims with their verdicts."""

    picture: Any  # a matplotlib Figure
    tables: Sequence[Table]
    claims: Sequence[Claim]
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Study:
    """A figure or table of the paper.

    Args:
        name: what ``fedsgm reproduce`` calls it.
        title: what it shows.
        paper: what the paper says of it.
        runs: of a scale, all that it needs.
        findings: of those runs' results, what to show and say.
    """

    name: str
    title: str
    paper: str
    runs: Callable[[Scale], Sequence[Run]]
    findings: Callable[[Mapping[str, Result], Scale], Findings]
