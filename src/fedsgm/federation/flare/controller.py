"""The server's part of a FLARE job: the whole run."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from fedsgm.base.errors import FedSGMError
from fedsgm.base.files import write_atomically
from fedsgm.base.lock import alone
from fedsgm.federation import job
from fedsgm.federation.experiment import find
from fedsgm.federation.flare.kits import OUTCOME, RESULT, STATUS, STOP
from fedsgm.federation.flare.site import SERVER, code_folders, identity, state_folder
from fedsgm.federation.flare.transport import FlareTransport, Stopped
from fedsgm.federation.sessions import Signed

_WHY = 30.0  # seconds that a client has to say why it could not be set up


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
        self.report = job.Report()

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
                sys.path.extend(code_folders(fl_ctx))
                stated = find(self.experiment, code_folders(fl_ctx))(**self.settings)
                signed = Signed(self.transport, identity(fl_ctx, "server"), self.run)
                if failed := self.transport.await_clients():
                    why = signed.exchange({failed[0]: b""}, _WHY)[failed[0]]
                    raise FedSGMError(f"no client could be set up; {failed[0]}: {getattr(why, 'reason', '')}")
                job.run(stated, signed, state, folder / RESULT, self.report)
        except Stopped as error:
            self.log_info(fl_ctx, f"{error} in round {self.report.done['round']}")
            return
        except Exception as error:
            self.log_exception(fl_ctx, "the run failed")
            outcome = job.outcome(error, "submit the job with another --run")
        else:
            outcome = job.outcome(None, "")
        write_atomically(folder / OUTCOME, json.dumps(outcome).encode())

    def _status(self, _topic: str, data: Any, _context: FLContext) -> dict[str, Any]:
        status = {**self.report.done, "lost": dict(self.transport.lost) if self.transport else {}}
        if isinstance(data, dict) and isinstance(seen := data.get("seen"), int):
            status["news"] = self.report.noted.since(seen)
            status["asked"] = dict(self.transport.asked) if self.transport else {}
            status["time"] = time.time()
        return status

    def _stop(self, _topic: str, _data: Any, _context: FLContext) -> dict[str, Any]:
        if self.transport:
            self.transport.stop.set()
        return {}
