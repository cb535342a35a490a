"""What a person sees of a run: a progress bar, or plain lines where nobody watches. Lives outside compiled code."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from types import TracebackType
from typing import Any, TextIO

from fedsgm.base.notebook import NotebookBar, in_notebook

_LINE_EVERY = 10.0  # seconds between plain lines


# What makes a terminal do or show something else than the text: control characters but for the end of a line and a
# tab, marks that turn the direction of writing, and what has no encoding.
_UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    r"""Text for a terminal, wherever it is from: ``"\x1b[2J"`` is shown as it is written here, and clears nothing."""
    return _UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)


def say(text: str, *, file: TextIO | None = None, end: str = "\n", exact: bool = False) -> None:
    """Print; a reader that has gone away, as ``head`` does, keeps nothing else from being done.

    ``exact`` text is data: another program gets them as they are, a terminal does not.
    """
    stream = sys.stdout if file is None else file
    try:
        print(text if exact and not stream.isatty() else harmless(text), file=stream, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Progress:
    """``with Progress("np", rounds) as progress: progress.update(done, objective=..., violation=...)``"""

    def __init__(self, title: str, total: int, *, show: bool = True, unit: str = "round") -> None:
        self.title, self.total, self.unit = title, total, unit
        self._show = show
        self._last = time.monotonic()
        self._bar: Any = None
        self._notebook = NotebookBar(title, total) if show and in_notebook() else None
        self._soon: threading.Timer | None = None
        if show and not self._notebook and sys.stderr.isatty():
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
            self._task = self._bar.add_task(title, total=total, note="")

    def __enter__(self) -> Progress:
        if self._notebook:
            self._notebook.start()
        elif self._bar:
            self._bar.start()
        if self.unit == "round":
            self.doing("compiling")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._begin()
        if self._notebook:
            self._notebook.stop()
        elif self._bar:
            self._bar.stop()

    def doing(self, what: str) -> None:
        """What goes on from now on, without progress: beside the bar, or a plain line if it takes long."""
        self._begin()
        if self._notebook:
            self._notebook.update(None, what)
        elif self._bar:
            self._bar.update(self._task, note=what)
        elif self._show:
            self._soon = threading.Timer(_LINE_EVERY, say, [f"{self.title}: {what}"], {"file": sys.stderr})
            self._soon.daemon = True
            self._soon.start()

    def _begin(self) -> None:
        """Something else than what went on: of that, no line any more."""
        if self._soon:
            self._soon.cancel()

    def update(self, done: int, **values: float) -> None:
        """``done`` of the total; the values are shown beside it."""
        self._begin()
        note = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if self._notebook:
            self._notebook.update(done, note)
        elif self._bar:
            self._bar.update(self._task, completed=done, note=note)
        elif self._show and time.monotonic() - self._last > _LINE_EVERY:
            self._last = time.monotonic()
            say(f"{self.title}: {self.unit} {done} of {self.total}  {note}", file=sys.stderr)
