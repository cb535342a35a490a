"""``fedsgm predict``: a fitted model on new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsgm.base.progress import say
from fedsgm.cli.fit import DECIMAL, ENCODING, SEPARATOR


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that fedsgm fit wrote.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file of new rows.")],
    out: Annotated[
        Path | None, typer.Option(help="File for the predictions, .csv or .parquet; standard output unless told.")
    ] = None,
    separator: Annotated[str | None, typer.Option(help=SEPARATOR)] = None,
    decimal: Annotated[str | None, typer.Option(help=DECIMAL)] = None,
    encoding: Annotated[str, typer.Option(help=ENCODING)] = "utf-8",
) -> None:
    """Predict for new rows: a number; or the class, and the probability of the positive one of two, or of each."""
    from fedsgm.data.reading import Written, read_table
    from fedsgm.tables import fit as tabular

    trained = tabular.TableModel.load(folder)
    needed = {column.name for column in trained.encoder.columns if column.features}
    written = Written(separator, decimal, encoding)
    rows = read_table(table, trained.encoder.texts, written=written, used=needed.__contains__)
    tabular.write_predictions(trained, rows, out)
    for name, count in trained.encoder.unseen(rows).items():
        which = "1 row has a value" if count == 1 else f"{count} rows have values"
        say(f"note: {which} of {name!r} that are no category of the model; treated as none", file=sys.stderr)
