"""The auditor: a lower bound on epsilon, by telling two neighbours apart by all that is released."""

import math

import numpy as np
import scipy.stats


def lower_bound(first, second, delta):
    """With confidence 0.99, of [trials, numbers] released of each neighbour, by a threshold on their difference.

    The direction and the threshold are learnt on one half of the trials and tried on the other (Clopper-Pearson).
    """
    half = len(first) // 2
    direction = first[:half].mean(axis=0) - second[:half].mean(axis=0)
    guess = [each[half:] @ direction for each in (first, second)]
    threshold = np.quantile(second[:half] @ direction, 0.99)
    hits, misses = (int((each > threshold).sum()) for each in guess)
    true = scipy.stats.beta.ppf(0.005, hits, half - hits + 1)
    false = scipy.stats.beta.ppf(0.995, misses + 1, half - misses)
    return math.log(max(true - delta, 1e-300) / false)
