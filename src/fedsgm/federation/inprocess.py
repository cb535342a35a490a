"""A transport for tests: clients in this process, and the faults that networks, machines and people have.

A plan says which fault, if any, befalls which client in which exchange; :func:`seeded` makes one from rates.
"""

from __future__ import annotations

import dataclasses
import enum
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.core import wire
from fedsgm.core.feedback import compressor_of
from fedsgm.data.clients import Clients
from fedsgm.federation.client import Client, State, Store
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import Failure, Kind, Reply, Request, pack, unpack
from fedsgm.federation.signing import Identity, make_identities


class Fault(enum.Enum):
    """What befalls a request, the client that works on it, or its reply."""

    LOSE_REQUEST = enum.auto()
    LOSE_REPLY = enum.auto()
    LATE_REQUEST = enum.auto()  # it arrives after the next one
    LATE_REPLY = enum.auto()  # it arrives in place of the next one
    REQUEST_TWICE = enum.auto()
    REPLY_TWICE = enum.auto()  # the second time in place of the next one
    CORRUPT_REQUEST = enum.auto()  # one bit
    CORRUPT_REPLY = enum.auto()
    RANDOM_BYTES = enum.auto()
    KILL_BEFORE_WRITE = enum.auto()  # and a new process at once
    KILL_AFTER_WRITE = enum.auto()
    DELETE_STATE = enum.auto()  # and a new process, before the request
    RAISE = enum.auto()  # in the user's code
    NAN = enum.auto()  # in an answer that is otherwise in order, as the others below
    WRONG_SHAPE = enum.auto()
    ABSURD_NORM = enum.auto()
    OTHER_VERSION = enum.auto()


Plan = Callable[[int, str], Fault | None]
"""``plan(exchange, client)``; exchanges count from 0."""


def seeded(seed: int, rates: Mapping[Fault, float]) -> Plan:
    """Faults at random, each at its rate, by a seed: the same again for the same exchange and client."""

    def plan(exchange: int, client: str) -> Fault | None:
        draw = np.random.default_rng([seed, exchange, zlib.crc32(client.encode())]).random()
        for fault, end in zip(rates, np.cumsum(list(rates.values())), strict=True):
            if draw < end:
                return fault
        return None

    return plan


class Killed(BaseException):
    """The end of a client's process; no handler of its own code sees it."""


class InProcess:
    """Clients in this process, each with a folder of its own, under a plan of faults."""

    def __init__(self, start: Mapping[str, Callable[[], Client]], folder: Path, plan: Plan | None = None) -> None:
        self._start, self._folder = start, folder
        self.plan = plan or (lambda _exchange, _client: None)
        self.processes = {name: new() for name, new in start.items()}
        self.exchanges = 0
        self.identity: Identity | None = None  # the server's, which secure aggregation checks others by
        self._late_requests: dict[str, bytes] = {}
        self._late_replies: dict[str, bytes] = {}

    @classmethod
    def of(
        cls,
        program: Program,
        clients: Clients | Sequence[Any],
        folder: str | Path,
        plan: Plan | None = None,
        secure: bool = False,
    ) -> InProcess:
        """One client for each of ``clients``, named client-0, client-1, ...; with certificates if ``secure``."""
        folder, names = Path(folder), [f"client-{j}" for j in range(len(clients))]
        identities = make_identities([*names, "server"]) if secure else {}

        def starter(j: int) -> Callable[[], Client]:
            own = folder / names[j]

            def start() -> Client:
                if not secure:
                    return Client(program, clients[j], own)
                from fedsgm.federation.masking import Secured

                return Client(program, clients[j], own, secure=Secured(identities[names[j]], own, program, "server"))

            return start

        made = cls({name: starter(j) for j, name in enumerate(names)}, folder, plan)
        made.identity = identities.get("server")
        return made

    def clients(self) -> list[str]:
        return list(self._start)

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure]:
        number, self.exchanges = self.exchanges, self.exchanges + 1
        replies = {}
        for name, request in requests.items():
            rng = np.random.default_rng([number, zlib.crc32(name.encode())])
            late = self._late_requests.pop(name, None)
            reply = self._under(self.plan(number, name), name, request, rng)
            if late is not None:
                self._deliver(name, late)
            replies[name] = reply
        return replies

    def restart(self, name: str) -> None:
        """End the client's process and start it anew from its folder."""
        self.processes[name] = self._start[name]()

    def delete(self, name: str) -> None:
        """The same, with nothing left in the folder."""
        shutil.rmtree(self._folder / name, ignore_errors=True)
        self.restart(name)

    def _under(self, fault: Fault | None, name: str, request: bytes, rng: np.random.Generator) -> bytes | Failure:
        """What comes back for a request under a fault."""
        if fault in (Fault.LOSE_REQUEST, Fault.LATE_REQUEST):
            if fault == Fault.LATE_REQUEST:
                self._late_requests[name] = request
            return Failure("no answer")
        if fault == Fault.DELETE_STATE:
            self.delete(name)
        if fault == Fault.CORRUPT_REQUEST:
            request = _one_bit(request, rng)
        if fault == Fault.REQUEST_TWICE:
            self._deliver(name, request)
        reply = self._deliver(name, request, fault)
        if isinstance(reply, Failure):
            return reply
        earlier = self._late_replies.pop(name, None)
        if fault in (Fault.LATE_REPLY, Fault.REPLY_TWICE):
            self._late_replies[name] = reply
        if earlier is not None:
            return earlier
        if fault in (Fault.LOSE_REPLY, Fault.LATE_REPLY):
            return Failure("no answer")
        if fault == Fault.CORRUPT_REPLY:
            return _one_bit(reply, rng)
        if fault == Fault.RANDOM_BYTES:
            return rng.bytes(int(rng.integers(200)))
        if fault in (Fault.NAN, Fault.WRONG_SHAPE, Fault.ABSURD_NORM, Fault.OTHER_VERSION):
            return _forged(self.processes[name].program, Request.decode(request).kind, reply, fault)
        return reply

    def _deliver(self, name: str, request: bytes, fault: Fault | None = None) -> bytes | Failure:
        """The client's answer, unless it is killed over it."""
        client = self.processes[name]
        if not isinstance(client, Client):  # one that is yet to be agreed with has no faults of its own
            return client.answer(request)
        before = client.program, client.store
        if fault == Fault.RAISE:
            client.program = _Raising(**{f.name: getattr(client.program, f.name) for f in dataclasses.fields(Program)})
        if fault in (Fault.KILL_BEFORE_WRITE, Fault.KILL_AFTER_WRITE):
            client.store = _Killing(client.store, fault)
        try:
            reply = client.answer(request)
            if fault in (Fault.KILL_BEFORE_WRITE, Fault.KILL_AFTER_WRITE):  # in an exchange that writes nothing
                raise Killed
        except Killed:
            self.restart(name)
            return Failure("its process ended")
        client.program, client.store = before
        return reply


class _Raising(Program):
    """A program whose user's code raises."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("measure", "evaluate", "local_update"):
            raise RuntimeError("the user's code fails")
        return super().__getattribute__(name)


class _Killing(Store):
    """A store in whose write the process ends."""

    def __init__(self, store: Store, fault: Fault) -> None:
        self._store, self._fault = store, fault

    def write(self, state: State) -> None:
        if self._fault == Fault.KILL_AFTER_WRITE:
            self._store.write(state)
        raise Killed


def _one_bit(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


def _forged(program: Program, kind: Kind, data: bytes, fault: Fault) -> bytes:
    """The reply as a client would send it that is itself wrong."""
    reply = Reply.decode(data)
    if reply.kind != Kind.ANSWER:
        return data
    if fault == Fault.OTHER_VERSION:
        return dataclasses.replace(reply, version=reply.version + 1).encode()
    if fault == Fault.WRONG_SHAPE:
        content = pack(({"a": np.zeros(3)}, (np.zeros(2),), None))
        if kind == Kind.UPDATE:
            longer = jnp.zeros(2 * program.size)
            compressor = compressor_of(program.algorithm.uplink)
            content = wire.encode(compressor.compress(longer, jax.random.key(0)), len(longer))
        return dataclasses.replace(reply, content=content).encode()
    factor = np.float32(np.nan if fault == Fault.NAN else 1e6)
    if kind == Kind.UPDATE:
        message = program.decode(reply.content, program.algorithm.uplink)
        grown = jax.tree.map(lambda a: a * factor if a.dtype == np.float32 else a, message)
        return dataclasses.replace(reply, content=program.encode(grown)).encode()
    if fault == Fault.NAN:
        return dataclasses.replace(
            reply, content=pack(jax.tree.map(lambda a: a * factor, unpack(reply.content)))
        ).encode()
    return data
