"""What the theorems are made of: Gamma, and the lemmas' bounds on noise, drift, memories and multipliers."""

from __future__ import annotations

import math

from fedsgm.base.structs import check_number


def gamma(
    local_steps: int,
    *,
    clients: int = 1,
    participants: int | None = None,
    uplink: float = 1.0,
    downlink: float = 1.0,
    projected: bool = False,
    form: str = "proof",
) -> float:
    """Gamma of Theorems 1 and 2 from E, n, m, q and q0; 2 E^2 is all of it without compression."""
    e, q, q0 = local_steps, uplink, downlink
    m = participants or clients
    drift = 2.0 * e**2 if form == "statement" else 1 + e / 2 + e**2 / 3
    if q == q0 == 1:
        return drift
    if m == clients and not (projected and form == "proof"):
        return drift + 2 * e * math.sqrt(1 - q) / q + 4 * e * math.sqrt(10 * (1 - q0)) / (q0 * q)
    if form == "proof":
        drift -= e / 2  # the length of a step, which 20 E / q^2 has
    return (
        drift
        + 16 * e * clients / m * math.sqrt(10 * (1 - q) * (1 - q0)) / (q0 * q**2)
        + 8 * e * math.sqrt(10 * (1 - q0)) / (q0 * q)
        + 20 * e / q**2
        + 4 * e * clients / m * math.sqrt(10 * (1 - q)) / q**2
    )


def noise_radius(sigma: float, participants: int, rounds: int, delta: float) -> float:
    """Lemma (constraint gap): with probability 1 - delta no round's estimate is further off than this.

    The theorems give it a third of their delta: ``sigma sqrt(2 log(6 T / delta) / m)``.
    """
    return sigma * math.sqrt(2 / participants * math.log(2 * rounds / delta))


def drift_bound(
    step_size: float,
    lipschitz: float,
    local_steps: int,
    *,
    gradient_noise: float = 0.0,
    clients: int = 1,
    rounds: int = 1,
    delta: float = 0.05,
) -> float:
    """Lemmas (client drift): what the sum over tau of ``|w_t - w_{j,tau}|^2`` is at most.

    Without gradient noise always; with it for all rounds and clients with probability 1 - delta.
    """
    if not gradient_noise:
        return step_size**2 * local_steps**3 * lipschitz**2 / 3
    noise = gradient_noise**2 * (1 + math.log(clients * rounds * local_steps / delta))
    return step_size**2 * local_steps**3 * (2 / 3 * lipschitz**2 + noise)


def memory_bound(lipschitz: float, local_steps: int, uplink: float) -> float:
    """Lemma (error feedback, deterministic compressors): the norm of a client's memory e_j is at most this.

    For any contractive compressor it bounds the root of the mean square. The sum of all memories over m, the
    lemma's e tilde, is at most n/m times this.
    """
    return 2 * math.sqrt(1 - uplink) * local_steps * lipschitz / uplink


def replica_bound(step_size: float, lipschitz: float, local_steps: int, uplink: float, downlink: float) -> float:
    """From the proofs on compression: how far ``|x_t - w_t|`` the clients' model is from the server's at most."""
    return 4 * step_size * math.sqrt(10 * (1 - downlink)) * local_steps * lipschitz / (downlink * uplink)


def multiplier_bound(lipschitz: float, distance: float, proximal: float, slack: float) -> float:
    """Lemma (multiplier, weakly convex): Lambda, with ``slack = -g`` at a strictly feasible point of X."""
    for name, value in (("lipschitz", lipschitz), ("distance", distance), ("proximal", proximal), ("slack", slack)):
        check_number("multiplier_bound", name, value, above=0)
    return (lipschitz * distance + proximal * distance**2) / slack
