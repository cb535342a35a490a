"""``fedsgm compare``: rows in the right order and words, and pictures of what the runs' own files say."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedsgm.results import comparison
from fedsgm.results.comparison import Row
from fedsgm.results.result import KINDS
from support.commands import assert_one_error, call, one, same_bits

ANSWER = KINDS.index("answer")

# The rows, their order and their words -------------------------------------------------------------------------------


def row(label, objective, excess, **constraints):
    n = len(objective)
    constraints = constraints or {"g": [e + 1 for e in excess]}
    return Row(label, "Hard", list(range(n)), objective, constraints, excess, [0.5] * n)


def test_ranked_and_best():
    rows = [
        row("far", [0.1, 0.1], [0.2, 0.9]),
        row("diverged", [0.1, np.nan], [-0.5, np.nan]),
        row("second", [0.5, 0.4], [-0.1, 0.0]),
        row("near", [9.0, 9.0], [-0.3, 0.1]),
        row("first", [0.1, 0.2], [-0.1, -1e-9]),
        row("diverged first", [np.nan, 0.1], [np.nan, -0.5]),
    ]
    ranked = [row.label for row in comparison.ranked(rows)]
    assert ranked == ["first", "second", "near", "far", "diverged", "diverged first"]
    assert [row.label for row in rows if row.feasible] == ["second", "first"], "exactly at the bound is within it"
    assert comparison.best(rows) == "Best feasible: first, objective 0.15 (mean of 2 seeds)."
    assert comparison.best(rows[:2]) == "Best feasible: none; no answer is within every bound for every seed."
    assert comparison.best([row("a", [0.25], [-1.0])]) == "Best feasible: a, objective 0.25 (one seed)."


@pytest.mark.parametrize("excess", [[-0.1, np.nan], [np.nan, -0.1]])
def test_a_seed_that_diverged_is_never_within(excess):
    lines = comparison.table([row("a", [0.1, np.nan], excess)]).splitlines()
    assert re.split(r"\s{2,}", lines[1]) == ["a", "undefined", "undefined", "undefined", "1 of 2", "50%"]


def test_rows_of_different_constraints_have_a_column_each():
    rows = [row("a", [1.0], [-1.0], one=[0.5]), row("b", [2.0], [0.25], two=[0.75], one=[1.0])]
    head, first, second = comparison.table(rows).splitlines()
    columns = {name: head.index(name) for name in ("one (worst)", "two (worst)")}
    assert first[columns["one (worst)"] :].startswith("0.5 ")
    assert first[columns["two (worst)"] :].startswith(" ")
    assert second[columns["two (worst)"] :].startswith("0.75 ")


@pytest.mark.parametrize(
    ("objective", "excess"),
    [([np.nan], [np.nan]), ([-1.0, 2.0], [0.1, -0.1]), ([0.0], [0.0]), ([1.0, 1.0], [-np.inf, -np.inf])],
    ids=["diverged", "below zero", "zero", "no constraint"],
)
def test_any_row_can_be_drawn(objective, excess, tmp_path, drawn):
    """Without a warning, which would be an error here; a value below zero is seen."""
    comparison.plot([row("a", objective, excess), row("b", [0.5], [0.2])], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    low = drawn[0].axes[0].get_ylim()[0]
    assert not low > np.nanmin([*objective, 0.5])


def test_rows_that_are_all_without_a_constraint_can_be_drawn(tmp_path):
    comparison.plot([row("a", [0.5], [-np.inf]), row("b", [0.7], [-np.inf])], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


# Comparing finished runs ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Finished runs by their settings; some end within the bound and some do not."""
    folder = tmp_path_factory.mktemp("alone")
    settings = ("--rule hard --step-size 0.1", "--rule hard --step-size 0.9", "--rule soft --step-size 0.9 --beta 5")
    runs = {given: one(folder / str(i), *given.split()) for i, given in enumerate(settings)}
    assert {run.document["feasible"] for run in runs.values()} == {True, False}
    return runs


@pytest.fixture(scope="module")
def central(tmp_path_factory):
    folder = tmp_path_factory.mktemp("central") / "central"
    return one(folder, "--centralized", "--rule", "hard", "--uplink", "none", "--downlink", "none")


def compare(*folders, plot):
    called = call("compare", *folders, "--plot", plot)
    assert (called.code, called.err) == (0, "")
    assert called.out.splitlines()[-1] == f"Picture: {plot}"
    return called.out.splitlines()


def test_compare_agrees_with_the_runs_own_files(alone, central, tmp_path):
    runs = [*alone.values(), central]
    lines = compare(*(run.folder for run in runs), plot=tmp_path / "deep" / "p.png")
    assert (tmp_path / "deep" / "p.png").read_bytes().startswith(b"\x89PNG")
    feasible = {}
    for run, line in zip(runs, lines[1:], strict=False):
        name, objective, minority, bound, excess, seeds, _ = re.split(r"\s{2,}", line)
        assert float(bound) == run.result.bounds["minority"]
        ends = {name: rows[ANSWER] for name, rows in run.document["values"]["train"].items()}
        assert name == run.folder.name, "in the order given"
        assert float(objective) == pytest.approx(np.mean(ends["objective"]), rel=1e-3)
        assert float(minority) == pytest.approx(max(ends["minority"]), rel=1e-3)
        assert (excess == "within") is run.document["feasible"] is (seeds == "2 of 2")
        if run.document["feasible"]:
            feasible[name] = np.mean(ends["objective"])
    best = min(feasible, key=feasible.get)
    assert f"Best feasible: {best}, objective {feasible[best]:.4g} (mean of 2 seeds)." in lines
    assert comparison.NOTE in lines


def test_runs_of_other_bounds_are_not_ranked(alone, tmp_path, drawn):
    """Nor is one of them the best in the picture."""
    run = next(iter(alone.values()))
    other = one(tmp_path / "other", "--rule", "hard", "--bound", "0.4")
    lines = compare(run.folder, other.folder, plot=tmp_path / "p.png")
    assert lines[0].split("  ")[-1].strip() == "last 100 rounds"
    assert [re.split(r"\s{2,}", line)[3] for line in lines[1:3]] == ["0.15", "0.4"]
    assert any(line.startswith("Not ranked: the runs are of different problems or bounds") for line in lines)
    assert not any(line.startswith("Best feasible") for line in lines)
    assert "best feasible" not in drawn[0].axes[-1].get_legend_handles_labels()[1]


def test_compare_draws_courses_in_gradient_steps(alone, central, tmp_path, drawn):
    """A round of E = 5 local steps is five steps of the centralised run, which is measured every fifth."""
    federated = next(iter(alone.values()))
    compare(federated.folder, central.folder, plot=tmp_path / "p.svg")
    (figure,) = drawn
    for axis, name in zip(figure.axes, ("objective", "minority"), strict=False):
        assert axis.get_ylabel() == name
        for line, run in zip(axis.lines, (federated, central), strict=False):
            np.testing.assert_array_equal(line.get_xdata(), [5, 10, 15, 20, 25])
            values = run.history[name].mean(axis=0)
            np.testing.assert_array_equal(line.get_ydata(), values[~np.isnan(values)])
    bound = figure.axes[1].lines[-1]
    np.testing.assert_allclose(bound.get_ydata(), 0.15)
    assert len(figure.axes) == 3
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][:2] == [federated.folder.name, central.folder.name]


def saved(run, folder, **changes) -> Path:
    """A run like this one, with another history and other ends."""
    dataclasses.replace(run.result, **changes).save(folder)
    return folder


def renamed(values, old, new):
    return {new if name == old else name: array for name, array in values.items()}


def test_compare_runs_of_different_constraints(alone, tmp_path, drawn):
    """A panel for each constraint, in it the runs that have it."""
    mine = next(iter(alone.values()))
    other = saved(
        mine,
        tmp_path / "other",
        ranges={"gap": (-np.inf, 0.7)},
        history=renamed(mine.history, "minority", "gap"),
        values={part: renamed(values, "minority", "gap") for part, values in mine.result.values.items()},
    )
    lines = compare(mine.folder, other, plot=tmp_path / "p.png")
    assert "minority (worst)" in lines[0]
    assert "gap (worst)" in lines[0]
    panels = {axis.get_ylabel(): axis for axis in drawn[0].axes[:-1]}
    assert list(panels) == ["objective", "minority", "gap"]
    for name, bound in (("minority", 0.15), ("gap", 0.7)):
        course, limit = panels[name].lines
        assert len(course.get_xdata()) == 5
        np.testing.assert_allclose(limit.get_ydata(), bound)
    assert len(panels["objective"].lines) == 2


def test_compare_shows_every_bound_and_a_run_far_beyond_it(alone, tmp_path, drawn):
    mine = next(iter(alone.values()))
    history = mine.history | {"minority": mine.history["minority"] * 0 + 4.0}
    far = saved(mine, tmp_path / "far", ranges={"minority": (-np.inf, 0.1)}, history=history)
    compare(mine.folder, far, plot=tmp_path / "p.png")
    axis = drawn[0].axes[1]
    assert sorted(float(line.get_ydata()[0]) for line in axis.lines[2:]) == pytest.approx([0.1, 0.15])
    assert axis.get_ylim()[1] > 4


def test_folders_of_one_name_are_told_apart(alone, tmp_path):
    mine = next(iter(alone.values())).folder
    folders = [Path(shutil.copytree(mine, tmp_path / parent / "run")) for parent in "ab"]
    lines = compare(*folders, mine, plot=tmp_path / "p.pdf")
    names = [re.split(r"\s{2,}", line)[0] for line in lines[1:4]]
    assert names == [str(folders[0]), str(folders[1]), mine.name]
    assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")


def test_compare_takes_the_folder_it_is_in(alone, tmp_path, monkeypatch):
    mine = Path(shutil.copytree(next(iter(alone.values())).folder, tmp_path / "mine"))
    monkeypatch.chdir(mine)
    assert compare(".", plot=tmp_path / "p.png")[1].startswith("mine ")
    called = call("compare", ".")
    assert called.code == 0
    assert (mine / "compare.png").is_file(), "the default"
    assert same_bits(mine, next(iter(alone.values())).folder)


def test_compare_refuses(alone, tmp_path):
    mine = next(iter(alone.values())).folder
    assert_one_error(call("compare"), 2, "Missing argument", "RUN")
    assert_one_error(call("compare", mine, tmp_path), 2, re.escape(str(tmp_path)), "not a run")
    assert_one_error(call("compare", tmp_path / "nowhere"), 2, "nowhere", "not a run")
    damaged = Path(shutil.copytree(mine, tmp_path / "damaged"))
    (damaged / "history.parquet").write_bytes(b"")
    assert_one_error(call("compare", mine, damaged), 2, "history.parquet", "altered")


@pytest.mark.parametrize("name", ["p.jpg", "p"])
def test_compare_refuses_a_picture_of_an_unknown_kind(name, alone, tmp_path):
    called = call("compare", next(iter(alone.values())).folder, "--plot", tmp_path / name)
    assert_one_error(called, 2, re.escape(name), r"\.png", r"\.svg", r"\.pdf")
    assert called.out == ""
    assert list(tmp_path.iterdir()) == []
