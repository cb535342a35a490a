"""A table on which the former default of ``fit`` ended below a constant answer."""

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
