"""The account of a private run, by dp-accounting: how much noise a budget needs, and what rounds have spent.

A round is two releases, of statistics and of updates, each a Gaussian mechanism whose noise is so many times its
sensitivity, by the one that hides. At the end the values of two models are measured, the last one's and the answer's.
Gaussian mechanisms add up: what was spent is counted in rounds, and the values of a model are worth a tenth of all
rounds, so that noise of the verdict is less than a round's.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.core.drawing import RoundKeys

FINALS = 2  # models whose values are released at the end
_WORTH = 0.1  # of all rounds, what those of one model may spend, if that is a round or more


def parts(noise: Any, share: float) -> tuple[Any, Any]:
    """The multipliers of a round's statistics and of its update, which together are as one of ``noise``."""
    return noise / math.sqrt(share) if share else math.inf, noise / math.sqrt(1 - share)


def of_values(rounds: int) -> float:
    """The rounds' worth that the values of one model at the end are."""
    return max(1.0, _WORTH * rounds)


def round_of(noise: float, share: float) -> Any:
    """What one round releases, as dp-accounting has it."""
    dp = _library()
    statistics, update = parts(noise, share)
    events = [dp.GaussianDpEvent(update)] + ([dp.GaussianDpEvent(statistics)] if share else [])
    return dp.ComposedDpEvent(events)


def run_of(noise: float, share: float, rounds: int) -> Any:
    """What a whole run releases."""
    dp = _library()
    finals = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise / math.sqrt(of_values(rounds))), FINALS)
    return dp.ComposedDpEvent([dp.SelfComposedDpEvent(round_of(noise, share), rounds), finals])


@functools.lru_cache(maxsize=256)
def multiplier(epsilon: float, delta: float, rounds: int, share: float) -> float:
    """The least noise of a round, in units of the sensitivity, with which a run spends this budget at most."""
    dp = _library()
    found = dp.calibrate_dp_mechanism(
        _accountant,
        lambda noise: run_of(noise, share, rounds),
        epsilon,
        delta,
        bracket_interval=dp.LowerEndpointAndGuess(1e-3, math.sqrt(rounds)),
        tol=1e-4,
    )
    return float(found)


def epsilons(noise: float, delta: float, spent: Any) -> np.ndarray:
    """Epsilon where so many rounds' worth was released, for each number of them."""
    from dp_accounting.rdp import compute_epsilon

    one = _accountant()
    one.compose(_library().GaussianDpEvent(noise))
    units = np.atleast_1d(np.asarray(spent, np.float64))
    return np.array([compute_epsilon(one.orders, each * one.rdp, delta)[0] for each in units], np.float32)


def planned(algorithm: Any, share: float, rounds: int, seed: int, clients: int) -> np.ndarray:
    """The rounds' worth that the client which has told most has told, after each round: who is drawn is no secret.

    It is known from the seed, which anybody may know, so that sampling hides nobody and is not counted as if it did.
    """
    if algorithm.cohort(clients) == clients:
        return np.arange(1.0, rounds + 1)
    spent, most = np.zeros(clients), np.zeros(rounds)
    for t, who in enumerate(np.asarray(_drawn(algorithm, seed, rounds, clients))):
        everybody = algorithm.query == "all" or (algorithm.asks_first and t == 0)
        spent[slice(None) if everybody else who] += share
        spent[who] += 1 - share
        most[t] = spent.max()
    return most


def _drawn(algorithm: Any, seed: int, rounds: int, clients: int) -> jax.Array:
    def one(t: jax.Array) -> jax.Array:
        return algorithm.sample(RoundKeys.of(jnp.uint32(seed), t).sampling, clients)

    return jax.jit(lambda: jax.lax.map(one, jnp.arange(rounds), batch_size=min(rounds, 64)))()


def _accountant() -> Any:
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(neighboring_relation=_library().NeighboringRelation.REPLACE_ONE)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise SettingError("privacy= needs dp-accounting; pip install 'fedsgm[privacy]'") from None
    return dp_accounting
