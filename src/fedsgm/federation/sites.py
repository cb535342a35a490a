"""A server and its clients as processes on this machine, whatever engine they run, and nothing left behind.

Every process carries a mark in its environment, which its children inherit: whatever becomes of their parents, all of
them can be found and ended by it. A process beside them does that when this one is killed.
"""

from __future__ import annotations

import abc
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedsgm.base.errors import FedSGMError, SettingError
from fedsgm.federation import guard
from fedsgm.federation.flare import kits

_LISTEN = 60.0  # seconds that the server has to begin to listen


class Sites(abc.ABC):
    """``with`` it a server and clients run on 127.0.0.1.

    Args:
        clients: how many.
        port: the server's; 0 takes a free one.
        state: folder for what outlives a job, the server's checkpoint and the clients' memory; without it, that goes
            with the rest.
        begin: start the processes; without it their files can be changed first.
        modules: installed modules whose functions jobs may name here, beside those in FEDSGM_MODULES.
    """

    server: str
    restarts, pause = 3, 0.0  # how often a site that has ended is started again, and how many seconds apart

    def __init__(
        self,
        clients: int,
        *,
        port: int = 0,
        state: Path | None = None,
        begin: bool = True,
        modules: Sequence[str] = (),
    ) -> None:
        self.names = kits.names(clients)
        self.port = free_port(port)
        self.mark = secrets.token_hex(16)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._begin = begin
        self._state = state
        self._modules = tuple(modules)
        self.folder = Path()
        self._guard: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def provide(self) -> None:
        """Make what the sites need before they start, in ``folder``."""

    @abc.abstractmethod
    def home(self, site: str) -> Path:
        """The folder that a site's processes start in."""

    @abc.abstractmethod
    def command(self, site: str) -> list[str]:
        """What starts a site."""

    def environment(self, site: str) -> Mapping[str, str]:  # noqa: ARG002 - an engine's own
        """What a site's processes find in their environment beside this process's."""
        return {}

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="fedsgm-"))
        try:
            watch = [sys.executable, "-P", guard.__file__, self.mark, str(self.folder)]
            self._guard = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True)
            self.provide()
            if self._begin:
                self.begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def state(self) -> Path:
        """What outlives a job, in a folder for each site."""
        return self._state or self.folder / "state"

    def begin(self) -> None:
        """Start every site, and wait until the server listens."""
        for site in (self.server, *self.names):
            self.start(site)
        self.await_server()

    def start(self, site: str) -> None:
        """Start a site's process, or start it again."""
        self._started[site] = time.monotonic()
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        environment = os.environ | {
            **self.environment(site),
            guard.MARK: self.mark,
            "FEDSGM_MODULES": ",".join((*self._modules, os.environ.get("FEDSGM_MODULES", ""))),
            "FEDSGM_STATE": str(self.state),
            "TMPDIR": str(temporary),
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in path if entry),
        }
        with (self.home(site) / "output.txt").open("ab") as output:
            self.processes[site] = subprocess.Popen(
                self.command(site),
                cwd=self.home(site),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def tend(self) -> None:
        """Start again every site whose process has ended, a few times each."""
        for site, process in list(self.processes.items()):
            if process.poll() is not None and time.monotonic() >= self._started[site] + self.pause:
                self._restarts[site] = self._restarts.get(site, 0) + 1
                if self._restarts[site] > self.restarts:
                    raise FedSGMError(f"{site} ended {self.restarts + 1} times; it said: {self.log(site)}")
                self.start(site)

    def close(self) -> None:
        """End every process of this federation, see that each is gone, and remove the folder."""
        with _undisturbed():
            guard.end(self.mark, str(self.folder))
            for started in self.processes.values():
                started.wait()
            if self._guard is not None:
                self._guard.communicate()

    def log(self, site: str) -> str:
        """The last lines of what a site's processes said."""
        with contextlib.suppress(OSError):
            return "\n".join((self.home(site) / "output.txt").read_text(errors="replace").splitlines()[-20:])
        return ""

    def await_server(self) -> None:
        """Wait until the server listens; one that ends before is started again, as :meth:`tend` does."""
        deadline = time.monotonic() + _LISTEN
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self.processes[self.server].poll() is not None:
                self.tend()
                deadline = time.monotonic() + _LISTEN
            time.sleep(0.05)
        raise FedSGMError(f"the server did not start to listen on port {self.port}; it said: {self.log(self.server)}")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No Ctrl-C in between: what ends the processes must come to its end."""
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the signals that end a program into an exception, so that what was started is ended first."""

    def stop(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port(wanted: int = 0) -> int:
    """The port, if it can be used; 0 is any."""
    if not 0 <= wanted <= 65535:
        raise SettingError(f"--port {wanted}: a port is between 1 and 65535; 0 is a free one")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise SettingError(
                f"--port {wanted}: it cannot be used ({error.strerror}); leave it out for a free one"
            ) from None
        return int(listener.getsockname()[1])
