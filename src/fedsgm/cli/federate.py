"""``fedsgm federate``: runs where every client is a process of its own, on this machine or on many."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.progress import say
from fedsgm.cli import config, rehearsal
from fedsgm.cli.federate_fit import fit, told_of_model
from fedsgm.cli.flags import RunFlags, command, own_parameters
from fedsgm.cli.rehearsal import NOT_FEDERATED, Engine, chosen, guarded, limits
from fedsgm.cli.saving import copy, picture
from fedsgm.cli.setups import SETUPS


class Framework(enum.StrEnum):
    """What clients compute with."""

    jax = enum.auto()
    torch = enum.auto()


commands = typer.Typer(
    no_args_is_help=True, help="Run where every client is a process of its own, over FLARE or Flower."
)
_local = typer.Typer(no_args_is_help=True, help="Run an experiment as a federation of processes on this machine.")
commands.add_typer(_local, name="local")
commands.command("fit")(fit)


def _add(name: str) -> None:
    setup = SETUPS[name]

    def local(
        flags: RunFlags, engine: Engine, port: int, timeout: float, min_participants: int, secure: bool, **own: Any
    ) -> int:
        given = config.plain({key: value.resolve() if isinstance(value, Path) else value for key, value in own.items()})
        waits = {"timeout": timeout, "min_participants": min_participants, "secure": secure}
        settings = {key: value for key, value in flags.settings().items() if key not in NOT_FEDERATED}

        def keep(finished: Path) -> Any:
            return copy(finished, flags.out, f"federate local {name}", given | waits | settings)

        result = rehearsal.run(name, given, flags, keep=keep, engine=engine, port=port, **waits)
        say(result.verdict())
        picture(result, flags.out)
        return 3 if flags.require_feasible and not result.feasible.all() else 0

    local.__doc__ = f"Run {name} with a server and every client as a process, over TLS on 127.0.0.1."
    few = [each.replace(default=5) if each.name == "clients" else each for each in setup.parameters]
    defaults = setup.defaults | {"out": Path("runs") / f"federated-{name}", "participants": 0, "seeds": 1}
    own = [*few, *own_parameters(chosen), *own_parameters(limits), *own_parameters(guarded)]
    _local.command(name)(command(local, own, defaults, NOT_FEDERATED + setup.without))


for _name in SETUPS:
    _add(_name)


@commands.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; it must not be there yet.")],
    clients: Annotated[int, typer.Option(help="Clients, n.")] = 3,
    server: Annotated[str, typer.Option(help="Host name that the clients reach the server by.")] = "localhost",
    port: Annotated[int | None, typer.Option(help="The server's port; 8002 for FLARE, 9092 for Flower.")] = None,
    engine: Annotated[Engine, typer.Option(help="What carries the messages.")] = Engine.flare,
    table: Annotated[
        bool, typer.Option("--table", help="Fit a model to tables, one a client, as fedsgm federate fit does.")
    ] = False,
    framework: Annotated[Framework, typer.Option(help="What the problem is written in.")] = Framework.jax,
) -> None:
    """Write what a federation across machines needs: the project to provision, the job, the clients' data function.

    For Flower that is an app. Its README.md has the commands for each machine.
    """
    if engine is Engine.flower:
        from fedsgm.federation.flower.deploy import init as write
    else:
        from fedsgm.federation.flare.deploy import init as write

    if table and framework is not Framework.jax:
        raise SettingError(f"--framework {framework}: fedsgm's own models of tables are in JAX, so leave --table out")
    kind = "table" if table else framework.value
    usual = 9092 if engine is Engine.flower else 8002
    for path in write(folder, clients=clients, server=server, port=usual if port is None else port, kind=kind):
        say(str(path))


@commands.command()
def submit(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job's folder, as init wrote it.")],
    kit: Annotated[Path, typer.Option(help="Start-up kit of the admin.")],
    run: Annotated[
        str | None,
        typer.Option(
            help="Names the run, as the job does unless told; a name used before goes on from its checkpoint."
        ),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds that the server has to answer, and the clients to join.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Folder for the run; a run that is there is replaced.")] = Path("runs/job"),
    progress: Annotated[bool, typer.Option(help="Show progress on standard error.")] = True,
) -> None:
    """Run a job in a federation that has been started, and save its result.

    A job that is lost is sent again and goes on from its checkpoint. Ctrl-C stops the run.
    """
    from fedsgm.federation.flare import kits

    kits.require_flare()
    from tempfile import TemporaryDirectory

    from fedsgm.federation.flare import submit as jobs
    from fedsgm.federation.sites import interruptible

    with interruptible(), TemporaryDirectory(prefix="fedsgm-") as folder:
        stated = jobs.Job.read(job)
        named = stated.named(run or stated.run, Path(folder) / "job")
        finished = jobs.submit(kit.resolve(), named, join=wait, show=progress)
    result = copy(finished, out)
    model, notes = told_of_model(result)
    for note in notes:
        say(f"note: {note}", file=sys.stderr)
    say(f"{model}{result.verdict()}")
    picture(result, out, but=(config.NAME,))
    if model:
        say(f"Its model is in model.json. Apply it: fedsgm predict {out} NEW.csv")
