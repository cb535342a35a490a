"""A transformer of equinox of which clients train low-rank additions to some matrices (LoRA), and nothing else.

python examples/lora_transformer.py

The model says which of four letters is the most frequent of eight. It has learnt that of one alphabet; clients teach it
another, while its loss on the first stays within a bound. Its own weights are closed over: they are never sent.
"""

import equinox as eqx
import jax
import numpy as np
import optax

import fedsgm as fs

LETTERS, LENGTH, WIDTH, RANK = 4, 8, 32, 4


class Transformer(eqx.Module):
    embed: jax.Array
    attention: eqx.nn.MultiheadAttention
    widen: eqx.nn.Linear
    narrow: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.embed = jax.random.normal(keys[0], (2 * LETTERS, WIDTH))
        self.attention = eqx.nn.MultiheadAttention(4, WIDTH, key=keys[1])
        self.widen = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=keys[2])
        self.narrow = eqx.nn.Linear(4 * WIDTH, WIDTH, key=keys[3])
        self.out = eqx.nn.Linear(WIDTH, LETTERS, key=keys[4])

    def __call__(self, tokens):
        x = self.embed[tokens]
        x = x + self.attention(x, x, x)
        x = x + jax.vmap(self.narrow)(jax.nn.gelu(jax.vmap(self.widen)(x)))
        return self.out(x.mean(axis=0))


def loss_of(model, example):
    return -jax.nn.log_softmax(model(example["tokens"]))[example["most"]]


def written(rng, count, alphabet):
    most = rng.integers(LETTERS, size=count)
    tokens = rng.integers(LETTERS, size=(count, LENGTH))
    tokens[:, : LENGTH // 2 + 1] = most[:, None]
    return {
        "tokens": rng.permuted(tokens, axis=1) + LETTERS * alphabet,
        "most": most,
        "alphabet": np.full(count, alphabet),
    }


def pretrained(examples, steps=200):
    model, adam = Transformer(jax.random.key(0)), optax.adam(3e-3)
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def step(carry, _):
        params, state = carry

        def mean(params):
            return jax.vmap(loss_of, (None, 0))(eqx.combine(params, static), examples).mean()

        updates, state = adam.update(jax.grad(mean)(params), state)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, adam.init(params)), length=steps)
    return eqx.combine(params, static)


rng = np.random.default_rng(0)
base = pretrained(written(rng, 256, alphabet=0))


def adapted_matrices(model):
    return [
        model.attention.query_proj.weight,
        model.attention.value_proj.weight,
        model.widen.weight,
        model.narrow.weight,
    ]


def lora_start(seed):
    """For each of the matrices a pair whose product is added to it, zero at first."""
    rng, shapes = np.random.default_rng(seed), [matrix.shape for matrix in adapted_matrices(base)]
    return [(np.zeros((a, RANK), np.float32), rng.normal(0, b**-0.5, (RANK, b)).astype(np.float32)) for a, b in shapes]


def loss(lora, example):
    added = [matrix + left @ right for matrix, (left, right) in zip(adapted_matrices(base), lora, strict=True)]
    return loss_of(eqx.tree_at(adapted_matrices, base, added), example)


both = [written(rng, 800, alphabet) for alphabet in (0, 1)]
clients = fs.split(jax.tree.map(lambda *parts: np.concatenate(parts), *both), clients=20, scheme=fs.iid(), seed=0)
new = fs.Mean(loss, where=lambda example: example["alphabet"] == 1)
old = fs.Mean(loss, where=lambda example: example["alphabet"] == 0, name="old alphabet")
algorithm = fs.FedSGM(step_size=0.3, local_steps=5, participants=10, rule=fs.Soft(beta=40.0), batch_size=16)
result = fs.simulate(algorithm, fs.Problem(new, [old <= 0.1]), clients, lora_start, rounds=30, progress=False)
print(result.verdict())
