"""``fedsgm run``: an experiment in one program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.files import check_writable
from fedsgm.base.progress import say
from fedsgm.cli import building, config
from fedsgm.cli.flags import OUTPUT, RUN, RunFlags, command, option, own_parameters
from fedsgm.cli.listening import listening
from fedsgm.cli.saving import save
from fedsgm.cli.setups import SETUPS

commands = typer.Typer(no_args_is_help=True, help="Run an experiment and save it in a folder.")


def _cartpole(
    render: Annotated[Path | None, option(panel=OUTPUT, help="GIF of an episode of the learnt policy.")] = None,
) -> None:
    """The flag that cartpole has here beside its settings."""


_MORE = {"cartpole": own_parameters(_cartpole)}


def _hosts(
    coordinator: Annotated[
        str | None,
        option(
            panel=RUN,
            metavar="HOST:PORT",
            help="Run on several processes together: where the first one listens; auto under SLURM or Kubernetes.",
        ),
    ] = None,
    processes: Annotated[int | None, option(panel=RUN, help="How many processes there are.")] = None,
    process: Annotated[int | None, option(panel=RUN, help="Which of them this is, from 0.")] = None,
) -> None:
    """The flags of a run on several machines."""


def _add(name: str) -> None:
    setup = SETUPS[name]

    def run(
        flags: RunFlags,
        *,
        render: Path | None = None,
        coordinator: str | None = None,
        processes: int | None = None,
        process: int | None = None,
        **own: Any,
    ) -> int:
        if render is not None and render.suffix != ".gif":
            raise SettingError(f"--render {render}: the name of a moving picture must end in .gif")
        if render is not None:
            check_writable("--render", render.parent)
        first = _joined(coordinator, processes, process)
        problem, load = setup.make(**own)
        if not first:
            flags = dataclasses.replace(flags, progress=False, watch=False, log=None, track=None)
        with listening(flags) as heard:
            result = building.simulate(flags, problem, *load(), callbacks=heard(""))
        exit_code = 3 if flags.require_feasible and not result.feasible.all() else 0
        if not first:
            return exit_code
        say(result.verdict())
        save(result, flags.out, f"run {name}", config.plain(own) | flags.settings())
        if render is not None:
            _render(problem, result, render)
        return exit_code

    run.__doc__ = setup.make.__doc__
    own = [*setup.parameters, *_MORE.get(name, []), *own_parameters(_hosts)]
    commands.command(name)(command(run, own, setup.defaults | {"out": Path("runs") / name}, setup.without))


def _joined(coordinator: str | None, processes: int | None, process: int | None) -> bool:
    """Whether this is the first process of those that run together, or the only one."""
    if coordinator is None:
        if processes is not None or process is not None:
            raise SettingError("--processes and --process need --coordinator HOST:PORT, where the first one listens")
        return True
    import jax

    from fedsgm.engines import hosts

    hosts.join(coordinator, processes, process)
    return jax.process_index() == 0


def _render(task: Any, result: Any, path: Path) -> None:
    """An episode of the first seed's answer."""
    import jax

    from fedsgm.tasks import cmdp

    cmdp.render(task, jax.tree.map(lambda a: a[0], result.answer), path)
    say(f"Episode: {path}")


for _name in SETUPS:
    _add(_name)
