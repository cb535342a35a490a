"""What the Neyman-Pearson figures share: the data, and FedSGM as the paper sets it unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import Compressor, Identity, TopK
from fedsgm.core.rules import Hard, Rule, Soft
from fedsgm.paper.lines import Data, Line, Tuned, panels
from fedsgm.paper.study import Run, Scale
from fedsgm.results.result import Result
from fedsgm.tasks import neyman_pearson as task

BOUND, LOCAL_STEPS, BETA = 0.05, 5, 40.0
RULES: Mapping[str, Rule] = {"hard": Hard(), "soft": Soft(BETA)}
NAMES = ("objective: majority's loss", "constraint: minority's loss")


def data(scale: Scale) -> Data:
    """The paper has one train split and three seeds; here five splits with three seeds each."""
    return Data(
        "neyman-pearson",
        _load,
        splits=scale.of(5, 2),
        seeds=scale.of(3, 2),
        rounds=scale.of(500, 150),
        local_steps=LOCAL_STEPS,
    )


def line(
    label: str,
    rule: Rule,
    *,
    local_steps: int = LOCAL_STEPS,
    participants: int | None = 10,
    compressor: Compressor | None = None,
    margin: float = 0.0,
) -> Line:
    compressor = TopK(0.1) if compressor is None else compressor

    def algorithm(step: float) -> FedSGM:
        return FedSGM(step, local_steps, participants, rule, uplink=compressor, downlink=compressor)

    return Line(label, algorithm, margin=margin)


def centralised(label: str, rule: Rule) -> Line:
    """All data in one place, single steps, nothing compressed."""
    return Line(label, lambda step: FedSGM(step, rule=rule, uplink=Identity(), downlink=Identity()), centralised=True)


def _load(split: int, alone: bool, margin: float) -> tuple[Any, Any, Any, Any]:
    clients, test, params = task.load(split_seed=split)
    return task.neyman_pearson(BOUND - margin), clients.together() if alone else clients, params, test


def runs(lines: Sequence[Line], scale: Scale) -> list[Run]:
    return [run for line in lines for run in line.runs(data(scale), scale)]


def tuned(lines: Sequence[Line], results: Mapping[str, Result], scale: Scale) -> list[Tuned]:
    return [line.tuned(data(scale), results, scale) for line in lines]


def picture(columns: Mapping[str, Sequence[Tuned]], scale: Scale) -> Any:
    return panels(columns, scale, bound=BOUND, names=NAMES)
