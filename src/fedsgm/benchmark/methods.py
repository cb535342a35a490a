"""The methods of the benchmark. Each has six settings to choose from, on the same examples and in the same rounds.

All that are federated take steps that fall along a cosine from the same two sizes, as :mod:`fedsgm.tables.recipe` does,
so that what differs is the method.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import optax

from fedsgm.base.structs import Scheduled
from fedsgm.benchmark import references
from fedsgm.benchmark.cases import Case, Method, Setting, by_name
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import TopK
from fedsgm.core.rules import Adaptive, Hard, Penalty, PrimalDual, Soft, Unconstrained
from fedsgm.methods.ipp_conex import IPPConEx
from fedsgm.tables import recipe

TOP = 0.1  # of the entries, where messages are compressed
Rule = Callable[[float, Setting], Any]


def federated(case: Case, step: float, rule: Any, **more: Any) -> FedSGM:
    """What every federated method has alike."""
    return FedSGM(
        Scheduled(recipe.Falling(1.0, case.rounds, recipe.ANNEAL), step),
        case.local_steps,
        case.participants,
        rule,
        batch_size=case.batch_size,
        **more,
    )


def tried(**own: Sequence[float]) -> Callable[[Case], list[Setting]]:
    """The two step sizes of a case with each value of a method's own setting."""

    def trials(case: Case) -> list[Setting]:
        axes = {"step": case.steps, **own}
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    return trials


def _settings(*each: Setting) -> Callable[[Case], list[Setting]]:
    return lambda case: [{"step": step, **own} for step in case.steps for own in each]


def _hard(bound: float, setting: Setting) -> Hard:
    return Hard(margin=setting["margin"] * abs(bound))


def _soft(bound: float, setting: Setting) -> Soft:
    return Soft(beta=setting["width"] / abs(bound))


def _has_rows(case: Case) -> bool:
    """Not a game, whose runs take minutes: :mod:`fedsgm.paper` has compression there."""
    return case.score is not None


def _method(
    name: str, says: str, rule: Rule, trials: Any, ranked: bool = True, fits: Any = None, **more: Any
) -> Method:
    def algorithm(case: Case, bound: float, setting: Setting) -> FedSGM:
        return federated(case, setting["step"], rule(bound, setting), **more)

    return Method(name, says, trials, algorithm, ranked=ranked, fits=fits or (lambda _: True))


_ASKED = {"participants": "", "all": ", all clients asked", "memory": ", last values remembered"}
_RULES: dict[str, tuple[str, Rule, Any]] = {
    "hard": ("hard switching", _hard, tried(margin=(0.0, 0.05, 0.2))),
    "soft": ("soft switching", _soft, tried(width=(2.0, 5.0, 20.0))),
}


def _switching() -> list[Method]:
    """Hard and soft, for each way to ask, with and without compression."""
    made = []
    for top, (rule, (says, make, trials)), (query, asked) in itertools.product(
        (False, True), _RULES.items(), _ASKED.items()
    ):
        name = "-".join([rule, *([] if query == "participants" else [query]), *(["topk"] if top else [])])
        links: dict[str, Any] = {"uplink": TopK(TOP), "downlink": TopK(TOP)} if top else {}
        told = f"FedSGM, {says}{asked}{f', Top-K {TOP:g} both ways' if top else ''}"
        made.append(_method(name, told, make, trials, fits=_has_rows if top else None, query=query, **links))
    return made


@functools.cache  # the same transformation for equal steps, so that their runs are one program
def _optimist(step: float, rounds: int) -> optax.GradientTransformation:
    falling = recipe.Falling(1.0, rounds, recipe.ANNEAL)
    return optax.optimistic_gradient_descent(lambda round: step * falling(round))


def _optimistic(kind: str) -> Method:
    """The server goes along twice this round's mean less the last one's, as in arXiv 2505.09146."""
    says, make, trials = _RULES[kind]

    def algorithm(case: Case, bound: float, setting: Setting) -> FedSGM:
        step = setting["step"]
        return federated(case, step, make(bound, setting), server=_optimist(step, case.rounds))

    return Method(f"{kind}-optimistic", f"FedSGM, optimistic {says}", trials, algorithm, fits=_has_rows)


def _defaults(case: Case, _: float, setting: Setting) -> FedSGM:
    return federated(case, setting["step"], Adaptive())


def _ipp_conex(case: Case, _: float, setting: Setting) -> IPPConEx:
    return IPPConEx(
        proximal=0.1,
        primal_scale=1 / (_OFFSET * setting["step"]),
        dual_scale=setting["dual_scale"],
        offset=_OFFSET,
        local_steps=case.local_steps,
        batch_size=case.batch_size,
    )


_OFFSET = 100.0

_SWITCHING = _switching()
METHODS = by_name(
    [
        Method(
            "defaults",
            "FedSGM as fit sets it: the adaptive rule, nothing tuned",
            lambda case: [{"step": case.steps[-1]}],
            _defaults,
        ),
        _method(
            "adaptive",
            "FedSGM, adaptive shares, tuned",
            lambda _, setting: Adaptive(setting["adapt"]),
            tried(adapt=(0.5, 2.0, 8.0)),
        ),
        *_SWITCHING[:6],
        _optimistic("hard"),
        _optimistic("soft"),
        _method(
            "penalty",
            "FedAvg with a penalty",
            lambda _, setting: Penalty(setting["rho"]),
            tried(rho=(1.0, 5.0, 25.0)),
        ),
        _method(
            "primal-dual",
            "FedAvg on the Lagrangian",
            lambda _, setting: PrimalDual(setting["dual"]),
            tried(dual=(0.1, 1.0, 10.0)),
        ),
        _method(
            "augmented",
            "FedAvg on the augmented Lagrangian",
            lambda _, setting: PrimalDual(setting["dual"], setting["augment"]),
            _settings({"dual": 0.1, "augment": 1.0}, {"dual": 1.0, "augment": 1.0}, {"dual": 1.0, "augment": 10.0}),
        ),
        Method(
            "ipp-conex",
            "IPP-ConEx, which has all data with one client",
            tried(dual_scale=(0.2, 2.0, 20.0)),
            _ipp_conex,
            central=True,
            fits=_has_rows,
        ),
        _method(
            "fedavg",
            "FedAvg without the constraint",
            lambda *_: Unconstrained(),
            tried(),
            ranked=False,
        ),
        Method(
            "fairlearn",
            "fairlearn's ExponentiatedGradient, randomised, which sees all data",
            lambda _: [{"share": share} for share in (0.4, 0.5, 0.6, 0.75, 0.9, 1.0)],
            answer=references.exponentiated_gradient,
            ranked=False,
            fits=lambda case: case.rate is not None,
        ),
        Method(
            "solver",
            "a convex solver, which sees all data: the optimum",
            lambda _: [{}],
            answer=references.solved,
            ranked=False,
            fits=lambda case: case.convex,
        ),
        *_SWITCHING[6:],
    ],
    "methods",
)
