"""What the tests of a real federation run: Neyman-Pearson, with code on the clients that does harm when it is told to.

A file ``exit-NAME`` or ``hang-NAME`` in the folder makes the client of that name end its process, or hang, once; while
there is a file ``wait-NAME``, it waits. It writes the round and the attempt of each of its updates into ``made-NAME``.
"""

import os
import time
from pathlib import Path

import jax

import fedsgm as fs
from fedsgm.federation import Experiment
from fedsgm.federation.client import Store
from fedsgm.tasks import neyman_pearson as task

CLIENTS = 2
me = {}
_plain_write = Store.write


def _write(store, state):
    _plain_write(store, state)
    with (Path(me["folder"]) / f"made-{me['name']}").open("a") as file:
        file.write(f"{state.sent.round} {state.attempt}\n")


def harm(_):
    for kind in ("exit", "hang") if me else ():  # not on the server
        told = Path(me["folder"]) / f"{kind}-{me['name']}"
        try:
            told.rename(told.with_name(f"done-{told.name}"))
        except FileNotFoundError:
            continue
        if kind == "exit":
            os._exit(7)
        time.sleep(600)
    while me and (Path(me["folder"]) / f"wait-{me['name']}").exists():
        time.sleep(0.05)


def loss(params, example):
    jax.debug.callback(harm, params["b"])
    return task.logistic_loss(params, example)


def make(rounds, timeout=120.0, **_):
    problem = fs.Problem(
        objective=fs.Mean(loss, where=task.majority),
        constraints=[fs.Mean(loss, where=task.minority, name="minority") <= 0.05],
    )
    algorithm = fs.FedSGM(
        step_size=0.3, local_steps=1, rule=fs.Soft(beta=40.0), uplink=fs.TopK(0.1), downlink=fs.TopK(0.1)
    )
    _, test, params = task.load(clients=CLIENTS)
    return Experiment(algorithm, problem, params, rounds, test=test, timeout=timeout)


def load(name, folder, **_):
    me.update(name=name, folder=folder)
    Store.write = _write
    clients, _, _ = task.load(clients=CLIENTS)
    return clients[int(name.rpartition("-")[2]) - 1]
