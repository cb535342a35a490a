"""IPP-ConEx in NumPy, as its authors write it."""

import numpy as np


def constraint_extrapolation(grad_f, g, grad_g, project, x, *, r, a, M, t0, steps, inner=25):
    """Steps of Boob, Deng and Lan as the paper writes them, g already less its bound. Yields x and y of every step."""
    y = 0.0
    while steps > 0:
        centre, total, weights = x, np.zeros_like(x), 0.0
        now = before = g(x)
        for t in range(min(inner, steps)):
            theta = (t + t0 + 1) / (t + t0 + 2)
            tau = 32 * M**2 / (a * (t + 1))
            eta = a * (t + t0 + 1) / 2
            y = max(0.0, y + ((1 + theta) * now - theta * before) / tau)
            slope = grad_g(x) + r * (x - centre)
            new = project(x - (grad_f(x) + r * (x - centre) + y * slope) / eta)
            before, now = now, g(x) + r / 2 * np.sum((x - centre) ** 2) + slope @ (new - x)
            x = new
            total, weights = total + (t + t0 + 2) * x, weights + t + t0 + 2
            if t + 1 == inner:
                x = total / weights
            yield x, y
        steps -= inner
