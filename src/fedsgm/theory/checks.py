"""When a run leaves what is proven."""

from __future__ import annotations

import math
from typing import Any

from fedsgm.core.problem import Problem
from fedsgm.results.method import Method
from fedsgm.results.result import Result
from fedsgm.theory import estimates
from fedsgm.theory.lemmas import noise_radius


class TheoryWarning(UserWarning):
    """A run that was set up from theory has left it."""


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
    method, rounds = Method.of(result.settings), result.settings["rounds"]
    tolerance = method.settings["tolerance"]
    found = []
    if method.promise is not None:
        sigma, delta = method.promise["given"]["sigma"], method.promise["given"]["delta"]
        found += _other_settings(method, rounds, method.promise)
    if method.rule == "Soft":
        found += _soft(method.rule_settings["beta"], tolerance, method.promise)
    if sigma is not None and method.samples and method.settings["query"] == "participants":
        radius = noise_radius(sigma, method.participants, rounds, delta / 3)
        if tolerance < radius * (1 - 1e-6):
            found.append(
                f"the tolerance {tolerance:.3g} is below the noise radius {radius:.3g} of the constraint's estimate: "
                "rounds are taken for feasible that are not, and the other way round"
            )
    if method.switches and result.bounds:
        without = int((result.history["weight"] >= 1).all(axis=1).sum())
        if without:
            found.append(f"no round was feasible for {without} of {len(result.feasible)} seeds: no average is defined")
    if (
        problem is not None
        and method.settings["project"] is None
        and estimates.falls_forever(problem, clients, params, result)
    ):
        found.append(
            f"the objective still falls {estimates.FAR:g} away along the last parameters, within every bound: X is not "
            "bounded and there is no minimiser (separable data); give project="
        )
    return found


def _soft(beta: float, tolerance: float, promise: dict[str, Any] | None) -> list[str]:
    """What a beta promises, where the tolerance is too small for it. Without a promise M is known to be above 0."""
    if promise is None or "error" not in promise:
        if tolerance > 1 / beta:
            return []
        error, least, within = "M, the theorem's error,", f"M + {1 / beta:.3g}", f"M + {1 / beta:.3g}"
    else:
        radius = promise["violation"] - promise["tolerance"]
        needed = promise["error"] + 1 / beta + radius
        sharp = promise["beta"] is not None and beta >= promise["beta"] * (1 - 1e-6)
        if sharp or tolerance >= needed * (1 - 1e-6):
            return []
        error, least, within = (f"{value:.3g}" for value in (promise["error"], needed, needed + radius))
    return [
        f"beta is {beta:g}, which promises the objective within {error} and the constraint within {within} "
        f"at a tolerance of {least}, but the tolerance is {tolerance:.3g}"
    ]


def _other_settings(method: Method, rounds: int, promise: dict[str, Any]) -> list[str]:
    """Where the run's settings are not those that its promise was made for."""
    made_for = {name: promise[name] for name in ("step_size", "tolerance")}
    made_for |= {name: promise["given"][name] for name in ("local_steps", "rounds", "participants")}
    ran_with = method.settings | {"rounds": rounds, "participants": method.participants}
    found = [
        f"{name} is {ran_with[name]:g}, but the promise was made for {wanted:g}"
        for name, wanted in made_for.items()
        if not math.isclose(ran_with[name], wanted, rel_tol=1e-6)
    ]
    asked = method.settings["query"]
    if method.samples and asked != promise["query"]:
        found.append(f"query is {asked!r}, but the promise was made for {promise['query']!r}")
    if method.settings.get("server") is not None:
        found.append("the server's step is an optimizer's, but the promise was made for a plain one")
    if method.settings.get("memory") is False:
        found.append("error feedback is off, but the promise was made with it")
    return found
