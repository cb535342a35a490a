"""What the paper guarantees: a function for each theorem, to be read beside it.

All have the form ``error + noise``. The error is what rounds, local steps, sampling and compression leave of the sums
that the proofs bound; the noise is how far off the estimate of the constraint can be that is switched on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import static, struct
from fedsgm.theory.lemmas import gamma, noise_radius, replica_bound
from fedsgm.theory.setting import Setting


@struct
class Guarantee:
    """What to set, and what is promised of the averaged iterate when it is set.

    Attributes:
        gamma: the theorem's Gamma (stochastic: G_eff / G^2), so that the step size is ``D / (G sqrt(2 E T Gamma))``.
        step_size, tolerance, beta: eta, the epsilon that is switched on, and the soft rule's sharpness (None for hard).
        error: M, what the proof's mean over rounds of weighted gaps is at most, without the estimate's noise.
        epsilon: f(average) is at most this above the optimum; None where the objective is only weakly convex.
        violation: g(average) is at most this above its bound (weakly convex: the mean of g over the average's rounds).
        stationarity: for a weakly convex objective, the mean distance to the proximal points; None otherwise.
        probability: how often at least; None where the promise is one in expectation.
        kind: ``"always"``, with ``"probability"``, or in ``"expectation"``: with random compressors the sums are
            bounded in the mean over runs, and what a run's sum is divided by, its rounds ``|A|`` in the average (soft:
            their weights), is random. So ``E[|A| (f(average) - f* - epsilon)] <= 0`` is promised of the objective:
            epsilon bounds the mean gap of runs that count by ``|A|``, not every run's and not that ``|A| > 0``. The
            violation is within its limit in every run whose average is defined.
        query: who is to answer the constraint query.
        given: the constants it was computed from.
        estimated: those of them that were measured on a sample and are no proven bounds.
        source: the theorem.
    """

    gamma: float
    step_size: float
    tolerance: float
    beta: float | None
    error: float
    epsilon: float | None
    violation: float
    stationarity: float | None
    probability: float | None
    given: dict[str, float]
    kind: str = static()
    query: str = static()
    estimated: tuple[str, ...] = static()
    source: str = static()


def guarantee(rule: str = "hard", **setting: Any) -> Guarantee:
    """The guarantee of the theorem that covers a setting, told as :class:`Setting` is.

    >>> promised = guarantee("hard", rounds=20_000, distance=1.0, lipschitz=1.0, form="statement")
    >>> round(promised.epsilon, 6), round(promised.step_size, 6)
    (0.014142, 0.003536)
    """
    told = Setting(rule, **setting)
    return theorem(told)(told)


def theorem(s: Setting) -> Callable[[Setting], Guarantee]:
    """The one that covers a setting."""
    if s.gradient_noise is not None:
        return stochastic
    if s.weak_convexity is not None:
        return weakly_convex
    if s.rule == "hard":
        return hard_sampled if s.sampled else hard_all
    return soft_sampled if s.sampled else soft_all


def hard_all(s: Setting) -> Guarantee:
    """Theorem 1, m = n: the epsilon that is switched on is the one that is promised, for f and for g.

    Of g above its bound. The statement's (ii), ``g(average) - g(w*) <= epsilon``, is the same only where the constraint
    is active, g(w*) at its bound: the proof ends with ``g(average) <= epsilon``.
    """
    size = _gamma(s)
    error = _error(s, size)
    return _promise(s, _numbered(s), size, error, tolerance=error, epsilon=error, violation=error)


def hard_sampled(s: Setting) -> Guarantee:
    """Theorem 1, m < n: sampling's own error, and the noise radius at a third of delta; none if all clients answer."""
    size = _gamma(s)
    error = _error(s, size, _sampling(s, size, 3))
    epsilon, violation = _switched(s, error, noise_radius(s.spread, s.asked, s.rounds, s.delta / 3))
    if s.stated:
        violation += math.sqrt(3 * s.spread**2 / s.asked * math.log(s.rounds / s.delta))
    return _promise(s, _numbered(s), size, error, tolerance=epsilon, epsilon=epsilon, violation=violation)


def soft_all(s: Setting) -> Guarantee:
    """Theorem 2, for all clients: beta is 2 / epsilon, and the epsilon that is proven twice what is stated."""
    size = _gamma(s)
    return _softly(s, _numbered(s), size, _error(s, size), 0.0)


def soft_sampled(s: Setting) -> Guarantee:
    """Soft switching with m < n, which has no theorem in the paper; this is what its lemmas give."""
    size = _gamma(s)
    error = _error(s, size, _sampling(s, size, 3))
    source = "the lemmas of the paper (soft switching with sampled clients has no theorem)"
    return _softly(s, source, size, error, noise_radius(s.spread, s.asked, s.rounds, s.delta / 3))


def _softly(s: Setting, source: str, size: float, error: float, radius: float) -> Guarantee:
    """What the soft rule promises, for any beta.

    The proof bounds ``sum s_t (g_t - g*) + (1 - s_t) (f_t - f*)`` by M T, with s_t the weight and M the error. Where
    s_t > 0 the estimate is at least ``tolerance - 1/beta``, so with r the noise radius and the tolerance
    ``M + 1/beta + r`` there ``g_t - g* >= M``. Taken off, ``sum (1 - s_t) (f_t - f*) <= M sum (1 - s_t)``: the average
    is at most M above the optimum. It is defined, as ``s_t = 1`` in all rounds would make the sum more than M T; and in
    it are rounds whose estimate is below the tolerance, so that g is at most ``M + 1/beta + 2 r``.

    Without a beta it is the paper's, 2 / epsilon at epsilon = 2 M, that is 1/M, and 2 M is promised of f as there.
    """
    if s.beta is not None and not s.stated:
        tolerance = error + 1 / s.beta + radius
        return _promise(
            s, source, size, error, tolerance=tolerance, epsilon=error, violation=tolerance + radius, beta=s.beta
        )
    epsilon = (1 if s.stated else 2) * error
    beta = 2 / epsilon if s.beta is None else s.beta
    if beta < 2 / epsilon:
        raise SettingError(
            f"guarantee: beta={s.beta!r}, but the paper's statement is for at least 2 / epsilon = {2 / epsilon:.3g}; "
            "form='proof' covers any"
        )
    tolerance = epsilon + radius
    return _promise(
        s, source, size, error, tolerance=tolerance, epsilon=epsilon, violation=tolerance + radius, beta=beta
    )


def stochastic(s: Setting) -> Guarantee:
    """The theorem on stochastic FedSGM, for any m: seven events share delta, and Gamma is G_eff / G^2."""
    assert s.gradient_noise is not None
    e, t, d, g, n, m, delta = s.local_steps, s.rounds, s.distance, s.lipschitz, s.clients, s.drawn, s.delta
    noise = (s.gradient_noise / g) ** 2
    size = 3.0 * e**2 if s.stated else e + 1 + 2 * e**2 / 3
    size += e**2 * noise * (1 + math.log(7 * n * t * e / delta))
    size += 4 / m * (e + noise) * math.log(28 * t / delta)
    sampling = (4 * g * d + 2 * d * s.gradient_noise / math.sqrt(e)) * math.sqrt(2 / (m * t) * math.log(7 / delta))
    spread = math.hypot(s.spread, s.query_noise / math.sqrt(s.query_size))
    error = _error(s, size, sampling)
    epsilon, violation = _switched(s, error, noise_radius(spread, s.asked, t, delta / 7))
    source = "the theorem on stochastic FedSGM"
    return _promise(s, source, size, error, tolerance=epsilon, epsilon=epsilon, violation=violation)


def weakly_convex(s: Setting) -> Guarantee:
    """The theorem on weakly convex f: near to stationary. Four events share delta, and Lambda weighs the noise."""
    assert s.weak_convexity is not None
    assert s.proximal is not None
    size = _gamma(s)
    error = _error(s, size, _sampling(s, size, 4))
    error += s.distance**2 * s.weak_convexity * s.local_steps / (4 * s.rounds * size)
    radius = noise_radius(s.spread, s.asked, s.rounds, s.delta / 4)
    tolerance, violation = _switched(s, error, radius, weight=1.0 + s.multiplier)
    stationarity = math.sqrt((1 + s.multiplier) * tolerance / (s.proximal - 2 * s.weak_convexity))
    source = "the theorem on weakly convex objectives"
    return _promise(
        s, source, size, error, tolerance=tolerance, epsilon=None, violation=violation, stationarity=stationarity
    )


def _gamma(s: Setting) -> float:
    return gamma(
        s.local_steps,
        clients=s.clients,
        participants=s.drawn,
        uplink=s.uplink,
        downlink=s.downlink,
        projected=s.projected,
        form=s.form,
    )


def _error(s: Setting, size: float, sampling: float = 0.0) -> float:
    """``sqrt(2 D^2 G^2 Gamma / (E T))``, what sampling adds, and what memories do that are projected."""
    error = math.sqrt(2 * size / (s.local_steps * s.rounds)) * s.distance * s.lipschitz + sampling
    if s.compressed and (s.sampled or (s.projected and not s.stated)):
        ratio, q = s.clients / s.drawn, s.uplink
        error += ratio * 2 * s.distance * s.lipschitz * math.sqrt(1 - q) / (q * s.rounds)
    return error


def _step_size(s: Setting, size: float) -> float:
    return s.distance / (s.lipschitz * math.sqrt(2 * s.local_steps * s.rounds * size))


def _sampling(s: Setting, size: float, events: int) -> float:
    """``4 G D / sqrt(m T) sqrt(2 log(events / delta))``: gradients of m clients for those of all.

    The lemma takes D for ``|w_t - w*|``. A compressed downlink leads w_t out of X, away from x_t in X by at most
    :func:`replica_bound`, which as proven is added to D.
    """
    if not s.sampled:
        return 0.0
    reach = s.distance
    if not s.stated:
        reach += replica_bound(_step_size(s, size), s.lipschitz, s.local_steps, s.uplink, s.downlink)
    at_most = 4 * s.lipschitz * reach / math.sqrt(s.drawn * s.rounds)
    return at_most * math.sqrt(2 * math.log(events / s.delta))


def _switched(s: Setting, error: float, radius: float, weight: float = 1.0) -> tuple[float, float]:
    """The tolerance and the violation of the hard rule: a noise radius in each as proven, two in both as stated."""
    if s.stated:
        both = error + 2 * weight * radius
        return both, both
    tolerance = error + weight * radius
    return tolerance, tolerance + radius


def _numbered(s: Setting) -> str:
    who = "sampled clients" if s.sampled else "all clients"
    return f"Theorem {1 if s.rule == 'hard' else 2}, {s.rule} switching, {who}{', compressed' * s.compressed}"


def _promise(
    s: Setting,
    source: str,
    size: float,
    error: float,
    *,
    tolerance: float,
    epsilon: float | None,
    violation: float,
    beta: float | None = None,
    stationarity: float | None = None,
) -> Guarantee:
    kind = "probability" if s.sampled or s.gradient_noise is not None else "always"
    if s.random and s.compressed:
        kind = "expectation"
    source += f"; as the {s.form} has it"
    if s.sampled:
        source += ", every client asked" if s.query == "all" else ", if the estimate is independent of the gradients"
    return Guarantee(
        gamma=size,
        step_size=_step_size(s, size),
        tolerance=tolerance,
        beta=beta,
        error=error,
        epsilon=epsilon,
        violation=violation,
        stationarity=stationarity,
        probability={"always": 1.0, "probability": 1 - s.delta, "expectation": None}[kind],
        kind=kind,
        query=s.query,
        given=s.given,
        estimated=(),
        source=source,
    )
