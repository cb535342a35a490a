"""Participants side by side in torch: one forward and one backward pass for all of them, by ``torch.func``.

Of small models the passes of one client after another are mostly overhead: side by side ten clients take about half of
the time (benchmarks/torch_loop.py).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from fedsgm.torch.examples import Tensors, Weighed
from fedsgm.torch.worker import Worker

_NUMBERS, _EXAMPLES = 2**24, 2**13  # of vectors, and examples of a step, that clients side by side have at most
_AGREE = 1e-3  # how far, of its length, a step side by side may be from the same step of one client alone


class Together:
    """The walks of clients whose examples are tensors, as many in every step."""

    def __init__(self, worker: Worker, data: Sequence[Weighed]) -> None:
        self._worker, self._applied = worker, _Applied(worker.module)
        counts = np.array([each.rows.count for each in data])
        self._counts = torch.tensor(counts, device=worker.device)
        self._starts = torch.tensor(np.cumsum(counts) - counts, device=worker.device)
        trees = [each.rows.tree for each in data if isinstance(each.rows, Tensors)]
        self._rows = jax.tree.map(lambda *leaves: torch.cat(leaves), *trees)
        self._weights = torch.cat([each.weights for each in data], dim=1)

    @classmethod
    def of(cls, worker: Worker, data: Sequence[Weighed], w: np.ndarray, drawn: bool) -> Together | None:
        """None where clients have to walk one after another.

        That is so of data sets that are read an example at a time, of clients with different numbers of examples if no
        batches are drawn, of buffers, of mixed precision, and of modules that ``torch.func`` cannot run or that draw.
        """
        alike = drawn or len({each.rows.count for each in data}) == 1
        if len(data) < 2 or not alike or not worker.plain or not all(isinstance(e.rows, Tensors) for e in data):
            return None
        made = cls(worker, data)
        return made if made._agrees(w, data) else None

    def walk(
        self, w: np.ndarray, who: np.ndarray, slopes: Any, steps: int | np.ndarray, step_size: float, shares: np.ndarray
    ) -> np.ndarray:
        """Every one's sum of directions, [client, d]; slopes, steps that were drawn, and shares are stacked."""
        batch = int(self._counts[0]) if isinstance(steps, int) else steps.shape[-1]
        size = max(1, min(_NUMBERS // len(w), _EXAMPLES // batch))
        parts = [slice(at, at + size) for at in range(0, len(who), size)]
        self._worker.module.train()
        return np.concatenate(
            [
                self._walked(
                    *(w, who[part], jax.tree.map(lambda a, part=part: a[part], slopes)),
                    *(steps if isinstance(steps, int) else steps[part], step_size, shares[part]),
                )
                for part in parts
            ]
        )

    def _walked(
        self, w: np.ndarray, who: np.ndarray, slopes: Any, steps: int | np.ndarray, step_size: float, shares: np.ndarray
    ) -> np.ndarray:
        functions, each = self._followed(slopes)
        start = self._tensor(w)
        total = start.new_zeros(len(who), len(start))
        if not functions:
            return total.cpu().numpy()
        starts, counts = self._starts[self._tensor(who)], self._counts[self._tensor(who)]
        lengths = step_size / self._tensor(shares)[:, None]
        drawn = None if isinstance(steps, int) else self._tensor(steps)
        gradient = vmap(grad(lambda at, batch, along: self._sum(functions, at, batch, along)))
        for tau in range(steps if isinstance(steps, int) else steps.shape[1]):
            if tau == 0 or drawn is not None:
                own = torch.arange(int(counts[0]), device=start.device)[None] if drawn is None else drawn[:, tau]
                index = starts[:, None] + own
                batch = jax.tree.map(lambda a, index=index: a[index], self._rows)
                times = 1.0 if drawn is None else counts[:, None] / drawn.shape[-1]
                along = [self._along(sharing, leaves, index, times) for sharing, leaves in each]
            total += gradient(start - total * lengths, batch, along)
        return total.cpu().numpy()

    def _followed(self, slopes: Any) -> tuple[list[Any], list[tuple[list[int], list[Any]]]]:
        """The functions of which anything is followed, and of each its quantities and their slopes, leaf by leaf."""
        which = [i for i in range(len(slopes)) if any(np.any(slope) for slope in jax.tree.leaves(slopes[i]))]
        sharing = self._worker.sharing(which)
        leaves = [list(zip(*(jax.tree.leaves(slopes[i]) for i in own), strict=True)) for own in sharing.values()]
        return list(sharing), list(zip(sharing.values(), leaves, strict=True))

    def _along(self, sharing: list[int], leaves: Any, index: torch.Tensor, times: Any) -> list[torch.Tensor]:
        """How much of every number of every example is followed: [client, example, ...] of each leaf."""
        weights = self._weights[sharing][:, index] * times
        return [torch.einsum("qcb,qc...->cb...", weights, self._tensor(np.stack(own))) for own in leaves]

    def _sum(self, functions: list[Any], at: torch.Tensor, batch: Any, along: list[list[torch.Tensor]]) -> torch.Tensor:
        """What one client's step descends, of its vector."""
        named = {f"module.{name}": at[place].view(shape) for name, (place, shape) in self._worker.places.items()}
        total = at.new_zeros(())
        for function, slopes in zip(functions, along, strict=True):
            outputs = functional_call(self._applied, named, (function, batch))
            for leaf, slope in zip(jax.tree.leaves(outputs), slopes, strict=True):
                total = total + (leaf * slope).sum()
        return total

    def _agrees(self, w: np.ndarray, data: Sequence[Weighed]) -> bool:
        """Whether a step of two clients side by side is that of each alone."""
        batch = min(3, *(each.rows.count for each in data))
        full = len({each.rows.count for each in data}) == 1
        steps: Any = 1 if full else np.tile(np.arange(batch), (2, 1, 1))
        every = range(len(self._worker.quantities))
        ones = jax.tree.map(np.ones_like, self._worker.sums(w, data[0], every, buffers={}))
        try:
            two = jax.tree.map(lambda a: np.stack([a, a]), ones)
            side_by_side = self.walk(w, np.arange(2), two, steps, 1.0, np.ones(2, np.float32))
        except Exception:  # whatever torch.func cannot do; what is wrong with the functions themselves was said before
            return False
        walked = functools.partial(self._worker.walk, w, step_size=1.0, share=1.0, buffers={}, seed=0)
        alone = np.stack([walked(data[j], ones, steps=1 if full else steps[j])[0] for j in range(2)])
        apart = np.linalg.norm(side_by_side - alone, axis=1)
        return bool((apart <= _AGREE * np.linalg.norm(alone, axis=1)).all())

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.tensor(np.array(array), device=self._worker.device)


class _Applied(torch.nn.Module):
    """A module whose call is that of a function of another, so that this other's parameters can be told."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Any, batch: Any) -> Any:
        return function(self.module, batch)
