"""Where local steps lead from w: on the parameters or, with few rows and a wide matrix, on what the rows come to.

A full batch's rows X meet a layer's matrix W in X W alone, and its gradient is X^T D, where D has as few rows. After
directions X^T D_1, ..., X^T D_k they come to

    X (W - eta X^T (D_1 + ... + D_k)) = X W - eta (X X^T) (D_1 + ... + D_k),

so that local steps take products with X X^T, and the matrix is met before the first and after the last of them only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from fedsgm.base.layout import LARGE, Layout
from fedsgm.core.products import Product, moved_by, part, products_of

Direction = Callable[[Any, jax.Array], Any]
"""A local step's, of parameters and a key."""


Products = dict[int, jax.Array]
"""X W of each matrix that steps are taken on rows for, by its place among the parameters."""


def walk(layout: Layout, w: list[Any], direction: Direction, steps: int, products: Products | None = None) -> Walk:
    """From w, taken apart, in the way in which so many local steps are the least work.

    ``products`` are its own at w, where they were made before, for many clients at once.
    """
    plain = Walk(layout, w, direction)
    if steps == 1 or layout.matrices < LARGE:
        return plain
    traced = jax.make_jaxpr(plain.direction_at)(plain.start, jax.random.key(0))
    found = [product for product in products_of(traced.jaxpr, len(plain.start)) if product.pays(steps)]
    return OnRows(plain, traced, found, products) if found else plain


class Walk:
    """Steps on every array of a large model, or on the vector of a small one. Their directions are added up."""

    def __init__(self, layout: Layout, w: list[Any], direction: Direction) -> None:
        self.layout, self.start, self.direction = layout, w, direction
        self.first: Products = {}

    def direction_at(self, parts: list[Any], key: jax.Array) -> list[Any]:
        return self.layout.split(self.direction(self.layout.joined(parts), key))

    @property
    def nothing(self) -> list[Any]:
        """The sum before the first step."""
        return jax.tree.map(jnp.zeros_like, self.start)

    def after(self, tau: jax.Array, total: list[Any], eta: Any, share: Any, key: jax.Array) -> list[Any]:
        """The sum of the first ``tau`` directions, with the one where they lead by steps of ``eta / share``."""
        at = jax.tree.map(lambda w, total: w - eta * total / share, self.start, total)
        return jax.tree.map(jnp.add, total, self.direction_at(at, key))

    def update(self, total: list[Any]) -> jax.Array:
        """The sum as a vector."""
        return self.layout.together(total)


class OnRows(Walk):
    """The same steps, where of some matrices' directions D_1 + ... + D_k is kept."""

    def __init__(self, plain: Walk, traced: ClosedJaxpr, products: list[Product], first: Products | None) -> None:
        super().__init__(plain.layout, plain.start, plain.direction)
        self.products = {product.leaf: product for product in products}
        jaxpr, moving, outs = traced.jaxpr, moved_by(traced.jaxpr), [product.out for product in products]
        rows = part(traced, [], [product.rows for product in products], lambda eqn: eqn.outvars[0] not in moving)()
        self.rows = {product.leaf: product.flat(its) for product, its in zip(products, rows, strict=True)}
        self.first = first or {i: self.rows[i] @ each.turned(self.start[i]) for i, each in self.products.items()}
        self.squares = {leaf: rows @ rows.T for leaf, rows in self.rows.items()}
        inner = {product.leaf: product.inner for product in products}
        wanted = [inner.get(leaf, gradient) for leaf, gradient in enumerate(jaxpr.outvars)]
        self.rest = part(traced, [*jaxpr.invars, *outs], wanted, lambda eqn: eqn.outvars[0] not in outs)

    @property
    def nothing(self) -> list[Any]:
        return [jnp.zeros_like(self.first.get(leaf, w)) for leaf, w in enumerate(self.start)]

    def after(self, tau: jax.Array, total: list[Any], eta: Any, share: Any, key: jax.Array) -> list[Any]:
        def moved() -> dict[int, jax.Array]:
            return {i: first - eta * (self.squares[i] @ total[i]) / share for i, first in self.first.items()}

        outs = jax.lax.cond(tau > 0, moved, lambda: self.first)
        at = [w if i in self.products else w - eta * total[i] / share for i, w in enumerate(self.start)]
        more = self.rest(*at, key, *(product.out_of(outs[i]) for i, product in self.products.items()))
        own = [self.products[i].of_out(a) if i in self.products else a for i, a in enumerate(more)]
        return jax.tree.map(jnp.add, total, own)

    def update(self, total: list[Any]) -> jax.Array:
        own = {i: product.turned(self.rows[i].T @ total[i]) for i, product in self.products.items()}
        return super().update([own.get(i, a) for i, a in enumerate(total)])
