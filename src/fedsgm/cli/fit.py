"""``fedsgm fit``: a constrained model of one's own table."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.progress import say
from fedsgm.base.structs import check_count
from fedsgm.cli import config, fitting
from fedsgm.cli.fitting import Fitting, Given, ModelName, layers_of
from fedsgm.cli.flags import PROBLEM, RUN, RuleName, RunFlags, command, ignored, option, own_parameters
from fedsgm.cli.listening import listening
from fedsgm.cli.saving import save
from fedsgm.engines import work
from fedsgm.tables import recipe
from fedsgm.tables.grammar import OF_CLASS, OF_GROUPS

if TYPE_CHECKING:
    from fedsgm.core.problem import Problem
    from fedsgm.tables.grammar import Wanted

SEPARATOR = "Between the values of CSV: one character, or tab; found out unless told."
DECIMAL = "In numbers of CSV, . or ,; found out unless told."
ENCODING = "Of CSV, such as latin-1."
_MOST_SEEDS = 1000  # each is a fit for each bound
_CONSTRAINTS = (
    'Such as "demographic_parity(sex) <= 0.05" or "error_rate(income == \'>50K\') <= 0.2"; may be given again. '
    f"Kinds: {', '.join((*OF_GROUPS, *OF_CLASS))}."
)


class WeighName(StrEnum):
    rows = "rows"
    clients = "clients"


class TaskName(StrEnum):
    classes = "classes"
    number = "number"


DEFAULTS: dict[str, Any] = {
    "seeds": None,
    "rule": RuleName.adaptive,
    "rounds": recipe.ROUNDS,
    "local_steps": recipe.LOCAL_STEPS,
    "batch_size": recipe.BATCH_SIZE,
    "step_size": None,
    "anneal": recipe.ANNEAL,
    "evaluate_every": recipe.EVALUATE_EVERY,
    "out": Path("runs/fit"),
}


def _own(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file, one example a row.")],
    target: Annotated[str, option(panel=PROBLEM, help="Column to predict: two values, several classes or a number.")],
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
    task: Annotated[
        TaskName | None,
        option(panel=PROBLEM, metavar="TASK", help="What the target is, classes or number; found out unless told."),
    ] = None,
    positive: Annotated[
        str | None, option(panel=PROBLEM, help="The positive one of two values; the last in sorted order unless told.")
    ] = None,
    test_fraction: Annotated[float, option(panel=PROBLEM, help="Share of the rows that is held out.")] = 0.2,
    weight: Annotated[
        str | None, option(panel=PROBLEM, help="Column of each row's weight in the loss and the rates.")
    ] = None,
    weigh: Annotated[
        WeighName, option(panel=PROBLEM, metavar="WHAT", help="What counts equally in the loss: rows or clients.")
    ] = WeighName.rows,
    confidence: Annotated[
        float | None,
        option(panel=PROBLEM, help="Keep the bounds on new data, too, with this probability, such as 0.95."),
    ] = None,
    bounds: Annotated[
        str | None,
        option(panel=PROBLEM, help="The first constraint's, in turn, such as 0.1,0.05: a table of what they cost."),
    ] = None,
    seeds: Annotated[int, option(panel=RUN, help="With --bounds: how many, each with other rows held out.")] = 1,
    separator: Annotated[str | None, option(panel=PROBLEM, help=SEPARATOR)] = None,
    decimal: Annotated[str | None, option(panel=PROBLEM, help=DECIMAL)] = None,
    encoding: Annotated[str, option(panel=PROBLEM, help=ENCODING)] = "utf-8",
) -> None:
    """The flags of a fit beside those of a run."""


def _train(flags: RunFlags, table: Path, **own: Any) -> int:
    """Train a constrained model on your own table, over clients; apply it with fedsgm predict.

    Missing values and categories are handled; the sensitive columns stay features unless dropped. The run folder
    gets model.json beside what every run has.
    """
    from fedsgm.tables import trade_off

    layers = layers_of(own["model"], own["hidden"])
    confidence, bounds, seeds = own["confidence"], own["bounds"], own["seeds"]
    fitting.check_confidence(confidence, own["test_fraction"])
    if seeds != 1 and bounds is None:
        raise SettingError(f"--seeds {seeds}: a fit has one seed, --seed; with --bounds it may have several")
    check_count("fit", "seeds", seeds, most=_MOST_SEEDS)
    given = Given.read(table, own)
    wanted = given.wanted
    at = None if bounds is None else trade_off.parse_bounds(bounds, wanted)

    def made(seed: int) -> Fitting:
        chosen = dataclasses.replace(flags, seed=seed)
        return Fitting.of(chosen, given.prepared(seed, own), layers, own["weigh"].value, heard)

    with listening(flags) as heard:
        first = made(flags.seed)
        for note in (*ignored(flags, DEFAULTS), *first.notes(wanted)):
            say(f"note: {note}", file=sys.stderr)
        settings = config.plain(own) | first.flags.settings()
        if at is not None:
            return _trade_off([first, *(made(flags.seed + i) for i in range(1, seeds))], wanted, at, table, settings)
        return _fit(first, first.problem(wanted), confidence, table, settings)


def _fit(made: Fitting, problem: Problem, confidence: float | None, table: Path, settings: dict[str, Any]) -> int:
    """Train, compare, tell and save."""
    from fedsgm.tables import fit as tabular
    from fedsgm.tables import sanity

    flags, prepared = made.flags, made.prepared
    result = made.run(problem)
    if confidence is not None and problem.constraints:
        result = made.confident(problem, result, confidence)
    free = made.free(problem) if sanity.in_the_way(result) else None
    if confidence is None:
        result, compared = made.worthwhile(problem, result, free)
    else:
        compared = made.compared(problem, result, free)
    trained = tabular.TableModel(prepared.encoder, made.net, result.answer, prepared.target)
    shown = tabular.shown_on_new_data(problem, result.answer, prepared.test, confidence)
    tallies = tabular.tallies(trained, {"train": prepared.clients.together()[0], "test": prepared.test})
    good = tabular.how_good(prepared.target, tallies)
    result = tabular.with_model(result, good, prepared.target, compared, shown)
    say(f"{tabular.told(result)}\n\n{result.verdict()}")
    save(result, flags.out, f"fit {table}", settings, trained)
    say(f"Its model is in model.json. Apply it: fedsgm predict {flags.out} NEW.csv")
    short = compared.worse or not result.feasible.all() or (confidence is not None and not shown.kept)
    return 3 if flags.require_feasible and short else 0


def _trade_off(
    made: Sequence[Fitting], wanted: Sequence[Wanted], at: Sequence[Wanted], table: Path, settings: dict[str, Any]
) -> int:
    """What the bounds cost, in a table, a picture and a file."""
    from fedsgm.tables import trade_off

    flags, name = made[0].flags, wanted[0].name
    with work.alike(len(made) * (1 + len(at))):
        found = [point for each in made for point in fitting.points(each, wanted, at)]
    say(trade_off.table(found, name))
    config.write(flags.out, f"fit {table}", settings)
    trade_off.save(found, flags.out / "trade-off.parquet")
    trade_off.plot(found, name, flags.out / "trade-off.png")
    say(f"\nSaved in {flags.out}: trade-off.parquet, trade-off.png, {config.NAME}. For a model, fit with one bound.")
    return 0


PARAMETERS = own_parameters(_own)
fit = command(_train, PARAMETERS, DEFAULTS, without=("seeds",))
