"""Finds in the program of a gradient the matrices that meet fixed rows, in a single product."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun

from fedsgm.base.layout import LARGE


class Product(NamedTuple):
    """Rows times a matrix, the parameter ``leaf``, are ``out``; its gradient is made of the same rows and ``inner``."""

    leaf: int
    rows: Var
    out: Var
    inner: Var
    axis: int  # of rows, over which they meet the matrix
    transposed: bool  # they meet its second axis
    last: bool  # in out the matrix's other axis is the last, and not the first

    def pays(self, steps: int) -> bool:
        """Whether rows' products with each other are less work than those with the matrix, in so many steps."""
        features, others = _shape(self.rows)[self.axis], _shape(self.out)[-1 if self.last else 0]
        rows = math.prod(_shape(self.rows)) // features
        on_rows = 2 * rows * features * others + rows * rows * (features + (steps - 1) * others)
        return on_rows <= 2 * steps * rows * features * others

    def flat(self, rows: jax.Array) -> jax.Array:
        """[rows, features]."""
        moved = jnp.moveaxis(rows, self.axis, -1)
        return moved.reshape(-1, moved.shape[-1])

    def turned(self, matrix: jax.Array) -> jax.Array:
        """[features, others] of the parameter, and the other way round."""
        return matrix.T if self.transposed else matrix

    def out_of(self, flat: jax.Array) -> jax.Array:
        """``out`` of [rows, others]."""
        return (flat if self.last else flat.T).reshape(_shape(self.out))

    def of_out(self, out: jax.Array) -> jax.Array:
        """[rows, others] of what has the form of ``out``."""
        return out.reshape(-1, out.shape[-1]) if self.last else out.reshape(out.shape[0], -1).T


def products_of(jaxpr: Jaxpr, leaves: int) -> list[Product]:
    """All there are of large matrices, in the program of the gradient by its first so many arguments."""
    moving = moved_by(jaxpr)
    uses = collections.Counter(var for eqn in jaxpr.eqns for var in _variables(eqn))
    made = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    found = []
    for leaf, (matrix, gradient) in enumerate(zip(jaxpr.invars[:leaves], jaxpr.outvars, strict=True)):
        large = len(_shape(matrix)) == 2 and math.prod(_shape(matrix)) >= LARGE
        if large and uses[matrix] == 1 and isinstance(gradient, Var):
            eqn = next(eqn for eqn in jaxpr.eqns if matrix in _variables(eqn))
            product = _product(leaf, matrix, eqn, made, gradient)
            if product is not None and product.rows not in moving:
                found.append(product)
    return found


def moved_by(jaxpr: Jaxpr) -> set[Var]:
    """What depends on an argument."""
    moving = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if not moving.isdisjoint(_variables(eqn)):
            moving.update(eqn.outvars)
    return moving


def part(
    whole: ClosedJaxpr, given: Sequence[Var], wanted: Sequence[Var], keep: Callable[[JaxprEqn], bool]
) -> Callable[..., list[Any]]:
    """The function from these of a program's variables to those, by the equations that are kept."""
    eqns = [eqn for eqn in whole.jaxpr.eqns if keep(eqn)]
    jaxpr = whole.jaxpr.replace(invars=list(given), outvars=list(wanted), eqns=eqns)
    return jaxpr_as_fun(ClosedJaxpr(jaxpr, whole.consts))


def _product(leaf: int, matrix: Var, eqn: JaxprEqn, made: dict[Var, JaxprEqn], gradient: Any) -> Product | None:
    """The one that the matrix is in, if the gradient is one of the same rows."""
    last, swapped = eqn.invars[-1] is matrix, False
    rows: Any = eqn.invars[0 if last else 1]
    while gradient in made and made[gradient].primitive is jax.lax.transpose_p:
        swapped, gradient = not swapped, made[gradient].invars[0]
    back = made.get(gradient, eqn)
    met, pairs = _contracted(eqn, rows), _contracted(back, rows)
    if met is None or pairs is None or len(met) != 1:
        return None
    [(axis, of_matrix)], first = met.items(), back.invars[0] is rows
    inner: Any = back.invars[1 if first else 0]
    kept = [i for i in range(len(_shape(rows))) if i != axis]
    where = {i: place for place, i in enumerate(kept, 0 if last else 1)}
    out = eqn.outvars[0]
    if _shape(inner) != _shape(out) or pairs != where or (swapped == first) != (of_matrix == 1):
        return None
    return Product(leaf, rows, out, inner, axis, of_matrix == 1, last)


def _contracted(eqn: JaxprEqn, rows: Any) -> dict[int, int] | None:
    """Over which axes rows are multiplied with something, and which these are there; None where they are not."""
    if eqn.primitive is not jax.lax.dot_general_p or rows not in _variables(eqn):
        return None
    (left, right), batches = eqn.params["dimension_numbers"]
    if any(batches):
        return None
    return dict(zip(left, right, strict=True) if eqn.invars[0] is rows else zip(right, left, strict=True))


def _shape(var: Any) -> tuple[int, ...]:
    return var.aval.shape


def _variables(eqn: JaxprEqn) -> list[Var]:
    return [var for var in eqn.invars if isinstance(var, Var)]
