"""Reading a file as columns, whatever its format."""

import datetime
import decimal
import gzip
import re
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsgm as fs
from fedsgm.data.reading import MISSING, Written, parse_table, read_table

EXPECTED = {"age": [39.0, np.nan, 52.5], "städt": ["Köln", None, "東京, 港区"], "ok": ["true", "false", "true"]}


def assert_columns(table, expected):
    assert list(table) == list(expected)
    for name, values in expected.items():
        if isinstance(values, np.ndarray):
            assert table[name].dtype == values.dtype
            np.testing.assert_array_equal(table[name], values)
        elif all(isinstance(value, float) for value in values):
            assert table[name].dtype == np.float64
            np.testing.assert_array_equal(table[name], values)
        else:
            assert table[name].dtype == object
            assert table[name].tolist() == values


CSVS = {
    "comma": 'age,städt,ok\n39,Köln,true\n,,false\n52.5,"東京, 港区",true\n',
    "semicolon": "age;städt;ok\n39;Köln;true\n;;false\n52.5;東京, 港区;true\n",
    "tab": "age\tstädt\tok\n39\tKöln\ttrue\n\t\tfalse\n52.5\t東京, 港区\ttrue\n",
    "BOM": '\ufeffage,städt,ok\n39,Köln,true\n,,false\n52.5,"東京, 港区",true\n',
    "Windows' line ends": 'age,städt,ok\r\n39,Köln,true\r\n,,false\r\n52.5,"東京, 港区",true\r\n',
    "no line end at the end": 'age,städt,ok\n39,Köln,true\n,,false\n52.5,"東京, 港区",true',
    "an empty line": 'age,städt,ok\n39,Köln,true\n\n,,false\n52.5,"東京, 港区",true\n\n',
    "comma and space": "age; städt; ok\n39; Köln; true\n?; ?; false\n52.5; 東京, 港区; true\n",
    "quoted": '"age","städt","ok"\n"39","Köln","true"\n"","","false"\n"52.5","東京, 港区","true"\n',
    "capitals": 'age,städt,ok\n39,Köln,True\n,,FALSE\n52.5,"東京, 港区",true\n',
}


@pytest.mark.parametrize("how", CSVS)
def test_csv(how, tmp_path):
    (tmp_path / "t.csv").write_bytes(CSVS[how].encode())
    assert_columns(read_table(tmp_path / "t.csv"), EXPECTED)


PARQUETS = {
    "plain": {"age": [39, None, 52.5], "städt": ["Köln", None, "東京, 港区"], "ok": [True, False, True]},
    "dictionary": {
        "age": pa.array([39, None, 52.5], pa.float32()),
        "städt": pa.array(["Köln", None, "東京, 港区"]).dictionary_encode(),
        "ok": pa.array(["true", "false", "true"]).dictionary_encode(),
    },
    "decimal": {
        "age": [decimal.Decimal("39.0"), None, decimal.Decimal("52.5")],
        "städt": pa.array(["Köln", None, "東京, 港区"], pa.large_string()),
        "ok": [True, False, True],
    },
    "not a number": {
        "age": pa.array([39.0, np.nan, 52.5]),
        "städt": ["Köln", "?", "東京, 港区 "],
        "ok": ["True", "FALSE", "true"],
    },
}


@pytest.mark.parametrize("how", PARQUETS)
def test_parquet_gives_the_same_columns(how, tmp_path):
    """Whatever the file is called: its content says what it is."""
    pq.write_table(pa.table(PARQUETS[how]), tmp_path / "t.csv")
    assert_columns(read_table(str(tmp_path / "t.csv")), EXPECTED)


def parquet(columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def assert_alike(columns, text, expected):
    """From Parquet and from CSV."""
    assert_columns(parse_table(parquet(columns), "t"), expected)
    assert_columns(parse_table(text.encode(), "t"), expected)


def times(*texts):
    return np.array(texts, "datetime64[us]")


def test_dates_and_integers_are_alike_in_both():
    days, ids = [datetime.date(2020, 2, 29), None, datetime.date(9999, 12, 31)], [7, 2**40, None]
    text = "day,id\n2020-02-29,7\n,1099511627776\n9999-12-31,\n"
    expected = {"day": times("2020-02-29", "NaT", "9999-12-31"), "id": [7.0, 2.0**40, np.nan]}
    assert_alike({"day": days, "id": ids}, text, expected)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_alike_in_both(unit):
    """Of any unit; with a time zone they are those of UTC."""
    moments = times("2020-02-29T10:30:00", "NaT", "1969-12-31T23:59:59")
    two_hours = datetime.timezone(datetime.timedelta(hours=2))
    leap_day = datetime.datetime(2020, 2, 29, 12, 30, tzinfo=two_hours)
    zoned = [leap_day, None, datetime.datetime(1970, 1, 1, 1, 59, 59, tzinfo=two_hours)]
    columns = {"t": pa.array(moments, pa.timestamp(unit)), "z": pa.array(zoned, pa.timestamp(unit, "+02:00"))}
    text = "t,z\n2020-02-29 10:30,2020-02-29T12:30+02:00\n,\n1969-12-31T23:59:59,1970-01-01 01:59:59+02:00\n"
    assert_alike(columns, text, {"t": moments, "z": moments})


@pytest.mark.parametrize("text", ["2020-02-30", "2020-02-29x", "29.02.2020", "2020-02-29 10:00Z,2020-02-29 10:00"])
def test_what_is_no_date_is_a_text(text):
    rows = text.split(",")
    assert_columns(parse_table("\n".join(["t", *rows]).encode(), "t"), {"t": rows})


@pytest.mark.parametrize("large", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_whole_numbers_that_no_float_has_are_texts(large):
    """2^53 + 1 would be read as 2^53."""
    assert float(2**53 + 1) == 2**53
    columns, text = {"id": [7, large], "n": [2**53, -(2**53)]}, f"id,n\n7,{2**53}\n{large},-{2**53}\n"
    assert_alike(columns, text, {"id": ["7", str(large)], "n": [2.0**53, -(2.0**53)]})


def test_account_numbers_of_any_length():
    """Of 20 and 30 digits, as Arrow's unsigned and decimal numbers."""
    ids, longer = [10**19 + 1, 3], [decimal.Decimal(10**29 + 1), decimal.Decimal(3)]
    columns = {"a": pa.array(ids, pa.uint64()), "b": pa.array(longer, pa.decimal128(30, 0))}
    text = f"a,b\n{10**19 + 1},{10**29 + 1}\n3,3\n"
    assert_alike(columns, text, {"a": [str(10**19 + 1), "3"], "b": [str(10**29 + 1), "3"]})


def test_codes_with_leading_zeros_are_texts():
    """The whole column; 0 itself and 0.5 have none."""
    text = "zip,n,z\n01234,0,00\n98765,0.5,1\n,-0,2\n"
    columns = {"zip": ["01234", "98765", None], "n": [0, 0.5, 0], "z": ["00", "1", "2"]}
    assert_alike(columns, text, {"zip": ["01234", "98765", None], "n": [0.0, 0.5, 0.0], "z": ["00", "1", "2"]})


# How it is written ---------------------------------------------------------------------------------------------------


def test_a_decimal_comma_is_recognised():
    """Where some number has other than three digits after it, and the comma separates nothing else."""
    text = "price;count;thousands;list;t\n3,14;1;1,234;1,2;a,b\n-2;2;5,678;x;c\n"
    expected = {"price": [3.14, -2.0], "count": [1.0, 2.0], "thousands": [1.234, 5.678]}
    assert_columns(parse_table(text.encode(), "t"), expected | {"list": ["1,2", "x"], "t": ["a,b", "c"]})
    assert_columns(parse_table(b"n;m\n1,234;1.5\n2;2\n", "t"), {"n": ["1,234", "2"], "m": [1.5, 2.0]})
    tabs = parse_table(b"n\tm\n1,5e3\t,5\n2\t7,\n", "t")
    assert_columns(tabs, {"n": [1500.0, 2.0], "m": [0.5, 7.0]})


def test_a_decimal_comma_that_is_told():
    comma, point = Written(decimal=","), Written(decimal=".")
    assert_columns(parse_table(b"n;t\n1,234;a\n2;b\n", "t", written=comma), {"n": [1.234, 2.0], "t": ["a", "b"]})
    assert_columns(parse_table(b"n;t\n1,5;a\n2;b\n", "t", written=point), {"n": ["1,5", "2"], "t": ["a", "b"]})
    quoted = parse_table(b'n,t\n"1,5",2.5\n2,3.5\n', "t", written=comma)
    assert_columns(quoted, {"n": [1.5, 2.0], "t": ["2.5", "3.5"]})


@pytest.mark.parametrize(("given", "written"), [("|", "|"), ("tab", "\t"), ("\\t", "\t"), (" ", " "), (";", ";")])
def test_a_separator_that_is_told(given, written):
    text = f"a,b{written}c\n1,5{written}x\n"
    assert_columns(parse_table(text.encode(), "t", written=Written(given, ".")), {"a,b": ["1,5"], "c": ["x"]})


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "UTF8"])
def test_an_encoding_that_is_told(encoding):
    data = "größe,t\n1,Köln\n".encode(encoding)
    assert_columns(parse_table(data, "t", written=Written(encoding=encoding)), {"größe": [1.0], "t": ["Köln"]})


@pytest.mark.parametrize("data", ["größe\n1\n".encode("latin-1"), b"a\n1\n\xfc\n", "a\n1\n".encode("utf-16")])
def test_the_wrong_encoding(data):
    with pytest.raises(fs.SettingError, match=r"encoded as UTF-8 \(.*at byte \d+\); .* --encoding, such as latin-1$"):
        parse_table(data, "t")
    with pytest.raises(fs.SettingError, match=r"encoded as ASCII .*--encoding"):
        parse_table(data, "t", written=Written(encoding="ascii"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"separator": ""}, "separator: '', but it must be one ASCII character"),
        ({"separator": ";;"}, "separator: ';;'"),
        ({"separator": "·"}, "separator: '·'"),
        ({"separator": '"'}, "separator: "),
        ({"decimal": ";"}, "decimal: ';', but numbers have a point or a comma"),
        ({"separator": ",", "decimal": ","}, "a comma cannot be the separator, too"),
        ({"encoding": "latin-99"}, "there is none called 'latin-99'"),
    ],
)
def test_what_is_no_way_to_write(given, words):
    with pytest.raises(fs.SettingError, match=words):
        Written(**given)


@pytest.mark.parametrize("how", ["gzip", "gzip in parts", "zstd", "Parquet in gzip"])
def test_compressed(how, tmp_path):
    """By its content, whatever its name."""
    data = CSVS["comma"].encode()
    half = len(data) // 2
    made = {
        "gzip": lambda: gzip.compress(data),
        "gzip in parts": lambda: gzip.compress(data[:half]) + gzip.compress(data[half:]),
        "zstd": lambda: pa.compress(data, codec="zstd", asbytes=True),
        "Parquet in gzip": lambda: gzip.compress(parquet(PARQUETS["plain"])),
    }[how]()
    (tmp_path / "t.csv").write_bytes(made)
    assert_columns(read_table(tmp_path / "t.csv"), EXPECTED)
    for length in (4, len(made) // 2, len(made) - 1):
        with pytest.raises(fs.SettingError, match=r"^t: not a table in CSV or Parquet: \S"):
            parse_table(made[:length], "t")


def test_line_ends_within_quotes():
    text = 'id,note\n1,"two\nlines, and ""quotes"""\n2,one\n'
    assert_columns(parse_table(text.encode(), "t"), {"id": [1.0, 2.0], "note": ['two\nlines, and "quotes"', "one"]})


@pytest.mark.parametrize("spelling", MISSING)
@pytest.mark.parametrize("space", ["", " "])
def test_spellings_of_what_is_missing(spelling, space):
    """In a column of numbers and in one of texts; the second column keeps an empty line from being skipped."""
    text = f"n,t\n{space}1,{space}a\n{space}{spelling},{space}{spelling}\n"
    assert_columns(parse_table(text.encode(), "t"), {"n": [1.0, np.nan], "t": ["a", None]})


def test_infinite_numbers():
    infinite = [1.0, np.inf, -np.inf]
    assert_alike({"n": infinite, "m": infinite}, "n,m\n1,1\ninf,Infinity\n-inf,-INF\n", {"n": infinite, "m": infinite})


def test_numbers_may_stand_after_a_thousand_rows_of_nothing():
    """A column's type comes from all of its rows, however many there are."""
    rows = "".join(f"{i},\n" for i in range(200_000)) + "7,late\n"
    table = parse_table(f"i,t\n{rows}".encode(), "t")
    assert table["t"][-1] == "late"
    assert table["t"][:-1].tolist() == [None] * 200_000


WRONG = {
    b"": "CSV",
    b"\n\n": "CSV",
    b"a,b\n": "no rows",
    b"a,b\n1,2\n3\n": "Expected 2 columns, got 1",
    b"a,b\n1,2\n3,4,5\n": "Expected 2 columns, got 3",
    b"a,b,a\n1,2,3\n": "two columns are called 'a'",
    b"a, a\n1,2\n": "two columns are called 'a'",
    b"a,,c\n1,2,3\n": "a column has no name",
    "größe,b\n1,ü\n".encode("latin-1"): "UTF-8",
    "a,b\n1,ü\n".encode("latin-1"): "UTF-?8",
    "a,b\n1,2\n".encode("utf-16"): "UTF-8",
    bytes(range(256)): "CSV",
    b"PAR1": "Parquet",
    b"PAR1 and no more of it": "Parquet",
}


@pytest.mark.parametrize("data", WRONG, ids=lambda data: repr(data[:20]))
def test_what_is_no_table(data, tmp_path):
    """One sentence, that begins with the file."""
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(fs.SettingError, match=WRONG[data]) as error:
        read_table(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_truncated_parquet_file(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    for length in range(4, len(whole), 37):
        with pytest.raises(fs.SettingError, match="Parquet"):
            parse_table(whole[:length], "t")


NESTED = {
    "list": [[1], [2, 3]],
    "struct": [{"x": 1}, {"x": 2}],
    "binary": [b"\xff", b"\xfe"],
    "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("kind", NESTED)
def test_columns_of_no_known_kind(kind):
    """A list is neither a number nor a text: fine where it is not used."""
    data = parquet({"a": [1, 2], "b b": NESTED[kind]})
    with pytest.raises(fs.SettingError, match=rf"^t: the column 'b b' has values of type {kind}.*; drop it or"):
        parse_table(data, "t")
    assert_columns(parse_table(data, "t", used=lambda name: name == "a"), {"a": [1.0, 2.0], "b b": [None, None]})


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(fs.SettingError, match=re.escape(f"{tmp_path / 'none.csv'}: there is no such file")):
        read_table(tmp_path / "none.csv")
    with pytest.raises(fs.SettingError, match=re.escape(f"{tmp_path}: a folder")):
        read_table(tmp_path)


def test_the_table_of_the_docs_is_read_as_it_is_written(tmp_path):
    """A round trip through pandas, by CSV and by Parquet."""
    frame = pandas.DataFrame({"n": [1.5, None, 3.0], "t": ["a", None, "é b"], "ok": [True, False, True]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.astype({"t": "category"}).to_parquet(tmp_path / "t.parquet")
    expected = {"n": [1.5, np.nan, 3.0], "t": ["a", None, "é b"], "ok": ["true", "false", "true"]}
    for name in ("t.csv", "t.parquet"):
        assert_columns(read_table(Path(tmp_path, name)), expected)
