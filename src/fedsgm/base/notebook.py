"""A progress bar for notebooks, in HTML that is replaced as the run goes on: it needs no widgets."""

from __future__ import annotations

import html
import sys
import time
from typing import Any

_EVERY = 0.2  # seconds between two pictures


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


class NotebookBar:
    """So much of a total, with a note beside it."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._done, self._note, self._shown = 0, "", 0.0
        self._began = time.monotonic()
        self._handle: Any = None

    def start(self) -> None:
        from IPython.display import HTML, display

        self._handle = display(HTML(self._html()), display_id=True)

    def update(self, done: int | None, note: str) -> None:
        self._done = self._done if done is None else done
        self._note = note
        if time.monotonic() - self._shown > _EVERY:
            self._show()

    def stop(self) -> None:
        self._show()

    def _show(self) -> None:
        from IPython.display import HTML

        self._shown = time.monotonic()
        if self._handle is not None:
            self._handle.update(HTML(self._html()))

    def _html(self) -> str:
        seconds = time.monotonic() - self._began
        words = f"{self._done}/{self.total}  {seconds:.0f} s  {self._note}"
        bar = f"<progress value='{self._done}' max='{self.total}'></progress>"
        return f"<div style='white-space:pre'>{html.escape(self.title)} {bar} {html.escape(words)}</div>"
