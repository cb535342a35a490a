"""The process that stays on a node: it takes requests from the node's ClientApps and hands them to the client's code.

``python -m fedsgm.federation.flower.site PID``, in the client's state folder and with the set-up as JSON on standard
input. It listens on a socket there, which only the folder's owner can enter, to those who know a token that only he can
read, and ends with the process PID.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from fedsgm.base.errors import ClientError
from fedsgm.base.files import write_atomically
from fedsgm.federation.resident import Resident, Setup

NOTE, SOCKET = "resident.json", "socket"  # by short names: the path of a socket cannot be long
LARGEST = 1 << 30  # bytes of a request
_DONE, _FAILED = b"\0", b"\1"


def main() -> None:
    """Serve until the process that this one belongs to is gone, or until told to end."""
    os.umask(0o077)
    node, given = int(sys.argv[1]), sys.stdin.buffer.read()
    setup = Setup(**json.loads(given))
    resident = Resident(setup)
    end = functools.partial(_end, resident)
    threading.Thread(target=_watch, args=(node, end), daemon=True).start()
    token = secrets.token_bytes(32)
    Path(SOCKET).unlink(missing_ok=True)
    with Listener(SOCKET, "AF_UNIX", backlog=16, authkey=token) as listener:
        about = {"token": token.hex(), "digest": hashlib.sha256(given).hexdigest()}
        write_atomically(Path(NOTE), json.dumps(about).encode())
        while True:
            with contextlib.suppress(AuthenticationError, OSError, EOFError):
                connection = listener.accept()
                threading.Thread(target=_serve, args=(connection, resident, end), daemon=True).start()


def _serve(connection: Connection, resident: Resident, end: Any) -> None:
    """One request."""
    with connection, contextlib.suppress(OSError, EOFError):
        asked = json.loads(connection.recv_bytes(1 << 16))
        if asked["kind"] == "end":
            end()
        request = connection.recv_bytes(LARGEST)
        try:
            if asked["kind"] == "ask":
                answer = _DONE + resident.ask(request, asked["seconds"])
            else:
                answer = _DONE + _status(resident, asked["seconds"]).encode()
        except ClientError as error:
            answer = _FAILED + str(error).encode()
        connection.send_bytes(answer)


def _status(resident: Resident, seconds: float) -> str:
    """What it says of itself once it is ready or cannot be, or after so long."""
    deadline = time.monotonic() + seconds
    while (status := resident.status()) == "starting" and time.monotonic() < deadline:
        time.sleep(0.05)
    return status


def _watch(node: int, end: Any) -> None:
    while True:
        try:
            os.kill(node, 0)
        except ProcessLookupError:
            end()
        time.sleep(0.5)


def _end(resident: Resident) -> None:
    resident.close()
    os._exit(0)


if __name__ == "__main__":
    main()
