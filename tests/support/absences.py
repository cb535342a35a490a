"""The run of ``faulty`` without faults, but for clients that were away."""

import functools

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.client import Client, Store
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.protocol import Kind, Request
from fedsgm.tasks import neyman_pearson
from support import faulty

NAMES = [f"site-{j + 1}" for j in range(faulty.CLIENTS)]


def again(folder, rounds, tries):
    """The run of ``faulty`` in this process, clients absent where they were, and no fault besides.

    ``tries`` has three sets of names for each try of a round and for what comes after the last: who answered to its
    first question, which is also about the true values of the model that it starts from, who to that for updates, and
    who made an update, heard of or not.
    """
    stated = faulty.make(rounds)
    clients, test, _ = neyman_pearson.load(clients=faulty.CLIENTS)
    begun = []

    class Absent(InProcess):
        def exchange(self, requests, seconds):
            asked = Request.decode(next(iter(requests.values())))
            if (asked.round, asked.attempt) not in begun:
                begun.append((asked.round, asked.attempt))
            first, updated, made = tries[len(begun) - 1]
            heard = updated if asked.kind == Kind.UPDATE else first
            there = heard | made if asked.kind == Kind.UPDATE else first
            replies = super().exchange({name: each for name, each in requests.items() if name in there}, seconds)
            return {name: reply for name, reply in replies.items() if name in heard}

    program = Program.of(stated.algorithm, stated.problem, stated.params)
    start = {name: functools.partial(Client, program, clients[j], folder / name) for j, name in enumerate(NAMES)}
    result = fs.federate(
        *(stated.algorithm, stated.problem, Absent(start, folder), stated.params),
        rounds=rounds,
        test=test,
        progress=False,
    )
    assert len(begun) == len(tries)
    return result


def second_away(answered, evaluated):
    """The tries of a run whose second client alone was ever away, by how many answered and were measured in a round."""
    measured = [faulty.CLIENTS, *evaluated]
    return [
        (set(NAMES[: int(first)]), set(NAMES[: int(then)]), set())
        for first, then in zip(measured, [*answered, 0], strict=True)
    ]


def unsent(folders, tries):
    """What each client's disk has of updates that the server has not used: its memory, and a message made in vain."""
    stated = faulty.make(1)
    program, uplink = Program.of(stated.algorithm, stated.problem, stated.params), stated.algorithm.uplink
    updated = [names for _, names, _ in tries if names]  # in the rounds that count
    for name, folder in zip(NAMES, folders, strict=True):
        state = Store(folder, program.init_memory()).read()
        used = max(t for t, names in enumerate(updated) if name in names)
        vain = state.sent.round != used
        yield state.memory.error + vain * program.dense(program.decode(state.sent.message, uplink), uplink)
