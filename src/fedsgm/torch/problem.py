"""A problem whose model is a PyTorch module, and whose loss and constraints are functions in torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fedsgm.base.errors import SettingError
from fedsgm.base.layout import is_function
from fedsgm.core.problem import Constraint
from fedsgm.core.problem import Problem as Stated
from fedsgm.federation.program import Program
from fedsgm.results.result import Result
from fedsgm.torch.bridge import in_jax

BUFFERS = ("local", "average")
DEVICES = ("cpu", "cuda", "mps")


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Minimise ``objective`` subject to ``constraints`` over a module's parameters, those that require a gradient.

    It is :class:`fedsgm.Problem` with functions of ``(module, batch)`` that give one number for each example of the
    batch; ``where`` and ``weight`` are functions of the batch. What such a number is made of may be any of the
    examples' tensors, as they are in the clients' data.

    >>> import torch
    >>> import fedsgm as fs
    >>> def loss(module, batch):
    ...     return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"], reduction="none")
    >>> rare = fs.Mean(loss, where=lambda batch: batch["y"] == 1, name="rare")
    >>> fs.torch.Problem(torch.nn.Linear(4, 2), objective=loss, constraints=[rare <= 0.5]).names
    ('rare',)

    Args:
        follow, weigh, weight: as of :class:`fedsgm.Problem`.
        buffers: what becomes of a module's buffers, such as the running means of BatchNorm: they stay on each client
            (``"local"``), or the server takes the mean of the participants' (``"average"``).
        device: where clients compute: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``.
        autocast: ``"bfloat16"`` for automatic mixed precision.
    """

    module: torch.nn.Module
    objective: Any
    constraints: Sequence[Constraint] = ()
    follow: str = "shared"
    weigh: str = "clients"
    weight: Callable[[Any], Any] | None = None
    buffers: str = "local"
    device: str = "cpu"
    autocast: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.module, torch.nn.Module):
            raise SettingError(f"Problem: module={self.module!r}, but it must be a torch.nn.Module")
        if self.buffers not in BUFFERS:
            raise SettingError(f"Problem: buffers={self.buffers!r}, but it must be one of {', '.join(BUFFERS)}")
        if self.autocast not in (None, "bfloat16"):
            raise SettingError(f"Problem: autocast={self.autocast!r}, but it must be 'bfloat16', or None")
        _check_device(self.device)
        moved = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if not sum(p.numel() for p in moved.values()):
            raise SettingError("Problem: the module has no parameter that requires a gradient, so nothing to learn")
        for name, p in moved.items():
            if p.dtype != torch.float32:
                kind = str(p.dtype).removeprefix("torch.")
                raise SettingError(
                    f"Problem: the parameter {name} has type {kind}, but all that are learnt must be float32; "
                    "take module.float(), and autocast='bfloat16' for mixed precision"
                )
        asked = Stated(self.objective, self.constraints, self.follow, self.weigh, self.weight)
        object.__setattr__(self, "objective", asked.objective)
        object.__setattr__(self, "constraints", asked.constraints)

    @functools.cached_property
    def stated(self) -> Stated:
        """The same for the algorithm: names, bounds, and what the server makes of sums that clients took in torch."""
        constraints = tuple(in_jax(constraint) for constraint in self.constraints)
        return Stated(self.objective, constraints, self.follow, self.weigh, self.weight)

    @property
    def names(self) -> tuple[str, ...]:
        return self.stated.names

    @property
    def bounds(self) -> dict[str, float]:
        return self.stated.bounds

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return self.stated.ranges

    @property
    def quantities(self) -> tuple[Any, ...]:
        return self.stated.quantities

    @functools.cached_property
    def params(self) -> dict[str, np.ndarray]:
        """What the run moves, by the module's own names: its parameters, and its buffers where they are averaged."""
        return self.params_of(self.module)

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """The buffers that are each client's own, as they are at first."""
        own = dict(self.module.named_buffers()) if self.buffers == "local" else {}
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in own.items()}

    @property
    def settings(self) -> dict[str, Any]:
        """What a result tells of the buffers, where there are any."""
        names = [name for name, _ in self.module.named_buffers()]
        return {"buffers": {"are": self.buffers, "names": names}} if names else {}

    def params_of(self, given: Any) -> dict[str, np.ndarray]:
        """The same of another module of this form, or of a dictionary by its names, such as a state dictionary."""
        names = [name for name, p in self.module.named_parameters() if p.requires_grad]
        if self.buffers == "average":
            names += [name for name, tensor in self.module.named_buffers() if tensor.is_floating_point()]
        like = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        if isinstance(given, torch.nn.Module):
            given = dict(given.named_parameters()) | dict(given.named_buffers())
        if not isinstance(given, dict):
            kind = type(given).__name__
            raise SettingError(f"params: a {kind}, but it must be a module, or a dictionary by the names of its own")
        found = {}
        for name in names:
            if name not in given or tuple(np.shape(given[name])) != tuple(like[name].shape):
                has = f"one of shape {tuple(np.shape(given[name]))}" if name in given else "none"
                raise SettingError(
                    f"params: the module's {name} has shape {tuple(like[name].shape)}, but there is {has}"
                )
            value = given[name]
            plain = value.detach().float().cpu().numpy() if isinstance(value, torch.Tensor) else value
            found[name] = np.array(plain, np.float32)
        return found

    def start_of(self, params: Any, seed: int) -> dict[str, np.ndarray]:
        """Where the run of this seed starts: the module's own parameters if none are given."""
        if params is None:
            return self.params
        made = params(seed) if is_function(params) and not isinstance(params, torch.nn.Module) else params
        return self.params_of(made)

    def prepare(self, *_: Any, **_more: Any) -> None:
        """What theory asks of a problem, to measure its constants."""
        raise SettingError("from_theory, estimates and certificates need the problem in JAX, but this one is in torch")

    def simulate(self, *given: Any, **options: Any) -> Result:
        """What :func:`fedsgm.simulate` calls for this problem."""
        from fedsgm.torch.engine import simulate

        return simulate(self, *given, **options)

    def program(self, algorithm: Any, params: Any, seed: int) -> Program:
        """What a federation's server and clients call."""
        from fedsgm.torch.program import TorchProgram

        return TorchProgram.made(self, algorithm, self.start_of(params, seed))


def _check_device(device: Any) -> None:
    try:
        kind = torch.device(device).type
        if kind in DEVICES:
            torch.empty(1, device=device)
            return
    except (RuntimeError, AssertionError, TypeError, ValueError):
        pass
    here = [name for name in DEVICES if name == "cpu" or getattr(torch, name).is_available()]
    raise SettingError(f"Problem: device={str(device)!r} is not there; this machine has {', '.join(here)}")
