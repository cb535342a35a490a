"""Several processes as one run, on one machine or on many: each has devices, and on them a share of the clients."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import jax
import numpy as np

from fedsgm.base.errors import HostError, SettingError

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
            heartbeat_timeout_seconds=_SILENCE,
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
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        exchanged = isinstance(error, jax.errors.JaxRuntimeError) or _EXCHANGE in str(error)
        if jax.process_count() == 1 or not exchanged:
            raise
        raise HostError(
            f"another process of this run is gone ({_first(error)}); start all of them again, from the checkpoint "
            "if there is one"
        ) from error


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0]
