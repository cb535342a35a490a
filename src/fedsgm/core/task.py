"""What an algorithm asks of a problem: the work of a client, and what the server makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

from fedsgm.base.layout import Layout
from fedsgm.base.structs import static, struct
from fedsgm.core.rules import Direction, largest

COLUMNS = (
    *("objective", "estimate", "violation", "weight", "multiplier", "participants", "answered", "evaluated"),
    *("bytes_up", "bytes_down", "frames_up", "frames_down", "seed", "round"),
)
"""Names in a history that no constraint may have."""


class Measured(NamedTuple):
    """What the server makes of the participants' statistics."""

    violations: jax.Array  # of each constraint
    guide: Any
    report: dict[str, jax.Array]
    scale: Any = 1.0  # of the constraint with the largest violation; its gradient is in the constraint's own units

    @property
    def violation(self) -> jax.Array:
        """The largest."""
        return largest(self.violations)


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

    def combine(self, statistics: Any, tolerance: Any, key: jax.Array) -> Measured: ...

    def direction(
        self, params: Any, direction: Direction, data: Any, kept: Any, key: jax.Array, *, batch_size: int | None
    ) -> Any: ...

    def inspect(self, before: Any, after: Any, kept: Any) -> dict[str, jax.Array]:
        """What a participant sees of a round's step, from the model before it to the one after; recorded as a mean."""
        ...

    def evaluate(self, params: Any, data: Any, key: jax.Array) -> Any: ...

    def summarise(self, evaluations: Any) -> tuple[dict[str, jax.Array], jax.Array]: ...


@struct
class Flat:
    """A task that speaks of flat vectors."""

    task: Task
    layout: Layout = static()

    def at(self, round: jax.Array) -> Flat:
        return Flat(self.task.at(round), self.layout)

    def measure(self, w: jax.Array, data: Any, key: jax.Array, batch_size: int | None) -> tuple[Any, Any]:
        return self.task.measure(self.layout.unflatten(w), data, key, batch_size=batch_size)

    def direction(
        self, w: jax.Array, direction: Direction, data: Any, kept: Any, key: jax.Array, batch_size: int | None
    ) -> jax.Array:
        step = self.task.direction(self.layout.unflatten(w), direction, data, kept, key, batch_size=batch_size)
        return self.layout.flatten(step)

    def inspect(self, before: jax.Array, after: jax.Array, kept: Any) -> dict[str, jax.Array]:
        return self.task.inspect(self.layout.unflatten(before), self.layout.unflatten(after), kept)

    def evaluate(self, w: jax.Array, data: Any) -> Any:
        return self.task.evaluate(self.layout.unflatten(w), data, jax.random.key(0))

    def project(self, project: Callable[[Any], Any] | None, w: jax.Array) -> jax.Array:
        return w if project is None else self.layout.flatten(project(self.layout.unflatten(w)))
