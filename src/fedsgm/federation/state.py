"""What a client must not forget: its model, its error memory, and its last message until the server has used it.

One file, written whole or not at all, once for each update and before the answer leaves: a client that is killed at
any moment comes back either before its update or after it. A damaged file counts as none, because an older one would
bring back what the server has used.
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from pathlib import Path

import numpy as np

from fedsgm.base.errors import CheckpointError
from fedsgm.base.files import write_atomically
from fedsgm.engines import checkpoint
from fedsgm.engines.checkpoint import Saved
from fedsgm.federation.protocol import NOTHING

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Sent:
    """The last message: when it was made and of what, model and direction, and the memory before it."""

    round: int
    made_of: bytes
    message: bytes
    before: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class State:
    """A client's part of one run. ``memory`` (None without compression) is right if the last message was used."""

    run: int
    attempt: int
    seed: int
    client: int
    version: int
    replica: np.ndarray
    memory: np.ndarray | None
    sent: Sent | None = None

    @property
    def checksum(self) -> int:
        return checksum(self.replica)


def checksum(vector: np.ndarray) -> int:
    """Of a model, to tell two apart."""
    return zlib.crc32(np.ascontiguousarray(vector, np.float32).data)


class Store:
    """The client's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = Path(folder) / "state"

    def write(self, state: State) -> None:
        numbers = {"run": state.run, "attempt": state.attempt, "seed": state.seed, "client": state.client}
        arrays = {"replica": state.replica}
        sent = state.sent
        if sent is not None:
            arrays |= {"made_of": _as_array(sent.made_of), "message": _as_array(sent.message)}
        if state.memory is not None:
            arrays["memory"] = state.memory
        if sent is not None and sent.before is not None:
            arrays["before"] = sent.before
        numbers["sent"] = NOTHING if sent is None else sent.round
        write_atomically(self._path, checkpoint.dump(Saved(state.version, arrays, numbers)))

    def read(self) -> State | None:
        """What was written last, or None."""
        if not self._path.exists():
            return None
        try:
            saved = checkpoint.read(self._path)
        except CheckpointError as error:
            log.warning("%s; this client begins anew, without its error memory", error)
            return None
        arrays, numbers = saved.arrays, dict(saved.settings)
        round = numbers.pop("sent")
        sent = None
        if round != NOTHING:
            sent = Sent(round, arrays["made_of"].tobytes(), arrays["message"].tobytes(), arrays.get("before"))
        return State(version=saved.round, replica=arrays["replica"], memory=arrays.get("memory"), sent=sent, **numbers)


def _as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)
