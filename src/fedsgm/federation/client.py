"""A client: it answers the server's requests, one at a time, and keeps its model and memory on its own disk.

What it must not forget, its model, its memory and its last message until the server has used it, is one file, written
whole or not at all, once for each update and before the answer leaves: a client that is killed at any moment comes back
either before its update or after it. A damaged file counts as none, because an older one would bring back what the
server has used.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedsgm.base.errors import CheckpointError
from fedsgm.base.files import write_atomically
from fedsgm.core import feedback
from fedsgm.core.compression import Identity
from fedsgm.engines import checkpoint
from fedsgm.engines.checkpoint import Saved
from fedsgm.federation.limits import Limits
from fedsgm.federation.program import At, Program
from fedsgm.federation.protocol import (
    NOTHING,
    FrameError,
    Kind,
    Reply,
    Request,
    checksum,
    checksum_of,
    pack,
    told,
)

log = logging.getLogger(__name__)

_AHEAD = 30 * 86_400 * 10**9  # nanoseconds by which a server's clock may be ahead of a client's
_CHECKSUM = 4  # bytes of a model's, before the direction
WELCOME = struct.Struct("<IIH")  # before a whole model: fingerprint, seed, the client's number


@dataclasses.dataclass(frozen=True)
class Sent:
    """The last message: when it was made and of what, model and direction, and the memory before it."""

    round: int
    made_of: bytes
    message: bytes
    before: Any


@dataclasses.dataclass(frozen=True)
class State:
    """A client's part of one run. ``memory``, the algorithm's own pytree, is right if the last message was used."""

    run: int
    attempt: int
    seed: int
    client: int
    version: int
    replica: np.ndarray
    memory: Any
    sent: Sent | None = None

    @property
    def checksum(self) -> int:
        return checksum(self.replica)


class Store:
    """The client's folder; ``memory`` is one of the form that the algorithm's have."""

    def __init__(self, folder: Path, memory: Any) -> None:
        self._path = Path(folder) / "state"
        self._memory = memory

    def write(self, state: State) -> None:
        numbers = {"run": state.run, "attempt": state.attempt, "seed": state.seed, "client": state.client}
        arrays = {"replica": state.replica} | checkpoint.pack("memory", state.memory)
        sent = state.sent
        if sent is not None:
            arrays |= {"made_of": _as_array(sent.made_of), "message": _as_array(sent.message)}
            arrays |= checkpoint.pack("before", sent.before)
        numbers["sent"] = NOTHING if sent is None else sent.round
        write_atomically(self._path, checkpoint.dump(Saved(state.version, arrays, numbers)), private=True)

    def read(self) -> State | None:
        """What was written last; None if there is nothing, or only what another algorithm has left."""
        if not self._path.exists():
            return None
        try:
            saved = checkpoint.read(self._path)
        except CheckpointError as error:
            log.warning("%s; this client begins anew, without its error memory", error)
            return None
        arrays, numbers = saved.arrays, dict(saved.settings)
        expected = checkpoint.pack("memory", self._memory)
        found = {name: array for name, array in arrays.items() if name.startswith("memory")}
        if {name: a.shape for name, a in found.items()} != {name: a.shape for name, a in expected.items()}:
            return None
        round, sent = numbers.pop("sent"), None
        if round != NOTHING:
            before = checkpoint.unpack("before", arrays, self._memory)
            sent = Sent(round, arrays["made_of"].tobytes(), arrays["message"].tobytes(), before)
        memory = checkpoint.unpack("memory", arrays, self._memory)
        return State(version=saved.round, replica=arrays["replica"], memory=memory, sent=sent, **numbers)


def _as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


class Secures(Protocol):
    """What stands between a client's work and its answers; :class:`fedsgm.federation.masking.Secured` does."""

    def answer(self, asked: Request, state: State, work: Callable[[Request, State], bytes]) -> bytes: ...


class _BehindError(Exception):
    """The client does not hold the model that the request builds on."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """A client's examples in two parts: to train on, and to judge by; it may have none of these."""

    train: Any
    test: Any = None


class Client:
    """One client of a federated run: ``answer`` gives the reply to a request, whatever bytes come.

    Args:
        program: the same as the server's.
        data: this client's own: for a :class:`Problem` its examples, a pytree of arrays, or :class:`Parts` of them.
        state_dir: the client's folder; what is there survives a restart of the process.
        fresh: whoever brings requests sees to it that none is an old one, so that another run is a new one, also where
            a server that has lost its state numbers it by a clock that was set back.
        quantities: the names of those that may be measured here; None is all.
        spend: told of how many models a request has measured beside the first; it raises where they are too many.
        secure: what masks every answer, where the server is to see sums alone.
    """

    def __init__(
        self,
        program: Program,
        data: Any,
        state_dir: str | Path,
        *,
        fresh: bool = False,
        quantities: Sequence[str] | None = None,
        spend: Callable[[int], None] | None = None,
        secure: Secures | None = None,
    ) -> None:
        Limits(quantities=quantities).check_quantities(("objective", *program.task.task.bounds))
        self.program, self._fresh, self._spend, self._secure = program, fresh, spend, secure
        parts = data if isinstance(data, Parts) else Parts(data)
        self.data = program.prepare(parts.train)
        self.test = None if parts.test is None else program.pooled.prepare(parts.test)
        self.store = Store(Path(state_dir), program.init_memory())
        self.state = self.store.read()
        self._measured: tuple[int, int] | None = None  # run and version
        self._keeps: Any = None  # of that measurement, for the update that follows
        self._before: tuple[State, Any] | None = None  # the state before the step that is inspected, and what it kept
        self._busy = threading.Lock()

    def answer(self, request: bytes) -> bytes:
        """The reply. What goes wrong, in the request or in the user's code, is told in it in one line."""
        with self._busy:
            began = time.perf_counter()
            run = None
            try:
                asked = Request.decode(request)
                run = asked.run
                self._look_back(asked)
                self.state = self._follow(asked)
                kind, content = Kind.ANSWER, self._work(asked, self.state)
            except _BehindError:
                kind, content = Kind.BEHIND, b""
            except Exception as error:
                kind, content = Kind.ERROR, told(error)
            mine = self.state is not None and self.state.run == run
            version, replica = (self.state.version, self.state.checksum) if self.state and mine else (NOTHING, 0)
            seconds = time.perf_counter() - began
            return Reply(kind, checksum_of(request), version, replica, seconds, content).encode()

    def _look_back(self, asked: Request) -> None:
        """Keep the state before the step that is asked about, as long as it is here."""
        state = self.state
        if asked.kind & Kind.INSPECT and state and (state.run, state.version) == (asked.run, asked.round - 1):
            self._before = (state, self._kept(state))

    def _follow(self, asked: Request) -> State:
        """The state with the model of the request's round; requests that a newer one has overtaken are refused."""
        state = self.state
        if state is None or asked.run != state.run:
            self._check_run(asked.run, 0 if state is None else state.run)
        if state is not None and asked.run == state.run:
            if (asked.attempt, asked.round) < (state.attempt, state.version):
                raise FrameError(f"the request is of round {asked.round}, but version {state.version} is here already")
        elif not asked.whole:
            raise _BehindError
        if asked.whole:
            state = self._welcome(asked, state)
        else:
            assert state is not None
            first = asked.round - len(asked.model)
            if not first <= state.version <= asked.round:
                raise _BehindError
            replica = state.replica
            for broadcast in asked.model[state.version - first :]:
                replica = self.program.receive(replica, self.program.decode(broadcast, self.program.algorithm.downlink))
            state = dataclasses.replace(state, attempt=asked.attempt, version=asked.round, replica=replica)
        if state.checksum != asked.replica:
            if self.state is not None:  # this replica leads nowhere: ask for the whole model
                self.state = dataclasses.replace(self.state, version=NOTHING)
            raise _BehindError
        return state

    def _check_run(self, run: int, known: int) -> None:
        """Refuse a run that cannot be a new one: its number is the server's clock, in nanoseconds, when it began."""
        if run < known and not self._fresh:
            raise FrameError("the request is of an earlier run")
        if run > max(time.time_ns(), known) + _AHEAD:
            raise FrameError("the request is of a run that begins in days to come; set the clocks of both machines")

    def _welcome(self, asked: Request, state: State | None) -> State:
        """The state with a whole model; at the start of a run, also with an empty memory."""
        if len(asked.model[0]) < WELCOME.size:
            raise FrameError("the model ends too early")
        fingerprint, seed, client = WELCOME.unpack_from(asked.model[0])
        if fingerprint != self.program.fingerprint:
            raise FrameError("the client runs another program than the server; start both with the same settings")
        message = self.program.decode(asked.model[0][WELCOME.size :], Identity())
        if state is None or state.run != asked.run:
            memory = self.program.init_memory()
            return State(asked.run, asked.attempt, seed, client, asked.round, message.values, memory)
        return dataclasses.replace(
            state, attempt=asked.attempt, client=client, version=asked.round, replica=message.values
        )

    def _work(self, asked: Request, state: State) -> bytes:
        return self._plainly(asked, state) if self._secure is None else self._secure.answer(asked, state, self._plainly)

    def _plainly(self, asked: Request, state: State) -> bytes:
        if asked.kind in (Kind.KEYS, Kind.MEET, Kind.TELL):
            raise FrameError("the client runs without secure aggregation; start both with the same settings")
        if asked.kind == Kind.UPDATE:
            return self._update(asked, state)
        models = np.frombuffer(asked.payload, np.float32).reshape(-1, self.program.size)
        if self._spend is not None and asked.kind & (Kind.EVALUATE | Kind.TEST):
            self._spend(max(len(models) - (asked.kind == Kind.TEST), 0))  # of a test the first is among them
        if asked.kind == Kind.TEST:
            if self.test is None:
                return pack(None)
            return pack(tuple(self.program.pooled.evaluate(w, self.test, state.memory) for w in models))
        statistics = evaluations = inspected = None
        if asked.kind & Kind.INSPECT and self._before is not None:
            before, kept = self._before
            if (before.run, before.version) == (state.run, state.version - 1):
                at = At.of(state.seed, before.version, state.client)
                inspected = self.program.inspect(before.replica, state.replica, kept, at)
        if asked.kind & Kind.MEASURE:
            statistics = self._measure(state)
        if asked.kind & Kind.EVALUATE:
            every = (state.replica, *models)
            evaluations = tuple(self.program.evaluate(w, self.data, state.memory) for w in every)
        return pack((statistics, evaluations, inspected))

    def _measure(self, state: State) -> Any:
        at = At.of(state.seed, state.version, state.client)
        statistics, self._keeps = self.program.measure(state.replica, self.data, at, state.memory)
        self._measured = (state.run, state.version)
        return statistics

    def _kept(self, state: State) -> Any:
        """What the task kept of its measurement at this model, which is made again if it was another process's."""
        if self._measured != (state.run, state.version):
            self._measure(state)
        return self._keeps

    def _update(self, asked: Request, state: State) -> bytes:
        """The message of this round: the one that was made already, or a new one, on disk before it is sent."""
        memory, made_of = state.memory, asked.replica.to_bytes(_CHECKSUM, "little") + asked.payload
        if state.sent is not None:
            if (state.sent.round, state.sent.made_of) == (asked.round, made_of):
                return state.sent.message
            memory = self._settled(state, state.sent, asked)
        kept = self._kept(state)
        direction = self.program.direction(asked.payload)
        at = At.of(state.seed, asked.round, state.client)
        message, after = self.program.local_update(state.replica, direction, self.data, kept, memory, at)
        vector = self.program.dense(message, self.program.algorithm.uplink)
        if not np.isfinite(vector).all() or not feedback.is_sound(after):
            raise FrameError("the update has a NaN or an infinite entry")
        sent = Sent(asked.round, made_of, self.program.encode(message), memory)
        new = dataclasses.replace(state, memory=after, sent=sent)
        self.store.write(new)
        self.state = new
        return sent.message

    def _settled(self, state: State, sent: Sent, asked: Request) -> Any:
        """The memory, now that the server says whether it used the last message.

        If it did not, the message goes back into the memory. If the server does that very round again, because it was
        stopped before it could use the message, the update is undone: the round's new one takes its place. So is one
        that robust aggregation may have left out: see ``feedback.settled``.
        """
        if asked.used == sent.round:
            return state.memory
        if sent.round >= asked.round or self.program.algorithm.robust is not None:
            return sent.before
        uplink = self.program.algorithm.uplink
        named = self.program.direction(sent.made_of[_CHECKSUM:]).named
        vector = self.program.dense(self.program.decode(sent.message, uplink, named), uplink)
        return feedback.take_back(state.memory, sent.before, vector)
