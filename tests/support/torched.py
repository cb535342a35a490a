"""One problem twice, in JAX and in torch, with the same names for the same parameters and functions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import fedsgm as fs
from support.federated import CLIENTS

torch.set_num_threads(1)  # idle threads of torch turn, which takes long where others use the cores

FEATURES = CLIENTS.examples["x"].shape[1]
START = {"weight": np.zeros((1, FEATURES), np.float32), "bias": np.zeros(1, np.float32)}


class Logistic:
    """The losses; a class each has functions of the same names, as two projects of one experiment have."""

    class Jax:
        @staticmethod
        def loss(params, example):
            z = example["x"] @ params["weight"][0] + params["bias"][0]
            return jnp.logaddexp(0.0, z) - example["y"] * z

    class Torch:
        @staticmethod
        def loss(module, batch):
            z = module(batch["x"])[:, 0]
            return F.softplus(z) - batch["y"] * z


for _framework in (Logistic.Jax, Logistic.Torch):
    _framework.loss.__qualname__ = "loss"


def majority(example):
    return example["y"] == 0


def minority(example):
    return example["y"] == 1


def linear():
    module = torch.nn.Linear(FEATURES, 1)
    module.load_state_dict({name: torch.tensor(array) for name, array in START.items()})
    return module


def neyman_pearson(make, loss):
    rare = fs.Mean(loss, where=minority, name="minority")
    return make(objective=fs.Mean(loss, where=majority), constraints=[rare <= 0.05])


def jax_problem():
    return neyman_pearson(fs.Problem, Logistic.Jax.loss)


def torch_problem(**more):
    return neyman_pearson(functools.partial(fs.torch.Problem, linear(), **more), Logistic.Torch.loss)


class CNN(torch.nn.Module):
    """Of 8 x 8 pictures of digits."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.head = torch.nn.Linear(4 * 16, 10)

    def forward(self, x):
        return self.head(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


def torch_digit_loss(module, batch):
    return F.cross_entropy(module(batch["x"]), batch["y"], reduction="none")


def jax_digit_loss(params, example):
    x = jax.lax.conv_general_dilated(example["x"][None], params["conv.weight"], (1, 1), "SAME")
    x = jax.nn.relu(x + params["conv.bias"][:, None, None])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    logits = params["head.weight"] @ x.ravel() + params["head.bias"]
    return jax.nn.logsumexp(logits) - logits[example["y"]]


@functools.cache
def digits(clients=6, examples=300):
    """Dealt out by Dirichlet(0.5), so that clients lack some digits."""
    x, y = load_digits(return_X_y=True)
    data = {"x": (x[:examples] / 16).astype(np.float32).reshape(-1, 1, 8, 8), "y": y[:examples].astype(np.int32)}
    return fs.split(data, clients=clients, scheme=fs.dirichlet(0.5, by="y", least=10), seed=0)


def each_class(make, loss, bound):
    """The least loss that keeps that of every digit within a bound."""
    constraints = [
        fs.Mean(loss, where=functools.partial(is_digit, digit), name=f"digit {digit}", missing="absent") <= bound
        for digit in range(10)
    ]
    return make(objective=loss, constraints=constraints)


def is_digit(digit, example):
    return example["y"] == digit
