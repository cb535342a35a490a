"""``fedsgm sweep fit``: a fit of one's own table for a grid of settings."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsgm.base.progress import say
from fedsgm.cli import building, config
from fedsgm.cli.fit import DEFAULTS, PARAMETERS
from fedsgm.cli.fitting import Fitting, Given, ModelName, layers_of
from fedsgm.cli.flags import RunFlags, command, value_types
from fedsgm.cli.sweep import OF_ONE_RUN, OWN, distinct, tell

if TYPE_CHECKING:
    from fedsgm.results.comparison import Row
    from fedsgm.results.result import Result
    from fedsgm.tables.dealing import Prepared

_OF_ONE_FIT = ("confidence", "bounds", "seeds")
_FLAGS = [each for each in PARAMETERS if each.name not in _OF_ONE_FIT]
_THE_SAME = (  # for every setting: answers to different questions, or for other rows, are not ranked
    *("table", "target", "constraint", "drop", "task", "positive", "weight", "test_fraction"),
    *("separator", "decimal", "encoding", "seeds"),
)


def _sweep(flags: RunFlags, table: Path, vary: list[str] | None, resume: bool, **own: Any) -> int:
    """Fit a table for every combination of settings; the best feasible one is named, beside the best constant answer.

    No model is kept: fit again with the settings that are worth it. For a row of bounds there is fedsgm fit --bounds.
    """
    from fedsgm.cli import grid

    types = {name: kind for name, kind in value_types(_FLAGS).items() if name not in _THE_SAME}
    settings = grid.grid(vary or [], types)
    given = Given.read(table, own)

    @functools.cache
    def prepared(seed: int, **dealt: Any) -> Prepared:
        return given.prepared(seed, own | dealt)

    def made(setting: dict[str, Any]) -> Fitting:
        chosen = own | setting
        if "model" in setting and chosen["model"] is ModelName.logistic:
            chosen["hidden"] = None  # said for the networks of the grid
        run = dataclasses.replace(
            flags, progress=False, **{name: value for name, value in setting.items() if name not in own}
        )
        dealt = prepared(run.seed, **{name: chosen[name] for name in ("client_by", "clients")})
        return Fitting.of(run, dealt, layers_of(chosen["model"], chosen["hidden"]), chosen["weigh"].value)

    each = distinct(_reduced(settings), flags)
    fits = {grid.label(setting): made(setting) for setting in each}
    for fit in fits.values():  # a wrong value is found now, not when its turn comes
        building.check(fit.flags, len(fit.prepared.clients), fit.params)
    for note in dict.fromkeys(note for fit in fits.values() for note in fit.notes(given.wanted)):
        say(f"note: {note}", file=sys.stderr)
    base = {"table": str(table)} | config.plain(own) | flags.settings()
    rows = grid.run(
        each,
        lambda setting: _result(fits[grid.label(setting)], given, by_rows="weigh" in setting),
        folder=flags.out,
        base={name: value for name, value in base.items() if name not in settings[0]},
        resume=resume,
        progress=flags.progress,
    )
    tell(rows, flags.out, _constant(rows, next(iter(fits.values())), given))
    return 0


def _reduced(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without hidden layers where the model, one of several, has none."""
    models = {setting.get("model") for setting in settings}
    return [
        {name: value for name, value in setting.items() if name != "hidden" or setting.get("model") == "mlp"}
        if ModelName.mlp in models
        else setting
        for setting in settings
    ]


def _result(fit: Fitting, given: Given, by_rows: bool) -> Result:
    """The run, with how good its model is; ``by_rows`` its objective is that of all rows, whatever it has weighed."""
    from fedsgm.base.structs import replaced
    from fedsgm.engines import recording
    from fedsgm.results.result import KINDS

    problem = fit.problem(given.wanted)
    result = fit.run(problem)
    compared = fit.compared(problem, result, None)
    if by_rows:
        of_rows = replaced(problem, weigh="rows")
        (found,) = recording.values_of(of_rows, fit.prepared.clients, [result.answer])
        result.values["train"]["objective"][KINDS.index("answer")] = found["objective"]
    return dataclasses.replace(result, settings=result.settings | {"model": {"compared": compared.to_json()}})


def _constant(rows: Sequence[Row], fit: Fitting, given: Given) -> str:
    """The best constant answer, and first, in capitals, if no setting is worth more."""
    from fedsgm.results.comparison import ranked
    from fedsgm.tables import sanity

    first = ranked(rows)[0]
    constants = sanity.constants(fit.net, fit.params, fit.problem(given.wanted), fit.prepared)
    good = {"train": next(iter(first.good.values()))[0]}
    values = {name: of_seed for name, (of_seed,) in first.constraints.items()}
    best = sanity.Answer(first.label, good, values, first.feasible)
    *warning, _, constant = sanity.Comparison(best, None, constants, sanity.measure(fit.prepared.target)).lines()
    return "".join(f"{line}\n" for line in (*warning, f"Best constant answer: {constant.strip()}."))


fit = command(_sweep, [*_FLAGS, *OWN], DEFAULTS | {"out": Path("sweeps/fit")}, (*OF_ONE_RUN, "seeds"))
