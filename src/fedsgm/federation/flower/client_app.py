"""A client's part of a Flower run: each request goes to this node's resident process, and its answer back.

Flower starts a Python process for every message. So this file, which travels with the app, imports neither JAX nor
fedsgm: the process that holds the data and the compiled program is started at the first message and stays, until the
node that it belongs to ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

RECORD = "fedsgm"
NOTE, SOCKET = "resident.json", "socket"  # of the resident process, in the client's folder, which is its owner's alone
_BEGIN = 60.0  # seconds that the resident process has to begin to listen
_MORE = 5.0  # seconds beyond the server's patience, for what a node says of itself
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """What the resident process says, or why it says nothing."""
    try:
        said = _reply(message.content[RECORD], context)
    except Exception as error:
        said = {"reason": f"{type(error).__name__}: {error}"[:300]}
    return Message(RecordDict({RECORD: ConfigRecord(said)}), reply_to=message)


def _reply(asked: Any, context: Context) -> dict[str, Any]:
    name = _name(context)
    if asked["kind"] == "who":
        return {"name": name}
    if name and name != asked["name"]:
        return {"reason": f"the node is {name} by its own configuration, not {asked['name']}"}
    setup = _setup(asked["name"], context)
    with contextlib.closing(_resident(setup)) as resident:
        resident.send_bytes(json.dumps({"kind": asked["kind"], "seconds": asked["seconds"]}).encode())
        resident.send_bytes(asked["bytes"])
        if not resident.poll(asked["seconds"] + _MORE):
            return {"reason": f"no answer in {asked['seconds']:g} s"}
        answer = resident.recv_bytes()
    if answer[:1] != b"\0":
        return {"reason": answer[1:].decode(errors="replace")}
    return {"bytes": answer[1:]} if asked["kind"] == "ask" else {"status": answer[1:].decode()}


def _name(context: Context) -> str:
    """This client's name by the node's own configuration; in a simulation its partition has the number."""
    own = context.node_config.get("name", "")
    if not own and "partition-id" in context.node_config:
        own = _clients(context)[int(context.node_config["partition-id"])]
    return str(own)


def _clients(context: Context) -> list[str]:
    return sorted(name.strip() for name in str(context.run_config["clients"]).split(","))


def _setup(name: str, context: Context) -> dict[str, Any]:
    """What the resident process is made from; the site's own folder comes before the code of the app."""
    config, run = context.run_config, str(context.run_config["run"])
    for each in (name, run):
        if not _NAME.fullmatch(each):
            raise ValueError(f"{each!r} is no name of a client or a run")
    own, code = context.node_config.get("folder"), [str(Path(__file__).parent)]
    root = Path(os.environ.get("FEDSGM_STATE") or Path.home() / ".fedsgm") / name
    return {
        "experiment": str(config["experiment"]),
        "data": str(config["data"]),
        "settings": json.loads(str(config.get("settings", "{}"))),
        "name": name,
        "state_dir": str((Path(str(own)).expanduser() / "fedsgm" if own else root) / run),
        "path": [str(Path(str(own)).expanduser()), *code] if own else code,
    }


def _resident(setup: dict[str, Any]) -> Connection:
    """A connection with the resident process, which is started if it is not there or was made from something else."""
    folder = Path(setup["state_dir"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    given = json.dumps(setup, sort_keys=True).encode()
    digest = hashlib.sha256(given).hexdigest()
    with _alone(folder):
        found = _connected(folder)
        if found is not None and found[1] == digest:
            return found[0]
        if found is not None:
            found[0].send_bytes(json.dumps({"kind": "end"}).encode())
            found[0].close()
        (folder / NOTE).unlink(missing_ok=True)
        process = _start(folder, given, setup["path"])
        deadline = time.monotonic() + _BEGIN
        while (found := _connected(folder)) is None:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError("the client's process did not start; output.txt in its state folder says why")
            time.sleep(0.02)
        return found[0]


def _start(folder: Path, given: bytes, code: list[str]) -> subprocess.Popen[bytes]:
    """It ends with the process that starts this one for every message, the node's own.

    It finds this code first: a simulation has another copy of the app on its path.
    """
    command = [sys.executable, "-P", "-m", "fedsgm.federation.flower.site", str(os.getppid())]
    path = os.pathsep.join(filter(None, (*code, os.environ.get("PYTHONPATH"))))
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(given)
    return process


def _connected(folder: Path) -> tuple[Connection, str] | None:
    """A connection, and the digest of what the process was made from; None if nobody listens."""
    with contextlib.suppress(OSError, ValueError, EOFError, AuthenticationError), contextlib.chdir(folder):
        note = json.loads(Path(NOTE).read_text())
        return Client(SOCKET, "AF_UNIX", authkey=bytes.fromhex(note["token"])), note["digest"]
    return None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "start").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
