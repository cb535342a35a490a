"""The experiments of ``fedsgm run`` as federations on this machine: what ``fedsgm federate local`` does."""

from __future__ import annotations

import sys
from typing import Any

from fedsgm.base.errors import CheckpointError, SettingError
from fedsgm.base.structs import check_participants
from fedsgm.cli.flags import RuleName, RunFlags, own_parameters, value_types
from fedsgm.cli.setups import SETUPS
from fedsgm.data.clients import Clients
from fedsgm.federation.experiment import Experiment

RUN = "local"
_HERE = "fedsgm.cli.rehearsal"


def experiment(*, task: str, own: dict[str, Any], flags: dict[str, Any], **limits: Any) -> Experiment:
    """A task of the command line, from its settings."""
    problem, _, params, test = _set_up(task, own)
    chosen = RunFlags(**flags | {"rule": RuleName(flags["rule"])})
    return Experiment(
        chosen.algorithm(params),
        problem,
        params,
        chosen.rounds,
        seed=chosen.seed,
        test=test,
        evaluate_every=chosen.evaluate_every,
        **limits,
    )


def data(name: str, *, task: str, own: dict[str, Any], **_: Any) -> Any:
    """One client's share of a task's data; its number is in its name, and all that a task without data needs."""
    _, clients, _, _ = _set_up(task, own)
    number = int(name.rpartition("-")[2]) - 1
    return clients[number] if isinstance(clients, Clients) else number


def run(task: str, own: dict[str, Any], flags: RunFlags, *, port: int, **limits: Any) -> Any:
    """Start a federation on this machine, run the task in it, and end it."""
    from fedsgm.federation.flare import kits

    kits.require_flare()
    from fedsgm.federation.flare.local import LocalFederation, interruptible
    from fedsgm.federation.flare.submit import Job, submit

    if flags.rule is RuleName.ipp_conex:
        raise SettingError("--rule ipp-conex: it runs on all data in one place; take another rule here")
    settings = {"task": task, "own": own, "flags": flags.settings(), **limits}
    _, clients, params, _ = _set_up(task, own)
    check_participants(flags.algorithm(params).participants, len(clients))
    state = flags.checkpoint and flags.checkpoint.resolve()
    if state and not flags.resume and list(state.glob("*/*/round-*.ckpt")):
        raise CheckpointError(f"{state} holds a checkpoint; add --resume to go on from it, or choose an empty folder")
    if flags.progress:
        print(f"Starting a server and {len(clients)} clients ...", file=sys.stderr, flush=True)
    with interruptible(), LocalFederation(len(clients), port=port, state=state) as federation:
        job = kits.write_job(
            federation.folder / "job",
            run=RUN,
            clients=federation.names,
            experiment=f"{_HERE}.experiment",
            data=f"{_HERE}.data",
            settings=settings,
        )
        return submit(
            federation.admin,
            Job.read(job),
            least=len(clients),
            show=flags.progress,
            here=federation.kits[federation.server],
            tend=federation.tend,
        )


def _set_up(task: str, own: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    setup = SETUPS[task]
    kinds = value_types(own_parameters(setup))
    return setup(**{name: kinds[name](value) if isinstance(value, str) else value for name, value in own.items()})
