"""``fedsgm show``: a finished run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsgm.base.progress import say


def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    plot: Annotated[Path | None, typer.Option(help="Where to draw its picture; RUN/history.png unless told.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Also print every seed's values, answer and all.")] = False,
) -> None:
    """Print a finished run's verdict and draw its picture again."""
    from fedsgm.results import reading
    from fedsgm.results import verdict as report
    from fedsgm.results.drawing import check_format
    from fedsgm.results.result import Result
    from fedsgm.tables.fit import told

    picture = plot or folder / "history.png"
    check_format(picture)
    result = Result.load(folder)
    with reading.believed(folder / reading.FILE):
        parts = [told(result), result.verdict(), report.federation(result), result.table() if table else ""]
        say("\n\n".join(part for part in parts if part))
        result.plot(picture)
    say(f"\nPicture: {picture}")
