"""A convolutional network of flax on handwritten digits: the least loss with a bound on that of every digit.

python examples/digits_cnn.py
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from sklearn.datasets import load_digits

import fedsgm as fs


class CNN(nn.Module):
    @nn.compact
    def __call__(self, image):
        for channels in (8, 16):
            image = nn.relu(nn.Conv(channels, (3, 3), strides=2)(image))
        return nn.Dense(10)(image.ravel())


model = CNN()
params = model.init(jax.random.key(0), jnp.zeros((8, 8, 1)))


def loss(params, example):
    return -jax.nn.log_softmax(model.apply(params, example["image"]))[example["digit"]]


def is_digit(example, k):
    return example["digit"] == k


images, digits = load_digits(return_X_y=True)
examples = {"image": np.float32(images / 16).reshape(-1, 8, 8, 1), "digit": digits}
clients = fs.split(examples, clients=20, scheme=fs.iid(stratify="digit"), seed=0)
each = [fs.Mean(loss, where=functools.partial(is_digit, k=k), name=f"digit {k}") <= 0.25 for k in range(10)]
algorithm = fs.FedSGM(step_size=0.3, local_steps=5, participants=10, rule=fs.Adaptive(), batch_size=16)
result = fs.simulate(algorithm, fs.Problem(loss, each), clients, params, rounds=60, progress=False)
print(result.verdict())
