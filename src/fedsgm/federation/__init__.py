"""Federated runs: every client a process of its own, whatever carries the messages."""

from fedsgm.federation.client import Client, Parts
from fedsgm.federation.experiment import Experiment
from fedsgm.federation.preparation import Preparation
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import Failure, Transport
from fedsgm.federation.server import federate

__all__ = ["Client", "Experiment", "Failure", "Parts", "Preparation", "Program", "Transport", "federate"]
