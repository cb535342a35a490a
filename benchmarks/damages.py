"""Sound files of every kind made unsound, by their fields and by their bytes, for ``fuzz_files.py``."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import tomllib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import safetensors.numpy
import tomli_w

from fedsgm.engines import checkpoint as checkpoints

ODD = [
    None,
    True,
    -1,
    0,
    1,
    7,
    2**31,
    2**63,
    10**30,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "nan",
    "array",
    [],
    {},
]
ODD += [
    "\x1b[2J\x07\u202e",
    "/proc/kmsg",
    "../../etc/passwd",
    "$x$ {y} [red]",
    [[1]],
    [1, 2, 3],
    {"is": 3},
    {"a": None},
]


def damage_json(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return damage(data, rng)
    if rng.random() < 0.02:
        return b"[" * rng.choice([2000, 200_000])
    return json.dumps(_changed(json.loads(data), rng)).encode()


def damage_toml(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return damage(data, rng)
    try:
        return tomli_w.dumps(_changed(tomllib.loads(data.decode()), rng)).encode()
    except (TypeError, AttributeError):  # of what TOML has none
        return damage(data, rng)


def damage_parquet(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return damage(data, rng)
    table = pyarrow.parquet.read_table(pa.BufferReader(data))
    name = rng.choice(table.column_names)
    place, rows = table.column_names.index(name), table.num_rows
    match rng.randrange(7):
        case 0:
            table = table.drop_columns([name])
        case 1:
            table = table.slice(rng.randrange(2), rng.randrange(rows + 1))
        case 2:
            value = rng.choice([None, "text", True, 2**40, b"\xff", [1.0], {"a": 1}, float("nan"), "\x1b[2J"])
            table = table.set_column(place, name, pa.array([value] * rows))
        case 3:
            table = table.rename_columns(
                [f"{rng.choice(ODD)}" if each == name else each for each in table.column_names]
            )
        case 4:
            table = table.append_column(rng.choice([name, "more", "\x1b"]), table[name])
        case 5:
            table = pa.concat_tables([table] * rng.choice([2, 50]))
        case 6:
            metadata = {"fedsgm": json.dumps(rng.choice(ODD))} if rng.random() < 0.5 else None
            table = table.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression=rng.choice(["none", "snappy", "zstd"]))
    return bytes(sink.getvalue())


def damage_tensors(data: bytes, rng: random.Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.3:
        return damage(data, rng)
    if rng.random() < 0.4:
        header = json.dumps(_changed(json.loads(data[8 : 8 + size]), rng)).encode()
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    arrays = safetensors.numpy.load(data)
    metadata = json.loads(data[8 : 8 + size]).get("__metadata__")
    name = rng.choice(sorted(arrays))
    array = arrays.pop(name)
    match rng.randrange(4):
        case 0:
            arrays[name] = array.astype(rng.choice(["f8", "i4", "u1", "f2", "?"]))
        case 1:
            arrays[name] = np.concatenate([array.reshape(-1)] * 2)
        case 2:
            arrays[str(rng.choice(ODD))] = array
    return safetensors.numpy.save(arrays, metadata)


def damage_checkpoint(data: bytes, rng: random.Random) -> bytes:
    start = data.index(b"\n") + 1
    block = damage_tensors(data[start + 32 :], rng)
    return data[:start] + hashlib.sha256(block).digest() + block


def damage_journal(data: bytes, rng: random.Random) -> bytes:
    """One record more, with a right checksum."""
    size, _, row = checkpoints._RECORD.unpack_from(data)
    start = checkpoints._RECORD.size
    block = damage_tensors(data[start : start + size], rng)
    row = rng.choice([row, 3, 4, 2**31, 2**32 - 1])
    return data + checkpoints._RECORD.pack(len(block), zlib.crc32(block, row), row) + block


def damage_gzip(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return damage(data, rng)
    return gzip.compress(damage_csv(gzip.decompress(data), rng))


def damage_csv(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return damage(data, rng)
    lines = [line.split(b",") for line in data.splitlines()]
    for _ in range(rng.randint(1, 3)):
        line = rng.choice([lines[0], rng.choice(lines)])
        cells = [b"", b"\x1b[2J", b'"', b"a\nb", b"9" * 400, b"1e999", b"\xff", "é\u202e".encode(), b"x" * 5000, b"nan"]
        line[rng.randrange(len(line))] = rng.choice(cells)
    return b"\n".join(b",".join(line) for line in lines)


def damage(data: bytes, rng: random.Random) -> bytes:
    """One to three changes of bytes."""
    body = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.choice([rng.randrange(64), rng.randrange(len(body) + 1), max(len(body) - rng.randrange(64), 0)])
        match rng.randrange(6):
            case 0:
                body[place : place + 1] = rng.randbytes(1)
            case 1:
                body[place:place] = rng.randbytes(rng.randint(1, 5))
            case 2:
                del body[place : place + rng.randint(1, 5)]
            case 3:
                del body[place:]
            case 4:
                body[place : place + 4] = b"\xff\xff\xff\x7f"
            case 5:
                body[place:place] = body[rng.randrange(len(body) + 1) :][: rng.randrange(2000)]
    return bytes(body)


def _changed(document: Any, rng: random.Random) -> Any:
    """One or two fields are other ones, or gone, wherever they are in it."""
    for _ in range(rng.randint(1, 2)):
        places = [*_places(document)]
        if not places:
            break
        inside, key = rng.choice(places)
        if rng.random() < 0.15:
            del inside[key]
        elif rng.random() < 0.15:
            other, its = rng.choice(places)
            inside[key] = json.loads(json.dumps(other[its]))
        else:
            inside[key] = rng.choice(ODD)
        if rng.random() < 0.05:
            inside[str(rng.choice(ODD)) if isinstance(inside, dict) else slice(0, 0)] = [rng.choice(ODD)]
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every field, as what it is in and its key there."""
    for key in range(len(document)) if isinstance(document, list) else [*document]:
        yield document, key
        if isinstance(document[key], (dict, list)):
            yield from _places(document[key])
