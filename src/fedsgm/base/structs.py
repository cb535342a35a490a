"""Frozen dataclasses that JAX can carry: continuous settings are traced, the rest is part of the program."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

from fedsgm.base.errors import SettingError

T = TypeVar("T")


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """A field that decides what is compiled; every other field is an array or number of the program."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def struct(cls: type[T]) -> type[T]:
    """A frozen dataclass that is also a pytree.

    The class is part of the static data: in JAX 0.10 the structures of two classes made by ``register_dataclass``
    compare equal if their fields do, so that a compiled program of one could be taken for the other's.
    """
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    names: dict[bool, list[str]] = {True: [], False: []}
    for field in dataclasses.fields(made):
        names[field.metadata.get("static", False)].append(field.name)
    keys = [jax.tree_util.GetAttrKey(name) for name in names[False]]

    def flatten(value: Any) -> tuple[list[Any], Any]:
        fixed = (made, *(getattr(value, name) for name in names[True]))
        return [getattr(value, name) for name in names[False]], fixed

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, fixed = flatten(value)
        return list(zip(keys, children, strict=True)), fixed

    def unflatten(fixed: Any, children: Any) -> Any:
        return made(**dict(zip(names[True], fixed[1:], strict=True)), **dict(zip(names[False], children, strict=True)))

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
    return made


def check_participants(participants: int | None, clients: int) -> None:
    """Refuse more than there are; None is all of them."""
    if participants is not None and participants > clients:
        raise SettingError(f"participants={participants}, but there are {clients} clients")


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> None:
    """Refuse what a user could give and is no number in range; JAX rebuilds structs with objects of its own."""
    if not isinstance(value, (numbers.Real, str, list, tuple, dict, np.ndarray, type(None))):
        return
    limit = f"above {above:g}" if above is not None else f"{least:g} or more" if least is not None else ""
    limit += "" if most is None else f", at most {most:g}"
    if (
        not isinstance(value, numbers.Real)
        or isinstance(value, bool)
        or not math.isfinite(float(value))
        or (above is not None and not float(value) > above)
        or (least is not None and not float(value) >= least)
        or (most is not None and not float(value) <= most)
    ):
        raise SettingError(f"{owner}: {name}={value!r}, but it must be a finite number {limit}".rstrip())


def check_count(owner: str, name: str, value: Any, *, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise SettingError(f"{owner}: {name}={value!r}, but it must be a whole number, {least} or more")
