"""A history that grows by rows: columns in memory, and on disk a file that is only ever appended to.

The file is a sequence of records, each with its length and a checksum. What counts of it is said by whoever saves the
run: a checkpoint has the length that was on disk when it was written, and what is beyond that was never part of it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from fedsgm.base.errors import CheckpointError

_HEAD = struct.Struct("<III")  # a record's length, its checksum and its row


class Journal:
    """The columns of a run of so many rounds; what a row has not got is NaN, or zero for whole numbers."""

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

    def keep_in(self, path: Path, length: int = 0) -> None:
        """Append to this file from now on, after the first ``length`` bytes of it, which are read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            size = file.tell()
            if size < length:
                raise CheckpointError(f"{path} is cut short: it has {size} bytes of {length}, so start again elsewhere")
            file.truncate(length)
        for row, arrays in _records(path):
            self.record(row, arrays)
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


def _encode(row: int, values: Mapping[str, np.ndarray]) -> bytes:
    block = safetensors.numpy.save({name: np.asarray(value, order="C") for name, value in values.items()})
    return _HEAD.pack(len(block), zlib.crc32(block), row) + block


def _records(path: Path) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    data = memoryview(path.read_bytes())
    while data:
        size, checksum, row = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (0, 1, 0)
        block = bytes(data[_HEAD.size : _HEAD.size + size])
        if zlib.crc32(block) != checksum:
            raise CheckpointError(f"{path} is altered (a checksum does not match), so start again elsewhere")
        yield row, safetensors.numpy.load(block)
        data = data[_HEAD.size + size :]
