"""Before anything runs: what users' functions and optimizers must be, and how much an example weighs in a quantity."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.cache import little, whole_program
from fedsgm.base.errors import SettingError
from fedsgm.core.quantities import ByRows
from fedsgm.data.clients import Clients


def example_weights(weight: Callable[[Any], Any] | None, clients: Clients, owner: str) -> np.ndarray:
    """What every example weighs, in float64: 1 unless told."""
    total = int(clients.counts.sum())
    if weight is None:
        return np.ones(total)
    given = jax.vmap(weight)(clients.examples)
    if getattr(given, "shape", None) != (total,):
        raise SettingError("Problem: weight must return one number per example")
    weights = np.asarray(given, np.float64)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        client = int(clients.owners[at])
        row = at - int(clients.counts[:client].sum())
        who = f"{owner} {client}" if owner == "client" else owner
        raise SettingError(f"{who}: example {row} weighs {weights[at]:g}, but a weight is 0 or more")
    return weights


def weights_of(
    quantity: Any, label: str, clients: Clients, params: Any, owner: str, everybody: bool, weights: np.ndarray
) -> np.ndarray:
    """What every example weighs in a quantity: as given, but in a client's mean they add up to 1."""
    base = quantity.base
    if hasattr(base, "sums"):
        _check_statistic(base, clients, params, label, owner, everybody, weights)
        if base is not quantity and everybody:
            _check_each(quantity, clients, params, label, weights)
        return weights.astype(np.float32)
    example = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), clients.examples)
    _check_scalar(jax.eval_shape(base.fn, params, example), f"{label}: its function", "per example")
    chosen = weights * _select(base.where, clients.examples, label)
    return weights_in(quantity, label, chosen, clients.owners, owner, everybody)


def weights_in(
    quantity: Any, label: str, chosen: np.ndarray, owners: np.ndarray, owner: str, everybody: bool
) -> np.ndarray:
    """The same of a mean, where ``chosen`` is what each example weighs that it averages over, and 0 for the others."""
    base, sizes = quantity.base, np.bincount(owners, chosen)
    if not sizes.all() and (base.refuses or (everybody and not sizes.any())):
        _refuse_missing(base, label, owner, int(np.argmin(sizes > 0)))
    scale = 1 if isinstance(quantity, ByRows) else np.where(sizes > 0, sizes, 1)[owners]
    return (chosen / scale).astype(np.float32)


def _refuse_missing(base: Any, label: str, owner: str, client: int) -> None:
    """A client has no example of a mean, or nobody has one where some may lack it."""
    if owner == "client" and not base.refuses:
        raise SettingError(f"no client has an example that {label} averages over; check its where=")
    who = f"{owner} {client}" if owner == "client" else owner
    instead = "split the data so that each has one"
    if label != "the objective" and base.refuses and owner != "the test data":
        instead += (
            ", or let those without one be absent from it, Mean(..., missing='absent'), or count everybody's examples "
            "together, with a Statistic"
        )
    raise SettingError(f"{who} has no example that {label} averages over; {instead}")


def _check_each(quantity: Any, clients: Clients, params: Any, label: str, weights: np.ndarray) -> None:
    """Somebody can measure it alone: the gap between two groups has no value where nobody has both."""

    def own(params: Any, examples: Any, present: Any, owners: Any) -> Any:
        each = jax.vmap(quantity.base.sums, (None, 0))(params, examples)
        weighed = jax.tree.map(lambda a: (a.astype(jnp.float32).T * present).T, each)
        sums = jax.tree.map(lambda a: jax.ops.segment_sum(a, owners, len(clients)), weighed)
        return jax.vmap(lambda one: quantity.sent(one, jnp.float32(1))[1])(sums)

    defined = jax.jit(own)(params, clients.examples, weights.astype(np.float32), clients.owners)
    if not np.asarray(defined).any():
        raise SettingError(f"{label} has no value on any client alone; leave each_client out, or split another way")


def _check_scalar(out: Any, what: str, per: str) -> None:
    shape = getattr(out, "shape", None)
    if shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
        got = f"a {type(out).__name__}" if shape is None else f"shape {shape}" if shape else f"type {out.dtype}"
        raise SettingError(f"{what} must return one floating-point number {per}, but it returned {got}")


def _check_statistic(
    quantity: Any, clients: Clients, params: Any, label: str, owner: str, everybody: bool, weights: np.ndarray
) -> None:
    """The functions fit each other, and over everybody the value is defined where the run starts."""
    present = weights.astype(np.float32)
    shapes = jax.eval_shape(_pooled, quantity, params, clients.examples, present)
    for name in ("value", "switch_on"):
        function = getattr(quantity, name)
        if function is not None and quantity.parts == 1:
            _check_scalar(jax.eval_shape(function, shapes), f"{label}: its {name}", "for the total")
        elif function is not None:
            out = jax.eval_shape(function, shapes)
            if getattr(out, "shape", None) != (quantity.parts,):
                raise SettingError(f"{label}: its {name} must return {quantity.parts} numbers, as parts= says")
    if not everybody:
        return
    members, value = _over_all(quantity, params, clients.examples, present)
    who = "no client" if owner == "client" else owner
    if members is not None:
        counts = np.asarray(members)
        if not (counts > 0).all():
            group = ", ".join(map(str, np.argwhere(counts <= 0)[0]))
            has = "has" if owner == "client" else "does not have"
            raise SettingError(
                f"{who} {has} an example of group {group}, which {label} compares; drop the group or add data"
            )
    if not np.isfinite(float(value)):
        raise SettingError(f"{label} is not a number over all data at the starting parameters; check its functions")


def _pooled(quantity: Any, params: Any, examples: Any, present: Any) -> Any:
    """The sums over everybody."""
    each = jax.vmap(quantity.sums, (None, 0))(params, examples)
    return jax.tree.map(lambda a: jnp.tensordot(present, a.astype(jnp.float32), 1), each)


@functools.partial(whole_program, light=lambda _, params, examples, __: little(params, examples))
def _over_all(quantity: Any, params: Any, examples: Any, present: Any) -> Any:
    """Over everybody the counts that must not be zero, if it has some, and the value."""
    total = _pooled(quantity, params, examples, present)
    return None if quantity.members is None else quantity.members(total), quantity.measured(total)


def _select(where: Callable[[Any], Any] | None, examples: Any, label: str) -> np.ndarray:
    """``where`` on every example, as booleans."""
    if where is None:
        return np.ones((), bool)
    chosen = _chosen(jax.tree_util.Partial(where), examples)
    shape = getattr(chosen, "shape", None)
    if shape is None or len(shape) != 1:
        got = f"a {type(chosen).__name__}" if shape is None else f"shape {shape[1:]}"
        raise SettingError(f"{label}: where must return one truth value per example, but it returned {got}")
    return np.asarray(chosen, bool)


@functools.partial(whole_program, light=lambda *_: True)
def _chosen(where: Callable[[Any], Any], examples: Any) -> Any:
    return jax.vmap(where)(examples)


def check_optimizer(owner: str, optimizer: Any) -> None:
    """Refuse what is no optimizer of optax, or one that needs more than a mean update to take a step."""
    if getattr(optimizer, "_fields", None) != ("init", "update"):
        also = "; of optax.MultiSteps take gradient_transformation()" if hasattr(optimizer, "update") else ""
        known = "it must be an optimizer, such as optax.adam(0.01)"
        raise SettingError(f"{owner}: server={optimizer!r}, but {known}{also}")
    w = jnp.zeros(2)
    try:
        state = optimizer.init(w)
        jax.eval_shape(optimizer.update, w, state, w)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise SettingError(f"{owner}: server: this optimizer cannot step along a mean update ({what})") from error
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        raise SettingError(f"{owner}: server: this optimizer keeps a random key, which no checkpoint can; take another")
