"""What is said of a table before a fit: each flaw once, with what to do, and of a table without one nothing."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fedsgm.tables import cautions
from fedsgm.tables.dealing import prepare
from fedsgm.tables.grammar import parse
from support.applications import applications, examinations

PARITY = "demographic_parity(group) <= 0.05"
ROWS = 400
TABLE = {name: values[:ROWS] for name, values in applications().items()}
RNG = np.random.default_rng(1)


def noted(table, *words, target="granted", **options):
    return list(prepare(table, target=target, wanted=[parse(each) for each in words], **options).notes)


@pytest.mark.parametrize(
    ("table", "words", "target"),
    [
        (applications(), [PARITY, "accuracy >= 0.7"], "granted"),
        (TABLE, [PARITY], "granted"),
        (examinations(), ["equalized_odds(group) <= 0.1"], "passed"),
    ],
)
def test_nothing_of_a_table_without_a_flaw(table, words, target):
    assert noted(table, *words, target=target) == []


def test_nothing_of_adult(adult_tables):
    """All its columns, with the weight of a row in it, which has many values; by sex, and by race and sex."""
    for words in ("equalized_odds(sex) <= 0.05", "demographic_parity(sex * race) <= 0.1"):
        assert noted(adult_tables[0], words, "accuracy >= 0.8", target="income") == []


def test_nothing_of_measurements_that_tell_much():
    data = load_breast_cancer()
    table = {f"x{i}": column for i, column in enumerate(data.data.T)}
    assert noted(table | {"y": np.array(["no", "yes"], object)[data.target]}, target="y") == []


@pytest.mark.parametrize(("rows", "told"), [(15, True), (60, False)])
def test_a_group_of_few_rows(rows, told):
    group = TABLE["group"].copy()
    group[:] = "b"
    group[RNG.choice(ROWS, rows, replace=False)] = "a"
    notes = noted(TABLE | {"group": group}, PARITY)
    assert len(notes) == told
    if told:
        assert notes[0].startswith("demographic_parity(group): group 'a' has 1")  # 1x of the 15 rows
        assert "put it together with another group" in notes[0]


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("number", np.arange(ROWS, dtype=float), True),
        ("customer_id", RNG.choice(10**8, ROWS, replace=False).astype(float), True),
        ("amount", RNG.choice(10**8, ROWS, replace=False).astype(float), False),
        ("name", np.array([f"person {i}" for i in range(ROWS)], object), True),
        ("town", np.array([f"town {i % 40}" for i in range(ROWS)], object), False),
        ("size", RNG.normal(size=ROWS), False),
        ("age", RNG.integers(18, 90, ROWS).astype(float), False),
    ],
)
def test_identifiers(name, values, told):
    assert len(list(cautions.identifiers({name: values}, [name]))) == told
    notes = [note for note in noted(TABLE | {name: values}, PARITY) if "identifier" in note]
    assert len(notes) == told
    if told:
        assert notes[0].endswith(f"add --drop {name!r}")
        assert noted(TABLE | {name: values}, PARITY, drop=[name]) == []


GRANTED = TABLE["granted"] == "yes"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (np.where(GRANTED, "paid out", "letter sent").astype(object), True),
        (np.where(GRANTED, RNG.normal(size=ROWS), np.nan), True),  # there only where it was granted
        (np.where(GRANTED, 5.0, -5.0) + RNG.normal(size=ROWS), True),
        (np.where(GRANTED, -5.0, 5.0) + RNG.normal(size=ROWS), True),
        (np.where(GRANTED, 1.0, -1.0) + RNG.normal(size=ROWS), False),  # right for 84% of the rows
        (np.where(GRANTED, "yes", None).astype(object), True),
    ],
)
def test_a_column_that_leaks_the_target(values, told):
    notes = noted(TABLE | {"after": values}, PARITY)
    assert [note for note in notes if "'after' alone tells 'granted'" in note] == (notes if told else [])
    assert len(notes) == told


def test_a_column_that_is_the_number_in_other_units():
    price = TABLE["x0"] + 3
    table = {name: values for name, values in TABLE.items() if name not in ("granted", "x0")} | {"price": price}
    for given, told in ((table, []), (table | {"cents": 100 * price}, ["'cents' alone tells 'price'"])):
        notes = [note for note in noted(given, target="price", task="number") if "alone" in note]
        assert [note.partition(" (")[0] for note in notes] == told


# Two groups of 1000: 300 of one and 100 of the other are positive. Whoever decides for all alike is right for 80% at
# most, and for each point that the groups' rates may differ half a point more.
UNEQUAL = {
    "x": RNG.normal(size=2000),
    "group": np.repeat(np.array(["a", "b"], object), 1000),
    "y": np.array(["yes"] * 300 + ["no"] * 700 + ["yes"] * 100 + ["no"] * 900, object),
}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["demographic_parity(group) <= 0.1", "accuracy >= 0.94"], False),
        (["demographic_parity(group) <= 0.1", "accuracy >= 0.96"], True),  # a tenth too far apart costs 0.05
        (["demographic_parity(group) <= 0.02", "error_rate <= 0.08"], True),
        (["demographic_parity(group) <= 0", "recall('yes') >= 1"], False),  # yes to everybody
        (["demographic_parity(group) <= 0", "recall('yes') >= 1", "false_positive_rate <= 0.05"], True),
        (["equalized_odds(group) <= 0", "accuracy >= 1"], False),
        (["true_positive_rate <= 0.5", "error_rate <= 0.09"], True),
        (["demographic_parity(group) <= 0", "0.5 <= recall('no') <= 0.6", "accuracy >= 0.9"], True),
    ],
)
def test_bounds_that_exclude_each_other(words, told):
    notes = [note for note in noted(UNEQUAL, *words, target="y", test_fraction=0) if note.startswith("no model can")]
    assert len(notes) == told
    if told:
        assert all(parse(each).name in notes[0] for each in words)
        assert notes[0].endswith("loosen one of the bounds")
