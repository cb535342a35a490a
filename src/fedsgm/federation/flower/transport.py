"""Flower underneath: requests are pushed through a ``Grid``, and answers are looked for until a deadline of our own.

A node is a client by the name that its key was registered with. Where no key has a name, as in Flower's simulation,
nodes are asked for theirs. A message is valid no longer than the server waits for its answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsgm.base.errors import FedSGMError
from fedsgm.federation.protocol import Failure, one_line

RECORD = "fedsgm"  # of a message
LARGEST = 1 << 30  # bytes of an answer
_LOOK_EVERY = 0.2  # seconds between two looks for answers, each a request to the SuperLink
_LOAD = 600.0  # seconds that the clients have to load their data
_ASK = 60.0  # seconds that nodes have to say their names

log = logging.getLogger(__name__)


class FlowerTransport:
    """Carries requests to Flower's nodes; what a client does not answer becomes a failure, never an exception."""

    def __init__(self, names: Sequence[str], grid: Grid) -> None:
        self._names = list(names)
        self._grid = grid
        self._said: dict[int, str] = {}  # nodes' own words

    def clients(self) -> Sequence[str]:
        return self._names

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure]:
        """Ask them all at once, and look for their answers until the time is over."""
        return {
            name: record if isinstance(record, Failure) else _bytes(record)
            for name, record in self._talk(requests, "ask", seconds).items()
        }

    def await_clients(self, seconds: float) -> None:
        """Wait until every client has joined, for so long, and until those have loaded their data or cannot."""
        deadline = time.monotonic() + seconds
        while missing := [name for name in self._names if name not in self._nodes()]:
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_EVERY)
        if len(missing) == len(self._names):
            raise FedSGMError(f"no client joined within {seconds:g} s; see that their nodes run and are registered")
        there = dict.fromkeys((name for name in self._names if name not in missing), b"")
        failed = {name: why for name, why in self._statuses(there).items() if why != "ready"}
        for name, why in (dict.fromkeys(missing, "it has not joined") | failed).items():
            log.warning("%s: %s", name, why)
        if len(failed) == len(there):
            name = min(failed)
            raise FedSGMError(f"no client could be set up; {name}: {failed[name]}")

    def _statuses(self, requests: Mapping[str, bytes]) -> dict[str, str]:
        return {
            name: record.reason if isinstance(record, Failure) else one_line(str(record.get("status", "")))
            for name, record in self._talk(requests, "look", _LOAD).items()
        }

    def _talk(self, requests: Mapping[str, bytes], kind: str, seconds: float) -> dict[str, ConfigRecord | Failure]:
        """What each client's record says."""
        nodes = self._nodes()
        records = {
            nodes[name]: ConfigRecord({"kind": kind, "name": name, "bytes": request, "seconds": float(seconds)})
            for name, request in requests.items()
            if name in nodes
        }
        replies = self._ask(records, seconds)
        return {name: replies[nodes[name]] if name in nodes else Failure("it is not connected") for name in requests}

    def _ask(self, records: Mapping[int, ConfigRecord], seconds: float) -> dict[int, ConfigRecord | Failure]:
        """What each node says to its record, by the deadline."""
        deadline = time.monotonic() + seconds
        replies: dict[int, ConfigRecord | Failure] = {}
        waiting: dict[str, int] = {}  # nodes by message
        for node, record in records.items():
            message = Message(RecordDict({RECORD: record}), node, MessageType.QUERY, ttl=float(seconds))
            if number := next(iter(self._grid.push_messages([message])), None):
                waiting[number] = node
            else:
                replies[node] = Failure("Flower did not take the request")
        while waiting and time.monotonic() < deadline:
            for number, node in list(waiting.items()):
                if (reply := self._pull(number, node)) is not None:
                    replies[node] = reply
                    del waiting[number]
            if waiting:
                time.sleep(_LOOK_EVERY)
        return replies | {node: Failure(f"no answer in {seconds:g} s") for node in waiting.values()}

    def _pull(self, number: str, node: int) -> ConfigRecord | Failure | None:
        """The answer to a message, if it is there. Each is pulled alone: one that is damaged harms no other."""
        try:
            found = list(self._grid.pull_messages([number]))
        except Exception as error:
            return Failure(f"its answer cannot be read ({type(error).__name__})")
        for message in found:
            if message.metadata.reply_to_message_id == number:
                return _opened(message, node)
        return None

    def _nodes(self) -> dict[str, int]:
        """The nodes that are there, by their clients' names; a name that two have is nobody's."""
        nodes = list(self._grid.get_nodes())
        named = [(node.name, node.node_id) for node in nodes if node.name]
        if not named:
            named = self._own_words([node.node_id for node in nodes])
        count: dict[str, int] = {}
        for name, _ in named:
            count[name] = count.get(name, 0) + 1
        return {name: node for name, node in named if name in self._names and count[name] == 1}

    def _own_words(self, nodes: Sequence[int]) -> list[tuple[str, int]]:
        """The names that nodes give themselves, where no key was registered with one."""
        who = {node: ConfigRecord({"kind": "who"}) for node in nodes if node not in self._said}
        for node, record in self._ask(who, _ASK).items():
            if not isinstance(record, Failure):
                self._said[node] = one_line(str(record.get("name", "")))
        return [(self._said[node], node) for node in nodes if node in self._said]


def _opened(message: Message, node: int) -> ConfigRecord | Failure:
    """What a message says. Errors on a node's behalf come from the SuperLink; anything else must be the node's own."""
    if message.has_error():
        return Failure(one_line(str(message.error.reason or "its part of the run failed")))
    record: Any = message.content.get(RECORD) if message.metadata.src_node_id == node else None
    if not isinstance(record, ConfigRecord):
        return Failure("its answer is none of fedsgm's")
    if isinstance(reason := record.get("reason"), str):
        return Failure(one_line(reason) or "an error without a reason")
    return record


def _bytes(record: ConfigRecord) -> bytes | Failure:
    answer = record.get("bytes")
    if not isinstance(answer, bytes):
        return Failure("its answer is none of fedsgm's")
    return answer if len(answer) <= LARGEST else Failure("its answer is too large")
