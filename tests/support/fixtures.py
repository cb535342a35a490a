"""What the tests of several commands look at: a finished run, and the figures that are drawn."""

import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from support.commands import run


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The tiny run without further flags."""
    return run(tmp_path_factory.mktemp("base") / "run", draw=True)


@pytest.fixture
def damaged(base, tmp_path):
    """A copy of a finished run, to be damaged."""
    return Path(shutil.copytree(base.folder, tmp_path / "damaged"))


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, as objects."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **more: (figures.append(self), save(self, *args, **more))
    )
    return figures
