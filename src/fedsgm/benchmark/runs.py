"""Problems x methods x splits: every method is tuned on one split, and run with what was chosen on others.

What is done is a Parquet file each, written as a whole, so that a benchmark that was stopped goes on where it was. Work
is done in processes of its own with one thread each, so that a row run again has the same bits.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.base.progress import Progress
from fedsgm.benchmark import measures, registry
from fedsgm.benchmark.cases import QUICK_TRIALS, TRIALS, Case, Method, Setting
from fedsgm.benchmark.measures import Row
from fedsgm.engines import work

TUNING = 0  # the split that settings are chosen on; the others judge
_EVERY = 2.0  # seconds between two looks at what is done
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A method on a case with a bound: its trials, and then its runs on the other splits."""

    case: str
    bound: float
    method: str
    splits: int
    quick: bool
    out: str
    files: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return Path(self.out) / "rows" / self.case / f"{self.bound:g}" / self.method

    def parts(self) -> list[Path]:
        return [
            self.folder / "tuning.parquet",
            *(self.folder / f"split-{k}.parquet" for k in range(1, self.splits + 1)),
        ]


@functools.lru_cache(maxsize=4)
def _data(case: str, split: int, files: tuple[str, ...]) -> Any:
    return registry.of(files)[0][case].load(split)


def run_task(task: Sequence[Cell]) -> None:
    """Cells of one problem and bound, one after another: their data are loaded and their programs compiled once."""
    for cell in task:
        run_cell(cell)


def run_cell(cell: Cell) -> None:
    """Do what of a cell is not there yet."""
    cases, methods = registry.of(cell.files)
    case, method = cases[cell.case], methods[cell.method]
    case = case.quick() if cell.quick else case
    tuning, *others = cell.parts()

    def once(setting: Setting, split: int, phase: str) -> Row:
        return _row(case, method, cell.bound, setting, split, phase, cell.quick, cell.files)

    if not tuning.exists():
        trials = _trials(method, case, cell.quick)
        write(tuning, [once(setting, TUNING, "tuning") for setting in trials])
    setting = json.loads(chosen(read([tuning]))["setting"])
    for split, path in enumerate(others, start=1):
        if not path.exists():
            write(path, [once(setting, split, "final")])


def _row(
    case: Case,
    method: Method,
    bound: float,
    setting: Setting,
    split: int,
    phase: str,
    quick: bool,
    files: tuple[str, ...],
) -> Row:
    """One run. How many share its program decides how well that is compiled, and so its last bits."""
    told = measures.key(case, method, bound, setting, split, phase)
    with work.alike(len(case.bounds) * (QUICK_TRIALS if quick else TRIALS)):
        return told | measures.ran(case, _data(case.name, split, files), method, bound, setting, split)


def _trials(method: Method, case: Case, quick: bool) -> Sequence[Setting]:
    """All, or of a quick look some that lie apart."""
    trials = method.trials(case)
    if not quick or len(trials) <= QUICK_TRIALS:
        return trials
    return [trials[i * (len(trials) - 1) // (QUICK_TRIALS - 1)] for i in range(QUICK_TRIALS)][-QUICK_TRIALS:]


def chosen(rows: Sequence[Row]) -> Row:
    """The trial that the validation examples speak for, of those within the bound on the training examples.

    Of those within the bound on both the one with the least objective; if there is none, the one least past it.
    """

    def order(row: Row) -> tuple[float, ...]:
        part = "validation" if row.get("validation excess") is not None else "train"
        past = [max(_number(row[f"{each} excess"]), 0) for each in ("train", part)]
        objective = _number(row[f"{part} objective"])
        if objective == float("inf"):  # decisions alone, as fairlearn's
            objective = -(row.get(f"{part} {measures.RIGHT}") or 0)
        return (*past, objective)

    return min(rows, key=order)


def _number(value: float | None) -> float:
    return float("inf") if value is None or value != value else value


def cells(
    cases: Sequence[Case], methods: Sequence[Method], *, splits: int, quick: bool, out: Path, files: tuple[str, ...]
) -> list[Cell]:
    """In the order of work: one bound of every case, the middle one, then the others; who sees all data comes after."""
    found: dict[tuple[int, bool], list[Cell]] = collections.defaultdict(list)
    for case in (case.quick() if quick else case for case in cases):
        middle = len(case.bounds) // 2
        for i, bound in enumerate(case.bounds):
            for method in methods:
                if method.fits(case):
                    cell = Cell(case.name, bound, method.name, splits, quick, str(out), files)
                    found[abs(i - middle), method.answer is not None].append(cell)
    return [cell for level in sorted(found) for cell in found[level]]


def run(todo: Sequence[Cell], *, workers: int, progress: bool) -> None:
    """All cells, in so many processes, with the time that is left by those that are done."""

    def missing(cells: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in cells if not all(path.exists() for path in cell.parts())]

    left = missing(todo)
    began, had = time.monotonic(), len(todo) - len(left)
    tasks: dict[Any, list[Cell]] = collections.defaultdict(list)
    answers = registry.of(todo[0].files)[1] if todo else {}
    for cell in left:
        tasks[cell.case, cell.bound, answers[cell.method].answer is not None].append(cell)
    with Progress("benchmark", len(todo), show=progress, unit="cell") as bar, pool(workers) as processes:
        bar.update(had)
        waiting = {processes.submit(run_task, task) for task in tasks.values()}
        try:
            while waiting:
                done, waiting = concurrent.futures.wait(waiting, _EVERY, concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    future.result()
                left = missing(left)
                new = len(todo) - had - len(left)
                if new:
                    bar.update(had + new, minutes_left=(time.monotonic() - began) / new * len(left) / 60)
        except BaseException:  # nobody waits for the others' cells: what is written is whole
            for process in list(processes._processes.values()):
                process.terminate()
            raise


def pool(workers: int) -> concurrent.futures.ProcessPoolExecutor:
    """Processes with one thread each, whatever this one has."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
    return concurrent.futures.ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(flags,)
    )


def _begin(flags: str) -> None:
    os.environ["XLA_FLAGS"] = flags  # before JAX has a backend


def again(row: Row, quick: bool, files: tuple[str, ...]) -> Row:
    """The same row, run anew."""
    cases, methods = registry.of(files)
    case, method = cases[row["case"]], methods[row["method"]]
    case = case.quick() if quick else case
    setting = json.loads(row["setting"])
    return _row(case, method, row["bound"], setting, row["split"], row["phase"], quick, files)


def differences(row: Row, new: Row) -> list[str]:
    """The columns of two rows that have other values; how long a run takes is another each time.

    That other code of the package made a row is no difference where it comes to the same numbers.
    """

    def told(value: Any) -> Any:
        return None if value is None or value != value else value

    names = [name for name in dict.fromkeys([*row, *new]) if name not in ("seconds", "code")]
    return [name for name in names if told(row.get(name)) != told(new.get(name))]


def write(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.Table.from_pylist(_alike(rows)), sink, write_page_checksum=True)
    write_atomically(path, sink.getvalue().to_pybytes())


def _alike(rows: Sequence[Row]) -> list[Row]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def read(paths: Sequence[Path]) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet

    found: list[Row] = []
    for path in paths:
        try:
            found += pyarrow.parquet.read_table(path, memory_map=False).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise SettingError(f"{path}: no file of a benchmark's rows ({' '.join(str(error).split())})") from None
    return found


def rows_of(folder: Path) -> Iterator[Row]:
    """All rows that a folder of a benchmark has."""
    paths = sorted((folder / "rows").rglob("*.parquet"))
    if not paths:
        raise SettingError(f"{folder} has no rows of a benchmark; give a folder that fedsgm benchmark run wrote")
    yield from read(paths)
