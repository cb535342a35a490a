"""What happens to an update between the local steps and the wire: transforms, one after another, then a compressor."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax

from fedsgm.base.errors import SettingError
from fedsgm.core.compression import Compressor, Identity


class Transform(Protocol):
    """A step of a chain, a frozen dataclass: it makes another vector of a client's update, and may keep a state."""

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
