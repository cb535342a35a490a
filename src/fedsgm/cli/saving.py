"""What every command that runs something leaves in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsgm.base.progress import say
from fedsgm.cli import config

RUN = ("history.parquet", "params.safetensors", "result.json")  # the last has the others' digests
MODEL = "model.json"
_FILES = (*RUN[:2], config.NAME, RUN[2], "history.png")


def save(result: Any, out: Path, command: str, settings: dict[str, Any], model: Any = None) -> None:
    """Write the run, the settings that repeat it, the model of a fit, and the picture; say so.

    What is there can be read until all but the picture is written.
    """
    from fedsgm.base.files import write_together

    files = result.files()
    beside = {config.NAME: config.text(command, settings)}
    if model is not None:
        beside[MODEL] = model.file(files[RUN[1]])
    write_together(out, beside | files)
    picture(result, out)


def copy(finished: Path, out: Path, command: str = "", settings: dict[str, Any] | None = None) -> Any:
    """Load the run that a job has saved and put its files into ``out``; one that is damaged replaces nothing there."""
    from fedsgm.base.files import read_file, write_together
    from fedsgm.results.result import Result

    result = Result.load(finished)
    beside = {} if settings is None else {config.NAME: config.text(command, settings)}
    *others, last = (name for name in (MODEL, *RUN) if (finished / name).exists())
    more = sorted(path.name for path in finished.iterdir() if path.name not in (MODEL, *RUN))
    files = {name: read_file(finished / name) for name in (*more, *others, last)}
    write_together(out, beside | files)
    return result


def picture(result: Any, out: Path, but: tuple[str, ...] = ()) -> None:
    """Draw the run into its folder, which is then whole; say what is in it, ``but`` for what was not written."""
    result.plot(out / "history.png")
    say(f"\nSaved in {out}: {', '.join(name for name in _FILES if name not in but)}")
