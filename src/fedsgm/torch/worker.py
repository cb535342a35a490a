"""What a client computes in torch: weighted sums of a module's losses, and steps along their gradients.

The module's parameters are views of one flat vector, and their gradients of another: a step is an operation on vectors,
and nothing is copied on the way to a forward pass.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        self.places: dict[str, tuple[slice, tuple[int, ...]]] = {}
        for name, place in layout.unflatten(np.arange(layout.size)).items():
            at, shape = slice(int(place.min()), int(place.max()) + 1), place.shape
            self.places[name] = at, shape
            tensors[name].data = self._w[at].view(shape)
            if isinstance(tensors[name], torch.nn.Parameter):
                tensors[name].grad = self._gradient[at].view(shape)
            else:
                self._moves[at] = False
        self._averages = bool((~self._moves).any())
        self._kept = problem.kept
        self._beside = {name: tensor for name, tensor in self.module.named_buffers() if name not in self.places}
        self._given = {name: tensor.clone() for name, tensor in self._beside.items()}

    @property
    def plain(self) -> bool:
        """Whether a step is of parameters alone, in full precision: no buffer changes with it."""
        return not (self._averages or self._kept or self._autocast)

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
            for part in chunks(data.rows) if index is None else [self._tensor(index)]:
                outputs = self._called(data.rows.batch(part), self.sharing(which))
                found, form = jax.tree.flatten(self._summed(data, part, outputs, which))
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
        start = self._tensor(w)
        total = torch.zeros_like(start)
        index = steps if isinstance(steps, int) else self._tensor(steps)
        followed = None if callable(slopes) else self._followed(data, slopes, index)
        every = range(len(self.quantities))
        with self._at(w, buffers, seed):
            self.module.train()
            for tau, batch in enumerate(data.rows.batches(index)):
                if tau:
                    at = torch.sub(start, total, alpha=step_size / share)
                    self._w.copy_(torch.where(self._moves, at, self._w) if self._averages else at)
                self._gradient.zero_()
                if callable(slopes):
                    own: Any = slice(0, data.rows.count) if isinstance(index, int) else index[tau]
                    outputs = self._called(batch, self.sharing(every))
                    sums = arrays(self._summed(data, own, outputs, every))
                    self._pull(outputs, self._followed(data, slopes(sums), own), None)
                elif followed:
                    self._pull(self._called(batch, followed), followed, None if isinstance(index, int) else tau)
                total += self._gradient
            if self._averages:  # the server's step along the mean of these is to the mean of the buffers
                total = torch.where(self._moves, total, share * (start - self._w) / step_size)
            kept = {name: self._beside[name].cpu().numpy().copy() for name in self._kept}
            return total.cpu().numpy(), kept

    def sharing(self, which: Sequence[int]) -> dict[Any, list[int]]:
        """The functions of these quantities, and the quantities of each."""
        found: dict[Any, list[int]] = {}
        for i in which:
            base = self.quantities[i].base
            found.setdefault(base.fn if isinstance(base, Mean) else base.sums, []).append(i)
        return found

    def _followed(self, data: Weighed, slopes: Any, index: Any) -> dict[Any, list[torch.Tensor]]:
        """How much of every number of every example is followed, by function; not of those of which nothing is.

        Of all examples, or of those drawn, for one step or for several.
        """
        which = [i for i in range(len(slopes)) if any(np.any(slope) for slope in jax.tree.leaves(slopes[i]))]
        found = {}
        for function, sharing in self.sharing(which).items():
            each = zip(*(jax.tree.leaves(slopes[i]) for i in sharing), strict=True)
            weights = data.weights[sharing].T
            along = [torch.tensordot(weights, self._tensor(np.stack(own)), 1) for own in each]
            if isinstance(index, torch.Tensor):
                along = [self._times(data, index) * slope[index] for slope in along]
            found[function] = along
        return found

    def _called(self, batch: Any, functions: Iterable[Any]) -> dict[Any, Any]:
        """What every function gives, once, whatever the number of quantities that share it."""
        with self._precision():
            return {function: function(self.module, batch) for function in functions}

    def _pull(self, outputs: Any, followed: Mapping[Any, list[torch.Tensor]], step: int | None) -> None:
        """Add the gradient of what is followed, in this step where that is said for several."""
        leaves, along = [], []
        for function, slopes in followed.items():
            for leaf, slope in zip(jax.tree.leaves(outputs[function]), slopes, strict=True):
                if leaf.requires_grad:
                    leaves.append(leaf)
                    along.append((slope if step is None else slope[step]).to(leaf.dtype))
        if leaves:
            torch.autograd.backward(leaves, along)

    def _summed(self, data: Weighed, index: Any, outputs: Any, which: Sequence[int]) -> list[Any]:
        """The weighted sum of each quantity."""
        found: dict[int, Any] = {}
        weights = data.weights[:, index] * self._times(data, index)
        for function, sharing in self.sharing(which).items():
            own = weights[sharing]
            totals = jax.tree.map(lambda a, own=own: torch.tensordot(own, a.detach().float(), 1), outputs[function])
            found |= {i: jax.tree.map(lambda a, k=k: a[k], totals) for k, i in enumerate(sharing)}
        return [found[i] for i in which]

    def _times(self, data: Weighed, index: Any) -> float:
        """What makes a sum over some examples, drawn with replacement, one over all."""
        return 1.0 if isinstance(index, slice) else data.rows.count / index.shape[-1]

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.tensor(np.array(array), device=self.device)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else contextlib.nullcontext()

    @contextlib.contextmanager
    def _at(self, w: np.ndarray, buffers: Buffers, seed: int) -> Iterator[None]:
        """At this vector, with these buffers and torch's own draws by this seed."""
        with self._draws(seed):
            self._w.copy_(torch.from_numpy(np.array(w)))
            for name, tensor in self._beside.items():
                tensor.copy_(torch.from_numpy(np.array(buffers[name])) if name in buffers else self._given[name])
            yield

    @contextlib.contextmanager
    def _draws(self, seed: int) -> Iterator[None]:
        """What torch itself draws is by this seed here, and elsewhere as it was.

        On the CPU by its one generator: ``torch.manual_seed`` also goes through every other device there might be.
        """
        if self.device.type != "cpu":
            with torch.random.fork_rng(device_type=self.device.type):
                torch.manual_seed(seed)
                yield
            return
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)
