"""What is said of a run while nothing of it is done."""

import queue

import pytest

from fedsgm.base import progress


@pytest.fixture
def said(monkeypatch):
    """Lines as they are said, where nobody watches and everything takes long at once."""
    lines = queue.Queue()
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.01)
    monkeypatch.setattr(progress, "say", lambda text, **_: lines.put(text))
    return lines


def test_a_compilation_that_takes_long_is_said(said):
    with progress.Progress("np", 3) as bar:
        assert said.get(timeout=60) == "np: compiling"
        bar.doing("measuring")
        assert said.get(timeout=60) == "np: measuring"


@pytest.mark.parametrize("told", [True, False])
def test_what_is_over_is_not_said(monkeypatch, told):
    monkeypatch.setattr(progress, "_LINE_EVERY", 3600.0)
    with progress.Progress("np", 3, show=told) as bar:
        waiting = bar._soon
        assert (waiting is not None) == told
        bar.update(1)
        assert waiting is None or waiting.finished.is_set()
        bar.doing("measuring")
    assert bar._soon is None or bar._soon.finished.is_set()


def test_the_bar_says_what_goes_on(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress.Progress("np", 3) as bar:
        notes = [bar._bar.tasks[0].fields["note"]]
        bar.update(3, objective=0.5)
        notes.append(bar._bar.tasks[0].fields["note"])
        bar.doing("measuring")
        notes.append(bar._bar.tasks[0].fields["note"])
    assert notes == ["compiling", "objective 0.5", "measuring"]
