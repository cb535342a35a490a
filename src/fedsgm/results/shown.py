"""What the page of a run shows, as data: courses with their seed bands, the plane, the clients, the settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsgm.base.progress import harmless
from fedsgm.results.method import Method
from fedsgm.results.result import Result, worst_excess
from fedsgm.results.verdict import bound_in_words, judged, number

POINTS = 600  # of a line
_DOTS = 5  # of a run in the plane, for each point of a line
_CLIENTS = 200  # that are listed
_WORST = 5  # of a value that are listed
_LONGEST = 300  # characters of a setting


@dataclasses.dataclass(frozen=True)
class Shown:
    """A run for the page, finished or under way.

    Attributes:
        history: [seeds, rounds, ...] so far.
        about: what else there is to say of it, such as of a fit's model.
        again: how to run it again: the command, and the file of settings that it takes.
        clients: the accounts of a federation's clients.
        result: of a finished run.
        note: what a run under way is doing, or why it ended without a result.
        failed: whether it has.
    """

    label: str
    history: Mapping[str, np.ndarray]
    ranges: Mapping[str, tuple[float, float]]
    settings: Mapping[str, Any]
    rounds: int
    about: str = ""
    again: tuple[str, ...] = ()
    clients: Sequence[Mapping[str, Any]] = ()
    result: Result | None = None
    note: str = ""
    failed: bool = False

    @classmethod
    def of(cls, result: Result, label: str, about: str = "", again: tuple[str, ...] = ()) -> Shown:
        clients = result.settings.get("federation", {}).get("clients", [])
        given = (label, result.history, result.ranges, result.settings, result.settings["rounds"])
        return cls(*given, about, again, clients, result)

    @property
    def done(self) -> int:
        return next((column.shape[1] for column in self.history.values()), 0)

    @property
    def state(self) -> str:
        """In a word, by which the page colours it."""
        if self.result is None:
            return "failed" if self.failed else "running"
        if not self.result.feasible.all():
            return "over"
        held_out = "test" not in self.result.values or (self.result.excess("test", "answer") <= 0).all()
        return "within" if held_out else "partly"


def in_a_program(settings: Mapping[str, Any]) -> str:
    """How a run is repeated by the program that made it."""
    federated, seeds = "federation" in settings, settings["seeds"]
    call = (
        "federate(algorithm, problem, transport, params"
        if federated
        else "simulate(algorithm, problem, clients, params"
    )
    told = {"rounds": settings["rounds"], "evaluate_every": settings["evaluate_every"], "seed": seeds[0]}
    told |= {"seeds": len(seeds)} if len(seeds) > 1 else {}
    return f"fs.{call}, {', '.join(f'{name}={value}' for name, value in told.items())})  # with the settings above"


def document(run: Shown, points: int = POINTS) -> Any:
    """All that the page shows of a run, for JSON; no text in it can do anything but be read."""
    verdict = run.result.verdict().split("\n") if run.result is not None else [run.note]
    return _plain(
        {
            "label": run.label,
            "state": run.state,
            "headline": verdict[0],
            "verdict": "\n".join(verdict[1:]).strip("\n"),
            "about": run.about,
            "method": Method.of(dict(run.settings)).title,
            "done": run.done,
            "rounds": run.rounds,
            "seeds": run.settings["seeds"],
            "answer": _answer(run.result) if run.result is not None else [],
            "charts": _charts(run, points) if run.done else [],
            "plane": _plane(run, points) if run.done and run.ranges else None,
            "clients": _clients(run),
            "worst": _worst_clients(run),
            "certificate": _certificate(run.settings),
            "settings": _rows(run.settings),
            "again": run.again,
        }
    )


def _answer(result: Result) -> list[dict[str, Any]]:
    """A row for the objective and each constraint: its bound, and on each part the values and whether within."""
    rows = []
    for name in ("objective", *result.ranges):
        row: dict[str, Any] = {"name": name, "bound": "", "parts": {}}
        for part in result.values:
            values = result.value(part, name, "answer")
            low, high = number(values.min()), number(values.max())
            row["parts"][part] = {"text": low if low == high else f"{low} .. {high}", "judged": "", "within": None}
            if name in result.ranges:
                allowed = result.ranges[name]
                row["bound"] = bound_in_words(allowed)
                row["parts"][part] |= {"judged": judged(values, allowed), "within": _within(values, allowed)}
        rows.append(row)
    return rows


def _within(values: np.ndarray, allowed: tuple[float, float]) -> bool:
    return bool((worst_excess({"objective": values, "": values}, {"": allowed}) <= 0).all())


def _charts(run: Shown, points: int) -> list[dict[str, Any]]:
    """Objective, constraints, weight and traffic against rounds, in the order of the page."""
    history = run.history
    charts = [_course(run, "reward", points)] if "reward" in history and "reward" not in run.ranges else []
    charts += [_course(run, name, points) for name in ("objective", *run.ranges) if name in history]
    if run.ranges and "weight" in history:
        # of many rounds together: it goes to and fro from round to round
        charts.append(_chart("weight", "Switch weight", "of the constraint in a round's step", history, points // 6))
    if "multiplier" in history:
        charts.append(_chart("multiplier", "Multiplier", "that the rule carries", history, points))
    for way, told in (("up", "from clients"), ("down", "to clients")):
        total = {f"bytes_{way}": np.cumsum(history[f"bytes_{way}"].astype(float), axis=1)}
        chart = _chart(f"bytes_{way}", f"Bytes {way}, so far", f"{told}, all of a seed", total, points)
        charts.append(chart | {"unit": "bytes"})
    if "answered" in history:
        told = f"messages used, of {history['participants'].shape[2]} participants"
        charts.append(_chart("answered", "Clients that answered", told, history, points))
    return charts


def _course(run: Shown, name: str, points: int) -> dict[str, Any]:
    """A value over all clients: with its bounds, the answers on training and held-out data, the spread of clients."""
    whose = "of each client" if f"{name}_best" in run.history else "over all clients"
    chart = _chart(name, name, f"true value {whose}, training data", run.history, points)
    chart["bounds"] = [bound for bound in run.ranges.get(name, ()) if math.isfinite(bound)]
    if f"{name}_best" in run.history:
        ends = {which: _line(run.history[f"{name}_{which}"], points) for which in ("best", "median", "worst")}
        chart["spread"] = {"x": ends["best"]["x"]} | {which: line["mean"] for which, line in ends.items()}
    if run.result is not None:
        chart["answers"] = _marks(run.result, name)
    return chart


def _marks(result: Result, name: str) -> list[dict[str, Any]]:
    """Where each seed's answer is: its round, and its value on each part."""
    found = []
    for i, (seed, at) in enumerate(zip(result.settings["seeds"], result.answer_round, strict=True)):
        if at:
            parts = {part: values[name][-1, i] for part, values in result.values.items() if name in values}
            found.append({"seed": seed, "round": int(at)} | (parts or {"train": result.history[name][i, at - 1]}))
    return found


def _chart(name: str, title: str, about: str, history: Mapping[str, np.ndarray], points: int) -> dict[str, Any]:
    return {"name": name, "title": title, "about": about, "line": _line(history[name], points)}


def _line(values: np.ndarray, points: int) -> dict[str, Any]:
    """The rounds, counted from 1, that have a value, its mean over seeds, and the least and the largest.

    Where there are more of them than points, a point is several rounds' mean, and their least and largest.
    """
    values = values.astype(float)
    at = np.flatnonzero(~np.isnan(values).all(axis=0))
    sizes = (
        np.array([len(group) for group in np.array_split(at, min(points, len(at)))]) if len(at) else np.zeros(0, int)
    )
    starts = np.cumsum(sizes) - sizes
    known = np.isfinite(values[:, at])

    def together(how: np.ufunc, nothing: float) -> np.ndarray:
        each = how.reduce(np.where(known, values[:, at], nothing), axis=0)
        return how.reduceat(each, starts) if len(at) else each

    counts = np.add.reduceat(known.sum(axis=0), starts) if len(at) else np.zeros(0)
    return {
        "x": (np.add.reduceat(at, starts) / sizes + 1) if len(at) else np.zeros(0),
        "mean": np.divide(together(np.add, 0), counts, out=np.full(len(counts), np.nan), where=counts > 0),
        "low": together(np.minimum, np.inf),
        "high": together(np.maximum, -np.inf),
        "each": int(sizes.max(initial=1)),
    }


def _plane(run: Shown, points: int) -> dict[str, Any]:
    """Objective against how far past a bound, of evaluated rounds of every seed, some of very many; and the answers."""
    worst, objective = worst_excess(run.history, run.ranges), run.history["objective"]
    seeds, rounds = np.nonzero(np.isfinite(worst) & np.isfinite(objective))
    kept = np.unique(np.linspace(0, len(seeds) - 1, min(_DOTS * points, len(seeds))).astype(int))
    found: dict[str, Any] = {"of": len(seeds)}
    seeds, rounds = seeds[kept], rounds[kept]
    found |= {"x": worst[seeds, rounds], "y": objective[seeds, rounds], "round": rounds + 1}
    found |= {"seed": np.array(run.settings["seeds"])[seeds], "answers": {}}
    if run.result is not None:
        for part in run.result.values:
            x, y = run.result.excess(part, "answer"), run.result.value(part, "objective", "answer")
            found["answers"][part] = {"x": x, "y": y}
    return found


def _clients(run: Shown) -> dict[str, Any]:
    """A federation's clients, those that were left out most first."""
    rows = sorted(run.clients, key=lambda each: -sum(each["left_out"].values()))
    return {"rows": [dict(row) for row in rows[:_CLIENTS]], "more": max(len(rows) - _CLIENTS, 0)}


def _worst_clients(run: Shown) -> list[dict[str, Any]]:
    """Of the objective and each constraint, in whom the answer is worst; of one on each client, who was in its rounds.

    A row has the client's values, from the least of all seeds to the largest, and whether they are within the bound.
    """
    found = []
    told = run.settings.get("worst_clients") or {}
    for name in ("objective", *run.ranges):
        rounds = _rounds_as_worst(run, name)
        rows = {int(client): (low, high) for client, low, high in told.get(name, ())} or dict.fromkeys(rounds)
        for client, ends in list(rows.items())[:_WORST]:
            row: dict[str, Any] = {"of": name, "client": _name(run, client), "low": None, "high": None, "within": None}
            if ends is not None:
                row |= {"low": ends[0], "high": ends[1]}
                row["within"] = _within(np.array(ends), run.ranges[name]) if name in run.ranges else None
            found.append(row | {"rounds": f"{rounds.get(client, 0)} of {sum(rounds.values())}" if rounds else ""})
    return found


def _rounds_as_worst(run: Shown, name: str) -> dict[int, int]:
    """Of a constraint on each client: in how many rounds each was the worst, most first."""
    if f"{name}_client" not in run.history:
        return {}
    who = run.history[f"{name}_client"]
    numbers, counts = np.unique(who[np.isfinite(who)].astype(int), return_counts=True)
    return {int(numbers[place]): int(counts[place]) for place in np.argsort(-counts, kind="stable")}


def _name(run: Shown, client: int) -> str:
    return str(run.clients[client]["name"]) if client < len(run.clients) else f"client {client}"


def _certificate(settings: Mapping[str, Any]) -> list[list[str]]:
    found = settings.get("certificate") or {}
    told = {
        "objective": "objective of the last parameters",
        "lower_bound": "the best possible is at least",
        "gap": "so it is above that by at most",
        "violation": "past a bound by (negative: within)",
        "residual": "KKT residual",
    }
    rows = [[words, f"{found[name]:.6g}"] for name, words in told.items() if name in found]
    return rows + [[f"multiplier of {name}", f"{value:.4g}"] for name, value in found.get("multipliers", {}).items()]


_ELSEWHERE = ("federation", "certificate", "model", "worst_clients")  # the page has them by themselves


def _rows(settings: Mapping[str, Any]) -> list[list[str]]:
    """Settings by their dotted names."""
    rows: list[list[str]] = []

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, each in value.items():
                add(f"{name}.{key}" if name and key != "is" else name or str(key), each)
        elif isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) for each in value):
            for i, each in enumerate(value):
                add(f"{name}.{i}", each)
        else:
            text = str(value)
            rows.append([name, text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."])

    add("", {name: value for name, value in settings.items() if name not in _ELSEWHERE})
    return rows


def _plain(value: Any) -> Any:
    """For JSON: numbers of six digits, none for what is not finite, and text without what is not shown."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return _numbers(value) if value.dtype.kind == "f" else value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def _numbers(values: np.ndarray) -> list[float | None]:
    """The same for many at once: a page that follows a run is made again and again."""
    known = np.isfinite(values)
    told = (" %.6g" * len(values)) % tuple(np.where(known, values, 0).tolist())
    return [float(text) if here else None for text, here in zip(told.split(), known.tolist(), strict=True)]
