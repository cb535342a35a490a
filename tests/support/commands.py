"""The command line in the tests' own process, and the folders of runs that it leaves."""

import contextlib
import dataclasses
import io
import json
import re
import sys
import tomllib
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import fedsgm
from fedsgm.__main__ import main

RUN = ("run", "neyman-pearson")


TINY = ("--rounds", "5", "--clients", "4", "--participants", "2", "--seeds", "1", "--no-progress")


SMALL = (*TINY, "--seeds", "2", "--bound", "0.15")


FILES = {"history.parquet", "params.safetensors", "settings.toml", "result.json", "history.png"}


@dataclasses.dataclass(frozen=True)
class Called:
    code: int
    out: str
    err: str


def call(*arguments, draw=True) -> Called:
    """``fedsgm ARGUMENTS`` in this process, as on a terminal of 80 columns."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedsgm", *map(str, arguments)])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own
        patch.setenv("COLUMNS", "80")
        if not draw:  # a picture takes longer than a tiny run
            patch.setattr(fedsgm.Result, "plot", lambda _, path: path.write_bytes(b""))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
            main()
    return Called(stop.value.code, out.getvalue(), err.getvalue())


class Run:
    """A run's folder, read."""

    def __init__(self, folder: Path, called: Called | None = None) -> None:
        self.folder, self.called = folder, called
        self.document = json.loads((folder / "result.json").read_text())
        self.settings = self.document["settings"]
        self.algorithm = self.settings["algorithm"]
        self.toml = tomllib.loads((folder / "settings.toml").read_text())
        self.result = fedsgm.Result.load(folder)
        self.history = self.result.history

    @property
    def vector(self) -> np.ndarray:
        """The first seed's last parameters."""
        return np.concatenate([np.ravel(leaf[0]) for leaf in jax.tree.leaves(self.result.last)])


def run(folder: Path, *flags, code=0, draw=False) -> Run:
    """A tiny run with these flags; a flag given again wins over the tiny run's own."""
    called = call(*RUN, *TINY, "--out", folder, *flags, draw=draw)
    assert called.code == code, called.err
    assert called.err == ""
    return Run(folder, called)


def one(folder: Path, *given) -> Run:
    """A run of its own, which a sweep must agree with."""
    called = call(*RUN, *SMALL, "--out", folder, *given, draw=False)
    assert called.code == 0, called.err
    return Run(folder, called)


def same_bits(left: Path, right: Path) -> bool:
    return all((left / name).read_bytes() == (right / name).read_bytes() for name in FILES - {"history.png"})


def spellings(command) -> set[str]:
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def assert_one_error(called: Called, code: int, *words: str) -> None:
    """One line on standard error, that says what is wrong, and an exit code."""
    assert called.code == code, called.err
    assert re.fullmatch(r"error: \S[^\n]*\n", called.err), called.err
    for word in words:
        assert re.search(word, called.err), f"{word!r} is not in: {called.err}"
    assert "Traceback" not in called.err + called.out
    assert "Errno" not in called.err, "a sentence, not an operating system's code"
