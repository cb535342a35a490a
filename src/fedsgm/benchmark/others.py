"""Problems that are no tables about people: digits with a bound on every class, Neyman-Pearson, and CartPole."""

from __future__ import annotations

import functools
import gzip
import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from optax.losses import softmax_cross_entropy_with_integer_labels

from fedsgm.benchmark.cases import Data
from fedsgm.benchmark.dealing import Features
from fedsgm.core.problem import Mean, Problem, Statistic
from fedsgm.data.breast_cancer import breast_cancer
from fedsgm.data.clients import dirichlet, iid, split
from fedsgm.tasks import cmdp

_SIDE, _KERNEL, _CHANNELS, _CLASSES = 8, 3, 8, 10
_OUT = _SIDE - _KERNEL + 1
# Where the pixels of each patch are. Examples hold their patches, so that a convolution is one product: it stays fast
# with a model for each client, and no pixel is looked for in every step.
_PATCHES = np.array(
    [
        [(r + i) * _SIDE + c + j for i in range(_KERNEL) for j in range(_KERNEL)]
        for r in range(_OUT)
        for c in range(_OUT)
    ]
)


def cnn_init(numbers: int, seed: int) -> dict[str, np.ndarray]:  # noqa: ARG001
    rng = np.random.default_rng(seed)
    flat = (_OUT // 2) ** 2 * _CHANNELS
    return {
        "kernel": rng.normal(0, np.sqrt(2 / _KERNEL**2), (_KERNEL**2, _CHANNELS)).astype(np.float32),
        "bias": np.zeros(_CHANNELS, np.float32),
        "w": np.zeros((flat, _CLASSES), np.float32),
        "b": np.zeros(_CLASSES, np.float32),
    }


def _logits(params: Any, example: Any) -> jax.Array:
    """A convolution, a maximum of each two by two, and a dense layer."""
    patches = example["x"].reshape(_OUT**2, _KERNEL**2)
    seen = jax.nn.relu(patches @ params["kernel"] + params["bias"])
    pooled = seen.reshape(_OUT // 2, 2, _OUT // 2, 2, _CHANNELS).max(axis=(1, 3))
    return pooled.reshape(-1) @ params["w"] + params["b"]


def cnn_loss(params: Any, example: Any) -> jax.Array:
    return softmax_cross_entropy_with_integer_labels(_logits(params, example), jnp.int32(example["y"]))


def cnn_score(params: Any, example: Any) -> jax.Array:
    return jax.nn.softmax(_logits(params, example))


def _by_class(params: Any, example: Any) -> dict[str, jax.Array]:
    own = jnp.float32(jnp.arange(_CLASSES) == example["y"])
    return {"loss": own * cnn_loss(params, example), "count": own}


def _mean_of_each(total: dict[str, jax.Array]) -> jax.Array:
    return total["loss"] / total["count"]


def _counts(total: dict[str, jax.Array]) -> jax.Array:
    return total["count"]


def every_class(bound: float) -> Problem:
    """The loss, subject to the mean loss of each digit: ten numbers, the largest of which is told."""
    worst = Statistic(_by_class, _mean_of_each, name="worst digit", members=_counts, parts=_CLASSES)
    return Problem(Mean(cnn_loss), [worst <= bound], weigh="rows")


def _dealt(x: np.ndarray, y: np.ndarray, clients: int, scheme: Any) -> Features:
    rows = np.arange(len(y))
    dealt = split({"y": y, "row": rows}, clients=clients, scheme=scheme)
    owner = np.empty(len(y), np.int32)
    owner[dealt.examples["row"]] = dealt.owners
    return Features(x, y, np.zeros(len(y), np.int32), owner)


@functools.cache
def digits() -> Features:
    """The 1,797 digits of scikit-learn, of which some clients have many of one kind."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None  # scikit-learn is a dependency
    with gzip.open(Path(str(spec.origin)).parent / "datasets/data/digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    patches = (table[:, :-1] / 16)[:, _PATCHES.ravel()]
    return _dealt(patches, table[:, -1], 20, dirichlet(0.5, by="y", least=10))


@functools.cache
def cancer() -> Features:
    rows, _ = breast_cancer(test_fraction=0)
    return _dealt(rows["x"], rows["y"], 20, iid(stratify="y"))


def cartpole(number: int) -> Data:  # noqa: ARG001
    """Clients play; there is nothing to hold out, and each seed has a start of its own."""
    experiment = cmdp.load()
    return Data(experiment.clients, None, None, experiment.params)


def budget(bound: float) -> Any:
    """The reward, subject to budgets of cost that are this on average, from five below to five above."""
    return cmdp.load(budgets=(bound - 5, bound + 5)).task
