"""NVIDIA FLARE underneath: a controller on the server and an executor on each client carry the requests.

Messages are pushed with ``send_aux_request``, one call a client, which costs a fiftieth of FLARE's polled tasks. The
members of a job are fixed when it starts and a job is not resumed by FLARE: the controller keeps a checkpoint, and
``fedsgm.federation.submit`` sends the job again when it was lost or a lost client has come back.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from fedsgm.checkpoint import Checkpoint
from fedsgm.errors import CheckpointError, ClientError, FedSGMError
from fedsgm.federation.experiment import Experiment, find
from fedsgm.federation.kits import OUTCOME, RESULT, STATUS, STOP, check_run
from fedsgm.federation.lock import alone
from fedsgm.federation.protocol import Failure, one_line
from fedsgm.federation.resident import Resident, Setup
from fedsgm.files import write_atomically
from fedsgm.progress import Progress

SERVER = "server"  # its name among the sites' states
ASK, LOOK = "fedsgm.ask", "fedsgm.look"  # topics between server and clients
_LOOK_EVERY = 3.0  # seconds between looks at clients that have not answered yet
_JOIN = 60.0  # seconds that a client's part of the job has to start
_LOAD = 600.0  # seconds that the clients have to load their data


class Stopped(FedSGMError):
    """The engine ends this job before its time; the checkpoint is there to go on from."""


def state_folder(context: FLContext, site: str, run: str) -> Path:
    """Where this site keeps what must outlive the job: in its kit's folder, or where FEDSGM_STATE says."""
    check_run(run)
    workspace: Workspace = context.get_prop(FLContextKey.WORKSPACE_OBJECT)
    root = os.environ.get("FEDSGM_STATE")
    return (Path(root) / site if root else Path(workspace.get_root_dir()) / "fedsgm") / run


def code_folders(context: FLContext) -> list[str]:
    """The code that the engine has let in with the job, and the site's own."""
    workspace: Workspace = context.get_prop(FLContextKey.WORKSPACE_OBJECT)
    return [workspace.get_app_custom_dir(context.get_job_id()), workspace.get_site_custom_dir()]


class FlareTransport:
    """Carries requests to the job's clients; what a client does not answer becomes a failure, never an exception.

    ``lost`` has the clients that are not in the job or do not answer, and since when. Nobody waits for them.
    """

    def __init__(self, names: Sequence[str], context: FLContext, abort: Signal) -> None:
        self._names = list(names)
        self._context = context
        self._engine = context.get_engine()
        self._abort = abort
        self._parent = os.getppid()
        self._pool = ThreadPoolExecutor(4 * len(names), "fedsgm")
        self._probes: dict[str, Future[str]] = {}
        self.stop = threading.Event()
        here = {client.name for client in self._engine.get_clients()}
        self.lost = {name: time.time() for name in names if name not in here}

    def clients(self) -> Sequence[str]:
        return self._names

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure]:
        """Ask them all at once. One that is gone is found by looking, so nobody waits for its deadline."""
        self._check()
        self._probe()
        replies: dict[str, bytes | Failure] = {}
        waiting: dict[str, Future[bytes | Failure]] = {}
        for name, request in requests.items():
            if name in self.lost:
                replies[name] = Failure("it left the job")
            else:
                waiting[name] = self._pool.submit(self._ask, name, request, seconds)
        missed = dict.fromkeys(waiting, 0)
        while waiting:
            wait(waiting.values(), _LOOK_EVERY)
            self._check()
            for name in [name for name, reply in waiting.items() if reply.done()]:
                replies[name] = waiting.pop(name).result()
            for name, there in self._look(waiting).items():
                missed[name] = 0 if there else missed[name] + 1
                if missed[name] == 2 and not waiting[name].done():
                    replies[name] = self._lose(name)
                    del waiting[name]
        return replies

    def await_clients(self) -> None:
        """Wait until every client has loaded its data, cannot, or is gone."""
        began = time.monotonic()
        heard = {name: began for name in self._names if name not in self.lost}
        failed: dict[str, str] = {}
        while heard:
            self._check()
            for name, status in self._look(heard).items():
                now = time.monotonic()
                if status:
                    heard[name] = now
                if now - heard[name] > _JOIN or now - began > _LOAD:
                    self._lose(name)
                elif status not in ("", "starting", "ready"):
                    failed[name] = status
                if status == "ready" or name in self.lost or name in failed:
                    del heard[name]
            time.sleep(0.1)
        if failed and not set(self._names) - set(self.lost) - set(failed):
            name = min(failed)
            raise FedSGMError(f"no client could be set up; {name}: {failed[name]}")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _look(self, names: Iterable[str]) -> dict[str, str]:
        """What each of them says of itself; nothing if it does not answer at once."""
        looks = {name: self._pool.submit(self._status, name) for name in names}
        return {name: look.result() for name, look in looks.items()}

    def _probe(self) -> None:
        """Find lost clients that answer again: a connection may break and come back while the job runs on."""
        for name in list(self.lost):
            probe = self._probes.get(name)
            if probe is None or probe.done():
                if probe is not None and probe.result():
                    del self.lost[name]
                self._probes[name] = self._pool.submit(self._status, name)

    def _lose(self, name: str) -> Failure:
        self.lost[name] = time.time()
        self._probes.pop(name, None)
        return Failure("it was lost")

    def _status(self, name: str) -> str:
        return one_line(str(self._send(name, LOOK, b"", _LOOK_EVERY).get("status", "")))

    def _ask(self, name: str, request: bytes, seconds: float) -> bytes | Failure:
        reply = self._send(name, ASK, request, seconds)
        code = reply.get_return_code()
        answer = reply.get("bytes")
        if code == ReturnCode.OK and isinstance(answer, bytes):
            return answer
        if code == ReturnCode.COMMUNICATION_ERROR:
            return self._lose(name)
        if code == ReturnCode.TIMEOUT:
            return Failure(f"no answer in {seconds:g} s")
        return Failure(one_line(str(reply.get("reason") or f"its part of the job failed ({code})")))

    def _send(self, name: str, topic: str, data: bytes, seconds: float) -> Shareable:
        message = Shareable({"bytes": data, "seconds": seconds})
        replies = self._engine.send_aux_request([name], topic, message, seconds, self._context, optional=True)
        return (replies or {}).get(name) or make_reply(ReturnCode.COMMUNICATION_ERROR)

    def _check(self) -> None:
        """Stop when FLARE wants it, when the submitter does, and when the process that started this one is gone."""
        if self._abort.triggered or self.stop.is_set() or os.getppid() != self._parent:
            raise Stopped("the job was stopped")


class FedSGMController(Controller):
    """The server's part of a job: the whole run.

    Args:
        run: names the run's checkpoint on the server and its memory on the clients; a job with the same name goes on.
        clients: all clients of the run, there or not; their order is by name.
        experiment: dotted name of a function that gives the :class:`Experiment`.
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
                make = find(self.experiment, code_folders(fl_ctx))
                result = self._federate(make(**self.settings), self.transport, state)
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
            result.save(folder / RESULT)
            outcome = {"error": None}
        write_atomically(folder / OUTCOME, json.dumps(outcome).encode())

    def _federate(self, experiment: Experiment, transport: FlareTransport, state: Path) -> Any:
        from fedsgm.federation.server import federate

        self.done["rounds"] = experiment.rounds
        transport.await_clients()
        return federate(
            experiment.algorithm,
            experiment.problem,
            transport,
            experiment.params,
            rounds=experiment.rounds,
            seed=experiment.seed,
            test=experiment.test,
            evaluate_every=experiment.evaluate_every,
            min_participants=experiment.min_participants,
            timeout=experiment.timeout,
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


class FedSGMExecutor(Executor):
    """A client's part of a job: hands requests to the client's code in its own process, and its answers back.

    Args:
        run, experiment, settings: as for the server.
        data: dotted name of a function on this client's machine: its examples for the client's name (and settings).
    """

    def __init__(self, run: str, experiment: str, data: str, settings: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.run, self.experiment, self.data, self.settings = run, experiment, data, settings or {}
        self.resident: Resident | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            name = fl_ctx.get_identity_name()
            setup = Setup(
                experiment=self.experiment,
                data=self.data,
                settings=self.settings,
                name=name,
                state_dir=str(state_folder(fl_ctx, name, self.run)),
                path=code_folders(fl_ctx),
            )
            self.resident = Resident(setup)
            engine = fl_ctx.get_engine()
            engine.register_aux_message_handler(ASK, self._answer)
            engine.register_aux_message_handler(LOOK, self._look)
        elif event_type == EventType.END_RUN and self.resident:
            self.resident.close()

    def execute(self, *_: Any) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def _look(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        reply = make_reply(ReturnCode.OK)
        reply["status"] = self.resident.status() if self.resident else "starting"
        return reply

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        assert self.resident is not None
        try:
            answer = self.resident.ask(request["bytes"], request["seconds"])
        except ClientError as error:
            self.log_warning(fl_ctx, str(error))
            reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
            reply["reason"] = str(error)
            return reply
        reply = make_reply(ReturnCode.OK)
        reply["bytes"] = answer
        return reply
