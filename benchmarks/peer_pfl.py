"""FedAvg in pfl, for peers.py, in an environment of its own: its ``FederatedAveraging`` of a PyTorch model."""

import json
import random
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

data, step, local_steps, warm = np.load(sys.argv[1]), *(json.loads(word) for word in sys.argv[2:])
n, rows, features = data["x"].shape
torch.set_num_threads(1)  # the products are small: more threads take longer
users = [Dataset((torch.tensor(data["x"][j]), torch.tensor(data["y"][j])), user_id=str(j)) for j in range(n)]


class Logistic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(features))
        self.b = torch.nn.Parameter(torch.zeros(()))

    def loss(self, x, y):
        return torch.nn.functional.binary_cross_entropy_with_logits(x @ self.w + self.b, y)

    def metrics(self, *_):
        return {}


class Clock(TrainingProcessCallback):
    def after_central_iteration(self, *_, central_iteration):
        if central_iteration + 1 == warm:
            self.began = time.perf_counter()
        self.ended = time.perf_counter()
        return False, Metrics()


def draw(participants):
    """Every cohort is of distinct users."""
    while True:
        yield from random.sample(range(n), participants)


def run(participants, rounds):
    drawn, clock, module = draw(participants), Clock(), Logistic()
    dataset = FederatedDataset(users.__getitem__, lambda: next(drawn))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=warm + rounds,
            evaluation_frequency=10**9,
            train_cohort_size=participants,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=dataset, val_data=dataset),
        model,
        NNTrainHyperParams(local_learning_rate=step, local_num_epochs=local_steps, local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,  # which prints them
    )
    return clock.ended - clock.began, [*module.w.tolist(), module.b.item()]


for line in sys.stdin:
    participants, rounds = map(int, line.split())
    seconds, params = run(participants, rounds)
    print(json.dumps({"seconds": seconds, "params": params}), flush=True)
