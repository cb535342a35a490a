"""A site that has its own kit and its own code: it puts requests to another site, as itself and as the server, or it
answers its server with whatever may harm.

What comes back is written into the folder that the settings name, a line for each attempt.
"""

import dataclasses
import json
import threading
import time
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from fedsgm.federation.flare.executor import FedSGMExecutor
from fedsgm.federation.flare.site import identity
from fedsgm.federation.flare.transport import ASK, CHANNEL, LOOK
from fedsgm.federation.protocol import Kind, Reply, Request, header, pack
from fedsgm.federation.sessions import Signed

VICTIM = "site-1"
LAST = 2**64 - 1


def crafted(run, kind=Kind.UPDATE):
    """A request as the server would make it, without a signature."""
    return Request(kind, run, 0, 1, 0, payload=pack((1.0, 0.0, None))).encode()


LIES = {
    "no numbers in 64 dimensions": b'["' + b",".join([b"0"] * 64) + b'",null,null]\0',
    "parts without end": b"[" + b",".join([b"[]"] * 700_000) + b"]\0",
    "statistics of 3e38": pack(((3e38,), ((0.5, 0.5),), None)),
    "64 MB": b"[null,null,null]\0" + bytes(2**26),
    "a billion entries": b'["1000000000",null,null]\0',
    "nothing": b"",
    "no statistics": pack((None, None, None)),
}


class Liar:
    """Its client's code, whose answers are what they should be only after the last round."""

    def __init__(self, client, rounds):
        self._client, self._rounds, self._lies = client, rounds, iter(LIES.values())

    def ask(self, request, seconds):
        reply = Reply.decode(self._client.ask(request, seconds))
        if header(request)[3] == self._rounds:
            return reply.encode()
        return dataclasses.replace(reply, content=next(self._lies, b"")).encode()


class Hostile(FedSGMExecutor):
    """Asks its victim while the run goes on, or lies to its server."""

    def handle_event(self, event_type, fl_ctx):
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN and self.settings["lies"]:
            self._door._client = Liar(self.resident, self.settings["rounds"])
        elif event_type == EventType.START_RUN:
            self._cell = fl_ctx.get_engine().get_cell().core_cell
            self._job, self._own = fl_ctx.get_job_id(), identity(fl_ctx, "client")
            threading.Thread(target=self._attack, daemon=True).start()

    def _attack(self):
        folder = Path(self.settings["folder"])
        for _ in range(10**6):
            with (folder / "attempts.jsonl").open("a") as file:
                for name, attempt in self._attempts().items():
                    try:
                        got = attempt()
                    except Exception as error:
                        got = f"{type(error).__name__}"
                    file.write(json.dumps([name, got]) + "\n")
            time.sleep(0.5)

    def _attempts(self):
        as_server = Signed(self, self._own, self.run)
        return {
            "the statistics": lambda: self._send(ASK, crafted(time.time_ns(), Kind.MEASURE | Kind.EVALUATE)),
            "an update of the last run": lambda: self._send(ASK, crafted(LAST)),
            "a look": lambda: self._send(LOOK, b""),
            "a greeting with its own key": lambda: repr(as_server.exchange({VICTIM: crafted(LAST)}, 2.0)[VICTIM]),
            "an update in the server's name": self._forge,
        }

    def clients(self):
        return [VICTIM]

    def exchange(self, requests, _seconds):
        return {name: bytes.fromhex(self._send(ASK, data).removeprefix("answer: ")) for name, data in requests.items()}

    def _send(self, topic, data):
        to = FQCN.join([VICTIM, self._job])
        reply = self._cell.send_request(
            channel=CHANNEL, target=to, topic=topic, request=Message(payload=data), timeout=2.0, optional=True
        )
        if not reply.payload:
            return str(reply.get_header(MessageHeaderKey.RETURN_CODE))
        return "answer: " + bytes(reply.payload).hex()

    def _forge(self):
        """A message whose headers say that the server's part of the job sent it; no answer can come back."""
        to, server = FQCN.join([VICTIM, self._job]), FQCN.join([FQCN.ROOT_SERVER, self._job])
        message = Message(payload=crafted(LAST))
        message.add_headers(
            {
                MessageHeaderKey.CHANNEL: CHANNEL,
                MessageHeaderKey.TOPIC: ASK,
                MessageHeaderKey.ORIGIN: server,
                MessageHeaderKey.FROM_CELL: self._cell.get_fqcn(),
                MessageHeaderKey.DESTINATION: to,
                MessageHeaderKey.MSG_TYPE: MessageType.REQ,
                MessageHeaderKey.REQ_ID: "forged",
                MessageHeaderKey.REPLY_EXPECTED: True,
                MessageHeaderKey.ROUTE: [(server, time.time())],
            }
        )
        _, endpoint = self._cell._find_endpoint(to, message)
        message.set_header(MessageHeaderKey.TO_CELL, endpoint.name)
        self._cell._filter_outgoing_request(CHANNEL, ASK, message)
        return str(self._cell._send_to_endpoint(endpoint, message))
