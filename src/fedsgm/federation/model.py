"""The server's side of the model that every client follows: its version, and how a client gets there from another."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from fedsgm.core.compression import Dense
from fedsgm.federation.client import WELCOME
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import NOTHING, WHOLE
from fedsgm.federation.state import checksum


@dataclasses.dataclass
class Followed:
    """The replica w, at a version, and the broadcasts of the last versions, as many as cost less than the whole."""

    program: Program
    replica: np.ndarray
    version: int = 0
    recent: list[bytes] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def checksum(self) -> int:
        return checksum(self.replica)

    @functools.cached_property
    def whole(self) -> bytes:
        vector: Any = self.replica
        return self.program.encode(Dense(vector))

    def after(self, data: bytes) -> Followed:
        """The next version, made from the very bytes of the broadcast that the clients will get."""
        replica = self.program.receive(self.replica, self.program.decode(data, self.program.algorithm.downlink))
        recent = [*self.recent, data]
        while sum(map(len, recent)) >= self.replica.nbytes or len(recent) >= WHOLE:
            del recent[0]
        return Followed(self.program, replica, self.version + 1, recent)

    def since(self, held: int, seed: int, client: int) -> tuple[tuple[bytes, ...], bool]:
        """What a client that holds version ``held`` needs, and whether that is the whole model."""
        missing = self.version - held
        if held != NOTHING and 0 <= missing <= len(self.recent):
            return tuple(self.recent[len(self.recent) - missing :]), False
        return (WELCOME.pack(self.program.fingerprint, seed, client) + self.whole,), True
