"""Nests of dictionaries, lists, tuples and arrays as files that hold nothing but data, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.files import write_atomically

_ROOT = "tree"


def write(path: Path, tree: Any) -> None:
    """One safetensors file, with the nesting in its header."""
    import safetensors.numpy

    arrays: dict[str, np.ndarray] = {}
    metadata = {"form": json.dumps(form(tree, _ROOT, arrays))}
    write_atomically(path, safetensors.numpy.save(arrays, metadata))


def read(path: Path) -> Any:
    """What :func:`write` wrote. Arrays are equal bit for bit."""
    import safetensors

    with safetensors.safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        return rebuild(json.loads(file.metadata()["form"]), _ROOT, arrays)


def form(tree: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The nesting of a tree as JSON; its arrays go into ``arrays`` under the path in it."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        named = _names(name, tree, all(_is_array(value) for value in tree.values()))
        return {"dict": {key: form(value, named[key], arrays) for key, value in tree.items()}}
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [form(value, f"{name}.{i}", arrays) for i, value in enumerate(tree)]}
    if _is_array(tree):
        arrays[name] = np.asarray(tree, order="C")  # ascontiguousarray would give a scalar an axis
        return "array"
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return form(named, name, arrays)  # a user's own node comes back as a dictionary of its arrays


def rebuild(form: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The tree of a form, with the arrays that :func:`form` put aside."""
    if form is None:
        return None
    if form == "array":
        return arrays[name]
    ((kind, inside),) = form.items()
    if kind == "dict":
        named = _names(name, inside, all(value == "array" for value in inside.values()))
        return {key: rebuild(value, named[key], arrays) for key, value in inside.items()}
    items = [rebuild(value, f"{name}.{i}", arrays) for i, value in enumerate(inside)]
    return items if kind == "list" else tuple(items)


def _is_array(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    return len(leaves) == 1 and leaves[0] is tree


def _names(name: str, keys: Iterable[Any], flat: bool) -> dict[Any, str]:
    """Below a name. Dots in keys are told from those between keys, unless all of these are arrays, with nothing below.

    So the names of a PyTorch module's parameters are its own.
    """
    return {key: f"{name}.{key if flat else str(key).replace('~', '~0').replace('.', '~1')}" for key in keys}


def as_bytes(a: jax.Array) -> jax.Array:
    """Rows of bytes."""
    rows = a.reshape(len(a), -1)
    return rows.astype(np.uint8) if a.dtype == bool else rows.view(np.uint8)


def from_bytes(like: jax.Array, rows: jax.Array) -> jax.Array:
    """What rows of bytes stand for."""
    numbers = rows.astype(bool) if like.dtype == bool else rows.view(like.dtype)
    return numbers.reshape(len(rows), *like.shape[1:])
