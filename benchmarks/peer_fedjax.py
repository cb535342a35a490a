"""FedAvg in FedJAX, for peers.py, in an environment of its own: its ``fed_avg``, compiled, a loop over rounds."""

import json
import sys
import time

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

data, step, local_steps, warm = np.load(sys.argv[1]), *(json.loads(word) for word in sys.argv[2:])
n, rows, features = data["x"].shape


def loss(params, batch, _):
    logit = batch["x"] @ params["w"] + params["b"]
    return jnp.mean(jax.nn.softplus(logit) - batch["y"] * logit)


algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    jax.grad(loss),
    fedjax.optimizers.sgd(step),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=rows, num_epochs=local_steps),
)
everybody = fedjax.InMemoryFederatedData({j: {"x": data["x"][j], "y": data["y"][j]} for j in range(n)})


def run(participants, rounds):
    sampler = fedjax.client_samplers.UniformGetClientSampler(everybody, num_clients=participants, seed=0)
    state = algorithm.init({"w": jnp.zeros(features), "b": jnp.float32(0)})
    for t in range(warm + rounds):
        if t == warm:
            jax.block_until_ready(state.params)
            began = time.perf_counter()
        sampler.set_round_num(t)
        state, _ = algorithm.apply(state, sampler.sample())
    params = jax.block_until_ready(state.params)
    return time.perf_counter() - began, [*params["w"].tolist(), float(params["b"])]


for line in sys.stdin:
    participants, rounds = map(int, line.split())
    seconds, params = run(participants, rounds)
    print(json.dumps({"seconds": seconds, "params": params}), flush=True)
