"""One page for runs: an HTML file with everything in it, for a person who decides whether to take the answer."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.base.progress import harmless
from fedsgm.results import comparison
from fedsgm.results.shown import POINTS, Shown, document

_MOST = 2_000_000  # bytes of a page
_FEWEST = 40  # points of a line


def write(path: Path, runs: Sequence[Shown]) -> None:
    """Put the page of these runs there."""
    if path.suffix != ".html":
        raise SettingError(f"{path}: a page's name must end in .html")
    write_atomically(path, page(runs))


def page(runs: Sequence[Shown]) -> bytes:
    """The page; its lines have fewer points where it would be larger than 2 MB."""
    points = POINTS
    note = _note(runs)
    while len(made := put_together(_content(runs, points, note), _title(runs))) > _MOST:
        points //= 2
        if points < _FEWEST:
            raise SettingError("a page has at most 2 MB, which these runs do not fit; give fewer of them")
    return made


def _content(runs: Sequence[Shown], points: int, note: str) -> dict[str, Any]:
    return {"runs": [document(run, points) for run in runs], "note": note}


def _note(runs: Sequence[Shown]) -> str:
    """Of several runs the best, or why they are not to be compared."""
    rows = [comparison.of_finished(run.label, run.result) for run in runs if run.result is not None]
    return harmless(comparison.best(rows)) if len(rows) > 1 else ""


def put_together(content: Any, title: str) -> bytes:
    """The page of what :func:`document` gives; ``title`` is of the window.

    Whatever names a run has in it are data: no browser takes them for elements or for a program. What it runs is the
    script with this digest alone, and it asks nobody but who has sent it.
    """
    files = resources.files("fedsgm.results")
    template, style, script = ((files / f"page.{kind}").read_text() for kind in ("html", "css", "js"))
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; img-src data:; connect-src 'self'; "
        f"style-src {_digest(style)}; script-src {_digest(script)}",
        "style": style,
        "content": as_data(content),
        "script": script,
    }
    return re.sub(r"\[\[(\w+)\]\]", lambda found: parts[found[1]], template).encode()


def as_data(content: Any) -> str:
    """JSON in which nothing ends the element that it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _title(runs: Sequence[Shown]) -> str:
    return harmless(f"{', '.join(run.label for run in runs[:3])}{' ...' if len(runs) > 3 else ''} - fedsgm")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
