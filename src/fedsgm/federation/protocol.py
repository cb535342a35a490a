"""What the server and its clients say to each other, as bytes, and what an engine must be to carry it.

A request says which run, which attempt of the server (it counts how often a round was tried again or the run resumed)
and which round it belongs to; the model's version is the round. A reply says which request it answers. Both end in a
checksum: what is damaged, late or out of order is seen before anything is made of it.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedsgm.base.errors import ClientError, FedSGMError
from fedsgm.base.progress import harmless

VERSION = 2
WHOLE = 0xFFFF  # in place of a number of broadcasts: the whole model
NOTHING = -1  # the version of a client that holds no model; the round of a message that was never used
LONGEST = 300  # bytes of an error that is told
_DIMENSIONS = 8  # that an array may have: statistics have few, and what stacks them needs room for one more
_PARTS, _FORM = 10_000, 2**20  # that a packed tree may have, and bytes of its form
_MAGIC = b"fS"
_REQUEST = struct.Struct("<2sBBQIIIHi")
_REPLY = struct.Struct("<2sBBIiIf")
_CHECKSUM = struct.Struct("<I")
_SIZE = struct.Struct("<I")

log = logging.getLogger(__name__)


class FrameError(FedSGMError, ValueError):
    """Bytes that are no frame of this protocol, or not one that belongs here."""


def one_line(text: str) -> str:
    """What is passed on of somebody's words: nothing that a terminal would act on."""
    return harmless(" ".join(text[:LONGEST].split()))


def told(error: Exception) -> bytes:
    """What a client says of an error: the sentence of one that a federation makes itself, of any other its kind alone.

    What user code and the reading of data raise may quote rows and paths: that stays in the client's own log.
    """
    if isinstance(error, FrameError | ClientError):
        return str(error).encode(errors="replace")[:LONGEST]
    log.error("this client's code failed; the server is told of its kind alone", exc_info=error)
    return f"{type(error).__name__} in the client's own code; its log says more".encode()


class Kind(enum.IntFlag):
    """What is asked, and what kind of answer came. The first three may be asked at once."""

    MEASURE = 1  # statistics of the constraints
    EVALUATE = 2  # statistics of all quantities
    INSPECT = 4  # what there is to see of the step that led to this model
    UPDATE = 8
    ANSWER = 16
    BEHIND = 32  # the client does not hold the version that the request builds on
    ERROR = 64
    TEST = 128  # statistics of all quantities, of the examples that a client holds out
    KEYS = 144  # of secure aggregation: a client's card
    MEET = 160  # everybody's cards, for an offer
    TELL = 192  # who is in a sum, for shares


_KINDS = {*range(1, 8), Kind.UPDATE, Kind.ANSWER, Kind.BEHIND, Kind.ERROR, Kind.TEST}
_KINDS |= {Kind.KEYS, Kind.MEET, Kind.TELL}


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a client gave no answer, in a few words: lost, crashed, no answer in 60 s."""

    reason: str


class Transport(Protocol):
    """What an engine is: it knows who is there, and carries bytes there and back by a deadline."""

    def clients(self) -> Sequence[str]:
        """Their names, in an order that stays: a client's place in it is its number in the run."""
        ...

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | Failure]:
        """Each client's reply to its request, or why there was none; one that is missing gave no answer in time."""
        ...


@dataclasses.dataclass(frozen=True)
class Request:
    """What the server asks of one client.

    ``model`` is what leads the client to the model of this round: the broadcasts since the version that it holds, or
    the whole (``whole``). ``used`` is the round of the client's last message that the server used.
    """

    kind: Kind
    run: int
    attempt: int
    round: int
    replica: int  # the checksum of this round's model
    used: int = NOTHING
    model: tuple[bytes, ...] = ()
    whole: bool = False
    payload: bytes = b""

    def encode(self) -> bytes:
        count = WHOLE if self.whole else len(self.model)
        head = _REQUEST.pack(
            _MAGIC, VERSION, self.kind, self.run, self.attempt, self.round, self.replica, count, self.used
        )
        return seal(head + b"".join(_SIZE.pack(len(part)) + part for part in self.model) + self.payload)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        (kind, run, attempt, round, replica, count, used), rest = _open(data, _REQUEST)
        model = []
        for _ in range(1 if count == WHOLE else count):
            size = _SIZE.unpack_from(rest)[0] if len(rest) >= _SIZE.size else len(rest)
            if len(rest) < _SIZE.size + size:
                raise FrameError("the request ends too early")
            model.append(rest[_SIZE.size : _SIZE.size + size])
            rest = rest[_SIZE.size + size :]
        return cls(kind, run, attempt, round, replica, used, tuple(model), count == WHOLE, rest)


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a client answers: to which request, and which model it holds now."""

    kind: Kind
    request: int  # the request's checksum
    version: int
    replica: int
    seconds: float  # how long the client worked
    content: bytes

    def encode(self) -> bytes:
        head = _REPLY.pack(_MAGIC, VERSION, self.kind, self.request, self.version, self.replica, self.seconds)
        return seal(head + self.content)

    @staticmethod
    def overhead() -> int:
        """Bytes beside the content."""
        return _REPLY.size + _CHECKSUM.size

    @classmethod
    def decode(cls, data: bytes) -> Reply:
        (kind, request, version, replica, seconds), content = _open(data, _REPLY)
        return cls(kind, request, version, replica, seconds, content)


def header(data: bytes) -> tuple[Kind, int, int, int]:
    """Of a request its kind, run, attempt and round."""
    if len(data) < _REQUEST.size or data[:2] != _MAGIC or data[3] not in _KINDS:
        raise FrameError("the bytes are no frame of fedsgm")
    _, _, kind, run, attempt, round, *_ = _REQUEST.unpack_from(data)
    return Kind(kind), run, attempt, round


def seal(frame: bytes) -> bytes:
    """The frame and its checksum."""
    return frame + _CHECKSUM.pack(zlib.crc32(frame))


def unseal(data: bytes) -> bytes:
    """A frame without its checksum, which must match."""
    if zlib.crc32(data[: -_CHECKSUM.size]) != checksum_of(data):
        raise FrameError("the frame is damaged: its checksum does not match")
    return data[: -_CHECKSUM.size]


def checksum_of(frame: bytes) -> int:
    """The checksum that a whole frame ends in: its name, for the reply."""
    return int(_CHECKSUM.unpack(frame[-_CHECKSUM.size :])[0]) if len(frame) >= _CHECKSUM.size else 0


def checksum(vector: np.ndarray) -> int:
    """Of a model, to tell two apart."""
    return zlib.crc32(np.ascontiguousarray(vector, np.float32).data)


def _open(data: bytes, header: struct.Struct) -> tuple[tuple[Any, ...], bytes]:
    """The header's fields after magic and version, and what follows it."""
    if len(data) < header.size + _CHECKSUM.size or data[:2] != _MAGIC:
        raise FrameError("the bytes are no frame of fedsgm")
    frame = unseal(data)
    _, version, kind, *fields = header.unpack_from(data)
    if version != VERSION:
        raise FrameError(f"the frame has format {version}, this fedsgm speaks format {VERSION}; use the same fedsgm")
    if kind not in _KINDS:
        raise FrameError(f"the frame is of an unknown kind, {kind}")
    return (Kind(kind), *fields), frame[header.size :]


def pack(tree: Any) -> bytes:
    """A nest of dictionaries, tuples, lists and float32 arrays: its form in JSON, then the numbers."""
    numbers: list[bytes] = []

    def form(node: Any) -> Any:
        if node is None:
            return None
        if type(node) is dict and all(type(key) is str for key in node):
            return {key: form(node[key]) for key in sorted(node)}
        if type(node) in (tuple, list):
            return [*(["list"] if type(node) is list else []), *map(form, node)]
        try:
            array = np.asarray(node, np.float32)
        except (TypeError, ValueError):
            raise FrameError(
                f"a {type(node).__name__} cannot travel; make statistics of arrays in tuples, lists and dictionaries"
            ) from None
        numbers.append(array.tobytes())
        return ",".join(map(str, array.shape))

    return json.dumps(form(tree), separators=(",", ":")).encode() + b"\0" + b"".join(numbers)


def unpack(data: bytes) -> Any:
    """What :func:`pack` packed; :class:`FrameError` for any other bytes. It has at most ``_PARTS`` parts."""
    text, numbers = form_of(data), memoryview(data)
    at = len(text) + 1
    parts = 0

    def build(form: Any) -> Any:
        nonlocal at, parts
        parts += 1
        if parts > _PARTS:
            raise ValueError
        if form is None:
            return None
        if isinstance(form, dict):
            return {key: build(value) for key, value in form.items()}
        if isinstance(form, list):
            return list(map(build, form[1:])) if form[:1] == ["list"] else tuple(map(build, form))
        shape = tuple(map(int, form.split(","))) if form else ()
        if min(shape, default=0) < 0 or len(shape) > _DIMENSIONS:
            raise ValueError
        begins, at = at, at + 4 * math.prod(shape)
        return np.frombuffer(numbers[begins:at], np.float32).reshape(shape)

    try:
        if len(text) > _FORM:
            raise ValueError
        tree = build(json.loads(text))
        if at != max(len(data), len(text) + 1):
            raise ValueError
    except (ValueError, AttributeError, RecursionError):
        raise FrameError("the numbers do not fit their form") from None
    return tree


def form_of(data: bytes) -> bytes:
    """The form of what was packed, to compare."""
    return data.partition(b"\0")[0]
