"""Every code block of the README and the docs runs, the tour prints what it shows, and quotations are verbatim."""

import itertools
import re
import shlex
import textwrap
import warnings
from pathlib import Path

import pytest

from fedsgm.__main__ import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TOUR = ROOT / "docs" / "tour.md"  # its blocks follow on from each other
ALGORITHM = ROOT / "docs" / "algorithm.md"  # its blocks are quotations


def blocks(page):
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.S | re.M)


def verdicts(text):
    return re.findall(r"\b(?:NOT )?FEASIBLE(?=: )", text)


# What a page's code finds where the page does not show it, if that is not one run within every bound.
FOUND = {
    "baselines.md-2": ["FEASIBLE", "FEASIBLE"],  # the penalty's answer, if not its end, and centralised IPP-ConEx
    "models.md-0": ["FEASIBLE"] * 3,  # one for each kind of module
    "cmdp.md-0": None,  # three rounds of five hundred: either
}

BLOCKS = [
    pytest.param(
        language,
        text,
        (verdicts(shown) if of == "text" else []) or FOUND.get(f"{page.name}-{i}", ["FEASIBLE"]),
        id=f"{page.name}-{i}",
    )
    for page in PAGES
    if page not in (TOUR, ALGORITHM)
    for i, ((language, text), (of, shown)) in enumerate(itertools.pairwise([*blocks(page), ("", "")]))
    if language != "text"  # what a command printed
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, with the examples in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")


def run(language, text, names, monkeypatch, capsys):
    """Run a block and return what it printed."""
    if language == "python":
        exec(compile(text, "example", "exec"), names)
        return capsys.readouterr().out
    assert language == "sh", f"a block of {language} is not tested"
    printed = ""
    commands = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    for command in filter(None, commands):
        if command[0] == "make":
            assert re.search(rf"^{command[1]}:", (ROOT / "Makefile").read_text(), re.M), f"no such target: {command}"
            continue
        assert command[0] == "fedsgm", f"not tested: {command}"
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as stopped, warnings.catch_warnings():
            main()
        out, err = capsys.readouterr()
        assert stopped.value.code == 0, err
        printed += out
    return printed


@pytest.mark.parametrize(("language", "text", "found"), BLOCKS)
@pytest.mark.usefixtures("folder", "_programs_go_with_their_test")
def test_code_block_runs(language, text, found, monkeypatch, capsys):
    """And a program's verdicts are those that the page shows, or that its runs are within every bound."""
    printed = run(language, text, {"__name__": "example"}, monkeypatch, capsys)
    if language == "python":
        assert len(verdicts(printed)) == 1 if found is None else verdicts(printed) == found


NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def same(shown, printed):
    """The same words, and numbers that differ by no more than another machine's rounding may bring about.

    Which of many equally good rounds has the answer is such a thing.
    """
    shown, printed = (re.sub(r"\(rounds? \d+(?: \.\. \d+)?", "(round", line) for line in (shown, printed))
    words = [re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip() for line in (shown, printed)]
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    return words[0] == words[1] and all(float(a) == pytest.approx(float(b), rel=0.1, abs=0.02) for a, b in pairs)


@pytest.mark.usefixtures("folder")
def test_the_tour_prints_what_it_shows(monkeypatch, capsys):
    names = {"__name__": "example"}
    printed, found, shown = [], [], []
    for language, text in blocks(TOUR):
        if language != "text":
            printed = run(language, text, names, monkeypatch, capsys).splitlines()
            found += verdicts("\n".join(printed)) if language == "python" else []
            continue
        shown += verdicts(text)
        left = iter(printed)
        for line in filter(str.strip, text.splitlines()):
            assert any(same(line, other) for other in left), f"not printed: {line!r}, but\n" + "\n".join(printed)
    assert found == shown
    assert found.count("FEASIBLE") >= 5


def test_quotations_are_the_source():
    quoted = re.findall(r"\]\(\.\./(\S+)\):\n\n```python\n(.*?)^```$", ALGORITHM.read_text(), re.S | re.M)
    assert [text for _, text in quoted] == [text for _, text in blocks(ALGORITHM)], "a block does not name its file"
    for source, text in quoted:
        code = (ROOT / source).read_text()
        depths = [depth for depth in range(0, 17, 4) if f"\n{textwrap.indent(text, ' ' * depth)}" in code]
        assert depths, f"{source} has no such lines:\n{text}"


def test_every_line_of_algorithm_1_is_explained():
    explained = set()
    for lines in re.findall(r"^## Lines? ([\d, -]+):", ALGORITHM.read_text(), re.M):
        for part in lines.split(","):
            first, _, last = part.strip().partition("-")
            explained |= set(range(int(first), int(last or first) + 1))
    assert explained == set(range(1, 41))


def test_pictures_of_the_docs_are_there():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points at {target}"


def test_the_results_in_the_readme_are_those_of_the_page():
    table = (ROOT / "README.md").read_text().partition("<!-- results -->")[2].partition("<!-- end of results -->")[0]
    page = (ROOT / "docs" / "results.md").read_text()
    rows = [line.split(" | ")[-2:] for line in table.splitlines() if line.startswith("|")][2:]
    numbers = re.findall(r"\d+ of \d+|\d+\.\d+", " ".join(cell for row in rows for cell in row))
    assert len(numbers) >= 2 * len(rows) - 1
    assert not [number for number in numbers if number not in page]
