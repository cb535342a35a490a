"""Switching rules: how much of the next step goes to the objective and how much to the constraints.

A rule sees the violation ``(g_i - c_i - tolerance) / scale_i`` of every constraint, positive where it is violated, and
answers with the weights of the gradients. It may carry any pytree from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_number, struct

COLUMNS = (
    *("objective", "estimate", "violation", "weight", "multiplier", "participants", "answered", "evaluated"),
    *("heard", "age", "rejected", "doubted", "radius", "epsilon"),
    *("bytes_up", "bytes_down", "frames_up", "frames_down", "seed", "round"),
)
"""Names in a history that neither a constraint nor a rule's report may have."""


def largest(violations: jax.Array) -> jax.Array:
    """The violation that most rules go by; minus infinity where there is no constraint."""
    return jnp.max(violations, initial=-jnp.inf)


class Parts(NamedTuple):
    """The constraints' parts, of each of which the largest is its constraint's violation.

    ``guides`` has, for every constraint of several parts, what clients would be told of each part, stacked.
    """

    violations: jax.Array  # of each part
    of: np.ndarray  # which constraint's each is
    guides: tuple[Any, ...]  # for each constraint, None where it is its own only part

    def told(self, weights: jax.Array, guides: tuple[Any, ...]) -> tuple[jax.Array, tuple[Any, ...]]:
        """The constraints' weights and guides, of those of their parts: clients follow the weighted sum of them."""
        totals = jnp.zeros(len(guides)).at[self.of].add(weights)

        def one(i: int, guide: Any) -> Any:
            if self.guides[i] is None:
                return guide
            shares = weights[self.of == i] / jnp.where(totals[i] > 0, totals[i], 1)
            return jax.tree.map(lambda a: jnp.tensordot(shares, a, 1), self.guides[i])

        return totals, tuple(one(i, guide) for i, guide in enumerate(guides))


class Measured(NamedTuple):
    """What the server makes of the clients' statistics.

    ``errors`` are the standard errors of the estimates, by the spread of the clients' answers, as of clients drawn from
    very many: of m drawn from n they are sqrt(1 - m/n) times that. They are in each constraint's own units, as its
    gradient is; divided by its scale they are the violation's.
    """

    violations: jax.Array  # of each constraint
    guide: Any
    report: dict[str, jax.Array]
    scales: jax.Array  # of each constraint
    errors: jax.Array  # of each constraint's estimate
    parts: Parts | None = None  # where some constraint has several
    radius: Any = 0.0  # of each constraint: how far noise for privacy may have moved it, SURE deviations
    doubted: jax.Array | None = None  # with robust aggregation: 1 for a client whose statistics do not all count

    @property
    def violation(self) -> jax.Array:
        """The largest."""
        return largest(self.violations)

    @property
    def scale(self) -> Any:
        """Of the constraint with the largest violation."""
        return self.scales[jnp.argmax(self.violations)] if self.scales.size else 1.0


@struct
class Direction:
    """The weights of the gradients, and what a client needs to form the constraints'.

    ``constraint`` is one weight, of the gradient that the problem follows when there are several, or one for each
    constraint. ``guide`` comes from the problem: which constraint is the active one. ``named`` are the entries that an
    uplink with a :class:`~fedsgm.core.shared.History` has all clients send.
    """

    objective: jax.Array
    constraint: jax.Array
    guide: Any = None
    named: Any = None

    @property
    def weight(self) -> jax.Array:
        """Of all constraints together."""
        return jnp.sum(self.constraint)


class Rule(Protocol):
    """How violations become a direction."""

    def init(self, constraints: int) -> Any:
        """The state before the first round, for so many constraints."""
        ...

    def decide(self, violations: jax.Array, state: Any) -> tuple[Direction, Any]:
        """One round's direction, and the next state."""
        ...

    def report(self, state: Any) -> dict[str, jax.Array]:
        """What of the state is recorded in every round, by the name of its column."""
        ...


def margin_of(rule: Any, measured: Measured, share: float) -> Any:
    """How far below the bounds a rule switches, in units of the constraints, where it knows this share of the clients.

    The standard error of a mean of sampled clients shrinks as fewer are left to sample, to nothing with all of them.
    """
    margin = getattr(rule, "margin", 0.0)
    if not isinstance(margin, StandardErrors):
        return margin
    return margin.count * math.sqrt(1 - share) * measured.errors


def check_rule(rule: Any, constraints: Sequence[str]) -> None:
    """Refuse, before anything runs, a rule that cannot decide about so many constraints."""
    name, count = type(rule).__name__, len(constraints)
    try:
        state = rule.init(count)
        direction, after = jax.eval_shape(rule.decide, jax.ShapeDtypeStruct((count,), jnp.float32), state)
        shapes = [jnp.shape(direction.objective), jnp.shape(direction.constraint)]
        reported = rule.report(state).keys()
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise SettingError(f"the rule {name} cannot decide about {count} constraints ({what})") from error
    if shapes[0] != () or shapes[1] not in ((), (count,)):
        raise SettingError(
            f"the rule {name} gives weights of shapes {shapes[0]} and {shapes[1]}, but the objective's must be a "
            f"number, and the constraints' one or {count} numbers"
        )
    forms: Any = [jax.tree.structure(tree) for tree in (state, after)]
    if forms[0] != forms[1]:
        raise SettingError(f"the rule {name} changes the form of its state in a round; keep it as init gave it")
    taken = set(reported) & {*constraints, *COLUMNS} - {"multiplier"}
    if taken:
        raise SettingError(f"the rule {name} reports {min(taken)!r}, which is another column's name; give it another")


def _check_margin(owner: str, margin: Any) -> None:
    if not isinstance(margin, StandardErrors):
        check_number(owner, "margin", margin, least=0)


class _Stateless:
    """What the rules share that carry nothing."""

    def init(self, constraints: int) -> None:
        return None

    def report(self, state: None) -> dict[str, jax.Array]:
        return {}


@struct
class StandardErrors:
    r"""A margin that scales itself: so many standard errors of the constraint's estimate, from the clients' spread.

    .. math:: \text{margin} = z \sqrt{1 - \frac{m}{n}} \, \frac{s}{\sqrt{m}}

    with s the standard deviation of m clients' answers, of n; the first root is the correction for drawing without
    replacement (Cochran, *Sampling Techniques*, 1977).

    >>> Hard(margin=StandardErrors(1.645)).margin.count
    1.645

    With 1.645 an estimate of sampled clients that is within it is truly within the bound with probability 0.95, about.
    """

    count: float

    def __post_init__(self) -> None:
        check_number("StandardErrors", "count", self.count, least=0)


@struct
class Hard(_Stateless):
    r"""All to the objective while the estimate is within the bound, all to the constraint otherwise.

    .. math:: (1, 0) \text{ if } v \le 0, \quad (0, 1) \text{ if } v > 0, \qquad v = \max_i g_i - c_i

    After Polyak's switching subgradients (1967), as Algorithm 1 has it in lines 10 to 13.

    >>> direction, _ = Hard().decide(np.float32([0.2, -0.1]), None)
    >>> float(direction.objective), float(direction.constraint)
    (0.0, 1.0)

    ``margin`` moves the switch so far below the bound, in units of the constraint, or by :class:`StandardErrors`.
    """

    margin: float | StandardErrors = 0.0

    def __post_init__(self) -> None:
        _check_margin("Hard", self.margin)

    def decide(self, violations: jax.Array, state: None) -> tuple[Direction, None]:
        weight = jnp.float32(largest(violations) > 0)
        return Direction(1 - weight, weight), state


@struct
class Soft(_Stateless):
    r"""The trimmed hinge: weights ``(1 - s, s)`` with ``s = clip(1 + beta * violation, 0, ceiling)``.

    .. math:: s = \min(1, \max(0, 1 + \beta v))

    It begins to mix the constraint in at ``1/beta`` below the bound; as beta grows the rule becomes :class:`Hard`.
    Theory covers any beta, at the cost of ``1/beta`` more in the constraint (:func:`fedsgm.theory.guarantee`).

    A ``ceiling`` below 1 keeps a share of the objective in every step, however large the violation. It is outside the
    theory: for problems whose constraint alone leads astray, as where the way to no cost is to end the episode.
    ``margin`` is as for :class:`Hard`.

    >>> float(Soft(beta=4.0).decide(np.float32([-0.125]), None)[0].constraint)
    0.5
    """

    beta: float
    ceiling: float = 1.0
    margin: float | StandardErrors = 0.0

    def __post_init__(self) -> None:
        _check_margin("Soft", self.margin)
        check_number("Soft", "beta", self.beta, above=0)
        check_number("Soft", "ceiling", self.ceiling, above=0, most=1)

    def decide(self, violations: jax.Array, state: None) -> tuple[Direction, None]:
        weight = jnp.clip(1 + self.beta * largest(violations), 0, self.ceiling)
        return Direction(1 - weight, weight), state


@struct
class Penalty(_Stateless):
    r"""Penalty FedAvg: the objective always, plus ``rho`` times the constraint while it is violated.

    .. math:: \min_w f(w) + \rho \max(0, g(w) - c)

    An exact penalty: with ``rho`` above the multiplier its minimum is the constrained one (Bertsekas, 1975).

    >>> float(Penalty(rho=10.0).decide(np.float32([0.2]), None)[0].constraint)
    10.0
    """

    rho: float

    def __post_init__(self) -> None:
        check_number("Penalty", "rho", self.rho, least=0)

    def decide(self, violations: jax.Array, state: None) -> tuple[Direction, None]:
        return Direction(jnp.float32(1), self.rho * jnp.float32(largest(violations) > 0)), state


@struct
class PrimalDual:
    r"""A multiplier for each constraint, raised by ``step * violation`` each round and kept at zero or above.

    .. math:: \lambda_i \leftarrow \max(0, \lambda_i + \eta_\lambda v_i)

    With ``augment`` above zero it is the augmented Lagrangian: a constraint's weight is its multiplier plus ``augment``
    times its violation, which damps the multipliers' swings. A round that cannot tell a violation leaves that
    multiplier as it is. After Arrow, Hurwicz and Uzawa (1958).

    >>> rule = PrimalDual(step=0.5)
    >>> rule.decide(np.float32([0.5]), rule.init(1))[1]
    Array([0.25], dtype=float32)
    """

    step: float
    augment: float = 0.0

    averages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("PrimalDual", "step", self.step, above=0)
        check_number("PrimalDual", "augment", self.augment, least=0)

    def init(self, constraints: int) -> np.ndarray:
        return np.zeros(constraints, np.float32)

    def decide(self, violations: jax.Array, state: jax.Array) -> tuple[Direction, jax.Array]:
        known = jnp.where(jnp.isfinite(violations), violations, 0)
        multipliers = jnp.maximum(0, state + self.step * known)
        return Direction(jnp.float32(1), jnp.maximum(0, multipliers + self.augment * known)), multipliers

    def report(self, state: jax.Array) -> dict[str, jax.Array]:
        """``multiplier``: a number where there is one constraint, else one for each in the problem's order."""
        return {"multiplier": jnp.squeeze(state)} if state.size else {}


@struct
class Adaptive:
    r"""Shares as of a switching rule, ``(1 - s, s)``, that the violations raise and lower: ``s = l / (1 + l)``.

    .. math:: \lambda_i \leftarrow \max(0, \lambda_i + \eta_\lambda v_i), \qquad
        s = \frac{\Lambda}{1 + \Lambda}, \quad \Lambda = \sum_i \lambda_i

    ``l`` is the sum of multipliers, one for each part of each constraint, which are raised by ``step * violation`` each
    round and kept at zero or above, as :class:`PrimalDual`'s. So the constraints get the share that keeps them at their
    bounds, however tight these are, and the step is never longer than the objective's alone. Where a constraint is the
    largest of several parts, as a gap between groups is, each has a multiplier of its own, so that a step that would
    mend one part at the cost of another is not taken to and fro. ``margin`` is as for :class:`Hard`. No theorem of the
    paper covers it.

    >>> rule = Adaptive(step=2.0)
    >>> float(rule.decide(np.float32([0.5]), rule.init(1))[0].objective)
    0.5
    """

    step: float = 2.0
    margin: float | StandardErrors = 0.0

    of_parts: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("Adaptive", "step", self.step, above=0)
        _check_margin("Adaptive", self.margin)

    def init(self, constraints: int) -> np.ndarray:
        return np.zeros(constraints, np.float32)

    def decide(self, violations: jax.Array, state: jax.Array) -> tuple[Direction, jax.Array]:
        known = jnp.where(jnp.isfinite(violations), violations, 0)
        multipliers = jnp.maximum(0, state + self.step * known)
        shares = multipliers / (1 + jnp.sum(multipliers))
        return Direction(1 - jnp.sum(shares), shares), multipliers

    def report(self, state: jax.Array) -> dict[str, jax.Array]:
        return {}


@struct
class Unconstrained(_Stateless):
    """Plain FedAvg: the constraints are measured and recorded, never used.

    After McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data* (2017).

    >>> float(Unconstrained().decide(np.float32([0.5]), None)[0].objective)
    1.0
    """

    def decide(self, violations: jax.Array, state: None) -> tuple[Direction, None]:
        return Direction(jnp.float32(1), jnp.float32(0)), state
