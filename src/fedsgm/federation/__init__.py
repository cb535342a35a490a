"""Federated runs: every client a process of its own, whatever carries the messages."""

from fedsgm.federation.client import Client
from fedsgm.federation.experiment import Experiment
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import Failure, Transport
from fedsgm.federation.server import federate

__all__ = ["Client", "Experiment", "Failure", "Program", "Transport", "federate"]
