"""A client's door: who asks must be its server, what is asked within the site's limits, and all is written down.

It stands in the process that holds the site's key, before the one that runs the experiment's code and has the data:
code that came with a job cannot open it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any, Protocol

from fedsgm.base.errors import ClientError
from fedsgm.base.progress import harmless
from fedsgm.federation.limits import Limits
from fedsgm.federation.preparation import MAGIC, opened
from fedsgm.federation.protocol import FrameError, Kind, Reply, header
from fedsgm.federation.sessions import HELLO, REFUSED, STRANGER, Asked, Listener, refusal
from fedsgm.federation.signing import Unsigned

REQUESTS, REFUSALS = "requests.jsonl", "refused.jsonl"
_FULL, _KEPT = 2**23, 4  # bytes of a log after which another begins, and how many before it are kept


class Asks(Protocol):
    """What a door leads to; a :class:`fedsgm.federation.resident.Resident` is one."""

    def ask(self, request: bytes, seconds: float) -> bytes: ...


class Closed:
    """In place of a client that must not be started; it says why."""

    def __init__(self, why: str) -> None:
        self._why = why

    def ask(self, request: bytes, seconds: float) -> bytes:  # noqa: ARG002 - nothing is asked
        raise ClientError(self._why)

    def status(self) -> str:
        return self._why

    def close(self) -> None:
        pass


class Audit:
    """What was asked of a client, and what was refused: a line of JSON each, for the owner of the folder alone.

    They are two files, so that no flood of refused requests pushes the others out.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._writing = threading.Lock()

    def write(self, name: str, **words: Any) -> None:
        line = json.dumps({"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"), **words})
        path = self._folder / name
        with self._writing:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size > _FULL:
                    _turn(path)
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "ab") as file:
                file.write(line.encode() + b"\n")


def _turn(path: Path) -> None:
    """Begin another file; the oldest goes."""
    for number in range(_KEPT - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            os.replace(path.with_name(f"{path.name}.{number}"), path.with_name(f"{path.name}.{number + 1}"))
    os.replace(path, path.with_name(f"{path.name}.1"))


class Door:
    """``answer`` gives the reply to whatever bytes come, from whoever sent them; ``site`` has what outlives a run."""

    def __init__(self, listener: Listener, client: Asks, audit: Audit, limits: Limits, site: Path) -> None:
        self._listener, self._client, self._audit = listener, client, audit
        self._limits, self._site = limits, site
        self._opening = threading.Lock()

    def answer(self, data: bytes, origin: str) -> bytes:
        """The signed reply; to what the server has not signed for this client, one refusal that says nothing."""
        try:
            with self._opening:
                if data[:2] == HELLO:
                    answer, clients = self._listener.greet(data)
                    self._audit.write(REQUESTS, asked="hello", origin=_plain(origin), clients=len(clients))
                    return answer
                asked = self._listener.open(data)
        except Unsigned as error:
            self.refuse(str(error), origin, data)
            return refusal(REFUSED)
        if asked is None:
            self.refuse("it belongs to no conversation that was begun here", origin, data)
            return refusal(STRANGER)
        return self._ask(asked, origin)

    def refuse(self, why: str, origin: str, data: bytes) -> None:
        """Write down that nobody is answered."""
        sha = hashlib.sha256(data).hexdigest()
        self._audit.write(REFUSALS, refused=_plain(why), origin=_plain(origin), bytes=len(data), sha256=sha)

    def _ask(self, asked: Asked, origin: str) -> bytes:
        about = described(asked.frame)
        self._audit.write(REQUESTS, **about, number=asked.session.number, origin=_plain(origin), bytes=len(asked.frame))
        kinds = about["asked"].split("+")
        try:
            self._limits.check_clients(len(asked.clients))
            self._limits.check_kinds(kinds)
            self._limits.spend(self._site, kinds)
            answer = self._client.ask(asked.frame, asked.seconds)
            return asked.reply(self._endorsed(answer) if kinds == ["keys"] else answer)
        except ClientError as error:
            return asked.reply(str(error).encode(errors="replace"), failed=True)

    def _endorsed(self, answer: bytes) -> bytes:
        """A client's answer with its card for secure aggregation, signed: the key is here."""
        from fedsgm.federation.masking import endorsed

        try:
            reply = Reply.decode(answer)
            if reply.kind != Kind.ANSWER:
                return answer
            return dataclasses.replace(reply, content=endorsed(self._listener.identity, reply.content)).encode()
        except (FrameError, ValueError, LookupError, TypeError):
            raise ClientError("its code gave no card that can be signed") from None


def described(frame: bytes) -> dict[str, Any]:
    """What a request asks, in words."""
    try:
        if frame[:2] == MAGIC:
            return {"asked": str(opened(frame)[0].get("ask"))}
        kind, run, attempt, round = header(frame)
        asked = str(kind.name).lower().replace("|", "+")
        return {"asked": asked, "run": run, "attempt": attempt, "round": round}
    except FrameError:
        return {"asked": "unreadable"}


def _plain(text: str) -> str:
    return harmless(text[:200])
