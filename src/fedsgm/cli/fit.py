"""``fedsgm fit``: a constrained model of one's own table."""

from __future__ import annotations

import dataclasses
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.progress import say
from fedsgm.cli import building, config
from fedsgm.cli.flags import PROBLEM, RunFlags, command, option, own_parameters
from fedsgm.cli.saving import save
from fedsgm.cli.setups import widths
from fedsgm.tables.grammar import OF_CLASS, OF_GROUPS

SEPARATOR = "Between the values of CSV: one character, or tab; found out unless told."
DECIMAL = "In numbers of CSV, . or ,; found out unless told."
ENCODING = "Of CSV, such as latin-1."
_CONSTRAINTS = (
    'Such as "demographic_parity(sex) <= 0.05" or "error_rate(income == \'>50K\') <= 0.2"; may be given again. '
    f"Kinds: {', '.join((*OF_GROUPS, *OF_CLASS))}."
)


class ModelName(StrEnum):
    logistic = "logistic"
    mlp = "mlp"


class WeighName(StrEnum):
    rows = "rows"
    clients = "clients"


def _train(
    flags: RunFlags,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file, one example a row.")],
    target: Annotated[str, option(panel=PROBLEM, help="Column to predict; it must have two values.")],
    constraint: Annotated[list[str] | None, option(panel=PROBLEM, help=_CONSTRAINTS)] = None,
    client_by: Annotated[str | None, option(panel=PROBLEM, help="Column whose values are the clients.")] = None,
    clients: Annotated[int, option(panel=PROBLEM, help="Without --client-by: equal random shares, so many.")] = 10,
    model: Annotated[ModelName, option(panel=PROBLEM, metavar="MODEL", help="logistic or mlp.")] = ModelName.logistic,
    hidden: Annotated[
        str | None, option(panel=PROBLEM, help="Widths of the mlp's hidden layers, such as 64,32; 64 unless told.")
    ] = None,
    drop: Annotated[
        list[str] | None, option(panel=PROBLEM, help="Column that is no feature; may be given again.")
    ] = None,
    positive: Annotated[
        str | None, option(panel=PROBLEM, help="The target's positive value; the last in sorted order unless told.")
    ] = None,
    test_fraction: Annotated[float, option(panel=PROBLEM, help="Share of the rows that is held out.")] = 0.2,
    weight: Annotated[
        str | None, option(panel=PROBLEM, help="Column of each row's weight in the loss and the rates.")
    ] = None,
    weigh: Annotated[
        WeighName, option(panel=PROBLEM, metavar="WHAT", help="What counts equally in the loss: rows or clients.")
    ] = WeighName.rows,
    separator: Annotated[str | None, option(panel=PROBLEM, help=SEPARATOR)] = None,
    decimal: Annotated[str | None, option(panel=PROBLEM, help=DECIMAL)] = None,
    encoding: Annotated[str, option(panel=PROBLEM, help=ENCODING)] = "utf-8",
) -> int:
    """Train a constrained model on your own table, over clients; apply it with fedsgm predict.

    Missing values and categories are handled; the sensitive columns stay features unless dropped. The run folder
    gets model.json beside what every run has.
    """
    from fedsgm.data.reading import Written, read_table
    from fedsgm.tables import fit as tabular
    from fedsgm.tables import grammar
    from fedsgm.tables.dealing import prepare
    from fedsgm.tables.models import MLP

    wanted = [grammar.parse(text) for text in constraint or []]
    if hidden is not None and model is ModelName.logistic:
        raise SettingError(f"--hidden {hidden}: a logistic model has no hidden layers; add --model mlp")
    net = MLP(widths(hidden or "64") if model is ModelName.mlp else ())
    deal: dict[str, Any] = {
        "target": target,
        "client_by": client_by,
        "clients": clients,
        "drop": drop or [],
        "positive": positive,
        "weight": weight,
        "test_fraction": test_fraction,
    }
    written = Written(separator, decimal, encoding)
    rows = read_table(table, written=written, used=lambda name: name not in deal["drop"])
    prepared = prepare(rows, wanted=wanted, seed=flags.seed, **deal)
    problem = tabular.make_problem(net, wanted, prepared, target, weigh.value)
    for note in prepared.notes:
        say(f"note: {note}", file=sys.stderr)
    params = net.init(len(prepared.encoder.features), seed=flags.seed)
    result = building.simulate(flags, problem, prepared.clients, params, prepared.test)
    trained = tabular.TableModel(prepared.encoder, net, result.answer, target, prepared.classes)
    say(f"Model: {tabular.describe(trained, result, prepared)}\n\n{result.verdict()}")
    settings = deal | dataclasses.asdict(written) | {"weigh": weigh.value}
    settings |= {"constraint": constraint or [], "model": model.value, "hidden": hidden}
    save(result, flags.out, f"fit {table}", config.plain(settings) | flags.settings())
    trained.save(flags.out)
    say(f"Its model is in model.json. Apply it: fedsgm predict {flags.out} NEW.csv")
    return 3 if flags.require_feasible and not result.feasible.all() else 0


fit = command(
    _train,
    own_parameters(_train)[1:],
    {"seeds": None, "local_steps": 2, "batch_size": 128, "evaluate_every": 10, "out": Path("runs/fit")},
    without=("seeds",),
)
