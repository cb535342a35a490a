"""The American Community Survey by state, through the package folktables, which fetches it from the Census."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base.errors import FedSGMError, in_a_line
from fedsgm.data.table import Table, as_text

_YEAR, _SHARE = "2018", 0.05  # of the rows: 80,000 of 1,660,000
_NUMBERS = ("AGEP", "WKHP")
_CATEGORIES = ("COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "SEX", "RAC1P", "ST")
_ABOVE = 50000


def acs_income() -> Table:
    """Who earns more than 50,000 dollars, as folktables' ACSIncome has it, with the state as a column.

    The Census publishes no checksums; files that are there already are taken as they are.
    """
    try:
        folktables: Any = importlib.import_module("folktables")
    except ImportError:
        raise FedSGMError("ACS income needs the package folktables; run pip install folktables") from None
    root = os.environ.get("FEDSGM_CACHE", "~/.cache/fedsgm")
    with contextlib.ExitStack() as stack:
        folder = Path(root).expanduser() / "acs" if root else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        source = folktables.ACSDataSource(survey_year=_YEAR, horizon="1-Year", survey="person", root_dir=str(folder))
        told = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        try:
            source.get_data(states=["WY"], download=True)  # without a network one state tells as much as all
            people = source.get_data(density=_SHARE, download=True)
        except Exception as error:  # folktables tells of a failed download, and goes on to open what is not there
            said = [line for line in told.getvalue().splitlines() if line.startswith("Exception:")]
            why = said[-1].removeprefix("Exception:").strip() if said else in_a_line(error)
            raise FedSGMError(
                f"ACS income could not be fetched from the Census ({why[:120]}); run where www2.census.gov can be "
                f"reached, or put its files under {folder}"
            ) from None
    people = folktables.adult_filter(people)
    table: Table = {name: np.asarray(people[name], np.float64) for name in _NUMBERS}
    table |= {name: as_text(np.asarray(people[name], np.float64)) for name in _CATEGORIES}
    rich = np.asarray(people["PINCP"], np.float64) > _ABOVE
    return table | {"income": np.where(rich, ">50K", "<=50K").astype(object)}
