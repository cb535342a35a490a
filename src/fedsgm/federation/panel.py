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
from fedsgm.federation.ledger import SPENT, Ledger
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
_FAILURES = 3  # rounds in a row in which a client gave no good answer, after which it is tried less often
_LONGEST = 64  # rounds that it is not asked for
_REPORT = 2**22  # bytes of statistics, beside what a model of float32 has
SUSPENDED = "it failed round after round and is tried less often"


@dataclasses.dataclass
class Account:
    """One client's. ``held`` is the version of the model that it has, ``used`` the round of its last used message."""

    name: str
    held: int = NOTHING
    used: int = NOTHING
    answered: int = 0
    failed: int = 0  # rounds since the last good update in which something was wrong
    failed_in: int = NOTHING  # the last of them
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    frames_up: int = 0
    frames_down: int = 0
    seconds: float = 0.0
    spent: float = 0.0  # of its privacy budget, in rounds' worth

    def leave_out(self, reason: str) -> None:
        if reason not in self.left_out and len(self.left_out) >= _REASONS:
            reason = "other reasons"
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def row(self) -> dict[str, Any]:
        """What a person wants to see of it."""
        hidden = ("held", "used", "failed", "failed_in", "spent")
        seen = {name: value for name, value in vars(self).items() if name not in hidden}
        return seen | {"left_out": dict(self.left_out)}  # asdict copies all, at a fiftieth of a watched round

    def note(self, round: int, *, good: bool, update: bool) -> None:
        """Count a failure once a round; a good update clears the count, as an answer to less does not."""
        if good and update:
            self.failed = 0
        elif not good and self.failed_in != round:
            self.failed, self.failed_in = self.failed + 1, round

    def is_suspended(self, round: int) -> bool:
        """Whether it is passed over: twice as long for each failure more, as long as there are others."""
        if self.failed < _FAILURES:
            return False
        return round - self.failed_in <= min(2 ** (self.failed - _FAILURES), _LONGEST) and round != self.failed_in


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


class _RefusedError(FrameError):
    """The client gave no answer but a reason."""


class Panel:
    """All clients of a run, by number, each with its account. ``up`` and ``down`` count the bytes of a round."""

    def __init__(self, transport: Transport, seed: int, timeout: float, run: int) -> None:
        self.transport, self.seed, self.timeout = transport, seed, timeout
        self.accounts = [Account(name) for name in transport.clients()]
        self.run, self.attempt = run, 0
        self.up = self.down = 0
        self.largest_update: int | None = None  # in bytes, where it is not the message that the compressor makes
        self.ledger: Ledger | None = None  # of a private run

    def ask(
        self,
        model: Followed,
        kinds: Mapping[int, Kind],
        payload: bytes | Callable[[int], bytes],
        read: Callable[[Kind, bytes], T],
        odd: Callable[[dict[int, T]], Reasons],
        enough: Callable[[Set[int]], bool],
    ) -> tuple[dict[int, T], Reasons]:
        """Each client's answer, as ``read`` makes it of a reply, and why there is none from the others.

        ``odd`` says which answers do not fit the others'. A client that holds another model than thought is asked
        again, with what leads it to this one; so are all without an answer, once, where those who answered are not
        ``enough``. One that failed round after round is passed over for a while, unless it is needed.
        """
        answers: dict[int, T] = {}
        passed_over = [client for client in kinds if self.accounts[client].is_suspended(model.version)]
        reasons: Reasons = dict.fromkeys(passed_over, SUSPENDED)
        for needed in (False, True):
            asked = {c: kind for c, kind in kinds.items() if c not in answers and (needed or c not in passed_over)}
            asked = self._affordable(asked, reasons)
            behind = self._exchange(model, asked, payload, read, answers, reasons)
            self._exchange(model, {client: kinds[client] for client in behind}, payload, read, answers, reasons)
            for client, reason in odd(answers).items():
                reasons[client] = reason
                del answers[client]
            for client, kind in asked.items():
                self.accounts[client].note(model.version, good=client in answers, update=kind == Kind.UPDATE)
            if enough(answers.keys()):
                break
        return dict(sorted(answers.items())), reasons

    def _affordable(self, kinds: Mapping[int, Kind], reasons: Reasons) -> dict[int, Kind]:
        """Those of a private run who have not spent their budget."""
        if self.ledger is None:
            return dict(kinds)
        out = [client for client, kind in kinds.items() if not self.ledger.affords(self.accounts[client], kind)]
        for client in out:
            reasons.setdefault(client, SPENT)  # why it has to be asked again says more
        return {client: kind for client, kind in kinds.items() if client not in out}

    def _exchange(
        self,
        model: Followed,
        kinds: Mapping[int, Kind],
        payload: bytes | Callable[[int], bytes],
        read: Callable[[Kind, bytes], T],
        answers: dict[int, T],
        reasons: Reasons,
    ) -> list[int]:
        """One exchange with these clients; the ones whose model was another than thought are returned."""
        payloads = {client: payload(client) if callable(payload) else payload for client in kinds}
        requests = {client: self._request(model, client, kind, payloads[client]) for client, kind in kinds.items()}
        if not requests:
            return []
        named = {self.accounts[client].name: request for client, request in requests.items()}
        replies = self.transport.exchange(named, self.timeout)
        behind = []
        for client, request in requests.items():
            account = self.accounts[client]
            reply = replies.get(account.name, Failure(f"no answer in {self.timeout:g} s"))
            self._count(account, request, reply, kinds[client], model.program)
            told = True
            try:
                self._check_size(kinds[client], reply, payloads[client], model.program)
                answers[client] = read(kinds[client], _opened(account, request, reply, model))
            except _BehindError:
                behind.append(client)
                reasons[client], told = "cannot follow the model", False
            except FrameError as error:
                reasons[client], told = str(error), not isinstance(error, _RefusedError)
            if self.ledger is not None and told:
                self.ledger.charge(account, kinds[client], model.version, payloads[client])
        return behind

    def _check_size(self, kind: Kind, reply: bytes | Failure, payload: bytes, program: Program) -> None:
        """Nothing is made of a reply that is longer than an honest one can be."""
        update = program.largest_update if self.largest_update is None else self.largest_update
        most = update if kind == Kind.UPDATE else _REPORT + 8 * (4 * program.size + len(payload))
        if isinstance(reply, bytes) and len(reply) > Reply.overhead() + max(most, LONGEST):
            raise FrameError("an answer longer than any can be")

    def _request(self, model: Followed, client: int, kind: Kind, payload: bytes) -> bytes:
        account = self.accounts[client]
        parts, whole = model.since(account.held, self.seed, client)
        return Request(
            kind, self.run, self.attempt, model.version, model.checksum, account.used, parts, whole, payload
        ).encode()

    def _count(self, account: Account, request: bytes, reply: bytes | Failure, kind: Kind, program: Program) -> None:
        size = 0 if isinstance(reply, Failure) else len(reply)
        if size and kind == Kind.UPDATE and program.longest is not None and self.largest_update is None:
            size = Reply.overhead() + program.largest_update  # its own length tells of its client
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
        raise _RefusedError(told or "an error without a reason")
    if reply.kind != Kind.ANSWER or not same:
        raise FrameError("an answer of another version")
    return reply.content
