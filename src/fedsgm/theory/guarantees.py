"""The paper's guarantees as numbers: what to set, what is then promised, and when a run leaves what is proven.

Every theorem has two forms. ``"statement"`` is what the paper prints; ``"proof"`` is what its proof establishes, and
the default. They differ in four places, each tested:

- The proofs' Gamma begins with ``1 + E/2 + E^2/3``, which the statements round up to ``2 E^2``.
- Soft switching is proven for twice the epsilon that is stated.
- With sampled clients the proofs switch on a tolerance with one noise radius and promise the constraint within a
  second one; the statements put both into the tolerance, and promise the constraint within it (the main text: within
  another ``sqrt(3 sigma^2 log(T/delta) / m)``).
- With compression and all clients the proofs are for X = R^d. For a projected run the form ``"proof"`` takes the
  constants of the proof for sampled clients, which projects, at m = n.

What no form repairs: the theorems for sampled clients assume that the constraint's estimate and the gradients are
independent, but Algorithm 1 takes both from the same clients. ``tests/theory/test_theory.py`` has a problem where that
makes the promise fail. And G must hold wherever local steps and compression lead, a little outside X.
"""

from __future__ import annotations

import math
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number, check_participants, static, struct
from fedsgm.core.compression import Identity, Layerwise, Natural, RandK
from fedsgm.core.problem import Problem
from fedsgm.core.quantities import Mean
from fedsgm.core.rules import Hard, Soft
from fedsgm.results.result import Result
from fedsgm.theory import estimates

FORMS = ("proof", "statement")


class TheoryWarning(UserWarning):
    """A run that was set up from theory has left it."""


@struct
class Guarantee:
    """What to set, and what is promised of the averaged iterate when it is set.

    Attributes:
        gamma: the theorem's Gamma (stochastic: G_eff / G^2), so that the step size is ``D / (G sqrt(2 E T Gamma))``.
        step_size, tolerance, beta: eta, the epsilon that is switched on, and the soft rule's sharpness (None for hard).
        epsilon: f(average) is at most this above the optimum; None where the objective is only weakly convex.
        violation: g(average) is at most this above its bound (weakly convex: the mean of g over the average's rounds).
        stationarity: for a weakly convex objective, the mean distance to the proximal points; None otherwise.
        probability: how often at least. With all clients it is 1 for deterministic compressors, and the promise is one
            in expectation for random ones.
        given: the constants it was computed from.
        estimated: those of them that were measured on a sample and are no proven bounds.
        source: the theorem.
    """

    gamma: float
    step_size: float
    tolerance: float
    beta: float | None
    epsilon: float | None
    violation: float
    stationarity: float | None
    probability: float
    given: dict[str, float]
    estimated: tuple[str, ...] = static()
    source: str = static()


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


def guarantee(
    rule: str = "hard",
    *,
    rounds: int,
    distance: float,
    lipschitz: float,
    local_steps: int = 1,
    clients: int = 1,
    participants: int | None = None,
    uplink: float = 1.0,
    downlink: float = 1.0,
    projected: bool = False,
    sigma: float = 0.0,
    delta: float = 0.05,
    gradient_noise: float | None = None,
    query_noise: float = 0.0,
    query_size: int = 1,
    weak_convexity: float | None = None,
    proximal: float | None = None,
    multiplier: float = 0.0,
    form: str = "proof",
) -> Guarantee:
    """The guarantee of the theorem that covers a setting.

    Args:
        rule: ``"hard"`` (Theorem 1) or ``"soft"`` (Theorem 2).
        rounds, local_steps, clients, participants: T, E, n and m (None is all).
        distance: D, at least ``|w_0 - w*|``; with sampled clients, or compression and a projection, the diameter of X.
        lipschitz: G, of every f_j and g_j.
        uplink, downlink: the contractions q and q0.
        projected: whether X is not all of R^d.
        sigma: the estimate of the constraint is sigma^2/m-sub-Gaussian; of no effect with all clients.
        delta: how often the promise may fail.
        gradient_noise: sigma_xi, for mini-batch gradients (the stochastic theorem), with ``query_noise`` sigma_b and
            ``query_size`` N_b of the constraint queries.
        weak_convexity: rho, for a weakly convex objective, with ``proximal`` rho_hat > 2 rho and ``multiplier`` Lambda
            (see :func:`multiplier_bound`).
        form: ``"proof"`` or ``"statement"``, see the module.

    Soft switching with sampled clients has no theorem in the paper. The form ``"proof"`` gives what its lemmas give:
    with M the bound on the weighted sums and r the noise radius, tolerance ``2 M + r`` and beta ``1/M`` promise
    ``2 M`` and ``2 M + 2 r``.

    >>> promised = guarantee("hard", rounds=20_000, distance=1.0, lipschitz=1.0, form="statement")
    >>> round(promised.epsilon, 6), round(promised.step_size, 6)
    (0.014142, 0.003536)
    """
    m = clients if participants is None else participants
    given = {
        "rounds": rounds, "distance": distance, "lipschitz": lipschitz, "local_steps": local_steps, "clients": clients,
        "participants": m, "uplink": uplink, "downlink": downlink, "sigma": sigma, "delta": delta,
    }  # fmt: skip
    _check_given(rule, given, form)
    sampled, compressed = m < clients, min(uplink, downlink) < 1
    e, t, d, g = local_steps, rounds, distance, lipschitz
    if gradient_noise is not None and weak_convexity is not None:
        raise SettingError(
            "guarantee: the paper has no theorem for mini-batches and a weakly convex objective together"
        )
    if gradient_noise is not None or weak_convexity is not None:
        what = "mini-batch gradients" if weak_convexity is None else "a weakly convex objective"
        if rule == "soft" or compressed:
            raise SettingError(f"guarantee: with {what} the paper's theorem is for rule='hard' without compression")
    if rule == "soft" and sampled and form == "statement":
        raise SettingError(
            "guarantee: the paper states no theorem for soft switching with sampled clients; form='proof' gives a bound"
        )
    size = gamma(e, clients=clients, participants=m, uplink=uplink, downlink=downlink, projected=projected, form=form)
    sampling = radius = 0.0
    if gradient_noise is not None:
        check_number("guarantee", "gradient_noise", gradient_noise, least=0)
        check_number("guarantee", "query_noise", query_noise, least=0)
        check_count("guarantee", "query_size", query_size)
        given |= {"gradient_noise": gradient_noise, "query_noise": query_noise, "query_size": query_size}
        source = "the theorem on stochastic FedSGM"
        size = 3.0 * e**2 if form == "statement" else e + 1 + 2 * e**2 / 3
        noise = (gradient_noise / g) ** 2
        size += e**2 * noise * (1 + math.log(7 * clients * t * e / delta))
        size += 4 / m * (e + noise) * math.log(28 * t / delta)
        sampling = (4 * g * d + 2 * d * gradient_noise / math.sqrt(e)) * math.sqrt(2 / (m * t) * math.log(7 / delta))
        spread = math.hypot(sigma if sampled else 0.0, query_noise / math.sqrt(query_size))
        radius = noise_radius(spread, m, t, delta / 7)
    elif sampled:
        share = 3 if weak_convexity is None else 4
        sampling = 4 * g * d / math.sqrt(m * t) * math.sqrt(2 * math.log(share / delta))
        radius = noise_radius(sigma, m, t, delta / share)
    error = math.sqrt(2 * size / (e * t)) * d * g + sampling
    if compressed and (sampled or (projected and form == "proof")):
        error += clients / m * 2 * d * g * math.sqrt(1 - uplink) / (uplink * t)

    beta = stationarity = None
    weight = 1.0  # of the noise radius in the sums that are bounded
    if weak_convexity is not None:
        check_number("guarantee", "weak_convexity", weak_convexity, least=0)
        check_number("guarantee", "proximal", proximal, above=2 * weak_convexity)
        check_number("guarantee", "multiplier", multiplier, least=0)
        assert proximal is not None
        given |= {"weak_convexity": weak_convexity, "proximal": proximal, "multiplier": multiplier}
        source = "the theorem on weakly convex objectives"
        error += d**2 * weak_convexity * e / (4 * t * size)
        weight += multiplier
    elif gradient_noise is None:
        who = "sampled clients" if sampled else "all clients"
        source = f"Theorem {1 if rule == 'hard' else 2}, {rule} switching, {who}{', compressed' * compressed}"
        if rule == "soft" and sampled:
            source = "the lemmas of the paper (soft switching with sampled clients has no theorem)"

    if rule == "soft":
        proven = 2 if form == "proof" else 1
        tolerance, epsilon = proven * error + radius, proven * error
        beta = 2 / epsilon
        violation = tolerance + radius
    elif form == "proof":
        tolerance = epsilon = error + weight * radius
        violation = tolerance + radius
    else:
        tolerance = epsilon = violation = error + 2 * weight * radius
        if sampled and gradient_noise is None and weak_convexity is None:
            violation += math.sqrt(3 * sigma**2 / m * math.log(t / delta))
    if weak_convexity is not None and proximal is not None:
        stationarity = math.sqrt((1 + multiplier) * tolerance / (proximal - 2 * weak_convexity))
    return Guarantee(
        gamma=size,
        step_size=d / (g * math.sqrt(2 * e * t * size)),
        tolerance=tolerance,
        beta=beta,
        epsilon=None if weak_convexity is not None else epsilon,
        violation=violation,
        stationarity=stationarity,
        probability=1 - delta if sampled or gradient_noise is not None else 1.0,
        given=given,
        estimated=(),
        source=f"{source}; as the {form} has it",
    )


def _check_given(rule: str, given: dict[str, Any], form: str) -> None:
    if rule not in ("hard", "soft"):
        raise SettingError(f"guarantee: rule={rule!r}, but it must be 'hard' or 'soft'")
    if form not in FORMS:
        raise SettingError(f"guarantee: form={form!r}, but it must be 'proof' or 'statement'")
    for name in ("rounds", "local_steps", "clients", "participants"):
        check_count("guarantee", name, given[name])
    for name in ("distance", "lipschitz"):
        check_number("guarantee", name, given[name], above=0)
    check_number("guarantee", "sigma", given["sigma"], least=0)
    for name in ("uplink", "downlink", "delta"):
        check_number("guarantee", name, given[name], above=0)
        if given[name] > 1 or (name == "delta" and given[name] == 1):
            limit = "below 1" if name == "delta" else "at most 1"
            raise SettingError(f"guarantee: {name}={given[name]!r}, but it must be above 0 and {limit}")
    check_participants(given["participants"], given["clients"])


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


def plan(
    problem: Problem,
    clients: Any,
    params: Any,
    *,
    rounds: int,
    rule: str = "hard",
    local_steps: int = 1,
    participants: int | None = None,
    uplink: Any = Identity(),
    downlink: Any = Identity(),
    project: Any = None,
    batch_size: int | None = None,
    constraint_batch_size: int | None = None,
    distance: float | None = None,
    lipschitz: float | None = None,
    sigma: float | None = None,
    delta: float = 0.05,
    gradient_noise: float | None = None,
    query_noise: float | None = None,
    weak_convexity: float | None = None,
    proximal: float | None = None,
    multiplier: float = 0.0,
    form: str = "proof",
) -> dict[str, Any]:
    """The settings of :class:`FedSGM` that a theorem asks for; see :meth:`FedSGM.from_theory`."""
    for constraint in problem.constraints:
        if not isinstance(constraint.quantity, Mean) or constraint.scale != 1 or problem.follow != "largest":
            raise SettingError(
                "from_theory: the theorems are for constraints that are means over clients, of scale 1, "
                "and steps on the largest violation"
            )
    m = len(clients) if participants is None else participants
    if m < len(clients) and any(map(_is_random, (uplink, downlink))):
        raise SettingError("from_theory: with sampled clients the theorem is for deterministic compressors, e.g. TopK")
    if gradient_noise is None and (batch_size is not None or constraint_batch_size is not None):
        raise SettingError("from_theory: mini-batches need gradient_noise=, the sigma_xi of their gradients")
    if constraint_batch_size is not None and query_noise is None:
        raise SettingError("from_theory: constraint_batch_size needs query_noise=, the sigma_b of one query")
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
    if sigma is None and m < len(clients):
        estimated.append("sigma")
        sigma = estimates.spread(problem, clients, params, project=project)
    size = estimates.size(params)
    promised = guarantee(
        rule,
        rounds=rounds,
        distance=distance,
        lipschitz=lipschitz,
        local_steps=local_steps,
        clients=len(clients),
        participants=m,
        uplink=uplink.contraction(size),
        downlink=downlink.contraction(size),
        projected=project is not None,
        sigma=sigma or 0.0,
        delta=delta,
        gradient_noise=gradient_noise,
        query_noise=query_noise or 0.0,
        query_size=constraint_batch_size or 1,
        weak_convexity=weak_convexity,
        proximal=proximal,
        multiplier=multiplier,
        form=form,
    )
    return {
        "step_size": promised.step_size,
        "local_steps": local_steps,
        "participants": participants,
        "rule": Hard() if promised.beta is None else Soft(promised.beta),
        "tolerance": promised.tolerance,
        "uplink": uplink,
        "downlink": downlink,
        "project": project,
        "batch_size": batch_size,
        "constraint_batch_size": constraint_batch_size,
        "promise": Guarantee(**(vars(promised) | {"estimated": tuple(estimated)})),
    }


def _is_random(compressor: Any) -> bool:
    return isinstance(compressor.compressor if isinstance(compressor, Layerwise) else compressor, (RandK, Natural))


def check(
    result: Result,
    problem: Problem | None = None,
    clients: Any = None,
    params: Any = None,
    *,
    sigma: float | None = None,
    delta: float = 0.05,
) -> list[str]:
    """Where a run left the theory, in sentences; an empty list if it did nowhere that can be told.

    ``sigma`` is the spread of the clients' constraints (:func:`fedsgm.theory.estimates.spread`); a run from theory
    knows its own. With the arguments of :func:`simulate` a run without ``project`` is also checked for having no
    minimiser.
    """
    settings = result.settings
    algorithm, rounds, n = settings["algorithm"], settings["rounds"], settings["clients"]
    tolerance, rule = algorithm["tolerance"], algorithm["rule"]
    m = algorithm["participants"] or n
    promise = algorithm.get("promise")
    found = []
    if promise is not None:
        given = promise["given"]
        sigma, delta = given["sigma"], given["delta"]
        made_for = {"step_size": promise["step_size"], "tolerance": promise["tolerance"]}
        made_for |= {
            "local_steps": given["local_steps"],
            "rounds": given["rounds"],
            "participants": given["participants"],
        }
        ran_with = algorithm | {"rounds": rounds, "participants": m}
        found += [
            f"{name} is {ran_with[name]:g}, but the promise was made for {wanted:g}"
            for name, wanted in made_for.items()
            if not math.isclose(ran_with[name], wanted, rel_tol=1e-6)
        ]
    if rule["is"] == "Soft" and rule["beta"] * tolerance < 2 * (1 - 1e-6):
        needed = f"2 / tolerance = {2 / tolerance:.3g}" if tolerance else "2 / tolerance, and the tolerance is 0"
        found.append(f"beta is {rule['beta']:g}, but the theorem needs at least {needed}")
    if sigma is not None and m < n:
        radius = noise_radius(sigma, m, rounds, delta / 3)
        if tolerance < radius * (1 - 1e-6):
            found.append(
                f"the tolerance {tolerance:.3g} is below the noise radius {radius:.3g} of the constraint's estimate: "
                "rounds are taken for feasible that are not, and the other way round"
            )
    if rule["is"] in ("Hard", "Soft") and result.bounds:
        without = int((result.history["weight"] >= 1).all(axis=1).sum())
        if without:
            found.append(
                f"no round was feasible for {without} of {len(settings['seeds'])} seeds: no average is defined"
            )
    if (
        problem is not None
        and algorithm["project"] is None
        and estimates.falls_forever(problem, clients, params, result)
    ):
        found.append(
            f"the objective still falls {estimates.FAR:g} away along the last parameters, within every bound: X is not "
            "bounded and there is no minimiser (separable data); give project="
        )
    return found
