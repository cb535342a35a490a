"""A whole Flower federation on this machine: a SuperLink and SuperNodes with TLS and registered keys, on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from fedsgm.base.errors import FedSGMError, SettingError
from fedsgm.base.progress import Progress, say
from fedsgm.federation import guard
from fedsgm.federation.flower import apps, credentials
from fedsgm.federation.sites import Sites, free_port

OUTCOME, PROGRESS, RESULT = "outcome.json", "progress.json", "result"  # of the run's folder on the server
_HOST, _LINK = "127.0.0.1", "local"
_EVERY = 0.2  # seconds between two looks at the run
_LOOK_EVERY = 1.0  # seconds between two looks for the run's process
_BEGIN = 120.0  # seconds that the run's process has to begin
_TRIES = 3  # times that a run is begun again without a new round
_COMMANDS = (
    "import json, sys; from flwr.cli.app import app\n"
    "for command in json.load(sys.stdin): app(command, standalone_mode=False)"
)


class FlowerFederation(Sites):
    """``with FlowerFederation(3) as federation:`` starts a SuperLink and three SuperNodes.

    The arguments are those of :class:`Sites`.
    """

    server = "superlink"
    restarts, pause = 30, 5.0  # a node that was killed is let in again when the SuperLink has missed it for a minute

    def provide(self) -> None:
        self._certificates = self.folder / "certificates"
        credentials.certify(self._certificates, _HOST)
        self._ports = {name: free_port() for name in self.names}
        for site in (self.server, *self.names):
            (self.home(site) / "flwr").mkdir(parents=True)
            if site != self.server:
                credentials.make_key(self.key(site))
        link = {"address": f"{_HOST}:{self.port}", "root-certificates": str(self._certificates / credentials.CA)}
        config = {"superlink": {"default": _LINK, _LINK: link}}
        (self.home(self.server) / "flwr" / "config.toml").write_text(tomli_w.dumps(config))

    def begin(self) -> None:
        """Start the SuperLink, tell it the nodes' keys, and start them."""
        self.start(self.server)
        self.await_server()
        self.call(*(["supernode", "register", f"{self.key(n)}.pub", _LINK, "--name", n] for n in self.names))
        for name in self.names:
            self.start(name)

    def home(self, site: str) -> Path:
        return self.folder / "sites" / site

    def key(self, site: str) -> Path:
        """A node's private key."""
        return self.home(site) / "key"

    def command(self, site: str) -> list[str]:
        if site == self.server:
            pairs = {"ca-certfile": credentials.CA, "certfile": credentials.CERTIFICATE, "keyfile": credentials.KEY}
            files = [word for name, file in pairs.items() for word in (f"--ssl-{name}", str(self._certificates / file))]
            kept = ["--database", str(self.home(site) / "link.db")]
            return [
                "flower-superlink",
                "--host",
                _HOST,
                "--port",
                str(self.port),
                *files,
                "--enable-supernode-auth",
                *kept,
            ]
        command = ["flower-supernode", "--superlink", f"{_HOST}:{self.port}", "--host", _HOST]
        command += ["--port", str(self._ports[site]), "--node-config", f'name="{site}"']
        command += ["--root-certificates", str(self._certificates / credentials.CA)]
        return [*command, "--auth-supernode-private-key", str(self.key(site))]

    def environment(self, site: str) -> Mapping[str, str]:
        return apps.quiet(os.environ) | {
            "FLWR_HOME": str(self.home(site) / "flwr"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # each poll costs some milliseconds
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        }

    def call(self, *commands: list[str]) -> str:
        """What commands of ``flwr`` print."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", _COMMANDS],
            input=json.dumps(commands),
            env=os.environ | self.environment(self.server) | {guard.MARK: self.mark},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines() or [""]
            raise FedSGMError(f"flwr {' '.join(commands[0][:2])} failed: {said[-1]}")
        return done.stdout

    def run(self, app: Path, run: str, *, show: bool = True) -> Path:
        """Run an app to its end, beginning it again from its checkpoint when it is lost; the result's folder."""
        folder = self.state / "server" / run
        best, idle = -1, 0
        while True:
            (folder / OUTCOME).unlink(missing_ok=True)
            self.call(["run", str(app), _LINK])
            end = self._follow(folder, show)
            if end.get("error", "") is None:
                return folder / RESULT
            if end.get("kind", "FederationError") != "FederationError":
                raise (SettingError if end["kind"] == "SettingError" else FedSGMError)(end["error"])
            done = _read(folder / PROGRESS).get("round", 0)
            idle = 0 if done > best else idle + 1
            best = max(best, done)
            why = end.get("error", "Flower lost the run")
            if idle == _TRIES:
                raise FedSGMError(f"{why}; begun {idle + 1} times, the run makes no round: {self.log(self.server)}")
            if show:
                say(f"note: {why}; the run is begun again and goes on from its checkpoint", file=sys.stderr)
            self.await_server()

    def _follow(self, folder: Path, show: bool) -> dict[str, Any]:
        """How a run ended; nothing, if its process is gone without a word."""
        link, began, shown = self.processes[self.server], time.monotonic(), -1
        serving: psutil.Process | None = None
        next_look = began
        with contextlib.ExitStack() as open_bars:
            bar: Progress | None = None
            while True:
                time.sleep(_EVERY)
                self.tend()
                done = _read(folder / PROGRESS)
                if done and bar is None:
                    bar = open_bars.enter_context(Progress("FedSGM", done["rounds"], show=show))
                if bar and done and done["round"] != shown:
                    shown = done["round"]
                    bar.update(shown, **done["values"])
                if end := _read(folder / OUTCOME):
                    return end
                now = time.monotonic()
                if serving is None and now > next_look:
                    serving, next_look = self._serving(), now + _LOOK_EVERY
                gone = now > began + _BEGIN if serving is None else not _lives(serving)
                if gone or self.processes[self.server] is not link:
                    return _read(folder / OUTCOME)

    def _serving(self) -> psutil.Process | None:
        """The run's process on the server."""
        for process in guard.marked(self.mark):
            with contextlib.suppress(psutil.Error):
                if any(word.endswith("flwr-serverapp") for word in process.cmdline()):
                    return process
        return None


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}
