"""``fedsgm federate fit``: the command ``fedsgm fit`` over sites, each with its own table.

A site's process is handed the path of its own file, and reads no other.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.progress import say
from fedsgm.cli import building, config, rehearsal
from fedsgm.cli.fit import DEFAULTS, PARAMETERS, TaskName, WeighName
from fedsgm.cli.fitting import ModelName, for_model, layers_of
from fedsgm.cli.flags import PROBLEM, RuleName, RunFlags, command, option, own_parameters, value_types
from fedsgm.cli.rehearsal import NOT_FEDERATED, RUN, Engine
from fedsgm.cli.saving import copy, picture
from fedsgm.data.reading import Written, read_table
from fedsgm.tables import fit as tabular
from fedsgm.tables.describing import Question, Site
from fedsgm.tables.federated import TableFit
from fedsgm.tables.models import MLP
from fedsgm.tables.reader import nearest

if TYPE_CHECKING:
    from fedsgm.federation.sites import Sites
    from fedsgm.results.result import Result

T = TypeVar("T", bound=StrEnum)
_DEALT = ("table", "client_by", "clients")  # the flags of fit that say whose rows are whose: here files do
_ONE_TABLE = ("confidence", "bounds", "seeds")  # those that take several runs


def _own(
    tables: Annotated[
        list[Path], typer.Argument(metavar="TABLE...", help="CSV or Parquet files, one a site, with the same columns.")
    ],
    least: Annotated[
        int,
        option(panel=PROBLEM, help="Rows of a site that a category or a mean is told of, at least."),
    ] = 5,
) -> None:
    """The flags that a fit over sites has of its own."""


_TABLES, _LEAST = own_parameters(_own)
_FLAGS = [
    _TABLES,
    *(each for each in PARAMETERS if each.name not in _DEALT + _ONE_TABLE),
    _LEAST,
    *own_parameters(rehearsal.chosen),
    *own_parameters(rehearsal.limits),
]


def experiment(**settings: Any) -> TableFit:
    """What sites fit together that have a table each.

    The settings are the flags of ``fedsgm federate fit``, with underscores, but for those about the machine that the
    command runs on.
    """
    given = _complete(settings)
    run = {name: given[name] for name in (field.name for field in dataclasses.fields(RunFlags)) if name in given}
    flags = RunFlags(**DEFAULTS | run | {"rule": _chosen(RuleName, "rule", given.get("rule", DEFAULTS["rule"]))})
    rehearsal.check_rule(flags)
    about = Question(
        given["target"],
        tuple(given["constraint"] or ()),
        tuple(given["drop"] or ()),
        given["positive"],
        given["weight"],
        given["test_fraction"],
        flags.seed,
        given["least"],
        None if given["task"] is None else _chosen(TaskName, "task", given["task"]).value,
    )
    assert flags.evaluate_every is not None, "a fit's default is a number"
    return TableFit(
        about,
        layers_of(_chosen(ModelName, "model", given["model"]), given["hidden"]),
        functools.partial(_algorithm, flags),
        _chosen(WeighName, "weigh", given["weigh"]).value,
        Written(given["separator"], given["decimal"], given["encoding"]),
        flags.rounds,
        flags.evaluate_every,
        given["min_participants"],
        given["timeout"],
    )


def _algorithm(flags: RunFlags, model: MLP, params: Any) -> Any:
    return building.algorithm(for_model(flags, model), params)


def _complete(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings and the defaults of the others, where those are not the run's."""
    known = value_types(_FLAGS).keys() - {*NOT_FEDERATED, "tables", "engine", "port"}
    for name in settings:
        if name not in known:
            raise SettingError(f"there is no setting {name!r} of a fit over sites; {nearest(name, sorted(known))}")
    defaults = {each.name: each.default for each in _FLAGS if each.name in known}
    if "target" not in settings:
        raise SettingError("say which column is the target, target='...'")
    return defaults | settings


def _chosen(kind: type[T], name: str, value: Any) -> T:
    try:
        return kind(value)
    except ValueError:
        raise SettingError(f"{name}={value!r}, but it must be one of {', '.join(kind)}") from None


def local(*, folder: str, **settings: Any) -> TableFit:  # noqa: ARG001 - the data function's
    """The experiment, in a federation on this machine."""
    return experiment(**settings)


def path(name: str, *, folder: str, **_: Any) -> str:
    """Where the table of the site of this name is, on this machine."""
    return str(json.loads((Path(folder) / f"{name}.json").read_text()))


def _fit(flags: RunFlags, tables: list[Path], engine: Engine, port: int, **own: Any) -> int:
    """Fit one model to the tables of several sites, each a process of its own: no row leaves its site.

    Only counts and sums of each table are told, and what every run sends; docs/federation.md lists it. The run folder
    is that of fedsgm fit, with model.json for fedsgm predict.
    """
    rehearsal.require(engine)
    given = config.plain(own)
    settings = given | {name: value for name, value in flags.settings().items() if name not in NOT_FEDERATED}
    stated = experiment(**settings)
    agreed = _rehearsed(stated, tables)
    stated.state(agreed).algorithm.cohort(len(tables))  # refuses what no algorithm for so many sites can be made of
    for note in agreed["notes"]:
        say(f"note: {note}", file=sys.stderr)

    def job(federation: Sites) -> Path:
        folder = federation.folder / "data"
        folder.mkdir()
        for name, table in zip(federation.names, tables, strict=True):
            (folder / f"{name}.json").write_text(json.dumps(str(table.resolve())))
        return rehearsal.writer(engine)(
            federation.folder / "job",
            run=RUN,
            clients=federation.names,
            experiment=f"{__name__}.{local.__name__}",
            data=f"{__name__}.{path.__name__}",
            settings=settings | {"folder": str(folder)},
        )

    def keep(finished: Path) -> Result:
        return copy(finished, flags.out, f"federate fit {' '.join(map(str, tables))}", settings)

    result = rehearsal.carry_out(job, len(tables), flags, keep=keep, port=port, module=__name__, engine=engine)
    say(f"{told_of_model(result)[0]}{result.verdict()}")
    picture(result, flags.out)
    say(f"Its model is in model.json. Apply it: fedsgm predict {flags.out} NEW.csv")
    short = tabular.worse_than_constant(result) or not result.feasible.all()
    return 3 if flags.require_feasible and short else 0


def _rehearsed(stated: TableFit, tables: Sequence[Path]) -> Any:
    """What the sites will agree on; what is wrong with a table is said here, before anything starts, with its name."""
    described: dict[str, Any] = {}
    for client, table in enumerate(tables):
        if str(table) in described:
            raise SettingError(f"{table} is given twice, but every site has a table of its own")
        rows = read_table(table, written=stated.written, used=lambda name: name not in stated.about.drop)
        try:
            described[str(table)] = stated.describe(Site.of(rows, stated.about), client)
        except SettingError as error:
            raise SettingError(f"{table}: {error}") from None
    return stated.agree(described)


def told_of_model(result: Result) -> tuple[str, list[str]]:
    """What a finished run's model is, with an empty line after it, and what was noticed; nothing if it has none."""
    model = tabular.told(result)
    return (f"{model}\n\n" if model else ""), result.settings["federation"].get("notes", [])


fit = command(_fit, _FLAGS, DEFAULTS | {"out": Path("runs/federated-fit")}, NOT_FEDERATED)
