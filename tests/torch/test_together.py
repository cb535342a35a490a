"""Participants side by side take the steps that each takes alone; who cannot, goes one after another."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedsgm as fs
from fedsgm.torch import together
from fedsgm.torch.engine import Together
from support.torched import CNN, digits, each_class, torch_digit_loss


def loss(module, batch):
    return F.binary_cross_entropy_with_logits(module(batch["x"])[:, 0], batch["y"], reduction="none")


def rates(module, batch):
    """Sums of which one is of whole numbers, and one has two entries an example."""
    yes = torch.sigmoid(module(batch["x"])[:, 0])
    group = (batch["group"][:, None] == torch.arange(2)).long()
    return {"yes": yes[:, None] * group, "all": group}


def gap(total):
    share = total["yes"] / total["all"]
    return (share[0] - share[1]) ** 2


def people(*counts):
    rng = np.random.default_rng(0)
    return fs.Clients.from_list(
        [
            {
                "x": rng.normal(size=(count, 6)).astype(np.float32),
                "y": rng.integers(2, size=count).astype(np.float32),
                "group": np.arange(count) % 2,
            }
            for count in counts
        ]
    )


def network(*more):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), *more, torch.nn.Linear(8, 1))


def both(monkeypatch, problem, clients, algorithm):
    """The run side by side, and one by one."""
    used, real = [], Together.walk
    monkeypatch.setattr(Together, "walk", lambda *given: used.append(1) or real(*given))
    run = functools.partial(fs.simulate, algorithm, problem, clients, rounds=4, progress=False)
    side_by_side = run()
    assert len(used) == 5  # the trial and every round
    monkeypatch.setattr(Together, "of", lambda *_: None)
    alone = run()
    assert len(used) == 5
    return side_by_side, alone


def assert_same_steps(left, right):
    for name, array in right.last.items():
        np.testing.assert_allclose(left.last[name], array, rtol=2e-5, atol=2e-6, err_msg=name)
    np.testing.assert_array_equal(left.history["participants"], right.history["participants"])


@pytest.mark.parametrize("linear", ["linearized", "local"])
def test_batches_of_statistics(monkeypatch, linear):
    """Clients of different sizes, a bound on a statistic of sums; where slopes change with every step, one by one."""
    constraint = fs.Statistic(rates, gap, name="gap", gradient=linear) <= 1e-4
    problem = fs.torch.Problem(network(), objective=loss, constraints=[constraint])
    algorithm = fs.FedSGM(0.3, 3, 4, fs.Soft(5.0), batch_size=8, uplink=fs.TopK(0.5))
    clients = people(9, 20, 33, 14, 50)
    if linear == "local":
        monkeypatch.setattr(Together, "of", None)  # never asked
        fs.simulate(algorithm, problem, clients, rounds=2, progress=False)
        return
    side_by_side, alone = both(monkeypatch, problem, clients, algorithm)
    assert (alone.history["weight"] > 0).any()
    assert_same_steps(side_by_side, alone)


@pytest.mark.parametrize("examples", [2**13, 60], ids=["at once", "in blocks"])
def test_all_examples_of_clients_of_one_size(monkeypatch, examples):
    monkeypatch.setattr(together, "_EXAMPLES", examples)
    positives = fs.Mean(loss, where=lambda batch: batch["y"] == 1, name="positives")
    problem = fs.torch.Problem(network(), objective=loss, constraints=[positives <= 0.5], weigh="rows")
    assert_same_steps(*both(monkeypatch, problem, people(*[20] * 5), fs.FedSGM(0.3, 3, rule=fs.Hard())))


def test_a_cnn(monkeypatch):
    torch.manual_seed(0)
    problem = each_class(functools.partial(fs.torch.Problem, CNN()), torch_digit_loss, 1.0)
    algorithm = fs.FedSGM(0.1, 5, 4, fs.Soft(5.0), batch_size=16)
    assert_same_steps(*both(monkeypatch, problem, digits(), algorithm))


class Counting(torch.nn.Module):
    """What it gives depends on how often it was called: nothing that can be told beforehand."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = network(), 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x) * self.calls


class Read(torch.utils.data.Dataset):
    def __init__(self, client):
        self.client = client

    def __len__(self):
        return len(self.client["y"])

    def __getitem__(self, i):
        return {name: array[i] for name, array in self.client.items()}


OTHERS = {
    "dropout draws": (lambda: network(torch.nn.Dropout(0.5)), None, 8),
    "running means": (lambda: network(torch.nn.BatchNorm1d(8)), None, 8),
    "a state of its own": (Counting, None, 8),
    "sizes differ": (network, None, None),
    "data sets": (network, Read, 8),
}


@pytest.mark.parametrize(("module", "made", "batch_size"), OTHERS.values(), ids=OTHERS)
def test_who_cannot_goes_one_after_another(monkeypatch, module, made, batch_size):
    found, real = [], Together.of.__func__
    monkeypatch.setattr(Together, "of", classmethod(lambda *given: found.append(real(*given)) or found[-1]))
    clients = people(10, 20, 30)
    clients = clients if made is None else [made(clients[j]) for j in range(3)]
    problem = fs.torch.Problem(module(), objective=loss)
    fs.simulate(fs.FedSGM(0.1, 2, batch_size=batch_size), problem, clients, rounds=2, progress=False)
    assert found == [None]
