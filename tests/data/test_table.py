"""Reading a table of one's own, and turning its columns into features."""

import datetime
import decimal
import json
import re
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedsgm as fs
from fedsgm.data.table import MISSING, Column, Encoder, as_text, column, numbered, parse_table, read_table

# Reading -------------------------------------------------------------------------------------------------------------

EXPECTED = {"age": [39.0, np.nan, 52.5], "städt": ["Köln", None, "東京, 港区"], "ok": ["true", "false", "true"]}


def assert_columns(table, expected):
    assert list(table) == list(expected)
    for name, values in expected.items():
        if all(isinstance(value, float) for value in values):
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


def test_dates_and_integers_are_alike_in_both():
    days, ids = [datetime.date(2020, 2, 29), None, datetime.date(2021, 1, 1)], [7, 2**40, None]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"day": days, "id": ids}), sink)
    text = "day,id\n2020-02-29,7\n,1099511627776\n2021-01-01,\n"
    expected = {"day": ["2020-02-29", None, "2021-01-01"], "id": [7.0, 2.0**40, np.nan]}
    assert_columns(parse_table(sink.getvalue().to_pybytes(), "t"), expected)
    assert_columns(parse_table(text.encode(), "t"), expected)


def test_line_ends_within_quotes():
    text = 'id,note\n1,"two\nlines, and ""quotes"""\n2,one\n'
    assert_columns(parse_table(text.encode(), "t"), {"id": [1.0, 2.0], "note": ['two\nlines, and "quotes"', "one"]})


@pytest.mark.parametrize("spelling", MISSING)
@pytest.mark.parametrize("space", ["", " "])
def test_spellings_of_what_is_missing(spelling, space):
    """In a column of numbers and in one of texts; the second column keeps an empty line from being skipped."""
    text = f"n,t\n{space}1,{space}a\n{space}{spelling},{space}{spelling}\n"
    assert_columns(parse_table(text.encode(), "t"), {"n": [1.0, np.nan], "t": ["a", None]})


def test_infinite_is_missing():
    assert_columns(parse_table(b"n\n1\ninf\n-inf\n", "t"), {"n": [1.0, np.nan, np.nan]})


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


def test_columns_of_no_known_kind():
    """A list is neither a number nor a text."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2], "b": [[1], [2, 3]]}), sink)
    with pytest.raises(fs.SettingError, match=r"^t: "):
        parse_table(sink.getvalue().to_pybytes(), "t")


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(fs.SettingError, match=re.escape(f"{tmp_path / 'none.csv'}: there is no such file")):
        read_table(tmp_path / "none.csv")
    with pytest.raises(fs.SettingError, match=re.escape(f"{tmp_path}: a folder")):
        read_table(tmp_path)


def test_a_column_that_is_not_there():
    table = {"income": np.zeros(1), "sex": np.zeros(1)}
    assert column(table, "sex", "target") is table["sex"]
    with pytest.raises(fs.SettingError, match="target: there is no column 'incom'; did you mean 'income'"):
        column(table, "incom", "target")
    with pytest.raises(fs.SettingError, match="'income', 'sex'"):
        column(table, "zzz", "target")


def test_texts_and_groups():
    assert as_text(np.array([1.0, -2.5, np.nan, 1e6])).tolist() == ["1", "-2.5", None, "1000000"]
    codes, labels = numbered(np.array(["b", None, "a", "b"], object))
    assert (codes.tolist(), labels) == ([1, -1, 0, 1], ("a", "b"))


# Features ------------------------------------------------------------------------------------------------------------


def random_table(rows=200, seed=0):
    """Numbers and categories, each with and without missing values, and two columns that never change."""
    rng = np.random.default_rng(seed)
    some = rng.normal(50, 9, rows).round(1)
    some[rng.random(rows) < 0.2] = np.nan
    texts = rng.choice(np.array(["red", "grün", "blue", None], object), rows)
    return {
        "age": rng.normal(40, 12, rows),
        "hours": some,
        "one": np.full(rows, 3.0),
        "colour": texts,
        "city": rng.choice(np.array(["x", "y"], object), rows),
        "same": np.full(rows, "a", object),
    }


def by_sklearn(train, table):
    """The same features by scikit-learn's transformers, in the same order."""
    parts = []
    for name in ("age", "hours"):
        imputer = SimpleImputer(strategy="median", add_indicator=True).fit(train[name][:, None])
        filled, *gone = imputer.transform(table[name][:, None]).T
        scaler = StandardScaler().fit(imputer.transform(train[name][:, None])[:, :1])
        parts += [scaler.transform(filled[:, None])[:, 0], *gone]
    for name in ("colour", "city"):
        fitted, new = (np.where(part[name] == None, "\U0010ffff", part[name])[:, None] for part in (train, table))  # noqa: E711 - missing sorts last
        parts += list(OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(fitted).transform(new).T)
    return np.stack(parts, axis=1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_encoder_is_scikit_learn_s(seed):
    """On the training rows and on others, with categories that training did not have."""
    train, new = random_table(seed=seed), random_table(rows=50, seed=seed + 10)
    new["colour"][:5], new["city"][3] = "violet", "z"
    encoder = Encoder.of(train, train)
    for table in (train, new):
        x = encoder.encode(table)
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, by_sklearn(train, table), rtol=1e-5, atol=1e-6)


def test_features_have_names():
    encoder = Encoder.of(random_table(), random_table())
    assert encoder.features == (
        *("age", "hours", "hours is missing"),
        *("colour = blue", "colour = grün", "colour = red", "colour is missing", "city = x", "city = y"),
    )
    assert encoder.constant == ("one", "same")


CONSTANTS = {
    "number": np.full(4, 0.1),
    "large": np.full(4, 1e12 + 0.1),
    "text": np.full(4, "a", object),
    "no number": np.full(4, np.nan),
    "no text": np.full(4, None, object),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_what_never_changes_is_no_feature(kind):
    table = {"c": CONSTANTS[kind], "n": np.arange(4.0)}
    encoder = Encoder.of(table, table)
    assert encoder.features == ("n",)
    assert encoder.constant == ("c",)
    new = {"c": np.array([7.0, 8.0]), "n": np.array([0.0, 3.0])}
    assert encoder.encode(new).shape == (2, 1)
    assert encoder.encode({"n": new["n"]}).shape == (2, 1), "nor does a new table need it"


@pytest.mark.parametrize("values", [np.array([5.0, np.nan, 5.0]), np.array(["a", None, "a"], object)], ids=str)
def test_a_constant_that_is_sometimes_missing(values):
    """Whether it is there is all it tells."""
    encoder = Encoder.of({"c": values}, ["c"])
    assert encoder.features[-1] == "c is missing"
    assert encoder.encode({"c": values})[:, -1].tolist() == [0, 1, 0]


def test_no_feature_is_left():
    with pytest.raises(fs.SettingError, match="no column is left to predict from"):
        Encoder.of({"c": np.zeros(3)}, ["c"])
    with pytest.raises(fs.SettingError, match="no column is left to predict from"):
        Encoder.of({}, [])


def test_unseen_categories_are_none_of_them_and_counted():
    encoder = Encoder.of(random_table(), random_table())
    new = random_table(rows=6, seed=4)
    new["colour"] = np.array(["red", "violet", None, "", "Red", "blue"], object)
    start = encoder.features.index("colour = blue")
    expected = np.zeros((6, 4))
    expected[[0, 2, 5], [2, 3, 0]] = 1
    assert encoder.encode(new)[:, start : start + 4].tolist() == expected.tolist()
    assert encoder.unseen(new) == {"colour": 3}
    assert encoder.unseen(random_table()) == {}


def test_values_that_are_missing_only_later():
    """A number gets the median of training, a category none; neither is an unseen value."""
    encoder = Encoder.of({"n": np.array([1.0, 2.0, 9.0]), "t": np.array(["a", "b", "a"], object)}, ["n", "t"])
    new = {"n": np.array([np.nan, 2.0]), "t": np.array([None, "b"], object)}
    x = encoder.encode(new)
    assert x[0].tolist() == [x[1, 0], 0, 0]
    assert encoder.unseen(new) == {}


def test_at_most_64_categories_the_most_frequent():
    names = [f"k{i:03}" for i in range(100)]
    counts = np.random.default_rng(0).permutation(np.arange(1, 101))
    encoder = Encoder.of({"id": np.repeat(np.array(names, object), counts)}, ["id"])
    frequent = sorted(names[i] for i in np.argsort(-counts)[:64])
    assert list(encoder.features) == [f"id = {name}" for name in frequent]
    x = encoder.encode({"id": np.array(names, object)})
    assert x.sum() == 64
    assert (x.sum(axis=1) == [name in frequent for name in names]).all()


def test_texts_where_training_had_numbers():
    """What is no number is an error that says where; what is missing in each row is none."""
    encoder = Encoder.of({"age": np.array([1.0, 2.0, 6.0])}, ["age"])
    with pytest.raises(fs.SettingError, match="column 'age': a number in training, but row 2 here has 'old'"):
        encoder.encode({"age": np.array([None, "old"], object)})
    expected = encoder.encode({"age": np.array([2.0, 2.0])})
    assert encoder.encode({"age": np.array([None, None], object)}).tolist() == expected.tolist()


def test_numbers_where_training_had_texts():
    encoder = Encoder.of({"code": np.array(["1", "2", "x"], object)}, ["code"])
    assert encoder.encode({"code": np.array([2.0, 1.0, np.nan])}).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert encoder.unseen({"code": np.array([2.0, 3.0])}) == {"code": 1}


@pytest.mark.parametrize(
    ("trained", "new", "expected"),
    [
        ("01,0A,12,12", "01,12,12,01", [[1, 0, 0], [0, 0, 1], [0, 0, 1], [1, 0, 0]]),
        ("True,False,unknown,True", "True,False,False,True", [[0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]]),
        (
            "2020-01-01,2021-01-01 10:00,never,never",
            "2020-01-01,2020-01-01,?,never",
            [[1, 0, 0]] * 2 + [[0] * 3, [0, 0, 1]],
        ),
    ],
)
def test_categories_do_not_depend_on_the_other_rows(trained, new, expected):
    """Rows that look like numbers, truth values or dates, in a file that has no others."""
    train = parse_table("c\n{}\n".format(trained.replace(",", "\n")).encode(), "t")
    encoder = Encoder.of(train, ["c"])
    rows = parse_table("c\n{}\n".format(new.replace(",", "\n")).encode(), "t", encoder.texts)
    assert encoder.encode(rows).tolist() == expected
    assert encoder.unseen(rows) == {}


def test_a_column_that_a_new_table_lacks():
    encoder = Encoder.of(random_table(), random_table())
    new = {name: values for name, values in random_table().items() if name != "colour"}
    with pytest.raises(fs.SettingError, match="there is no column 'colour'"):
        encoder.encode(new)


def test_kept_as_json():
    train, new = random_table(), random_table(rows=20, seed=5)
    encoder = Encoder.of(train, train)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json(), ensure_ascii=False)))
    assert again == encoder
    np.testing.assert_array_equal(again.encode(new), encoder.encode(new))


def test_one_column_by_hand():
    """Median 2, so 1, 2, 2, 3: mean 2, standard deviation 1/sqrt(2)."""
    made = Column.of("n", np.array([1.0, 2.0, np.nan, 3.0]))
    assert (made.fill, made.mean, made.missing) == (2.0, 2.0, True)
    assert made.scale == pytest.approx(np.sqrt(0.5))
    expected = [[-np.sqrt(2), 0], [0, 1], [np.sqrt(8), 0]]
    np.testing.assert_allclose(made.encode(np.array([1.0, np.nan, 4.0])), expected, rtol=1e-6)


def test_the_table_of_the_docs_is_read_as_it_is_written(tmp_path):
    """A round trip through pandas, by CSV and by Parquet."""
    frame = pandas.DataFrame({"n": [1.5, None, 3.0], "t": ["a", None, "é b"], "ok": [True, False, True]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.astype({"t": "category"}).to_parquet(tmp_path / "t.parquet")
    expected = {"n": [1.5, np.nan, 3.0], "t": ["a", None, "é b"], "ok": ["true", "false", "true"]}
    for name in ("t.csv", "t.parquet"):
        assert_columns(read_table(Path(tmp_path, name)), expected)
