"""Messages as bytes, plainly: a description in JSON and the arrays as they are."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np

from fedsgm.compression import Coded, Dense, Message, Sparse
from fedsgm.errors import FedSGMError


class WireError(FedSGMError, ValueError):
    """Bytes that are no message."""


def encode(message: Message, d: int) -> bytes:
    if isinstance(message, tuple):
        parts = [encode(part, d) for part in message]
        head: Any = [len(part) for part in parts]
        return json.dumps(["tuple", head]).encode() + b"\0" + b"".join(parts)
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(message)]
    head = [type(message).__name__, getattr(message, "bits", 0), [[a.dtype.name, list(a.shape)] for a in arrays]]
    return json.dumps(head).encode() + b"\0" + b"".join(a.tobytes() for a in arrays)


def decode(data: bytes, limit: int | None = None) -> Message:
    try:
        text, _, rest = data.partition(b"\0")
        head = json.loads(text)
        if head[0] == "tuple":
            parts = []
            for size in head[1]:
                parts.append(decode(rest[:size], limit))
                rest = rest[size:]
            return tuple(parts)
        arrays: list[Any] = []
        for name, shape in head[2]:
            kind = np.dtype(name)
            size = int(np.prod(shape)) * kind.itemsize
            arrays.append(np.frombuffer(rest[:size], kind).reshape(shape))
            rest = rest[size:]
        if rest:
            raise ValueError
        if head[0] == "Coded":
            return Coded(arrays[0], arrays[1], head[1])
        return {"Dense": Dense, "Sparse": Sparse}[head[0]](*arrays)
    except Exception as error:
        raise WireError("the bytes are no message") from error
