"""A run's page while it goes on, for a browser on this machine."""

from __future__ import annotations

import http.server
import json
import secrets
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsgm.base.errors import in_a_line
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines.callbacks import News
from fedsgm.results import page
from fedsgm.results.shown import Shown, document

_READER = 5.0  # seconds after which a browser that asks no more is gone
_LAST = 5.0  # seconds that a browser has to fetch the end
_POINTS = 300  # of a line
_REST = 100  # times as long as the page took to make, it is left as it is, unless there is something to know at once


class Watch:
    """Serves the page of runs on 127.0.0.1 while they go on; ``watch.run("name")`` is a callback.

    The address has a token that nobody can guess, and a request must name 127.0.0.1 or localhost as its host: no page
    of another site that the browser has open can read it. Nothing can be changed through it.

    >>> from fedsgm.engines.watch import Watch
    >>> with Watch() as watch:
    ...     watch.address.startswith("http://127.0.0.1:")  # simulate(..., callbacks=[watch.run()])
    True
    """

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(16)
        self._runs: dict[str, _Course] = {}
        self._lock = threading.Lock()
        self._version, self._urgent, self._ended = 0, 0, False
        self._told, self._due = 0, 0.0  # the version that was told last, and when the next may be
        self._asked, self._fetched = 0.0, -1
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self._token}/"

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The last word; a browser that looks on has a few seconds to fetch it."""
        with self._lock:
            self._ended = True
            self.changed(urgent=True)
        deadline = time.monotonic() + _LAST
        while time.monotonic() < min(deadline, self._asked + _READER) and self._fetched < self._version:
            time.sleep(0.05)
        self._server.shutdown()
        self._server.server_close()

    def run(self, name: str = "run") -> _Course:
        """A callback for a run of this name."""
        with self._lock:
            self._runs[name] = _Course(self, name)
            return self._runs[name]

    def answer(self, path: str, host: str) -> tuple[int, str, bytes]:
        """To a request: status, kind and content."""
        parts = urllib.parse.urlsplit(path)
        where = parts.path.strip("/").split("/")
        if host not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}") or where[0] != self._token:
            return 403, "text/plain", b"This is not the address that the run has told."
        if where[1:] == [] and parts.path.endswith("/"):
            return 200, "text/html; charset=utf-8", page.put_together(self._content()[0], "fedsgm")
        if where[1:] != ["state"]:
            return 404, "text/plain", b"There is nothing here."
        self._asked = time.monotonic()
        seen = urllib.parse.parse_qs(parts.query).get("seen", [""])[0]
        if seen == str(self._version) or (seen == str(self._told) and self._rests()):
            return 204, "text/plain", b""
        began = time.thread_time()
        content, version = self._content()
        made = json.dumps(content, allow_nan=False).encode()
        self._fetched = max(self._fetched, version)
        self._told, self._due = version, time.monotonic() + _REST * (time.thread_time() - began)
        return 200, "application/json", made

    def _rests(self) -> bool:
        """Whether the page stays as it was told, so that it takes a hundredth of the run's time at most."""
        return self._urgent <= self._told and time.monotonic() < self._due

    def _content(self) -> tuple[dict[str, Any], int]:
        with self._lock:
            version, ended, runs = self._version, self._ended, [each.shown() for each in self._runs.values()]
        live = "" if ended else "Under way; this page follows the run."
        told = [document(run, _POINTS) for run in runs if run is not None]
        return {"runs": told, "version": version, "live": live}, version

    def changed(self, urgent: bool) -> None:
        self._version += 1
        self._urgent = self._version if urgent else self._urgent


class _Course:
    """One run as it is told."""

    def __init__(self, watch: Watch, name: str) -> None:
        self._watch, self._name = watch, name
        self._parts: list[Mapping[str, np.ndarray]] = []
        self._news: News | None = None
        self._clients: Sequence[Mapping[str, Any]] = ()

    def __call__(self, news: News) -> None:
        with self._watch._lock:
            if news.new:
                self._parts.append(news.history)
            ended = news.result is not None or news.error is not None
            clients = news.clients or self._clients
            urgent = ended or self._news is None or _troubles(clients) != _troubles(self._clients)
            self._news, self._clients = news, clients
            self._watch.changed(urgent)

    def shown(self) -> Shown | None:
        """As far as it is known."""
        news = self._news
        if news is None:
            return None
        if len(self._parts) > 1:
            self._parts = [checkpoints.joined(self._parts)]
        if news.result is not None:
            return Shown.of(news.result, self._name)
        failed = news.error is not None
        note = f"FAILED in round {news.done + 1}: {in_a_line(news.error)}" if news.error is not None else ""
        history = self._parts[0] if self._parts else {}
        given = (self._name, history, news.ranges, news.settings, news.rounds)
        return Shown(*given, clients=self._clients, note=note, failed=failed)


def _troubles(clients: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Of each client, what somebody who watches wants to know at once: whether it is gone, and has been left out."""
    return [("gone" in row, sum(row["left_out"].values())) for row in clients]


def _handler(watch: Watch) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            status, kind, content = watch.answer(self.path, self.headers.get("Host", ""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    return Handler


_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
