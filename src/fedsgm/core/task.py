"""What an algorithm asks of a problem: the work of a client, and what the server makes of the answers."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from fedsgm.core.rules import Direction, Measured


class Task(Protocol):
    """``params`` is the flat vector's pytree, ``data`` one client's."""

    @property
    def bounds(self) -> dict[str, float]: ...

    @property
    def inspects(self) -> tuple[str, ...]:
        """The columns that ``inspect`` adds to the history; where there are none it is not called."""
        ...

    def prepare(self, clients: Any, params: Any, *, owner: str = "client") -> Any: ...

    def prepare_one(self, data: Any, params: Any) -> Any:
        """One client's data, prepared where it is: what the functions below call ``data``."""
        ...

    def at(self, round: jax.Array) -> Task:
        """The task in this round, for what changes from round to round by a schedule."""
        ...

    def measure(self, params: Any, data: Any, key: jax.Array, *, batch_size: int | None) -> tuple[Any, Any]: ...

    def combine(self, statistics: Any, tolerance: Any, key: jax.Array, heard: jax.Array | None = None) -> Measured:
        """What the server makes of statistics stacked over clients.

        All of them count, or with ``heard``, a float32 of 0 or 1 for each, those with 1.
        """
        ...

    def direction(
        self, params: Any, direction: Direction, data: Any, kept: Any, key: jax.Array, *, batch_size: int | None
    ) -> Any: ...

    def inspect(self, before: Any, after: Any, kept: Any) -> dict[str, jax.Array]:
        """What a participant sees of a round's step, from the model before it to the one after; recorded as a mean."""
        ...

    def evaluate(self, params: Any, data: Any, key: jax.Array) -> Any: ...

    def summarise(self, evaluations: Any) -> tuple[dict[str, jax.Array], jax.Array]: ...
