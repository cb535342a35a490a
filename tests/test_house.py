"""The house stands as CONTRIBUTING.md shows it: folders that import one way, few files to a round, short functions."""

import ast
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import fedsgm as fs
from fedsgm.federation import Program
from fedsgm.federation.inprocess import InProcess
from support.federated import ALGORITHM, CLIENTS, PARAMS, PROBLEM

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedsgm"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]


def picture():
    """Every folder from the top down, what it is for by its own words, and its modules."""
    floors = []
    for layer in LAYERS:
        words = ast.get_docstring(ast.parse((SOURCE / layer / "__init__.py").read_text()))
        modules = sorted(
            path.stem if path.is_file() else f"{path.name}/"
            for path in (SOURCE / layer).iterdir()
            if path.name not in ("__init__.py", "__pycache__") and path.suffix in ("", ".py")
        )
        first = " ".join(words.partition("\n\n")[0].replace("``", "").split())
        lines = [*textwrap.wrap(first, 100), *textwrap.wrap(", ".join(modules), 100)]
        floors.append("\n".join(f"{layer if i == 0 else '':11}│ {line}" for i, line in enumerate(lines)))
    return f"\n{'▼':>12}\n".join(floors)


def test_contributing_has_the_picture():
    shown = re.search(r"```text\n(.*?)\n```", CONTRIBUTING, re.S).group(1)
    assert shown == picture(), f"CONTRIBUTING.md must show:\n{picture()}"


@pytest.fixture
def lint(tmp_path):
    """``lint-imports`` on a copy of the source with more lines at the end of a module."""

    def run(module, line):
        copy = tmp_path / "fedsgm"
        subprocess.run(["cp", "-r", SOURCE, copy], check=True)
        with (copy / module).open("a") as file:
            file.write(f"\n{line}\n")
        command = [Path(sys.executable).parent / "lint-imports", "--config", ROOT / "pyproject.toml", "--no-cache"]
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("core/rules.py", "from fedsgm.engines import simulate"),
        ("base/files.py", "def save():\n    from fedsgm.results.result import Result"),
        ("federation/run.py", "import fedsgm.cli.flags"),
        ("cli/run.py", "def reproduce():\n    import fedsgm.paper.page"),
        ("theory/lemmas.py", "import fedsgm"),
    ],
)
def test_an_import_that_goes_up_is_found(lint, module, line):
    done = lint(module, line)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
    name = module.removesuffix(".py").replace("/", ".")
    assert f"fedsgm.{name} -> fedsgm" in done.stdout


def test_the_source_as_it_is_passes(lint):
    done = lint("core/rules.py", "")
    assert done.returncode == 0, done.stdout
    assert "2 ignored imports" in done.stdout, "the two doors, and no more"


# To understand a round: what runs in one, less base/, the bytes of a message, and the problem with its words.
VOCABULARY = (
    "base/",
    "core/examples.py",
    "core/pooling.py",
    "core/quantities.py",
    "core/drawing.py",
    "core/topk.py",
    "core/wire.py",
    "core/bits.py",
    "tables/models.py",
    "tasks/",
)
SIMULATED = {
    *("core/algorithm.py", "core/compression.py", "core/feedback.py", "core/problem.py", "core/rules.py"),
    *("core/walk.py", "engines/recording.py", "engines/rounds.py"),
}
FEDERATED = {
    *(SIMULATED - {"engines/rounds.py"}),
    *("engines/checkpoint.py", "federation/answers.py", "federation/client.py", "federation/inprocess.py"),
    *("federation/panel.py", "federation/program.py", "federation/protocol.py", "federation/run.py"),
}


def files_of(monkeypatch, name, call):
    """The files of the package whose code runs inside a function, while something is called."""
    seen = set()
    module, _, function = name.rpartition(":")
    owner = sys.modules[module.partition("/")[0]]
    for part in module.split("/")[1:]:
        owner = getattr(owner, part)
    real = getattr(owner, function)

    def watch(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            seen.add(str(path.relative_to(SOURCE)))

    def traced(*args, **more):
        sys.setprofile(watch)
        try:
            return real(*args, **more)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(owner, function, traced)
    call()
    return {file for file in seen if not file.startswith(VOCABULARY)}


def test_eight_files_to_a_simulated_round(monkeypatch):
    def run():
        fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=1, progress=False, debug=True)

    assert files_of(monkeypatch, "fedsgm.engines.rounds:one_round", run) == SIMULATED
    assert len(SIMULATED) == 8


def test_fifteen_files_to_a_federated_one(monkeypatch, tmp_path):
    monkeypatch.setattr("os.fsync", lambda _: None)
    top = fs.TopK(0.2)  # of its own: what is compiled already would not be seen
    program = Program.of(fs.FedSGM(0.1, 2, 3, fs.Soft(30.0), uplink=top, downlink=top), PROBLEM, PARAMS)

    def run():
        transport = InProcess.of(program, CLIENTS, tmp_path / "clients")
        fs.federate(
            *(program.algorithm, PROBLEM, transport, PARAMS), rounds=2, checkpoint=tmp_path / "server", progress=False
        )

    assert files_of(monkeypatch, "fedsgm.federation.run/Run:step", run) == FEDERATED
    assert len(FEDERATED) == 15


def test_contributing_names_the_files_to_a_round():
    for files in (SIMULATED, FEDERATED):
        for file in files:
            assert f"`{file}`" in CONTRIBUTING, f"{file} is not among the files to read"


# A signature that users call by name, or whose parameters typer makes flags of.
MANY = {"cli/setups.py:cartpole", "cli/fit.py:_own", "engines/simulate.py:simulate", "federation/server.py:federate"}
MANY |= {"tables/dealing.py:prepare", "tables/estimator.py:__init__", "torch/engine.py:simulate"}


# Over the length: in core by docstrings with mathematics and examples; the others are to be cut.
LONG = {"core/algorithm.py", "core/problem.py", "core/quantities.py", "core/rules.py", "engines/recording.py"}
LONG |= {"engines/rounds.py", "federation/flare/submit.py", "federation/program.py", "federation/run.py"}


def test_no_file_or_function_is_long():
    found, long = set(), set()
    for path in SOURCE.rglob("*.py"):
        text, name = path.read_text(), str(path.relative_to(SOURCE))
        if text.count("\n") > 350:
            long.add(name)
        assert text.count("\n") <= 400, f"{name} has more than 400 lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                given = node.args
                words = len((ast.get_docstring(node) or "").splitlines())
                if node.end_lineno - node.lineno - words >= 80:
                    long.add(f"{name}:{node.name}")
                if len(given.args) + len(given.posonlyargs) + len(given.kwonlyargs) > 10:
                    found.add(f"{name}:{node.name}")
    assert found == MANY
    assert long == LONG, "more than 350 lines, or a function of more than 80 beside its docstring"
