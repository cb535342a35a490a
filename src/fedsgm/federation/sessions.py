"""A conversation of a server with one client in which every request and every reply is signed.

Both begin with a fresh Ed25519 key, which the site's own key signs for this run, this client and, on the client's part,
this key of the server: nothing of an earlier conversation is of use in it. Requests are numbered, and a client takes
each number once. A reply's signature covers the request that it answers. ``docs/wire.md`` has the bytes.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedsgm.federation.protocol import LONGEST, Failure, Transport, one_line
from fedsgm.federation.signing import ED25519, Identity, Unsigned, digest

VERSION = 1
HELLO, REQUEST, REPLY, REFUSAL = b"fH", b"fQ", b"fA", b"fN"
STRANGER, REFUSED = 0, 1  # why a client refuses: it has no such conversation, or the request is not its server's
_GREETING = 2**17  # bytes of a hello that is read
_PENDING = 4  # conversations that may have begun without a request yet
_HEAD = struct.Struct("<2sB")
_REQUEST = struct.Struct("<2sB16sQf")
_DONE, _FAILED = b"\0", b"\1"
_WHY = {
    STRANGER: "it does not know this conversation",
    REFUSED: "it refuses a request that its server has not signed for it; its audit log says more",
}


def refusal(why: int) -> bytes:
    """What anybody is told whose request is not answered; it is not signed, and says nothing."""
    return _HEAD.pack(REFUSAL, VERSION) + bytes([why])


def _frame(magic: bytes, words: Mapping[str, Any]) -> bytes:
    return _HEAD.pack(magic, VERSION) + json.dumps(words).encode()


def _words(magic: bytes, data: bytes) -> dict[str, Any]:
    if data[:3] != _HEAD.pack(magic, VERSION) or len(data) > _GREETING:
        raise Unsigned("this is no greeting of this version")
    try:
        words = json.loads(data[3:])
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, dict):
        raise Unsigned("the greeting cannot be read")
    return words


def _bytes(words: Mapping[str, Any], name: str, size: int | None = None) -> bytes:
    try:
        found = bytes.fromhex(words[name])
    except (LookupError, ValueError, TypeError):
        found = None
    if found is None or (size is not None and len(found) != size):
        raise Unsigned("the greeting cannot be read")
    return found


@dataclasses.dataclass
class Session:
    """One of them, at either end. ``id`` names it; ``number`` is that of the last request."""

    own: Ed25519PrivateKey
    other: Ed25519PublicKey
    about: bytes  # digest of all that was agreed on
    number: int = 0

    @classmethod
    def of(cls, own: Ed25519PrivateKey, other: bytes, *agreed: bytes) -> Session:
        return cls(own, Ed25519PublicKey.from_public_bytes(other), digest("fedsgm session", *agreed))

    @property
    def id(self) -> bytes:
        return self.about[:16]

    def sign(self, purpose: str, *parts: bytes) -> bytes:
        return self.own.sign(digest(purpose, self.about, *parts))

    def check(self, signature: bytes, purpose: str, *parts: bytes) -> None:
        try:
            self.other.verify(signature, digest(purpose, self.about, *parts))
        except InvalidSignature:
            raise Unsigned("the signature is wrong") from None


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request that was signed: its frame, how long the server waits, and what a reply to it is signed for."""

    session: Session
    frame: bytes
    seconds: float
    digest: bytes
    clients: tuple[str, ...]

    def reply(self, content: bytes, *, failed: bool = False) -> bytes:
        head = _HEAD.pack(REPLY, VERSION) + (_FAILED if failed else _DONE)
        return head + content + self.session.sign("fedsgm reply", self.digest, head, content)


class Listener:
    """A client's end. ``open`` gives what its server asks; everything else is :class:`Unsigned`.

    A conversation takes the place of the one before with its first signed request: no greeting ends one.
    """

    def __init__(self, identity: Identity, server: str, run: str) -> None:
        self.identity, self._server, self._run = identity, server, run
        self._active: tuple[Session, tuple[str, ...]] | None = None
        self._pending: collections.OrderedDict[bytes, tuple[Session, tuple[str, ...]]] = collections.OrderedDict()

    def greet(self, data: bytes) -> tuple[bytes, tuple[str, ...]]:
        """The answer to the server's hello, and the clients that the run has by its word."""
        words = _words(HELLO, data)
        theirs, clients = _bytes(words, "key", 32), words.get("clients")
        if not isinstance(clients, list) or not all(isinstance(each, str) for each in clients):
            raise Unsigned("the greeting cannot be read")
        said = (self._run.encode(), self.identity.name.encode(), json.dumps(clients).encode(), theirs)
        certificate, signature = _bytes(words, "certificate"), _bytes(words, "signature")
        self.identity.check(self._server, certificate, signature, "fedsgm hello of a server", *said)
        own = Ed25519PrivateKey.generate()
        mine = own.public_key().public_bytes_raw()
        session = Session.of(own, theirs, *said, mine)
        self._pending[session.id] = (session, tuple(clients))
        while len(self._pending) > _PENDING:
            self._pending.popitem(last=False)
        answer = {
            "key": mine.hex(),
            "certificate": self.identity.certificate.hex(),
            "signature": self.identity.sign("fedsgm hello of a client", *said, mine).hex(),
        }
        return _frame(HELLO, answer), tuple(clients)

    def open(self, data: bytes) -> Asked | None:
        """What is asked, if the server has signed it and it is new; None if there is no such conversation."""
        if len(data) < _REQUEST.size + ED25519 or data[:3] != _HEAD.pack(REQUEST, VERSION):
            raise Unsigned("this is no signed request of this version")
        _, _, name, number, seconds = _REQUEST.unpack_from(data)
        found = self._pending.get(name)
        if found is None and self._active is not None and self._active[0].id == name:
            found = self._active
        if found is None:
            return None
        session, clients = found
        signed, signature = data[:-ED25519], data[-ED25519:]
        session.check(signature, "fedsgm request", signed)
        if number <= session.number:
            raise Unsigned(f"the request has the number {number}, but {session.number} was here already")
        session.number = number
        if self._pending.pop(name, None) is not None:
            self._active = found
        wait = seconds if math.isfinite(seconds) and seconds > 0 else 0.0
        return Asked(session, signed[_REQUEST.size :], wait, digest("fedsgm asked", signed), clients)


class Signed:
    """A transport whose requests this server signs and whose replies are the clients' own."""

    def __init__(self, transport: Transport, identity: Identity, run: str) -> None:
        self._transport, self.identity, self._run = transport, identity, run
        self._sessions: dict[str, Session] = {}

    def clients(self) -> Sequence[str]:
        return self._transport.clients()

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure]:
        replies = self._carry(requests, seconds)
        strangers = {name: requests[name] for name, reply in replies.items() if reply is None}
        for name in strangers:  # its process was started again
            del self._sessions[name]
        again = self._carry(strangers, seconds)
        return {name: Failure(_WHY[STRANGER]) if reply is None else reply for name, reply in (replies | again).items()}

    def _carry(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure | None]:
        """None from those who do not know this conversation."""
        failed = self._greet([name for name in requests if name not in self._sessions], seconds)
        sealed: dict[str, bytes] = {}
        for name, frame in requests.items():
            if name not in failed:
                session = self._sessions[name]
                session.number += 1
                signed = _REQUEST.pack(REQUEST, VERSION, session.id, session.number, seconds) + frame
                sealed[name] = signed + session.sign("fedsgm request", signed)
        replies = self._transport.exchange(sealed, seconds) if sealed else {}
        return {**failed, **{name: self._opened(name, sealed[name], reply) for name, reply in replies.items()}}

    def _opened(self, name: str, sealed: bytes, reply: bytes | Failure) -> bytes | Failure | None:
        if isinstance(reply, Failure):
            return reply
        if reply[:3] == _HEAD.pack(REFUSAL, VERSION) and len(reply) == 4:
            return None if reply[3] == STRANGER else Failure(_WHY[REFUSED])
        head, content, signature = reply[:4], reply[4:-ED25519], reply[-ED25519:]
        try:
            if len(reply) < 4 + ED25519 or head[:3] != _HEAD.pack(REPLY, VERSION):
                raise Unsigned("no signature")
            asked = digest("fedsgm asked", sealed[:-ED25519])
            self._sessions[name].check(signature, "fedsgm reply", asked, head, content)
        except Unsigned:
            return Failure("an answer that it has not signed, or to another request")
        if head[3:] == _FAILED:
            return Failure(one_line(content[:LONGEST].decode(errors="replace")) or "an error without a reason")
        return content

    def _greet(self, names: Sequence[str], seconds: float) -> dict[str, Failure]:
        """Begin a conversation with each of them; why it could not."""
        if not names:
            return {}
        own, clients = {name: Ed25519PrivateKey.generate() for name in names}, list(self.clients())
        keys = {name: key.public_key().public_bytes_raw() for name, key in own.items()}
        said = {n: (self._run.encode(), n.encode(), json.dumps(clients).encode(), keys[n]) for n in names}
        hellos = {
            name: _frame(
                HELLO,
                {
                    "key": keys[name].hex(),
                    "clients": clients,
                    "certificate": self.identity.certificate.hex(),
                    "signature": self.identity.sign("fedsgm hello of a server", *said[name]).hex(),
                },
            )
            for name in names
        }
        replies, failed = self._transport.exchange(hellos, seconds), {}
        for name in names:
            reply = replies.get(name, Failure(f"no answer in {seconds:g} s"))
            try:
                if isinstance(reply, Failure):
                    failed[name] = reply
                else:
                    self._sessions[name] = self._begun(name, own[name], said[name], reply)
            except Unsigned as error:
                failed[name] = Failure(f"it is not known to be {name}: {error}")
        return failed

    def _begun(self, name: str, own: Ed25519PrivateKey, said: tuple[bytes, ...], reply: bytes) -> Session:
        if reply[:3] == _HEAD.pack(REFUSAL, VERSION):
            raise Unsigned("it refuses the greeting; its audit log says why")
        words = _words(HELLO, reply)
        theirs = _bytes(words, "key", 32)
        certificate, signature = _bytes(words, "certificate"), _bytes(words, "signature")
        self.identity.check(name, certificate, signature, "fedsgm hello of a client", *said, theirs)
        return Session.of(own, theirs, *said, theirs)
