"""Settings as plain JSON, for checkpoints, run folders and fingerprints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np

_DEEPEST = 8  # closure within closure


def describe(thing: Any) -> Any:
    """Settings as plain JSON: dataclasses by class and field, functions by name."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        told = [f.name for f in dataclasses.fields(thing) if not f.metadata.get("hidden")]
        fields = {name: describe(getattr(thing, name)) for name in told}
        return {"is": type(thing).__name__, **fields}
    if isinstance(thing, functools.partial):
        return [describe(thing.func), describe(thing.args), describe(thing.keywords)]
    if getattr(thing, "_fields", None) == ("init", "update"):  # an optimizer of optax: its settings are in closures
        return {"init": _closure(thing.init), "update": _closure(thing.update)}
    if str(getattr(thing, "__module__", "")).startswith("optax.") and callable(thing):  # so are a schedule's
        return _closure(thing)
    if isinstance(thing, (list, tuple)):
        return [describe(item) for item in thing]
    if isinstance(thing, dict):
        return {str(key): describe(value) for key, value in thing.items()}
    if thing is None or isinstance(thing, (bool, int, str)):
        return thing
    if isinstance(thing, (float, np.number, np.ndarray, jax.Array)):
        return np.asarray(thing, float).tolist()
    return getattr(thing, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def _closure(function: Any, depth: int = 0) -> Any:
    """A function by its name and what it was made with."""
    held = _held(function)
    if depth > _DEEPEST or not held:
        return getattr(function, "__qualname__", None) or type(function).__name__
    inside = {}
    for name, value in held.items():
        parts = value if isinstance(value, (list, tuple)) else [value]
        told = [_closure(part, depth + 1) if callable(part) else describe(part) for part in parts]
        inside[name] = told if isinstance(value, (list, tuple)) else told[0]
    return {"is": function.__qualname__.partition(".")[0], **inside}


def _held(function: Any) -> dict[str, Any]:
    """What a function's closure holds, or the object whose method it is."""
    owner = getattr(function, "__self__", None)
    if owner is not None and hasattr(owner, "__dict__") and not isinstance(owner, type):
        return dict(vars(owner))
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    found = {}
    for name, cell in zip(names, cells, strict=True):
        with contextlib.suppress(ValueError):  # a name that was never given a value
            found[name] = cell.cell_contents
    return found
