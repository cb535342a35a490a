"""Constrained federated learning: minimise a loss over many clients, subject to constraints."""

from fedsgm import certificates, estimates, fairness, theory
from fedsgm.algorithm import FedSGM
from fedsgm.checkpoint import Checkpoint
from fedsgm.compression import Identity, Layerwise, Natural, Quantize, RandK, ScaledSign, TopK
from fedsgm.data import Clients, by, dirichlet, iid, split
from fedsgm.errors import CheckpointError, ClientError, FederationError, FedSGMError, SettingError, WireError
from fedsgm.federation import federate
from fedsgm.problem import Problem
from fedsgm.quantities import Constraint, Mean, Statistic
from fedsgm.result import Result
from fedsgm.rules import Direction, Hard, Penalty, PrimalDual, Soft, Unconstrained
from fedsgm.simulate import simulate

__version__ = "0.1.0"

__all__ = [
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
    "Layerwise",
    "Mean",
    "Natural",
    "Penalty",
    "PrimalDual",
    "Problem",
    "Quantize",
    "RandK",
    "Result",
    "ScaledSign",
    "SettingError",
    "Soft",
    "Statistic",
    "TopK",
    "Unconstrained",
    "WireError",
    "by",
    "certificates",
    "dirichlet",
    "estimates",
    "fairness",
    "federate",
    "iid",
    "simulate",
    "split",
    "theory",
]
