"""The run of ``faulty`` without faults, but for a client that was away."""

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.protocol import Kind, Request
from fedsgm.tasks import neyman_pearson
from support import faulty


def again(folder, answered, evaluated):
    """The run of ``faulty`` in this process, the second client absent where it was, and no fault besides.

    The true values that a round records are asked for in the next round's first exchange, which says who was there.
    """
    rounds = len(answered)
    stated = faulty.make(rounds)
    clients, test, _ = neyman_pearson.load(clients=faulty.CLIENTS)

    class Absent(InProcess):
        def exchange(self, requests, seconds):
            request = Request.decode(next(iter(requests.values())))
            t = request.round
            there = answered[t] if request.kind == Kind.UPDATE else evaluated[t - 1] if t else faulty.CLIENTS
            return super().exchange({c: r for c, r in requests.items() if c == "client-0" or there == 2}, seconds)

    transport = Absent.of(Program.of(stated.algorithm, stated.problem, stated.params), clients, folder)
    return fs.federate(
        stated.algorithm, stated.problem, transport, stated.params, rounds=rounds, test=test, progress=False
    )
