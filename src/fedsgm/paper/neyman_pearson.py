"""What the Neyman-Pearson figures share: the data, and FedSGM as the paper sets it unless told otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import Identity, TopK
from fedsgm.core.rules import Hard, Rule, Soft
from fedsgm.paper.lines import GRID, Data, Line, Tuned, panels
from fedsgm.paper.study import Run, Scale, told
from fedsgm.results.result import Result
from fedsgm.tasks import neyman_pearson as task

BOUND, LOCAL_STEPS, BETA, CLIENTS, SPLITS = 0.05, 5, 40.0, 20, 10
TARGET = (0.15, 0.06)  # of the objective and the constraint, for speed
ALIKE = 0.1  # two objectives are as good as each other within this share of them
RULES: Mapping[str, Rule] = {"hard": Hard(), "soft": Soft(BETA)}
NAMES = ("objective: majority's loss", "constraint: minority's loss")
BENIGN = "benign is 1"
WIDE = (*GRID, 0.01, 0.001, 0.0001)  # the range of the paper, whose smallest step sizes stay far from the bound


def data(scale: Scale, splits: int = SPLITS) -> Data:
    """The paper has one train split and three seeds; here ten splits or more, with three seeds each."""
    return Data(
        "neyman-pearson",
        _load,
        splits=scale.of(splits, 2),
        seeds=scale.of(3, 2),
        rounds=scale.of(500, 150),
        local_steps=LOCAL_STEPS,
    )


def line(
    label: str,
    rule: Rule,
    *,
    local_steps: int = LOCAL_STEPS,
    participants: int = 10,
    compressor: TopK | Identity = TopK(0.1),
    memory: bool = True,
    query: str = "participants",
    steps: Sequence[float] = GRID,
    variant: str | None = None,
) -> Line:
    """A line by its settings, by which its runs are called: two studies that have it share them."""

    def algorithm(step: float) -> FedSGM:
        return FedSGM(
            step, local_steps, participants, rule, uplink=compressor, downlink=compressor, query=query, memory=memory
        )

    sent = "uncompressed" if isinstance(compressor, Identity) else f"K/d {compressor.fraction:g}"
    parts = [words(rule), f"E {local_steps}", f"m {participants}", sent]
    parts += ["no feedback"] * (not memory) + [query] * (query != "participants")
    return Line(
        label,
        algorithm,
        steps=steps,
        name=", ".join(parts),
        variant=variant,
        sampled=participants < CLIENTS,
    )


def centralised(label: str, rule: Rule, *, variant: str | None = None) -> Line:
    """All data in one place, single steps, nothing compressed."""
    return Line(
        label,
        lambda step: FedSGM(step, rule=rule),
        centralised=True,
        name=f"{words(rule)}, centralised",
        variant=variant,
        sampled=False,
    )


def words(rule: Rule) -> str:
    """``soft 40``: a rule and its settings."""
    name, *settings = told(rule).values()
    return " ".join([name.lower(), *(f"{value:g}" for value in settings)])


def _load(split: int, alone: bool, variant: str | None) -> tuple[Any, Any, Any, Any]:
    clients, test, params = task.load(clients=CLIENTS, split_seed=split)
    if variant == BENIGN:
        clients = dataclasses.replace(clients, examples=_other_way(clients.examples))
        test = _other_way(test)
    return task.neyman_pearson(BOUND), clients.together() if alone else clients, params, test


def _other_way(examples: dict[str, Any]) -> dict[str, Any]:
    """With the labels of scikit-learn, where 1 is benign: the constraint is then on the larger class."""
    return examples | {"y": 1 - examples["y"]}


def runs(lines: Sequence[Line], scale: Scale, splits: int = SPLITS) -> list[Run]:
    return [run for line in lines for run in line.runs(data(scale, splits), scale)]


def tuned(lines: Sequence[Line], results: Mapping[str, Result], scale: Scale, splits: int = SPLITS) -> list[Tuned]:
    return [line.tuned(data(scale, splits), results, scale) for line in lines]


def fastest(lines: Sequence[Line], results: Mapping[str, Result], scale: Scale) -> list[Tuned]:
    """Each with the step size that is soonest at the target, on average."""
    every = [line.tried(data(scale), results, scale) for line in lines]
    return [min(tried, key=lambda one: float(one.rounds_to(*TARGET).mean())) for tried in every]


def picture(columns: Mapping[str, Sequence[Tuned]], scale: Scale) -> Any:
    return panels(columns, scale, bound=BOUND, names=NAMES)
