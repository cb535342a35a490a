"""What the command line says of itself."""

import functools
import operator
import re

import pytest
import typer

import fedsgm
from fedsgm.__main__ import app
from fedsgm.cli.setups import SETUPS
from support.commands import call, spellings


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--help", ["run", "show", "Constrained federated learning"]),
        ("-h", ["run", "show"]),
        ("run --help", ["neyman-pearson", "Least loss on the majority class"]),
        ("run neyman-pearson --help", ["result.json", "topk:0.1", "layers:", "exit with 3"]),
        ("show --help", ["RUN", "--plot", "--table", "verdict"]),
    ],
)
def test_help(arguments, words):
    shown = call(*arguments.split())
    assert (shown.code, shown.err) == (0, "")
    text = " ".join(re.sub(r"[│╭╰─╮╯]", " ", shown.out).split()).lower()
    assert [word for word in words if word.lower() not in text] == []


def commands(group=None, *path):
    """Every command by its path, and every group of commands."""
    group = group or typer.main.get_command(app)
    inside = [commands(each, *path, name) for name, each in getattr(group, "commands", {}).items()]
    return functools.reduce(operator.or_, inside, {path: group})


COMMANDS = commands()
GROUPS = [path for path, command in COMMANDS.items() if hasattr(command, "commands")]


def test_every_command_is_there():
    """And no other; of every experiment there are three."""
    tasks = {(*group, task) for group in (("run",), ("sweep",), ("federate", "local")) for task in SETUPS}
    alone = {
        ("fit",),
        ("predict",),
        ("show",),
        ("compare",),
        ("report",),
        ("reproduce",),
        ("sweep", "fit"),
        ("doctor",),
        *(("benchmark", name) for name in ("list", "run", "again", "report")),
        ("federate", "fit"),
        ("federate", "init"),
        ("federate", "submit"),
    }
    assert COMMANDS.keys() - set(GROUPS) == tasks | alone
    assert set(GROUPS) == {(), ("benchmark",), ("run",), ("sweep",), ("federate",), ("federate", "local")}
    assert SETUPS.keys() == {"neyman-pearson", "fair-adult", "cartpole"}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_names_every_flag(path):
    """On a terminal of the usual 80 columns, and in full."""
    command = COMMANDS[path]
    shown = call(*path, "--help").out
    flags = {flag for flag in spellings(command) if flag.startswith("-")}
    assert {flag for flag in flags if not re.search(rf"{flag}(?![\w-])", shown)} == set()


@pytest.mark.parametrize("arguments", GROUPS, ids=lambda path: " ".join(("fedsgm", *path)))
def test_no_arguments_print_the_help(arguments):
    shown = call(*arguments)
    assert shown.code == 2
    assert "Usage:" in shown.out
    assert shown.out.split() == call(*arguments, "--help").out.split()
    assert shown.err == "", "help is no error"


def test_version():
    called = call("--version")
    assert (called.code, called.out, called.err) == (0, f"{fedsgm.__version__}\n", "")
