"""What is minimised and subject to what, said in functions of one example.

Quantities are means over clients or statistics over everybody; a bound makes a constraint of one. A :class:`Problem` is
also the supervised *task* that the algorithm runs: it turns those functions into the two things a client does,
``measure`` its constraints and give a ``direction`` for one local step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.sizes import arranged
from fedsgm.base.structs import replaced, static, struct
from fedsgm.core.checks import example_weights, weights_of
from fedsgm.core.each_client import EachClient
from fedsgm.core.examples import Among, Examples, Kept
from fedsgm.core.pooling import Heard, active, count_of
from fedsgm.core.quantities import ByRows, Constraint, Mean, PerExample, Statistic
from fedsgm.core.robust import Robust, believed, doubted, too_large, unlike
from fedsgm.core.rules import COLUMNS, Direction, Measured, Parts
from fedsgm.data.clients import Clients

__all__ = ["Constraint", "Examples", "Mean", "PerExample", "Problem", "Quantity", "Statistic"]

Quantity = Mean | ByRows | Statistic | EachClient


FOLLOW = ("shared", "largest", "random", "sum")
WEIGH = ("clients", "rows")
SPREAD = ("client", "worst", "median", "best")


@struct
class Problem:
    r"""Minimise ``objective`` subject to ``constraints``, over clients whose data stays where it is.

    .. math:: \min_{w \in X} f(w) = \frac{1}{n} \sum_{j=1}^{n} f_j(w) \quad \text{subject to} \quad g_i(w) \le c_i

    ``follow`` says which gradient a constraint step takes when there are several: ``"shared"`` between the violated in
    proportion to their violations, that of the ``"largest"`` violation, of a ``"random"`` one of the violated, or the
    ``"sum"`` of the violated, a longer step. Where none is violated (a soft rule mixes before that), it is the one
    nearest to its bound. A rule that weighs each constraint by itself, as :class:`PrimalDual` does, needs no such
    choice.

    ``weigh`` says what counts equally in a :class:`Mean`: the ``"clients"``, as in the paper, or everybody's
    ``"rows"``, so that a client counts as much as it has examples. ``weight`` is a function of one example that gives
    its own weight, 0 or more, in every quantity.

    >>> import fedsgm as fs
    >>> loss = lambda w, example: (w - example["a"]) ** 2
    >>> fs.Problem(objective=loss, constraints=[fs.Mean(lambda w, example: w, name="size") <= 1.0]).names
    ('size',)
    """

    objective: Mean
    constraints: Sequence[Constraint] = ()
    follow: str = static(default="shared")
    weigh: str = static(default="clients")
    weight: Callable[[Any], Any] | None = static(default=None)

    judges: ClassVar[bool] = True  # combine() takes an aggregator

    def __post_init__(self) -> None:
        for name, known in (("follow", FOLLOW), ("weigh", WEIGH)):
            if getattr(self, name) not in known:
                raise SettingError(f"Problem: {name}={getattr(self, name)!r}, but it must be one of {', '.join(known)}")
        if self.weight is not None and not callable(self.weight):
            raise SettingError(f"Problem: weight={self.weight!r}, but it must be a function of one example")
        if callable(self.objective):
            object.__setattr__(self, "objective", Mean(self.objective))
        if not isinstance(self.objective, Mean):
            raise SettingError(
                f"Problem: objective={self.objective!r}, but it must be a function of (params, example), or its Mean"
            )
        if not self.objective.refuses:
            raise SettingError("Problem: the objective is every client's; missing='absent' is for constraints")
        given = [self.constraints] if isinstance(self.constraints, Constraint) else self.constraints
        if not isinstance(given, (list, tuple)):
            raise SettingError("Problem: constraints must be a list of constraints, each quantity <= bound or >= bound")
        object.__setattr__(self, "constraints", tuple(given))
        for constraint in self.constraints:
            if not isinstance(constraint, Constraint) or not isinstance(constraint.quantity, Quantity):
                raise SettingError("Problem: a constraint is quantity <= bound, for instance Mean(loss) <= 0.05")
        spread = [f"{name}_{suffix}" for name in self._of_each for suffix in SPREAD]
        columns = (*self.names, *spread)
        for i, name in enumerate(columns):
            if name in COLUMNS or name in columns[:i]:
                why = "is taken" if name in COLUMNS else "is used twice"
                raise SettingError(f"Problem: the constraint name {name!r} {why}; give another, Mean(..., name=...)")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(constraint.name for constraint in self.constraints)

    @property
    def bounds(self) -> dict[str, float]:
        return {constraint.name: constraint.bound for constraint in self.constraints}

    @property
    def senses(self) -> dict[str, str]:
        """How each value is compared with its bound: ``"<="``, ``">="`` or ``"between"``, whose bound is the upper."""
        return {constraint.name: constraint.sense for constraint in self.constraints}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The values that each constraint allows, from the least to the largest; infinite where there is no bound."""
        return {constraint.name: constraint.range for constraint in self.constraints}

    @property
    def parts(self) -> tuple[int, ...]:
        """How many parts each constraint has that can be weighed by themselves."""
        return tuple(c.parts for c in self.constraints)

    @property
    def inspects(self) -> tuple[str, ...]:
        """Nothing more to see of a step."""
        return ()

    @property
    def places(self) -> tuple[str, ...]:
        """The columns that are the worst client's."""
        return tuple(f"{name}_client" for name in self._of_each)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (self._weighed(self.objective), *(constraint.quantity for constraint in self._compared))

    def prepare(self, clients: Clients, params: Any, *, owner: str = "client", everybody: bool = True) -> Any:
        """What :meth:`weighed` gives, by clients: with a leading axis, or in groups where sizes are very different."""
        return arranged(self.weighed(clients, params, owner=owner, everybody=everybody), clients.counts)

    def weighed(self, clients: Clients, params: Any, *, owner: str = "client", everybody: bool = True) -> Examples:
        """Check the functions against the data and weigh every example once, before anything runs.

        Unless these are ``everybody``, what only all clients together must have is not asked of them.
        """
        if not isinstance(clients, Clients):
            kind = type(clients).__name__
            raise SettingError(f"clients: a {kind}, but it must be Clients; use split(...) or Clients.from_list(...)")
        labels = ("the objective", *(f"the constraint {name!r}" for name in self.names))
        given = example_weights(self.weight, clients, owner)
        each = zip(self.quantities, labels, strict=True)
        weights = [weights_of(quantity, label, clients, params, owner, everybody, given) for quantity, label in each]
        return Examples(clients.examples, np.stack(weights), None)

    def prepare_one(self, data: Any, params: Any) -> Examples:
        """The same for one client's examples alone."""
        prepared = self.prepare(Clients.from_list([data]), params, owner="this client", everybody=False)
        return jax.tree.map(lambda a: a[0], prepared)

    def centralized(self, clients: Clients) -> tuple[Problem, Clients]:
        """The problem as one client with all examples has it."""
        return self, clients.together()

    @property
    def pooled(self) -> Problem:
        """That whose values are those of one client with all examples; a client may then lack what a mean is of."""
        constraints = tuple(replaced(c, quantity=_together(c.quantity)) for c in self.constraints)
        return replaced(self, objective=_together(self.objective), constraints=constraints, weigh="rows")

    def at(self, round: jax.Array) -> Problem:
        """The same in every round."""
        return self

    def measure(
        self, params: Any, data: Examples, key: jax.Array, *, batch_size: int | None = None, objective: bool = False
    ) -> tuple[tuple[Any, ...], Any]:
        """The client's own statistics of each constraint, g_j(w); and, if it is asked for, its sum of the objective.

        Of constraints on each client it keeps what it sent, to know in the update that follows whether it is the one.
        Where rows are weighed, the last of the statistics is what the client weighs in the objective.
        """
        which = range(0 if objective else 1, len(self.quantities))
        return self.told(self._sums(params, data.batch(batch_size, key), which), self._sizes(data), objective=objective)

    def told(self, sums: Sequence[Any], sizes: Any, *, objective: bool = False) -> tuple[tuple[Any, ...], Kept]:
        """What a client sends of its constraints' sums, and keeps; ``sizes`` are as those of all of its data.

        With the ``objective`` its sum comes first, and goes beside the statistics.
        """
        if objective:
            statistics, kept = self.told(sums[1:], sizes)
            return (statistics, sums[0]), kept
        statistics = tuple(q.sent(*own) for q, *own in zip(self.quantities[1:], sums, sizes[1:], strict=True))
        own = [isinstance(quantity, EachClient) for quantity in self.quantities[1:]]
        sent = tuple(sent if is_own else None for sent, is_own in zip(statistics, own, strict=True))
        if self.weigh == "clients":
            return statistics, Kept(sent)
        return (*statistics, sizes[0]), Kept(sent, sizes[0])

    def share(self, direction: Direction, kept: Kept | None) -> Any:
        """Of n clients, n times this client's share of all rows, where rows are weighed."""
        if kept is None or kept.size is None:
            return 1
        return jnp.maximum(direction.guide[-1] * kept.size, jnp.finfo(jnp.float32).tiny)

    def combine(
        self,
        statistics: tuple[Any, ...],
        tolerance: Any,
        key: jax.Array,
        heard: Heard = None,
        robust: Robust | None = None,
    ) -> Measured:
        """The estimate of each constraint by the clients that were heard, its violation, and what clients follow.

        With an aggregator, those whose statistics are not believed count as not heard.
        """
        share: tuple[Any, ...] = ()
        out = None
        if robust is not None and statistics:
            out = self._doubted(statistics, heard)
            heard = believed(heard, out)
        if self.weigh == "rows":
            statistics, sizes, objective = statistics[:-1], statistics[-1], self.quantities[0]
            share = (objective.guide(objective.pool((sizes, sizes), heard), count_of(sizes, heard)),)
        if not self.constraints:
            none = jnp.zeros(0)
            return Measured(none, (none, (), *share), {"estimate": jnp.float32(jnp.nan)}, none, none, doubted=out)
        count = count_of(statistics, heard)
        each = list(zip(self.quantities[1:], statistics, strict=True))
        pooled = [q.pool(s, heard) for q, s in each]
        estimates = jnp.stack([q.measured(p) for (q, _), p in zip(each, pooled, strict=True)])
        errors = jnp.stack([q.error(s, p, heard) for (q, s), p in zip(each, pooled, strict=True)])
        violations = self._violations(estimates, tolerance)
        violations = jnp.where(jnp.isnan(violations), -jnp.inf, violations)
        guides = tuple(c.guide(p, count) for c, p in zip(self._compared, pooled, strict=True))
        parts = self._parts(pooled, violations, tolerance, count) if sum(self.parts) > len(self.parts) else None
        scales = jnp.array([c.scale for c in self.constraints], jnp.float32)
        return Measured(
            violations,
            (active(self.follow, violations, key), guides, *share),
            {"estimate": estimates[jnp.argmax(violations)]},
            scales=scales,
            errors=errors,
            parts=parts,
            doubted=out,
        )

    def _doubted(self, statistics: tuple[Any, ...], heard: Heard) -> jax.Array:
        """1 for a client whose statistics are not believed, of a constraint or of how much its rows weigh."""
        found = jnp.zeros(len(jax.tree.leaves(statistics)[0]))
        if self.weigh == "rows":
            statistics, sizes = statistics[:-1], statistics[-1]
            found = too_large(sizes, jnp.ones(len(sizes)) if heard is None else heard)
        return jnp.maximum(found, doubted(self._compared, statistics, heard))

    def _parts(self, pooled: Sequence[Any], violations: jax.Array, tolerance: Any, count: Any) -> Parts:
        """Every part's violation and guide; a constraint of one part is that part."""
        each: list[Any] = []
        guides: list[Any] = []
        for constraint, total, violation in zip(self.constraints, pooled, violations, strict=True):
            quantity = constraint.quantity
            if constraint.parts == 1 or not isinstance(quantity, Statistic):
                each.append(violation[None])
                guides.append(None)
                continue
            excess = quantity.measured_parts(total) - constraint.bound - tolerance
            each.append(jnp.where(jnp.isnan(excess), -jnp.inf, excess / constraint.scale))
            guides.append(quantity.guides(total, count))
        return Parts(jnp.concatenate(each), np.repeat(np.arange(len(self.parts)), self.parts), tuple(guides))

    def direction(
        self,
        params: Any,
        direction: Direction,
        data: Examples | Among,
        kept: Kept | None,
        key: jax.Array,
        *,
        batch_size: int | None = None,
    ) -> Any:
        """The gradient of ``objective * f_j + constraint * g_j`` on the client's own data."""
        drawn = data.batch(batch_size, key)

        def mixed(params: Any) -> jax.Array:
            return self.descended(self._sums(params, drawn, range(len(self.quantities))), direction, kept)

        return jax.grad(mixed)(params)

    def descended(self, sums: Sequence[Any], direction: Direction, kept: Kept | None) -> jax.Array:
        """The number whose gradient a client follows, as a function of its sums of all quantities."""
        terms, scales = self._terms(sums, direction, kept)
        return terms @ scales

    def followed(self, said: tuple[tuple[Any, ...], Any], direction: Direction) -> jax.Array:
        """The terms of that number, of what a client says of the constraints and the objective."""
        statistics, own = said
        quantities: Sequence[Any] = self.quantities[1:]
        each = zip(quantities, statistics[: len(quantities)], strict=True)
        terms, scales = self._terms((own, *(q.own(sent) for q, sent in each)), direction, None)
        return terms * scales

    def _terms(self, sums: Sequence[Any], direction: Direction, kept: Kept | None) -> tuple[jax.Array, jax.Array]:
        active, guides, *share = direction.guide
        weights = direction.constraint if jnp.ndim(direction.constraint) else direction.constraint * active
        scales = jnp.stack([direction.objective, *weights])
        sent = (None,) * len(self.constraints) if kept is None else kept.sent
        terms = zip(self._compared, sums[1:], guides, sent, strict=True)
        each = [constraint.local(own, guide, sent) for constraint, own, guide, sent in terms]
        return jnp.stack([self.quantities[0].local(sums[0], *share or (None,)), *each]), scales

    def inspect(self, before: Any, after: Any, kept: Any) -> dict[str, jax.Array]:
        return {}

    def evaluate(self, params: Any, data: Examples, key: jax.Array) -> tuple[Any, ...]:
        """The client's statistics of the objective and the constraints, on all its examples."""
        return self.evaluated(self._sums(params, data, range(len(self.quantities))), self._sizes(data))

    def evaluated(self, sums: Sequence[Any], sizes: Any) -> tuple[Any, ...]:
        """The same, of the sums."""
        return tuple(q.sent(*own) for q, *own in zip(self.quantities, sums, sizes, strict=True))

    def summarise(self, evaluations: tuple[Any, ...]) -> tuple[dict[str, jax.Array], jax.Array]:
        """The values over all clients by name, and the largest violation of a bound (no tolerance)."""
        pooled = [q.pool(s) for q, s in zip(self.quantities, evaluations, strict=True)]
        values = jnp.stack([q.measured(p) for q, p in zip(self.quantities, pooled, strict=True)])
        worst = jnp.max(self._violations(values[1:], 0.0), initial=-jnp.inf)
        named = dict(zip(("objective", *self.names), values, strict=True))
        for quantity, all_of_it in zip(self.quantities, pooled, strict=True):
            if isinstance(quantity, EachClient):
                named |= {f"{quantity.label}_{suffix}": v for suffix, v in quantity.spread(all_of_it).items()}
        return named, worst

    def disbelieved(self, evaluations: tuple[Any, ...]) -> jax.Array:
        """1 for a client whose values at a model a robust estimate does not believe, as it judges statistics."""
        objective, *constraints = evaluations
        return jnp.maximum(unlike(self.quantities[0], objective), doubted(self._compared, constraints, None))

    @property
    def _of_each(self) -> tuple[str, ...]:
        """The names of constraints on each client."""
        return tuple(c.name for c in self.constraints if isinstance(c.quantity, EachClient))

    @property
    def _compared(self) -> tuple[Constraint, ...]:
        """The constraints as they are weighed."""
        return tuple(replaced(c, quantity=self._weighed(c.quantity)) for c in self.constraints)

    def _weighed(self, quantity: Quantity) -> Any:
        return ByRows(quantity) if self.weigh == "rows" and isinstance(quantity, Mean) else quantity

    def _violations(self, values: jax.Array, tolerance: Any) -> jax.Array:
        if any(constraint.sense != "<=" for constraint in self.constraints):
            excess = jnp.stack([c.excess(value) for c, value in zip(self.constraints, values, strict=True)])
            return (excess - tolerance) / jnp.array([c.scale for c in self.constraints], jnp.float32)
        bounds = jnp.array([c.bound for c in self.constraints], jnp.float32)
        scales = jnp.array([c.scale for c in self.constraints], jnp.float32)
        return (values - bounds - tolerance) / scales

    def _sizes(self, data: Examples) -> tuple[jax.Array, ...]:
        """What a client's examples weigh in each mean over rows; of another quantity, whether it has any."""
        each = zip(data.weights, self.quantities, strict=True)
        return tuple(jnp.sum(own) if isinstance(q, ByRows) else jnp.float32(jnp.any(own > 0)) for own, q in each)

    def _sums(self, params: Any, data: Examples, which: Sequence[int]) -> tuple[Any, ...]:
        """Weighted sums; means that share a function share its evaluation, and so its gradient."""
        over_examples = (None, data.axis)
        means: dict[PerExample, list[int]] = {}
        found: dict[int, Any] = {}
        for i in which:
            quantity = self.quantities[i].base
            if isinstance(quantity, Mean):
                means.setdefault(quantity.fn, []).append(i)
            else:
                each = jax.vmap(quantity.sums, over_examples)(params, data.examples)
                found[i] = jax.tree.map(lambda a, i=i: jnp.tensordot(data.weights[i], a, 1), each)
        for fn, sharing in means.items():
            # One product for all of them: as separate sums XLA fuses fn into each, and computes it once for each.
            weights = data.weights if len(sharing) == len(self.quantities) else data.weights[np.array(sharing)]
            found |= zip(sharing, weights @ jax.vmap(fn, over_examples)(params, data.examples), strict=True)
        return tuple(found[i] for i in which)


def _together(quantity: Quantity) -> Any:
    """A quantity as it is of everybody's examples together."""
    base = replaced(quantity.base, name=quantity.label)
    return replaced(base, missing="absent") if isinstance(base, Mean) else base
