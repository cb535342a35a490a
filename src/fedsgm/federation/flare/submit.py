"""The submitter's side: send a job, follow it, send it again from its checkpoint when it is lost, fetch the result."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fedsgm.base.errors import FedSGMError, SettingError, in_a_line
from fedsgm.base.progress import Progress
from fedsgm.federation.flare.kits import OUTCOME, RESULT, STATUS, STOP, check_run
from fedsgm.federation.news import Relayed

_SERVER = Path("app/config/config_fed_server.json")
_CLIENT = Path("app/config/config_fed_client.json")
_EVERY = 0.5  # seconds between the first two looks at the job
_SELDOM, _GROWS = 5.0, 1.3  # seconds between later ones at most, and how fast: FLARE keeps a thread of each for 65 s
_BROKEN = 120.0  # seconds that a server which has answered before has to come back
_SILENT = 60.0  # seconds without a word of a job, after which it is lost
_STARTING = 600.0  # the same before its first word
_ENDING = 8.0  # seconds that FLARE has to close a job that is done before it is told to
_BACK = 30.0  # seconds that clients have to come back before a job is sent again without them
_BLIP = 5.0  # seconds in which a lost client may turn out to be still in the job
_TRIES = 2  # times that a job is sent again without a new round


@dataclasses.dataclass(frozen=True)
class Job:
    """A job's folder, and what it says of itself."""

    folder: Path
    clients: list[str]
    run: str
    least: int

    @classmethod
    def read(cls, folder: Path) -> Job:
        try:
            args = _server_args(json.loads((folder / _SERVER).read_text()))
            run, clients = args["run"], sorted(args["clients"])
            other = _client_args(json.loads((folder / _CLIENT).read_text()))["run"]
            least = int(json.loads((folder / "meta.json").read_text()).get("min_clients", 1))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise SettingError(
                f"{folder} is no job of fedsgm, as fedsgm federate init writes one ({error!r})"
            ) from None
        check_run(run)
        if run != other:
            raise SettingError(f"{folder}: {_SERVER.name} names the run {run!r} and {_CLIENT.name} {other!r}")
        return cls(folder, clients, run, least)

    def named(self, run: str, folder: Path) -> Job:
        """A copy in ``folder`` whose run has this name."""
        check_run(run)
        shutil.copytree(self.folder, folder)
        for path, args in ((folder / _SERVER, _server_args), (folder / _CLIENT, _client_args)):
            content = json.loads(path.read_text())
            args(content)["run"] = run
            path.write_text(json.dumps(content, indent=2))
        return Job.read(folder)


def _server_args(content: Any) -> Any:
    return content["workflows"][0]["args"]


def _client_args(content: Any) -> Any:
    return content["executors"][0]["executor"]["args"]


class Admin:
    """A session with the federation's server that is opened again when it breaks."""

    def __init__(self, kit: Path, tend: Callable[[], object], say: Callable[[str], None], first: float) -> None:
        try:
            self._user = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
        except (OSError, ValueError, LookupError) as error:
            raise SettingError(f"{kit} is no start-up kit of an admin ({error})") from None
        self._kit, self._tend, self._say = kit, tend, say
        self._seconds = first  # that the server has to answer
        self._session: Any = None
        self._silence = logging.NullHandler()  # FLARE's own warnings are no concern of the one who submits

    def __enter__(self) -> Admin:
        logging.getLogger().addHandler(self._silence)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        logging.getLogger().removeHandler(self._silence)

    def call(self, command: str, *arguments: Any) -> Any:
        """What a command of the session gives."""
        from nvflare.fuel.flare_api.api_spec import AuthenticationError, AuthorizationError, NoConnection, SessionClosed
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        began, waits = time.monotonic(), False
        while True:
            try:
                if self._session is None:
                    with contextlib.redirect_stdout(io.StringIO()):
                        self._session = new_secure_session(self._user, str(self._kit), timeout=5.0)
                        self._seconds = _BROKEN
                return getattr(self._session, command)(*arguments)
            except AuthorizationError as error:  # without a word of it a job would seem to be lost
                raise SettingError(
                    f"the federation's server refuses {command}: {in_a_line(error)}; give the user's role that right "
                    "in local/authorization.json of the server's kit"
                ) from None
            except Exception as error:
                gone = isinstance(error, (NoConnection, SessionClosed, AuthenticationError))
                if not gone and self._session is not None and command != "get_system_info":
                    raise
                self._close()  # a server that ends in the midst of a greeting is told of in many ways
                if time.monotonic() > began + self._seconds:
                    raise FedSGMError(
                        f"the federation's server has not answered for {self._seconds:g} s; see that it runs and that "
                        f"its port can be reached from here ({error})"
                    ) from None
                if not waits:
                    self._say("waiting for the federation's server")
                waits = True
                self._tend()
                time.sleep(0.5)

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()


def submit(
    kit: Path,
    job: Job,
    *,
    least: int | None = None,
    join: float = 60.0,
    show: bool = True,
    here: Path | None = None,
    tend: Callable[[], object] = lambda: None,
    relayed: Relayed | None = None,
) -> Path:
    """Run a job to its end and give the folder that holds its result, as :meth:`Result.save` wrote it.

    Args:
        kit: the admin's start-up kit.
        least: clients that must be there for the job to begin; unless told, as many as the job says.
        join: seconds that the server has to answer, and the clients to join.
        show: show progress on standard error.
        here: the server's kit, where it is on this machine: the result is then taken from there at once.
        tend: called again and again while the job runs.
        relayed: tells callbacks of the run, as the server does.
    """
    best, idle, sent = -1, 0, 0
    back: set[str] = set()
    with _Bar(show) as bar, Admin(kit, tend, bar.say, join) as admin:
        while True:
            _await(admin, job.clients, job.least if least is None else least, _BACK if best >= 0 else join, tend)
            number = admin.call("submit_job", str(job.folder))
            sent += 1
            try:
                end = _follow(admin, number, bar, here / number if here else None, tend, back, relayed)
            except BaseException:
                if not here:  # else the whole federation ends
                    _stop(admin, number)
                    bar.say(f"the run {job.run!r} is stopped; submitted again with that name it goes on")
                raise
            if end.folder is not None:
                return end.folder
            if not end.can_go_on:
                raise (SettingError if end.kind == "SettingError" else FedSGMError)(end.error)
            idle = 0 if end.rounds > best else idle + 1
            best = max(best, end.rounds)
            if idle == _TRIES:
                raise FedSGMError(f"{end.error}; sent {sent} times, the job makes no round; see the sites' logs")
            bar.say(f"{end.error}; the job is sent again and goes on from its checkpoint")


@dataclasses.dataclass(frozen=True)
class _End:
    """How a job ended: with a result in ``folder``, or with an error of some kind; and how many rounds were seen."""

    rounds: int
    folder: Path | None = None
    error: str = "FLARE lost the job, or a client that it had lost came back"
    kind: str = ""

    @property
    def can_go_on(self) -> bool:
        return self.kind in ("", "FederationError")  # too few clients answered: when they are back, more will


def _await(admin: Admin, clients: Sequence[str], least: int, seconds: float, tend: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while True:
        tend()
        there = {client.name for client in admin.call("get_system_info").client_info}
        missing = [name for name in clients if name not in there]
        if not missing:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if len(clients) - len(missing) < least:
        which = ", ".join(missing)
        raise FedSGMError(f"{which} did not join within {seconds:g} s; see that it runs and can reach the server")


def _follow(
    admin: Admin,
    number: str,
    bar: _Bar,
    own: Path | None,
    tend: Callable[[], object],
    back: set[str],
    relayed: Relayed | None,
) -> _End:
    """Follow a job until it has ended or is lost.

    ``own`` is its folder on the server, if it can be read from here. ``back`` has the clients that jobs were stopped
    for, because they had come back: not again for one that has taken no part since.
    """
    rounds, first, heard, began = -1, None, time.monotonic(), _server_since(admin)
    looked, pause = heard, _EVERY
    while True:
        time.sleep(_EVERY)
        tend()
        if end := _read(own, rounds):
            return end
        if time.monotonic() < looked + pause:
            continue
        status = _status(admin, number, relayed)
        looked, pause = time.monotonic(), _EVERY if status is None else min(_GROWS * pause, _SELDOM)
        if status is not None:
            heard = time.monotonic()
            first = status["round"] if first is None else first
            rounds = max(rounds, status["round"])
            bar.update(status)
            if rounds > first:
                back &= set(status["lost"])
            if returned := _returned(admin, status["lost"]) - back:
                back |= returned
                _try(admin, "do_app_command", number, STOP, None)
        elif _server_since(admin) != began:  # it was started again, and knows nothing of the job
            return _End(rounds)
        elif _ended(admin, number) or time.monotonic() - heard > (_SILENT if rounds >= 0 else _STARTING):
            return _read(_fetch(admin, number), rounds) or _End(rounds)


def _server_since(admin: Admin) -> Any:
    return admin.call("get_system_info").server_info.start_time


def _status(admin: Admin, number: str, relayed: Relayed | None) -> dict[str, Any] | None:
    wanted = None if relayed is None else {"seen": relayed.seen}
    found = _try(admin, "do_app_command", number, STATUS, wanted)
    if not isinstance(found, dict) or "round" not in found:
        return None
    if relayed is not None:
        since = {name: found["time"] - asked for name, asked in found["asked"].items()}
        relayed.hear(found["news"], found["lost"], since)
    return found


def _ended(admin: Admin, number: str) -> bool:
    return str((_try(admin, "get_job_meta", number) or {}).get("status")).startswith("FINISHED")


def _returned(admin: Admin, lost: dict[str, float]) -> set[str]:
    """The clients that the job has lost and the server has heard of since."""
    if not lost:
        return set()
    heard = {client.name: client.last_connect_time for client in admin.call("get_system_info").client_info}
    return {name for name, since in lost.items() if (heard.get(name) or 0.0) > since + _BLIP}


def _stop(admin: Admin, number: str) -> None:
    """End a job: the server first, so that it takes no round with the clients that FLARE has not ended yet."""
    with contextlib.suppress(SettingError):
        _try(admin, "do_app_command", number, STOP, None)
    _close(admin, number)


def _close(admin: Admin, number: str) -> None:
    """See that FLARE ends a job that is done; it may wait long for a client that is gone."""
    deadline = time.monotonic() + _ENDING
    while not _ended(admin, number) and time.monotonic() < deadline:
        time.sleep(0.2)
    _try(admin, "abort_job", number)


def _fetch(admin: Admin, number: str) -> Path | None:
    """The job's folder, downloaded."""
    for _ in range(2):
        _close(admin, number)
    place = _try(admin, "download_job_result", number)
    return next((path.parent for path in Path(place).rglob(OUTCOME)), None) if place else None


def _read(folder: Path | None, rounds: int) -> _End | None:
    """How the run of a job's folder ended, if it did."""
    if folder is None or not (folder / OUTCOME).exists():
        return None
    outcome = json.loads((folder / OUTCOME).read_text())
    if outcome["error"] is None:
        return _End(rounds, folder / RESULT)
    return _End(rounds, error=outcome["error"], kind=outcome["kind"])


def _try(admin: Admin, command: str, *arguments: Any) -> Any:
    """A command's answer, or None where FLARE says why there is none."""
    try:
        return admin.call(command, *arguments)
    except FedSGMError:
        raise
    except Exception:
        return None


class _Bar:
    """The usual progress, from a job's own words."""

    def __init__(self, show: bool) -> None:
        self._show = show
        self._bar: Progress | None = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.__exit__(kind, error, trace)

    def update(self, status: dict[str, Any]) -> None:
        if not self._bar and status["rounds"]:
            self._bar = Progress("FedSGM", status["rounds"], show=self._show)
            self._bar.__enter__()
        if self._bar:
            self._bar.update(status["round"], **status["values"])

    def say(self, what: str) -> None:
        if self._show:
            print(f"note: {what}", file=sys.stderr, flush=True)
