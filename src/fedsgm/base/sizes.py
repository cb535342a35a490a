"""Members of very different sizes: those of about the same size in a group, each group padded to its own longest.

In one array all would be as long as the longest: sixty whose sizes fall as 1/k take 13 times the room of what is there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.structs import aside, replaced, static, struct

# A group takes a second or so to compile. So one array may have up to so many times the rows that are there, and where
# it has more, each further group must save a share of all numbers, and at least so many.
_SPARE = 2.0
_SHARE = 0.1
_NUMBERS = 2**20

Room = tuple[tuple[int, int], ...]
"""Groups, the longest first: their length, and for how many members each is."""


class Rows(Protocol):
    """A tree with all rows, one member's after another's."""

    def padded(self, starts: Any, counts: Any, length: int) -> Any:
        """The members whose rows begin there and are so many, padded to a length: a tree with a leading axis."""
        ...

    def among(self, start: Any, count: Any) -> Any:
        """One member for functions that draw some of its rows, without a copy of all."""
        ...


@struct
class Store:
    """All rows, where each member's begin, how many they are, and its rank by size, the largest first.

    The k-th largest of some members is no larger than the k-th largest of all: ``room`` has place for any so many.
    """

    rows: Rows
    starts: Any
    counts: Any
    ranks: Any
    room: Room = static()

    @classmethod
    def of(cls, rows: Rows, counts: np.ndarray, many: int) -> Store:
        """For rounds of so many members."""
        ranked = _ranked(counts)
        ranks, room = np.argsort(ranked).astype(np.int32), _room(counts[ranked[:many]], rows)
        return cls(rows, _starts(counts), counts.astype(np.int32), ranks, room)

    def take(self, who: Any) -> Any:
        order = self.ranks[who].argsort()
        members = _split(order, self.room)
        groups = [
            self.rows.padded(self.starts[who[some]], self.counts[who[some]], length)
            for some, (length, _) in zip(members, self.room, strict=True)
        ]
        return BySize(tuple(groups), members, order.argsort())

    def rounds(self, who: np.ndarray) -> Any:
        """The members of many rounds, [..., members], of rows in NumPy: what :func:`take` gives, with leading axes."""
        if len(self.room) > 1:
            each = [self.take(some) for some in who.reshape(-1, who.shape[-1])]
            return jax.tree.map(lambda *leaves: np.stack(leaves).reshape(*who.shape[:-1], *leaves[0].shape), *each)
        flat = who.reshape(-1)
        if self._even is None:
            taken = self.rows.padded(self.starts[flat], self.counts[flat], self.room[0][0])
        else:
            taken = jax.tree.map(lambda a: np.take(a, flat, axis=0), self._even)
        return jax.tree.map(lambda a: a.reshape(*who.shape, *a.shape[1:]), taken)

    @functools.cached_property
    def _even(self) -> Any:
        """All members with a leading axis, if they are of one size: then nothing is padded and little copied."""
        if np.ptp(self.counts):
            return None
        return jax.tree.map(np.ascontiguousarray, padded(self.rows, self.counts))

    def blocks(self, numbers: int) -> Iterator[tuple[np.ndarray, Any]]:
        """All members in blocks of at most so many numbers, unless one has more; the last of a group may repeat one."""
        ranked = np.argsort(self.ranks)
        for members, (length, many) in zip(_split(ranked, self.room), self.room, strict=True):
            size = int(np.clip(numbers // (length * _width(self.rows)), 1, many))
            for start in range(0, many, size):
                some = members[np.minimum(np.arange(start, start + size), many - 1)]
                yield some, self.rows.padded(self.starts[some], self.counts[some], length)

    @property
    def numbers(self) -> float:
        """In all of its groups."""
        return _width(self.rows) * sum(length * many for length, many in self.room)


@struct
class BySize:
    """Members in groups: trees with a leading axis, the members of each, and every member's place among all of those.

    ``store`` is there where members are taken or drawn from; ``origin`` has the rows and counts that it is made of.
    """

    groups: tuple[Any, ...]
    members: tuple[Any, ...]
    place: Any
    store: Store | None = None
    origin: tuple[Rows, np.ndarray] | None = aside(default=None)


@struct
class Places:
    """Members by where they are among all rows."""

    rows: Rows
    starts: Any
    counts: Any


def arranged(rows: Rows, counts: np.ndarray) -> Any:
    """A tree with a leading axis over the members if they are of about the same size, else :class:`BySize`."""
    starts, ranked = _starts(counts), _ranked(counts)
    room = _room(counts[ranked], rows)
    members = tuple(np.sort(some).astype(np.int32) for some in _split(ranked, room))
    groups = [
        rows.padded(starts[some], counts[some].astype(np.int32), length)
        for some, (length, _) in zip(members, room, strict=True)
    ]
    if len(groups) == 1:
        return groups[0]
    place = np.argsort(np.concatenate(members)).astype(np.int32)
    return BySize(tuple(groups), members, place, origin=(rows, counts))


def padded(rows: Rows, counts: np.ndarray, who: Any = slice(None)) -> Any:
    """These members as long as the longest of all, with a leading axis."""
    return rows.padded(_starts(counts)[who], counts.astype(np.int32)[who], int(counts.max()))


def ready(data: Any, many: int, draws: bool) -> Any:
    """The data for rounds of so many members, in which rows are drawn, or not: then :func:`take` has what it takes."""
    if not isinstance(data, BySize) or data.origin is None or (many == len(data.place) and not draws):
        return data
    return replaced(data, store=Store.of(*data.origin, many))


def take(data: Any, who: jax.Array) -> Any:
    """The data of some members, in their order."""
    if isinstance(data, BySize):
        assert data.store is not None
        return data.store.take(who)
    return jax.tree.map(lambda a: a[who], data)


def put(stacked: Any, who: jax.Array, new: Any) -> Any:
    """What is stacked over all members, with some members' in place of what they had."""
    return jax.tree.map(lambda old, new: old.at[who].set(new), stacked, new)


def to_draw_from(data: Any, who: jax.Array, taken: Any) -> Any:
    """The data of some members, which may have been ``taken`` already, for functions that draw rows of them only."""
    if isinstance(data, BySize):
        assert data.store is not None
        return Places(data.store.rows, data.store.starts[who], data.store.counts[who])
    return taken


def over(fn: Callable[..., Any], data: Any, *stacked: Any, each: Callable[..., Any] = jax.vmap) -> Any:
    """``fn`` of each member's data and slice of what is stacked, its answers stacked in the members' order."""
    return rejoined(data, [each(bind(fn))(*theirs, *own) for bind, theirs, own in parts(data, stacked)])


def parts(data: Any, stacked: Any) -> list[tuple[Callable[..., Any], Any, Any]]:
    """The groups of members: what makes, of ``fn(data, *own)``, a function of slices; of what, and what is stacked."""
    if isinstance(data, Places):
        return [(functools.partial(_placed, data.rows), (data.starts, data.counts), stacked)]
    if not isinstance(data, BySize):
        return [(lambda fn: fn, (data,), stacked)]
    return [
        (lambda fn: fn, (group,), jax.tree.map(lambda a, some=some: a[some], stacked))
        for group, some in zip(data.groups, data.members, strict=True)
    ]


def rejoined(data: Any, answers: list[Any]) -> Any:
    """The answers of all parts in the members' order."""
    if not isinstance(data, BySize):
        return answers[0]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[data.place], *answers)


def _placed(rows: Rows, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def placed(start: Any, count: Any, *own: Any) -> Any:
        return fn(rows.among(start, count), *own)

    return placed


def one_of(data: Any) -> Any:
    """The shapes of one member's data."""
    group = data.groups[0] if isinstance(data, BySize) else data
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), group)


def _width(rows: Rows) -> float:
    """Numbers in a row."""
    arrays = jax.tree.leaves(rows)
    return sum(map(np.size, arrays)) / len(arrays[0])


def _starts(counts: np.ndarray) -> np.ndarray:
    return (np.cumsum(counts) - counts).astype(np.int32)


def _ranked(counts: np.ndarray) -> np.ndarray:
    """The members, the largest first."""
    return np.argsort(-counts, kind="stable")


def _split(order: Any, room: Room) -> tuple[Any, ...]:
    """The members in this order, by groups."""
    ends = itertools.accumulate(many for _, many in room)
    return tuple(order[end - many : end] for end, (_, many) in zip(ends, room, strict=True))


def _room(sizes: np.ndarray, rows: Rows) -> Room:
    """The groups of members of these sizes, the largest first, that have the least padding for what a group costs."""
    if sizes[0] * len(sizes) <= _SPARE * sizes.sum():
        return ((int(sizes[0]), len(sizes)),)
    cost = max(_SHARE * sizes.sum(), _NUMBERS / _width(rows))
    # A group may begin where the size falls below a step of the ladder: of many sizes there are few to choose from.
    ladder = np.floor(4 * np.log2(sizes[0] / sizes))
    starts = np.flatnonzero(np.diff(ladder, prepend=-1))
    ends = [*starts[1:], len(sizes)]
    least, chosen = [0.0], []
    for k, end in enumerate(ends):
        totals = [least[i] + sizes[starts[i]] * (end - starts[i]) + cost for i in range(k + 1)]
        chosen.append(int(np.argmin(totals)))
        least.append(totals[chosen[-1]])
    room, k = [], len(ends)
    while k:
        k, end = chosen[k - 1], ends[k - 1]
        room.append((int(sizes[starts[k]]), int(end - starts[k])))
    return tuple(reversed(room))
