"""When a run leaves what is proven."""

from __future__ import annotations

import math
from typing import Any

from fedsgm.core.problem import Problem
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
