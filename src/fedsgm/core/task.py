"""What an algorithm asks of a problem, and an engine of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import jax

from fedsgm.core.compression import Message
from fedsgm.core.rules import Direction, Measured

if TYPE_CHECKING:
    from fedsgm.core.algorithm import Flat


class Task(Protocol):
    """``params`` is the flat vector's pytree, ``data`` one client's."""

    @property
    def bounds(self) -> dict[str, float]: ...

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The values that each constraint allows, from the least to the largest; infinite where there is no bound."""
        ...

    @property
    def inspects(self) -> tuple[str, ...]:
        """The columns that ``inspect`` adds to the history; where there are none it is not called."""
        ...

    @property
    def places(self) -> tuple[str, ...]:
        """Of what ``summarise`` names, what is a client's place among those that it was given."""
        ...

    def prepare(self, clients: Any, params: Any, *, owner: str = "client") -> Any: ...

    def prepare_one(self, data: Any, params: Any) -> Any:
        """One client's data, prepared where it is: what the functions below call ``data``."""
        ...

    def at(self, round: jax.Array) -> Task:
        """The task in this round, for what changes from round to round by a schedule."""
        ...

    def measure(self, params: Any, data: Any, key: jax.Array, *, batch_size: int | None) -> tuple[Any, Any]: ...

    def combine(
        self, statistics: Any, tolerance: Any, key: jax.Array, heard: jax.Array | None = None, *robust: Any
    ) -> Measured:
        """What the server makes of statistics stacked over clients.

        All of them count, or with ``heard``, a float32 of 0 or 1 for each, those with 1. A task that ``judges`` takes
        one argument more, an aggregator that says of each constraint whose statistics count.
        """
        ...

    def direction(
        self, params: Any, direction: Direction, data: Any, kept: Any, key: jax.Array, *, batch_size: int | None
    ) -> Any: ...

    def share(self, direction: Direction, kept: Any) -> Any:
        """How many times as much as the mean client this one counts in the mean of the directions."""
        ...

    def inspect(self, before: Any, after: Any, kept: Any) -> dict[str, jax.Array]:
        """What a participant sees of a round's step, from the model before it to the one after; recorded as a mean."""
        ...

    def evaluate(self, params: Any, data: Any, key: jax.Array) -> Any: ...

    def summarise(self, evaluations: Any) -> tuple[dict[str, jax.Array], jax.Array]: ...


class Algorithm(Protocol):
    """What an engine asks of an algorithm.

    The server's state is the algorithm's own, but for its ``replica``: w, the model that every client holds. So is a
    client's memory: any pytree.
    """

    def cohort(self, clients: int) -> int:
        """How many of so many clients take part in a round; a number that cannot be run is refused."""
        ...

    def at(self, round: jax.Array) -> Algorithm:
        """The algorithm in this round, for what changes from round to round by a schedule."""
        ...

    def queried(self, who: jax.Array, clients: int) -> jax.Array:
        """The clients whose statistics a round asks for, where ``who`` does its work."""
        ...

    @property
    def asks_first(self) -> bool:
        """Whether everybody is asked before the first round, and :meth:`remember` takes the answers."""
        ...

    @property
    def draws(self) -> bool:
        """Whether :meth:`local_update` only draws batches of the data, and sees nothing else of them."""
        ...

    def remember(self, server: Any, statistics: Any, who: jax.Array, clients: int) -> Any: ...

    def init(self, task: Flat, w: Any, clients: int, statistics: Callable[[], Any] | None = None) -> Any:
        """The server's state; ``statistics`` gives the shapes of a client's, where they can be known beforehand."""
        ...

    def init_memory(self, d: int) -> Any: ...

    def sample(self, key: jax.Array, clients: int) -> jax.Array: ...

    def measure(self, task: Flat, w: jax.Array, data: Any, key: jax.Array) -> tuple[Any, Any]: ...

    def decide(
        self, task: Flat, server: Any, statistics: Any, who: jax.Array, clients: int, key: jax.Array
    ) -> tuple[Direction, Any, Measured]:
        """``statistics`` are those of the clients ``who``."""
        ...

    def report(self, server: Any) -> dict[str, jax.Array]:
        """What of the server's state is recorded in every round, after it has decided."""
        ...

    def local_update(
        self,
        task: Flat,
        w: list[Any],
        direction: Direction,
        data: Any,
        kept: Any,
        memory: Any,
        key: jax.Array,
        shared: jax.Array | None = None,
    ) -> tuple[Message, Any]:
        """``w`` is what the layout takes apart; ``key`` the client's own, ``shared`` the same for all in a round.

        If there is a ``products(task, w, direction, data, kept)`` too, what it gives may be a last argument.
        """
        ...

    def aggregate(self, task: Flat, server: Any, messages: Message, key: jax.Array) -> tuple[Any, Message]:
        """Messages are stacked; or, if there is a ``summed(total, messages)`` too, what that made of all of them."""
        ...
