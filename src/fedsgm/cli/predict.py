"""``fedsgm predict``: a fitted model on new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that fedsgm fit wrote.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file of new rows.")],
    out: Annotated[
        Path | None, typer.Option(help="File for the predictions, .csv or .parquet; standard output unless told.")
    ] = None,
) -> None:
    """Predict for new rows: the class, and the probability of the positive one, in a table of two columns."""
    from fedsgm.data.table import read_table
    from fedsgm.tables import fit as tabular

    trained = tabular.TableModel.load(folder)
    rows = read_table(table, trained.encoder.texts)
    tabular.write_predictions(trained, rows, out)
    for name, count in trained.encoder.unseen(rows).items():
        which = "1 row has a value" if count == 1 else f"{count} rows have values"
        print(f"note: {which} of {name!r} that are no category of the model; treated as none", file=sys.stderr)
