"""Settings as a file: what a run leaves for ``--config``, and what ``--config`` makes of it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.files import MOST_TEXT, read_file, write_atomically

NAME = "settings.toml"


def read(context: typer.Context, path: Path | None) -> Path | None:
    """Values of a TOML file become the flags' defaults; flags on the command line win."""
    if path is None or context.resilient_parsing:
        return path
    try:
        given = tomllib.loads(read_file(path, MOST_TEXT, links=True).decode())
    except FileNotFoundError:
        raise SettingError(f"--config {path}: there is no such file") from None
    except SettingError as error:
        folder = "a folder, but it must be a TOML file"
        raise SettingError(f"--config {path}: {folder if path.is_dir() else error}") from None
    except (ValueError, RecursionError) as error:
        raise SettingError(f"--config {path}: not a TOML file ({error})") from None
    flags = {str(parameter.name): parameter for parameter in context.command.params}
    flags = {name: flag for name, flag in flags.items() if name not in ("config", "help")}
    for key, value in given.items():
        flag = flags.get(key.replace("-", "_"))
        if flag is None:
            known = ", ".join(sorted(name.replace("_", "-") for name in flags))
            raise SettingError(f"--config {path}: unknown setting {key!r}; the settings are {known}")
        if isinstance(value, dict) or isinstance(value, list) != getattr(flag, "multiple", False):
            form = "a list" if getattr(flag, "multiple", False) else "one value, not a table or a list"
            raise SettingError(f"--config {path}: {key} must be {form}")
    context.default_map = {key.replace("-", "_"): _typed(value) for key, value in given.items()}
    if len(context.default_map) < len(given):
        twice = next(key for key in given if "_" in key and key.replace("_", "-") in given)
        raise SettingError(f"--config {path}: {twice} is given twice, with a hyphen and with an underscore")
    return path


def _typed(value: Any) -> Any:
    """A value as a person would type it: in what else they take for a number or a truth, versions of typer differ."""
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def write(folder: Path, command: str, settings: dict[str, Any]) -> None:
    """Leave a run's settings in its folder."""
    write_atomically(folder / NAME, text(command, settings))


def text(command: str, settings: dict[str, Any]) -> bytes:
    """A file of settings, under the command that repeats a run with them."""
    import tomli_w

    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in command)
    lines = f"# fedsgm {plain} --config {NAME}\n"
    lines += tomli_w.dumps({key.replace("_", "-"): value for key, value in settings.items()})
    return lines.encode(errors="surrogateescape")  # the name of a file need not be UTF-8: the bytes that it was


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as the file has them; what was not given is not in it."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in settings.items() if value is not None
    }
