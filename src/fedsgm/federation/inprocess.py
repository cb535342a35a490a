"""A transport for tests: clients in this process, and every fault that a network and its machines can have.

A plan says which fault, if any, befalls which client in which exchange. Every random choice comes from its seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsgm.data.clients import Clients
from fedsgm.federation.client import Client
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import Failure


class InProcess:
    """Clients in this process."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = dict(clients)

    @classmethod
    def of(cls, program: Program, clients: Clients | Sequence[Any], folder: Path) -> InProcess:
        return cls({f"client-{j}": Client(program, clients[j], folder / f"client-{j}") for j in range(len(clients))})

    def clients(self) -> list[str]:
        return list(self._clients)

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure]:
        return {name: self._clients[name].answer(request) for name, request in requests.items()}
