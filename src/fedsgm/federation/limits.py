"""What a site lets be asked of it, whatever its server wants: a file that its owner writes, and a count that is kept.

``fedsgm.toml``, in a kit's ``local`` folder or in the folder of the site's states, may have

    clients = 5                                  # at least so many in a run
    requests = 20000                             # that touch the data, of all runs together; a model more is one more
    kinds = ["measure", "evaluate", "update"]    # of requests; others are refused
    quantities = ["objective", "minority"]       # that an experiment may measure
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedsgm.base.errors import ClientError, SettingError
from fedsgm.base.files import MOST_TEXT, read_file

FILE, SPENT = "fedsgm.toml", "requests.spent"
KINDS = ("measure", "evaluate", "inspect", "update", "test", "describe", "agree", "review", "keys", "meet", "tell")
_TOUCH = {*KINDS} - {"agree", "keys", "meet", "tell"}  # the examples


@dataclasses.dataclass(frozen=True)
class Limits:
    """A site's; None is no limit."""

    clients: int | None = None
    requests: int | None = None
    kinds: Sequence[str] | None = None
    quantities: Sequence[str] | None = None

    @classmethod
    def read(cls, folders: Iterable[Path]) -> Limits:
        """Of the first of these folders that has the file; without one there are no limits."""
        for folder in folders:
            path = folder / FILE
            if path.exists():
                try:
                    return cls.of(tomllib.loads(read_file(path, MOST_TEXT, links=True).decode()))
                except (ValueError, UnicodeDecodeError) as error:
                    raise SettingError(f"{path} is not to be used as it is: {error}") from None
        return cls()

    @classmethod
    def of(cls, words: dict[str, Any]) -> Limits:
        known = {field.name for field in dataclasses.fields(cls)}
        for name, value in words.items():
            if name not in known:
                raise SettingError(f"{name!r} is no limit; there are {', '.join(sorted(known))}")
            counts = name in ("clients", "requests")
            right = type(value) is int and value >= 0 if counts else _are_words(value)
            if not right:
                raise SettingError(f"{name} = {value!r}: give {'a number' if counts else 'a list of names'}")
        if unknown := set(words.get("kinds", ())) - set(KINDS):
            raise SettingError(f"{min(unknown)!r} is no kind of request; there are {', '.join(KINDS)}")
        given: dict[str, Any] = {name: v if isinstance(v, int) else tuple(v) for name, v in words.items()}
        return cls(**given)

    def check_clients(self, count: int) -> None:
        if self.clients is not None and count < self.clients:
            raise ClientError(f"this site takes part with at least {self.clients} clients, but the run has {count}")

    def check_kinds(self, asked: Iterable[str]) -> None:
        for kind in asked:
            if self.kinds is not None and kind not in self.kinds:
                raise ClientError(f"this site does not answer requests of the kind {kind!r}")

    def check_quantities(self, measured: Iterable[str]) -> None:
        for name in measured:
            if self.quantities is not None and name not in self.quantities:
                raise ClientError("this site does not measure every quantity of the experiment; ask its owner")

    def spend(self, folder: Path, asked: Iterable[str], count: int = 1) -> None:
        """Count requests that touch the data, in the site's folder, and refuse them where the budget is used up."""
        if self.requests is None or not _TOUCH.intersection(asked):
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / SPENT, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX)
            try:
                spent = int(os.pread(handle, 20, 0) or b"0")
            except ValueError:
                raise ClientError("this site's count of requests cannot be read; ask its owner") from None
            if spent + count > self.requests:
                raise ClientError(f"this site's budget of {self.requests} requests is used up; ask its owner")
            os.pwrite(handle, b"%020d" % (spent + count), 0)
        finally:
            os.close(handle)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
