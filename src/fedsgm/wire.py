"""What a message costs on the wire. The only place where sizes are counted."""

from __future__ import annotations

import math
from typing import Any

import jax

from fedsgm.compression import Coded


def nbytes(message: Any) -> int:
    """Bytes of a message packed plainly: 4 for an index or a float32, ``bits`` for a code."""

    def size(part: Any) -> int:
        if isinstance(part, Coded):
            return math.ceil(math.prod(part.codes.shape) * part.bits / 8) + nbytes(part.scales)
        return math.prod(part.shape) * part.dtype.itemsize

    return sum(size(part) for part in jax.tree.leaves(message, is_leaf=lambda part: isinstance(part, Coded)))
