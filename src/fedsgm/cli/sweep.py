"""``fedsgm sweep``: an experiment for a grid of settings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.progress import say
from fedsgm.cli import building, config
from fedsgm.cli.flags import LISTENING, RUN, RunFlags, command, option, own_parameters, relevant, value_types
from fedsgm.cli.setups import SETUPS, Setup

if TYPE_CHECKING:
    from fedsgm.results.comparison import Row

commands = typer.Typer(no_args_is_help=True, help="Run an experiment for a grid of settings.")
OF_ONE_RUN = ("checkpoint", "checkpoint_every", "resume", "debug", "require_feasible", *LISTENING)


def _own(
    vary: Annotated[
        list[str] | None,
        option(panel=RUN, help="SETTING=VALUE,VALUE,... of any flag, such as step-size=0.1,0.3; may be given again."),
    ] = None,
    resume: Annotated[bool, option("--resume", panel=RUN, help="Keep what the folder has, run the rest.")] = False,
) -> None:
    """The flags that a sweep has of its own."""


OWN = own_parameters(_own)


def _add(name: str) -> None:
    setup = SETUPS[name]

    def sweep(flags: RunFlags, vary: list[str] | None, resume: bool, **own: Any) -> int:
        return _sweep(flags, vary or [], resume, setup, own)

    sweep.__doc__ = f"Run {name} for every combination of settings; the best feasible one is named."
    defaults = setup.defaults | {"out": Path("sweeps") / name}
    own = [*OWN, *setup.parameters]
    commands.command(name)(command(sweep, own, defaults, OF_ONE_RUN + setup.without))


def _sweep(flags: RunFlags, vary: list[str], resume: bool, setup: Setup, own: dict[str, Any]) -> int:
    from fedsgm.cli import grid

    settings = grid.grid(vary, value_types(setup.parameters))
    base = {name: value for name, value in (config.plain(own) | flags.settings()).items() if name not in settings[0]}
    fixed = own | {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags)}

    @functools.cache
    def experiment(**given: Any) -> tuple[Any, Any, Any, Any]:
        problem, load = setup.make(**given)
        return problem, *load()

    def prepare(setting: dict[str, Any]) -> tuple[RunFlags, Any]:
        given = fixed | setting | {"progress": False}
        chosen = RunFlags(**{name: value for name, value in given.items() if name not in own})
        return chosen, experiment(**{name: given[name] for name in own})

    def simulate(setting: dict[str, Any]) -> Any:
        chosen, prepared = prepare(setting)
        return building.simulate(chosen, *prepared)

    each = distinct(settings, flags)
    for setting in each:  # a wrong value is found now, not when its turn comes
        chosen, (_, clients, params, _) = prepare(setting)
        building.check(chosen, len(clients), params)
    rows = grid.run(each, simulate, folder=flags.out, base=base, resume=resume, progress=flags.progress)
    tell(rows, flags.out)
    return 0


def tell(rows: Sequence[Row], out: Path, beside: str = "") -> None:
    """Print and draw what the settings came to, and what stands ``beside`` them."""
    from fedsgm.results import comparison

    say(f"{comparison.table(comparison.ranked(rows))}\n\n{comparison.best(rows)}\n{beside}{comparison.NOTE}")
    comparison.plot(rows, out / "sweep.png")
    say(f"\nSaved in {out}: sweep.parquet, sweep.png")


def distinct(settings: list[dict[str, Any]], flags: RunFlags) -> list[dict[str, Any]]:
    """The settings without what their rules do not use, each once."""
    from fedsgm.cli import grid

    reduced = [relevant(setting, setting.get("rule", flags.rule)) for setting in settings]
    for name in settings[0]:
        if not any(name in setting for setting in reduced):
            rules = ", ".join(sorted({str(setting.get("rule", flags.rule)) for setting in settings}))
            raise SettingError(f"--vary {name.replace('_', '-')}: nothing would change, {rules} does not use it")
    return list({grid.label(setting): setting for setting in reduced}.values())


for _name in SETUPS:
    _add(_name)
