"""FedAvg in Flower's simulation, for peers.py, in an environment of its own: its ``FedAvg``, clients in NumPy."""

import json
import logging
import sys
import time

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

path, (step, local_steps, warm) = sys.argv[1], (json.loads(word) for word in sys.argv[2:])
with np.load(path) as data:
    n, rows, features = data["x"].shape
logging.getLogger("flwr").setLevel(logging.ERROR)
client = ClientApp()


@client.train()
def train(message, context):
    with np.load(path) as data:
        j = context.node_config["partition-id"]
        x, y = np.column_stack([data["x"][j], np.ones(rows, np.float32)]), data["y"][j]
    (w,) = message.content["arrays"].to_numpy_ndarrays()
    for _ in range(local_steps):
        w = w - step * (x.T @ (1 / (1 + np.exp(-(x @ w))) - y)) / rows
    content = {"arrays": ArrayRecord([w.astype(np.float32)]), "metrics": MetricRecord({"num-examples": rows})}
    return Message(content=RecordDict(content), reply_to=message)


class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        if server_round == warm:
            self.began = time.perf_counter()
        self.ended = time.perf_counter()
        return result


def run(participants, rounds):
    found = {}
    server = ServerApp()

    @server.main()
    def main(grid, _):
        strategy = Timed(participants / n, 0.0, min_train_nodes=participants, min_available_nodes=n)
        start = ArrayRecord([np.zeros(features + 1, np.float32)])
        result = strategy.start(grid, start, num_rounds=warm + rounds)
        found.update(seconds=strategy.ended - strategy.began, params=result.arrays.to_numpy_ndarrays()[0].tolist())

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray = quiet | {"_node_ip_address": "127.0.0.1"}
    run_simulation(server, client, n, backend_config={"client_resources": {"num_cpus": 1}, "init_args": ray})
    return found


for line in sys.stdin:
    participants, rounds = map(int, line.split())
    print(json.dumps(run(participants, rounds)), flush=True)
