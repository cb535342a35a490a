"""Functions of totals that are written in torch, as the server's programs in JAX call them.

Totals are a few numbers: they cross as copies, so that neither framework writes where the other reads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from fedsgm.base.structs import replaced
from fedsgm.core.each_client import EachClient
from fedsgm.core.quantities import Constraint, Statistic


def in_jax(constraint: Constraint) -> Constraint:
    """The constraint with functions that JAX calls and differentiates where they were torch's."""
    quantity = constraint.quantity
    if isinstance(quantity, EachClient) and isinstance(quantity.base, Statistic):
        return replaced(constraint, quantity=replaced(quantity, base=_across(quantity.base)))
    return replaced(constraint, quantity=_across(quantity)) if isinstance(quantity, Statistic) else constraint


def tensors(tree: Any) -> Any:
    """Copies, in float32."""
    return jax.tree.map(lambda a: torch.tensor(np.array(a, np.float32)), tree)


def arrays(tree: Any) -> Any:
    """Copies, in float32."""
    return jax.tree.map(lambda a: a.detach().float().cpu().numpy().copy(), tree)


def _across(statistic: Statistic) -> Statistic:
    shape = jax.ShapeDtypeStruct(() if statistic.parts == 1 else (statistic.parts,), np.float32)
    given = {"value": statistic.value, "switch_on": statistic.switch_on}
    called: Any = {name: _called(function, shape) for name, function in given.items() if function is not None}
    return dataclasses.replace(statistic, **called)


def _called(function: Callable[[Any], Any], shape: jax.ShapeDtypeStruct) -> Callable[[Any], jax.Array]:
    """A function of totals in torch as one in JAX, with its derivative."""

    def value(total: Any) -> np.ndarray:
        return arrays(function(tensors(total)))

    def slope(total: Any, along: Any) -> Any:
        return arrays(torch.func.vjp(function, tensors(total))[1](tensors(along))[0])

    @jax.custom_vjp
    def called(total: Any) -> jax.Array:
        return jax.pure_callback(value, shape, total, vmap_method="sequential")

    def forward(total: Any) -> tuple[jax.Array, Any]:
        return called(total), total

    def backward(total: Any, along: Any) -> tuple[Any]:
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, np.float32), total)
        return (jax.pure_callback(slope, like, total, along, vmap_method="sequential"),)

    called.defvjp(forward, backward)

    @functools.wraps(function)  # it is described by the name of what it calls
    def named(total: Any) -> jax.Array:
        return called(total)

    return named
