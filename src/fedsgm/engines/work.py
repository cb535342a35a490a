"""How much work a run is, by its sizes alone: it is the same wherever the run is and however often it stops."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

from fedsgm.core.task import Algorithm
from fedsgm.data.clients import Clients
from fedsgm.results.result import KINDS

# A run's work, in examples: so many products of a number and a parameter are one more, as are so many entries of
# messages, and every round is some. Compiled lightly, a small run takes up to three seconds more, and as many less to
# compile; the demo takes 0.3 more.
_SMALL = 10**7
_PRODUCTS, _ENTRIES, _ROUND = 2**12, 2**4, 2**8

_alike: ContextVar[int] = ContextVar("_alike", default=1)


@contextlib.contextmanager
def alike(runs: int) -> Iterator[None]:
    """In here are so many runs that one program may serve: what it takes to compile counts once."""
    before = _alike.set(runs)
    try:
        yield
    finally:
        _alike.reset(before)


def rows_of(clients: Any) -> int:
    """Examples of all clients; of a task without examples, its clients."""
    return int(clients.counts.sum()) if isinstance(clients, Clients) else len(clients)


def examples_of_a_round(algorithm: Algorithm, clients: Any) -> float:
    """How many a round goes through, where one in a gradient counts three times."""
    n = len(clients)
    m, per_client = algorithm.cohort(n), rows_of(clients) / n
    steps, drawn, asked = (
        getattr(algorithm, name, None) for name in ("local_steps", "batch_size", "constraint_batch_size")
    )
    answer = n if getattr(algorithm, "query", None) == "all" else m
    return answer * (asked or per_client) + 3 * m * (steps or 1) * (drawn or per_client)


def small(algorithm: Algorithm, clients: Any, parameters: int, *, rounds: int, seeds: int, evaluate_every: int) -> bool:
    """Whether a run is so little work that what its programs take to compile counts for more.

    A parameter meets each number of an example at most, as in a convolution. Of a task without examples nobody knows.
    """
    if not isinstance(clients, Clients):
        return False
    numbers = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(clients.examples))
    evaluations = len(KINDS) + (rounds // evaluate_every if evaluate_every else 0)
    examples = rounds * examples_of_a_round(algorithm, clients) + evaluations * rows_of(clients)
    messages = rounds * (algorithm.cohort(len(clients)) * parameters / _ENTRIES + _ROUND)
    return _alike.get() * seeds * (examples * (1 + numbers * parameters / _PRODUCTS) + messages) <= _SMALL
