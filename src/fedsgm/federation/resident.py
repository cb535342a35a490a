"""User code in a child process that stays: when it dies it is started again, and the job around it goes on.

The child is ``python -m fedsgm.federation.resident``. It answers requests over a pipe, one at a time, and ends when
the pipe is closed or its parent is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from fedsgm.base.errors import ClientError
from fedsgm.base.lock import alone
from fedsgm.federation.protocol import told

_RETRY = 5.0  # seconds before a set-up that failed is tried again
_LOOK = 0.2  # seconds between two looks at whether the child lives
_HANGS = 10  # times as long as the server waits: who works longer will not end
_DONE, _FAILED = b"\0", b"\1"


@dataclasses.dataclass(frozen=True)
class Setup:
    """What the child needs to make its client: the names of two functions, and who it is."""

    experiment: str
    data: str
    settings: dict[str, Any]
    name: str
    state_dir: str
    path: list[str]  # folders of the code that may be named
    signed: bool = False  # whether every request comes through a door that lets none in twice
    quantities: Sequence[str] | None = None  # that may be measured here
    root: str = ""  # the certificate that all sites' chain to, in PEM
    server: str = ""  # the server's name in its own
    clients: int | None = None  # that there must be at least
    requests: int | None = None  # that are answered here, of all runs together


class Resident:
    """A client whose code runs in a process of its own."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._working = threading.Lock()
        self._counting = threading.Lock()
        self._newest = 0
        self._deadline = math.inf  # of the request at work
        self._error: tuple[float, str] | None = None
        self._ready = False
        self._spawn()

    def ask(self, request: bytes, seconds: float) -> bytes:
        """The client's answer; a :class:`ClientError` says why there is none.

        Requests may come while an earlier one is at work. They wait, and only the newest of them is answered: the
        server no longer listens to what it asked before.
        """
        with self._counting:
            self._newest += 1
            mine = self._newest
        if not self._working.acquire(timeout=max(seconds, 0)):
            if time.monotonic() > self._deadline:
                self._process.kill()  # whoever waits for its answer starts another
            raise ClientError(f"still busy with an earlier request after {seconds:g} s")
        try:
            if mine != self._newest:
                raise ClientError("the request was overtaken by a newer one")
            self.prepare()
            self._deadline = time.monotonic() + _HANGS * seconds
            return self._call(request)
        finally:
            self._deadline = math.inf
            self._working.release()

    def status(self) -> str:
        """``ready``, ``starting``, or why the client could not be set up."""
        if not self._ready and self._working.acquire(blocking=False):
            try:
                if self._error is None and (self._connection.poll(0) or self._process.poll() is not None):
                    self.prepare()
            except ClientError as error:
                return str(error)
            finally:
                self._working.release()
        return "ready" if self._ready else self._error[1] if self._error else "starting"

    def prepare(self) -> None:
        """Wait until the child has set its client up."""
        if self._error is not None:
            since, why = self._error
            if time.monotonic() - since < _RETRY:
                raise ClientError(why)
            self._respawn()
        if not self._ready:
            try:
                self._answer()
            except ClientError as error:
                self._error = (time.monotonic(), f"its set-up failed: {error}")
                raise ClientError(self._error[1]) from None
            self._ready = True

    def close(self) -> None:
        """End the child."""
        self._connection.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, request: bytes) -> bytes:
        with contextlib.suppress(OSError):  # a child that died since the last answer: the next line tells
            self._connection.send_bytes(request)
        try:
            return self._answer()
        except ClientError:
            if self._process.poll() is not None:
                self._respawn()
            raise

    def _answer(self) -> bytes:
        """The child's next word. The pipe alone would not tell of its death if a process of its own held it open."""
        while not self._connection.poll(_LOOK):
            if self._process.poll() is not None and not self._connection.poll(0):
                break
        try:
            answer = self._connection.recv_bytes() if self._connection.poll(0) else b""
        except (EOFError, ConnectionResetError):
            answer = b""
        if not answer:
            raise ClientError(f"the process of the client's code ended with exit code {self._process.wait()}")
        if answer[:1] == _FAILED:
            raise ClientError(answer[1:].decode(errors="replace"))
        return answer[1:]

    def _respawn(self) -> None:
        self._connection.close()
        self._process.wait()
        self._spawn()

    def _spawn(self) -> None:
        self._connection, theirs = Pipe()
        command = [sys.executable, "-m", "fedsgm.federation.resident", str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        self._ready, self._error = False, None
        with contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps(dataclasses.asdict(self._setup)).encode())


def _watch(parent: int) -> None:
    """End this process when its parent has ended, whatever the client's code is at."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _client(setup: Setup) -> Any:
    from fedsgm.federation.client import Client
    from fedsgm.federation.experiment import find
    from fedsgm.federation.limits import KINDS, Limits
    from fedsgm.federation.preparation import Newcomer, Preparation
    from fedsgm.federation.program import Program

    sys.path.extend(setup.path)
    experiment = find(setup.experiment, setup.path)(**setup.settings)
    give = functools.partial(find(setup.data, setup.path), setup.name, **setup.settings)
    spend = functools.partial(Limits(requests=setup.requests).spend, Path(setup.state_dir).parent, KINDS)
    how: dict[str, Any] = {"fresh": setup.signed, "quantities": setup.quantities, "spend": spend}
    if isinstance(experiment, Preparation):
        return Newcomer(experiment, give, Path(setup.state_dir), **how)
    data = give()
    program = Program.of(experiment.algorithm, experiment.problem, experiment.params)
    if experiment.secure:
        how["secure"] = _secured(setup, program)
    return Client(program, data, Path(setup.state_dir), **how)


def _secured(setup: Setup, program: Any) -> Any:
    """What masks the client's answers; its card is signed by the process that has the site's key."""
    from fedsgm.federation.masking import Secured
    from fedsgm.federation.signing import Identity

    if not setup.root:
        raise ClientError("secure aggregation needs the sites' certificates, which a federation over FLARE has")
    return Secured(
        Identity.knowing(setup.name, setup.root.encode()),
        Path(setup.state_dir),
        program,
        setup.server,
        setup.clients or 0,
    )


def main() -> None:
    """The child."""
    handle, parent = map(int, sys.argv[1:])
    os.set_inheritable(handle, False)
    connection = Connection(handle)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    with contextlib.ExitStack() as held:
        try:
            setup = Setup(**json.loads(connection.recv_bytes()))
            held.enter_context(alone(Path(setup.state_dir)))
            client = _client(setup)
        except Exception as error:
            connection.send_bytes(_FAILED + told(error))
            return
        connection.send_bytes(_DONE)
        while True:
            try:
                request = connection.recv_bytes()
            except EOFError:
                return
            try:
                answer = _DONE + client.answer(request)
            except Exception as error:
                answer = _FAILED + told(error)
            connection.send_bytes(answer)


if __name__ == "__main__":
    main()
