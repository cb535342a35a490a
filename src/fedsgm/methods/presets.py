"""Known methods by name. Each is a setting of the same algorithm, so a comparison changes nothing but the method."""

from __future__ import annotations

from typing import Any

from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import Compressor
from fedsgm.core.rules import Hard, Penalty, PrimalDual, Rule, Unconstrained
from fedsgm.data.clients import Clients


def fedavg(step_size: float, *, local_steps: int = 1, participants: int | None = None, **more: Any) -> FedSGM:
    """Local SGD and averaging, no constraint (McMahan et al. 2017)."""
    return FedSGM(step_size, local_steps, participants, Unconstrained(), **more)


def penalty_fedavg(
    step_size: float, rho: float, *, local_steps: int = 1, participants: int | None = None, **more: Any
) -> FedSGM:
    """FedAvg that adds ``rho`` times the constraint's gradient while it is violated: the paper's heuristic."""
    return FedSGM(step_size, local_steps, participants, Penalty(rho), **more)


def primal_dual_fedavg(
    step_size: float,
    dual_step: float,
    *,
    augment: float = 0.0,
    local_steps: int = 1,
    participants: int | None = None,
    **more: Any,
) -> FedSGM:
    """FedAvg on the Lagrangian, with projected ascent of a multiplier on the server; augmented if asked."""
    return FedSGM(step_size, local_steps, participants, PrimalDual(dual_step, augment), **more)


def ef14(step_size: float, uplink: Compressor, **more: Any) -> FedSGM:
    """Compressed gradient descent with error feedback (Seide et al. 2014): one step, all clients, no constraint."""
    return FedSGM(step_size, rule=Unconstrained(), uplink=uplink, **more)


def safe_ef(step_size: float, uplink: Compressor, *, tolerance: float = 0.0, **more: Any) -> FedSGM:
    """Safe-EF (Islamov et al. 2025): hard switching on compressed gradients, one step, all clients."""
    return FedSGM(step_size, rule=Hard(), tolerance=tolerance, uplink=uplink, **more)


def crpo(step_size: float, *, tolerance: float = 0.0, **more: Any) -> FedSGM:
    """CRPO's switch (Xu et al. 2021): one step of the objective, or of the constraint while it is violated."""
    return FedSGM(step_size, rule=Hard(), tolerance=tolerance, **more)


def centralized_sgm(step_size: float, rule: Rule, **more: Any) -> FedSGM:
    """The switching gradient method on :func:`centralized` data: the switch is decided anew at every step.

    To compare with T rounds of E local steps, run T * E rounds and evaluate every E.
    """
    return FedSGM(step_size, rule=rule, **more)


def centralized(clients: Clients) -> Clients:
    """All examples with one client, as if they could be brought together."""
    return clients.together()
