"""Do control variates help against unequal clients? SCAFFOLD's, one for f and one for g, with error feedback.

    python benchmarks/control_variates.py --adult FOLDER

A prototype beside the library. Local steps follow (1 - s) grad f_j + s grad g_j, corrected by (1 - s)(c_f - c_fj) +
s (c_g - c_gj); a client's variates follow its gradients when it takes part, the server's are their means. Variates
travel as Top-K of their changes, up and down, which makes three messages of one: the fair rival is FedSGM with three
times the K. Clients are split by Dirichlet(0.1) of the labels, E = 10, and all answer the query. Each method chooses
among four steps on a seed of its own; the standard error is of five splits' means.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedsgm as fs

E, ROUNDS, BETA, SPLITS, SEEDS = 10, 200, 40.0, 5, 1
STEPS = (10.0, 3.0, 1.0, 0.3)
# What is kept of a message, and whether there are variates.
METHODS = {
    "FedSGM, K 0.1": (0.1, False),
    "FedSGM, K 0.3": (0.3, False),
    "variates, K 0.1": (0.1, True),
}


def digits(split: int) -> tuple[Any, int, int, float]:
    """Everybody's loss, with that of the eights bounded."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    examples = {"x": np.float32(loaded.data / 16), "y": np.int32(loaded.target)}
    clients = fs.split(examples, clients=30, scheme=fs.dirichlet(0.1, by="y", least=5), seed=split)
    return _weighed(clients, 8), 10, 10, 0.15


def adult(folder: str, split: int) -> tuple[Any, int, int, float]:
    """Everybody's loss, with that of high incomes bounded."""
    from fedsgm.data.adult import adult as read
    from fedsgm.data.table import Encoder

    table, _ = read(folder)
    encoder = Encoder.of(table, [name for name in table if name not in ("income", "fnlwgt")])
    few = np.random.default_rng(split).permutation(len(table["income"]))[:6000]
    examples = {"x": np.float32(encoder.encode(table))[few], "y": np.int32(table["income"] == ">50K")[few]}
    clients = fs.split(examples, clients=10, scheme=fs.dirichlet(0.1, by="y", least=5), seed=split)
    return _weighed(clients, 1), 2, 5, 0.5


def _weighed(clients: fs.Clients, label: int) -> dict[str, np.ndarray]:
    """Examples with weights that make f_j a client's mean, and the mean of the g_j that of all with the label."""
    at = np.arange(clients.longest)
    here = np.float32(at < clients.counts[:, None])
    rows = (np.cumsum(clients.counts) - clients.counts)[:, None] + at * (here > 0)
    x, y = clients.examples["x"][rows], clients.examples["y"][rows]
    chosen = here * (y == label)
    return {
        "x": np.concatenate([x, np.ones((*x.shape[:2], 1), np.float32)], axis=2),
        "y": y,
        "f": here / clients.counts[:, None].astype(np.float32),
        "g": chosen * len(clients) / chosen.sum(),
    }


def _sums(w: jax.Array, client: Any, classes: int) -> jax.Array:
    """f_j and g_j."""
    scores = client["x"] @ w.reshape(-1, classes)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(scores), client["y"][:, None], axis=1)[:, 0]
    return jnp.stack([client["f"] @ losses, client["g"] @ losses])


def _compressed(v: jax.Array, keep: float) -> jax.Array:
    top = fs.TopK(keep)
    return top.decompress(top.compress(v, jax.random.key(0)), v.shape[-1])


@functools.partial(jax.jit, static_argnames=("classes", "m", "keep", "variates"))
def run(
    data: Any,
    seed: int,
    step: float,
    bound: float,
    *,
    classes: int,
    m: int,
    keep: float,
    variates: bool,
) -> jax.Array:
    """[round, f and g over all clients]."""
    n, _, features = data["x"].shape
    d = features * classes

    def moved(old: jax.Array, new: jax.Array) -> jax.Array:
        """Both variates, as far as a message takes them."""
        return old + jax.vmap(lambda v: _compressed(v, keep))(new - old)

    def round(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        w, x, errors, own, told = carry
        who = jax.lax.top_k(jax.random.uniform(key, (n,)), m)[1]
        values = jnp.mean(jax.vmap(lambda client: _sums(w, client, classes))(data), axis=0)
        s = jnp.clip(1 + BETA * (values[1] - bound), 0, 1)
        weights = jnp.stack([1 - s, s])

        def update(client: Any, error: jax.Array, variate: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            def local(_: int, total: jax.Array) -> jax.Array:
                at = w - step * total
                gradient = jax.grad(lambda w: weights @ _sums(w, client, classes))(at)
                return total + gradient + (weights @ (told - variate) if variates else 0)

            target = error + jax.lax.fori_loop(0, E, local, jnp.zeros(d))
            sent = _compressed(target, keep)
            fresh = moved(variate, jax.jacrev(lambda w: _sums(w, client, classes))(w)) if variates else variate
            return sent, target - sent, fresh

        theirs = jax.tree.map(lambda a: a[who], data)
        sent, left, fresh = jax.vmap(update)(theirs, errors[who], own[who])
        own = own.at[who].set(fresh)
        told = moved(told, jnp.mean(own, axis=0)) if variates else told
        x = x - step * jnp.mean(sent, axis=0)
        return (w + _compressed(x - w, keep), x, errors.at[who].set(left), own, told), values

    start = (jnp.zeros(d), jnp.zeros(d), jnp.zeros((n, d)), jnp.zeros((n, 2, d)), jnp.zeros((2, d)))
    return jax.lax.scan(round, start, jax.random.split(jax.random.key(seed), ROUNDS))[1]


def judged(values: np.ndarray, bound: float) -> np.ndarray:
    """The best objective within the bound, and of the last quarter the mean objective, excess and share within."""
    f, g = values.T
    within, late = g <= bound, slice(-len(f) // 4, None)
    best = f[within].min() if within.any() else np.nan
    return np.array([best, f[late].mean(), g[late].mean() - bound, within[late].mean()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adult", required=True, help="folder with the Adult files")
    options = parser.parse_args()
    print("data    method            step  answer  minus the first's  last quarter: f   excess  within")
    for name, load in (("digits", digits), ("adult", functools.partial(adult, options.adult))):
        loaded = [load(split) for split in range(SPLITS)]
        first = None
        for method, settings in METHODS.items():

            def values(
                split: int, seed: int, step: float, settings: Any = settings, loaded: Any = loaded
            ) -> np.ndarray:
                data, classes, m, bound = loaded[split]
                keep, variates = settings
                static = {"classes": classes, "m": m, "keep": keep, "variates": variates}
                return judged(np.asarray(run(data, seed, step, bound, **static)), bound)

            tuned = {step: values(0, 0, step)[0] for step in STEPS}
            step = min(tuned, key=lambda step: np.nan_to_num(tuned[step], nan=np.inf))
            found = np.array([[values(i, 100 + j, step) for j in range(SEEDS)] for i in range(SPLITS)])
            first = found if first is None else first
            apart = np.nanmean(found[..., 0] - first[..., 0], axis=1)
            error = apart.std(ddof=1) / np.sqrt(SPLITS)
            best, f, excess, within = np.nanmean(found, axis=(0, 1))
            print(
                f"{name:8}{method:17}{step:5g}  {best:.4f}  {apart.mean():+.4f} +- {error:.4f} "
                f"{f:15.4f} {excess:+.4f} {within:6.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
