"""What the federation runs. It is the same file at the server and at every client."""

import torch
from model import Net, loss

import fedsgm as fs
from fedsgm.federation import Experiment


def majority(batch):
    return batch[1] == 0


def minority(batch):
    return batch[1] == 1


def make():
    """The least loss on the majority class that keeps the minority's within 0.05."""
    torch.manual_seed(0)
    problem = fs.torch.Problem(
        Net(),
        objective=fs.Mean(loss, where=majority),
        constraints=[fs.Mean(loss, where=minority, name="minority") <= 0.05],
    )
    return Experiment(
        algorithm=fs.FedSGM(
            step_size=0.1, local_steps=5, rule=fs.Soft(beta=40.0), uplink=fs.TopK(0.1), downlink=fs.TopK(0.1)
        ),
        problem=problem,
        params=problem.params,  # the network's own
        rounds=300,
        min_participants=1,  # a round that fewer clients answer is repeated
        timeout=60.0,  # seconds that a client has for an answer
    )
