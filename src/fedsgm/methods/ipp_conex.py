"""IPP-ConEx: inexact proximal points, each found by the constraint extrapolation method (Boob, Deng and Lan 2023).

The outer loop minimises ``f(x) + r/2 |x - x_k|^2`` subject to ``g(x) + r/2 |x - x_k|^2 <= bound``; the inner loop takes
primal-dual steps on it, with an extrapolated linearisation of the constraint. It is a centralised method: it runs
on one client (:func:`fedsgm.methods.presets.centralized`), E inner steps a round, so that T rounds take T * E steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number, static, struct
from fedsgm.core.algorithm import Flat
from fedsgm.core.compression import Dense
from fedsgm.core.rules import Direction, Measured


@struct
class Told:
    """The server's: the iterate, and the multiplier y, which the client moves and the server records."""

    replica: Any
    multiplier: Any


@struct
class Inner:
    """Where the inner loop stands: t, y, the proximal centre, the weighted average, and two linearised constraints."""

    step: Any
    multiplier: Any
    centre: Any
    average: Any
    weight: Any
    linear: Any
    previous: Any


@struct
class IPPConEx:
    """Proximal points by constraint extrapolation. Inner step t, with ``s = t + offset``::

        y  <- max(0, y + (t + 1) / dual_scale * ((1 + theta) l_t - theta l_{t-1})),   theta = (s + 1) / (s + 2)
        x  <- P(x - (grad f + y grad g) / (primal_scale * (s + 1)))
        l_{t+1} = g(x_t) + <grad g(x_t), x_{t+1} - x_t>

    where g is the violation, in units of the constraint's scale, and y its multiplier.
    After ``inner_steps`` the average with weights s + 2 becomes the next centre; y is kept. For a problem with strong
    convexity a (that of the proximal term, at least), smoothness L0 and Lg and a Lipschitz constant M of g, theory has
    ``primal_scale = a/2``, ``dual_scale = 32 M^2 / a`` and ``offset = 4 (L0 + B Lg) / a + 2``, B a bound on y.

    Args:
        proximal: r.
        local_steps: inner steps a round, E.
    """

    proximal: float
    primal_scale: float
    dual_scale: float
    offset: float = 0.0
    inner_steps: int = static(default=50)
    local_steps: int = static(default=1)
    tolerance: float = 0.0
    project: Callable[[Any], Any] | None = static(default=None)
    batch_size: int | None = static(default=None)
    constraint_batch_size: int | None = static(default=None)

    def __post_init__(self) -> None:
        for name in ("proximal", "primal_scale", "dual_scale"):
            check_number("IPPConEx", name, getattr(self, name), above=0)
        for name in ("offset", "tolerance"):
            check_number("IPPConEx", name, getattr(self, name), least=0)
        for name in ("inner_steps", "local_steps"):
            check_count("IPPConEx", name, getattr(self, name))
        for name in ("batch_size", "constraint_batch_size"):
            if getattr(self, name) is not None:
                check_count("IPPConEx", name, getattr(self, name))

    def cohort(self, clients: int) -> int:
        if clients != 1:
            raise SettingError(
                f"IPPConEx: a centralised method, but there are {clients} clients; use centralized(clients)"
            )
        return 1

    def at(self, round: jax.Array) -> IPPConEx:
        return self

    def queried(self, who: jax.Array, clients: int) -> jax.Array:
        return who

    @property
    def asks_first(self) -> bool:
        return False

    @property
    def draws(self) -> bool:
        return False

    def remember(self, server: Told, statistics: Any, who: jax.Array, clients: int) -> Told:
        return server

    def init(self, task: Flat, w: Any, clients: int, statistics: Callable[[], Any] | None = None) -> Told:
        return Told(w, np.float32(0))

    def init_memory(self, d: int) -> Inner:
        """The inner loop begins in the first round: ``step`` of -1 says that nothing is set yet."""
        vector, number = np.zeros(d, np.float32), np.float32(0)
        return Inner(number - 1, number, vector, vector, number, number, number)

    def sample(self, key: jax.Array, clients: int) -> jax.Array:
        return jnp.arange(clients)

    def measure(self, task: Flat, w: jax.Array, data: Any, key: jax.Array) -> tuple[Any, Any]:
        return task.measure(w, data, jax.random.fold_in(key, 0), self.constraint_batch_size)

    def decide(
        self, task: Flat, server: Told, statistics: Any, who: jax.Array, clients: int, key: jax.Array
    ) -> tuple[Direction, Told, Measured]:
        """Measure the violation; the client's inner steps decide by themselves."""
        measured = task.task.combine(statistics, self.tolerance, jax.random.fold_in(key, 0))
        return Direction(jnp.float32(1), server.multiplier, measured.guide), server, measured

    def report(self, server: Told) -> dict[str, jax.Array]:
        return {"multiplier": server.multiplier}

    def local_update(
        self,
        task: Flat,
        w: list[Any],
        direction: Direction,
        data: Any,
        kept: Any,
        memory: Inner,
        key: jax.Array,
        shared: jax.Array | None = None,
    ) -> tuple[tuple[Dense, Dense], Inner]:
        """E inner steps from w; the message is the new iterate, and y."""

        def one(tau: jax.Array, carry: tuple[jax.Array, Inner]) -> tuple[jax.Array, Inner]:
            return self._step(task, *carry, data, jax.random.fold_in(key, 2 + tau))

        x, inner = jax.lax.fori_loop(0, self.local_steps, one, (task.layout.together(w), memory))
        return (Dense(x), Dense(inner.multiplier[None])), inner

    def _step(self, task: Flat, x: jax.Array, inner: Inner, data: Any, key: jax.Array) -> tuple[jax.Array, Inner]:
        statistics, kept = task.measure(x, data, key, self.constraint_batch_size)
        stacked = jax.tree.map(lambda a: a[None], statistics)
        measured = task.task.combine(stacked, self.tolerance, key)

        first = inner.step < 0
        centre = jnp.where(first, x, inner.centre)
        away = x - centre
        # No constraint, or a batch that cannot tell: the last linearisation and y stay as they are.
        known = jnp.isfinite(measured.violation)
        value = jnp.where(known, measured.violation + self.proximal / 2 * (away @ away), inner.linear)
        linear, previous = (jnp.where(first, value, old) for old in (inner.linear, inner.previous))
        t = jnp.maximum(inner.step, 0)
        s = t + self.offset

        def gradient(objective: float, constraint: Any) -> jax.Array:
            weights = Direction(jnp.float32(objective), jnp.float32(constraint), measured.guide)
            return task.direction(x, weights, data, kept, key, self.batch_size) + self.proximal * away

        theta = (s + 1) / (s + 2)
        extrapolated = (1 + theta) * linear - theta * previous
        moved = jnp.maximum(0, inner.multiplier + (t + 1) / self.dual_scale * extrapolated)
        y = jnp.where(known, moved, inner.multiplier)
        slope = jnp.where(known, gradient(0, 1 / measured.scale), 0)
        new = task.project(self.project, x - (gradient(1, 0) + y * slope) / (self.primal_scale * (s + 1)))
        weight = inner.weight + s + 2
        average = inner.average + (s + 2) / weight * (new - inner.average)
        inner = Inner(t + 1, y, centre, average, weight, value + slope @ (new - x), linear)

        # The end of the inner loop: its average is the next centre, and all but the multiplier begins anew.
        over = t + 1 >= self.inner_steps
        zero = jnp.zeros_like(weight)
        fresh = Inner(zero - 1, y, average, jnp.zeros_like(average), zero, zero, zero)
        return jnp.where(over, average, new), jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, inner)

    def aggregate(self, task: Flat, server: Told, messages: Any, key: jax.Array) -> tuple[Told, Any]:
        iterate, multiplier = messages
        x = iterate.values[0]
        return Told(x, multiplier.values[0, 0]), Dense(x)
