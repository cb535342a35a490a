"""Turning the columns of a table of one's own into features."""

import json

import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedsgm as fs
from fedsgm.data.table import Column, Encoder, as_text, column, numbered, parse_table


def test_a_column_that_is_not_there():
    table = {"income": np.zeros(1), "sex": np.zeros(1)}
    assert column(table, "sex", "target") is table["sex"]
    with pytest.raises(fs.SettingError, match="target: there is no column 'incom'; did you mean 'income'"):
        column(table, "incom", "target")
    with pytest.raises(fs.SettingError, match="'income', 'sex'"):
        column(table, "zzz", "target")


def test_texts_and_groups():
    assert as_text(np.array([1.0, -2.5, np.nan, 1e6])).tolist() == ["1", "-2.5", None, "1000000"]
    assert as_text(np.array([np.inf, -np.inf])).tolist() == [None, None]
    moments = np.array(["2020-02-29", "NaT", "2020-02-29T10:30", "2020-02-29T10:30:00.5"], "datetime64[us]")
    assert as_text(moments).tolist() == [*("2020-02-29", None, "2020-02-29 10:30:00", "2020-02-29 10:30:00.500000")]
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
        imputer = SimpleImputer(strategy="mean", add_indicator=True).fit(train[name][:, None])
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
    """A number gets the mean of training, a category none; neither is an unseen value."""
    encoder = Encoder.of({"n": np.array([1.0, 2.0, 9.0]), "t": np.array(["a", "b", "a"], object)}, ["n", "t"])
    new = {"n": np.array([np.nan, 4.0]), "t": np.array([None, "b"], object)}
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
    expected = encoder.encode({"age": np.array([3.0, 3.0])})
    assert encoder.encode({"age": np.array([None, None], object)}).tolist() == expected.tolist()


def test_texts_that_spell_numbers_are_numbers_where_training_had_them():
    """As a Parquet file may have them; the first that spells none is named."""
    encoder = Encoder.of({"age": np.array([1.0, 2.0, 6.0])}, ["age"])
    expected = encoder.encode({"age": np.array([2.5, np.nan, 1e3])})
    assert encoder.encode({"age": np.array(["2.5", None, "1e3"], object)}).tolist() == expected.tolist()
    with pytest.raises(fs.SettingError, match="row 3 here has '2,5'"):
        encoder.encode({"age": np.array(["2.5", None, "2,5"], object)})


def test_dates_are_days_since_1970():
    """Noon of 1970-01-02 is 1.5; the mean of 0, 1.5 and 30 is 10.5. NumPy's days, by its own subtraction."""
    days = np.array(["1970-01-01", "1970-01-02T12:00", "NaT", "1970-01-31"], "datetime64[us]")
    made = Column.of("day", days)
    assert (made.mean, made.missing, made.date) == (10.5, True, True)
    expected = ((np.array([0, 1.5, 10.5, 30]) - 10.5) / np.std([0, 1.5, 10.5, 30])).astype(np.float32)
    np.testing.assert_allclose(made.encode(days), np.stack([expected, [0, 0, 1, 0]], axis=1), rtol=1e-6)
    assert Encoder.of({"day": days}, ["day"]).dates == ("day",)
    assert made.encode(np.array([None], object)).tolist() == made.encode(days)[2:3].tolist()


@pytest.mark.parametrize("new", [np.array([np.nan, 7.0]), np.array([None, "7"], object)], ids=str)
def test_numbers_where_training_had_dates(new):
    encoder = Encoder.of({"day": np.array(["2020-01-01", "2021-01-01"], "datetime64[us]")}, ["day"])
    with pytest.raises(fs.SettingError, match="column 'day': a date in training, but row 2 here has '7'"):
        encoder.encode({"day": new})


def test_dates_where_training_had_numbers():
    encoder = Encoder.of({"n": np.array([1.0, 2.0])}, ["n"])
    with pytest.raises(fs.SettingError, match="column 'n': a number in training, but row 1 here has '2020-01-01'"):
        encoder.encode({"n": np.array(["2020-01-01"], "datetime64[us]")})


def test_infinite_is_missing():
    made = Column.of("n", np.array([1.0, np.inf, 3.0, -np.inf]))
    assert made == Column.of("n", np.array([1.0, np.nan, 3.0, np.nan]))
    assert made.encode(np.array([np.inf])).tolist() == made.encode(np.array([np.nan])).tolist()


def test_numbers_that_are_too_large_to_be_standardised():
    """Their squares, or their sum, would be infinite."""
    for values in (np.array([1e200, -1e200]), np.array([1.7e308, 1.7e308])):
        with pytest.raises(fs.SettingError, match="column 'n': its numbers are too large"):
            Encoder.of({"n": values, "m": np.arange(2.0)}, ["n", "m"])


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
    """Mean 2, so 1, 2, 2, 3: standard deviation 1/sqrt(2)."""
    made = Column.of("n", np.array([1.0, 2.0, np.nan, 3.0]))
    assert (made.mean, made.missing) == (2.0, True)
    assert made.scale == pytest.approx(np.sqrt(0.5))
    expected = [[-np.sqrt(2), 0], [0, 1], [np.sqrt(8), 0]]
    np.testing.assert_allclose(made.encode(np.array([1.0, np.nan, 4.0])), expected, rtol=1e-6)
