"""Nests of arrays as files: what is read is what was written, bit for bit, and nothing else can be in them."""

import jax
import numpy as np
import pytest

from fedsgm.base import trees

NAMES = {
    "a dictionary": {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.array([1, 0], np.int32)},
    "layers": [{"w": np.ones((2, 3)), "b": np.zeros(3)}, {"w": np.ones(3), "b": np.float32(2)}],
    "tuples and lists": (np.arange(3), [np.arange(2), (np.zeros(0),)], {"a": ()}),
    "one array": np.array([np.nan, -0.0, np.inf]),
    "a number": np.array(3.5),
    "keys with dots": {
        "a.b": np.ones(1),
        "a": {"b": np.zeros(1)},
        "~1": np.ones(2),
        "": np.ones(3),
        "緑😀": np.ones(4),
    },
    "a module's own names": {"conv.weight": np.ones(2), "conv.bias": np.zeros(1), "~": np.ones(1)},
    "the same below others": {"m": {"a.b": np.ones(1)}, "m.a": {"b": np.zeros(1)}},
    "none": None,
    "none within": {"a": None, "b": [None, np.ones(2)]},
    "bytes and truths": {"a": np.array([True, False]), "b": np.arange(3, dtype=np.uint8)},
    "a part of another": {"x": np.arange(24.0).reshape(4, 6)[1:3, ::2].T},
}


@pytest.mark.parametrize("tree", NAMES.values(), ids=NAMES)
def test_what_is_read_is_what_was_written(tree, tmp_path):
    trees.write(tmp_path / "deep" / "tree.safetensors", tree)
    found = trees.read(tmp_path / "deep" / "tree.safetensors")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["tree.safetensors"]
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


def test_jax_arrays_come_back_as_those_of_numpy(tmp_path):
    trees.write(tmp_path / "tree", {"w": jax.numpy.arange(3.0)})
    (found,) = jax.tree.leaves(trees.read(tmp_path / "tree"))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [0, 1, 2]


def test_objects_are_refused(tmp_path):
    with pytest.raises(Exception, match="object"):
        trees.write(tmp_path / "tree", {"w": np.array([{}, print])})
    assert list(tmp_path.iterdir()) == []
