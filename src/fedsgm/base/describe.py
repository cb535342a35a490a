"""Settings as plain JSON, for checkpoints, run folders and fingerprints."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np


def describe(thing: Any) -> Any:
    """Settings as plain JSON: dataclasses by class and field, functions by name."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {f.name: describe(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"is": type(thing).__name__, **fields}
    if isinstance(thing, functools.partial):
        return [describe(thing.func), describe(thing.args), describe(thing.keywords)]
    if isinstance(thing, (list, tuple)):
        return [describe(item) for item in thing]
    if isinstance(thing, dict):
        return {str(key): describe(value) for key, value in thing.items()}
    if thing is None or isinstance(thing, (bool, int, str)):
        return thing
    if isinstance(thing, (float, np.number, np.ndarray, jax.Array)):
        return np.asarray(thing, float).tolist()
    return getattr(thing, "__qualname__", None) or repr(thing)
