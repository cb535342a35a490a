"""Error feedback: nothing a compressor drops is lost, it is only late.

Uplink, EF14: what a client did not send stays in that client's memory. Downlink, primal EF21: the
server sends compressed steps towards its own model, and every client holds the same replica of it.
"""

from __future__ import annotations

from typing import Any

import jax

from fedsgm.core.compression import Compressor, Identity, Message


def send(compressor: Compressor, memory: Any, update: jax.Array, key: jax.Array) -> tuple[Message, Any]:
    """EF14, on a client: compress memory + update, keep what was left out.

    v = C(e + Delta), e <- e + Delta - v.
    """
    if isinstance(compressor, Identity):
        return compressor.compress(update, key), None
    target = memory + update
    message = compressor.compress(target, key)
    return message, target - compressor.decompress(message, target.shape[-1])


def broadcast(compressor: Compressor, replica: jax.Array, model: jax.Array, key: jax.Array) -> Message:
    """Primal EF21, on the server: C_0(x - w). Without compression the model itself is sent."""
    if isinstance(compressor, Identity):
        return compressor.compress(model, key)
    return compressor.compress(model - replica, key)


def follow(compressor: Compressor, replica: jax.Array, message: Message) -> jax.Array:
    """Primal EF21, on every client: w <- w + C_0(x - w)."""
    received = compressor.decompress(message, replica.shape[-1])
    return received if isinstance(compressor, Identity) else replica + received
