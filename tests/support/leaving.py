"""What the test of a secure federation runs: Neyman-Pearson on five clients, one of which ends its process at first.

And the same with differential privacy of examples, in which nobody leaves.
"""

import dataclasses
import os
from pathlib import Path

import jax

import fedsgm as fs
from fedsgm.federation import Experiment
from fedsgm.tasks import neyman_pearson as task

CLIENTS = 5
LINKS = {"uplink": fs.SharedK(0.3, history=0.25), "downlink": fs.TopK(0.2)}
ALGORITHM = fs.FedSGM(step_size=0.3, local_steps=2, rule=fs.Hard(), **LINKS)
me = {}


def leave(_):
    """When it is first asked for its values: the others have masked theirs with its key by then."""
    told = Path(me.get("folder", "")) / f"exit-{me.get('name')}"
    if told.exists():
        told.unlink()
        os._exit(7)


def loss(params, example):
    jax.debug.callback(leave, params["b"])
    return task.logistic_loss(params, example)


PROBLEM = fs.Problem(
    objective=fs.Mean(loss, where=task.majority),
    constraints=[fs.Mean(loss, where=task.minority, name="minority") <= 0.05],
)


def make(rounds, secure=True, **_):
    _, _, params = task.load(clients=CLIENTS)
    return Experiment(ALGORITHM, PROBLEM, params, rounds, timeout=120.0, secure=secure)


PRIVACY = fs.Privacy(
    epsilon=8.0,
    delta=1e-3,
    rounds=2,
    clip=1.0,
    ranges={"objective": (0.0, 3.0), "minority": (0.0, 3.0)},
    secret=7,  # noise that can be drawn again
)


def make_private(rounds, **_):
    stated = make(rounds)
    algorithm = dataclasses.replace(ALGORITHM, rule=fs.Adaptive(0.5), privacy=PRIVACY)
    return dataclasses.replace(stated, algorithm=algorithm)


def load(name, folder, **_):
    me.update(name=name, folder=folder)
    return task.load(clients=CLIENTS)[0][int(name.rpartition("-")[2]) - 1]
