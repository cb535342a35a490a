"""The benchmarks themselves: what ``make bench`` runs is there, and ratios are what they are said to be."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import turns  # noqa: E402

RUN = re.search(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.M).group(1).split()


@pytest.mark.parametrize("name", RUN)
def test_make_bench_runs_what_is_there_with_a_quick_way(name):
    assert '"--quick"' in (ROOT / "benchmarks" / f"{name}.py").read_text()


def test_the_page_tells_of_every_benchmark_that_is_run():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [name for name in RUN if f"`python benchmarks/{name}.py`" not in page] == []


def test_the_page_names_no_benchmark_that_is_gone():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [
        name for name in re.findall(r"benchmarks/(\w+\.py)", page) if not (ROOT / "benchmarks" / name).exists()
    ] == []


def test_a_ratio_is_taken_within_a_turn(capsys):
    taken = [{"fedsgm": (1.0, 1.0), "loop": (4.0, 2.0)}, {"fedsgm": (10.0, 2.0), "loop": (20.0, 6.0)}]
    taken.append({"fedsgm": (2.0, 1.0), "loop": (6.0, float("nan"))})
    assert turns.ratios(taken, "loop", "fedsgm") == [2, 3, 4]
    turns.table(taken, "s", {"loop": turns.at_least(3)})
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("loop")
    assert line.endswith(">= 3x met: 3x")


def test_steady_rounds_have_no_start(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(turns.time, "process_time", lambda: 2 * now[0])

    def run(rounds):
        now[0] += 5 + 0.25 * rounds

    assert turns.steady(run, 4, 12)() == (0.25, 0.5)


@pytest.mark.parametrize(("ratio", "words"), [(2.0, "fedsgm <= 3x met: 2x"), (4.0, "fedsgm <= 3x not met: 4x")])
def test_a_floor_is_judged_the_other_way_round(ratio, words):
    assert turns.floor_within(3)(1 / ratio) == words
