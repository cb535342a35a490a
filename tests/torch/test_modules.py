"""What modules bring with them: buffers, frozen parameters, dropout, data sets of torch, precision; and resuming."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fedsgm as fs
from fedsgm.federation import Program, federate
from fedsgm.federation.inprocess import Fault, InProcess, seeded
from support.federated import ALGORITHM, CLIENTS
from support.runs import EVERYTHING, assert_identical
from support.torched import FEATURES, Logistic, linear, majority, minority, neyman_pearson, torch_problem

RUN = {"rounds": 6, "progress": False}


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


class Normed(torch.nn.Module):
    """With running means, and with dropout."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(FEATURES)
        self.drop = torch.nn.Dropout(0.2)
        self.head = torch.nn.Linear(FEATURES, 1)

    def forward(self, x):
        return self.head(self.drop(self.norm(x)))


def normed(**more):
    torch.manual_seed(1)
    return neyman_pearson(functools.partial(fs.torch.Problem, Normed(), **more), Logistic.Torch.loss)


@pytest.mark.parametrize("make", [torch_problem, normed], ids=["linear", "buffers and dropout"])
def test_a_resumed_run_is_the_same_bit_for_bit(make, tmp_path):
    algorithm = fs.FedSGM(**EVERYTHING)
    whole = fs.simulate(algorithm, make(), CLIENTS, seeds=2, **RUN)
    first = fs.Checkpoint(tmp_path, every=2)
    fs.simulate(algorithm, make(), CLIENTS, seeds=2, checkpoint=first, **RUN | {"rounds": 4})
    (tmp_path / "round-000000004.ckpt").unlink()
    again = fs.simulate(algorithm, make(), CLIENTS, seeds=2, checkpoint=fs.Checkpoint(tmp_path, 3, resume=True), **RUN)
    assert_identical(again, whole)
    other = fs.FedSGM(**EVERYTHING | {"step_size": 0.2})
    with pytest.raises(fs.CheckpointError, match=r"was made with algorithm.step_size=0.1"):
        fs.simulate(other, make(), CLIENTS, seeds=2, checkpoint=fs.Checkpoint(tmp_path, resume=True), **RUN)


def test_a_run_leaves_the_module_and_torch_s_own_draws_alone():
    problem = normed()
    before = {name: tensor.clone() for name, tensor in problem.module.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fs.simulate(ALGORITHM, problem, CLIENTS, **RUN)
    assert torch.equal(torch.rand(2), expected)
    for name, tensor in problem.module.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_buffers_stay_with_each_client():
    """With E = 1, no compression and whole data, a client's are the plain running means of its rounds."""
    algorithm = fs.FedSGM(0.1, participants=3, rule=fs.Unconstrained())
    found = fs.simulate(algorithm, normed(), CLIENTS, **RUN)
    assert "buffers    each client's own, the parameters come with the clients' mean of them" in found.verdict()
    assert "norm.running_mean" in found.verdict()
    means = []
    for j in range(len(CLIENTS)):
        norm = torch.nn.BatchNorm1d(FEATURES)
        for _ in range(int((found.history["participants"] == j).sum())):
            norm(torch.tensor(CLIENTS[j]["x"]))
        means.append(norm.running_mean.numpy())
    np.testing.assert_allclose(found.answer["norm.running_mean"], np.mean(means, axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.to_module().norm.running_mean, found.answer["norm.running_mean"])


def test_buffers_are_averaged():
    """The server's are the mean of what the participants' become, as plain FedAvg has them."""
    algorithm = fs.FedSGM(0.1, participants=3, rule=fs.Unconstrained())
    found = fs.simulate(algorithm, normed(buffers="average"), CLIENTS, **RUN)
    assert "buffers    averaged over the participants of each round: norm.running_mean" in found.verdict()
    mean = np.zeros(FEATURES)
    for who in found.history["participants"][0]:
        own = [np.mean(CLIENTS[j]["x"], axis=0) for j in who]
        mean = np.mean([0.9 * mean + 0.1 * each for each in own], axis=0)
    np.testing.assert_allclose(found.last["norm.running_mean"], mean, rtol=1e-4, atol=1e-5)
    assert int(found.to_module().norm.num_batches_tracked) == 0


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_buffers_in_a_federation_are_those_of_simulate(buffers, tmp_path):
    """A client keeps its own on its disk: every request finds another process, and comes twice."""
    algorithm = fs.FedSGM(0.1, 2, 3, batch_size=16)
    program = Program.of(algorithm, normed(buffers=buffers), None)

    class Forgetful(InProcess):
        def exchange(self, requests, seconds):
            for name in requests:
                self.restart(name)
            return super().exchange(requests, seconds)

    transport = Forgetful.of(program, CLIENTS, tmp_path, seeded(0, {Fault.REQUEST_TWICE: 1.0}))
    found = federate(algorithm, normed(buffers=buffers), transport, None, **RUN)
    expected = fs.simulate(algorithm, normed(buffers=buffers), CLIENTS, **RUN)
    told = "the parameters come with none" if buffers == "local" else "averaged over the participants"
    assert told in found.verdict()
    assert ("norm.running_var" in found.last) == (buffers == "average")
    for name, array in found.last.items():
        np.testing.assert_allclose(array, expected.last[name], rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(found.history["minority"], expected.history["minority"], rtol=1e-5)
    assert isinstance(found.to_module(), Normed)


def test_only_what_requires_a_gradient_is_moved():
    """As of a network whose first layers are taken over."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(FEATURES, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    module[0].requires_grad_(False)
    problem = neyman_pearson(functools.partial(fs.torch.Problem, module), Logistic.Torch.loss)
    assert problem.params.keys() == {"2.weight", "2.bias"}
    found = fs.simulate(fs.FedSGM(0.1), problem, CLIENTS, **RUN)
    assert found.settings["parameters"] == 4
    filled = found.to_module()
    assert torch.equal(filled[0].weight, module[0].weight)
    assert not torch.equal(filled[2].weight, module[2].weight)


class Reading(Dataset):
    """Reads and transforms an example when it is asked for, with noise of torch's own."""

    def __init__(self, data, noise=0.0):
        self.data, self.noise = data, noise

    def __len__(self):
        return len(self.data["y"])

    def __getitem__(self, i):
        x = torch.tensor(self.data["x"][i])
        return {"x": x + self.noise * torch.randn_like(x), "y": self.data["y"][i]}


@pytest.mark.parametrize("batch_size", [None, 8])
def test_data_sets_are_read_as_arrays_are(batch_size):
    algorithm = fs.FedSGM(0.1, 2, 3, batch_size=batch_size, constraint_batch_size=batch_size)
    expected = fs.simulate(algorithm, torch_problem(), CLIENTS, test=CLIENTS[0], **RUN)
    plain = [Reading(CLIENTS[j]) for j in range(len(CLIENTS))]
    for given in (plain, [DataLoader(each) for each in plain], [CLIENTS[j] for j in range(len(CLIENTS))]):
        found = fs.simulate(algorithm, torch_problem(), given, test=given[0], **RUN)
        for name, column in expected.history.items():
            np.testing.assert_allclose(found.history[name], column, rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(found.values["test"]["minority"], expected.values["test"]["minority"], rtol=1e-5)


def test_random_transforms_repeat():
    noisy = [Reading(CLIENTS[j], noise=0.1) for j in range(len(CLIENTS))]
    algorithm = fs.FedSGM(0.1, 2, 3, batch_size=8)
    first, again = (fs.simulate(algorithm, torch_problem(), noisy, **RUN) for _ in range(2))
    assert_identical(first, again)
    other = fs.simulate(algorithm, torch_problem(), noisy, seed=1, **RUN)
    assert not np.array_equal(other.last["weight"], first.last["weight"])


def test_examples_may_be_tuples():
    def loss(module, batch):
        x, y = batch
        z = module(x)[:, 0]
        return F.softplus(z) - y * z

    sets = [TensorDataset(torch.tensor(CLIENTS[j]["x"]), torch.tensor(CLIENTS[j]["y"])) for j in range(len(CLIENTS))]
    rare = fs.Mean(loss, where=lambda batch: batch[1] == 1, name="minority")
    problem = fs.torch.Problem(linear(), fs.Mean(loss, where=lambda batch: batch[1] == 0), [rare <= 0.05])
    found = fs.simulate(ALGORITHM, problem, sets, **RUN)
    expected = fs.simulate(ALGORITHM, torch_problem(), CLIENTS, **RUN)
    np.testing.assert_array_equal(found.history["minority"], expected.history["minority"])


def test_mixed_precision_computes_in_less():
    """Near the plain run, and not it."""
    plain = fs.simulate(ALGORITHM, torch_problem(), CLIENTS, **RUN)
    mixed = fs.simulate(ALGORITHM, torch_problem(autocast="bfloat16"), CLIENTS, **RUN)
    assert mixed.last["weight"].dtype == np.float32
    assert not np.array_equal(mixed.last["weight"], plain.last["weight"])
    np.testing.assert_allclose(mixed.history["objective"], plain.history["objective"], rtol=0.05)


def test_every_seed_may_have_its_own_start():
    def start(seed):
        torch.manual_seed(seed)
        return torch.nn.Linear(FEATURES, 1)

    found = fs.simulate(ALGORITHM, torch_problem(), CLIENTS, start, seeds=2, **RUN)
    one = fs.simulate(ALGORITHM, torch_problem(), CLIENTS, start(1).state_dict(), seed=1, **RUN)
    np.testing.assert_array_equal(found.last["weight"][1], one.last["weight"])
    np.testing.assert_array_equal(found.to_module(kind="last", seed=1).weight.detach(), one.last["weight"])


def test_weights_of_examples_count():
    """Twice an example is an example that weighs two."""
    twice = [{k: np.concatenate([v, v[:5]]) for k, v in CLIENTS[j].items()} for j in range(len(CLIENTS))]
    heavy = [CLIENTS[j] | {"n": np.where(np.arange(len(CLIENTS[j]["y"])) < 5, 2, 1)} for j in range(len(CLIENTS))]
    rare = fs.Mean(Logistic.Torch.loss, where=minority, name="minority")
    made = functools.partial(fs.torch.Problem, linear(), fs.Mean(Logistic.Torch.loss, where=majority), [rare <= 0.05])
    expected = fs.simulate(ALGORITHM, made(), twice, **RUN)
    found = fs.simulate(ALGORITHM, made(weight=lambda batch: batch["n"]), heavy, **RUN)
    np.testing.assert_allclose(found.history["minority"], expected.history["minority"], rtol=1e-5)
