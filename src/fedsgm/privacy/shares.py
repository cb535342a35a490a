"""A client's share of the noise of a sum that nobody sees the parts of.

Every client of a sum adds whole numbers of a discrete Gaussian, whose variance is that of the sum's noise over the
fewest clients that a sum can have. The sum of as many is as private as one with Gaussian noise, where a share's
deviation is a few units at least (Kairouz, Liu and Steinke, *The distributed discrete Gaussian mechanism*, 2021: at 4
units what it is short of is below 10^-60); of more clients it has more. What is hidden is rounded so that it becomes no
longer: a client moves the sum by no more than was declared.
"""

from __future__ import annotations

import functools
import math
import secrets
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.core.feedback import compressor_of
from fedsgm.core.quantities import Statistic
from fedsgm.core.shared import SharedK
from fedsgm.privacy.clients import PrivateClients
from fedsgm.privacy.secure import SEED, stream, threshold

LEAST, MOST = 4.0, 2.0**16  # units of a share's deviation
_FINE = 512.0  # units that a statistic's has, at least
_FAR = 12.0  # deviations, beyond which there is no noise


def check(task: PrivateClients, link: SharedK, clients: int) -> None:
    """Refuse a fixed point in which the noise has no room, or is too coarse to hide what it should."""
    share, reach = _share(task.of_update, clients), link.step * 2 ** (link.bits - 1)
    wanted = float(task.privacy.clip) + _FAR * share
    if LEAST * link.step <= share <= MOST * link.step and wanted <= reach:
        return
    room = 2.0 ** math.ceil(math.log2(wanted))
    bits = min(max(link.bits, math.ceil(math.log2(room * LEAST / share)) + 1), int(math.log2(room * MOST / share)) + 1)
    raise SettingError(
        f"secure: noise of deviation {share:.2g} by each client does not fit into {link!r}; take SharedK(..., "
        f"reach={room:g}, bits={bits})"
    )


def of_update(task: PrivateClients, uplink: Any, codes: Any, clients: int) -> np.ndarray:
    """A message's whole numbers with a share of the noise, by one of so many clients."""
    whole, link = np.asarray(codes, np.int64), compressor_of(uplink)
    assert isinstance(link, SharedK)
    return whole + discrete(_share(task.of_update, clients) / link.step, whole.size)


def of_values(task: Any, told: tuple[Any, Any, Any], unit: float, clients: int) -> np.ndarray:
    """Statistics and evaluations in whole units, with this client's share, one after another."""
    statistics, evaluations, _ = told
    every = ("objective", *task.problem.names)
    groups = [] if statistics is None else _groups(task, statistics, task.problem.names, task.multipliers[0])
    for each in evaluations or ():
        groups += _groups(task, each, every, task.at_end)
    hidden = [_hidden(*group, unit, clients) for group in groups]
    return np.concatenate(hidden) if hidden else np.zeros(0, np.int64)


def _groups(task: PrivateClients, said: Any, names: Any, multiplier: Any) -> list[tuple[np.ndarray, Any, float]]:
    """Of each quantity its numbers, the range of each number of a mean, and the deviation of its sum's noise."""
    found = []
    for each, name, sigma in zip(said, names, task.deviations(multiplier, names), strict=True):
        values = np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(each)])
        known = None if isinstance(task.quantity(name), Statistic) else task.privacy.range_of(name)
        found.append((values, known, float(sigma)))
    return found


def _share(sigma: Any, clients: int) -> float:
    """The deviation of a share, of a sum's noise."""
    return float(sigma) / math.sqrt(threshold(clients))


def _hidden(values: np.ndarray, known: Any, sigma: float, unit: float, clients: int) -> np.ndarray:
    """In whole units, on a grid that is as fine as the noise needs."""
    share = _share(sigma, clients)
    grid = max(unit, 2.0 ** math.floor(math.log2(share / _FINE)))
    if share < LEAST * grid:
        raise SettingError(f"secure: noise of deviation {share:.2g} is too little for the fixed point of statistics")
    if known is not None:
        whole = np.clip(np.rint(values / grid), math.ceil(known[0] / grid), math.floor(known[1] / grid))
    else:
        whole = np.trunc(values / grid)
    return (whole.astype(np.int64) + discrete(share / grid, len(values))) * round(grid / unit)


def discrete(sigma: float, size: int) -> np.ndarray:
    """Whole numbers k, each with probability proportional to exp(-k^2 / 2 sigma^2), to within 1e-12."""
    random = stream(secrets.token_bytes(SEED), b"noise", np.zeros(size, np.uint64))
    sizes = np.searchsorted(_table(sigma), (random >> np.uint64(11)).astype(np.float64) * 2.0**-53, side="right")
    return np.where(random & np.uint64(1), sizes, -sizes)


@functools.lru_cache(maxsize=32)
def _table(sigma: float) -> np.ndarray:
    """The probability of each absolute value and all below it."""
    far = np.arange(math.ceil(_FAR * sigma), dtype=np.float64)
    each = np.exp(-((far / sigma) ** 2) / 2)
    each[1:] *= 2
    return np.cumsum(each / each.sum())[:-1]
