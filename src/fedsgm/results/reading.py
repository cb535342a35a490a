"""A saved run read back: nothing that its files say is taken for true before it was looked at."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base import trees
from fedsgm.base.errors import SURPRISES, SettingError, in_a_line
from fedsgm.base.files import MOST_TEXT, place_of, read_file

HISTORY, PARAMS, FILE = FILES = ("history.parquet", "params.safetensors", "result.json")
KINDS = ("last", "average", "best_feasible", "answer")
VERSION = 2
_PARTS = {"answer_round": list} | dict.fromkeys(("values", "ranges", "settings", "params", "files"), dict)
ALWAYS = ("objective", "bytes_up", "bytes_down")  # columns of every history
_AMPLE, _TIMES = 2**28, 100  # bytes that a history may have in memory, and how many a byte of its file beyond that


@contextlib.contextmanager
def believed(path: Path) -> Iterator[None]:
    """What fails within on what a file says is said of the file, in one sentence."""
    try:
        yield
    except SURPRISES as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError(f"{path} is damaged, or of another version of fedsgm ({in_a_line(error)})") from None


def load(folder: Path) -> dict[str, Any]:
    """The attributes of the :class:`Result` that is saved in a folder."""
    document, files = _files(folder)
    with believed(folder / FILE):
        return _attributes(document, files)


def _files(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What result.json says, and the two other files, which are those that it has the digests of."""
    try:
        last = read_file(folder / FILE, MOST_TEXT)
    except FileNotFoundError:
        raise SettingError(f"{folder} is not a run: it has no {FILE}") from None
    except SettingError as error:
        raise SettingError(f"{folder} is not a run: {error}") from None
    try:
        document = json.loads(last, object_hook=_number)
    except (ValueError, RecursionError):
        raise SettingError(f"{folder / FILE} is damaged: it is not JSON") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise SettingError(f"{folder / FILE} is not of a run this fedsgm reads (format {VERSION})")
    if not all(isinstance(document.get(part), kind) for part, kind in _PARTS.items()):
        raise SettingError(f"{folder / FILE} is damaged: it lacks one of {', '.join(_PARTS)}")
    files = {}
    for name in (HISTORY, PARAMS):
        try:
            files[name] = read_file(place_of(folder / name, last))
        except (FileNotFoundError, SettingError):
            files[name] = b""
        if hashlib.sha256(files[name]).hexdigest() != document["files"].get(name):
            raise SettingError(f"{folder / name} is missing or altered: it does not match {FILE}")
    return document, files


def _attributes(document: dict[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
    import safetensors
    import safetensors.numpy

    settings = document["settings"]
    seeds, rounds = settings["seeds"], settings["rounds"]
    _hold(isinstance(seeds, list) and seeds and all(_is_count(seed, 0) for seed in seeds), "its seeds")
    _hold(_is_count(rounds, 1) and _is_count(settings["evaluate_every"], 0), "its rounds")
    _hold(_is_count(settings["clients"], 1), "its clients")
    ranges = {name: (float(low), float(high)) for name, (low, high) in document["ranges"].items()}
    for low, high in ranges.values():
        _hold(low <= high and (math.isfinite(low) or math.isfinite(high)), "its ranges")
    values = {
        part: {name: np.array(rows, np.float32) for name, rows in of_part.items()}
        for part, of_part in document["values"].items()
    }
    _hold("train" in values, "its values")
    for found in values.values():
        _hold({"objective", *ranges} <= found.keys(), "its values")
        _hold(all(rows.shape == (len(KINDS), len(seeds)) for rows in found.values()), "its values")
    answer_round = np.array(document["answer_round"], np.int64)
    _hold(answer_round.shape == (len(seeds),), "its answer_round")
    _hold(((answer_round >= 0) & (answer_round <= rounds)).all(), "its answer_round")
    try:
        arrays = safetensors.numpy.load(files[PARAMS])
    except safetensors.SafetensorError as error:
        raise ValueError(f"{PARAMS}: {error}") from None
    _hold(document["params"].keys() == set(KINDS), "its params")
    history = from_parquet(files[HISTORY], len(seeds), rounds)
    _hold({*ALWAYS, *ranges} <= history.keys(), f"the columns of {HISTORY}")
    return {
        "history": history,
        "answer_round": answer_round,
        "values": values,
        "ranges": ranges,
        "settings": settings,
        **{kind: trees.rebuild(form, kind, arrays) for kind, form in document["params"].items()},
    }


def from_parquet(data: bytes, seeds: int, rounds: int) -> dict[str, np.ndarray]:
    """The columns of a history, as arrays of shape [seeds, rounds, ...]."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pa.BufferReader(data))
        _hold(file.metadata.num_rows == seeds * rounds, f"the rows of {HISTORY}")
        _hold(_in_memory(file) <= _AMPLE + _TIMES * len(data), f"the size of {HISTORY}")
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{HISTORY}: {error}") from None
    history = {}
    for name in table.column_names[2:]:
        column = table[name].combine_chunks()
        shape: tuple[int, ...] = (seeds, rounds)
        if pa.types.is_fixed_size_list(column.type):
            shape, column = (*shape, column.type.list_size), column.flatten()
        _hold(not column.null_count, f"the column {name!r} of {HISTORY}")
        history[name] = column.to_numpy(zero_copy_only=False).reshape(shape)
        _hold(history[name].dtype.kind in "biuf", f"the column {name!r} of {HISTORY}")
    return history


def _in_memory(file: Any) -> int:
    """Bytes of a Parquet file's columns: as it says, and of one value a row at least."""
    told = file.metadata
    # Of whole groups: to ask about a column of one ends the process where its statistics are damaged.
    said = sum(told.row_group(i).total_byte_size for i in range(told.num_row_groups))
    lists = [field.type.list_size for field in file.schema_arrow if hasattr(field.type, "list_size")]
    return int(max(said, 8 * told.num_rows * (told.num_columns - len(lists) + sum(lists))))


def _hold(true: Any, what: str) -> None:
    if not true:
        raise ValueError(f"{what} cannot be so")


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _number(found: dict[str, Any]) -> Any:
    """The number that a result writes so, as JSON has none."""
    told = found.get("number")
    return float(told) if len(found) == 1 and told in ("nan", "inf", "-inf") else found
