"""Every code block of the README and the docs runs: Python as it stands, and every ``fedsgm`` command."""

import re
import shlex
import warnings
from pathlib import Path

import pytest

from fedsgm import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(language, text, id=f"{page.name}-{i}")
    for page in PAGES
    for i, (language, text) in enumerate(re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.S | re.M))
    if language != "text"  # what a command printed
]


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_code_block_runs(language, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if language == "python":
        exec(compile(text, "example", "exec"), {"__name__": "example"})
        assert "FEASIBLE" in capsys.readouterr().out
        return
    assert language == "sh", f"a block of {language} is not tested"
    commands = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    for command in filter(None, commands):
        if command[0] == "make":
            assert re.search(rf"^{command[1]}:", (ROOT / "Makefile").read_text(), re.M), f"no such target: {command}"
            continue
        assert command[0] == "fedsgm", f"not tested: {command}"
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as stopped, warnings.catch_warnings():
            cli.main()
        assert stopped.value.code == 0, capsys.readouterr().err


def test_pictures_of_the_docs_are_there():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points at {target}"
