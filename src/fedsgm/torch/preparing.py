"""Before anything runs: whether the functions fit the data, and what every example weighs in each quantity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fedsgm.base.errors import SettingError
from fedsgm.core.checks import weights_in
from fedsgm.core.each_client import EachClient
from fedsgm.core.problem import Problem as Stated
from fedsgm.core.quantities import ByRows, Mean, Statistic
from fedsgm.data.clients import check_finite
from fedsgm.torch.bridge import tensors
from fedsgm.torch.examples import Items, Rows, Weighed, chunks, rows_of
from fedsgm.torch.worker import Worker

_FEW = 3  # examples that functions are tried on


def prepare(
    stated: Stated, worker: Worker, clients: Any, w: np.ndarray, *, owner: str = "client", everybody: bool = True
) -> list[Weighed]:
    """Every client's examples, weighed; as :meth:`fedsgm.Problem.prepare` does, and refuses, of functions in JAX."""
    rows = rows_of(clients, worker.device, owner)
    labels = ("the objective", *(f"the constraint {name!r}" for name in stated.names))
    quantities = list(zip(stated.quantities, labels, strict=True))
    few = rows[0].batch(slice(0, min(_FEW, rows[0].count)))
    with worker.trying(w):
        for quantity, label in quantities:
            _check_function(quantity.base, label, worker.module, few)
    counts = np.array([each.count for each in rows])
    owners = np.repeat(np.arange(len(rows)), counts)
    given, chosen = _looked_at(stated, [label for _, label in quantities], rows, owner)
    weights = np.stack(
        [
            weights_in(quantity, label, given * chosen[i], owners, owner, everybody)
            if isinstance(quantity.base, Mean)
            else given.astype(np.float32)
            for i, (quantity, label) in enumerate(quantities)
        ]
    )
    parts = np.split(weights, np.cumsum(counts)[:-1], axis=1)
    by_rows = [isinstance(quantity, ByRows) for quantity in stated.quantities]
    sizes = [np.where(by_rows, own.sum(axis=1), own.any(axis=1)).astype(np.float32) for own in parts]
    found = [
        Weighed(each, torch.tensor(own, device=worker.device), size)
        for each, own, size in zip(rows, parts, sizes, strict=True)
    ]
    if everybody:
        for i, (quantity, label) in enumerate(quantities):
            if isinstance(quantity.base, Statistic):
                _check_defined(quantity, label, [worker.sums(w, data, [i], buffers={})[0] for data in found], owner)
    return found


def _looked_at(
    stated: Stated, labels: Sequence[str], rows: Sequence[Rows], owner: str
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """What every example weighs, 1 unless told, and of each mean whether it is of it: read once, if anything asks."""
    wheres = {i: q.base.where for i, q in enumerate(stated.quantities) if isinstance(q.base, Mean)}
    total = sum(each.count for each in rows)
    chosen: dict[int, Any] = {i: np.ones(total) for i in wheres}
    if stated.weight is None and not any(wheres.values()):
        return np.ones(total), chosen
    given = np.ones(total)
    at = 0
    for j, each in enumerate(rows):
        who = f"{owner} {j}" if owner == "client" else owner
        for part in chunks(each):
            batch, here = each.batch(part), slice(at, at + part.stop - part.start)
            if isinstance(each, Items):
                check_finite(jax.tree.map(lambda tensor: tensor.cpu().numpy(), batch), who)
            for i, where in wheres.items():
                if where is not None:
                    chosen[i][here] = _one_each(where(batch), part, f"{labels[i]}: where", "truth value")
            if stated.weight is not None:
                given[here] = _one_each(stated.weight(batch), part, "Problem: weight", "number")
            at = here.stop
        own = given[at - each.count : at]
        wrong = ~(np.isfinite(own) & (own >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SettingError(f"{who}: example {row} weighs {own[row]:g}, but a weight is 0 or more")
    return given, chosen


def _one_each(out: Any, part: slice, what: str, kind: str) -> np.ndarray:
    count = part.stop - part.start
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != (count,):
        got = f"shape {tuple(out.shape)}" if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise SettingError(f"{what} must return one {kind} per example, shape ({count},), but it returned {got}")
    return out.detach().cpu().numpy()


def _check_function(base: Any, label: str, module: torch.nn.Module, batch: Any) -> None:
    """One number for each example, or for a statistic trees of such, that the parameters have a part in."""
    function = base.fn if isinstance(base, Mean) else base.sums
    count = len(jax.tree.leaves(batch)[0])
    try:
        out = function(module, batch)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise SettingError(f"{label}: its function fails on the first examples ({what})") from error
    leaves: list[Any] = [out] if isinstance(base, Mean) else jax.tree.leaves(out)
    for leaf in leaves:
        fits = isinstance(leaf, torch.Tensor) and leaf.ndim > 0 and len(leaf) == count
        if not fits or (isinstance(base, Mean) and (leaf.ndim > 1 or not leaf.is_floating_point())):
            got = f"a {type(leaf).__name__}"
            if isinstance(leaf, torch.Tensor):
                got = f"shape {tuple(leaf.shape)} of {str(leaf.dtype).removeprefix('torch.')}"
            asked = f"one floating-point number per example, shape ({count},)"
            more = "" if isinstance(base, Mean) else ", or more after that axis"
            hint = "; losses of torch do with reduction='none'" if getattr(leaf, "ndim", 1) == 0 else ""
            raise SettingError(f"{label}: its function must return {asked}{more}, but it returned {got}{hint}")
    if not any(leaf.requires_grad for leaf in leaves):
        raise SettingError(
            f"{label}: what its function returns is detached from the parameters, so it has no gradient; leave out "
            "detach(), item(), numpy() and no_grad()"
        )
    if isinstance(base, Statistic):
        _check_values(base, label, jax.tree.map(lambda a: a.float().sum(0), out))


def _check_values(base: Statistic, label: str, total: Any) -> None:
    """What the functions of a total give, called as torch's, so that what is wrong with them is said by it."""
    expected = () if base.parts == 1 else (base.parts,)
    for name in ("value", "switch_on"):
        function = getattr(base, name)
        if function is None:
            continue
        try:
            out = function.__wrapped__(total)
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise SettingError(f"{label}: its {name} fails on a total ({what})") from error
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != expected:
            got = f"shape {tuple(out.shape)}" if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
            asked = "one number" if base.parts == 1 else f"{base.parts} numbers, as parts= says,"
            raise SettingError(f"{label}: its {name} must return {asked} for the total, but it returned {got}")


def _check_defined(quantity: Any, label: str, sums: list[Any], owner: str) -> None:
    """Over everybody the value is defined where the run starts."""
    base, total = quantity.base, jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *sums)
    if base.members is not None:
        counts = base.members(tensors(total)).numpy()
        if not (counts > 0).all():
            group = ", ".join(map(str, np.argwhere(counts <= 0)[0]))
            has = "no client has" if owner == "client" else f"{owner} does not have"
            raise SettingError(f"{has} an example of group {group}, which {label} compares; drop the group or add data")
    if not np.isfinite(float(base.measured(total))):
        raise SettingError(f"{label} is not a number over all data at the starting parameters; check its functions")
    if isinstance(quantity, EachClient) and not any(float(quantity.sent(own, jnp.float32(1))[1]) for own in sums):
        raise SettingError(f"{label} has no value on any client alone; leave each_client out, or split another way")
