"""What a client must not forget: its model, its memory, and its last message until the server has used it.

One file, written whole or not at all, once for each update and before the answer leaves: a client that is killed at
any moment comes back either before its update or after it. A damaged file counts as none, because an older one would
bring back what the server has used.
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from pathlib import Path
from typing import Any

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


def checksum(vector: np.ndarray) -> int:
    """Of a model, to tell two apart."""
    return zlib.crc32(np.ascontiguousarray(vector, np.float32).data)


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
        write_atomically(self._path, checkpoint.dump(Saved(state.version, arrays, numbers)))

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
