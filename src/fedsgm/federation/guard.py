"""Ends a federation's processes, also when whoever started them is gone, however that came about.

Run as a script it waits until its standard input is closed, as the system does for a process that is killed. So that it
starts at once it takes nothing from the rest of the library.
"""

from __future__ import annotations

import contextlib
import shutil
import sys

import psutil

MARK = "FEDSGM_FEDERATION"
"""The environment variable that says whose a process is; its children inherit it."""


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that carry a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(mark: str, folder: str) -> None:
    """End every process with the mark, see that each is gone, and remove the folder."""
    while alive := marked(mark):
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    end(*sys.argv[1:])
