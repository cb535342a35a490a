"""What is to be run, stated once for the server and for every client."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.task import Task


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The arguments of :func:`fedsgm.federation.federate`, save for what the engine knows itself.

    ``test`` may be a function that gives the test data: clients, who have no use for it, then never read it. Or it is
    ``"clients"``: each holds examples out itself, where its data function gives :class:`fedsgm.federation.Parts`.
    """

    algorithm: FedSGM
    problem: Task
    params: Any
    rounds: int
    seed: int = 0
    test: Any = None
    evaluate_every: int = 1
    min_participants: int = 1
    timeout: float = 60.0
    beside: Sequence[Any] = ()
    secure: bool = False


def find(name: str, within: Sequence[str | Path]) -> Callable[..., Any]:
    """The function of a dotted name such as ``experiment.make``, as a job gives it.

    It must be defined in the folders ``within``: whoever may send a job may not run whatever is installed. A site lists
    other modules that jobs may name in FEDSGM_MODULES, with commas.
    """
    module, _, attribute = name.rpartition(".")
    listed = [each.strip() for each in os.environ.get("FEDSGM_MODULES", "").split(",")]
    if not module or (module not in listed and not _is_within(module, within)):
        raise SettingError(
            f"{name!r} is no function of the job's code nor of this site's local/custom; the environment variable "
            "FEDSGM_MODULES lists the installed modules that jobs may name"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        why = type(error).__name__
        raise SettingError(f"there is no function {name!r} here ({why}); it is named module.function") from error
    if not callable(found):
        raise SettingError(f"{name!r} is no function but a {type(found).__name__}")
    if found.__module__ != module:
        raise SettingError(f"{name!r} is defined in {found.__module__}; name a function where it is defined")
    return found


def _is_within(module: str, folders: Sequence[str | Path]) -> bool:
    """Whether the module, found but not imported, lies in one of the folders."""
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # no name, or a program's main module
        return False
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if spec is not None and spec.has_location and spec.origin:
        places.append(spec.origin)
    inside = [any(Path(place).resolve().is_relative_to(Path(each).resolve()) for each in folders) for place in places]
    return bool(inside) and all(inside)
