"""The server's part of a FLARE job: the whole run."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from fedsgm.base.errors import CheckpointError, FedSGMError
from fedsgm.base.files import write_atomically
from fedsgm.base.lock import alone
from fedsgm.base.progress import Progress
from fedsgm.engines.checkpoint import Checkpoint
from fedsgm.federation.agreement import carry_out
from fedsgm.federation.experiment import Experiment, find
from fedsgm.federation.flare.kits import OUTCOME, RESULT, STATUS, STOP
from fedsgm.federation.flare.site import SERVER, code_folders, state_folder
from fedsgm.federation.flare.transport import FlareTransport, Stopped
from fedsgm.federation.preparation import Preparation
from fedsgm.federation.protocol import Transport


class FedSGMController(Controller):
    """The server's part of a job: the whole run.

    Args:
        run: names the run's checkpoint on the server and its memory on the clients; a job with the same name goes on.
        clients: all clients of the run, there or not; their order is by name.
        experiment: dotted name of a function that gives the :class:`Experiment`, or its :class:`Preparation`.
        settings: keyword arguments for it.
    """

    def __init__(self, run: str, clients: list[str], experiment: str, settings: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.run, self.clients, self.experiment, self.settings = run, sorted(clients), experiment, settings or {}
        self.transport: FlareTransport | None = None
        self.done: dict[str, Any] = {"round": 0, "rounds": 0, "values": {}}

    def start_controller(self, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        engine.register_app_command(STATUS, self._status)
        engine.register_app_command(STOP, self._stop)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def process_result_of_unknown_task(self, *_: Any) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        self.transport = FlareTransport(self.clients, fl_ctx, abort_signal)
        state = state_folder(fl_ctx, SERVER, self.run)
        try:
            with contextlib.closing(self.transport), alone(state):
                stated = find(self.experiment, code_folders(fl_ctx))(**self.settings)
                self.transport.await_clients()
                self._carry_out(stated, self.transport, state, folder / RESULT)
        except Stopped as error:
            self.log_info(fl_ctx, f"{error} in round {self.done['round']}")
            return
        except Exception as error:
            self.log_exception(fl_ctx, "the run failed")
            what = (
                str(error)
                if isinstance(error, FedSGMError)
                else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            )
            if isinstance(error, CheckpointError):
                what += " (that is, submit the job with another --run)"
            outcome: dict[str, Any] = {"error": what, "kind": type(error).__name__}
        else:
            outcome = {"error": None}
        write_atomically(folder / OUTCOME, json.dumps(outcome).encode())

    def _carry_out(self, stated: Experiment | Preparation, transport: FlareTransport, state: Path, out: Path) -> None:
        """Run it and save its result."""
        run = functools.partial(self._federate, state)
        if isinstance(stated, Preparation):
            result, agreed = carry_out(stated, transport, run, state)
            result.save(out)
            stated.keep(agreed, result, out)
        else:
            run(stated, transport).save(out)

    def _federate(self, state: Path, experiment: Experiment, transport: Transport) -> Any:
        from fedsgm.federation.server import federate

        self.done["rounds"] = experiment.rounds
        return federate(
            experiment.algorithm,
            experiment.problem,
            transport,
            experiment.params,
            rounds=experiment.rounds,
            seed=experiment.seed,
            test=experiment.test() if callable(experiment.test) else experiment.test,
            evaluate_every=experiment.evaluate_every,
            min_participants=experiment.min_participants,
            timeout=experiment.timeout,
            beside=experiment.beside,
            checkpoint=Checkpoint(state, every=1, resume=True),
            progress=_Report(self.done),
        )

    def _status(self, _topic: str, _data: Any, _context: FLContext) -> dict[str, Any]:
        return {**self.done, "lost": dict(self.transport.lost) if self.transport else {}}

    def _stop(self, _topic: str, _data: Any, _context: FLContext) -> dict[str, Any]:
        if self.transport:
            self.transport.stop.set()
        return {}


class _Report(Progress):
    """Progress for somebody on another machine to ask for."""

    def __init__(self, done: dict[str, Any]) -> None:
        super().__init__("", 0, show=False)
        self._done = done

    def update(self, done: int, **values: float) -> None:
        self._done.update(round=done, values={name: float(value) for name, value in values.items()})
