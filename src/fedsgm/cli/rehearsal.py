"""The experiments of ``fedsgm run`` as federations on this machine: what ``fedsgm federate local`` does.

The data is loaded once, where the command runs; every site is handed its part as files, in the federation's own folder.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedsgm.base import trees
from fedsgm.base.errors import CheckpointError, SettingError
from fedsgm.base.layout import start_of
from fedsgm.base.progress import say
from fedsgm.cli import building
from fedsgm.cli.flags import OWN, RuleName, RunFlags, option, value_types
from fedsgm.cli.flags import RUN as RUN_PANEL
from fedsgm.cli.listening import listening, nobody
from fedsgm.cli.setups import SETUPS, Load
from fedsgm.data.clients import Clients
from fedsgm.federation.experiment import Experiment
from fedsgm.federation.flare import kits
from fedsgm.federation.flower import apps
from fedsgm.federation.news import Relayed

if TYPE_CHECKING:
    from fedsgm.federation.sites import Sites

RUN = "local"


class Engine(enum.StrEnum):
    """What carries the messages of a federation."""

    flare = enum.auto()
    flower = enum.auto()


NOT_FEDERATED = ("seeds", "debug", "checkpoint_every", "centralized", *OWN[RuleName.ipp_conex])
"""The flags of a run that no federation has."""


def limits(
    port: Annotated[int, option(panel=RUN_PANEL, help="The server's port; 0 is a free one.")] = 0,
    timeout: Annotated[float, option(panel=RUN_PANEL, help="Seconds that a client has for an answer.")] = 60.0,
    min_participants: Annotated[int, option(panel=RUN_PANEL, help="A round that fewer answer is repeated.")] = 1,
) -> None:
    """The flags that a federation has of its own."""


def chosen(
    engine: Annotated[
        Engine, option(panel=RUN_PANEL, help="What carries the messages: NVIDIA FLARE or Flower.")
    ] = Engine.flare,
) -> None:
    """The flag of commands that run over either engine."""


def guarded(
    secure: Annotated[
        bool,
        option("--secure", panel=RUN_PANEL, help="The server sees sums alone; the uplink is sharedk:..., over FLARE."),
    ] = False,
) -> None:
    """The flag of commands that send nothing but statistics and updates."""


def experiment(*, task: str, own: dict[str, Any], flags: dict[str, Any], folder: str, **limits: Any) -> Experiment:
    """A task of the command line, from its settings; the server alone reads the test data."""
    problem, _ = _set_up(task, own)
    params = trees.read(_file(folder, "params"))
    chosen = RunFlags(**flags | {"rule": RuleName(flags["rule"])})
    return Experiment(
        building.algorithm(chosen, params),
        problem,
        params,
        chosen.rounds,
        seed=chosen.seed,
        test=functools.partial(trees.read, _file(folder, "test")),
        evaluate_every=1 if chosen.evaluate_every is None else chosen.evaluate_every,
        **limits,
    )


def data(name: str, *, folder: str, **_: Any) -> Any:
    """One client's share of a task's data; its number, which is in its name, is all that a task without data needs."""
    share = trees.read(_file(folder, name))
    return int(name.rpartition("-")[2]) - 1 if share is None else share


def hand_out(folder: Path, names: Sequence[str], clients: Any, params: Any, test: Any) -> None:
    """Write what the sites read: a client its share and the first parameters, the server these and the test data."""
    for number, name in enumerate(names):
        trees.write(_file(folder, name), clients[number] if isinstance(clients, Clients) else None)
    trees.write(_file(folder, "params"), params)
    trees.write(_file(folder, "test"), test)


def require(engine: Engine) -> None:
    """Say what to install, if the engine is not there."""
    if engine is Engine.flower:
        apps.require_flower()
    else:
        kits.require_flare()


def writer(engine: Engine) -> Callable[..., Path]:
    """What writes a job for the engine."""
    return apps.write_app if engine is Engine.flower else kits.write_job


def run(
    task: str,
    own: dict[str, Any],
    flags: RunFlags,
    *,
    keep: Callable[[Path], Any],
    engine: Engine,
    port: int,
    **limits: Any,
) -> Any:
    """Run the task in a federation on this machine; what ``keep`` makes of the run's folder."""
    require(engine)
    check_rule(flags)
    problem, load = _set_up(task, own)
    clients, params, test = load()
    building.check(flags, len(clients), params)
    if limits["secure"]:
        _check_secure(engine, flags, problem, len(clients), params)

    def job(federation: Sites) -> Path:
        folder = federation.folder / "data"
        hand_out(folder, federation.names, clients, start_of(params, flags.seed), test)
        return writer(engine)(
            federation.folder / "job",
            run=RUN,
            clients=federation.names,
            experiment=f"{__name__}.{experiment.__name__}",
            data=f"{__name__}.{data.__name__}",
            settings={"task": task, "own": own, "flags": flags.settings(), "folder": str(folder), **limits},
        )

    return carry_out(job, len(clients), flags, keep=keep, port=port, module=__name__, engine=engine)


def _check_secure(engine: Engine, flags: RunFlags, problem: Any, clients: int, params: Any) -> None:
    from fedsgm.federation import secure

    if engine is Engine.flower:
        raise SettingError("--secure: the clients' keys are signed by the certificates of FLARE; take --engine flare")
    secure.check(building.algorithm(flags, params), problem, clients)


def check_rule(flags: RunFlags) -> None:
    """Refuse what no federation runs."""
    if flags.rule is RuleName.ipp_conex:
        raise SettingError("--rule ipp-conex: it runs on all data in one place; take another rule here")


def carry_out(
    job: Callable[[Sites], Path],
    clients: int,
    flags: RunFlags,
    *,
    keep: Callable[[Path], Any],
    port: int,
    module: str,
    engine: Engine,
) -> Any:
    """Start a federation on this machine, run the ``job`` that is written for it, and end it.

    Jobs may name functions of ``module``. What ``keep`` makes of the run's folder is returned.
    """
    from fedsgm.federation.sites import interruptible

    state = flags.checkpoint and flags.checkpoint.resolve()
    if state and not flags.resume and list(state.glob("*/*/round-*.ckpt")):
        raise CheckpointError(f"{state} holds a checkpoint; add --resume to go on from it, or choose an empty folder")
    if engine is Engine.flower and (flags.watch or flags.log or flags.track):
        raise SettingError("--watch, --log and --track: rounds are told over FLARE; take --engine flare for them")
    if flags.progress:
        say(f"Starting a server and {clients} clients ...", file=sys.stderr)
    more: dict[str, Any] = {"port": port, "state": state, "modules": [module]}
    if engine is Engine.flower:
        with interruptible():
            return _over_flower(job, clients, flags, keep, **more)
    with interruptible(), listening(flags) as heard:
        relayed = Relayed(heard("")) if heard is not nobody else None
        result = _over_flare(job, clients, flags, keep, relayed, **more)
        if relayed is not None:
            relayed.finish(result)
        return result


def _over_flare(
    job: Callable[[Sites], Path],
    clients: int,
    flags: RunFlags,
    keep: Callable[[Path], Any],
    relayed: Relayed | None,
    **more: Any,
) -> Any:
    from fedsgm.federation.flare.local import LocalFederation
    from fedsgm.federation.flare.submit import Job, submit

    with LocalFederation(clients, **more) as federation:
        finished = submit(
            federation.admin,
            Job.read(job(federation)),
            least=clients,
            show=flags.progress,
            here=federation.kits[federation.server],
            tend=federation.tend,
            relayed=relayed,
        )
        return keep(finished)


def _over_flower(
    job: Callable[[Sites], Path], clients: int, flags: RunFlags, keep: Callable[[Path], Any], **more: Any
) -> Any:
    from fedsgm.federation.flower.local import FlowerFederation

    with FlowerFederation(clients, **more) as federation:
        return keep(federation.run(job(federation), RUN, show=flags.progress))


def _file(folder: str | Path, name: str) -> Path:
    return Path(folder) / f"{name}.safetensors"


def _set_up(task: str, own: dict[str, Any]) -> tuple[Any, Load]:
    setup = SETUPS[task]
    kinds = value_types(setup.parameters)
    return setup.make(**{name: kinds[name](value) if isinstance(value, str) else value for name, value in own.items()})
