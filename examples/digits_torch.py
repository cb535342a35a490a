"""A convolutional network of PyTorch on handwritten digits, whose clients see different mixes of them: the least loss
with a bound on that of every digit. examples/digits_cnn.py is the like in JAX.

python examples/digits_torch.py

runs it in one process. `make` and `load` are what a federation asks for: copy this file into the code of a job, as
docs/federation.md has it, and every client runs it on its own digits.
"""

import functools

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import fedsgm as fs
from fedsgm.federation import Experiment

SITES = 3


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.Conv2d(8, 16, 3, padding=1)
        self.head = torch.nn.Linear(16 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        return self.head(F.max_pool2d(F.relu(self.second(x)), 2).flatten(1))


def loss(module, batch):
    return F.cross_entropy(module(batch["image"]), batch["digit"], reduction="none")


def is_digit(batch, k):
    return batch["digit"] == k


def make(rounds=60):
    """What is run, on the server and on every client."""
    torch.set_num_threads(1)  # the network is small
    torch.manual_seed(0)
    each = [
        fs.Mean(loss, where=functools.partial(is_digit, k=k), name=f"digit {k}", missing="absent") for k in range(10)
    ]
    problem = fs.torch.Problem(Net(), objective=loss, constraints=[mean <= 0.25 for mean in each])
    algorithm = fs.FedSGM(
        0.2, local_steps=5, rule=fs.Adaptive(), batch_size=32, uplink=fs.TopK(0.2), downlink=fs.TopK(0.2)
    )
    return Experiment(algorithm, problem, problem.params, rounds)


def deal():
    images, digits = load_digits(return_X_y=True)
    examples = {"image": np.float32(images / 16).reshape(-1, 1, 8, 8), "digit": digits}
    return fs.split(examples, clients=SITES, scheme=fs.dirichlet(0.5, by="digit", least=10), seed=0)


def load(name):
    """The examples of site-1, site-2 and so on."""
    return deal()[int(name.rpartition("-")[2]) - 1]


if __name__ == "__main__":
    stated = make()
    result = fs.simulate(stated.algorithm, stated.problem, deal(), rounds=stated.rounds, progress=False)
    print(result.verdict())
    torch.save(result.to_module().state_dict(), "digits.pt")
