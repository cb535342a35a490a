"""What is to be run, stated once for the server and for every client."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from fedsgm.algorithm import FedSGM
from fedsgm.errors import SettingError
from fedsgm.problem import Task


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The arguments of :func:`fedsgm.federation.federate`, save for what the engine knows itself."""

    algorithm: FedSGM
    problem: Task
    params: Any
    rounds: int
    seed: int = 0
    test: Any = None
    evaluate_every: int = 1
    min_participants: int = 1
    timeout: float = 60.0


def find(name: str) -> Callable[..., Any]:
    """The function of a dotted name such as ``experiment.make``."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(f"there is no function {name!r} here ({error}); it is named module.function") from error
    if not callable(found):
        raise SettingError(f"{name!r} is no function but a {type(found).__name__}")
    return found
