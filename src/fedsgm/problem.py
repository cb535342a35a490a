"""What is minimised and subject to what, said in functions of one example.

A :class:`Problem` is also the supervised *task* that the algorithm runs: it turns those functions into the
two things a client does, ``measure`` its constraints and give a ``direction`` for one local step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.data.clients import Clients
from fedsgm.errors import SettingError
from fedsgm.rules import Direction
from fedsgm.structs import check_number, static, struct

PerExample = Callable[[Any, Any], jax.Array]
RESERVED = ("objective", "estimate", "violation", "weight", "participants", "bytes_up", "bytes_down", "seed", "round")


@struct
class Mean:
    """The mean of ``fn(params, example)`` over a client's examples, or over those ``where`` selects.

    The server averages the clients' means equally, as Algorithm 1 does. ``quantity <= bound`` makes
    a constraint of it.
    """

    fn: PerExample = static()
    where: Callable[[Any], Any] | None = static(default=None)
    name: str | None = static(default=None)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise SettingError(f"Mean: fn={self.fn!r}, but it must be a function of (params, example)")
        if self.where is not None and not callable(self.where):
            raise SettingError(f"Mean: where={self.where!r}, but it must be a function of one example")

    def __le__(self, bound: float) -> Constraint:
        return Constraint(self, bound)

    @property
    def label(self) -> str:
        return self.name or str(getattr(self.fn, "__name__", "constraint"))


@struct
class Constraint:
    """``quantity <= bound``; a violation is measured in units of ``scale``."""

    quantity: Mean
    bound: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("Constraint", "bound", self.bound)
        check_number("Constraint", "scale", self.scale, above=0)

    @property
    def name(self) -> str:
        return self.quantity.label


@struct
class Examples:
    """One client's examples (in the engine: all clients', with a leading axis).

    ``weights`` has one row for the objective and one for each constraint: 1/count on the examples that
    the quantity averages over, 0 on the rest and on padding. So every mean is a weighted sum.
    """

    examples: Any
    weights: Any
    count: Any

    def batch(self, size: int | None, key: jax.Array) -> Examples:
        """``size`` examples drawn uniformly with replacement, weighted so that every sum is unbiased."""
        if size is None:
            return self
        chosen = jax.random.randint(key, (size,), 0, self.count)
        weights = self.weights[:, chosen] * self.count / size
        return Examples(jax.tree.map(lambda a: a[chosen], self.examples), weights, jnp.int32(size))


class Measured(NamedTuple):
    """What the server makes of the participants' statistics."""

    violation: jax.Array
    guide: Any
    report: dict[str, jax.Array]


class Task(Protocol):
    """What the algorithm asks of a problem. ``params`` is the flat vector's pytree, ``data`` one client's."""

    @property
    def bounds(self) -> dict[str, float]: ...

    def prepare(self, clients: Any, params: Any, *, owner: str = "client") -> Any: ...

    def measure(self, params: Any, data: Any, key: jax.Array, *, batch_size: int | None) -> tuple[Any, Any]: ...

    def combine(self, statistics: Any, tolerance: Any) -> Measured: ...

    def direction(
        self, params: Any, direction: Direction, data: Any, kept: Any, key: jax.Array, *, batch_size: int | None
    ) -> Any: ...

    def evaluate(self, params: Any, data: Any, key: jax.Array) -> Any: ...

    def summarise(self, evaluations: Any) -> tuple[dict[str, jax.Array], jax.Array]: ...


@struct
class Problem:
    """Minimise ``objective`` subject to ``constraints``, over clients whose data stays where it is.

    >>> import fedsgm as fs
    >>> loss = lambda w, example: (w - example["a"]) ** 2
    >>> fs.Problem(objective=loss, constraints=[fs.Mean(lambda w, example: w, name="size") <= 1.0]).names
    ('size',)
    """

    objective: Mean
    constraints: Sequence[Constraint] = ()

    def __post_init__(self) -> None:
        if callable(self.objective):
            object.__setattr__(self, "objective", Mean(self.objective))
        if not isinstance(self.constraints, (list, tuple, Constraint)):
            return  # JAX rebuilds structs with objects of its own
        given = [self.constraints] if isinstance(self.constraints, Constraint) else self.constraints
        object.__setattr__(self, "constraints", tuple(given))
        named = [c.name for c in self.constraints if isinstance(c, Constraint) and isinstance(c.quantity, Mean)]
        for constraint in self.constraints:
            if isinstance(constraint, (Mean, bool, str)) or callable(constraint):
                raise SettingError("Problem: a constraint is quantity <= bound, for instance Mean(loss) <= 0.05")
        for i, name in enumerate(named):
            if name in RESERVED or name in named[:i]:
                why = "is taken" if name in RESERVED else "is used twice"
                raise SettingError(f"Problem: the constraint name {name!r} {why}; give another, Mean(..., name=...)")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(constraint.name for constraint in self.constraints)

    @property
    def bounds(self) -> dict[str, float]:
        return {constraint.name: constraint.bound for constraint in self.constraints}

    @property
    def quantities(self) -> tuple[Mean, ...]:
        return (self.objective, *(constraint.quantity for constraint in self.constraints))

    def prepare(self, clients: Clients, params: Any, *, owner: str = "client") -> Examples:
        """Check the functions against the data and weigh every example once, before anything runs."""
        self._check(clients)
        labels = ("the objective", *(f"the constraint {name!r}" for name in self.names))
        example = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[2:], a.dtype), clients.examples)
        present = np.arange(clients.longest) < clients.counts[:, None]
        weights = []
        for quantity, label in zip(self.quantities, labels, strict=True):
            out = jax.eval_shape(quantity.fn, params, example)
            shape = getattr(out, "shape", None)
            if shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
                got = f"a {type(out).__name__}" if shape is None else f"shape {shape}" if shape else f"type {out.dtype}"
                raise SettingError(
                    f"{label}: its function must return one floating-point number per example, but it returned {got}"
                )
            chosen = present & _select(quantity.where, clients.examples, label)
            sizes = chosen.sum(axis=1)
            if not sizes.all():
                who = f"{owner} {int(np.argmin(sizes > 0))}" if owner == "client" else owner
                raise SettingError(
                    f"{who} has no example that {label} averages over; split the data so that each has one"
                )
            weights.append((chosen / sizes[:, None]).astype(np.float32))
        return Examples(clients.examples, np.stack(weights, axis=1), clients.counts.astype(np.int32))

    def _check(self, clients: Any) -> None:
        """What the constructor must let pass, because JAX rebuilds structs with objects of its own."""
        if not isinstance(clients, Clients):
            kind = type(clients).__name__
            raise SettingError(f"clients: a {kind}, but it must be Clients; use split(...) or Clients.from_list(...)")
        if not isinstance(self.objective, Mean):
            raise SettingError(
                f"Problem: objective={self.objective!r}, but it must be a function of (params, example), or its Mean"
            )
        if not isinstance(self.constraints, tuple):
            raise SettingError("Problem: constraints must be a list of constraints, each quantity <= bound")
        for constraint in self.constraints:
            if not isinstance(constraint, Constraint) or not isinstance(constraint.quantity, Mean):
                raise SettingError("Problem: a constraint is quantity <= bound, for instance Mean(loss) <= 0.05")

    def measure(
        self, params: Any, data: Examples, key: jax.Array, *, batch_size: int | None = None
    ) -> tuple[jax.Array, None]:
        """The client's own constraint values, g_j(w); nothing is kept for the update that follows."""
        values = self._values(params, data.batch(batch_size, key), range(1, len(self.quantities)))
        return jnp.stack(values) if values else jnp.zeros(0), None

    def combine(self, statistics: jax.Array, tolerance: Any) -> Measured:
        """The participants' mean of each constraint, and the largest violation, whose gradient is followed."""
        if not self.constraints:
            none = jnp.float32(-jnp.inf)
            return Measured(none, jnp.zeros(0), {"estimate": jnp.float32(jnp.nan)})
        estimates = jnp.mean(statistics, axis=0)
        violations = self._violations(estimates, tolerance)
        active = jax.nn.one_hot(jnp.argmax(violations), len(self.constraints))
        return Measured(jnp.max(violations), active, {"estimate": active @ estimates})

    def direction(
        self,
        params: Any,
        direction: Direction,
        data: Examples,
        kept: None,
        key: jax.Array,
        *,
        batch_size: int | None = None,
    ) -> Any:
        """The gradient of ``objective * f_j + constraint * g_j`` on the client's own data."""
        data = data.batch(batch_size, key)
        scales = jnp.stack([direction.objective, *(direction.constraint * direction.guide)])

        def mixed(params: Any) -> jax.Array:
            return jnp.stack(self._values(params, data, range(len(self.quantities)))) @ scales

        return jax.grad(mixed)(params)

    def evaluate(self, params: Any, data: Examples, key: jax.Array) -> jax.Array:
        """The client's objective and constraints on all its examples."""
        return jnp.stack(self._values(params, data, range(len(self.quantities))))

    def summarise(self, evaluations: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        """The values over all clients by name, and the largest violation of a bound (no tolerance)."""
        values = jnp.mean(evaluations, axis=0)
        violations = self._violations(values[1:], 0.0)
        worst = jnp.max(violations, initial=-jnp.inf)
        return dict(zip(("objective", *self.names), values, strict=True)), worst

    def _violations(self, values: jax.Array, tolerance: Any) -> jax.Array:
        bounds = jnp.array([c.bound for c in self.constraints], jnp.float32)
        scales = jnp.array([c.scale for c in self.constraints], jnp.float32)
        return (values - bounds - tolerance) / scales

    def _values(self, params: Any, data: Examples, which: Sequence[int]) -> list[jax.Array]:
        """Weighted sums; quantities that share a function share its evaluation, and so its gradient."""
        values: dict[int, jax.Array] = {}
        for fn in dict.fromkeys(self.quantities[i].fn for i in which):
            # One product for all of them: as separate sums XLA fuses fn into each, and computes it once for each.
            sharing = [i for i in which if self.quantities[i].fn is fn]
            weights = data.weights if len(sharing) == len(self.quantities) else data.weights[np.array(sharing)]
            sums = weights @ jax.vmap(fn, in_axes=(None, 0))(params, data.examples)
            values |= zip(sharing, sums, strict=True)
        return [values[i] for i in which]


def _select(where: Callable[[Any], Any] | None, examples: Any, label: str) -> np.ndarray:
    """``where`` on every example of every client, as booleans."""
    if where is None:
        return np.ones((), bool)
    chosen = jax.vmap(jax.vmap(where))(examples)
    shape = getattr(chosen, "shape", None)
    if shape is None or len(shape) != 2:
        got = f"a {type(chosen).__name__}" if shape is None else f"shape {shape[2:]}"
        raise SettingError(f"{label}: where must return one truth value per example, but it returned {got}")
    return np.asarray(chosen, bool)
