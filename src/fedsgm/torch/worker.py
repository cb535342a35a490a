"""What a client computes in torch: weighted sums of a module's losses, and steps along their gradients.

The module's parameters are views of one flat vector, and their gradients of another: a step is an operation on vectors,
and nothing is copied on the way to a forward pass.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import torch
from fedsgm.base.layout import Layout
from fedsgm.core.quantities import Mean
from fedsgm.torch.bridge import arrays
from fedsgm.torch.examples import Weighed, chunks

Buffers = Mapping[str, np.ndarray]
"""What a client keeps of its own beside the parameters, by name."""

Slopes = Callable[[Any], Any]
"""How much of each sum is followed, of the sums; one that depends on them is asked again in every step."""


Output = tuple[torch.Tensor, list[int], Any]
"""Of one function: the weights of the quantities that share it, these quantities, and what it gave."""


class Worker:
    """A copy of a problem's module, for one client at a time; ``layout`` is that of the vector."""

    def __init__(self, problem: Any, layout: Layout) -> None:
        self.quantities, self.layout = problem.stated.quantities, layout
        self.device, self._autocast = torch.device(problem.device), problem.autocast is not None
        self.module = copy.deepcopy(problem.module).to(self.device)
        self._w = torch.zeros(layout.size, device=self.device)
        self._gradient = torch.zeros_like(self._w)
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        self._moves = torch.ones(layout.size, dtype=torch.bool, device=self.device)  # parameters: not averaged buffers
        places = layout.unflatten(np.arange(layout.size))
        for name, place in places.items():
            at = slice(int(place.min()), int(place.max()) + 1)
            tensors[name].data = self._w[at].view(place.shape)
            if isinstance(tensors[name], torch.nn.Parameter):
                tensors[name].grad = self._gradient[at].view(place.shape)
            else:
                self._moves[at] = False
        self._averages = bool((~self._moves).any())
        self._kept = problem.kept
        self._beside = {name: tensor for name, tensor in self.module.named_buffers() if name not in places}
        self._given = {name: tensor.clone() for name, tensor in self._beside.items()}

    @contextlib.contextmanager
    def trying(self, w: np.ndarray) -> Iterator[None]:
        """At this vector, as functions are measured, but with gradients."""
        with self._at(w, {}, 0), self._precision():
            self.module.eval()
            yield

    def sums(
        self,
        w: np.ndarray,
        data: Weighed,
        which: Sequence[int],
        *,
        buffers: Buffers,
        index: np.ndarray | None = None,
        seed: int = 0,
    ) -> list[Any]:
        """The weighted sums of these quantities, of all examples or of those drawn, as arrays."""
        total: list[Any] = []
        with self._at(w, buffers, seed), torch.no_grad():
            self.module.eval()
            for part in chunks(data.rows) if index is None else [index]:
                found, form = jax.tree.flatten(self._summed(self._outputs(data, part, which), which))
                total = [a + b for a, b in zip(total, found, strict=True)] if total else found
            return arrays(jax.tree.unflatten(form, total))

    def walk(
        self,
        w: np.ndarray,
        data: Weighed,
        slopes: Any | Slopes,
        *,
        steps: int | np.ndarray,
        step_size: float,
        share: float,
        buffers: Buffers,
        seed: int,
    ) -> tuple[np.ndarray, Buffers]:
        """So many local steps, or one for each batch that was drawn: the sum of their directions, and the buffers."""
        start = torch.tensor(np.array(w), device=self.device)
        total = torch.zeros_like(start)
        batches = [slice(0, data.rows.count)] * steps if isinstance(steps, int) else steps
        with self._at(w, buffers, seed):
            self.module.train()
            for tau, index in enumerate(batches):
                if tau:
                    at = start - step_size * total / share
                    self._w.copy_(torch.where(self._moves, at, self._w) if self._averages else at)
                self._gradient.zero_()
                self._descend(data, index, slopes)
                total += self._gradient
            if self._averages:  # the server's step along the mean of these is to the mean of the buffers
                total = torch.where(self._moves, total, share * (start - self._w) / step_size)
            kept = {name: self._beside[name].cpu().numpy().copy() for name in self._kept}
            return total.cpu().numpy(), kept

    def _descend(self, data: Weighed, index: Any, slopes: Any | Slopes) -> None:
        """Add the gradient of the sums, each times its slope."""
        which: Sequence[int] = range(len(self.quantities))
        if not callable(slopes):  # a function that nothing of is followed need not be called
            which = [i for i in which if any(np.any(slope) for slope in jax.tree.leaves(slopes[i]))]
        outputs = self._outputs(data, index, which)
        if callable(slopes):
            slopes = slopes(arrays(self._summed(outputs, which)))
        leaves, along = [], []
        for weights, sharing, out in outputs:
            each = zip(jax.tree.leaves(out), *(jax.tree.leaves(slopes[i]) for i in sharing), strict=True)
            for leaf, *own in each:
                if leaf.requires_grad:
                    slope = torch.tensor(np.stack(own), device=self.device)
                    leaves.append(leaf)
                    along.append(torch.tensordot(weights.T, slope, 1).to(leaf.dtype))
        if leaves:
            torch.autograd.backward(leaves, along)

    def _outputs(self, data: Weighed, index: Any, which: Sequence[int]) -> list[Output]:
        """What every function gives, once, whatever the number of quantities that share it."""
        at = index if isinstance(index, slice) else torch.tensor(np.array(index), device=self.device)
        batch, weights = data.rows.batch(at), data.weights[:, at]
        if not isinstance(index, slice):
            weights = weights * (data.rows.count / len(index))
        sharing: dict[Any, list[int]] = {}
        for i in which:
            base = self.quantities[i].base
            sharing.setdefault(base.fn if isinstance(base, Mean) else base.sums, []).append(i)
        with self._precision():
            called = [(own, function(self.module, batch)) for function, own in sharing.items()]
        return [(weights if len(own) == len(weights) else weights[own], own, out) for own, out in called]

    def _summed(self, outputs: list[Output], which: Sequence[int]) -> list[Any]:
        """The weighted sum of each quantity."""
        found: dict[int, Any] = {}
        for weights, sharing, out in outputs:
            totals = jax.tree.map(lambda a, weights=weights: torch.tensordot(weights, a.detach().float(), 1), out)
            found |= {i: jax.tree.map(lambda a, k=k: a[k], totals) for k, i in enumerate(sharing)}
        return [found[i] for i in which]

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else contextlib.nullcontext()

    @contextlib.contextmanager
    def _at(self, w: np.ndarray, buffers: Buffers, seed: int) -> Iterator[None]:
        """At this vector, with these buffers and torch's own draws by this seed."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            self._w.copy_(torch.from_numpy(np.array(w)))
            for name, tensor in self._beside.items():
                tensor.copy_(torch.from_numpy(np.array(buffers[name])) if name in buffers else self._given[name])
            yield
