"""What somebody who has all data in one place comes to: fairlearn's reduction, and the optimum of convex problems."""

from __future__ import annotations

import time
import warnings
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.layout import Layout
from fedsgm.base.sizes import over
from fedsgm.benchmark.cases import Answer, Case, Data, Setting
from fedsgm.core.algorithm import Flat
from fedsgm.engines.recording import values_of

_ROUNDING = 1e-4  # the share of a bound that is kept free, for float32, in which the answer is judged
_AMONG = {"DemographicParity": (None,), "TruePositiveRateParity": (1,), "EqualizedOdds": (0, 1)}


def parts(data: Data) -> dict[str, Any]:
    return {"train": data.clients.together()[0], "validation": data.validation, "test": data.test}


def exponentiated_gradient(case: Case, data: Data, bound: float, setting: Setting) -> Answer:
    """A randomised choice of logistic regressions; its bound is on the distance from everybody's rate.

    On one thread, as all methods run here: threads of several processes that wait for each other take five
    times as long.
    """
    try:
        from fairlearn import reductions
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise SettingError("the method fairlearn needs the package of that name; install it, or leave it out") from None
    assert case.rate is not None
    began = time.process_time()
    moment = getattr(reductions, case.rate)(difference_bound=setting["share"] * bound)
    reduced = reductions.ExponentiatedGradient(LogisticRegression(max_iter=300), moment, eps=setting["share"] * bound)
    each = parts(data)
    grouped = each["train"]["group"] >= 0  # fairlearn has no rows without a group
    train = {name: array[grouped] for name, array in each["train"].items()}
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        reduced.fit(train["x"], train["y"].astype(int), sensitive_features=train["group"])
        values = {part: _rates(case.rate, rows, reduced._pmf_predict(rows["x"])[:, 1]) for part, rows in each.items()}
    return Answer(values, time.process_time() - began)


def _rates(kind: str, rows: Any, yes: np.ndarray) -> dict[str, float]:
    """The gap and the share that is right, where each is decided to be positive with such a chance."""
    among = [np.ones(len(yes), bool) if label is None else rows["y"] == label for label in _AMONG[kind]]
    rates = [[yes[which & (rows["group"] == group)].mean() for group in (0, 1)] for which in among]
    right = np.where(rows["y"] == 1, yes, 1 - yes).mean()
    return {"gap": float(max(abs(a - b) for a, b in rates)), "right": float(right)}


def solved(case: Case, data: Data, bound: float, setting: Setting) -> Answer:  # noqa: ARG001
    """The optimum by sequential quadratic programming, in float64."""
    from scipy.optimize import minimize

    began = time.process_time()
    problem, everybody = case.problem(bound), data.clients.together()
    inside = bound - _ROUNDING * abs(bound)
    layout = Layout.of(data.params)
    with jax.enable_x64(True):
        examples = jax.device_put(problem.prepare(everybody, data.params))
        task = Flat(problem, layout)

        def value(name: str) -> Any:
            def of(w: jax.Array) -> jax.Array:
                return task.task.summarise(over(lambda rows: task.evaluate(w, rows), examples))[0][name]

            both = jax.jit(jax.value_and_grad(of))
            return lambda w: tuple(np.asarray(each, np.float64) for each in both(w))

        objective, (constraint,) = value("objective"), (value(name) for name in problem.names)
        found = minimize(
            objective,
            np.asarray(layout.rows(data.params)[0], np.float64),
            jac=True,
            method="SLSQP",
            constraints={
                "type": "ineq",
                "fun": lambda w: inside - constraint(w)[0],
                "jac": lambda w: -constraint(w)[1],
            },
            options={"maxiter": 200, "ftol": 1e-9},
        )
    answer = layout.unflatten(np.float32(found.x))
    (train,) = values_of(problem, everybody, [answer])
    held = {part: values_of(problem, _one(rows), [answer])[0] for part, rows in parts(data).items() if part != "train"}
    return Answer({"train": train, **held}, time.process_time() - began)


def _one(rows: Any) -> Any:
    from fedsgm.data.clients import Clients

    return Clients.from_list([rows])
