"""What the tests of hostile sites run: a small problem."""

import jax.numpy as jnp
import numpy as np

import fedsgm as fs
from fedsgm.federation import Experiment

CLIENTS = 3


def loss(params, example):
    z = example["x"] @ params["w"] + params["b"]
    return jnp.logaddexp(0.0, z) - example["y"] * z


def make(rounds, timeout=60.0, **_):
    problem = fs.Problem(
        objective=fs.Mean(loss, where=lambda ex: ex["y"] == 0),
        constraints=[fs.Mean(loss, where=lambda ex: ex["y"] == 1, name="minority") <= 0.4],
    )
    algorithm = fs.FedSGM(step_size=0.3, local_steps=3, rule=fs.Soft(beta=40.0), uplink=fs.TopK(0.3))
    params = {"w": np.zeros(5, np.float32), "b": np.zeros((), np.float32)}
    return Experiment(algorithm, problem, params, rounds, timeout=timeout)


def load(name, **_):
    rng = np.random.default_rng(int(name.rpartition("-")[2]))
    x = rng.normal(size=(60, 5)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] + 0.3 * rng.normal(size=60) > 0.5).astype(np.float32)}
