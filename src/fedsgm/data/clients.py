"""Clients of different sizes, and the ways to deal examples out to them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.showing import table
from fedsgm.base.structs import LARGEST_SEED, check_count, check_number


@dataclasses.dataclass(frozen=True, eq=False)
class Clients:
    """All clients' examples, one client's after another's: arrays of shape [examples, ...], and each client's count.

    >>> clients = Clients.from_list([{"x": np.zeros((3, 2))}, {"x": np.ones((5, 2))}])
    >>> len(clients), clients.counts.tolist(), clients[1]["x"].shape
    (2, [3, 5], (5, 2))
    """

    examples: Any
    counts: np.ndarray

    def __post_init__(self) -> None:
        total = length(self.examples, "Clients")
        if total != self.counts.sum():
            raise SettingError(f"Clients: there are {total} examples, but the counts add up to {self.counts.sum()}")

    def __repr__(self) -> str:
        told = self._told()
        return f"Clients({told['clients']} clients, {told['examples']} examples, {told['each']} each: {told['of']})"

    def _repr_html_(self) -> str:
        return table("Clients", [[name, value] for name, value in self._told().items()])

    def _told(self) -> dict[str, str]:
        low, high = int(self.counts.min()), self.longest
        leaves = jax.tree_util.tree_flatten_with_path(self.examples)[0]
        of = [
            f"{jax.tree_util.keystr(path, simple=True, separator='.') or 'array'} {a.dtype}{list(a.shape[1:])}"
            for path, a in leaves
        ]
        each = f"{low}" if low == high else f"{low} to {high}"
        return {"clients": f"{len(self)}", "examples": f"{self.counts.sum()}", "each": each, "of": ", ".join(of)}

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, client: int) -> Any:
        """One client's own examples."""
        end = self._ends[client]
        return jax.tree.map(lambda a: a[end - self.counts[client] : end], self.examples)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.counts)

    @property
    def longest(self) -> int:
        return int(self.counts.max())

    @property
    def owners(self) -> np.ndarray:
        """The client of each example."""
        return np.repeat(np.arange(len(self)), self.counts)

    @classmethod
    def from_list(cls, clients: Sequence[Any]) -> Clients:
        """From data that is already apart: one pytree of arrays per client, each with the examples first."""
        arrays = [jax.tree.map(np.asarray, client) for client in clients]
        for j, client in enumerate(arrays):
            same_form(arrays[0], client, f"client {j}")
        counts = _counts([length(client, f"client {j}") for j, client in enumerate(arrays)])
        for j, client in enumerate(arrays):
            check_finite(client, f"client {j}")
        return cls(jax.tree.map(lambda *leaves: np.concatenate(leaves), *arrays), counts)

    @classmethod
    def from_batches(cls, batches: Iterable[Mapping[str, Any]], key: str) -> Clients:
        """From blocks of rows, such as a generator reads: a client for each value of column ``key``, in sorted order.

        A block has arrays by name, one row an example. A million clients are as fast as their rows.

        >>> import fedsgm as fs
        >>> blocks = ({"site": np.arange(3) % 2, "x": np.float32([i, i, i])} for i in range(2))
        >>> fs.Clients.from_batches(blocks, key="site")[1]
        {'x': array([0., 1.], dtype=float32)}
        """
        parts = [{name: np.asarray(column) for name, column in batch.items()} for batch in batches]
        if not parts:
            raise SettingError("Clients: there are no batches; there must be at least one with rows")
        for i, part in enumerate(parts):
            if key not in part:
                raise SettingError(f"Clients: batch {i} has no column {key!r}; it has {', '.join(map(repr, part))}")
            same_form(parts[0], part, f"batch {i}", "batch 0")
            length(part, f"batch {i}")
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        keys = columns.pop(key)
        check_finite(columns, "the batches")
        if not (keys[1:] >= keys[:-1]).all():
            order = np.argsort(keys, kind="stable")
            keys, columns = keys[order], {name: column[order] for name, column in columns.items()}
        first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
        return cls(columns, np.diff(first, append=len(keys)))

    @classmethod
    def from_parquet(cls, path: str | Path, key: str, columns: Sequence[str] | None = None) -> Clients:
        """From a Parquet file, or a folder of such: a client for each value of the column ``key``, in sorted order.

        All ``columns`` but that one, unless told, are the examples' arrays; a list of a fixed size is a row of one.
        """
        from pyarrow import dataset

        try:
            source = dataset.dataset(path, format="parquet")
            names = source.schema.names if columns is None else [key, *columns]
            batches = [{name: _array(batch[name], name) for name in names} for batch in source.to_batches(names)]
        except (OSError, ValueError, KeyError) as error:
            raise SettingError(f"{path}: {' '.join(str(error).split())}") from error
        return cls.from_batches((batch for batch in batches if len(batch[key])), key)

    @classmethod
    def dealt(cls, examples: Any, parts: Sequence[np.ndarray]) -> Clients:
        """Of a pytree of arrays, examples first, the examples with these indices for each client."""
        counts, order = _counts([len(rows) for rows in parts]), np.concatenate(parts)
        return cls(jax.tree.map(lambda a: a[order], examples), counts)

    def together(self) -> Clients:
        """All examples with one client."""
        return Clients(self.examples, np.array([self.counts.sum()]))


def _counts(given: Sequence[int]) -> np.ndarray:
    if not len(given):
        raise SettingError("Clients: the list is empty; there must be at least one client")
    counts = np.array(given)
    if not counts.all():
        raise SettingError(f"client {int(np.argmin(counts > 0))} has no examples; leave it out or give it some")
    return counts


def _array(column: Any, name: str) -> np.ndarray:
    """A column of Arrow as an array, one row an example."""
    if column.null_count:
        raise ValueError(f"the column {name!r} has missing values; fill or drop them")
    flat = column
    while hasattr(flat.type, "list_size"):
        flat = flat.flatten()
    return flat.to_numpy(zero_copy_only=False).reshape(len(column), *[-1] * (flat is not column))


def rows_of_each(owner: np.ndarray) -> list[np.ndarray]:
    """The indices of each number from 0 to the largest, in ascending order."""
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])


Scheme = Callable[[Any, int, np.random.Generator], list[np.ndarray]]
"""A scheme gives each client the indices of its examples."""


def split(examples: Any, *, clients: int | None = None, scheme: Scheme | None = None, seed: int = 0) -> Clients:
    """Deal a pytree of arrays, examples first, out to clients by a scheme (``iid()`` unless told).

    >>> import fedsgm as fs
    >>> clients = fs.split({"a": np.arange(10.0)}, clients=3)
    >>> len(clients), clients.counts.tolist()
    (3, [4, 3, 3])
    """
    scheme = scheme or iid()
    check_count("split", "seed", seed, least=0, most=LARGEST_SEED)
    examples = jax.tree.map(np.asarray, examples)
    total = length(examples, "the data")
    check_finite(examples, "the data")
    if clients is None and not isinstance(scheme, by):
        raise SettingError("split: say how many clients there are, split(..., clients=20)")
    if clients is not None:
        check_count("split", "clients", clients)
        if clients > total:
            raise SettingError(f"split: clients={clients}, but there are only {total} examples")
    parts = scheme(examples, clients or 0, np.random.default_rng(seed))
    return Clients.dealt(examples, parts)


@dataclasses.dataclass(frozen=True)
class iid:
    """Equal shares at random; with ``stratify`` every client gets the same mix of that column's values.

    >>> clients = split({"y": np.arange(12) % 2}, clients=3, scheme=iid(stratify="y"))
    >>> [int(clients[j]["y"].sum()) for j in range(3)]
    [2, 2, 2]
    """

    stratify: str | None = None

    def __call__(self, examples: Any, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        order = rng.permutation(length(examples, "the data"))
        if self.stratify is not None:
            order = order[np.argsort(_column(examples, self.stratify)[order], kind="stable")]
        return [np.sort(order[j::clients]) for j in range(clients)]


@dataclasses.dataclass(frozen=True)
class dirichlet:
    r"""Unequal mixes: each value of column ``by`` is shared out in proportions from Dirichlet(alpha).

    .. math:: (p_1, \dots, p_n) \sim \operatorname{Dirichlet}(\alpha, \dots, \alpha) \text{ for each value}

    A small alpha makes clients very different. A draw that leaves a client with fewer than ``least``
    examples is drawn again. After Hsu, Qi and Brown, *Measuring the Effects of Non-Identical Data* (2019).

    >>> split({"y": np.arange(200) % 2}, clients=4, scheme=dirichlet(0.5, by="y")).counts.sum()
    np.int64(200)
    """

    alpha: float
    by: str
    least: int = 1

    def __post_init__(self) -> None:
        check_number("dirichlet", "alpha", self.alpha, above=0)
        check_count("dirichlet", "least", self.least)

    def __call__(self, examples: Any, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        column = _column(examples, self.by)
        for _ in range(1000):
            parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
            for value in np.unique(column):
                rows = rng.permutation(np.flatnonzero(column == value))
                shares = np.cumsum(rng.dirichlet(np.full(clients, self.alpha)))[:-1]
                for part, piece in zip(parts, np.split(rows, (shares * len(rows)).astype(int)), strict=True):
                    part.append(piece)
            dealt = [np.sort(np.concatenate(part)) for part in parts]
            if min(map(len, dealt)) >= self.least:
                return dealt
        raise SettingError(
            f"dirichlet: 1000 draws with alpha={self.alpha:g} left one of {clients} clients with fewer than "
            f"{self.least} examples; take a larger alpha or fewer clients"
        )


@dataclasses.dataclass(frozen=True)
class by:
    """One client for each value of a column, in sorted order.

    >>> split({"site": np.array(["b", "a", "b"])}, scheme=by("site")).counts
    array([1, 2])
    """

    column: str

    def __call__(self, examples: Any, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        values, owner = np.unique(_column(examples, self.column), return_inverse=True)
        if clients and clients != len(values):
            raise SettingError(
                f"split: clients={clients}, but column {self.column!r} has {len(values)} values; leave clients out"
            )
        return rows_of_each(owner)


def check_finite(examples: Any, owner: str) -> None:
    """Refuse NaN and infinity in data, by the name of the array and the row."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(examples):
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            row = int(np.argwhere(~np.isfinite(leaf))[0][0])
            raise SettingError(
                f"{owner}: {_name(path)} has a NaN or an infinite value in row {row}; fill or drop it before the split"
            )


def _name(path: Any) -> str:
    return f"the array {jax.tree_util.keystr(path)}" if path else "the array"


def _column(examples: Any, name: str) -> np.ndarray:
    if not isinstance(examples, dict) or name not in examples:
        known = ", ".join(map(repr, examples)) if isinstance(examples, dict) else "no named columns"
        raise SettingError(f"split: there is no column {name!r}; the data has {known}")
    if np.ndim(examples[name]) != 1:
        raise SettingError(
            f"split: column {name!r} has shape {np.shape(examples[name])}, but it must have one value per example"
        )
    return np.asarray(examples[name])


def length(examples: Any, owner: str) -> int:
    leaves = jax.tree_util.tree_leaves_with_path(examples)
    if not leaves or any(np.ndim(leaf) == 0 for _, leaf in leaves):
        raise SettingError(f"{owner}: examples must be arrays whose first axis runs over the examples")
    sizes = {len(leaf) for _, leaf in leaves}
    if len(sizes) > 1:
        told = ", ".join(f"{jax.tree_util.keystr(path)} has {len(leaf)}" for path, leaf in leaves)
        raise SettingError(f"{owner}: every array must have the same number of examples, but {told}")
    return sizes.pop()


def same_form(first: Any, other: Any, owner: str, like: str = "client 0") -> None:
    forms: Any = [jax.tree.structure(tree) for tree in (first, other)]
    if forms[0] != forms[1]:
        raise SettingError(f"{owner}: its arrays are named or nested differently from {like}'s")
    pairs = zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(other), strict=True)
    for (path, a), b in pairs:
        if a.shape[1:] != b.shape[1:]:
            raise SettingError(f"{owner}: {_name(path)} has shape {b.shape[1:]} per example, {like} has {a.shape[1:]}")
