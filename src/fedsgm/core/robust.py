"""Robust aggregation: what the server makes of clients' answers when some of them may be wrong on purpose.

An aggregator is a frozen dataclass whose ``combined`` makes one vector of the clients' and says how much of each it
left out. What the clients say of the constraints is judged first, the same for every aggregator: who says what cannot
be is left out of the round's estimate and of its step. Honest clients with unlike data say unlike things, and to trim
them would bias the estimate, so all that is believable counts in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number, static, struct
from fedsgm.core.compression import RandK, TopK
from fedsgm.core.pooling import Heard, median_of

# How far from the median a client's number is believed, in units of how far the next quarter of the clients is on that
# side. A claim to be within the bound is believed less far than one to be beyond it: the first, if it is a lie, breaks
# the bound, the second makes the run cautious; and of honest clients a few may have most of a loss.
GOOD, BAD = 5.0, 50.0
LARGE = 10.0  # the same of how large a client says it is, where larger ones count more
LEAST = 0.2  # the unit is this share of the bound at least: clients that agree by chance are not held to it


class Robust(Protocol):
    """What :class:`FedSGM` asks of an aggregator."""

    @property
    def least(self) -> int:
        """How many participants it needs, to leave anything out."""
        ...

    def combined(self, vectors: jax.Array, believed: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One vector of [clients, d], and the share of each client's that was left out, from 0 to 1.

        ``believed`` is 0 for clients that are out already; of those that an aggregator is told of, they are the first.
        """
        ...


@struct
class Outliers:
    r"""The mean without the messages that are far from the others'.

    .. math:: \|x_j - \bar x\| > \text{factor} \cdot \operatorname{median}_k \|x_k - \bar x\|

    are left out, with :math:`\bar x` the median message, entry by entry.

    >>> float(Outliers().combined(jnp.array([[1.0], [2.0], [3.0], [90.0]]), jnp.ones(4))[0][0])
    2.0
    """

    factor: float = 20.0

    by_entry: ClassVar[bool] = False
    least: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_number("Outliers", "factor", self.factor, least=1)

    def combined(self, vectors: jax.Array, believed: jax.Array) -> tuple[jax.Array, jax.Array]:
        middle = median_of(vectors, believed)
        away = jnp.linalg.norm(vectors - middle, axis=1)
        rounding = jnp.finfo(jnp.float32).eps * jnp.linalg.norm(middle)
        kept = believed * (away <= self.factor * jnp.maximum(median_of(away, believed), rounding))
        return kept @ vectors / jnp.sum(kept), 1 - kept


@struct
class NormBound:
    r"""Messages no longer than ``factor`` times their median length; a longer one is shortened.

    .. math:: \frac{1}{m} \sum_j \min\Big(1, \frac{\tau}{\|x_j\|}\Big) x_j, \qquad
        \tau = \text{factor} \cdot \operatorname{median}_j \|x_j\|

    After Sun et al., *Can You Really Backdoor Federated Learning?* (2019).

    >>> float(NormBound(2.0).combined(jnp.array([[1.0], [1.0], [90.0]]), jnp.ones(3))[0][0])  # 90 is cut to 2
    1.3333333730697632
    """

    factor: float = 2.0

    by_entry: ClassVar[bool] = False
    least: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_number("NormBound", "factor", self.factor, least=1)

    def combined(self, vectors: jax.Array, believed: jax.Array) -> tuple[jax.Array, jax.Array]:
        lengths = jnp.linalg.norm(vectors, axis=1)
        bound = self.factor * median_of(lengths, believed)
        share = jnp.where(lengths > bound, bound / jnp.maximum(lengths, jnp.finfo(jnp.float32).tiny), 1)
        return believed * share @ vectors / jnp.sum(believed), 1 - believed * share


@struct
class Trimmed:
    """Of every entry the mean without the ``share`` largest and the ``share`` least.

    After Yin et al., *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates* (2018).

    >>> float(Trimmed(0.2).combined(jnp.array([[-50.0], [1.0], [2.0], [3.0], [90.0]]), jnp.ones(5))[0][0])
    2.0
    """

    share: float = static(default=0.1)

    by_entry: ClassVar[bool] = True
    least: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_number("Trimmed", "share", self.share, above=0)
        if self.share >= 0.5:
            raise SettingError(f"Trimmed: share={self.share}, but it must be below 0.5; take Median()")

    def combined(self, vectors: jax.Array, believed: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _inner(vectors, believed, _more(math.ceil(self.share * len(vectors) - 1e-4), believed))


@struct
class Median:
    """Of every entry the median.

    After Yin et al., *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates* (2018).

    >>> float(Median().combined(jnp.array([[1.0], [2.0], [90.0]]), jnp.ones(3))[0][0])
    2.0
    """

    by_entry: ClassVar[bool] = True
    least: ClassVar[int] = 3

    def combined(self, vectors: jax.Array, believed: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _inner(vectors, believed, _most(believed))


@struct
class Krum:
    r"""Multi-Krum: the mean of all messages but the ``f`` furthest from their neighbours.

    .. math:: \text{score}(j) = \sum_{k \in N_j} \|x_j - x_k\|^2

    with :math:`N_j` the m - f - 2 others that are nearest to j. After Blanchard et al., *Machine Learning with
    Adversaries: Byzantine Tolerant Gradient Descent* (2017).

    >>> float(Krum(1).combined(jnp.array([[1.0], [1.0], [2.0], [2.0], [90.0]]), jnp.ones(5))[0][0])
    1.5
    """

    f: int = static()

    by_entry: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count("Krum", "f", self.f)

    @property
    def least(self) -> int:
        return 2 * self.f + 3

    def combined(self, vectors: jax.Array, believed: jax.Array) -> tuple[jax.Array, jax.Array]:
        many, dropped = len(vectors), _more(self.f, believed)
        left = jnp.sum(believed) - dropped
        squares = jax.lax.map(lambda one: jnp.sum((vectors - one) ** 2, axis=1), vectors)
        away = jnp.where(jnp.eye(many, dtype=bool) | (believed <= 0), jnp.inf, squares)
        near = jnp.arange(many) < jnp.maximum(left - 2, 1)
        scores = jnp.sum(jnp.where(near, jnp.sort(away, axis=1), 0), axis=1)
        kept = believed * _least(jnp.where(believed > 0, scores, jnp.inf), left)
        return kept @ vectors / jnp.sum(kept), 1 - kept


def check_robust(owner: str, robust: Any, compressor: Any) -> None:
    """Refuse what is no aggregator, or one that cannot tell anything of such messages."""
    if isinstance(robust, type) or not all(hasattr(robust, name) for name in ("combined", "least")):
        raise SettingError(f"{owner}: robust={robust!r}, but it must be an aggregator, for instance Outliers()")
    sparse = isinstance(getattr(compressor, "compressor", compressor), (TopK, RandK))
    if sparse and getattr(robust, "by_entry", False):
        raise SettingError(
            f"{owner}: robust={type(robust).__name__} goes entry by entry, and {type(compressor).__name__} leaves most "
            "entries of a message out, so that nothing would be left; take Outliers or Krum, or another uplink"
        )


def check_participants(robust: Robust, participants: int) -> None:
    if participants < robust.least:
        raise SettingError(
            f"robust={type(robust).__name__} needs {robust.least} participants or more to leave one out, but there are "
            f"{participants}"
        )


def doubted(constraints: Sequence[Any], statistics: Any, heard: Heard) -> jax.Array:
    """1 for every client that was heard and says of a constraint what is not believed."""
    found = jnp.float32(0)
    for constraint, own in zip(constraints, statistics, strict=True):
        away = {"<=": (GOOD, BAD), ">=": (BAD, GOOD), "between": (BAD, BAD)}[constraint.sense]
        found = jnp.maximum(found, _far(constraint.quantity, own, heard, away, jnp.abs(constraint.bound)))
    return found


def unlike(quantity: Any, statistics: Any) -> jax.Array:
    """1 for every client that says of a quantity without a bound what is not believed."""
    return _far(quantity, statistics, None, (BAD, BAD), None)


def _far(quantity: Any, own: Any, heard: Heard, away: tuple[float, float], size: Any) -> jax.Array:
    """1 for who is too far away from the others; the size is that of the median unless it is told."""
    shares = quantity.judged(own, heard)
    here = jnp.ones(len(shares.values)) if shares.heard is None else shares.heard
    size = jnp.abs(median_of(shares.values, here)) if size is None else size
    far = beyond(shares.values, here, away, size)
    if shares.each is not None:  # what is far because the client is large may be true, and so may a small one's
        far *= beyond(shares.each, here, away, size)
    return far if shares.sizes is None else jnp.maximum(far, too_large(shares.sizes, here))


def too_large(sizes: jax.Array, heard: jax.Array) -> jax.Array:
    """1 for who says to be much larger than the others are, or much less than nothing."""
    return beyond(sizes, heard, (LARGE, LARGE), jnp.abs(median_of(sizes, heard)))


def beyond(values: jax.Array, heard: jax.Array, away: tuple[float, float], size: Any) -> jax.Array:
    """1 for a value too far ``away`` from the median, below or above; 0 for all where they cannot be compared.

    A unit of distance is that of the quarter next to the median on that side, and ``LEAST`` of a ``size`` at least.
    """
    known = jnp.where(heard > 0, values, jnp.nan)
    low, middle, high = jnp.nanquantile(known, jnp.array([0.25, 0.5, 0.75]))
    unit = jnp.maximum(LEAST * size, jnp.finfo(jnp.float32).eps * jnp.abs(middle))
    under = values < middle - away[0] * jnp.maximum(middle - low, unit)
    over = values > middle + away[1] * jnp.maximum(high - middle, unit)
    sound = jnp.all(jnp.isfinite(values) | (heard <= 0))
    return jnp.float32(sound & (heard > 0) & (under | over))


def believed(heard: Heard, doubted: jax.Array) -> jax.Array:
    """1 for who was heard and not doubted; everybody, if nobody would be left."""
    here = jnp.ones(len(doubted)) if heard is None else heard
    left = here * (1 - doubted)
    return jnp.where(jnp.any(left > 0), left, here)


def _most(believed: jax.Array) -> jax.Array:
    """How many can be left out at both ends."""
    return (jnp.int32(jnp.sum(believed)) - 1) // 2


def _more(told: int, believed: jax.Array) -> jax.Array:
    """How many are to be left out of as many as an aggregator is told of: some are already."""
    out = len(believed) - jnp.int32(jnp.sum(believed))
    return jnp.clip(told - out, 0, _most(believed))


def _inner(vectors: jax.Array, believed: jax.Array, dropped: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean of each entry without so many at both ends, and the share of each client's entries beyond these."""
    order = jnp.sort(jnp.where(believed[:, None] > 0, vectors, jnp.inf), axis=0)
    last = jnp.int32(jnp.sum(believed)) - 1 - dropped
    place = jnp.arange(len(order))[:, None]
    inner = jnp.where((place >= dropped) & (place <= last), order, 0)
    beyond = jnp.mean((vectors < order[dropped]) | (vectors > order[last]), axis=1)
    return jnp.sum(inner, axis=0) / (last - dropped + 1), jnp.where(believed > 0, beyond, 1)


def _least(scores: jax.Array, many: Any) -> jax.Array:
    """1 for so many of the least."""
    rank = jnp.zeros(len(scores)).at[jnp.argsort(scores)].set(jnp.arange(len(scores), dtype=jnp.float32))
    return jnp.float32(rank < many)
