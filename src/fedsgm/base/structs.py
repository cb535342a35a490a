"""Frozen dataclasses that JAX can carry: continuous settings are traced, the rest is part of the program."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.showing import short_ways

P = ParamSpec("P")
T = TypeVar("T")
LARGEST = 2**31 - 1  # that a program counts to
LARGEST_SEED = 2**32 - 1
_ROLES = (None, "static", "aside")  # of a field: traced, part of the program, or none of it


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """A field that decides what is compiled; every other field is an array or number of the program."""
    return dataclasses.field(default=default, metadata={"role": "static"})


def aside(*, default: Any) -> Any:
    """A field that is no part of a program: it does not travel with the pytree, which comes back with the default."""
    return dataclasses.field(default=default, metadata={"role": "aside"})


def hidden(*, default: Any) -> Any:
    """A field that is part of a program like any other, and of no description: settings do not tell it."""
    return dataclasses.field(default=default, metadata={"hidden": True})


def made_once(make: Callable[P, T]) -> Callable[P, T]:
    """Give what was made of equal arguments before: functions are the same, so that what they are in is one program."""
    remembered = functools.lru_cache(maxsize=256, typed=True)(make)

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            hash((args, tuple(kwargs.values())))
        except TypeError:  # of what cannot be remembered, a new one
            return make(*args, **kwargs)
        return remembered(*args, **kwargs)  # type: ignore[arg-type]

    return made


@dataclass_transform(frozen_default=True, field_specifiers=(static, aside, hidden, dataclasses.field))
def struct(cls: type[T]) -> type[T]:
    """A frozen dataclass that is also a pytree.

    JAX rebuilds it without ``__init__``: what a class asks of its arguments is asked of users alone, never of tracers.
    The class is part of the static data: in JAX 0.10 the structures of two classes made by ``register_dataclass``
    compare equal if their fields do, so that a compiled program of one could be taken for the other's.
    """
    short_ways(cls)
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    _register(made)
    return made


def carried(owner: str, name: str, value: Any) -> None:
    """See to it that JAX carries a dataclass: a plain one whose fields are numbers becomes a pytree as a struct is."""
    if not any(leaf is value for leaf in jax.tree.leaves(value)):
        return
    kind = type(value).__name__
    params = getattr(value, "__dataclass_params__", None)
    if params is None or not params.frozen:
        raise SettingError(
            f"{owner}: {name} is a {kind}, but it must be a frozen dataclass; write "
            "@dataclasses.dataclass(frozen=True) above the class, or @fedsgm.struct"
        )
    for field in dataclasses.fields(value):
        for leaf in jax.tree.leaves(getattr(value, field.name)):
            if isinstance(leaf, (bool, np.bool_)) or not isinstance(leaf, (numbers.Real, np.ndarray, jax.Array)):
                raise SettingError(
                    f"{owner}: {name} is a {kind} whose {field.name}={leaf!r} is no number; write @fedsgm.struct above "
                    f"the class and {field.name}: {type(leaf).__name__} = fedsgm.static()"
                )
    _register(type(value))


def _register(made: Any) -> None:
    """Make a pytree of a dataclass."""
    fields = {role: [f for f in dataclasses.fields(made) if f.metadata.get("role") == role] for role in _ROLES}
    traced, fixed = ([field.name for field in fields[role]] for role in (None, "static"))
    defaults = {field.name: field.default for field in fields["aside"]}
    keys = [jax.tree_util.GetAttrKey(name) for name in traced]

    def flatten(value: Any) -> tuple[list[Any], Any]:
        return [getattr(value, name) for name in traced], (made, *(getattr(value, name) for name in fixed))

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, rest = flatten(value)
        return list(zip(keys, children, strict=True)), rest

    def unflatten(rest: Any, children: Any) -> Any:
        value = object.__new__(made)
        values = dict(zip(traced, children, strict=True)) | dict(zip(fixed, rest[1:], strict=True)) | defaults
        for name, given in values.items():
            object.__setattr__(value, name, given)
        return value

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)


def replaced(value: T, **changes: Any) -> T:
    """The same struct with other values in it, which may be tracers."""
    new = copy.copy(value)
    vars(new).update(changes)
    return new


def as_float32(tree: Any) -> Any:
    """Numbers as float32 scalars, so that 1 and 1.0 are the same program; arrays of whole numbers stay as they are."""

    def convert(leaf: Any) -> Any:
        is_array = isinstance(leaf, (np.ndarray, jax.Array))
        return np.asarray(leaf) if is_array and not jnp.issubdtype(leaf.dtype, jnp.floating) else np.float32(leaf)

    return jax.tree.map(convert, tree)


@struct
class Scheduled:
    """A number that is a function of the round, such as a schedule of optax, times ``scale``.

    The function is part of the program; another scale compiles nothing.
    """

    schedule: Callable[[Any], Any] = static()
    scale: float = 1.0


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
    below: float | None = None,
) -> None:
    """Refuse what is no finite number in range."""
    number = _number(value)
    if (
        number is None
        or (above is not None and not number > above)
        or (least is not None and not number >= least)
        or (most is not None and not number <= most)
        or (below is not None and not number < below)
    ):
        limit = f"above {above:g}" if above is not None else f"{least:g} or more" if least is not None else ""
        limit += "" if most is None else f", at most {most:g}"
        limit += "" if below is None else f", below {below:g}"
        raise SettingError(f"{owner}: {name}={value!r}, but it must be a finite number {limit}".rstrip())


def _number(value: Any) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, (bool, np.bool_, str, bytes)):
        return None
    try:
        number = float(value) if np.ndim(value) == 0 else math.nan
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def check_count(owner: str, name: str, value: Any, *, least: int = 1, most: int = LARGEST) -> None:
    """Refuse what is not a whole number of at least ``least``, or is larger than a program can count."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise SettingError(f"{owner}: {name}={value!r}, but it must be a whole number, {least} or more")
    if int(value) > most:
        raise SettingError(f"{owner}: {name}={value}, but it must be at most {most}")
