"""A problem in torch is the problem in JAX: the same iterates, by either engine, and a run goes on where it stopped."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import fedsgm as fs
from fedsgm.federation import Client, Program, federate
from fedsgm.federation.inprocess import InProcess
from fedsgm.results.result import KINDS
from support.federated import ALGORITHM, CLIENTS, TEST
from support.runs import EVERYTHING
from support.torched import (
    CNN,
    START,
    digits,
    each_class,
    jax_digit_loss,
    jax_problem,
    linear,
    torch_digit_loss,
    torch_problem,
)

ROUNDS = 50


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """No waiting for the disk: what is killed here is no machine."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def assert_close(left, right, within):
    """Runs with the same draws, and iterates and values that are as near."""
    for name in ("participants", "bytes_up", "bytes_down"):
        np.testing.assert_array_equal(left.history[name], right.history[name], err_msg=name)
    for name, column in right.history.items():
        assert left.history[name].dtype == column.dtype
        np.testing.assert_allclose(left.history[name], column, rtol=within, atol=within, err_msg=name)
    for kind in KINDS:
        mine, theirs = getattr(left, kind), getattr(right, kind)
        assert mine.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_allclose(mine[name], array, rtol=within, atol=within, err_msg=f"{kind} {name}")
    np.testing.assert_array_equal(left.answer_round, right.answer_round)
    for part, values in right.values.items():
        for name, value in values.items():
            np.testing.assert_allclose(left.values[part][name], value, rtol=within, atol=within, err_msg=name)


@functools.cache
def simulated(**settings):
    algorithm = fs.FedSGM(**settings) if settings else ALGORITHM
    return fs.simulate(algorithm, jax_problem(), CLIENTS, START, rounds=ROUNDS, test=TEST, progress=False)


def test_simulate_takes_the_same_steps():
    found = fs.simulate(ALGORITHM, torch_problem(), CLIENTS, rounds=ROUNDS, test=TEST, progress=False)
    assert_close(found, simulated(), 1e-5)
    assert found.verdict().startswith("FEASIBLE")


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_mixed_federation_takes_the_same_steps(framework, tmp_path):
    """Whichever framework the server has; every other client has the other one."""
    problems = {"jax": (jax_problem(), START), "torch": (torch_problem(), None)}
    programs = [Program.of(ALGORITHM, *problems[name]) for name in ("jax", "torch")]

    def start(j):
        return lambda: Client(programs[j % 2], CLIENTS[j], tmp_path / str(j))

    transport = InProcess({f"client-{j}": start(j) for j in range(len(CLIENTS))}, tmp_path)
    problem, params = problems[framework]
    found = federate(ALGORITHM, problem, transport, params, rounds=ROUNDS, test=TEST, progress=False)
    expected = simulated()
    assert_close(found, expected, 1e-5)
    assert (found.history["answered"] == ALGORITHM.participants).all()


def test_entries_that_sums_name_are_those_of_the_compiled_engine(tmp_path):
    algorithm = fs.FedSGM(0.1, 2, rule=fs.Soft(5.0), uplink=fs.SharedK(0.3, history=0.5))
    expected = fs.simulate(algorithm, jax_problem(), CLIENTS, START, rounds=8, progress=False)
    found = fs.simulate(algorithm, torch_problem(), CLIENTS, rounds=8, progress=False)
    assert_close(found, expected, 1e-5)
    transport = InProcess.of(Program.of(algorithm, torch_problem(), None), CLIENTS, tmp_path)
    federated = federate(algorithm, torch_problem(), transport, None, rounds=8, progress=False)
    assert_close(federated, expected, 1e-5)


def test_everything_is_drawn_as_the_compiled_engine_draws_it():
    """Batches, query batches, random compressors, a multiplier."""
    algorithm = fs.FedSGM(**EVERYTHING)
    found = fs.simulate(algorithm, torch_problem(), CLIENTS, rounds=10, seeds=2, evaluate_every=3, progress=False)
    expected = fs.simulate(
        algorithm, jax_problem(), CLIENTS, START, rounds=10, seeds=2, evaluate_every=3, progress=False
    )
    assert_close(found, expected, 1e-5)
    assert found.answer["weight"].shape == (2, *START["weight"].shape)


@pytest.mark.parametrize("query", ["all", "memory"])
def test_who_is_asked_is_who_the_compiled_engine_asks(query):
    algorithm = fs.FedSGM(0.1, 2, 2, query=query)
    found = fs.simulate(algorithm, torch_problem(), CLIENTS, rounds=5, progress=False)
    assert_close(found, fs.simulate(algorithm, jax_problem(), CLIENTS, START, rounds=5, progress=False), 1e-5)


@pytest.mark.parametrize(
    ("query", "participants", "asked"),
    [("participants", None, [5, 5, 5]), ("all", 3, [5, 5, 5]), ("memory", 3, [5, 3, 3])],
)
def test_messages_are_held_against_what_clients_say_in_both(query, participants, asked):
    given = {"step_size": 0.1, "local_steps": 2, "participants": participants, "rule": fs.Soft(5.0), "query": query}
    algorithm, run = fs.FedSGM(robust=fs.Outliers(1e9), **given), {"rounds": 3, "progress": False}
    found = fs.simulate(algorithm, torch_problem(), CLIENTS, **run)
    assert_close(found, fs.simulate(algorithm, jax_problem(), CLIENTS, START, **run), 1e-5)
    plain = fs.simulate(fs.FedSGM(**given), torch_problem(), CLIENTS, **run)
    np.testing.assert_array_equal((found.history["bytes_up"] - plain.history["bytes_up"])[0], 4 * np.array(asked))


def test_a_client_that_is_not_believed_is_left_out_in_both():
    """One with other units: first its message is far from the others', then what it says of the constraint is, too."""
    odd, examples = 1, [CLIENTS[j] for j in range(len(CLIENTS))]
    examples[odd] = examples[odd] | {"x": 1000 * examples[odd]["x"]}
    clients = fs.Clients.from_list(examples)
    algorithm = fs.FedSGM(0.1, 2, rule=fs.Soft(5.0), uplink=fs.TopK(0.3), robust=fs.Outliers())
    found = fs.simulate(algorithm, torch_problem(), clients, rounds=5, progress=False)
    assert_close(found, fs.simulate(algorithm, jax_problem(), clients, START, rounds=5, progress=False), 1e-5)
    assert (found.history["rejected"][0] == np.eye(len(CLIENTS))[odd]).all()
    assert found.history["doubted"][0, :, odd].tolist() == [0, 1, 1, 1, 1]


def sums(xp, score, y):
    positive, p = xp.where(y == 1, 1.0, 0.0), 1 / (1 + xp.exp(-score))
    return {"of 1": positive * p, "ones": positive, "of 0": (1 - positive) * p, "zeros": 1 - positive}


def jax_sums(params, example):
    return sums(jnp, example["x"] @ params["weight"][0] + params["bias"][0], example["y"])


def torch_sums(module, batch):
    return sums(torch, module(batch["x"])[:, 0], batch["y"])


def gap(total):
    return abs(total["of 1"] / total["ones"] - total["of 0"] / total["zeros"])


def torch_gap(total):
    return torch.abs(total["of 1"] / total["ones"] - total["of 0"] / total["zeros"])


def both_gaps(xp):
    def value(total):
        difference = total["of 1"] / total["ones"] - total["of 0"] / total["zeros"]
        return xp.stack([difference, -difference])

    return value


STATISTICS = {
    "linearized": (lambda s, _, value: fs.Statistic(s, value, name="gap"), "clients", fs.Soft(10.0)),
    "local": (lambda s, _, value: fs.Statistic(s, value, name="gap", gradient="local"), "clients", fs.Soft(10.0)),
    "rows": (lambda s, _, value: fs.Statistic(s, value, name="gap"), "rows", fs.Hard()),
    "each client": (
        lambda s, _, value: fs.each_client(fs.Statistic(s, value, name="gap"), 0.8, soft=0.1),
        "clients",
        fs.Hard(),
    ),
    "parts": (
        lambda s, xp, _: fs.Statistic(s, both_gaps(xp), name="gap", parts=2),
        "clients",
        fs.Adaptive(1.0),
    ),
}


@pytest.mark.parametrize(("make", "weigh", "rule"), STATISTICS.values(), ids=STATISTICS)
def test_statistics_are_the_same(make, weigh, rule):
    """Whose value is in torch, too: its derivative is what the server sends."""
    algorithm = fs.FedSGM(0.2, 3, 3, rule, uplink=fs.TopK(0.3))
    quantities = {"jax": make(jax_sums, jnp, gap), "torch": make(torch_sums, torch, torch_gap)}
    in_jax = fs.Problem(jax_problem().objective, [quantities["jax"] <= 0.3], weigh=weigh)
    in_torch = fs.torch.Problem(linear(), torch_problem().objective, [quantities["torch"] <= 0.3], weigh=weigh)
    start = {"weight": np.full_like(START["weight"], 0.05), "bias": START["bias"]}
    found = fs.simulate(algorithm, in_torch, CLIENTS, start, rounds=8, progress=False)
    expected = fs.simulate(algorithm, in_jax, CLIENTS, start, rounds=8, progress=False)
    assert (expected.history["weight"] > 0).any()
    assert_close(found, expected, 1e-5)


def test_a_cnn_is_the_same_in_both(tmp_path):
    """Pictures of digits, a bound on every digit's loss, clients that lack some, Top-K both ways."""
    torch.manual_seed(0)
    module = CNN()
    algorithm = fs.FedSGM(0.1, 5, 4, fs.Soft(5.0), uplink=fs.TopK(0.2), downlink=fs.TopK(0.2))
    problem = each_class(functools.partial(fs.torch.Problem, module), torch_digit_loss, 1.0)
    found = fs.simulate(algorithm, problem, digits(), rounds=20, progress=False)
    expected = fs.simulate(
        algorithm, each_class(fs.Problem, jax_digit_loss, 1.0), digits(), problem.params, rounds=20, progress=False
    )
    assert_close(found, expected, 1e-4)
    assert found.values["train"]["objective"][0, 0] < 0.7 * np.log(10)  # it learns

    filled = found.to_module()
    assert isinstance(filled, CNN)
    torch.save(filled.state_dict(), tmp_path / "module.pt")
    found.save(tmp_path / "run")
    loaded = fs.Result.load(tmp_path / "run").to_module(CNN())
    names = [name for name, _ in module.named_parameters()]
    from safetensors.numpy import load_file

    stored = load_file(tmp_path / "run" / "params.safetensors")
    for name in names:
        np.testing.assert_array_equal(stored[f"answer.{name}"], found.answer[name])
        np.testing.assert_array_equal(filled.get_parameter(name).detach(), found.answer[name])
        np.testing.assert_array_equal(loaded.get_parameter(name).detach(), found.answer[name])
    each = []
    for j in range(len(digits())):  # the answer's objective, by the module itself
        batch = {"x": torch.tensor(digits()[j]["x"]), "y": torch.tensor(digits()[j]["y"], dtype=torch.long)}
        each.append(torch_digit_loss(filled, batch).mean().item())
    assert np.mean(each) == pytest.approx(found.value("train", "objective", "answer")[0], abs=1e-5)
