"""examples/digits_torch.py for a few rounds, as the code of a federation, and what its run must then be."""

import sys
from pathlib import Path

import numpy as np

import fedsgm as fs
from fedsgm.federation.experiment import find

_EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_torch.py"


def write(folder, rounds=3):
    """The file in a folder, and its module."""
    path = folder / _EXAMPLE.name
    path.write_text(_EXAMPLE.read_text().replace("make(rounds=60)", f"make(rounds={rounds})"))
    find("digits_torch.make", [folder])
    return path, sys.modules.pop("digits_torch")


def check(module, result):
    """A run of its three clients takes the steps of ``simulate``."""
    stated = module.make()
    expected = fs.simulate(
        *(stated.algorithm, stated.problem, module.deal()), rounds=stated.rounds, evaluate_every=1, progress=False
    )
    np.testing.assert_array_equal(result.history["answered"], [[module.SITES] * stated.rounds])
    for name, array in expected.last.items():
        np.testing.assert_allclose(result.last[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    for name in expected.bounds:
        np.testing.assert_allclose(result.history[name], expected.history[name], rtol=1e-4, err_msg=name)
    assert set(result.to_module(module.Net()).state_dict()) == set(expected.last)
