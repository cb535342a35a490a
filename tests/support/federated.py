"""The Neyman-Pearson run on five clients, and an account of every update, for the tests of federated runs."""

import numpy as np

import fedsgm as fs
from fedsgm.federation import Failure, Program
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.run import Run
from fedsgm.tasks.neyman_pearson import load, neyman_pearson

CLIENTS, TEST, PARAMS = load(clients=5)
PROBLEM = neyman_pearson()
ALGORITHM = fs.FedSGM(
    step_size=0.1,
    local_steps=5,
    participants=3,
    rule=fs.Soft(beta=40.0),
    uplink=fs.TopK(0.1),
    downlink=fs.TopK(0.1),
)
PROGRAM = Program.of(ALGORITHM, PROBLEM, PARAMS)
DATA = [PROGRAM.prepare(CLIENTS[j]) for j in range(len(CLIENTS))]


def true_values(w):
    """Objective and constraint over all clients."""
    values, _ = PROGRAM.summarise([PROGRAM.evaluate(w, data) for data in DATA])
    return float(values["objective"]), float(values["minority"])


def counting():
    """A transport that counts the bytes of what crosses it, and its count."""
    sent = {"up": 0, "down": 0}

    class Counting(InProcess):
        def exchange(self, requests, seconds):
            replies = super().exchange(requests, seconds)
            sent["down"] += sum(map(len, requests.values()))
            sent["up"] += sum(len(reply) for reply in replies.values() if not isinstance(reply, Failure))
            return replies

    return Counting, sent


class Book:
    """What really happened: every update that a client has on disk, every message that the server used."""

    def __init__(self):
        self.updates = [{} for _ in CLIENTS.counts]  # by client and round
        self.used = [{} for _ in CLIENTS.counts]
        self.writes = 0
        self.versions = {0: PROGRAM.start}


class Watched(InProcess):
    """Clients whose writes are entered in a book."""

    def __init__(self, start, folder, plan=None):
        super().__init__(start, folder, plan)
        self.book = Book()
        for name in self.processes:
            self._watch(name)

    def restart(self, name):
        super().restart(name)
        self._watch(name)

    def delete(self, name):
        super().delete(name)
        number = self.clients().index(name)
        self.book.updates[number].clear()  # that memory is lost, once
        self.book.used[number].clear()

    def _watch(self, name):
        number, store = self.clients().index(name), self.processes[name].store
        plain = store.write

        def write(state):
            plain(state)
            self.book.writes += 1
            sent = state.sent
            self.book.updates[number][sent.round] = state.memory.error + vector(sent.message) - sent.before.error

        store.write = write


class Stopped(BaseException):
    """The end of the server's process."""


class Server(Run):
    """A server whose every round is entered in the book, and that can be killed before or after its checkpoint."""

    def __init__(self, transport, folder=None, *, resume=True, **settings):
        super().__init__(PROGRAM, transport, **{"seed": 0, "rounds": 1000, "evaluate_every": 0} | settings)
        self.book, self.kill = transport.book, None
        self.round_used = {}
        if folder is not None:
            self.keep_in(fs.Checkpoint(folder, resume=resume), {})

    def _update(self, who, direction):
        updates, reasons = super()._update(who, direction)
        self.round_used = {client: PROGRAM.dense(u.message, ALGORITHM.uplink) for client, u in updates.items()}
        return updates, reasons

    def save(self):
        if self.kill == "before its checkpoint":
            raise Stopped
        super().save()
        if self.round not in self.book.versions:  # else it is saved only that a try of the next round has failed
            for client, message in self.round_used.items():
                self.book.used[client][self.round - 1] = message
            self.book.versions[self.round] = self.model.replica
        if self.kill == "after its checkpoint":
            raise Stopped


def vector(message):
    return PROGRAM.dense(PROGRAM.decode(message, ALGORITHM.uplink), ALGORITHM.uplink)


def check_books(server, transport):
    """Updates = used messages + memory for every client, and every replica is the server's of that version."""
    book = transport.book
    for number, name in enumerate(transport.clients()):
        state, disk = transport.processes[name].state, transport.processes[name].store.read()
        if state is not None and state.version >= 0:
            assert state.version <= server.round
            np.testing.assert_array_equal(state.replica, book.versions[state.version])
        if disk is None:
            continue
        np.testing.assert_array_equal(disk.memory.error, state.memory.error)
        used, updates = book.used[number], book.updates[number]
        assert used.keys() <= updates.keys()
        memory = disk.memory.error
        if server.accounts[number].used != disk.sent.round:
            assert disk.sent.round not in used
            memory = memory + vector(disk.sent.message)
        np.testing.assert_allclose(sum(used.values()) + memory, sum(updates.values()), rtol=1e-4, atol=1e-4)


def check_model(server, book):
    """The server's model is the start and the mean of the used messages of every round (no client lost its state)."""
    rounds = {t for used in book.used for t in used}
    means = [np.mean([used[t] for used in book.used if t in used], axis=0) for t in sorted(rounds)]
    assert rounds == set(range(server.round))
    np.testing.assert_allclose(
        server.server.model, PROGRAM.start - float(ALGORITHM.step_size) * np.sum(means, axis=0), rtol=1e-4, atol=1e-4
    )
