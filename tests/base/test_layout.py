"""Parameters as a pytree, as a vector, and as what local steps are taken on."""

import numpy as np
import pytest

from fedsgm.base import layout
from fedsgm.base.layout import Layout

PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "b": np.float32([7, 8, 9]), "c": np.float32(5)}


@pytest.mark.parametrize(("large", "parts"), [(12, [(3,), (), (4, 3)]), (13, [(16,)])])
def test_steps_are_taken_on_large_matrices_as_they_are_and_else_on_the_vector(monkeypatch, large, parts):
    monkeypatch.setattr(layout, "LARGE", large)
    made = Layout.of(PARAMS)
    assert made.matrices == 12
    split = made.split(PARAMS)
    assert [np.shape(part) for part in split] == parts
    joined = made.joined(split)
    assert joined.keys() == PARAMS.keys()
    for name, array in PARAMS.items():
        np.testing.assert_array_equal(joined[name], array)
    np.testing.assert_array_equal(made.flatten(joined), made.flatten(PARAMS))
