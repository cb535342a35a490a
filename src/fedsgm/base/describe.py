"""Settings as plain JSON, for checkpoints, run folders and fingerprints."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

_DEEPEST = 8  # closure within closure


def describe(thing: Any) -> Any:
    """Settings as plain JSON: dataclasses by class and field, functions by name."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {f.name: describe(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"is": type(thing).__name__, **fields}
    if isinstance(thing, functools.partial):
        return [describe(thing.func), describe(thing.args), describe(thing.keywords)]
    if getattr(thing, "_fields", None) == ("init", "update"):  # an optimizer of optax: its settings are in closures
        return _closure(thing.update)
    if isinstance(thing, (list, tuple)):
        return [describe(item) for item in thing]
    if isinstance(thing, dict):
        return {str(key): describe(value) for key, value in thing.items()}
    if thing is None or isinstance(thing, (bool, int, str)):
        return thing
    if isinstance(thing, (float, np.number, np.ndarray, jax.Array)):
        return np.asarray(thing, float).tolist()
    return getattr(thing, "__qualname__", None) or repr(thing)


def _closure(function: Any, depth: int = 0) -> Any:
    """A function by its name and what it was made with."""
    cells = getattr(function, "__closure__", None) or ()
    if depth > _DEEPEST or not cells:
        return describe(function)
    inside = {}
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        held = cell.cell_contents
        parts = held if isinstance(held, (list, tuple)) else [held]
        told = [_closure(part, depth + 1) if callable(part) else describe(part) for part in parts]
        inside[name] = told if isinstance(held, (list, tuple)) else told[0]
    return {"is": function.__qualname__.partition(".")[0], **inside}
