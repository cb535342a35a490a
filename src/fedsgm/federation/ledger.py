"""What a private run has spent of each client's budget, in rounds' worth, and whether one can be asked for more.

An answer that may have left its client is counted, whether it came or not; one that is a copy of the last is not.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedsgm.federation.protocol import Kind
from fedsgm.privacy.private import Private

SPENT = "its privacy budget is spent"
_SLACK = 1e-6  # of a round, by which sums of parts of it may be wrong


class Ledger:
    """The budget of each client is the same; what it has ``spent`` is in its account."""

    def __init__(self, task: Private) -> None:
        self._task = task
        self._last: dict[str, tuple[int, int]] = {}  # of each client, the round and direction of its last update

    def cost(self, kind: Kind) -> float:
        """In rounds' worth."""
        share = self._task.of_statistics
        if kind == Kind.UPDATE:
            return 1 - share
        return share * bool(kind & Kind.MEASURE) + self._task.of_ends * bool(kind & Kind.EVALUATE)

    def affords(self, account: Any, *kinds: Kind) -> bool:
        """Whether a client can be asked for all of these."""
        cost, ends = sum(map(self.cost, kinds)), any(kind & Kind.EVALUATE for kind in kinds)
        most = self._task.privacy.rounds + (self._task.of_ends if ends else 0)  # which are kept for the end
        return not cost or account.spent + cost <= most + _SLACK

    def charge(self, account: Any, kind: Kind, version: int, payload: bytes) -> None:
        if kind == Kind.UPDATE:
            asked = (version, zlib.crc32(payload))
            if self._last.get(account.name) == asked:
                return  # a client that is asked again for the same sends the same bytes
            self._last[account.name] = asked
        account.spent += self.cost(kind)

    def charge_unknown(self, accounts: Iterable[Any], ended: bool) -> None:
        """Everybody, for what a server that was stopped may have asked for: a round, or the values at the end."""
        for account in accounts:
            account.spent += self._task.of_ends if ended else 1

    def epsilon(self, accounts: Iterable[Any]) -> np.float32:
        """Of the client that has spent most."""
        return self._task.epsilons(max(account.spent for account in accounts))[0]
