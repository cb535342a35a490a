"""One run at a time holds a folder."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from fedsgm.base.errors import FedSGMError, SettingError


@contextlib.contextmanager
def alone(folder: Path, seconds: float = 30.0) -> Iterator[None]:
    """Hold a folder: two jobs of one run would spoil it. A job that the engine lost may need a while to end."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + seconds
    with (folder / "lock").open("w") as file:
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise FedSGMError(
                        f"another job of run {folder.name!r} is at work; when it is done or stopped this one can go "
                        "on from it, or give this one another name"
                    ) from None
                time.sleep(0.5)
        yield


@contextlib.contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Hold the folder that a run keeps something in; the lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingError(f"{what} {folder}: another run is at work there; choose another folder") from None
        except OSError:  # a file system without locks
            pass
        yield
