"""Data of a federation in which ``site-2`` harms its run: an answer of its is too large for its server's engine, and
later its process is stopped in mid-round, until another client tells it to go on.
"""

import os
import signal
from pathlib import Path

from fedsgm.federation.client import Client, Store
from fedsgm.federation.protocol import header
from support import patient

LARGE, LARGEST = 96 * 2**20, 80 * 2**20  # bytes of the answer, and of what the server's engine takes
TELLS, STOPS, GOES_ON = 1, 3, 11  # rounds: of the answer, of the update that it is stopped over, and of site-1's word


def load(name, folder, **_):
    write, answer, stopped = Store.write, Client.answer, Path(folder) / "stopped"

    def harmful_write(store, state):
        write(store, state)
        if name == "site-2" and state.sent.round == STOPS and not stopped.exists():
            stopped.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        if name == "site-1" and state.sent.round == GOES_ON:
            os.kill(int(stopped.read_text()), signal.SIGCONT)

    def harmful_answer(client, request):
        large = name == "site-2" and header(request)[3] == TELLS
        return answer(client, request) + bytes(large * LARGE)

    Store.write, Client.answer = harmful_write, harmful_answer
    return patient.load(name)
