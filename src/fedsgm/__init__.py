"""Constrained federated learning: minimise a loss over many clients, subject to constraints."""

from typing import Any

from fedsgm import theory
from fedsgm.base.errors import CheckpointError, ClientError, FederationError, FedSGMError, SettingError, WireError
from fedsgm.base.structs import static, struct
from fedsgm.core import wire
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import Identity, Layerwise, Natural, Quantize, RandK, ScaledSign, TopK
from fedsgm.core.each_client import each_client
from fedsgm.core.feedback import chain
from fedsgm.core.problem import Constraint, Mean, Problem, Statistic
from fedsgm.core.quantities import between
from fedsgm.core.robust import Krum, Median, NormBound, Outliers, Trimmed
from fedsgm.core.rules import Adaptive, Direction, Hard, Penalty, PrimalDual, Soft, StandardErrors, Unconstrained
from fedsgm.core.shared import SharedK
from fedsgm.data import Clients, by, dirichlet, iid, split
from fedsgm.engines import callbacks
from fedsgm.engines.checkpoint import Checkpoint
from fedsgm.engines.simulate import simulate
from fedsgm.federation import federate
from fedsgm.privacy.settings import Privacy
from fedsgm.results.result import Result
from fedsgm.tables import fairness
from fedsgm.theory import certificates, estimates

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``fedsgm.torch`` is imported when it is asked for, and PyTorch with it."""
    if name == "torch":
        import importlib

        return importlib.import_module("fedsgm.torch")
    raise AttributeError(f"module 'fedsgm' has no attribute {name!r}")


__all__ = [
    "Adaptive",
    "Checkpoint",
    "CheckpointError",
    "ClientError",
    "Clients",
    "Constraint",
    "Direction",
    "FedSGM",
    "FedSGMError",
    "FederationError",
    "Hard",
    "Identity",
    "Krum",
    "Layerwise",
    "Mean",
    "Median",
    "Natural",
    "NormBound",
    "Outliers",
    "Penalty",
    "PrimalDual",
    "Privacy",
    "Problem",
    "Quantize",
    "RandK",
    "Result",
    "ScaledSign",
    "SettingError",
    "SharedK",
    "Soft",
    "StandardErrors",
    "Statistic",
    "TopK",
    "Trimmed",
    "Unconstrained",
    "WireError",
    "between",
    "by",
    "callbacks",
    "certificates",
    "chain",
    "dirichlet",
    "each_client",
    "estimates",
    "fairness",
    "federate",
    "iid",
    "simulate",
    "split",
    "static",
    "struct",
    "theory",
    "torch",
    "wire",
]
