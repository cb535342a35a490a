"""Between the user's parameters, any pytree, and the one flat float32 vector that the algorithm moves."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base import native
from fedsgm.base.errors import SettingError

LARGE = 2**12  # entries in arrays of two axes and more: work on these, and not on the vector, is what takes the time


def start_of(params: Any, seed: int) -> Any:
    """Where the run of this seed starts: from ``params``, or from what they make of the seed if they are a function."""
    return params(seed) if is_function(params) else params


def is_function(params: Any) -> bool:
    """A pytree of arrays that can be called besides, such as a module, is none."""
    return callable(params) and jax.tree_util.all_leaves([params])


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where each array of a pytree of parameters stands in the flat vector. Hashable: part of the program."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, params: Any) -> Layout:
        """The layout of these parameters, which must be finite floating-point arrays."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(params)
        if not sum(np.size(leaf) for _, leaf in leaves):
            raise SettingError("params: there is no array in it, so there is nothing to learn")
        for path, leaf in leaves:
            name = "params" + jax.tree_util.keystr(path)
            kind = np.asarray(leaf)
            if not jnp.issubdtype(kind.dtype, jnp.floating):
                raise SettingError(f"{name} has type {kind.dtype}, but parameters must be floating-point arrays")
            if not np.isfinite(kind.astype(np.float32)).all():
                raise SettingError(f"{name} has a NaN or an infinite entry; start from finite parameters")
        return cls(structure, tuple(np.shape(leaf) for _, leaf in leaves))

    @property
    def size(self) -> int:
        """d, the number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def matrices(self) -> int:
        """How many of the parameters are in arrays of two axes and more."""
        return sum(math.prod(shape) for shape in self.shapes if len(shape) > 1)

    def flatten(self, params: Any) -> Any:
        """One flat float32 vector; NumPy in, NumPy out."""
        leaves = self.structure.flatten_up_to(params)
        xp: Any = np if all(isinstance(leaf, (np.ndarray, float)) for leaf in leaves) else jnp
        parts = [xp.ravel(leaf).astype(np.float32) for leaf in map(xp.asarray, leaves)]
        return np.concatenate(parts) if xp is np else native.joined(parts)

    def unflatten(self, vector: Any) -> Any:
        """The pytree again; leading axes of ``vector`` are kept in front of every array."""
        leaves, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            leaves.append(vector[..., start : start + size].reshape((*vector.shape[:-1], *shape)))
            start += size
        return jax.tree.unflatten(self.structure, leaves)

    def split(self, params: Any) -> list[Any]:
        """What steps are taken on: every array of a large model, whose vector would be slow to put together in each of
        them, or else the vector, since many small arrays would be slow.
        """
        return self.structure.flatten_up_to(params) if self.matrices >= LARGE else [self.flatten(params)]

    def joined(self, parts: list[Any]) -> Any:
        """The pytree again."""
        return jax.tree.unflatten(self.structure, parts) if self.matrices >= LARGE else self.unflatten(parts[0])

    def apart(self, vector: Any) -> list[Any]:
        """What :meth:`split` gives, of the vector."""
        return self.split(self.unflatten(vector))

    def together(self, parts: list[Any]) -> Any:
        """The vector again."""
        return self.flatten(self.joined(parts))

    def rows(self, params: Any) -> np.ndarray:
        """[k, d] in float64, of parameters with a leading axis of k, or of one without."""
        leaves = self.structure.flatten_up_to(params)
        parts = [np.reshape(leaf, (-1, math.prod(shape))) for leaf, shape in zip(leaves, self.shapes, strict=True)]
        return np.concatenate(parts, axis=1).astype(np.float64)


def starts_of(params: Any, seeds: list[int]) -> list[Any]:
    """Every seed's first parameters."""
    if not is_function(params):
        return [params] * len(seeds)
    starts = [start_of(params, seed) for seed in seeds]
    for seed, start in zip(seeds, starts, strict=True):
        if Layout.of(start) != Layout.of(starts[0]):
            raise SettingError(f"params: those of seed {seed} have another form than those of seed {seeds[0]}")
    return starts
