"""A mistake in a torch problem is answered before anything runs, in one sentence that says what is wrong."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import IterableDataset, TensorDataset

import fedsgm as fs
from fedsgm.methods import IPPConEx
from support.federated import CLIENTS
from support.runs import EVERYTHING
from support.torched import FEATURES, Logistic, linear, torch_problem

loss = Logistic.Torch.loss


def refused(make, message, kind=fs.SettingError):
    with pytest.raises(kind, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def problem(objective=loss, constraint=loss, module=None, **more):
    where = more.pop("where", None)
    rare = fs.Mean(constraint, where=where, name="rare")
    return fs.torch.Problem(linear() if module is None else module, objective, [rare <= 0.5], **more)


def run(clients=CLIENTS, params=None, algorithm=None, **made):
    return fs.simulate(algorithm or fs.FedSGM(0.1), problem(**made), clients, params, rounds=1, progress=False)


def test_the_problem_of_this_file_runs():
    assert np.isfinite(run().last["weight"]).all()


def half():
    module = torch.nn.Sequential(torch.nn.Linear(FEATURES, 2), torch.nn.Linear(2, 1))
    module[1].half()
    return module


def frozen():
    return linear().requires_grad_(False)


def infinite():
    module = linear()
    module.weight.data[0, 3] = float("inf")
    return module


MODULES = {
    "no parameters": (torch.nn.ReLU, "^Problem: the module has no parameter that requires a gradient"),
    "all frozen": (frozen, "^Problem: the module has no parameter that requires a gradient"),
    "mixed types": (half, "^Problem: the parameter 1.weight has type float16, but all that are learnt must be float32"),
    "float64": (lambda: linear().double(), "^Problem: the parameter weight has type float64, but"),
    "no module": (lambda: 3, "^Problem: module=3, but it must be a torch.nn.Module$"),
    "an infinite parameter": (infinite, r"^params\['weight'\] has a NaN or an infinite entry"),
    "another form": (lambda: torch.nn.Linear(3, 1), r"^the objective: its function fails on the first examples \(Runt"),
}


@pytest.mark.parametrize(("make", "message"), MODULES.values(), ids=MODULES)
def test_modules(make, message):
    refused(lambda: run(module=make()), message)


def detached(module, batch):
    return loss(module, batch).detach()


def without_gradient(module, batch):
    with torch.no_grad():
        return loss(module, batch)


def mean(module, batch):
    return loss(module, batch).mean()


def column(module, batch):
    return loss(module, batch)[:, None]


def as_list(module, batch):
    return loss(module, batch).tolist()


def whole(module, batch):
    return (loss(module, batch) * 100).long()


FUNCTIONS = {
    "a mean": (
        mean,
        r"must return one floating-point number per example, .* it returned shape \(\) of .*none",
    ),
    "a column": (column, r"must return one .* shape \(3,\), but it returned shape \(3, 1\) of float32$"),
    "a list": (as_list, r"must return one .*, but it returned a list$"),
    "whole numbers": (whole, r"must return one .*, but it returned shape \(3,\) of int64$"),
    "detached": (detached, r"what its function returns is detached from the parameters, so it has no gradient; leave"),
    "without gradient": (without_gradient, r"what its function returns is detached from the parameters"),
    "raises": (lambda _, batch: batch["z"], r"its function fails on the first examples \(KeyError: 'z'\)$"),
}


@pytest.mark.parametrize(("function", "message"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions(function, message):
    refused(lambda: run(objective=function), f"^the objective: .*{message}")
    refused(lambda: run(constraint=function), f"^the constraint 'rare': .*{message}")


def statistic(value, **more):
    quantity = fs.Statistic(lambda module, batch: {"s": loss(module, batch), "n": batch["y"]}, value, name="s", **more)
    return lambda: fs.simulate(
        fs.FedSGM(0.1), fs.torch.Problem(linear(), loss, [quantity <= 1.0]), CLIENTS, rounds=1, progress=False
    )


STATISTICS = {
    "no number": (
        statistic(lambda total: total),
        "^the constraint 's': its value must return one number for the ",
    ),
    "raises": (statistic(lambda total: total["z"]), r"^the constraint 's': its value fails on a total \(KeyError: 'z'"),
    "parts": (statistic(lambda total: total["s"], parts=2), "its value must return 2 numbers, as parts= says,"),
    "not a number": (statistic(lambda total: total["s"] / 0 * 0), "is not a number over all data at the starting"),
    "nobody": (
        statistic(lambda total: total["s"], members=lambda total: torch.stack([total["n"], 0 * total["n"]])),
        "^no client has an example of group 1, which the constraint 's' compares",
    ),
}


@pytest.mark.parametrize(("make", "message"), STATISTICS.values(), ids=STATISTICS)
def test_statistics(make, message):
    refused(make, message)


def nan():
    data = {name: array.copy() for name, array in CLIENTS[0].items()}
    data["x"][2, 1] = np.nan
    return data


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


DATA = {
    "NaN": (lambda: [CLIENTS[1], nan()], r"^client 1: the array \['x'\] has a NaN or an infinite value in row 2"),
    "NaN in a data set": (lambda: [Rows(nan())], r"^client 0: the array \['x'\] has a NaN .* in row 2"),
    "an endless data set": (lambda: [Endless()], "^client 0: an IterableDataset cannot be drawn from"),
    "an empty data set": (lambda: [TensorDataset(torch.zeros(0, 2))], "^client 0 has no examples; leave it out"),
    "nothing": (lambda: [], "^clients: a list, but it must be Clients, or a list with a data set for each client$"),
    "another form": (lambda: [CLIENTS[0], {"x": CLIENTS[1]["x"]}], "^client 1: its arrays are named or nested diff"),
}


class Rows:
    """What has a length and indices."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data["y"])

    def __getitem__(self, i):
        return {name: array[i] for name, array in self.data.items()}


@pytest.mark.parametrize(("make", "message"), DATA.values(), ids=DATA)
def test_data(make, message):
    refused(lambda: run(make(), where=lambda batch: batch["y"] == 1), message)


SETTINGS = {
    "device": ({"device": "cuda:7"}, "^Problem: device='cuda:7' is not there; this machine has cpu"),
    "no device": ({"device": "toaster"}, "^Problem: device='toaster' is not there; this machine has cpu"),
    "meta": ({"device": "meta"}, "^Problem: device='meta' is not there"),
    "buffers": ({"buffers": "gone"}, "^Problem: buffers='gone', but it must be one of local, average$"),
    "precision": ({"autocast": "float16"}, "^Problem: autocast='float16', but it must be 'bfloat16', or None$"),
    "weigh": ({"weigh": "stones"}, "^Problem: weigh='stones', but it must be one of clients, rows$"),
    "where": ({"where": lambda batch: batch["x"] > 0}, r"^the constraint 'rare': where must return one truth value"),
    "nobody": (
        {"where": lambda batch: batch["y"] == 7},
        "^client 0 has no example that the constraint 'rare' ",
    ),
    "weight": ({"weight": lambda batch: -batch["y"]}, "^client 0: example .* weighs -1, but a weight is 0 or more$"),
    "weights": (
        {"weight": lambda _: 1},
        r"^Problem: weight must return one number per example, shape \(\d+,\), but",
    ),
}


@pytest.mark.parametrize(("settings", "message"), SETTINGS.values(), ids=SETTINGS)
def test_settings(settings, message):
    refused(lambda: run(**settings), message)


PARAMS = {
    "a name is missing": (
        {"weight": np.zeros((1, FEATURES))},
        r"^params: the module's bias has shape \(1,\), but",
    ),
    "a shape": (
        {"weight": np.zeros(3), "bias": np.zeros(1)},
        r"weight has shape \(1, 30\), but there is one of ",
    ),
    "no dictionary": (np.zeros(31), "^params: a ndarray, but it must be a module, or a dictionary by the names"),
    "NaN": (
        {"weight": np.full((1, FEATURES), np.nan), "bias": np.zeros(1)},
        r"^params\['weight'\] has a NaN or an ",
    ),
}


@pytest.mark.parametrize(("params", "message"), PARAMS.values(), ids=PARAMS)
def test_params(params, message):
    refused(lambda: run(params=params), message)


def test_averaged_buffers_are_sent_whole():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(FEATURES), linear())
    for algorithm in (fs.FedSGM(**EVERYTHING), fs.FedSGM(0.1, downlink=fs.TopK(0.5))):
        refused(
            functools.partial(run, module=module, buffers="average", algorithm=algorithm),
            "^Problem: buffers='average' is the mean of what every participant sends, so it goes with neither",
        )


@pytest.mark.parametrize("given", [{"offload": True}, {"debug": True}, {"block": 2}], ids=str)
def test_what_only_the_compiled_engine_has_is_refused(given):
    with pytest.raises(fs.SettingError, match=r"^simulate: offload, debug and block are for problems in JAX"):
        fs.simulate(fs.FedSGM(0.1), torch_problem(), CLIENTS, rounds=1, progress=False, **given)


def test_a_run_that_diverges_says_so():
    found = fs.simulate(fs.FedSGM(1e38, 3), torch_problem(), CLIENTS, rounds=3, progress=False)
    assert "diverged (not a finite number); take a smaller step size" in found.verdict()


def test_an_error_in_a_round_names_the_client_and_the_round():
    calls = []

    def fails(module, batch):
        calls.append(len(batch["y"]))
        if len(calls) > 2 + len(CLIENTS):
            raise RuntimeError("out of\nmemory")
        return loss(module, batch)

    made = fs.torch.Problem(linear(), fails)
    refused(
        lambda: fs.simulate(fs.FedSGM(0.1), made, CLIENTS, rounds=9, progress=False),
        "^client [0-4], round [0-9]: RuntimeError: out of$",
        fs.ClientError,
    )


def test_what_needs_jax_says_so():
    refused(
        lambda: fs.simulate(IPPConEx(3.0, 4.0, 5.0), torch_problem(), CLIENTS, rounds=2, progress=False),
        "^a torch problem is run by FedSGM, not by IPPConEx$",
    )
    refused(
        lambda: fs.FedSGM.from_theory(torch_problem(), CLIENTS, torch_problem().params, rounds=9, distance=1.0),
        "^from_theory, estimates and certificates need the problem in JAX, but this one is in torch$",
    )


FILLED = {
    "kind": ({"kind": "best"}, "^to_module: kind='best', but it must be one of last, average, best_feasible, answer$"),
    "names": ({"module": torch.nn.ReLU()}, "^to_module: the run's parameters do not have the names of this module's$"),
    "shape": ({"module": torch.nn.Linear(2, 1)}, r"^to_module: weight has shape \(1, 2\) in the module and \(1, 30\)"),
}


@pytest.mark.parametrize(("given", "message"), FILLED.values(), ids=FILLED)
def test_modules_to_fill(given, message):
    found = run()
    refused(lambda: found.to_module(**given), message)


def test_a_loaded_result_has_no_module(tmp_path):
    run().save(tmp_path)
    refused(fs.Result.load(tmp_path).to_module, r"^to_module: this result has no module; give one of its form, ")


def test_seeds_of_modules_to_fill():
    found = fs.simulate(fs.FedSGM(0.1), problem(), CLIENTS, rounds=1, seeds=2, progress=False)
    refused(found.to_module, "^to_module: seed=None, but the run has the seeds 0, 1$")
    assert isinstance(found.to_module(seed=1), torch.nn.Linear)


def test_the_package_imports_no_other_framework():
    names = "('torch', 'flwr', 'nvflare')"
    line = f"import sys, fedsgm; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_without_pytorch_it_says_what_to_install():
    line = "import sys; sys.modules['torch'] = None; import fedsgm; fedsgm.torch"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(
        "fedsgm.torch needs PyTorch; install it with: pip install 'fedsgm[torch]'"
    )


def test_a_function_that_needs_more_is_named():
    def wrong(module, batch):
        return F.cross_entropy(module(batch["x"]), batch["y"])

    refused(lambda: run(objective=wrong), r"^the objective: its function fails on the first examples \(RuntimeError: ")
