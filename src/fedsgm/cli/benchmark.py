"""``fedsgm benchmark``: problems with natural clients, rivals tuned alike, and one page of what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.files import check_writable, read_file, write_atomically
from fedsgm.base.progress import say

commands = typer.Typer(no_args_is_help=True, help="Compare methods on problems with natural clients.")
FILE = "benchmark.json"
_SPLITS = 3

With = Annotated[
    list[Path] | None,
    typer.Option("--with", help="A file with problems or methods of your own, CASES and METHODS; may be given again."),
]
Out = Annotated[Path, typer.Option(help="Folder that keeps the rows.")]


@commands.command("list")
def list_(with_: With = None) -> None:
    """List the suites, the problems with their bounds and clients, and the methods."""
    from fedsgm.benchmark import registry
    from fedsgm.results.verdict import aligned

    cases, methods = registry.of(_files(with_))
    rows = [["problem", "bounds", "clients", "what"]]
    for case in cases.values():
        rows.append([case.name, ", ".join(f"{b:g}" for b in case.bounds), case.natural or "dealt", case.says])
    told = [["method", "settings tried", "what"]]
    told += [[m.name, str(len(m.trials(next(iter(cases.values()))))), m.says] for m in methods.values()]
    say(f"Suites: {', '.join(registry.SUITES)}\n\n{aligned(rows)}\n\n{aligned(told)}")


@commands.command()
def run(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="all, natural (clients that nobody dealt) or paper.")],
    out: Out = Path("benchmarks-run"),
    quick: Annotated[bool, typer.Option("--quick", help="A first look: one bound, few rounds, two settings.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what the folder has, run the rest.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that work side by side, with one thread each.")] = 2,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Runs of a tuned method, each with a split and a start of its own; 3, or 1 if quick."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A problem or a method to keep to; may be given again.")
    ] = None,
    with_: With = None,
    progress: Annotated[bool, typer.Option(help="Show progress on standard error.")] = True,
) -> None:
    """Tune every method on every problem of a suite, run it with what was chosen, and keep a row of each run.

    Write the page of it with fedsgm benchmark report.
    """
    from fedsgm.benchmark import registry, runs

    files = _files(with_)
    cases, methods = registry.suite(suite, files, only or [])
    check_writable("--out", out)
    splits = seeds or (1 if quick else _SPLITS)
    told = {"suite": suite, "quick": quick, "seeds": splits, "with": list(files)}
    there = _settings(out)
    if there and not resume:
        raise SettingError(
            f"--out {out}: there is a benchmark already; add --resume to go on with it, or choose another"
        )
    if there and there["quick"] != quick:
        raise SettingError(
            f"--out {out}: what is there is {'' if there['quick'] else 'not '}quick; choose another folder"
        )
    write_atomically(out / FILE, (json.dumps(told, indent=1) + "\n").encode())
    cases, sentences = registry.there(cases, only or [])
    for sentence in sentences:
        say(sentence)
    todo = runs.cells(cases, methods, splits=splits, quick=quick, out=out, files=files)
    runs.run(todo, workers=workers, progress=progress)
    say(f"Rows: {out / 'rows'}\nThe page: fedsgm benchmark report {out}")


@commands.command()
def again(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that fedsgm benchmark run wrote.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows to run again, chosen at random.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice.")] = 0,
) -> None:
    """Run some rows again and compare: all numbers but the seconds must be the same."""
    import numpy as np

    from fedsgm.benchmark import measures, runs

    told = _settings(out)
    found = list(runs.rows_of(out))
    chosen = np.random.default_rng(seed).permutation(len(found))[:rows]
    different = 0
    with runs.pool(1) as process:
        for i in sorted(chosen):
            row = found[i]
            new = process.submit(runs.again, row, bool(told.get("quick")), tuple(told.get("with", ()))).result()
            wrong = runs.differences(row, new)
            different += bool(wrong)
            name = f"{row['case']} {row['bound']:g} {row['method']} {row['setting']} split {row['split']}"
            say(f"{'other' if wrong else 'same '}  {name}{': ' + ', '.join(wrong) if wrong else ''}")
    say(f"{len(chosen) - different} of {len(chosen)} rows are the same.")
    if different:
        made = {row.get("code") for row in found} - {measures.code()}
        why = ", as other code of this package made some of them" if made else ""
        raise SettingError(f"{out}: {different} of {len(chosen)} rows come to other numbers here{why}")


@commands.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Folders of rows; they are put together.")],
    page: Annotated[Path, typer.Option(help="Markdown file to write, pictures beside it.")] = Path("benchmark.md"),
    with_: With = None,
) -> None:
    """Write one page of all rows: who keeps the bounds, at what objective, how soon, and who is better than whom."""
    from fedsgm.benchmark import report as reports

    if page.suffix != ".md":
        raise SettingError(f"--page {page}: the name of a page must end in .md")
    check_writable("--page", page.parent)
    told = [_settings(folder) for folder in folders]
    files = _files(with_) + tuple(file for each in told for file in each.get("with", ()))
    reports.write(folders, told, page, tuple(dict.fromkeys(files)))
    say(f"Page: {page}")


def _files(given: list[Path] | None) -> tuple[str, ...]:
    return tuple(str(path) for path in given or ())


def _settings(folder: Path) -> dict[str, Any]:
    """What a folder was run with; nothing where there is none."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        told = json.loads(read_file(path))
        return {
            "suite": str(told["suite"]),
            "quick": bool(told["quick"]),
            "seeds": int(told["seeds"]),
            "with": [str(file) for file in told["with"]],
        }
    except (ValueError, KeyError, TypeError):
        raise SettingError(
            f"{path}: not what fedsgm benchmark run wrote; remove it, or choose another folder"
        ) from None
