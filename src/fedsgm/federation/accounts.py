"""What the server knows of each client: which model it holds, what was used of it, and how it has done."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedsgm.federation.protocol import NOTHING

_REASONS = 20  # of being left out that are told apart for one client


@dataclasses.dataclass
class Account:
    """One client's. ``held`` is the version of the model that it has, ``used`` the round of its last used message."""

    name: str
    held: int = NOTHING
    used: int = NOTHING
    answered: int = 0
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0

    def leave_out(self, reason: str) -> None:
        if reason not in self.left_out and len(self.left_out) >= _REASONS:
            reason = "other reasons"
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def row(self) -> dict[str, Any]:
        """What a person wants to see of it."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("held", "used")}
