"""Atomic, bit-exact save and resume.

A checkpoint is one file: a magic line with the format's version, a SHA-256 of what follows, and a safetensors
block with every array of the run's state, its history so far, and the settings it was made with. The last
two are kept, so that one damaged file loses at most one interval. Where several processes run together, each writes a
part, with its own clients' memories; a run goes on from all parts, on any number of processes.

A run that saves every round does not write its whole history each time: a :class:`Journal` is only ever appended to.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import struct
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from fedsgm.base.errors import SURPRISES, CheckpointError, SettingError, in_a_line
from fedsgm.base.files import read_file, remove_stale, write_atomically
from fedsgm.base.structs import check_count

VERSION = 3
_MAGIC = b"fedsgm checkpoint %d\n"
_KEEP = 2
HISTORY = "history/"  # before the names of its columns
_OF_CLIENTS = "state.memory"  # arrays whose second axis is over clients


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where a run saves itself, every how many rounds, and whether it goes on from what is there.

    >>> Checkpoint("runs/np", every=50, resume=True).every  # fs.simulate(..., checkpoint=...)
    50
    """

    directory: str | Path
    every: int = 100
    resume: bool = False

    def __post_init__(self) -> None:
        check_count("Checkpoint", "every", self.every)
        object.__setattr__(self, "directory", Path(self.directory))


@dataclasses.dataclass(frozen=True)
class Saved:
    """What one checkpoint file holds."""

    round: int
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]


def dump(saved: Saved) -> bytes:
    """What a checkpoint file holds, as bytes."""
    metadata = {"round": str(saved.round), "settings": json.dumps(saved.settings, sort_keys=True)}
    block = safetensors.numpy.save({k: np.asarray(v, order="C") for k, v in saved.arrays.items()}, metadata)
    return _MAGIC % VERSION + hashlib.sha256(block).digest() + block


def save(directory: Path, saved: Saved, part: int = 0, parts: int = 1) -> None:
    """Write a checkpoint, or this part of one, whole or not at all, and drop all but the newest two."""
    own = "" if parts == 1 else f".{part}-of-{parts}"
    write_atomically(directory / f"round-{saved.round:09d}{own}.ckpt", dump(saved), private=True)
    for old in _rounds(directory)[:-_KEEP]:
        for path in old:
            path.unlink(missing_ok=True)
    remove_stale(directory, rf"round-\d{{9}}{re.escape(own)}\.ckpt")


def newest(directory: Path) -> Saved | None:
    """The newest checkpoint that is whole; a damaged one is named in a warning and the one before it used."""
    problems = []
    for paths in reversed(_rounds(directory)):
        try:
            saved = _joined([read(path) for path in paths])
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem}; going on from round {saved.round}", stacklevel=2)
        return saved
    if problems:
        raise CheckpointError(f"{'; '.join(problems)}; no whole checkpoint is left in {directory}, so start again")
    return None


def read(path: Path) -> Saved:
    """One checkpoint file, or a :class:`CheckpointError` that says what is wrong with it."""
    try:
        data = read_file(path)
    except (OSError, SettingError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"checkpoint {path.name} cannot be read ({why})") from None
    magic, newline, rest = data.partition(b"\n")
    prefix, _, version = magic.rpartition(b" ")
    if not newline or prefix + b" %d\n" != _MAGIC:
        raise CheckpointError(f"checkpoint {path.name} is not a fedsgm checkpoint")
    if version != b"%d" % VERSION:
        raise CheckpointError(
            f"checkpoint {path.name} has format {version.decode(errors='replace')}, this fedsgm reads format {VERSION}"
        )
    digest, block = rest[:32], rest[32:]
    if hashlib.sha256(block).digest() != digest:
        raise CheckpointError(f"checkpoint {path.name} is truncated or altered (its checksum does not match)")
    try:
        arrays = safetensors.numpy.load(block)
        header = json.loads(block[8 : 8 + int.from_bytes(block[:8], "little")])["__metadata__"]
        saved = Saved(int(header["round"]), arrays, json.loads(header["settings"]))
        if not isinstance(saved.settings, dict):
            raise TypeError("settings that are none")
    except (safetensors.SafetensorError, *SURPRISES) as error:
        raise CheckpointError(f"checkpoint {path.name} is not what fedsgm writes ({in_a_line(error)})") from None
    return saved


def resume(checkpoint: Checkpoint, fingerprint: dict[str, Any], rounds: int) -> Saved | None:
    """The checkpoint to go on from, if the user wants that and there is one of the same run."""
    directory = Path(checkpoint.directory)
    saved = newest(directory)
    if saved is None:
        return None
    if not checkpoint.resume:
        raise CheckpointError(
            f"{directory} holds a checkpoint of round {saved.round}; resume from it, or choose an empty folder"
        )
    then, now = _leaves(saved.settings), _leaves(fingerprint)
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            raise CheckpointError(
                f"the checkpoint in {directory} was made with {key}={then.get(key)!r}, this run has "
                f"{key}={now.get(key)!r}; use the same settings, or another folder for a new run"
            )
    if not 0 <= saved.round <= rounds:
        raise CheckpointError(
            f"the checkpoint in {directory} is of round {saved.round}, but this run has {rounds} rounds"
        )
    return saved


def pack(name: str, tree: Any) -> dict[str, np.ndarray]:
    """A pytree as named arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def unpack(name: str, arrays: dict[str, np.ndarray], like: Any) -> Any:
    """What :func:`pack` packed, of the form of ``like``."""

    def one(path: Any, like: Any) -> np.ndarray:
        key = name + jax.tree_util.keystr(path)
        found, shape = arrays.get(key), np.shape(like)
        if found is not None and key.startswith(_OF_CLIENTS) and found.ndim > 1:
            shape = (*shape[:1], found.shape[1], *shape[2:])  # there may be room for more of them than there are
        if found is None or found.shape != shape or found.dtype != getattr(like, "dtype", found.dtype):
            has = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise CheckpointError(f"the checkpoint has {has} for {key}, which cannot be gone on from; start again")
        return found

    return jax.tree_util.tree_map_with_path(one, like)


def past(saved: Saved, seeds: int, names: Collection[str]) -> dict[str, np.ndarray]:
    """The columns of the history so far, with these among them."""
    kept = {name.removeprefix(HISTORY): a for name, a in saved.arrays.items() if name.startswith(HISTORY)}
    for name in (*names, *kept):
        if name not in kept or kept[name].shape[:2] != (seeds, saved.round):
            raise CheckpointError(f"the checkpoint has no history of {name} that can be gone on from; start again")
    return kept


def joined(history: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Parts of a history, [seeds, rounds, ...], as one; the first may be of a checkpoint."""
    alike = [{name: (a.dtype, a.shape[2:]) for name, a in part.items()} for part in history]
    if any(each != alike[0] for each in alike):
        raise CheckpointError("the checkpoint has a history of other columns than this run; start again")
    return {name: np.concatenate([part[name] for part in history], axis=1) for name in history[0]}


def digest(tree: Any) -> str:
    """A short name for these very arrays."""
    total = hashlib.sha256()
    for leaf in map(np.asarray, jax.tree.leaves(tree)):
        total.update(f"{leaf.dtype}{leaf.shape}".encode())
        total.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return total.hexdigest()[:16]


def _leaves(settings: Any, name: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names; a thing's own name stands for its class."""
    if isinstance(settings, list) and any(isinstance(item, dict) for item in settings):
        settings = dict(enumerate(settings))
    if not isinstance(settings, dict):
        return {name.removesuffix(".is"): settings}
    return {k: v for key, value in settings.items() for k, v in _leaves(value, f"{name}.{key}".strip(".")).items()}


def _rounds(directory: Path) -> list[list[Path]]:
    """The files of every round that has all of them, in the order of the rounds and of the parts."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in directory.glob("round-*.ckpt"):
        named = re.fullmatch(r"(round-\d{9,})(?:\.\d+-of-(\d{1,9}))?\.ckpt", path.name, re.ASCII)
        if named:  # another file is not ours
            found.setdefault((named[1], named[2] or ""), []).append(path)
    whole = [key for key, paths in sorted(found.items()) if len(paths) == int(key[1] or 1)]
    return [sorted(found[key], key=lambda path: (len(path.name), path.name)) for key in whole]


def _joined(parts: list[Saved]) -> Saved:
    """One checkpoint, with the memories of all parts' clients."""
    first = parts[0]
    names = [name for name in first.arrays if name.startswith(_OF_CLIENTS)]
    try:
        memories = {name: np.concatenate([part.arrays[name] for part in parts], axis=1) for name in names}
    except SURPRISES as error:
        raise CheckpointError(f"the parts of round {first.round} are not of one run ({in_a_line(error)})") from None
    return dataclasses.replace(first, arrays=first.arrays | memories)


_RECORD = struct.Struct("<III")  # a record's length, its checksum and its row


class Journal:
    """A history that grows by rows: columns in memory, and on disk a file that is only ever appended to.

    What a row has not got is NaN, or zero for whole numbers. The file is a sequence of records, each with its length
    and a checksum. What counts of it is said by the checkpoint: it has the length that was on disk when it was
    written, and what is beyond that was never part of the run.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.columns: dict[str, np.ndarray] = {}
        self.length = 0  # of the file, as far as it counts
        self._path: Path | None = None
        self._new: list[tuple[int, dict[str, np.ndarray]]] = []

    def record(self, row: int, values: Mapping[str, Any]) -> None:
        """Put values into a row."""
        arrays = {name: np.asarray(value) for name, value in values.items()}
        for name, value in arrays.items():
            if name not in self.columns:
                fill = np.nan if value.dtype.kind == "f" else 0
                self.columns[name] = np.full((self.rounds, *value.shape), fill, value.dtype)
            self.columns[name][row] = value
        if self._path is not None and arrays:
            self._new.append((row, arrays))

    def cut(self, rounds: int) -> None:
        """No more rows than these."""
        self.rounds = rounds
        self.columns = {name: column[:rounds] for name, column in self.columns.items()}

    def keep_in(self, path: Path, length: int = 0) -> None:
        """Append to this file from now on, after the first ``length`` bytes of it, which are read."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(path, "ab", opener=_private) as file:
            size = file.tell()
            if not 0 <= length <= size:
                raise CheckpointError(f"{path} is cut short: it has {size} bytes of {length}, so start again elsewhere")
            file.truncate(length)
        try:
            for row, arrays in _records(path):
                self.record(row, arrays)
        except (safetensors.SafetensorError, *SURPRISES) as error:
            raise CheckpointError(
                f"{path} is not what fedsgm writes ({in_a_line(error)}), so start again elsewhere"
            ) from None
        self._path, self.length = path, length

    def flush(self) -> None:
        """Append what is new, and see that it is on the disk."""
        if self._path is None or not self._new:
            return
        data = b"".join(_encode(row, values) for row, values in self._new)
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.length += len(data)
        self._new.clear()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _encode(row: int, values: Mapping[str, np.ndarray]) -> bytes:
    block = safetensors.numpy.save({name: np.asarray(value, order="C") for name, value in values.items()})
    return _RECORD.pack(len(block), zlib.crc32(block, row), row) + block


def _records(path: Path) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    data = memoryview(read_file(path))
    while data:
        size, checksum, row = _RECORD.unpack_from(data) if len(data) >= _RECORD.size else (0, 1, 0)
        block = bytes(data[_RECORD.size : _RECORD.size + size])
        if zlib.crc32(block, row) != checksum:
            raise CheckpointError(f"{path} is altered (a checksum does not match), so start again elsewhere")
        yield row, safetensors.numpy.load(block)
        data = data[_RECORD.size + size :]
