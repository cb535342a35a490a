"""Files that are whole or not there: written beside their place, flushed to disk, then renamed into it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedsgm.base.errors import SettingError

MOST_TEXT = 2**26  # bytes of a file of settings or of JSON
_STALE = 60.0  # seconds after which a part that nobody holds is a killed writer's


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Put ``data`` at ``path``; a reader or a crash sees the old file or the new one, never a part.

    What is ``private`` can be read by its owner alone, and so can a folder that is made for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(OSError):  # where there are no locks, its age tells whether it is in use
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _flush(path.parent)


def remove_stale(folder: Path, names: str) -> None:
    """Remove what killed writers of files of these names left: nobody holds it, and it is not of just now."""
    own = re.compile(rf"\.(?:{names})\.[0-9a-f]{{16}}\.tmp")
    for path in folder.iterdir():
        if own.fullmatch(path.name):
            with contextlib.suppress(OSError, SettingError), _opened(path, links=False) as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(handle).st_mtime > _STALE:
                    path.unlink()


def write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace several files as one: they are the new ones from the moment that the last of them is there.

    The others wait beside their places under a name that has the last one's digest, where :func:`place_of` finds them.
    So whenever this is ended, all the old ones can be read, or all the new ones.
    """
    *others, last = files
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _settle(folder, folder / last, others)
        for name in others:
            write_atomically(_waiting(folder / name, files[last]), files[name])
        write_atomically(folder / last, files[last])
        for name in others:
            os.replace(_waiting(folder / name, files[last]), folder / name)
        _flush(folder)


def place_of(path: Path, last: bytes) -> Path:
    """Where a file is of those that were written together with this last one."""
    waiting = _waiting(path, last)
    return waiting if waiting.exists() else path


def read_file(path: Path, most: int | None = None, *, links: bool = False) -> bytes:
    """A plain file's bytes. What else may have a name, such as a link, a pipe or a device, is neither read nor waited
    for; ``links`` are followed where a person has named the file.
    """
    with _opened(path, links) as handle:
        size = os.fstat(handle).st_size
        if most is not None and size > most:
            raise SettingError(f"{path} has {size} bytes, but such a file has at most {most}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(size)


def check_writable(name: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written in, by trying it where it would be."""
    try:
        path = folder
        if "\0" in str(folder):  # no command line has it, but a file may
            raise ValueError("a name with a NUL character")
        while not os.path.lexists(path):
            if len(os.fsencode(path.name)) > os.pathconf("/", "PC_NAME_MAX"):
                raise ValueError("its name is too long")
            path = path.parent
        if not path.is_dir():
            raise SettingError(f"{name} {folder}: {path} is a file, but a folder is needed there")
        trial = path / f".{secrets.token_hex(8)}.tmp"
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        trial.unlink()
    except (OSError, ValueError) as error:
        if isinstance(error, SettingError):
            raise
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise SettingError(f"{name} {folder}: nothing can be written there ({why}); choose another folder") from None


@contextlib.contextmanager
def _opened(path: Path, links: bool) -> Iterator[int]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SettingError(f"{path} cannot be read ({os.strerror(error.errno or 0)})") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise SettingError(f"{path} is no plain file, so it is not read")
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One writer of a folder after another; where there are no locks, at once."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _waiting(path: Path, last: bytes) -> Path:
    return path.parent / f".{path.name}.{hashlib.sha256(last).hexdigest()[:16]}.new"


def _settle(folder: Path, last: Path, others: list[str]) -> None:
    """Finish what was killed: the files that the last one there counts go to their places, and others are gone."""
    kept = hashlib.sha256(read_file(last)).hexdigest()[:16] if last.is_file() else ""
    for path in folder.iterdir():
        found = re.fullmatch(r"\.(.+)\.([0-9a-f]{16})\.new", path.name)
        if found and found[2] == kept:
            os.replace(path, folder / found[1])
        elif found and found[1] in others:
            path.unlink()


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
