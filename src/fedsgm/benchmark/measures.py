"""What is kept of a run: one flat row that says what was run, how it ended, and how it got there."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedsgm
from fedsgm.base.describe import describe
from fedsgm.benchmark.cases import Answer, Case, Data, Method, Setting, examples
from fedsgm.benchmark.together import together
from fedsgm.core.each_client import each_client
from fedsgm.core.problem import Mean, Problem
from fedsgm.data.clients import Clients
from fedsgm.engines.recording import values_of
from fedsgm.engines.simulate import simulate
from fedsgm.results.result import Result, excess
from fedsgm.tables.fairness import accuracy

LASTING = 0.9  # the share of the rounds from one on that are within, which makes feasibility lasting
_NO_BOUND = 1e9
RIGHT, WORST = "right", "worst client"
Row = dict[str, Any]


def ran(case: Case, data: Data, method: Method, bound: float, setting: Setting, seed: int) -> Row:
    """Run a method with a setting and tell what came of it."""
    if method.answer is not None:
        return sizes(data) | _told(case, method.answer(case, data, bound, setting), bound)
    assert method.algorithm is not None
    problem, clients = case.problem(bound), data.clients
    if method.central:
        problem, clients = problem.centralized(clients)
    algorithm = method.algorithm(case, bound, setting)
    began = time.process_time()  # of one thread; what the clock says depends on what else the machine does
    result = simulate(
        *(together(algorithm, len(problem.bounds)), problem, clients, data.params),
        rounds=case.rounds,
        seed=seed,
        test=data.test,
        evaluate_every=case.evaluate_every,
        offload=False,  # these fit in memory, where rounds are quicker
        progress=False,
    )
    row = {"seconds": time.process_time() - began, "algorithm": json.dumps(describe(algorithm))}
    return row | sizes(data) | course(result) | _ends(case, data, problem, result)


def sizes(data: Data) -> Row:
    """How many clients there are, what they train on, and how many parameters they learn."""
    start = data.params(0) if callable(data.params) else data.params
    counts = {"clients": len(data.clients), "examples": examples(data.clients)}
    return counts | {"parameters": sum(np.size(leaf) for leaf in jax.tree.leaves(start))}


def course(result: Result) -> Row:
    """How a run went: when it was within for good, and what was sent until then."""
    measured = result.evaluated()
    past = result.excess_history()[0][measured]
    within = past <= 0
    after = np.cumsum(within[::-1])[::-1] / np.arange(len(within), 0, -1)
    lasting = np.flatnonzero(within & (after >= LASTING))
    round_of = np.flatnonzero(measured) + 1
    first = int(round_of[lasting[0]]) if len(lasting) else None
    sent = sum(result.history[name][0].astype(np.float64) for name in ("bytes_up", "bytes_down"))
    until = np.cumsum(sent.reshape(len(sent), -1).sum(axis=1))
    return {
        "rounds_within": float(within.mean()),
        "last_within": float(within[-max(1, len(within) // 5) :].mean()),
        "lasting_round": first,
        "lasting_bytes": None if first is None else float(until[first - 1]),
        "bytes": float(until[-1]),
        "answer_round": int(result.answer_round[0]),
    }


def _ends(case: Case, data: Data, problem: Any, result: Result) -> Row:
    """The values of the answer and of the last parameters."""
    row: Row = {}
    for part in result.values:
        row |= _part(part, {name: float(result.value(part, name, "answer")[0]) for name in result.values[part]}, result)
    last = {name: float(result.value("train", name, "last")[0]) for name in result.values["train"]}
    row |= _part("last", last, result)
    if not isinstance(data.clients, Clients) or not result.answer_round.all():
        return row
    more = measuring(case, problem)
    for part, rows in (("train", data.clients), ("validation", data.validation), ("test", data.test)):
        found = values_of(more, rows if part == "train" else Clients.from_list([rows]), [result.answer])[0]
        told = {name: value for name, value in found.items() if name in ("objective", *problem.names)}
        row |= {} if part in result.values else _part(part, told, result)
        row |= {f"{part} {RIGHT}": found[RIGHT]} if RIGHT in found else {}
        row |= {f"{part} {WORST}": found[WORST]} if part == "train" else {}
    return row


def measuring(case: Case, problem: Problem) -> Problem:
    """A problem that tells, beside its own values, how often the model is right and the worst client's objective."""
    own = Mean(problem.objective.fn, where=problem.objective.where, missing="absent")
    more = [each_client(own, name=WORST) <= _NO_BOUND]
    if case.score is not None:
        more.append(accuracy(case.score, name=RIGHT) >= 0)
    return Problem(problem.objective, [*problem.constraints, *more], weigh=problem.weigh)


def _part(part: str, values: Mapping[str, float], result: Any) -> Row:
    past = [excess(np.asarray(values[name], np.float32), allowed) for name, allowed in result.ranges.items()]
    worst = float(max(past)) if math.isfinite(values["objective"]) else math.nan
    return {
        f"{part} objective": values["objective"],
        f"{part} excess": worst,
        f"{part} constraint": float(max(values[name] for name in result.ranges)),
    }


def _told(case: Case, answer: Answer, bound: float) -> Row:
    """Of a reference there are values alone."""
    row: Row = {"seconds": answer.seconds, "algorithm": "null"}
    (name,) = case.problem(bound).names
    for part, values in answer.values.items():
        row[f"{part} objective"] = values.get("objective", math.nan)
        row[f"{part} constraint"] = values[name]
        row[f"{part} excess"] = values[name] - bound
        row |= {f"{part} {RIGHT}": values[RIGHT]} if RIGHT in values else {}
    return row


def key(case: Case, method: Method, bound: float, setting: Setting, split: int, phase: str) -> Row:
    """Everything that a row is run again with."""
    return {
        "case": case.name,
        "method": method.name,
        "bound": bound,
        "split": split,
        "phase": phase,
        "setting": json.dumps(dict(setting)),
        "rounds": case.rounds,
        "local_steps": case.local_steps,
        "participants": case.participants,
        "batch_size": case.batch_size or 0,
        "evaluate_every": case.evaluate_every,
        "version": fedsgm.__version__,
        "code": code(),
    }


@functools.cache
def code() -> str:
    """A digest of the package's source but for what tells of rows: another one may come to other last digits."""
    found = hashlib.sha256()
    folder = Path(fedsgm.__file__).parent
    telling = {folder / "benchmark" / f"{name}.py" for name in ("pictures", "ranking", "report", "wording")}
    for path in sorted(set(folder.rglob("*.py")) - telling - set((folder / "cli").rglob("*.py"))):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()[:12]
