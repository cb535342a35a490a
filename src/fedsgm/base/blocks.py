"""Members in blocks, one block after another: what each of them takes is held for one block only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base import sizes
from fedsgm.base.errors import ClientError
from fedsgm.base.layout import LARGE
from fedsgm.base.structs import struct

# Numbers that a block has at most. On a CPU, a member with so many entries in a vector or in matrices of its own is
# worked on alone: products with one matrix for each member are slow there (benchmarks/large_models.py).
_AT_ONCE = 2**25
_VECTOR, _MATRICES = 2**15, LARGE


def size_for(stacked: Any, told: int | None = None, vector: int = 0, matrices: int = 0) -> int:
    """Members in a block; as ``told``, where that is.

    It goes by what is stacked, and by what each works on: a vector of so many entries, so many of them in matrices.
    """
    many = _many(stacked)
    if told is not None:
        return min(told, many)
    if (vector >= _VECTOR or matrices >= _MATRICES) and jax.default_backend() == "cpu":
        return 1
    numbers = sum(a.size for a in jax.tree.leaves(stacked)) / many + vector
    return max(1, min(many, int(_AT_ONCE / max(numbers, 1))))


def in_blocks(fn: Callable[..., Any], told: int | None = None) -> Callable[..., Any]:
    """What ``jax.vmap`` makes of a function, for as many members at once as there is room for."""

    def run(*stacked: Any) -> Any:
        size = size_for(stacked, told)
        if size == _many(stacked):
            return jax.vmap(fn)(*stacked)
        return _joined([jax.lax.map(lambda block: _of_block(fn, *block), lot) for lot in _lots(stacked, size)])

    return run


@struct
class Row:
    """One member's of what is stacked, which is changed where it stands."""

    stacked: jax.Array
    at: jax.Array


class Slices:
    """How one member's memory is taken from all members', and what is there of it afterwards put back."""

    def take(self, memory: Any, at: jax.Array) -> Any:
        return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, at, keepdims=False), memory)

    def put(self, memory: Any, at: jax.Array, new: Any) -> Any:
        return jax.tree.map(lambda a, row: jax.lax.dynamic_update_index_in_dim(a, row, at, 0), memory, new)


def fold(
    fn: Callable[..., Any],
    add: Callable[..., Any],
    zero: Any,
    data: Any,
    memory: Any,
    who: Any,
    *own: Any,
    size: int,
    slices: Slices,
    before: Callable[..., Any] | None = None,
) -> tuple[Any, Any, Any]:
    """``messages, memory = fn(data, memory, *own)`` of the members ``who``, in blocks.

    Of a block ``total, said = add(total, messages)``. It gives the total of all blocks, from ``zero`` on, what is
    said of all members, and everybody's memory. What ``before(data, *own)`` gives is made for all members at once,
    where there is room, and a last argument of ``fn``. ``slices`` has the memory of a member alone in its block.
    """
    total, answers = zero, []
    for bind, theirs, mine in sizes.parts(data, (who, *own)):

        def one(carry: Any, block: Any, bind: Any = bind) -> Any:
            (total, memory), (theirs, (who, *own)) = carry, block
            if len(who) > 1:
                messages, new = jax.vmap(bind(fn))(*theirs, sizes.take(memory, who), *own)
                memory = sizes.put(memory, who, new)
            else:  # without an axis for it, its products stay such of matrices
                theirs, (at, *own) = _alone(block)
                message, new = bind(fn)(*theirs, slices.take(memory, at), *own)
                memory, messages = slices.put(memory, at, new), _block_of(message)
            total, said = add(total, messages)
            return (total, memory), said

        if before is not None:
            made = jax.vmap(bind(before))(*theirs, *mine[1:])
            numbers = sum(a.size for a in jax.tree.leaves(made))
            mine = (*mine, made) if numbers <= _AT_ONCE else mine
        found = []
        for lot in _lots((theirs, mine), size):
            (total, memory), said = jax.lax.scan(one, (total, memory), lot)
            found.append(said)
        answers.append(_joined(found))
    return total, sizes.rejoined(data, answers), memory


def one_by_one(round: jax.Array, fn: Callable[..., Any], *stacked: Any) -> Any:
    """``fn`` of one member after another, op by op; an error names the client, which comes last, and the round."""
    *theirs, who = stacked
    answers = []
    for i, client in enumerate(np.asarray(who)):
        try:
            answer = fn(*jax.tree.map(lambda a, i=i: a[i], theirs))
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ClientError(f"client {client}, round {round}: {what}") from error
        for leaf in jax.tree.leaves(answer):
            if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(np.asarray(leaf, np.float32)).all():
                raise ClientError(f"client {client}, round {round}: a NaN or an infinite value in {fn.__name__}")
        answers.append(answer)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *answers)


def _many(tree: Any) -> int:
    return int(jax.tree.leaves(tree)[0].shape[0])


def _lots(tree: Any, size: int) -> list[Any]:
    """Blocks, stacked; where they cannot all be alike without being half as large, a smaller one by itself."""
    many = _many(tree)
    size = min(size, many)
    size = next((block for block in range(size, size // 2, -1) if many % block == 0), size)
    whole = many - many % size
    lots = [jax.tree.map(lambda a: a[:whole].reshape(-1, size, *a.shape[1:]), tree)]
    return lots + ([jax.tree.map(lambda a: a[None, whole:], tree)] if whole < many else [])


def _joined(lots: list[Any]) -> Any:
    flat = [jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), lot) for lot in lots]
    return flat[0] if len(flat) == 1 else jax.tree.map(lambda *parts: jnp.concatenate(parts), *flat)


def _of_block(fn: Callable[..., Any], *block: Any) -> Any:
    """Of one member without an axis for it: its products stay such of matrices."""
    if _many(block) > 1:
        return jax.vmap(fn)(*block)
    return _block_of(fn(*_alone(block)))


def _alone(block: Any) -> Any:
    return jax.tree.map(lambda a: a[0], block)


def _block_of(one: Any) -> Any:
    return jax.tree.map(lambda a: a[None], one)
