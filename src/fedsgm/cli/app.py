"""The command line itself. Errors are one sentence and an exit code: 1 the run failed, 2 the command was wrong."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
from typing import Annotated

import typer

from fedsgm.base.errors import FedSGMError, SettingError
from fedsgm.base.progress import say

_LONGEST = 2000  # characters of an error

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(version("fedsgm"))
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Constrained federated learning: minimise a loss over many clients, subject to constraints."""


def main() -> None:
    """A command, and then ``SystemExit`` with its exit code."""
    warnings.showwarning = lambda message, *_: say(f"warning: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except FedSGMError as error:
        _stop(str(error), 2 if isinstance(error, SettingError) else 1)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        _stop(f"{where}{error.strerror or error or type(error).__name__}", 1)
    except MemoryError:
        _stop("there is not as much memory as this needs; take fewer or smaller ones of what it is given", 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer raises for a wrong command has one
            raise
        message = error.format_message()
        if not message:  # no command was given, and the help is printed
            sys.exit(2)
        _stop(message, 2)
    sys.exit(code if isinstance(code, int) else 0)


def script() -> None:
    """The console script: ``main``, after which the process is at its end.

    What Python and the libraries have to do at the end is done. Then it is gone at once: threads of XLA and of Arrow
    that are still there while their libraries are taken down can end it by SIGABRT instead of its exit code.
    """
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    else:
        code = 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons, as Python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that has gone away
            stream.flush()
    os._exit(code)


def _stop(message: str, code: int) -> None:
    line = " ".join(message.split())
    if len(line) > _LONGEST:  # a cell of a table may have any length
        line = f"{line[: _LONGEST // 2]} [...] {line[-_LONGEST // 2 :]}"
    say(f"error: {line}", file=sys.stderr)
    if "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        os._exit(code)  # one of several processes: what JAX does at the end would wait for the others
    sys.exit(code)
