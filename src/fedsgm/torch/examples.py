"""Clients' examples as torch's functions get them: tensors, or data sets that are read an example at a time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from fedsgm.base.errors import SettingError
from fedsgm.data.clients import Clients, check_finite, length, same_form

CHUNK = 1024  # examples that are measured at a time

Index = torch.Tensor | slice
Steps = int | torch.Tensor
"""So many steps with all examples, or for each those that were drawn."""


@dataclasses.dataclass(frozen=True)
class Tensors:
    """A pytree of tensors whose first axis runs over the examples."""

    tree: Any
    count: int

    def batch(self, index: Index) -> Any:
        return jax.tree.map(lambda tensor: tensor[index], self.tree)

    def batches(self, steps: Steps) -> Iterator[Any]:
        """One for each step; several steps' are gathered together, which costs less."""
        if isinstance(steps, int):
            yield from itertools.repeat(self.tree, steps)
            return
        for some in steps.split(max(1, CHUNK // steps.shape[1])):
            leaves, form = jax.tree.flatten(self.batch(some))
            yield from (
                jax.tree.unflatten(form, each) for each in zip(*(leaf.unbind() for leaf in leaves), strict=True)
            )


@dataclasses.dataclass(frozen=True)
class Items:
    """A data set that is read, and transformed, an example at a time."""

    dataset: Any
    collate: Callable[[list[Any]], Any]
    device: torch.device
    count: int

    def batch(self, index: Index) -> Any:
        chosen = range(self.count)[index] if isinstance(index, slice) else index.tolist()
        return on_device(self.collate([self.dataset[i] for i in chosen]), self.device)

    def batches(self, steps: Steps) -> Iterator[Any]:
        """One for each step, read when its turn comes."""
        return map(self.batch, [slice(0, self.count)] * steps if isinstance(steps, int) else steps)


Rows = Tensors | Items


@dataclasses.dataclass(frozen=True)
class Weighed:
    """One client's examples, what each weighs in every quantity, and what all weigh, as the problem asks for it."""

    rows: Rows
    weights: torch.Tensor  # [quantities, examples]
    sizes: np.ndarray  # [quantities]


def chunks(rows: Rows) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, rows.count)) for start in range(0, rows.count, CHUNK))


def rows_of(clients: Any, device: torch.device, owner: str = "client") -> list[Rows]:
    """Every client's, from :class:`Clients` or a list: of pytrees of arrays, of data sets, or of their loaders."""
    if isinstance(clients, Clients):
        whole, ends = on_device(clients.examples, device), np.cumsum(clients.counts)
        bounds = zip(ends - clients.counts, ends, strict=True)
        return [Tensors(jax.tree.map(lambda a, s=s, e=e: a[s:e], whole), int(e - s)) for s, e in bounds]
    if not isinstance(clients, Sequence) or isinstance(clients, str) or not len(clients):
        kind = type(clients).__name__
        raise SettingError(f"clients: a {kind}, but it must be Clients, or a list with a data set for each client")
    found = [_rows(one, device, f"{owner} {j}" if owner == "client" else owner) for j, one in enumerate(clients)]
    first = found[0]
    for j, other in enumerate(found):
        if isinstance(first, Tensors) and isinstance(other, Tensors):
            same_form(first.tree, other.tree, f"{owner} {j}")
    return found


def _rows(given: Any, device: torch.device, owner: str) -> Rows:
    dataset, collate = (given.dataset, given.collate_fn) if isinstance(given, DataLoader) else (given, default_collate)
    if type(dataset) is TensorDataset and collate is default_collate:  # tensors already, with nothing done to them
        dataset = list(dataset.tensors)
    if isinstance(dataset, IterableDataset):
        raise SettingError(
            f"{owner}: an IterableDataset cannot be drawn from; give a data set with lengths and indices"
        )
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and _is_leaf(dataset):
        if not len(dataset):
            raise SettingError(f"{owner} has no examples; leave it out or give it some")
        return Items(dataset, collate, device, len(dataset))
    tree = jax.tree.map(lambda a: a if isinstance(a, torch.Tensor) else np.asarray(a), dataset)
    count = length(tree, owner)
    if not count:
        raise SettingError(f"{owner} has no examples; leave it out or give it some")
    moved = on_device(tree, device)
    check_finite(jax.tree.map(lambda tensor: tensor.cpu().numpy(), moved), owner)
    return Tensors(moved, count)


def _is_leaf(thing: Any) -> bool:
    """No pytree of arrays, and no array."""
    return jax.tree_util.all_leaves([thing]) and not isinstance(thing, (np.ndarray, jax.Array, torch.Tensor))


def on_device(tree: Any, device: torch.device) -> Any:
    """Tensors there; floating-point numbers as float32, which parameters are, and whole ones as torch has labels."""

    def moved(a: Any) -> torch.Tensor:
        tensor = a if isinstance(a, torch.Tensor) else torch.from_numpy(np.array(a))
        whole = torch.int64 if tensor.dtype == torch.int32 else None
        return tensor.to(device, torch.float32 if tensor.is_floating_point() else whole)

    return jax.tree.map(moved, tree)
