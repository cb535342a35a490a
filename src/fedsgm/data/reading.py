"""A table's file, CSV or Parquet, as columns.

What a value is does not depend on the format: texts, truth values, dates, and numbers that float64 has exactly.
"""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.files import read_file

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
LARGEST = 2**53  # whole numbers beyond it have no float64 of their own
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_SEPARATORS = ",;\t"
_FIRST = 2**24  # bytes that are looked at for the columns' names
_AMPLE, _TIMES = 2**26, 200  # bytes that a compressed table may come to, and how many a byte of it beyond that
_NUMBER = r"^[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:inf|infinity))$"
_COMMA_NUMBER = _NUMBER.replace(r"\.", ",")
_SURELY_DECIMAL = r"^[+-]?\d*,(\d{1,2}|\d{4,})([eE][+-]?\d+)?$"  # where 1,234 may be a thousand and more
_CODE = r"^0\d+$"
_LONG = r"^[+-]?\d{16,}$"
_DATE = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"

Table = dict[str, np.ndarray]
"""Columns by name: numbers as float64 with NaN for what is missing, dates and times as datetime64 with NaT, and texts
as objects with None."""


@dataclasses.dataclass(frozen=True)
class Written:
    """How a CSV file is written.

    ``separator`` is one character, or ``"tab"``; comma, semicolon and tab are recognised. ``decimal`` is the point of
    numbers; where the separator is no comma, a decimal comma is recognised.
    """

    separator: str | None = None
    decimal: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if self.separator in ("tab", "\\t"):
            object.__setattr__(self, "separator", "\t")
        if self.separator is not None and (len(self.separator.encode()) != 1 or self.separator in '"\r\n'):
            raise SettingError(f"separator: {self.separator!r}, but it must be one ASCII character, such as ; or tab")
        if self.decimal not in (None, ".", ","):
            raise SettingError(f"decimal: {self.decimal!r}, but numbers have a point or a comma; write . or ,")
        if self.decimal == self.separator == ",":
            raise SettingError("decimal: a comma cannot be the separator, too; say which separator there is")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise SettingError(
                f"encoding: there is none called {self.encoding!r}; write one such as utf-8, latin-1 or utf-16"
            ) from None


def read_table(
    path: str | Path,
    texts: Collection[str] = (),
    *,
    written: Written = Written(),
    used: Callable[[str], bool] | None = None,
) -> Table:
    """The columns of a CSV file, whose first line names them, or of a Parquet file; either may be compressed.

    A column of CSV that has nothing but numbers is numbers, and of dates dates, unless it is among the ``texts``: those
    a model knows as categories. A column with codes such as 01234 is texts, and so is one with whole numbers that are
    too large to be told apart as float64. A column that is not ``used`` may be of any kind, and is missing in each row
    if it is neither of numbers, texts or dates.
    """
    path = Path(path)
    if not path.is_file():
        raise SettingError(f"{path}: {'a folder' if path.is_dir() else 'there is no such file'}; give a CSV or Parquet")
    return parse_table(read_file(path, links=True), str(path), texts, written=written, used=used)


def parse_table(
    data: bytes,
    owner: str,
    texts: Collection[str] = (),
    *,
    written: Written = Written(),
    used: Callable[[str], bool] | None = None,
) -> Table:
    """:func:`read_table` of a file's content; ``owner`` is who an error names."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        data = _decompressed(data)
        is_parquet = data[:4] == b"PAR1"
        if is_parquet:
            table = _parse_parquet(data)
        else:
            table, decimal = _parse_csv(_utf8(data, owner, written.encoding), written)
    except SettingError as error:
        raise error if str(error).startswith(owner) else SettingError(f"{owner}: {error}") from None
    except (pa.ArrowException, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(f"{owner}: not a table in CSV or Parquet: {first}") from None
    names = [name.strip() for name in table.column_names]
    for name in names:
        if not name or names.count(name) > 1:
            what = f"two columns are called {name!r}" if name else "a column has no name"
            raise SettingError(f"{owner}: {what}; give every column a name of its own")
    if not table.num_rows:
        raise SettingError(f"{owner}: the table has no rows")
    found = {}
    for name, values in zip(names, table.columns, strict=True):
        try:
            found[name] = _typed(values) if is_parquet else _inferred(values, decimal, as_text=name in texts)
        except (pa.ArrowException, UnicodeDecodeError):
            if used is None or used(name):
                raise SettingError(
                    f"{owner}: the column {name!r} has values of type {values.type}, which are neither numbers, texts "
                    "nor dates; drop it or write it another way"
                ) from None
            found[name] = np.full(table.num_rows, None, object)
    return found


def numbers_of(texts: np.ndarray) -> np.ndarray | None:
    """Texts as the numbers that they spell, by the rules for CSV with a decimal point; None if some spells none."""
    import pyarrow as pa

    values = _inferred(pa.chunked_array([pa.array(texts, pa.string())]), ".")
    return values if values.dtype == np.float64 else None


def _decompressed(data: bytes) -> bytes:
    """By its first bytes, whatever the file is called."""
    import pyarrow as pa

    for magic, codec in _COMPRESSED.items():
        if data.startswith(magic):
            most = _AMPLE + _TIMES * len(data)
            stream, found = pa.CompressedInputStream(pa.BufferReader(data), codec), bytearray()
            while len(found) <= most and (part := stream.read(2**20)):
                found += part
            if len(found) > most:
                raise SettingError(
                    f"a file of {len(data)} bytes in {codec} comes to more than {most}, which no table does; "
                    "decompress it yourself if it is one"
                )
            return bytes(found)
    return data


def _utf8(data: bytes, owner: str, encoding: str) -> bytes:
    try:
        text = data.decode("utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding)
    except UnicodeError as error:
        name = codecs.lookup(encoding).name.upper()
        why = f" ({error.reason} at byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        raise SettingError(
            f"{owner}: not a table in Parquet, nor in CSV encoded as {name}{why}; if it is CSV, say how it is encoded "
            "with --encoding, such as latin-1"
        ) from None
    return text.encode()


def _parse_parquet(data: bytes) -> pa.Table:
    """A table of as many rows as its bytes may have: a few can say that there are billions of the same."""
    import pyarrow as pa
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(pa.BufferReader(data))
    cells = file.metadata.num_rows * file.metadata.num_columns
    if cells > _AMPLE + _TIMES * len(data):
        raise SettingError(f"a Parquet file of {len(data)} bytes has {cells} values, which no table does")
    return file.read()


def _parse_csv(data: bytes, written: Written) -> tuple[pa.Table, str]:
    """Every column as texts, without the spaces around them, None where missing; and the decimal point."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    header = data.partition(b"\n")[0].decode()
    separator = written.separator or max(_SEPARATORS, key=header.count)

    parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with csv.open_csv(pa.BufferReader(data), csv.ReadOptions(block_size=_FIRST), parse) as first:
        names = first.schema.names
    table = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(block_size=len(data) + 1),
        parse,
        csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
    )
    columns = [pc.utf8_trim_whitespace(column) for column in table.columns]
    gone = pa.array(MISSING)
    columns = [pc.if_else(pc.is_in(column, gone), pa.scalar(None, pa.string()), column) for column in columns]
    decimal = written.decimal or "."
    if written.decimal is None and separator != ",":
        decimal = "," if any(_surely_decimal(column) for column in columns) else "."
    return pa.table(columns, names=names), decimal


def _surely_decimal(column: pa.ChunkedArray) -> bool:
    return _all(column, _COMMA_NUMBER) and _any(column, _SURELY_DECIMAL)


def _inferred(column: pa.ChunkedArray, decimal: str, *, as_text: bool = False) -> np.ndarray:
    """A column of CSV: numbers or dates if all its values are, or else texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not as_text and _all(column, _NUMBER if decimal == "." else _COMMA_NUMBER):
        if not (_any(column, _CODE) or _any_large(column)):
            column = pc.replace_substring(column, ",", ".")
            return np.array(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    elif not as_text and _all(column, _DATE):
        for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
            try:
                return _times(column.cast(kind))
            except pa.ArrowInvalid:  # no such day, or some have a time zone and some have none
                continue
    return _texts(column)


def _typed(column: pa.ChunkedArray) -> np.ndarray:
    """A column of Parquet, by its type."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_date(kind) or types.is_timestamp(kind):
        return _times(column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False))
    if types.is_integer(kind) or (types.is_decimal(kind) and kind.scale <= 0):
        ends = pc.min_max(column).as_py().values()
        if any(end is not None and abs(end) > LARGEST for end in ends):
            return _texts(column)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return np.array(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return _texts(column)


def _texts(column: pa.ChunkedArray) -> np.ndarray:
    import pyarrow as pa

    return np.array([_text(text) for text in column.cast(pa.string()).to_pylist()], object)


def _times(column: pa.ChunkedArray) -> np.ndarray:
    return np.array(column.to_numpy(zero_copy_only=False), "datetime64[us]")


def _all(column: pa.ChunkedArray, pattern: str) -> bool:
    """Whether each value that is not missing is of this form."""
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py())


def _any(column: pa.ChunkedArray, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(column, pattern), min_count=0).as_py())


def _any_large(column: pa.ChunkedArray) -> bool:
    """Whether some whole number is too large for a float64 of its own."""
    import pyarrow.compute as pc

    long = column.filter(pc.match_substring_regex(column, _LONG))
    return any(abs(int(text)) > LARGEST for text in long.to_pylist())


def _text(value: str | None) -> str | None:
    """A value without the spaces around it; truth values are alike however a program writes them."""
    text = "" if value is None else value.strip()
    return None if text in MISSING else text.lower() if text.lower() in ("true", "false") else text
