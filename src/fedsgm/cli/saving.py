"""What every command that runs something leaves in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsgm.base.progress import say
from fedsgm.cli import config

_FILES = ("history.parquet", "params.safetensors", config.NAME, "result.json", "history.png")


def save(result: Any, out: Path, command: str, settings: dict[str, Any]) -> None:
    """Write the run, the settings that repeat it, and its picture; say so."""
    config.write(out, command, settings)
    result.save(out)
    picture(result, out)


def copy(finished: Path, out: Path, command: str = "", settings: dict[str, Any] | None = None) -> Any:
    """Load the run that a job has saved and put its files into ``out``; one that is damaged replaces nothing there."""
    from fedsgm.base.files import write_atomically
    from fedsgm.results.result import Result

    result = Result.load(finished)
    if settings is not None:
        config.write(out, command, settings)
    run = ("history.parquet", "params.safetensors", "result.json")  # the last has the others' digests
    for name in (*run, *sorted(path.name for path in finished.iterdir() if path.name not in run)):
        write_atomically(out / name, (finished / name).read_bytes())
    return result


def picture(result: Any, out: Path, but: tuple[str, ...] = ()) -> None:
    """Draw the run into its folder, which is then whole; say what is in it, ``but`` for what was not written."""
    result.plot(out / "history.png")
    say(f"\nSaved in {out}: {', '.join(name for name in _FILES if name not in but)}")
