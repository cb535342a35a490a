"""Who listens to a run: callbacks that are told of its rounds as they come, and may stop it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number
from fedsgm.results.result import Result, worst_excess


@dataclasses.dataclass(frozen=True)
class News:
    """What a callback is told.

    Attributes:
        settings: what the run is made with, as ``result.settings`` has it.
        ranges: the values that each constraint allows, from the least to the largest.
        rounds: how many the run is to have.
        done: how many are done.
        history: the columns of the rounds that are new, [seeds, rounds, ...]; the last of them is round ``done``.
        clients: of a federation, each client's account so far.
        result: of a run that is at its end, which is told last; None before.
        error: what ended the run instead.
    """

    settings: Mapping[str, Any]
    ranges: Mapping[str, tuple[float, float]]
    rounds: int
    done: int
    history: Mapping[str, np.ndarray]
    clients: Sequence[Mapping[str, Any]] = ()
    result: Result | None = None
    error: BaseException | None = None

    @property
    def new(self) -> int:
        """How many rounds are new."""
        return next((column.shape[1] for column in self.history.values()), 0)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The numbers of each new round and seed by name; those that are not finite are left out."""
        single = {name: column for name, column in self.history.items() if column.ndim == 2}
        for t in range(self.new):
            for i, seed in enumerate(self.settings["seeds"]):
                found = {name: column[i, t].item() for name, column in single.items()}
                row = {"seed": seed, "round": self.done - self.new + t + 1}
                yield row | {name: value for name, value in found.items() if math.isfinite(value)}


Callback = Callable[[News], Any]
"""Any function of :class:`News`. A true answer stops the run; if it is text, it says why.

One that may stop runs has an attribute ``every``: it is then asked after every so many rounds, and the run stops at the
same one whatever the speed of the machine. Without, it is told whenever some rounds are done.
"""


class Listeners:
    """All callbacks of a run; ``with`` it they hear also of what ends the run instead of a result."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        settings: Mapping[str, Any],
        ranges: Mapping[str, tuple[float, float]],
        rounds: int,
        *,
        listens: bool = True,
    ) -> None:
        self.callbacks, self._listens = list(callbacks), listens  # of several processes, the first one's do
        self.stopped = ""  # why
        self._about = (settings, {name: (float(low), float(high)) for name, (low, high) in ranges.items()}, rounds)
        self._done = 0
        if any(hasattr(each, "every") for each in self.callbacks):
            self._may_stop()

    def _may_stop(self) -> None:
        """Epsilon is accounted for rounds whose number no callback chooses by what it has seen of them."""
        settings, _, rounds = self._about
        if settings.get("algorithm", {}).get("privacy") and self._done < rounds:
            raise SettingError("callbacks: a private run is not stopped early; leave EarlyStopping and its like out")

    def __enter__(self) -> Listeners:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._say(error=error)

    def until(self, start: int, stop: int) -> int:
        """How far rounds may go on from ``start`` until somebody is to be told."""
        every = [int(each.every) for each in self.callbacks if hasattr(each, "every")]
        return min([stop, *(start + each - start % each for each in every)])

    def tell(self, history: Mapping[str, np.ndarray], clients: Sequence[Mapping[str, Any]] = ()) -> None:
        """Of new rounds; ``stopped`` then says whether there are to be more."""
        self._done += next((column.shape[1] for column in history.values()), 0)
        for callback, answer in zip(self.callbacks, self._say(history=history, clients=clients), strict=False):
            if answer and self._done % getattr(callback, "every", 1) == 0:
                self._may_stop()
                self.stopped = self.stopped or (answer if isinstance(answer, str) else "a callback has stopped it")

    def finish(self, result: Result, clients: Sequence[Mapping[str, Any]] = ()) -> None:
        """Of the end."""
        self._say(result=result, clients=clients)

    def _say(self, history: Mapping[str, np.ndarray] | None = None, **more: Any) -> list[Any]:
        news = News(*self._about, self._done, history or {}, **more)
        return [callback(news) for callback in self.callbacks] if self._listens else []

    def settings(self, done: int) -> dict[str, Any]:
        """Of the result of so many rounds, which say so where there were to be more."""
        settings, _, rounds = self._about
        early = {"stopped": {"of": rounds, "why": self.stopped}} if done < rounds else {}
        return {**settings, "rounds": done, **early}


class EarlyStopping:
    """Stops a run once no seed has found a better feasible round for a while.

    A round is better if its objective is below the best so far by more than ``tolerance`` times that. A run without a
    feasible round in some seed goes on. It looks at the true values, every quarter of ``patience``.

    >>> import fedsgm as fs
    >>> stop = fs.callbacks.EarlyStopping(patience=200)  # fs.simulate(..., callbacks=[stop])
    >>> stop.every
    50

    Args:
        patience: rounds without a better one.
        tolerance: the share of the objective by which a round must be better to count.
    """

    def __init__(self, patience: int = 100, tolerance: float = 1e-3) -> None:
        check_count("EarlyStopping", "patience", patience)
        check_number("EarlyStopping", "tolerance", tolerance, least=0)
        self.patience, self.tolerance = patience, tolerance
        self.every = max(1, patience // 4)
        self._best = np.zeros(0)
        self._since = np.zeros(0)

    def __call__(self, news: News) -> str:
        if not news.new:
            return ""
        if news.new == news.done:  # the first of a run
            seeds = len(news.settings["seeds"])
            self._best, self._since = np.full(seeds, np.inf), np.zeros(seeds)
        objective, worst = news.history["objective"], worst_excess(news.history, news.ranges)
        for t in range(news.new):
            room = np.where(np.isfinite(self._best), self.tolerance * np.abs(self._best), 0)
            better = (worst[:, t] <= 0) & (objective[:, t] < self._best - room)
            self._best = np.where(better, objective[:, t], self._best)
            self._since = np.where(better, news.done - news.new + t + 1, self._since)
        settled = np.isfinite(self._best) & (news.done - self._since >= self.patience)
        return f"no better feasible round for {self.patience} rounds" if settled.all() else ""


class JSONLines:
    """Writes a line of JSON for each round and seed, as they come, and one at the end.

    Args:
        path: the file, which is written anew, or of a run that goes on from a checkpoint as well.
        name: what the lines have as ``run``, if several runs are to be told apart; they are added to what is there.
    """

    def __init__(self, path: str | Path, name: str = "") -> None:
        self.path, self.name = Path(path), name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not name:
            self.path.write_text("")

    def __call__(self, news: News) -> None:
        lines: list[dict[str, Any]] = list(news.rows())
        if news.result is not None:
            feasible = bool(news.result.feasible.all())
            lines.append({"rounds": news.done, "feasible": feasible, "verdict": news.result.verdict().splitlines()[0]})
        if news.error is not None:
            lines.append({"rounds": news.done, "error": f"{type(news.error).__name__}: {news.error}"})
        named = {"run": self.name} if self.name else {}
        with self.path.open("a") as file:
            file.writelines(json.dumps(named | line) + "\n" for line in lines)
