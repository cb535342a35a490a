"""What a person sees of a run: a progress bar, or plain lines where nobody watches. Lives outside compiled code."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TextIO

_LINE_EVERY = 10.0  # seconds between plain lines


def say(text: str, *, file: TextIO | None = None, end: str = "\n") -> None:
    """Print; a reader that has gone away, as ``head`` does, keeps nothing else from being done."""
    stream = sys.stdout if file is None else file
    try:
        print(text, file=stream, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Progress:
    """``with Progress("np", rounds) as progress: progress.update(done, objective=..., violation=...)``"""

    def __init__(self, title: str, total: int, *, show: bool = True, unit: str = "round") -> None:
        self.title, self.total, self.unit = title, total, unit
        self._show = show
        self._last = time.monotonic()
        self._bar = None
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(title, total=total, note="compiling")

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, **values: float) -> None:
        """``done`` of the total; the values are shown beside it."""
        note = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if self._bar:
            self._bar.update(self._task, completed=done, note=note)
        elif self._show and time.monotonic() - self._last > _LINE_EVERY:
            self._last = time.monotonic()
            say(f"{self.title}: {self.unit} {done} of {self.total}  {note}", file=sys.stderr)
