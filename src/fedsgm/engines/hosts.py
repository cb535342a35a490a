"""Several processes as one run, on one machine or on many: each has devices, and on them a share of the clients."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import HostError, SettingError

_WORDS, _EVERY = "fedsgm/words", 2.0  # where each process says that it is there, and every so many seconds
_SILENCE = 30  # seconds after which a process that says nothing is gone
_START = 300  # seconds that processes wait for each other at the start
_EXCHANGE = "Gloo"  # what sends between processes on CPUs; of a short program its errors are ValueErrors


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Make this process one of several, before anything else is done with JAX.

    Args:
        coordinator: HOST:PORT of the first process; ``"auto"`` finds it, and the two numbers, where SLURM, Open MPI or
            Kubernetes has started the processes, as JAX does.
        processes: how many there are.
        process: which one this is, from 0.
    """
    auto = coordinator == "auto"
    if not auto and (":" not in coordinator or processes is None or process is None):
        raise SettingError(
            f"--coordinator {coordinator}: write HOST:PORT of the first process, with --processes N and --process I, "
            "or auto under SLURM, Open MPI or Kubernetes"
        )
    if processes is not None and process is not None and not 0 <= process < processes:
        raise SettingError(f"--process {process}: with --processes {processes}, it must be 0 to {processes - 1}")
    try:
        jax.distributed.initialize(
            None if auto else coordinator,
            processes,
            process,
            heartbeat_timeout_seconds=3 * _SILENCE,  # when JAX aborts
            initialization_timeout=_START,
        )
    except ValueError as error:  # nothing to find them by
        raise SettingError(f"--coordinator auto: {error}; write HOST:PORT, --processes and --process") from error
    except RuntimeError as error:
        raise HostError(
            f"the processes did not all join at {coordinator} within {_START} s ({_first(error)})"
        ) from error
    try:
        jax.devices()
    except RuntimeError as error:
        raise HostError(
            f"others cannot reach this process; see that its machine's name, {socket.gethostname()}, has an address "
            f"({_first(error)})"
        ) from error


def agreed(number: int) -> int:
    """The first process's number, in all of them."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


@contextlib.contextmanager
def all_there() -> Iterator[None]:
    """In a run on several processes, say in one sentence that another one is gone."""
    if jax.process_count() == 1:
        yield
        return
    try:
        with _heard():
            yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if not isinstance(error, jax.errors.JaxRuntimeError) and _EXCHANGE not in str(error):
            raise
        raise HostError(_gone(_first(error))) from error


@contextlib.contextmanager
def _heard() -> Iterator[None]:
    """Say again and again that this process is there, and end it when another has said nothing for long.

    A process that is killed breaks its connections, which an exchange tells. One whose machine is cut off does not: the
    exchange waits, and in the end JAX would abort all of them. Words go by way of the first process, so that this one's
    own do not come back where that is gone.
    """
    from jax._src import distributed  # nothing public has the client

    client: Any = distributed.global_state.client
    if client is None:  # they found each other in another way
        yield
        return
    over, own = threading.Event(), f"{_WORDS}/{jax.process_index()}"
    heard: dict[str, tuple[str, float]] = {own: ("", time.monotonic())}

    def speak() -> None:
        for count in itertools.count():
            with contextlib.suppress(Exception):  # then this process's own word is not heard
                client.key_value_set(own, str(count), allow_overwrite=True)
                told = dict(client.key_value_dir_get(_WORDS))
                for name in told.keys() | heard.keys():
                    if name not in told:
                        del heard[name]  # it has come to its end
                    elif told[name] != heard.get(name, ("", 0.0))[0]:
                        heard[name] = told[name], time.monotonic()
            if over.wait(_EVERY):
                return

    def listen() -> None:
        while not over.wait(_EVERY):
            silent = {name for name, (_, since) in list(heard.items()) if time.monotonic() - since > _SILENCE}
            if silent:
                who = "0" if own in silent else min(silent).rpartition("/")[2]
                print(f"error: {_gone(f'process {who} says nothing for {_SILENCE} s')}", file=sys.stderr, flush=True)
                os._exit(1)  # the exchange that it waits in cannot be ended

    speaker, listener = (threading.Thread(target=each, daemon=True) for each in (speak, listen))
    speaker.start()
    listener.start()
    try:
        yield
    finally:
        over.set()
        listener.join()
        speaker.join(_EVERY)
        with contextlib.suppress(Exception):
            client.key_value_delete(own)  # it may be long until it speaks again


def _gone(why: str) -> str:
    return f"another process of this run is gone ({why}); start all of them again, from the checkpoint if there is one"


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0]
