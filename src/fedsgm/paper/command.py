"""``fedsgm reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.files import check_writable


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Figures or tables, or all; see --list.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the figures and tables and stop.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: few seeds and rounds.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the runs; reproductions, or reproductions-quick, unless told."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Markdown file for the results, pictures beside it; OUT/results.md unless told.")
    ] = None,
    adult: Annotated[
        Path | None, typer.Option(help="Folder with adult.data and adult.test; fetched once if not given.")
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show progress on standard error.")] = True,
) -> None:
    """Run the paper's experiments and write a page of what it says, what was measured, and whether they agree.

    Runs that the folder has are not run again; a command that was stopped goes on where it was.
    """
    from fedsgm.paper import page as pages
    from fedsgm.paper.studies import STUDIES
    from fedsgm.paper.study import Scale

    if list_:
        width = max(map(len, STUDIES))
        print("\n".join(f"{study.name:{width}}  {study.title}" for study in STUDIES.values()))
        return
    known = [*STUDIES, "all"]
    for name in names or [""]:
        if name not in known:
            raise SettingError(f"reproduce {name}: give one or more of {', '.join(known)}".replace(" :", ":"))
    if page is not None and page.suffix != ".md":
        raise SettingError(f"--page {page}: the name of a page must end in .md")
    chosen = STUDIES if "all" in names else dict.fromkeys(names)  # type: ignore[operator, arg-type]
    folder = out or Path("reproductions-quick" if quick else "reproductions")
    check_writable("--out", folder)
    pages.reproduce(
        [STUDIES[name] for name in chosen],
        Scale(quick, adult),
        out=folder,
        page=page or folder / "results.md",
        progress=progress,
    )
