"""The command line itself. Errors are one sentence and an exit code: 1 the run failed, 2 the command was wrong."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated

import typer

from fedsgm.base.errors import FedSGMError, SettingError
from fedsgm.base.progress import say

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("fedsgm"))
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Constrained federated learning: minimise a loss over many clients, subject to constraints."""


def main() -> None:
    """The console script."""
    warnings.showwarning = lambda message, *_: say(f"warning: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except FedSGMError as error:
        _stop(str(error), 2 if isinstance(error, SettingError) else 1)
    except (OSError, MemoryError) as error:
        _stop(f"{type(error).__name__}: {error}", 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer raises for a wrong command has one
            raise
        message = error.format_message()
        if not message:  # no command was given, and the help is printed
            sys.exit(2)
        _stop(message, 2)
    sys.exit(code if isinstance(code, int) else 0)


def _stop(message: str, code: int) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    if "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        os._exit(code)  # one of several processes: what JAX does at the end would wait for the others
    sys.exit(code)
