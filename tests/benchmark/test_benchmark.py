"""The benchmark through its commands, on a problem and a method from outside the package; its statistics by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import scipy.optimize
import typer

import fedsgm as fs
from fedsgm.__main__ import app
from fedsgm.benchmark import dealing, ranking, registry, runs
from fedsgm.benchmark.cases import TRIALS
from fedsgm.benchmark.measures import course
from support.commands import assert_one_error, call, spellings, write

FILE = Path(__file__).parents[2] / "examples" / "benchmark_case.py"
BOUND = 0.55
METHODS = ("defaults", "hard", "ceiling", "solver")


def bench(out, *methods, code=0, more=()):
    only = [word for name in methods for word in ("--only", name)]
    told = ("--only", "shops", "--with", FILE, "--quick", "--no-progress", "--out", out, *only, *more)
    called = call("benchmark", "run", "all", *told)
    assert called.code == code, called.err
    return called


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A quick benchmark of the user's own file, by two processes with two splits."""
    out = tmp_path_factory.mktemp("benchmark") / "out"
    bench(out, *METHODS, more=("--workers", "2", "--seeds", "2"))
    return out


def by_cell(folder):
    found = {}
    for row in runs.rows_of(folder):
        found.setdefault((row["method"], row["split"]), []).append(row)
    return found


def optimum(split):
    """Least squares of everybody plus a multiple of the small shops', raised until these keep the bound."""
    (load,) = (case.load for case in registry.of((str(FILE),))[0].values() if case.name == "shops")
    rows = load(split).clients.examples
    x, y, small = rows["x"].astype(np.float64), rows["y"].astype(np.float64), rows["small"]

    def errors(weight):
        scale = np.sqrt(1 / len(y) + weight * small / small.sum())
        return (x @ np.linalg.lstsq(scale[:, None] * x, scale * y, rcond=None)[0] - y) ** 2

    def past(weight):
        return errors(weight)[small].mean() - BOUND

    assert past(0) > 0, "the bound is below what comes without it"
    return errors(scipy.optimize.brentq(past, 0, 1e3, xtol=1e-12)).mean()


def test_a_problem_and_a_method_of_ones_own(ran):
    """Tuned on one split, run with what was chosen on the others, and nobody is below the optimum."""
    found = by_cell(ran)
    assert set(found) == {(method, split) for method in METHODS for split in (0, 1, 2)}
    for method in METHODS:
        trials = found[method, 0]
        assert [row["phase"] for row in trials] == ["tuning"] * (1 if method in ("defaults", "solver") else 2)
        chosen = runs.chosen(trials)["setting"]
        assert {row["setting"] for split in (1, 2) for row in found[method, split]} == {chosen}
    for split in (1, 2):
        best = optimum(split)
        (solved,) = found["solver", split]
        assert solved["train objective"] == pytest.approx(best, rel=1e-4)
        assert solved["train excess"] == pytest.approx(0, abs=1e-4)
        for method in ("defaults", "hard", "ceiling"):
            (row,) = found[method, split]
            assert row["train excess"] <= 0
            assert best - 1e-4 <= row["train objective"] < 1.2 * best
            assert (row["clients"], row["examples"], row["parameters"]) == (10, 180, 2)


def test_what_is_there_is_kept_and_what_is_missing_is_run(ran, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(ran, out)
    gone = out / "rows" / "shops" / "0.55" / "hard" / "split-2.parquet"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    (row,) = runs.read([gone])
    gone.unlink()
    assert_one_error(bench(out, code=2), 2, "there is a benchmark already; add --resume")
    bench(out, *METHODS, more=("--resume", "--workers", "1", "--seeds", "2"))
    assert runs.differences(row, *runs.read([gone])) == []
    same = {path: path.stat().st_mtime_ns for path in before if path != gone}
    assert same.items() <= before.items()
    called = call(*("benchmark", "run", "all", "--only", "neyman-pearson", "--only", "hard", "--resume", "--out", out))
    assert_one_error(called, 2, "what is there is quick; choose another folder")


def test_rows_again(ran, tmp_path):
    called = call("benchmark", "again", ran, "--rows", "2", "--seed", "1")
    assert called.code == 0, called.err
    assert called.out.splitlines()[-1] == "2 of 2 rows are the same."
    out = tmp_path / "out"
    shutil.copytree(ran, out)
    for path in out.rglob("*.parquet"):
        if path.name != "split-1.parquet" or path.parent.name != "defaults":
            path.unlink()
    (path,) = out.rglob("*.parquet")
    runs.write(path, [row | {"train objective": row["train objective"] + 1e-6} for row in runs.read([path])])
    called = call("benchmark", "again", out)
    assert_one_error(called, 2, "1 of 1 rows come to other numbers here")
    assert "train objective" in called.out


def test_report_puts_folders_together(ran, tmp_path):
    """Somebody else's folder has another method; its rows are in the tables, and rows of both are counted once."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, kept in ((ours, ("defaults", "hard", "solver")), (theirs, ("ceiling", "hard"))):
        shutil.copytree(ran, folder)
        for path in (folder / "rows" / "shops" / "0.55").iterdir():
            if path.name not in kept:
                shutil.rmtree(path)
    page = tmp_path / "docs" / "page.md"
    called = call("benchmark", "report", ours, theirs, "--page", page)
    assert called.code == 0, called.err
    text = page.read_text()
    assert text.split("\n\n")[1].startswith("**A quick look**")
    rows = {line.split(" | ")[0].strip("| *"): line.split(" | ") for line in text.splitlines() if line.startswith("|")}
    assert {name: rows[name][2] for name in METHODS} == dict.fromkeys(METHODS, "2")
    assert rows["solver"][3] == "-", "a reference has no place"
    assert f"from {len(list(runs.rows_of(ran)))} runs" in text
    assert "With 2 splits of problems, of 6 at least, nobody is said to be better." in text
    for name in ("ranks.png", "profiles.png", "trade-offs.png"):
        assert (page.parent / "page" / name).read_bytes().startswith(b"\x89PNG")
        assert f"(page/{name})" in text
    for file in (ours / "benchmark.json", theirs / "benchmark.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"with": []}))
    assert_one_error(
        call("benchmark", "report", ours, "--page", page), 2, "no case 'shops' here; give its file by --with"
    )
    assert call("benchmark", "report", ours, "--page", page, "--with", FILE).code == 0


def test_list_names_everything():
    called = call("benchmark", "list", "--with", FILE)
    assert called.code == 0
    cases, methods = registry.of((str(FILE),))
    assert all(f"\n{name} " in called.out for name in (*cases, *methods))


WRONG = {
    "run some": "benchmark run some: give one of all, natural, paper",
    "run all --only harder": "--only harder: it is neither a problem of the suite nor a method",
    "run all --with none.py": "--with none.py: there is no such file",
    "run all --with empty.py": "it has neither CASES nor METHODS",
    "run all --with broken.py": "it could not be run .ZeroDivisionError",
    "run all --with other.py": "1 is no Case of fedsgm.benchmark.cases",
    "report nowhere": "nowhere has no rows of a benchmark",
    "report nowhere --page page.html": "the name of a page must end in .md",
    "again nowhere": "nowhere has no rows of a benchmark",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_mistakes_get_one_sentence(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("empty.py"), "")
    write(Path("broken.py"), "1 / 0")
    write(Path("other.py"), "CASES = [1]")
    assert_one_error(call("benchmark", *arguments.split()), 2, WRONG[arguments])
    assert not Path("benchmarks-run").exists()


HERE = {
    "run": {
        "suite": "test_mistakes_get_one_sentence",
        "--out": "test_a_problem_and_a_method_of_ones_own",
        "--quick": "test_a_problem_and_a_method_of_ones_own",
        "--resume": "test_what_is_there_is_kept_and_what_is_missing_is_run",
        "--workers": "test_a_problem_and_a_method_of_ones_own",
        "--seeds": "test_a_problem_and_a_method_of_ones_own",
        "--only": "test_a_problem_and_a_method_of_ones_own",
        "--with": "test_a_problem_and_a_method_of_ones_own",
        "--progress": "test_progress_has_the_time_that_is_left",
        "--no-progress": "test_progress_has_the_time_that_is_left",
    },
    "again": {"out": "test_rows_again", "--rows": "test_rows_again", "--seed": "test_rows_again"},
    "report": {
        "folders": "test_report_puts_folders_together",
        "--page": "test_report_puts_folders_together",
        "--with": "test_report_puts_folders_together",
    },
    "list": {"--with": "test_list_names_everything"},
}


def test_every_flag_has_a_test():
    commands = typer.main.get_command(app).commands["benchmark"].commands
    assert {name: spellings(each) for name, each in commands.items()} == {
        name: set(all_) for name, all_ in HERE.items()
    }
    assert all(callable(globals()[test]) for tests in HERE.values() for test in tests.values())


def test_progress_has_the_time_that_is_left(ran, monkeypatch):
    monkeypatch.setattr("fedsgm.base.progress._LINE_EVERY", -1.0)
    told = ("--only", "shops", "--only", "hard", "--with", FILE, "--quick", "--resume", "--seeds", "2", "--out", ran)
    assert "benchmark: cell 1 of 1" in call("benchmark", "run", "all", *told).err
    assert call("benchmark", "run", "all", *told, "--no-progress").err == ""


def test_all_are_tuned_alike():
    """As many settings for each that is ranked but the defaults, which are not tuned; and enough natural clients."""
    cases, methods = registry.of()
    for case in cases.values():
        assert list(case.bounds) == sorted(case.bounds)
        counts = {name: len(each.trials(case)) for name, each in methods.items() if each.ranked and each.fits(case)}
        assert set(counts.values()) == {1, TRIALS}
        assert [name for name, count in counts.items() if count == 1] == ["defaults"]
        assert all(
            len({str(trial) for trial in each.trials(case)}) == len(each.trials(case)) for each in methods.values()
        )
    assert sum(case.natural is not None for case in cases.values()) >= 6


def row(method, objective, past, split=0, case="a", bound=1.0):
    told = {"case": case, "bound": bound, "split": split, "phase": "final", "method": method}
    return told | {"train objective": objective, "train excess": past}


def test_places_by_hand():
    """Within the bound comes first, then the objective, and then who is less past it; equal ones share a place."""
    rows = [row("b", 0.5, -0.1), row("a", 0.4, 0.0), row("c", 0.1, 0.2), row("d", 0.1, 0.1), row("e", 0.5001, -1.0)]
    (each,) = ranking.instances(rows, "abcde").values()
    assert ranking.places(each) == {"a": 1, "b": 2.5, "e": 2.5, "d": 4, "c": 5}
    assert ranking.places(each, ranking.HELD) == ranking.places(each), "there are no held-out rows"
    held = {
        name: row | {"test objective": place, "test excess": -1.0} for place, (name, row) in enumerate(each.items())
    }
    assert ranking.places(held, ranking.HELD) == {name: place + 1 for place, name in enumerate(each)}
    at = {("a", 1.0, 0): each}
    assert ranking.complete(at, lambda *_: True, "abcde") == at
    assert ranking.complete(at, lambda *_: True, "abcdef") == {}, "f is missing"
    assert ranking.complete(at, lambda method, case: (method, case) != ("f", "a"), "abcdef") == at
    assert ranking.above_best({("a", 1.0, 0): each}, "b") == [pytest.approx(0.25)]
    assert ranking.above_best({("a", 1.0, 0): each}, "c") == [np.inf]


def test_a_split_is_one_observation():
    """Ten bounds of one split are as sure as one: the interval is that of two clusters' means, whatever their sizes."""
    few = {("a", 0.0, split): float(split) for split in (0, 1)}
    many = {("a", bound, split): float(split) for split in (0, 1) for bound in np.arange(10.0)}
    assert ranking.estimated(few) == ranking.estimated(many) == (0.5, 0.0, 1.0)
    alone = {("a", bound, 0): bound for bound in np.arange(4.0)}
    assert ranking.estimated(alone) == (1.5, 1.5, 1.5)


def test_lasting_feasibility_by_hand():
    """The first round within from which on nine of ten are: here the fourth, as one of the eleven after is not."""
    over = np.array([0.1, -0.1, 0.2, *[-0.1] * 5, 0.3, *[-0.1] * 5], np.float32)
    result = fs.Result(
        history={
            "objective": np.zeros((1, 14), np.float32),
            "g": over[None],
            "bytes_up": np.full((1, 14), 2),
            "bytes_down": np.full((1, 14), 3),
        },
        **dict.fromkeys(("last", "average", "best_feasible", "answer"), np.zeros(1)),
        answer_round=np.array([2]),
        values={},
        ranges={"g": (-np.inf, 0.0)},
        settings={"rounds": 14, "evaluate_every": 1},
    )
    found = course(result)
    assert (found["lasting_round"], found["lasting_bytes"], found["bytes"]) == (4, 20, 70)
    assert found["rounds_within"] == pytest.approx(11 / 14)


def test_a_clients_rows_are_cut_three_one_one():
    rng = np.random.default_rng(0)
    owner = np.repeat([0, 1, 2], [50, 23, 1])
    x = np.stack([rng.normal(5, 3, 74), rng.integers(0, 2, 74)], axis=1).astype(np.float32)
    found = dealing.Features(x, rng.integers(0, 2, 74).astype(np.float32), rng.integers(0, 2, 74), owner)
    first, second = (dealing.split(found, number, lambda features, seed: (features, seed)) for number in (1, 2))
    assert first.clients.counts.tolist() == second.clients.counts.tolist() == [30, 14, 1]
    assert (len(first.validation["y"]), len(first.test["y"])) == (15, 14)
    assert not np.array_equal(first.test["x"], second.test["x"])
    train = first.clients.examples["x"]
    np.testing.assert_allclose([train[:, 0].mean(), train[:, 0].std()], [0, 1], atol=1e-5)
    assert set(np.unique(train[:, 1])) == {0, 1}
    both = np.concatenate([train, first.validation["x"], first.test["x"]])
    assert len(np.unique(both[:, 0])) == 74
    assert first.params == (2, 1)


def test_rows_that_are_none(tmp_path):
    path = tmp_path / "rows" / "a.parquet"
    path.parent.mkdir()
    path.write_bytes(b"PAR1")
    with pytest.raises(fs.SettingError, match="no file of a benchmark's rows"):
        list(runs.rows_of(tmp_path))
    runs.write(path, [{"a": 1}, {"b": 2.0}])
    assert pyarrow.parquet.read_table(path).to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 2.0}]
