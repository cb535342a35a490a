"""Clients that are too many for the device: their data and memories stay in memory or in files.

Who takes part in which round is known beforehand: a window of rounds brings in the data and memories of its
participants, while the one before it is computed. So a round costs the same whatever the number of clients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.cache import of_run
from fedsgm.base.sizes import Store, one_of
from fedsgm.base.structs import replaced
from fedsgm.core.drawing import RoundKeys
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines.rounds import (
    CAPACITY,
    Compiled,
    State,
    Window,
    advance,
    drawn,
    first_memory,
    first_states,
    told_first,
)

_WINDOW = 2**22  # numbers of a window, at most, unless one round has more: its memories are copied every round
_BLOCK = 2**23  # numbers of the data whose values are found at once


class Offloaded:
    """A chunk of rounds is a window of data and memories, one call of the compiled program, and the memories back."""

    def __init__(
        self, program: Compiled, rows: Any, counts: np.ndarray, seeds: np.ndarray, d: int, folder: Path | None
    ) -> None:
        m = program.algorithm.cohort(program.n)
        self._every = program.evaluate_every or 0
        self._store, self._everybody = Store.of(rows, counts, m), Store.of(rows, counts, len(counts))
        self._memories = Memories(first_memory(program, d), (len(seeds), program.n), folder)
        needed = len(seeds) * (self._store.numbers + m * self._memories.numbers)
        self.capacity = int(np.clip(_WINDOW // needed, 1, CAPACITY))
        self.program = replaced(program, evaluate_every=None, capacity=self.capacity)
        self.seeds = seeds
        self._one = one_of(next(self._everybody.blocks(1))[1])
        self._ahead: tuple[int, np.ndarray, Any] | None = None

    def start(self, w: np.ndarray) -> State:
        """Every seed's state before the first round; memories are not in it."""
        state = jax.device_put(first_states(self.program, w, self._one), may_alias=False)
        if not self.program.algorithm.asks_first:
            return state
        measure = functools.partial(_measured, self.program, state.server.replica, self.seeds)
        return _told_first(self.program, state, self._of_all(measure))

    def until(self, start: int, stop: int) -> int:
        """How far a chunk that begins there may go: it ends where true values are wanted."""
        stop = min(stop, start + self.capacity)
        return min(stop, start + self._every - start % self._every) if self._every else stop

    def advance(self, state: State, start: int, stop: int) -> tuple[State, dict[str, np.ndarray]]:
        """Rounds ``start`` to ``stop``, and their columns."""
        who, theirs = self._window(start)
        own, rows, memory = self._memories.of(who[:, : stop - start], self.capacity)
        state = replaced(state, memory=memory)
        ahead = drawn(self.program, self.seeds, stop)  # asked for after the rounds, it would be drawn after them
        state, columns = advance(self.program, Window(who, theirs, rows), state, self.seeds, start, stop)
        if stop < int(self.program.rounds):
            self._ahead = (stop, *self._brought(ahead))
        self._memories.put(own, state.memory)
        return self._evaluated(replaced(state, memory=None), columns.split(stop - start), stop)

    def values(self, vectors: np.ndarray) -> dict[str, Any]:
        """The true values of [kind, seed] parameter vectors."""
        each = [self._values(kind)[0] for kind in vectors]
        sound = np.isfinite(vectors).all(axis=-1)  # a rate of decisions is a number whatever the parameters are
        return {name: np.where(sound, [values[name] for values in each], np.nan) for name in each[0]}

    def packed(self, state: State) -> dict[str, np.ndarray]:
        """The state as a checkpoint has it."""
        return checkpoints.pack("state", state) | self._memories.packed()

    def unpacked(self, arrays: dict[str, np.ndarray], like: State) -> State:
        self._memories.unpack(arrays)
        return jax.device_put(checkpoints.unpack("state", arrays, like), may_alias=False)

    def _window(self, start: int) -> tuple[np.ndarray, Any]:
        """The participants of as many rounds as a window has, and their data."""
        if self._ahead is None or self._ahead[0] != start:
            return self._brought(drawn(self.program, self.seeds, start))
        return self._ahead[1:]

    def _brought(self, drawn: jax.Array) -> tuple[np.ndarray, Any]:
        who = np.asarray(drawn)
        return who, self._store.rounds(who)

    def _evaluated(self, state: State, columns: dict[str, Any], stop: int) -> tuple[State, dict[str, np.ndarray]]:
        """With the true values of the last round, if they are wanted; NaN in the others."""
        shape = columns["weight"].shape
        if stop == int(self.program.rounds) or (self._every and stop % self._every == 0):
            values, worst = self._values(state.server.replica)
            state = replaced(state, found=_compared(self.program, state, values["objective"], worst, stop))
            told = {name: value[:, None] for name, value in values.items()}
        else:
            told = {name: np.full((shape[0], 1), np.nan, like.dtype) for name, like in self._columns.items()}
        blank = {name: np.full((shape[0], shape[1] - 1), np.nan, last.dtype) for name, last in told.items()}
        return state, columns | {name: np.concatenate([blank[name], told[name]], axis=1) for name in told}

    @functools.cached_property
    def _columns(self) -> dict[str, Any]:
        """The shapes of one seed's values."""
        w = jax.ShapeDtypeStruct((self.program.task.layout.size,), np.float32)
        like = jax.eval_shape(self.program.task.evaluate, w, self._one)
        all_of_them = jax.tree.map(lambda a: jax.ShapeDtypeStruct((self.program.n, *a.shape), a.dtype), like)
        return jax.eval_shape(self.program.task.task.summarise, all_of_them)[0]

    def _values(self, vectors: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Every seed's values at its vector, and the largest violation."""
        evaluate = functools.partial(_evaluated, self.program, vectors)
        values, worst = _summarised(self.program, self._of_all(lambda _, block: evaluate(block)))
        return jax.tree.map(np.asarray, values), np.asarray(worst)

    def _of_all(self, say: Callable[[np.ndarray, Any], Any]) -> Any:
        """What everybody says, block by block: arrays [seed, client, ...]."""
        total: Any = None
        for some, block in self._everybody.blocks(_BLOCK):
            answers = jax.tree.map(np.asarray, say(some, block))
            if total is None:
                total = jax.tree.map(lambda a: np.empty((len(a), self.program.n, *a.shape[2:]), a.dtype), answers)
            for whole, part in zip(jax.tree.leaves(total), jax.tree.leaves(answers), strict=True):
                whole[:, some] = part
        return total


class Memories:
    """What every seed's clients keep: arrays [seed, client, ...] in memory or in files of ``folder``.

    Nothing is written before a client's first update: until then its memory is that of the start.
    """

    def __init__(self, one: Any, shape: tuple[int, int], folder: Path | None) -> None:
        self.one, self.folder = one, folder
        self.touched = np.zeros(shape, bool)
        self.numbers = sum(np.size(leaf) for leaf in jax.tree.leaves(one))
        leaves, self._form = jax.tree.flatten(one)
        self._arrays = [self._array(i, (*shape, *np.shape(leaf)), leaf.dtype) for i, leaf in enumerate(leaves)]

    def _array(self, i: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        if self.folder is None:
            return np.empty(shape, dtype)
        self.folder.mkdir(parents=True, exist_ok=True)
        return np.memmap(self.folder / f"memories-{i}.bin", dtype, "w+", shape=shape)

    def of(self, who: np.ndarray, rounds: int) -> tuple[list[np.ndarray], np.ndarray, Any]:
        """Each seed's participants of some rounds, [seed, round, m], once each; where each round's stand among those;
        and their memories, with room for those of so many rounds.
        """
        seeds, many, m = who.shape
        rows = np.zeros((seeds, rounds, m), np.int32)
        if not self._arrays:
            return [], rows, self.one
        own = []
        for s, each in enumerate(who):
            some, rows[s, :many] = np.unique(each, return_inverse=True)
            own.append(some)
        room = min(rounds * m, self.touched.shape[1])
        leaves = [np.zeros((seeds, room, *np.shape(leaf)), leaf.dtype) for leaf in jax.tree.leaves(self.one)]
        for leaf, array, first in zip(leaves, self._arrays, jax.tree.leaves(self.one), strict=True):
            for s, some in enumerate(own):
                leaf[s, : len(some)] = array[s, some]
                leaf[s, : len(some)][~self.touched[s, some]] = first
        return own, rows, jax.tree.unflatten(self._form, leaves)

    def put(self, own: list[np.ndarray], memory: Any) -> None:
        """The memories of these clients, as :meth:`of` has them."""
        for array, leaf in zip(self._arrays, map(np.asarray, jax.tree.leaves(memory)), strict=True):
            for s, some in enumerate(own):
                array[s, some] = leaf[s, : len(some)]
        for s, some in enumerate(own):
            self.touched[s, some] = True

    def packed(self) -> dict[str, np.ndarray]:
        """Those that are not as at the start."""
        arrays = {f"memories/{i}": array[self.touched] for i, array in enumerate(self._arrays)}
        return arrays | {"memories/touched": self.touched}

    def unpack(self, arrays: dict[str, np.ndarray]) -> None:
        self.touched = arrays["memories/touched"].copy()
        for i, array in enumerate(self._arrays):
            array[self.touched] = arrays[f"memories/{i}"]


@of_run
def _evaluated(program: Compiled, vectors: jax.Array, block: Any) -> Any:
    """What a block of clients evaluates, at every seed's vector."""
    return jax.lax.map(lambda w: jax.vmap(lambda data: program.task.evaluate(w, data))(block), vectors)


@of_run
def _measured(program: Compiled, vectors: jax.Array, seeds: jax.Array, some: jax.Array, block: Any) -> Any:
    """What a block of clients answers when it is asked before the first round."""
    task = program.task.at(jnp.int32(0))

    def one_seed(w: jax.Array, seed: jax.Array) -> Any:
        keys = jax.vmap(RoundKeys.of(seed, jnp.int32(0)).client)(some)
        return jax.vmap(lambda data, key: program.algorithm.measure(task, w, data, key)[0])(block, keys)

    return jax.lax.map(lambda each: one_seed(*each), (vectors, seeds))


@of_run
def _told_first(program: Compiled, states: State, statistics: Any) -> State:
    return jax.lax.map(lambda each: told_first(program, *each), (states, statistics))


@of_run
def _summarised(program: Compiled, evaluations: Any) -> Any:
    return jax.lax.map(program.task.task.summarise, evaluations)


@of_run
def _compared(program: Compiled, states: State, objective: jax.Array, worst: jax.Array, round: int) -> Any:
    def one_seed(state: State, objective: jax.Array, worst: jax.Array) -> Any:
        return state.found.compared(state.server.replica, objective, worst, program.n, jnp.int32(round))

    return jax.vmap(one_seed)(states, objective, worst)
