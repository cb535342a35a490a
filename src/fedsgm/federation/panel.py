"""The clients as the server meets them: it asks, and whatever comes back is an answer or a reason for none."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Set
from typing import Any, TypeVar

import numpy as np

from fedsgm.core.compression import Dense
from fedsgm.federation.answers import Reasons
from fedsgm.federation.client import WELCOME
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import (
    LONGEST,
    NOTHING,
    WHOLE,
    Failure,
    FrameError,
    Kind,
    Reply,
    Request,
    Transport,
    checksum,
    checksum_of,
    one_line,
)

T = TypeVar("T")
_REASONS = 20  # of being left out that are told apart for one client


@dataclasses.dataclass
class Account:
    """One client's. ``held`` is the version of the model that it has, ``used`` the round of its last used message."""

    name: str
    held: int = NOTHING
    used: int = NOTHING
    answered: int = 0
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    frames_up: int = 0
    frames_down: int = 0
    seconds: float = 0.0

    def leave_out(self, reason: str) -> None:
        if reason not in self.left_out and len(self.left_out) >= _REASONS:
            reason = "other reasons"
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def row(self) -> dict[str, Any]:
        """What a person wants to see of it."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("held", "used")}


@dataclasses.dataclass
class Followed:
    """The replica w, at a version, and the broadcasts of the last versions, as many as cost less than the whole."""

    program: Program
    replica: np.ndarray
    version: int = 0
    recent: list[bytes] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def checksum(self) -> int:
        return checksum(self.replica)

    @functools.cached_property
    def whole(self) -> bytes:
        vector: Any = self.replica
        return self.program.encode(Dense(vector))

    def after(self, data: bytes) -> Followed:
        """The next version, made from the very bytes of the broadcast that the clients will get."""
        replica = self.program.receive(self.replica, self.program.decode(data, self.program.algorithm.downlink))
        recent = [*self.recent, data]
        while sum(map(len, recent)) >= self.replica.nbytes or len(recent) >= WHOLE:
            del recent[0]
        return Followed(self.program, replica, self.version + 1, recent)

    def since(self, held: int, seed: int, client: int) -> tuple[tuple[bytes, ...], bool]:
        """What a client that holds version ``held`` needs, and whether that is the whole model."""
        missing = self.version - held
        if held != NOTHING and 0 <= missing <= len(self.recent):
            return tuple(self.recent[len(self.recent) - missing :]), False
        return (WELCOME.pack(self.program.fingerprint, seed, client) + self.whole,), True


class _BehindError(Exception):
    """The client holds another version than its account said."""


class Panel:
    """All clients of a run, by number, each with its account. ``up`` and ``down`` count the bytes of a round."""

    def __init__(self, transport: Transport, seed: int, timeout: float, run: int) -> None:
        self.transport, self.seed, self.timeout = transport, seed, timeout
        self.accounts = [Account(name) for name in transport.clients()]
        self.run, self.attempt = run, 0
        self.up = self.down = 0

    def ask(
        self,
        model: Followed,
        kinds: Mapping[int, Kind],
        payload: bytes,
        read: Callable[[Kind, bytes], T],
        odd: Callable[[dict[int, T]], Reasons],
        enough: Callable[[Set[int]], bool],
    ) -> tuple[dict[int, T], Reasons]:
        """Each client's answer, as ``read`` makes it of a reply, and why there is none from the others.

        ``odd`` says which answers do not fit the others'. A client that holds another model than thought is asked
        again, with what leads it to this one; so are all without an answer, once, where those who answered are not
        ``enough``.
        """
        answers: dict[int, T] = {}
        reasons: Reasons = {}
        for _ in range(2):
            asked = {client: kind for client, kind in kinds.items() if client not in answers}
            behind = self._exchange(model, asked, payload, read, answers, reasons)
            self._exchange(model, {client: kinds[client] for client in behind}, payload, read, answers, reasons)
            for client, reason in odd(answers).items():
                reasons[client] = reason
                del answers[client]
            if enough(answers.keys()):
                break
        return dict(sorted(answers.items())), reasons

    def _exchange(
        self,
        model: Followed,
        kinds: Mapping[int, Kind],
        payload: bytes,
        read: Callable[[Kind, bytes], T],
        answers: dict[int, T],
        reasons: Reasons,
    ) -> list[int]:
        """One exchange with these clients; the ones whose model was another than thought are returned."""
        requests = {client: self._request(model, client, kind, payload) for client, kind in kinds.items()}
        if not requests:
            return []
        named = {self.accounts[client].name: request for client, request in requests.items()}
        replies = self.transport.exchange(named, self.timeout)
        behind = []
        for client, request in requests.items():
            account = self.accounts[client]
            reply = replies.get(account.name, Failure(f"no answer in {self.timeout:g} s"))
            self._count(account, request, reply)
            try:
                answers[client] = read(kinds[client], _opened(account, request, reply, model))
            except _BehindError:
                behind.append(client)
                reasons[client] = "cannot follow the model"
            except FrameError as error:
                reasons[client] = str(error)
        return behind

    def _request(self, model: Followed, client: int, kind: Kind, payload: bytes) -> bytes:
        account = self.accounts[client]
        parts, whole = model.since(account.held, self.seed, client)
        return Request(
            kind, self.run, self.attempt, model.version, model.checksum, account.used, parts, whole, payload
        ).encode()

    def _count(self, account: Account, request: bytes, reply: bytes | Failure) -> None:
        size = 0 if isinstance(reply, Failure) else len(reply)
        account.frames_down += len(request)
        account.frames_up += size
        self.down += len(request)
        self.up += size


def _opened(account: Account, request: bytes, data: bytes | Failure, model: Followed) -> bytes:
    """The content of a good reply to this very request, on this very model."""
    if isinstance(data, Failure):
        raise FrameError(data.reason)
    reply = Reply.decode(data)
    if reply.request != checksum_of(request):
        raise FrameError("an answer to another request")
    if math.isfinite(reply.seconds) and reply.seconds > 0:
        account.seconds += reply.seconds
    same = reply.version == model.version and reply.replica == model.checksum
    account.held = reply.version if same or NOTHING < reply.version < model.version else NOTHING
    if reply.kind == Kind.BEHIND:
        raise _BehindError
    if reply.kind == Kind.ERROR:
        told = one_line(reply.content[:LONGEST].decode(errors="replace"))
        raise FrameError(told or "an error without a reason")
    if reply.kind != Kind.ANSWER or not same:
        raise FrameError("an answer of another version")
    return reply.content
