"""Settings as a file: what a run leaves for ``--config``, and what ``--config`` makes of it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import typer

from fedsgm.base.errors import SettingError

NAME = "settings.toml"


def read(context: typer.Context, path: Path | None) -> Path | None:
    """Values of a TOML file become the flags' defaults; flags on the command line win."""
    if path is None or context.resilient_parsing:
        return path
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"--config {path}: there is no such file") from None
    except IsADirectoryError:
        raise SettingError(f"--config {path}: a folder, but it must be a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
    """Leave a run's settings in its folder, under the command that repeats it with them."""
    import tomli_w

    from fedsgm.base.files import write_atomically

    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in command)
    text = f"# fedsgm {plain} --config {NAME}\n"
    text += tomli_w.dumps({key.replace("_", "-"): value for key, value in settings.items()})
    # The name of a file need not be UTF-8; it goes back to the bytes that it was.
    write_atomically(folder / NAME, text.encode(errors="surrogateescape"))


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as the file has them; what was not given is not in it."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in settings.items() if value is not None
    }
