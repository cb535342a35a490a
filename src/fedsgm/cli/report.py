"""``fedsgm report``: finished runs as a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.progress import say


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page, one HTML file.")] = Path("report.html"),
) -> None:
    """Write a page of finished runs, side by side: one file that needs no network."""
    from fedsgm.cli.compare import labels
    from fedsgm.results import page, reading
    from fedsgm.results.result import Result
    from fedsgm.results.shown import Shown, document, in_a_program
    from fedsgm.tables.fit import told

    results = [Result.load(folder) for folder in folders]
    runs = []
    for label, folder, result in zip(labels(folders), folders, results, strict=True):
        with reading.believed(folder / reading.FILE):
            repeated = again(folder) or (in_a_program(result.settings),)
            runs.append(Shown.of(result, label, told(result), repeated))
            document(runs[-1])
    page.write(out, runs)
    say(f"Page: {out}")


def again(folder: Path) -> tuple[str, ...]:
    """How to repeat a run, from the settings in its folder, if they are there: the command, and the file."""
    import shlex

    from fedsgm.base.files import MOST_TEXT, read_file
    from fedsgm.cli import config

    try:
        text = read_file(folder / config.NAME, MOST_TEXT).decode(errors="replace")
    except (OSError, SettingError):
        return ()
    first, _, settings = text.partition("\n")
    command = first.removeprefix("# ").removesuffix(config.NAME)
    return f"{command}{shlex.quote(str(folder / config.NAME))}", settings
