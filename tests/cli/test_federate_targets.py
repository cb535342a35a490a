"""``fedsgm federate fit`` of several classes and of numbers: the model of ``fedsgm fit`` from sums alone."""

import numpy as np
import pytest

from support.sites import Together, assert_that_of_fit, people, write

FIT = ("--rounds", "12", "--evaluate-every", "3", "--no-progress")
SETTINGS = {
    "classes": (
        *("--target", "work", "--constraint", "demographic_parity(sex) <= 0.05", "--weight", "w"),
        *("--constraint", "equal_opportunity(sex) <= 0.3", "--constraint", "recall(work == clerk) >= 0.2"),
    ),
    "numbers for classes": ("--target", "w", "--constraint", "error_rate <= 0.7", "--model", "mlp", "--hidden", "4"),
    "a number": ("--target", "age", "--constraint", "mean_gap(sex) <= 0.5", "--seed", "1"),
    "a number, weighed": (
        *("--target", "age", "--task", "number", "--weight", "w", "--weigh", "clients", "--test-fraction", "0.3"),
        *("--constraint", "worst_group_loss(sex) <= 0.9", "--model", "mlp", "--hidden", "4"),
    ),
    "whole numbers": ("--target", "w", "--task", "number", "--constraint", "group_loss_gap(sex) <= 0.5"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_model_is_that_of_fit(name, tmp_path, monkeypatch):
    """With weights, rows without a value of the target, and classes that a site lacks."""
    tables = write(people().assign(w=1 + np.arange(360) % 3), tmp_path)
    Together(tmp_path / "federation", monkeypatch)
    assert_that_of_fit(tables, (*FIT, *SETTINGS[name]), tmp_path)
