"""What the tests put between a run's server and Flower: messages are lost, late or repeated, by a schedule.

It travels with the app. Who answered what is written down, so that the run can be made again without the faults.
"""

import functools
import itertools
import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedsgm.federation.flower import server, transport
from fedsgm.federation.flower.transport import RECORD, FlowerTransport
from fedsgm.federation.inprocess import Fault
from fedsgm.federation.protocol import Kind, Reply, Request

SCHEDULE = (  # of ten requests to a client three are lost on one of the two ways
    None,
    Fault.LOSE_REQUEST,
    Fault.REQUEST_TWICE,
    Fault.LOSE_REPLY,
    None,
    Fault.LATE_REPLY,
    Fault.LOSE_REQUEST,
    Fault.REPLY_TWICE,
    Fault.LATE_REQUEST,
    None,
)
OVER = "over"
ANSWERS, STRUCK = "answers.txt", "struck.txt"


class Clock:
    """In place of ``time``: the server need not wait for what will not come."""

    def __init__(self):
        self.ahead = 0.0
        self.sleep = time.sleep

    def monotonic(self):
        return time.monotonic() + self.ahead


class Lossy:
    """A ``Grid`` between the transport, which pushes and pulls one message at a time, and Flower's own."""

    def __init__(self, grid, clock, struck):
        self._grid, self._clock, self._struck = grid, clock, struck
        self._lost = (f"lost-{i}" for i in itertools.count())
        self._late = {}  # requests, by node
        self._old = {}  # what gives answers that come once more, by node
        self._fates = {}  # of this exchange's messages: fault and node; the answer of one that is OVER cannot come
        self._looked = False

    def get_nodes(self):
        return self._grid.get_nodes()

    def push_messages(self, messages):
        [message] = messages
        record, node = message.content[RECORD], message.metadata.dst_node_id
        if self._looked:
            self._fates, self._looked = {}, False
        fault = self._next(record["name"]) if record["kind"] == "ask" else None
        if fault in (Fault.LOSE_REQUEST, Fault.LATE_REQUEST):
            number = next(self._lost)
        else:
            if fault == Fault.REQUEST_TWICE:
                again = RecordDict({RECORD: ConfigRecord(dict(record))})
                self._grid.push_messages([Message(again, node, MessageType.QUERY, ttl=message.metadata.ttl)])
            [number] = self._grid.push_messages(messages)
        if late := self._late.pop(node, None):
            self._grid.push_messages([late])
        if fault == Fault.LATE_REQUEST:
            self._late[node] = message
        if fault == Fault.LATE_REPLY:
            self._old[node] = functools.partial(self._grid.pull_messages, [number])
        over = (Fault.LOSE_REQUEST, Fault.LATE_REQUEST, Fault.LATE_REPLY)
        self._fates[number] = (OVER if fault in over else fault, node)
        return [number]

    def pull_messages(self, numbers):
        [number] = numbers
        self._looked = True
        fault, node = self._fates[number]
        if fault == OVER:
            if {fault for fault, _ in self._fates.values()} == {OVER}:
                self._clock.ahead += 1e6  # the deadline is over
            return []
        found = list(self._grid.pull_messages(numbers))
        if not found:
            return []
        self._fates[number] = (OVER, node)
        if fault == Fault.LOSE_REPLY:
            return []
        before = self._old.pop(node, list)
        if fault == Fault.REPLY_TWICE:
            self._old[node] = found.copy
        return [*before(), *found, *found]

    def _next(self, name):
        """What befalls the next request to a client; a server that is begun again goes on where the last one was."""
        with self._struck.open("a+") as file:
            file.seek(0)
            count = sum(line.startswith(f"{name} ") for line in file)
            fault = SCHEDULE[(4 * int(name[-1]) + count) % len(SCHEDULE)]
            file.write(f"{name} {fault.name if fault else 'none'}\n")
        return fault


class Noted(FlowerTransport):
    """Writes down who answered: a line for each exchange, and one for the begin of a server."""

    def __init__(self, names, grid, path):
        super().__init__(names, grid)
        self._path = path
        self._note(None)

    def exchange(self, requests, seconds):
        replies = super().exchange(requests, seconds)
        asked = Request.decode(next(iter(requests.values())))
        good = [name for name, each in replies.items() if isinstance(each, bytes) and _answers(each)]
        self._note([asked.round, asked.attempt, asked.kind == Kind.UPDATE, good])
        return replies

    def _note(self, what):
        with self._path.open("a") as file:
            file.write(json.dumps(what) + "\n")


def _answers(reply):
    return Reply.decode(reply).kind == Kind.ANSWER


def begin(folder):
    """From now on a server's messages in this process are harmed; what happens is told in the folder."""
    folder = Path(folder)
    transport.time = clock = Clock()
    server.FlowerTransport = lambda names, grid: Noted(names, Lossy(grid, clock, folder / STRUCK), folder / ANSWERS)


def tries(folder):
    """Of each try of a round that no server has lost: who answered to its first question, who to that for updates, and
    who made an update."""
    found, begun = {}, False
    for line in (Path(folder) / ANSWERS).read_text().splitlines():
        noted = json.loads(line)
        if noted is None:
            begun = True
            continue
        t, attempt, update, names = noted
        if begun:
            found, begun = {key: each for key, each in found.items() if key[0] < t}, False
        found.setdefault((t, attempt), (set(), set(), set()))[update].update(names)
    for path in Path(folder).glob("made-*"):
        for line in path.read_text().splitlines():
            if tried := found.get(tuple(map(int, line.split()))):
                tried[2].add(path.name.removeprefix("made-"))
    return list(found.values())
