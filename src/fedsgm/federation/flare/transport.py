"""NVIDIA FLARE underneath: requests are pushed to the job's clients, and their answers come back.

Messages are bytes on a channel of their own, pushed from cell to cell in one frame: FLARE decodes nothing of them, and
keeps no thread of them, as it does for 60 seconds of every message that it streams (its auxiliary messages are). The
members of a job are fixed when it starts and a job is not resumed by FLARE: the controller keeps a checkpoint, and
``submit.py`` sends the job again when it was lost or a lost client has come back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from fedsgm.base.errors import FedSGMError
from fedsgm.federation.protocol import Failure

CHANNEL, ASK, LOOK = "fedsgm", "ask", "look"  # between server and clients
_GONE = (ReturnCode.COMM_ERROR, ReturnCode.TARGET_UNREACHABLE)
_AT_ONCE = 2  # requests on their way to one client: it was lost over one, and is there again
_THREADS = _AT_ONCE + 2  # for each client, with a look at it and a probe: none takes another's
_LOOK_EVERY = 3.0  # seconds between looks at clients that have not answered yet
_JOIN = 60.0  # seconds that a client's part of the job has to start
_LOAD = 600.0  # seconds that the clients have to load their data


class Stopped(FedSGMError):
    """The engine ends this job before its time; the checkpoint is there to go on from."""


class FlareTransport:
    """Carries requests to the job's clients; what a client does not answer becomes a failure, never an exception.

    ``lost`` has the clients that are not in the job or do not answer, and since when. Nobody waits for them. ``asked``
    has those whose answer is waited for, and since when.
    """

    def __init__(self, names: Sequence[str], context: FLContext, abort: Signal) -> None:
        self._names = list(names)
        self._context = context
        self._engine = context.get_engine()
        self._abort = abort
        self._parent = os.getppid()
        self._pool = ThreadPoolExecutor(_THREADS * len(names), "fedsgm")
        self._asks: dict[str, list[Future[bytes | Failure]]] = {}
        self._probes: dict[str, Future[str]] = {}
        self.asked: dict[str, float] = {}
        self.stop = threading.Event()
        job = context.get_job_id()
        cells = {client.name: client.get_fqcn() for client in self._engine.get_clients()}
        self._cells = {name: FQCN.join([cells[name], job]) for name in names if name in cells}
        self.lost = {name: time.time() for name in names if name not in cells}

    def clients(self) -> Sequence[str]:
        return self._names

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure]:
        """Ask them all at once. One that is gone is found by looking, so nobody waits for its deadline."""
        self._check()
        self._probe()
        replies: dict[str, bytes | Failure] = {}
        waiting: dict[str, Future[bytes | Failure]] = {}
        for name, request in requests.items():
            asks = self._asks[name] = [ask for ask in self._asks.get(name, ()) if not ask.done()]
            if name in self.lost:
                replies[name] = Failure("it left the job")
            elif len(asks) == _AT_ONCE:
                replies[name] = Failure("earlier requests are on their way to it still")
            else:
                self.asked[name] = time.time()
                waiting[name] = self._pool.submit(self._ask, name, request, seconds)
                asks.append(waiting[name])
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

    def await_clients(self) -> list[str]:
        """Wait until every client has loaded its data, cannot, or is gone; those that cannot, if nobody can."""
        began = time.monotonic()
        heard = {name: began for name in self._names if name not in self.lost}
        failed: list[str] = []
        while heard:
            self._check()
            for name, status in self._look(heard).items():
                now = time.monotonic()
                if status:
                    heard[name] = now
                if now - heard[name] > _JOIN or now - began > _LOAD:
                    self._lose(name)
                elif status == "failed":
                    failed.append(name)
                if status == "ready" or name in self.lost or name in failed:
                    del heard[name]
            time.sleep(0.1)
        return [] if set(self._names) - set(self.lost) - set(failed) else sorted(failed)

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
        self.asked.pop(name, None)
        self._probes.pop(name, None)
        return Failure("it was lost")

    def _status(self, name: str) -> str:
        """Whether it is there: ready, starting or failed; nothing else that it may say is heard."""
        reply = self._send(name, LOOK, b"", _LOOK_EVERY)
        words = {b"ready": "ready", b"starting": "starting", b"failed": "failed"}
        return words.get(reply, "") if isinstance(reply, bytes) else ""

    def _ask(self, name: str, request: bytes, seconds: float) -> bytes | Failure:
        reply = self._send(name, ASK, request, seconds)
        self.asked.pop(name, None)
        if isinstance(reply, bytes):
            return reply
        if reply in _GONE:
            return self._lose(name)
        if reply == ReturnCode.TIMEOUT:
            return Failure(f"no answer in {seconds:g} s")
        return Failure("its part of the job failed; its log says more")

    def _send(self, name: str, topic: str, data: bytes, seconds: float) -> bytes | str:
        """The answer's bytes, or what the engine says of it."""
        if name not in self._cells:
            return ReturnCode.COMM_ERROR
        cell = self._engine.get_cell().core_cell
        message, to = Message(payload=data), self._cells[name]
        reply = cell.send_request(
            channel=CHANNEL, target=to, topic=topic, request=message, timeout=seconds, optional=True
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
        if code != ReturnCode.OK:
            return str(code)
        answer = reply.payload
        return bytes(answer) if isinstance(answer, bytes | bytearray | memoryview) else ReturnCode.PROCESS_EXCEPTION

    def _check(self) -> None:
        """Stop when FLARE wants it, when the submitter does, and when the process that started this one is gone."""
        if self._abort.triggered or self.stop.is_set() or os.getppid() != self._parent:
            raise Stopped("the job was stopped")
