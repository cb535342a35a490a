"""Everybody's data and memories on the device, or each client's on one of several, of one machine or of many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedsgm.base import sizes
from fedsgm.base.cache import of_run
from fedsgm.base.structs import replaced
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines import recording
from fedsgm.engines.rounds import (
    CAPACITY,
    CLIENTS,
    Compiled,
    State,
    advance,
    ask_first,
    drawn,
    evaluations_at,
    first_memory,
    first_states,
)


def all_devices() -> Mesh | None:
    """All that there are, in all processes, if they are several."""
    devices = jax.devices()
    return Mesh(np.array(devices), (CLIENTS,)) if len(devices) > 1 else None


class OnDevice:
    """A chunk of rounds is one call of the compiled program, which has all it needs."""

    capacity = CAPACITY

    def __init__(self, program: Compiled, data: Any, seeds: np.ndarray) -> None:
        """``data`` is that of all clients or, for several devices, a function that gives some clients'."""
        self.program, self.seeds = program, seeds
        if program.devices is None:
            self.data = jax.device_put(data)
        else:
            self.program = replaced(program, room=_room(program, program.devices.size, seeds))
            self.data = self._shared(data if callable(data) else functools.partial(_some, data))

    def start(self, w: np.ndarray) -> State:
        """Every seed's state before the first round."""
        state = first_states(self.program, w, sizes.one_of(self.data))
        one = first_memory(self.program, w.shape[1])
        n = self.program.n
        memory = jax.tree.map(lambda a: np.broadcast_to(a, (len(w), n, *np.shape(a))), one)
        state = self._placed_state(replaced(state, memory=memory))
        return ask_first(self.program, self.data, state, self.seeds) if self.program.algorithm.asks_first else state

    def until(self, start: int, stop: int) -> int:
        """How far a chunk that begins there may go."""
        return min(stop, start + self.capacity)

    def advance(self, state: State, start: int, stop: int) -> tuple[State, dict[str, np.ndarray]]:
        """Rounds ``start`` to ``stop``, and their columns."""
        state, columns = advance(self.program, self.data, state, self.seeds, start, stop)
        return state, columns.split(stop - start)

    def values(self, vectors: np.ndarray) -> dict[str, Any]:
        """The true values of [kind, seed] parameter vectors; and each client's, where all are on one device."""
        program = replaced(self.program, debug=False)
        return recording.one_by_one(lambda w: _values(program, self.data, w), vectors)

    def packed(self, state: State) -> dict[str, np.ndarray]:
        """The state as a checkpoint has it."""
        return checkpoints.pack("state", replaced(state, memory=jax.tree.map(self._own, state.memory)))

    def unpacked(self, arrays: dict[str, np.ndarray], like: State) -> State:
        return self._placed_state(checkpoints.unpack("state", arrays, like))

    def _own(self, memory: Any) -> np.ndarray:
        """Of memories of all clients, those in this process."""
        if self.program.devices is None:
            return memory
        shards = sorted(memory.addressable_shards, key=lambda shard: shard.index[1].start or 0)
        here = np.concatenate([shard.data for shard in shards], axis=1)
        return here[:, : max(self.program.n - (shards[0].index[1].start or 0), 0)]

    def _shared(self, of: Callable[[np.ndarray], Any], axis: int = 0) -> Any:
        """What ``of`` some clients there is, along this axis, on each device for its share of the clients.

        It is asked for those of this process alone. Where they are not as many, the first stands for those that lack.
        """
        mesh, n, share = self.program.devices, self.program.n, self.program.share
        assert mesh is not None
        sharding = NamedSharding(mesh, P(*[None] * axis, CLIENTS))
        here = [(i, device) for i, device in enumerate(mesh.devices) if device.process_index == jax.process_index()]
        shares = [(np.arange(i * share, (i + 1) * share), device) for i, device in here]
        parts = [jax.device_put(of(np.where(who < n, who, 0)), device) for who, device in shares]

        def joined(*parts: jax.Array) -> jax.Array:
            shape = parts[0].shape
            whole = (*shape[:axis], share * mesh.size, *shape[axis + 1 :])
            return jax.make_array_from_single_device_arrays(whole, sharding, list(parts))

        return jax.tree.map(joined, *parts)

    def _placed_state(self, state: State) -> State:
        """With arrays of the device's own, each by itself: the program may write in them."""
        if self.program.devices is None:
            return jax.device_put(state, may_alias=False)
        return replaced(state, memory=self._shared(functools.partial(_some, state.memory, axis=1), axis=1))


def _some(tree: Any, who: np.ndarray, axis: int = 0) -> Any:
    return jax.tree.map(lambda a: np.take(a, who, axis), tree)


@of_run
def _values(program: Compiled, data: Any, w: jax.Array) -> dict[str, jax.Array]:
    def values(data: Any, w: jax.Array) -> Any:
        said, task = evaluations_at(program, program.task, data, w, jnp.int32(0)), program.task
        own = {} if program.devices is not None else recording.own_values(task.task, said, program.n)
        return recording.where_sound(w, recording.summarised(task, w, said)[0] | own)

    return program.sharded(values, (P(CLIENTS), P()), P())(data, w)


def _room(program: Compiled, devices: int, seeds: np.ndarray) -> int:
    """The most participants that a device has in any round; all are known beforehand."""
    single, most = replaced(program, devices=None), 0
    for start in range(0, int(program.rounds), program.capacity):
        owners = (
            np.asarray(drawn(single, seeds, start)).reshape(-1, program.algorithm.cohort(program.n)) // program.share
        )
        most = max(most, *(int((owners == device).sum(axis=1).max()) for device in range(devices)))
    return most
