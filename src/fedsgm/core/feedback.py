"""The road of an update: transforms, a compressor, and error feedback, so that nothing a compressor drops is lost.

Uplink, EF14: what a client did not send stays in that client's memory. Downlink, primal EF21: the
server sends compressed steps towards its own model, and every client holds the same replica of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base import blocks
from fedsgm.base.errors import SettingError
from fedsgm.base.structs import replaced, struct
from fedsgm.core import wire
from fedsgm.core.compression import Coded, Compressor, Dense, Fixed, Identity, Message, Sparse
from fedsgm.core.pooling import total_of

_ROUNDING = 1e-3  # of a length in float32, at most
_TRANSFORMS = 2**32 - 1  # what their key is made with: a compressor splits its own, and i of n is fold_in(key, i)


class Transform(Protocol):
    """A step of a chain, a frozen dataclass: it makes another vector of a client's update, and may keep a state.

    Where a round is done again, the state goes back to what it was. Where a message is lost, what was sent goes back
    into the error memory and the state stays; without a compressor it goes back as well.
    """

    def init(self, d: int) -> Any:
        """The state of a client before its first update, a pytree of arrays; None for none."""
        ...

    def apply(self, x: jax.Array, state: Any, key: jax.Array) -> tuple[jax.Array, Any]: ...


@dataclasses.dataclass(frozen=True)
class Chain:
    """An uplink of transforms that ends in a compressor; see :func:`chain`."""

    transforms: tuple[Transform, ...]
    compressor: Compressor


Uplink = Compressor | Chain


def chain(*links: Any) -> Uplink:
    """``FedSGM(uplink=chain(clip, TopK(0.1)))``: every update goes through the links in their order.

    The last may be a compressor; error feedback is about what that leaves out, after the transforms. The others are
    :class:`Transform` objects. A compressor alone is the same as without ``chain``.

    >>> from fedsgm import TopK
    >>> chain(TopK(0.1))
    TopK(fraction=0.1, count=None)
    """
    if not links:
        raise SettingError("chain: give it links, such as chain(clip, TopK(0.1))")
    *transforms, last = links
    if not _is_compressor(last):
        transforms, last = [*transforms, last], Identity()
    for i, link in enumerate(transforms):
        if _is_compressor(link):
            raise SettingError(f"chain: {link!r} is link {i + 1} of {len(links)}, but a compressor must be the last")
        if isinstance(link, type) or not (hasattr(link, "init") and hasattr(link, "apply")):
            raise SettingError(f"chain: {link!r} is no link; a transform has init and apply, a compressor compress")
    return Chain(tuple(transforms), last) if transforms else last


def check_uplink(owner: str, link: Any) -> None:
    if not _is_compressor(link) and not isinstance(link, Chain):
        raise SettingError(f"{owner}: uplink={link!r}, but it must be a compressor, for instance TopK(0.1), or a chain")


def check_downlink(owner: str, link: Any) -> None:
    if not _is_compressor(link):
        raise SettingError(f"{owner}: downlink={link!r}, but it must be a compressor, for instance TopK(0.1)")


def transforms_of(link: Uplink) -> tuple[Transform, ...]:
    return link.transforms if isinstance(link, Chain) else ()


def compressor_of(link: Uplink) -> Compressor:
    """What makes the messages, whose bytes travel."""
    return link.compressor if isinstance(link, Chain) else link


def _is_compressor(link: Any) -> bool:
    return not isinstance(link, type) and hasattr(link, "compress")


@struct
class Memory:
    """What a client keeps from one update to the next.

    ``error`` is e_j of Algorithm 1, None without compression or error feedback; ``transforms`` has the state of
    each transform of the uplink's chain.
    """

    error: Any
    transforms: tuple[Any, ...] = ()


def history(uplink: Uplink, d: int) -> Any:
    """What the server remembers of mean messages, where the uplink's compressor sends entries by that; else None."""
    compressor = compressor_of(uplink)
    return compressor.remember(d) if hasattr(compressor, "remember") else None


def longest(algorithm: Any) -> Any:
    """What messages are cut to, where one must not tell too much of its client; None where they are not."""
    return getattr(getattr(algorithm, "privacy", None), "longest", None)


def init(uplink: Uplink, d: int, remembers: bool = True, longest: Any = None) -> Memory:
    """A client's memory before its first update: e_j = 0, if it ``remembers`` what its messages leave out."""
    leaves_out = longest is not None or not isinstance(compressor_of(uplink), Identity)
    error = np.zeros(d, np.float32) if leaves_out and remembers else None
    return Memory(error, tuple(transform.init(d) for transform in transforms_of(uplink)))


def send(
    uplink: Uplink,
    memory: Memory,
    update: jax.Array,
    key: jax.Array,
    shared: jax.Array | None = None,
    longest: Any = None,
    named: jax.Array | None = None,
) -> tuple[Message, Memory]:
    """EF14, on a client: transform the update, compress memory + update, keep what was left out.

    v = C(e + Delta), e <- e + Delta - v. A compressor that is the same for all clients has the ``shared`` key, and the
    entries that are ``named``. Where no message may be longer than ``longest``, v is cut to that.
    """
    states = []
    for i, (transform, state) in enumerate(zip(transforms_of(uplink), memory.transforms, strict=True)):
        update, state = transform.apply(update, state, jax.random.fold_in(jax.random.fold_in(key, _TRANSFORMS), i))
        states.append(state)
    compressor: Any = compressor_of(uplink)
    if shared is not None and getattr(compressor, "shared", False):
        key = shared
    if isinstance(memory.error, blocks.Row):
        message, row = compressor.sent(memory.error, update, key)
        return message, Memory(row, tuple(states))
    target = update if memory.error is None else memory.error + update
    told: Any = () if named is None else (named,)
    message = compressor.compress(target, key, *told)
    if longest is not None:
        message = shortened(message, _added(compressor, jnp.zeros_like(target), message), longest)
    if memory.error is None:
        return message, Memory(None, tuple(states))
    left = _added(compressor, target, message, sign=-1)
    return message, Memory(left, tuple(states))


def shortened(message: Message, vector: jax.Array, longest: Any) -> Message:
    """The message of this vector, no longer than that; nothing where it is not finite."""
    length = jnp.linalg.norm(vector)
    factor = jnp.minimum(1, (1 - _ROUNDING) * longest / jnp.maximum(length, jnp.finfo(jnp.float32).tiny))
    return scaled(message, jnp.where(jnp.isfinite(length), factor, 0))


def scaled(message: Message, factor: jax.Array) -> Message:
    """The message of so many times the vector, or of less where it has whole numbers alone."""

    def times(a: jax.Array) -> jax.Array:
        return jnp.where(factor > 0, factor * a, 0)

    if isinstance(message, tuple):
        return tuple(scaled(part, factor) for part in message)
    if isinstance(message, (Dense, Sparse)):
        return replaced(message, values=times(message.values))
    if isinstance(message, Coded) and message.scales.shape[-1]:
        return replaced(message, scales=times(message.scales))
    if isinstance(message, Fixed):
        return replaced(message, codes=jnp.trunc(times(message.codes)).astype(message.codes.dtype))
    raise SettingError("this uplink's messages cannot be cut to a length; take TopK, RandK, SharedK or Quantize")


class InPlace(blocks.Slices):
    """Of memories whose errors stay where they are, if the compressor can work on them there."""

    def take(self, memory: Memory, at: jax.Array) -> Memory:
        return Memory(blocks.Row(memory.error, at), super().take(memory.transforms, at))

    def put(self, memory: Memory, at: jax.Array, new: Memory) -> Memory:
        return Memory(new.error.stacked, super().put(memory.transforms, at, new.transforms))


def slices(algorithm: Any) -> blocks.Slices:
    """How one client's memory is taken from all clients' of this algorithm."""
    can = algorithm.memory and longest(algorithm) is None and hasattr(compressor_of(algorithm.uplink), "sent")
    return InPlace() if can else blocks.Slices()


def take_back(memory: Memory, before: Memory, sent: Any) -> Memory:
    """The memory, where the server did not use a message: the vector that was sent is part of what it has to get.

    Without an error memory there is nowhere to keep it; the update was in vain, and the memory is that before it.
    """
    return before if memory.error is None else replaced(memory, error=memory.error + sent)


def settled(memory: Memory, before: Memory, rejected: jax.Array) -> Memory:
    """The memory, once it is known which share of its message was left out; of all, it is that before it.

    To give it its message back would make its next one longer, and be left out again, for ever.
    """
    return jax.tree.map(lambda new, old: jnp.where(rejected < 1, new, old), memory, before)


def is_sound(memory: Memory) -> bool:
    """Whether what is to be sent some day is finite; a transform's state is its own."""
    return memory.error is None or bool(np.isfinite(memory.error).all())


def received(link: Uplink, message: Message, d: int) -> jax.Array:
    """The vector that a message stands for."""
    return compressor_of(link).decompress(message, d)


@struct
class Summed:
    """The sum of the vectors that some messages stand for, and how many these are."""

    total: jax.Array
    count: Any

    @classmethod
    def nothing(cls, d: int) -> Summed:
        return cls(jnp.zeros(d), jnp.float32(0))

    def mean(self, task: Any, key: jax.Array) -> jax.Array:
        """Of the vectors; with noise where the task hides clients by it."""
        hidden = getattr(task, "hidden", None)
        return self.total / self.count if hidden is None else hidden(self, key)

    def after(self, link: Uplink, messages: Message) -> Summed:
        """With these messages, which are stacked."""
        many = len(jax.tree.leaves(messages)[0])
        compressor = compressor_of(link)
        if many == 1:
            total = _added(compressor, self.total, jax.tree.map(lambda a: a[0], messages))
        elif hasattr(compressor, "total"):
            total = self.total + compressor.total(messages, len(self.total))
        else:
            vectors = jax.vmap(lambda message: received(link, message, len(self.total)))(messages)
            total = self.total + total_of(vectors)
        return Summed(total, self.count + many)


def sizes_of(algorithm: Any, messages: Message) -> jax.Array:
    """Bytes of stacked messages; where lengths would tell of a client, those of the longest that there can be."""
    if longest(algorithm) is None:
        return jax.vmap(wire.size)(messages)
    return jax.vmap(lambda message: jnp.int32(wire.largest(message)))(messages)


def _added(
    compressor: Compressor, x: jax.Array, message: Message, sign: int = 1, dense: Callable[..., Any] = received
) -> jax.Array:
    """The vector, with that of a message added to it or taken from it."""
    if hasattr(compressor, "added"):
        return compressor.added(x, message, sign)
    return x + sign * dense(compressor, message, x.shape[-1])


def broadcast(compressor: Compressor, replica: jax.Array, model: jax.Array, key: jax.Array) -> Message:
    """Primal EF21, on the server: C_0(x - w). Without compression the model itself is sent."""
    if isinstance(compressor, Identity):
        return compressor.compress(model, key)
    return compressor.compress(model - replica, key)


def follow(compressor: Compressor, replica: Any, message: Message, dense: Callable[..., Any] = received) -> Any:
    """Primal EF21, on every client: w <- w + C_0(x - w), of the vector that the broadcast stands for."""
    if isinstance(compressor, Identity):
        return dense(compressor, message, len(replica))
    return _added(compressor, replica, message, dense=dense)
