"""Flower's ``Grid`` in this process: nodes are clients with faults, and time passes only while somebody waits."""

import itertools
import zlib

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from fedsgm.federation import Failure
from fedsgm.federation.flower import transport
from fedsgm.federation.flower.transport import RECORD, FlowerTransport
from support.federated import Watched

SUPERLINK = 1  # the node that errors come from
TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # without which there are no messages


class Clock:
    """In place of ``time``."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def reply(message, content):
    """A node's reply."""
    return Message(RecordDict({RECORD: ConfigRecord(content)}), reply_to=message)


def error(message, reason):
    """What the SuperLink says on behalf of a node that is gone."""
    told = Message(Error(code=3, reason=reason), reply_to=message)
    old = told.metadata
    told.__dict__["_metadata"] = Metadata(
        *(old.run_id, old.message_id, SUPERLINK, old.dst_node_id, old.reply_to_message_id),
        *(old.group_id, old.created_at, old.ttl, old.message_type),
    )
    return told


class Grid:
    """``answer(node, message)`` gives the messages that come back: pairs of the seconds after which, and what."""

    def __init__(self, nodes, answer, clock):
        self.nodes, self._answer, self._clock = nodes, answer, clock
        self._numbers = itertools.count()
        self._replies = {}  # by request: when, what

    def get_nodes(self):
        return [NodeInfo(node_id=node, name=name) for node, name in self.nodes.items()]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            numbers.append(f"message-{next(self._numbers)}")
            message.metadata.__dict__["_message_id"] = numbers[-1]
            given = self._answer(message.metadata.dst_node_id, message)
            self._replies[numbers[-1]] = [(self._clock.now + after, each) for after, each in given]
        return numbers

    def pull_messages(self, numbers):
        found = [each for number in numbers for when, each in self._replies.get(number, ()) if when <= self._clock.now]
        for each in found:
            if isinstance(each, Exception):
                raise each
        return found


class OverFlower(Watched):
    """The clients of ``Watched`` as nodes of Flower. What a fault does to a message happens behind the ``Grid``.

    Every reply comes twice, the second time also as an answer to the node's next request.
    """

    def __init__(self, start, folder, plan=None):
        super().__init__(start, folder, plan)
        self.clock = Clock()
        names = self.clients()
        self._old = {}
        self.grid = Grid(dict(enumerate(names, 100)), self._deliver_over, self.clock)
        self.flower = FlowerTransport(names, self.grid)

    def exchange(self, requests, seconds):
        try:
            return self.flower.exchange(requests, seconds)
        finally:
            self.exchanges += 1

    def _deliver_over(self, node, message):
        name, record = self.grid.nodes[node], message.content[RECORD]
        assert (record["name"], record["kind"]) == (name, "ask")
        assert message.metadata.ttl == record["seconds"], "no longer than the server waits"
        late = self._late_requests.pop(name, None)
        rng = np.random.default_rng([self.exchanges, zlib.crc32(name.encode())])
        answer = self._under(self.plan(self.exchanges, name), name, record["bytes"], rng)
        if late is not None:
            self._deliver(name, late)
        if isinstance(answer, Failure):
            return [] if answer.reason == "no answer" else [(5.0, error(message, answer.reason))]
        told = reply(message, {"bytes": answer})
        came, self._old[name] = [(0.0, self._old[name])] if name in self._old else [], told
        return [*came, (2.5, told), (2.5, told)]


def patched(monkeypatch, carried):
    """Let the transport live by the clock of what it carries."""
    monkeypatch.setattr(transport, "time", carried.clock)
    return carried
