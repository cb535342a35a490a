"""How things show themselves at a prompt and in a notebook: short, without arrays and what is as by default."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

_LONGEST = 60  # characters of a value that is not ours
_MOST = 6  # entries of a list


def short(value: Any) -> str:
    """A value in a few words: an array by its type and shape, a function by its name."""
    if isinstance(value, jax.core.Tracer):
        return "traced"
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return f"{float(value):g}" if np.ndim(value) == 0 else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Mapping):
        return _some([f"{name}: {short(each)}" for name, each in value.items()], "{}")
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return _some([short(each) for each in value], "[]")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return repr(value)
    if callable(value) or hasattr(value, "_fields"):
        return str(getattr(value, "__qualname__", type(value).__name__)).rpartition("<locals>.")[2]
    told = repr(value)
    return told if len(told) <= _LONGEST else f"{told[:_LONGEST]}..."


def _some(told: Sequence[str], ends: str) -> str:
    more = [f"and {len(told) - _MOST} more"] if len(told) > _MOST else []
    return f"{ends[0]}{', '.join([*told[:_MOST], *more])}{ends[1]}"


def given(thing: Any) -> dict[str, str]:
    """The fields of a dataclass that are not as by default, in a few words."""
    fields = {field.name: (field.default, getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    return {name: short(value) for name, (default, value) in fields.items() if not _same(value, default)}


def _same(value: Any, default: Any) -> bool:
    plain = (bool, int, float, str)
    return value is default or (isinstance(value, plain) and isinstance(default, plain) and value == default)


def in_a_line(thing: Any) -> str:
    """``FedSGM(step_size=0.1, local_steps=5)``."""
    return f"{type(thing).__name__}({', '.join(f'{name}={value}' for name, value in given(thing).items())})"


def comparison(constraint: Any) -> str:
    """A constraint as it was written, ``low <= name <= high`` or with one bound."""
    between = constraint.least is not None
    first = f"{short(constraint.least)} <= " if between else ""
    return f"{first}{constraint.name} {'<=' if between else constraint.sense} {short(constraint.bound)}"


def settings_table(thing: Any) -> str:
    """The same as a table for a notebook."""
    return table(type(thing).__name__, [[name, value] for name, value in given(thing).items()])


def table(title: str, rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """An HTML table; what it is given is text."""

    def row(cells: Sequence[str], kind: str) -> str:
        each = "".join(f"<{kind} style='text-align:left'>{html.escape(cell)}</{kind}>" for cell in cells)
        return f"<tr>{each}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    first = row(head, "th") if head else ""
    return f"<table><caption style='text-align:left'><b>{html.escape(title)}</b></caption>{first}{body}</table>"


def short_ways(cls: Any) -> None:
    """Give a dataclass these ways to show itself, where it has none of its own."""
    for name, way in (("__repr__", in_a_line), ("_repr_html_", settings_table)):
        if name not in vars(cls):
            setattr(cls, name, way)
