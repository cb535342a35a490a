"""Do runs follow the rates of the theorems? Error of the averaged iterate against T, E, q and m/n, with the promise.

Every run takes the step size, tolerance and beta that `fedsgm.theory` gives for its own setting, on a problem whose
optimum and constants are known: n clients with f_j = -<a_j, w> + |w|^2 / 4 and g_j = <b_j, w> over a ball.

python benchmarks/rates.py
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib
import numpy as np
from optax.projections import projection_l2_ball

import fedsgm as fs
from fedsgm.results import drawing
from fedsgm.theory import certificates

CLIENTS, SIZE, RADIUS, BOUND, SEEDS = 16, 12, 0.5, 0.15, 5
ROUNDS = 8000
LONG = 128_000  # with compression: at 8000 rounds the promise is larger than the constraint can be violated
BALL = functools.partial(projection_l2_ball, scale=RADIUS)
PROBLEM = fs.Problem(
    objective=lambda w, example: -example["a"] @ w + 0.25 * jnp.sum(w**2),
    constraints=[fs.Mean(lambda w, example: example["b"] @ w, name="g") <= BOUND],
)


def main() -> None:
    rng = np.random.default_rng(0)
    a = np.r_[0.8, 0.3, np.zeros(SIZE - 2)] + 0.05 * rng.normal(size=(CLIENTS, SIZE))
    b = np.r_[0.9, np.zeros(SIZE - 1)] + 0.002 * rng.normal(size=(CLIENTS, SIZE))
    rows = zip(a.astype(np.float32), b.astype(np.float32), strict=True)
    clients = fs.Clients.from_list([{"a": x[None], "b": y[None]} for x, y in rows])
    start = np.r_[-RADIUS, np.zeros(SIZE - 1)].astype(np.float32)
    optimum = certificates.certify(PROBLEM, clients, start, project=BALL, tolerance=1e-9).lower_bound
    constants = {
        "distance": 2 * RADIUS,
        "lipschitz": float(np.linalg.norm(a, axis=1).max() + 0.65 * RADIUS),
        "sigma": max(float(np.linalg.norm(x - y)) for x in b for y in b) * RADIUS / 2,
    }
    at = float(-a.mean(axis=0) @ start + 0.25 * start @ start - optimum)
    print(f"the start is {at:.3f} above the optimum; n = {CLIENTS}, d = {SIZE}, T = {ROUNDS}, with Top-K {LONG}")

    def error(rule: str, rounds: int = ROUNDS, **settings: Any) -> tuple[float, float]:
        """The worst seed's max(gap, violation), and the promise for it."""
        algorithm = fs.FedSGM.from_theory(
            PROBLEM, clients, start, rounds=rounds, rule=rule, project=BALL, **constants, **settings
        )
        seeds = SEEDS if settings.get("participants", CLIENTS) < CLIENTS else 1  # nothing else is random here
        result = fs.simulate(
            algorithm, PROBLEM, clients, start, rounds=rounds, seeds=seeds, evaluate_every=0, progress=False
        )
        gap = result.value("train", "objective", "average") - optimum
        promise = algorithm.promise
        return float(np.max([gap, result.excess("train", "average")])), max(promise.epsilon, promise.violation)

    sweeps: dict[str, list[tuple[float, dict[str, Any]]]] = {
        "rounds T": [(t, {"rounds": t}) for t in (500, 2000, 8000, 32_000)],
        "local steps E": [(e, {"local_steps": e}) for e in (1, 2, 4, 8)],
        "1/q, Top-K both ways": [
            (SIZE / k, {"rounds": LONG, "uplink": fs.TopK(count=k), "downlink": fs.TopK(count=k)})
            for k in (12, 9, 6, 4)
        ],
        "n/m": [(CLIENTS / m, {"participants": m, "query": "participants"}) for m in (16, 8, 4, 2)],
    }
    draw(
        {
            title: {rule: [(x, *error(rule, **settings)) for x, settings in points] for rule in ("hard", "soft")}
            for title, points in sweeps.items()
        }
    )


def draw(found: dict[str, dict[str, list[tuple[float, float, float]]]]) -> None:
    """Print the slopes and draw the pictures; the promise is dashed."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(14, 3.6), sharey=True, layout="constrained")
    for axis, (title, rules) in zip(axes, found.items(), strict=True):
        for color, (rule, points) in zip(("#1f6f8b", "#c8553d"), rules.items(), strict=True):
            x, error, promise = np.array(points).T
            slopes = [np.polyfit(np.log(x), np.log(y), 1)[0] for y in (error, promise)]
            told = "  ".join(f"{a:.5g}: {b:.4f} <= {c:.4f}" for a, b, c in points)
            print(f"{title:22} {rule}  slope {slopes[0]:+.2f} (promise {slopes[1]:+.2f})   {told}")
            axis.loglog(x, error, "o-", color=color, label=f"{rule}, slope {slopes[0]:+.2f}")
            axis.loglog(x, promise, "--", color=color, alpha=0.6)
        axis.set_xlabel(title)
        axis.set_xticks(x, [f"{value:.3g}" if value < 1000 else f"{value:g}" for value in x])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    drawing.plain_log(axes[0])
    axes[0].set_ylabel("max(gap, violation) of the average\n(dashed: promised)")
    target = Path(__file__).parents[1] / "docs" / "images" / "rates.png"
    figure.savefig(target, dpi=110)
    print(f"drawn in {target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target}")


if __name__ == "__main__":
    main()
