"""Error feedback: nothing a compressor drops is lost, it is only late.

Uplink, EF14: what a client did not send stays in that client's memory. Downlink, primal EF21: the
server sends compressed steps towards its own model, and every client holds the same replica of it.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedsgm.base.structs import replaced, struct
from fedsgm.core.chain import Uplink, compressor_of, transforms_of
from fedsgm.core.compression import Compressor, Identity, Message

_TRANSFORMS = 2**32 - 1  # what their key is made with: a compressor splits its own, and i of n is fold_in(key, i)


@struct
class Memory:
    """What a client keeps from one update to the next.

    ``error`` is e_j of Algorithm 1, None where nothing is compressed; ``transforms`` has the state of each transform of
    the uplink's chain.
    """

    error: Any
    transforms: tuple[Any, ...] = ()


def init(uplink: Uplink, d: int) -> Memory:
    """A client's memory before its first update: e_j = 0."""
    error = None if isinstance(compressor_of(uplink), Identity) else np.zeros(d, np.float32)
    return Memory(error, tuple(transform.init(d) for transform in transforms_of(uplink)))


def send(uplink: Uplink, memory: Memory, update: jax.Array, key: jax.Array) -> tuple[Message, Memory]:
    """EF14, on a client: transform the update, compress memory + update, keep what was left out.

    v = C(e + Delta), e <- e + Delta - v.
    """
    states = []
    for i, (transform, state) in enumerate(zip(transforms_of(uplink), memory.transforms, strict=True)):
        update, state = transform.apply(update, state, jax.random.fold_in(jax.random.fold_in(key, _TRANSFORMS), i))
        states.append(state)
    compressor = compressor_of(uplink)
    if memory.error is None:
        return compressor.compress(update, key), Memory(None, tuple(states))
    target = memory.error + update
    message = compressor.compress(target, key)
    left = target - compressor.decompress(message, target.shape[-1])
    return message, Memory(left, tuple(states))


def take_back(memory: Memory, sent: Any) -> Memory:
    """The memory, where the server did not use a message: the vector that was sent is part of what it has to get."""
    return memory if memory.error is None else replaced(memory, error=memory.error + sent)


def received(link: Uplink, message: Message, d: int) -> jax.Array:
    """The vector that a message stands for."""
    return compressor_of(link).decompress(message, d)


def broadcast(compressor: Compressor, replica: jax.Array, model: jax.Array, key: jax.Array) -> Message:
    """Primal EF21, on the server: C_0(x - w). Without compression the model itself is sent."""
    if isinstance(compressor, Identity):
        return compressor.compress(model, key)
    return compressor.compress(model - replica, key)


def follow(compressor: Compressor, replica: Any, received: Any) -> Any:
    """Primal EF21, on every client: w <- w + C_0(x - w), of the vector that the broadcast stands for."""
    return received if isinstance(compressor, Identity) else replica + received
