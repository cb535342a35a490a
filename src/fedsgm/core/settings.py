"""What :class:`FedSGM` asks of its settings, before anything runs."""

from __future__ import annotations

from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import Scheduled, carried, check_count, check_number
from fedsgm.core.checks import check_optimizer
from fedsgm.core.each_client import EachClient
from fedsgm.core.feedback import check_downlink, check_uplink, compressor_of
from fedsgm.core.queries import QUERIES, UNHEARD
from fedsgm.core.robust import check_robust


def check_settings(algorithm: Any) -> None:
    """Refuse, in one sentence, what cannot be run."""
    if not isinstance(algorithm.step_size, Scheduled):
        check_number("FedSGM", "step_size", algorithm.step_size, above=0)
    check_number("FedSGM", "tolerance", algorithm.tolerance, least=0)
    for name, known in (("query", QUERIES), ("unheard", UNHEARD)):
        if getattr(algorithm, name) not in known:
            raise SettingError(f"FedSGM: {name}={getattr(algorithm, name)!r}, but it must be one of {', '.join(known)}")
    check_count("FedSGM", "local_steps", algorithm.local_steps)
    rule = algorithm.rule
    if isinstance(rule, type) or not all(hasattr(rule, name) for name in ("init", "decide", "report")):
        raise SettingError(f"FedSGM: rule={rule!r}, but it must be a rule, for instance Hard()")
    carried("FedSGM", "rule", rule)
    check_uplink("FedSGM", algorithm.uplink)
    check_downlink("FedSGM", algorithm.downlink)
    if not isinstance(algorithm.memory, bool):
        raise SettingError(f"FedSGM: memory={algorithm.memory!r}, but it must be True or False")
    if algorithm.project is not None and not callable(algorithm.project):
        raise SettingError(f"FedSGM: project={algorithm.project!r}, but it must be a function of the parameters")
    if algorithm.server is not None:
        check_optimizer("FedSGM", algorithm.server)
    if algorithm.robust is not None:
        check_robust("FedSGM", algorithm.robust, compressor_of(algorithm.uplink))
        carried("FedSGM", "robust", algorithm.robust)
    if algorithm.privacy is not None and not hasattr(algorithm.privacy, "epsilon"):
        raise SettingError(f"FedSGM: privacy={algorithm.privacy!r}, but it must be a Privacy")
    for name in ("participants", "batch_size", "constraint_batch_size"):
        if getattr(algorithm, name) is not None:
            check_count("FedSGM", name, getattr(algorithm, name))


def check_task(task: Any) -> None:
    """Refuse a task whose answers cannot be put together robustly."""
    if not getattr(task, "judges", False):
        raise SettingError(f"robust= compares clients' statistics, which it cannot do for a {type(task).__name__}")
    if any(isinstance(quantity, EachClient) for quantity in task.quantities):
        raise SettingError("robust= cannot tell a lying client from the worst one, which each_client bounds; drop one")
