"""What the federation runs. It is the same file at the server and at every client."""

import jax.numpy as jnp
import numpy as np

import fedsgm as fs
from fedsgm.federation import Experiment

FEATURES = 30


def loss(params, example):
    """Of one example: logistic regression."""
    z = example["x"] @ params["w"] + params["b"]
    return jnp.logaddexp(0.0, z) - example["y"] * z


def majority(example):
    return example["y"] == 0


def minority(example):
    return example["y"] == 1


def make():
    """The least loss on the majority class that keeps the minority's within 0.05."""
    return Experiment(
        algorithm=fs.FedSGM(
            step_size=0.3, local_steps=5, rule=fs.Soft(beta=40.0), uplink=fs.TopK(0.1), downlink=fs.TopK(0.1)
        ),
        problem=fs.Problem(
            objective=fs.Mean(loss, where=majority),
            constraints=[fs.Mean(loss, where=minority, name="minority") <= 0.05],
        ),
        params={"w": np.zeros(FEATURES, np.float32), "b": np.zeros((), np.float32)},
        rounds=300,
        min_participants=1,  # a round that fewer clients answer is repeated
        timeout=60.0,  # seconds that a client has for an answer
    )
