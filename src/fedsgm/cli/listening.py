"""Who listens to a command's runs: the flags --watch, --log and --track as callbacks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fedsgm.base.progress import say
from fedsgm.cli.flags import RunFlags, TrackerName

if TYPE_CHECKING:
    from fedsgm.engines.callbacks import Callback

Heard = Callable[[str], "list[Callback]"]
"""The callbacks of a run of this name; the first one of a command has none."""


def nobody(_: str) -> list[Callback]:
    """No callbacks."""
    return []


@contextlib.contextmanager
def listening(flags: RunFlags) -> Iterator[Heard]:
    """While it lasts, the runs of a command are told to whom the flags say."""
    if not (flags.watch or flags.log or flags.track):
        yield nobody
        return
    from fedsgm.engines.callbacks import JSONLines
    from fedsgm.engines.trackers import MLflow, TensorBoard, Trackio
    from fedsgm.engines.watch import Watch

    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch()) if flags.watch else None
        if watch is not None:
            say(f"Watch it: {watch.address}", file=sys.stderr)

        if flags.log is not None:
            JSONLines(flags.log)  # a new file

        def heard(name: str) -> list[Callback]:
            found: list[Callback] = []
            if watch is not None:
                found.append(watch.run(name or flags.out.name))
            if flags.log is not None:
                found.append(JSONLines(flags.log, name))
            for tracker in dict.fromkeys(flags.track or ()):
                if tracker is TrackerName.mlflow:
                    found.append(MLflow(name=name or flags.out.name))
                elif tracker is TrackerName.trackio:
                    found.append(Trackio(name=name or flags.out.name))
                else:
                    found.append(TensorBoard(flags.out / "tensorboard", name))
            return found

        yield heard
