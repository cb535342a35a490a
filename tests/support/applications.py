"""Tables on which a fit can end below a constant answer: with the former default, and with any."""

import numpy as np

TIGHT = ("equalized_odds(group) <= 0.005", "equalized_odds(group) <= 0.01")


def applications(rows=3000):
    """A third is positive, and two features that matter differ between the groups."""
    rng = np.random.default_rng(0)
    group = rng.random(rows) < 0.4
    x = rng.normal(size=(rows, 6))
    x[:, 0] += 0.8 * group
    x[:, 1] += 0.4 * group
    logit = 1.2 * x[:, 0] + 0.8 * x[:, 1] - 0.6 * x[:, 2] - 1.6
    yes = rng.random(rows) < 1 / (1 + np.exp(-logit))
    table = {f"x{i}": x[:, i] for i in range(6)}
    return table | {
        "group": np.where(group, "a", "b").astype(object),
        "granted": np.where(yes, "yes", "no").astype(object),
    }


def examinations(rows=1000):
    """Seven in eight pass, and what is known of them hardly tells who: a model gains next to nothing."""
    rng = np.random.default_rng(5)
    group = rng.random(rows) < 0.2
    x = rng.normal(size=(rows, 2))
    x[:, 0] -= group
    yes = rng.random(rows) < 1 / (1 + np.exp(-(2.3 + 0.8 * x[:, 0] + 0.3 * x[:, 1])))
    return {
        "x0": x[:, 0],
        "x1": x[:, 1],
        "group": np.where(group, "a", "b").astype(object),
        "passed": np.where(yes, "yes", "no").astype(object),
    }
