"""``fedsgm run``: an experiment in one program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.progress import say
from fedsgm.cli import building, config
from fedsgm.cli.flags import OUTPUT, RunFlags, command, option, own_parameters
from fedsgm.cli.saving import save
from fedsgm.cli.setups import SETUPS

commands = typer.Typer(no_args_is_help=True, help="Run an experiment and save it in a folder.")


def _cartpole(
    render: Annotated[Path | None, option(panel=OUTPUT, help="GIF of an episode of the learnt policy.")] = None,
) -> None:
    """The flag that cartpole has here beside its settings."""


_MORE = {"cartpole": own_parameters(_cartpole)}


def _add(name: str) -> None:
    setup = SETUPS[name]

    def run(flags: RunFlags, *, render: Path | None = None, **own: Any) -> int:
        if render is not None and render.suffix != ".gif":
            raise SettingError(f"--render {render}: the name of a moving picture must end in .gif")
        problem, load = setup.make(**own)
        result = building.simulate(flags, problem, *load())
        say(result.verdict())
        save(result, flags.out, f"run {name}", config.plain(own) | flags.settings())
        if render is not None:
            _render(problem, result, render)
        return 3 if flags.require_feasible and not result.feasible.all() else 0

    run.__doc__ = setup.make.__doc__
    own = [*setup.parameters, *_MORE.get(name, [])]
    commands.command(name)(command(run, own, setup.defaults | {"out": Path("runs") / name}, setup.without))


def _render(task: Any, result: Any, path: Path) -> None:
    """An episode of the first seed's answer."""
    import jax

    from fedsgm.tasks import cmdp

    cmdp.render(task, jax.tree.map(lambda a: a[0], result.answer), path)
    say(f"Episode: {path}")


for _name in SETUPS:
    _add(_name)
