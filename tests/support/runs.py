"""A small problem, an algorithm with everything in it, and what it means that two runs are the same."""

import jax
import jax.numpy as jnp
import numpy as np

import fedsgm as fs
from fedsgm.results.result import KINDS

EVERYTHING = {
    "step_size": 0.1,
    "local_steps": 2,
    "participants": 4,
    "rule": fs.PrimalDual(0.1),
    "uplink": fs.RandK(0.5),
    "downlink": fs.Natural(),
    "batch_size": 4,
    "constraint_batch_size": 5,
}


def assert_identical(left, right):
    for name in left.history:
        np.testing.assert_array_equal(left.history[name], right.history[name], err_msg=name)
    for kind in KINDS:
        jax.tree.map(np.testing.assert_array_equal, getattr(left, kind), getattr(right, kind))
    np.testing.assert_array_equal(left.answer_round, right.answer_round)
    for part, values in left.values.items():
        jax.tree.map(np.testing.assert_array_equal, values, right.values[part])


def logistic(params, example):
    z = example["x"] @ params["w"] + params["b"]
    return jnp.logaddexp(0.0, z) - example["y"] * z


def negative(example):
    return example["y"] == 0


def positive(example):
    return example["y"] == 1


SIZES = (7, 12, 9, 15, 8, 11)


FEATURES = 4
