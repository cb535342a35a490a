"""Groups by several columns: those that occur, each row's number, and no group where a value is missing."""

import numpy as np
import pytest

from fedsgm.data.table import numbered
from fedsgm.tables.groups import crossed


def column(*values):
    return np.array(values, object)


def test_the_pairs_that_occur():
    sex, race = column("f", "m", "f", "m", None, "f"), column("b", "a", "a", "a", "a", None)
    numbers, names = crossed(sex, race)
    assert names == ("f * a", "f * b", "m * a")
    np.testing.assert_array_equal(numbers, [1, 2, 0, 2, -1, -1])
    assert numbers.dtype == np.int32


def test_one_column_is_as_it_is():
    """The labels of an independent implementation for one column."""
    texts = column("z", None, "a", "m", "a")
    found, expected = crossed(texts), numbered(texts)
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1] == expected[1]


def test_pairs_are_told_apart_whose_names_are_the_same():
    numbers, names = crossed(column("a * b", "a"), column("c", "b * c"))
    assert sorted(numbers) == [0, 1]
    assert names == ("a * b * c", "a * b * c")


def test_columns_of_one_length():
    with pytest.raises(ValueError, match="shorter"):
        crossed(column("a", "b"), column("a"))
