"""What a run's callbacks hear, told from the process that runs it to the one that has them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsgm.engines.callbacks import Callback, Listeners, News
from fedsgm.engines.checkpoint import Journal
from fedsgm.results.result import Result

_ROWS = 500  # at once
_LONG = 2.0  # seconds without an answer that are worth a word


class Noted:
    """A callback beside a run: it keeps what there is to tell for whoever asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news: News | None = None
        self._history = Journal(0)
        self._clients: Sequence[Mapping[str, Any]] = ()

    def __call__(self, news: News) -> None:
        with self._lock:
            if self._news is None:
                self._history = Journal(news.rounds)
            self._news, self._clients = news, news.clients or self._clients
            for t in range(news.new):
                row = {name: column[0, t] for name, column in news.history.items()}
                self._history.record(news.done - news.new + t, row)

    def since(self, seen: int) -> str:
        """As JSON, the rounds after so many, as many as one answer has; nothing before the first."""
        with self._lock:
            news, clients, first = self._news, list(self._clients), max(seen, 0)
            if news is None:
                return ""
            new = slice(first, min(news.done, first + _ROWS))
            columns = {name: column[new] for name, column in self._history.columns.items()}
            told = {
                "settings": dict(news.settings),
                "ranges": {name: list(each) for name, each in news.ranges.items()},
                "rounds": news.rounds,
                "clients": clients,
                "first": first,
                "columns": {name: [str(rows.dtype), rows.tolist()] for name, rows in columns.items() if len(rows)},
            }
        return json.dumps(told)


class Relayed:
    """Tells callbacks here of a run elsewhere, from the words of its server.

    Those words are data: what does not fit is passed over, as is what was told before.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks, self.seen = callbacks, 0
        self._listeners: Listeners | None = None
        self._last: Any = None

    def hear(self, said: str, lost: Mapping[str, Any], asked: Mapping[str, float]) -> None:
        """What the server said of the rounds after ``seen``, whom it has lost, and whom it asked how long ago."""
        if not said:
            return
        told = json.loads(said)
        if self._listeners is None:
            ranges = {name: (float(low), float(high)) for name, (low, high) in told["ranges"].items()}
            self._listeners = Listeners(self.callbacks, told["settings"], ranges, told["rounds"])
        now = [dict(row) | _state(row["name"] in lost, asked.get(row["name"], 0.0)) for row in told["clients"]]
        columns = {name: np.array(rows, dtype)[None] for name, (dtype, rows) in told["columns"].items()}
        new = _length(columns) if told["first"] == self.seen else 0
        if new or now != self._last:
            self._listeners.tell(columns if new else {}, now)
        self.seen, self._last = self.seen + new, now

    def finish(self, result: Result) -> None:
        """The rounds that were not told yet, and the result."""
        listeners = self._listeners or Listeners(
            self.callbacks, result.settings, result.ranges, result.settings["rounds"]
        )
        if _length(result.history) > self.seen:
            listeners.tell({name: column[:, self.seen :] for name, column in result.history.items()})
        listeners.finish(result, result.settings["federation"]["clients"])


def _state(lost: bool, seconds: float) -> dict[str, str]:
    """How a client is now."""
    if lost:
        return {"gone": "lost"}
    return {"gone": f"no answer for {seconds:.0f} s"} if seconds > _LONG else {"now": "there"}


def _length(columns: Mapping[str, np.ndarray]) -> int:
    return next((column.shape[1] for column in columns.values()), 0)
