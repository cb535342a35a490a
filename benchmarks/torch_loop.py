"""What the algorithm costs around PyTorch: ``simulate`` with a torch problem beside a plain FedAvg loop in PyTorch.

    python benchmarks/torch_loop.py [--quick] [--threads 1]

The same work: a CNN on scikit-learn's digits, 10 of 20 Dirichlet clients a round, E = 5 steps on batches of 32, no
constraint, nothing compressed, no evaluation but at the end. The loop is what one writes, at its best: one model whose
state is set back for each client, tensors sliced once, plain SGD, states averaged in place. Before anything is timed
both must end at the same parameters, from the same batches. They take turns; a ratio is taken within a turn, of the
longer of two runs less the shorter, so that set-up is no part of it.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fedsgm as fs
from fedsgm.torch.rounds import draw

CLIENTS, PARTICIPANTS, STEPS, BATCH, STEP_SIZE = 20, 10, 5, 32, 0.1
ROUNDS = (5, 35)
TARGET = 1.0

Draws = list[tuple[np.ndarray, np.ndarray]]
"""For each round the participants, and the examples of each of their steps."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        return self.head(F.max_pool2d(F.relu(self.second(x)), 2).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, for both")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    module, clients = Net(), deal()
    algorithm = fs.FedSGM(STEP_SIZE, STEPS, PARTICIPANTS, fs.Unconstrained(), batch_size=BATCH)
    loop = plain(module, clients, draws(algorithm, clients, ROUNDS[1]))
    run = simulated(module, clients, algorithm)
    apart = check(loop, run)
    turns = [{"loop": cost(loop), "fedsgm": cost(run)} for _ in range(3 if options.quick else 7)]
    size = sum(p.numel() for p in module.parameters())
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; jax {jax.__version__}, torch {torch.__version__}, ",
        end="",
    )
    print(f"{options.threads} thread{'s' if options.threads > 1 else ''} of PyTorch; {size} parameters")
    print(f"after {ROUNDS[0]} rounds the loop's parameters are within {apart:.0e} of fedsgm's\n")
    print("a round        ms wall   ms CPU")
    for name, label in (("loop", "PyTorch loop"), ("fedsgm", "simulate")):
        wall, cpu = (1e3 * statistics.median(turn[name][i] for turn in turns) for i in (0, 1))
        print(f"{label:13}{wall:9.1f}{cpu:9.1f}")
    ratios, of_cpu = (sorted(turn["fedsgm"][i] / turn["loop"][i] for turn in turns) for i in (0, 1))
    ratio = statistics.median(ratios)
    print(
        f"simulate / loop {ratio:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}), CPU {statistics.median(of_cpu):.2f}", end=""
    )
    print(f"   <= {TARGET:g}x {'met' if ratio <= TARGET else 'not met'}: {ratio:.2f}x")


def deal() -> fs.Clients:
    x, y = load_digits(return_X_y=True)
    data = {"x": (x / 16).astype(np.float32).reshape(-1, 1, 8, 8), "y": y.astype(np.int32)}
    return fs.split(data, clients=CLIENTS, scheme=fs.dirichlet(0.5, by="y", least=10), seed=0)


def loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(module(batch["x"]), batch["y"], reduction="none")


def simulated(module: nn.Module, clients: fs.Clients, algorithm: fs.FedSGM) -> Callable[[int], dict[str, np.ndarray]]:
    problem = fs.torch.Problem(module, loss)
    settings = {"evaluate_every": 0, "progress": False}
    return lambda rounds: fs.simulate(algorithm, problem, clients, rounds=rounds, **settings).last


def draws(algorithm: fs.FedSGM, clients: fs.Clients, rounds: int) -> Draws:
    """What the run of seed 0 draws, ready before the loop is timed."""
    counts, found = clients.counts.astype(np.int32), []
    for t in range(rounds):
        who, _, (_, steps, _), _ = draw(algorithm, len(clients), 0, t, counts)
        found.append((np.asarray(who), np.asarray(steps)))
    return found


def plain(module: nn.Module, clients: fs.Clients, draws: Draws) -> Callable[[int], dict[str, np.ndarray]]:
    """FedAvg as one writes it."""
    data = [
        (torch.tensor(clients[j]["x"]), torch.tensor(clients[j]["y"], dtype=torch.long)) for j in range(len(clients))
    ]
    batches = [(who.tolist(), torch.tensor(index.astype(np.int64))) for who, index in draws]

    def run(rounds: int) -> dict[str, np.ndarray]:
        server, local = copy.deepcopy(module), copy.deepcopy(module)
        optimizer = torch.optim.SGD(local.parameters(), STEP_SIZE)
        for who, index in batches[:rounds]:
            state = {name: tensor.clone() for name, tensor in server.state_dict().items()}
            total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            for k, client in enumerate(who):
                x, y = data[client]
                local.load_state_dict(state)
                for rows in index[k]:
                    optimizer.zero_grad()
                    F.cross_entropy(local(x[rows]), y[rows]).backward()
                    optimizer.step()
                for name, tensor in local.state_dict().items():
                    total[name] += tensor / len(who)
            server.load_state_dict(total)
        return {name: tensor.numpy() for name, tensor in server.state_dict().items()}

    return run


def check(loop: Callable[[int], dict[str, np.ndarray]], run: Callable[[int], dict[str, np.ndarray]]) -> float:
    """The same parameters, or there is nothing to compare."""
    mine, theirs = run(ROUNDS[0]), loop(ROUNDS[0])
    apart = max(float(np.abs(mine[name] - theirs[name]).max()) for name in mine)
    if apart > 1e-4:
        raise SystemExit(f"after {ROUNDS[0]} rounds the loop and fedsgm are {apart:g} apart")
    return apart


def cost(run: Callable[[int], object]) -> tuple[float, float]:
    """Seconds of wall and of CPU time of a round."""
    measured = []
    for rounds in ROUNDS:
        began, cpu = time.perf_counter(), time.process_time()
        run(rounds)
        measured.append((time.perf_counter() - began, time.process_time() - cpu))
    (a, b), (c, d) = measured
    return (c - a) / (ROUNDS[1] - ROUNDS[0]), (d - b) / (ROUNDS[1] - ROUNDS[0])


if __name__ == "__main__":
    main()
