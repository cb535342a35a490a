"""Everybody's data and memories on the device, or each client's on one of several, of one machine or of many."""

from __future__ import annotations

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
        self.program, self.seeds = program, seeds
        if program.devices is not None:
            self.program = replaced(program, room=_room(program, program.devices.size, seeds))
        self.data = self._placed(data, program.share)

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

    def _placed(self, tree: Any, share: int, axis: int = 0) -> Any:
        """Every device's share of the clients; where they are not as many, the first stands for those that lack."""
        mesh = self.program.devices
        if mesh is None:
            return jax.device_put(tree)
        sharding = NamedSharding(mesh, P(*[None] * axis, CLIENTS))

        def place(a: np.ndarray) -> jax.Array:
            shape = (*a.shape[:axis], share * mesh.size, *a.shape[axis + 1 :])

            def part(index: Any) -> np.ndarray:
                some = np.arange(shape[axis])[index[axis]]
                return np.take(a, np.where(some < a.shape[axis], some, 0), axis)

            return jax.make_array_from_callback(shape, sharding, part)

        return jax.tree.map(place, tree)

    def _placed_state(self, state: State) -> State:
        """With arrays of the device's own, each by itself: the program may write in them."""
        if self.program.devices is None:
            return jax.device_put(state, may_alias=False)
        return replaced(state, memory=self._placed(state.memory, self.program.share, axis=1))


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
