"""Tables that a package carries as a pickle of pandas, read as data: nothing that it names is imported or called.

Each class and function that it names is stood in for by a record of what it was given.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from fedsgm.data.table import Table


class _Stood:
    """What stands in for any class or function of a pickle."""

    args: tuple[Any, ...] = ()
    state: Any = None

    def __new__(cls, *args: Any) -> _Stood:
        made = super().__new__(cls)
        made.args = args
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Stood,), {"__module__": module})


def frame(data: bytes) -> Table:
    """The columns of a pickled DataFrame that has numbers and texts; what is missing is NaN, or None of a text."""
    blocks, axes = _Reader(io.BytesIO(data)).load().state["_mgr"].args
    names = _array(axes[0].args[1]["data"])
    table: Table = {}
    for block in blocks:
        values, places = _array(block.args[0]), block.args[1]
        rows = range(*places.args) if type(places).__name__ == "slice" else _array(places)
        for place, column in zip(rows, values, strict=True):
            table[str(names[place])] = _column(column)
    return {str(name): table[str(name)] for name in names}


def _column(values: np.ndarray) -> np.ndarray:
    if values.dtype != object:
        return values.astype(np.float64)
    return np.array([value if isinstance(value, str) else None for value in values], object)


def _array(stood: _Stood) -> np.ndarray:
    """An array as numpy pickles it: from a buffer, or built from a list of objects."""
    if type(stood).__name__ == "_frombuffer":
        buffer, kind, shape, order = stood.args
        return np.frombuffer(buffer, np.dtype(kind.args[0])).reshape(shape, order=order)
    _, shape, kind, fortran, values = stood.state
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape, order="F" if fortran else "C")
