"""Runs that any number of devices must give the same."""

import numpy as np

import fedsgm as fs
from support.runs import logistic, positive

FEATURES = 4


def clients():
    rng = np.random.default_rng(5)
    sizes = (5, 9, 6, 8, 5, 7, 6)
    return fs.Clients.from_list(
        [
            {"x": rng.normal(0.2 * j, 1, (k, FEATURES)).astype(np.float32), "y": np.float32(np.arange(k) % 2)}
            for j, k in enumerate(sizes)
        ]
    )


SETTINGS = {
    "some": {"participants": 3, "uplink": fs.TopK(count=2), "downlink": fs.TopK(count=3), "batch_size": 3},
    "everyone": {"uplink": fs.TopK(count=2), "rule": fs.Soft(10.0)},
    "all are asked": {"participants": 2, "query": "all"},
    "memory": {"participants": 3, "query": "memory", "uplink": fs.RandK(count=2)},
}


def runs():
    """Of every setting the columns of its history, and what it ended with."""
    problem = fs.Problem(logistic, [fs.Mean(logistic, where=positive, name="positive") <= 0.45])
    params = {"w": np.full(FEATURES, 0.3, np.float32), "b": np.float32(-0.2) * np.ones((), np.float32)}
    found = {}
    for name, settings in SETTINGS.items():
        algorithm = fs.FedSGM(0.1, 2, **settings)
        result = fs.simulate(
            algorithm, problem, clients(), params, rounds=12, seeds=2, progress=False, evaluate_every=2
        )
        found[name] = result.history, (result.last, result.answer, result.values)
    return found
