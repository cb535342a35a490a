"""``fedsgm compare``: finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsgm.base.progress import say


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    plot: Annotated[Path, typer.Option(help="Where to draw their picture.")] = Path("compare.png"),
) -> None:
    """Print finished runs' answers side by side and draw their course and what they came to."""
    from fedsgm.results import comparison, reading
    from fedsgm.results.drawing import check_format
    from fedsgm.results.result import Result

    check_format(plot)
    results = [Result.load(folder) for folder in folders]
    rows = []
    for label, folder, result in zip(labels(folders), folders, results, strict=True):
        with reading.believed(folder / reading.FILE):
            rows.append(comparison.of_finished(label, result))
            comparison.table(rows)
    say(f"{comparison.table(rows)}\n\n{comparison.best(rows)}\n{comparison.NOTE}")
    comparison.plot(rows, plot, results)
    say(f"\nPicture: {plot}")


def labels(folders: list[Path]) -> list[str]:
    """What tells runs apart: the names of their folders, or all of their paths."""
    names = [folder.resolve().name for folder in folders]
    return [str(folder) if names.count(name) > 1 else name for name, folder in zip(names, folders, strict=True)]
