"""A run set up from theory: what the user chose, the constants that are measured, and what a theorem then asks for."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.core.compression import Identity, Layerwise, Natural, RandK
from fedsgm.core.feedback import Chain
from fedsgm.core.problem import Mean, Problem
from fedsgm.core.rules import Hard, Soft
from fedsgm.core.shared import SharedK
from fedsgm.theory import estimates
from fedsgm.theory.guarantees import guarantee


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """The settings of :class:`FedSGM` that no theorem sets."""

    local_steps: int = 1
    participants: int | None = None
    uplink: Any = dataclasses.field(default=Identity())
    downlink: Any = dataclasses.field(default=Identity())
    project: Any = None
    batch_size: int | None = None
    constraint_batch_size: int | None = None


_CHOSEN = tuple(field.name for field in dataclasses.fields(_Chosen))
_MEASURED = ("distance", "lipschitz", "sigma")
_COVERED = ("shared", "largest")  # a step is on violated constraints, and no longer than on one of them
_TOLD = ("rule", "beta", "delta", "gradient_noise", "query_noise", "weak_convexity", "proximal", "multiplier", "form")


def plan(problem: Problem, clients: Any, params: Any, *, rounds: int, **settings: Any) -> dict[str, Any]:
    """The settings of :class:`FedSGM` that a theorem asks for; see :meth:`FedSGM.from_theory`.

    With sampled clients all of them answer the constraint query unless ``query`` says otherwise: then the estimate does
    not depend on who is drawn for the gradients, which the theorems assume and one S_t for both does not give.
    """
    takes = (*_CHOSEN, "query", *_MEASURED, *_TOLD)
    for name in settings:
        if name not in takes:
            known = ", ".join(("rounds", *takes))
            raise SettingError(
                f"from_theory: {name}={settings[name]!r}, but there is no such setting; there are {known}"
            )
    chosen = _Chosen(**{name: settings[name] for name in _CHOSEN if name in settings})
    told = {name: settings[name] for name in _TOLD if name in settings}
    _check_covered(problem, len(clients), chosen, told)
    query = settings.get("query", "all" if _sampled(chosen, len(clients)) else "participants")
    measured, estimated = _measure(problem, clients, params, chosen, settings, query)
    size = estimates.size(params)
    told["query_noise"] = told.get("query_noise") or 0.0
    promised = guarantee(
        rounds=rounds,
        local_steps=chosen.local_steps,
        clients=len(clients),
        participants=chosen.participants,
        uplink=chosen.uplink.contraction(size),
        downlink=chosen.downlink.contraction(size),
        random=any(map(_is_random, (chosen.uplink, chosen.downlink))),
        query=query,
        projected=chosen.project is not None,
        query_size=chosen.constraint_batch_size or 1,
        **measured,
        **told,
    )
    set_up = {
        "step_size": promised.step_size,
        "rule": Hard() if promised.beta is None else Soft(promised.beta),
        "tolerance": promised.tolerance,
        "query": query,
        "promise": dataclasses.replace(promised, estimated=estimated),
    }
    return set_up | vars(chosen)


def _check_covered(problem: Problem, clients: int, chosen: _Chosen, told: dict[str, Any]) -> None:
    estimates.refuse_rows("from_theory", problem)
    for constraint in problem.constraints:
        mean = isinstance(constraint.quantity, Mean) and constraint.quantity.refuses and constraint.scale == 1
        if not mean or problem.follow not in _COVERED:
            raise SettingError(
                "from_theory: the theorems are for constraints that are means over all clients, of scale 1, "
                "and steps on the largest violation or shared between the violated"
            )
        if constraint.sense != "<=":
            raise SettingError(
                f"from_theory: the theorems are for upper bounds, but {constraint.name!r} has a lower one; "
                "bound the negative from above, Mean(lambda w, x: -g(w, x)) <= -bound"
            )
    if isinstance(chosen.uplink, Chain):
        raise SettingError("from_theory: the theorems are for compressors, e.g. TopK, but the uplink is a chain")
    if _sampled(chosen, clients) and any(map(_is_random, (chosen.uplink, chosen.downlink))):
        raise SettingError("from_theory: with sampled clients the theorem is for deterministic compressors, e.g. TopK")
    batches = (chosen.batch_size, chosen.constraint_batch_size)
    if told.get("gradient_noise") is None and batches != (None, None):
        raise SettingError("from_theory: mini-batches need gradient_noise=, the sigma_xi of their gradients")
    if chosen.constraint_batch_size is not None and told.get("query_noise") is None:
        raise SettingError("from_theory: constraint_batch_size needs query_noise=, the sigma_b of one query")


def _measure(
    problem: Problem, clients: Any, params: Any, chosen: _Chosen, settings: dict[str, Any], query: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """D, G and sigma, those that are not given measured; and which of them are no proven bounds."""
    project = chosen.project
    distance, lipschitz, sigma = map(settings.get, _MEASURED)
    estimated = []
    if distance is None:
        distance = estimates.diameter(project, params)
        if not math.isfinite(distance):
            raise SettingError(
                "from_theory: X is not bounded; give project=, or distance=, a bound on |start - optimum|"
            )
    if lipschitz is None:
        estimated.append("lipschitz")
        lipschitz = estimates.lipschitz(problem, clients, params, project=project)
    if sigma is None and query != "all" and _sampled(chosen, len(clients)):
        estimated.append("sigma")
        sigma = estimates.spread(problem, clients, params, project=project)
    return {"distance": distance, "lipschitz": lipschitz, "sigma": sigma or 0.0}, tuple(estimated)


def _sampled(chosen: _Chosen, clients: int) -> bool:
    return chosen.participants is not None and chosen.participants < clients


def _is_random(compressor: Any) -> bool:
    each = compressor.compressor if isinstance(compressor, Layerwise) else compressor
    return isinstance(each, (RandK, SharedK, Natural))
