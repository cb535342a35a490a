"""A PyTorch module with the parameters that a run has found; it is called by names, so that torch is not imported."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.results.result import KINDS, Result


def filled(result: Result, module: Any, kind: str, seed: int | None) -> Any:
    """See :meth:`Result.to_module`."""
    given = result.module if module is None else module
    if kind not in KINDS:
        raise SettingError(f"to_module: kind={kind!r}, but it must be one of {', '.join(KINDS)}")
    if given is None:
        raise SettingError("to_module: this result has no module; give one of its form, to_module(Net())")
    made = copy.deepcopy(given)
    tensors = dict(made.named_parameters()) | dict(made.named_buffers())
    found, seeds = getattr(result, kind), result.settings["seeds"]
    if not isinstance(found, dict) or not found.keys() <= tensors.keys():
        raise SettingError("to_module: the run's parameters do not have the names of this module's")
    for name, array in found.items():
        tensor, value = tensors[name].data, np.asarray(array)
        if value.ndim > tensor.ndim:
            value = value[_place(seeds, seed)]
        if value.shape != tuple(tensor.shape):
            shapes = f"{tuple(tensor.shape)} in the module and {value.shape} in the run"
            raise SettingError(f"to_module: {name} has shape {shapes}")
        tensor.copy_(tensor.new_tensor(value))
    return made


def _place(seeds: list[int], seed: int | None) -> int:
    """Of this seed among several."""
    if seed not in seeds:
        raise SettingError(f"to_module: seed={seed!r}, but the run has the seeds {', '.join(map(str, seeds))}")
    return seeds.index(seed)
