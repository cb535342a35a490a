"""Sweeps: every row is what a run of its own gives, nothing is run twice, the best is named rightly."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import typer

import fedsgm
from fedsgm.__main__ import app
from fedsgm.base import progress
from fedsgm.cli import building, flags
from fedsgm.cli import grid as sweep
from fedsgm.results.result import KINDS
from support.commands import SMALL, assert_one_error, call, one, spellings, write
from support.flags import CASES, ELSEWHERE

ANSWER = KINDS.index("answer")
SWEEP = ("sweep", "neyman-pearson")
VARY = ("--vary", "rule=hard,soft", "--vary", "step-size=0.1,0.9", "--vary", "beta=5,40")
SETTINGS = {
    "rule hard, step-size 0.1": "--rule hard --step-size 0.1",
    "rule hard, step-size 0.9": "--rule hard --step-size 0.9",
    "rule soft, step-size 0.1, beta 5.0": "--rule soft --step-size 0.1 --beta 5",
    "rule soft, step-size 0.1, beta 40.0": "--rule soft --step-size 0.1 --beta 40",
    "rule soft, step-size 0.9, beta 5.0": "--rule soft --step-size 0.9 --beta 5",
    "rule soft, step-size 0.9, beta 40.0": "--rule soft --step-size 0.9 --beta 40",
}
"""What the grid comes to, in its order: the hard rule has no beta, and is run once for both."""


def swept_to(folder: Path, *given, code=0):
    called = call(*SWEEP, *SMALL, "--out", folder, *given)
    assert called.code == code, called.err
    assert called.err == ""
    return called


def rows_of(folder: Path) -> list[dict]:
    return pyarrow.parquet.read_table(folder / "sweep.parquet").to_pylist()


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The small sweep, and what it printed."""
    folder = tmp_path_factory.mktemp("swept") / "out"
    return folder, swept_to(folder, *VARY)


@pytest.fixture(scope="module")
def alone(swept, tmp_path_factory):
    """Each of its settings as a run of its own."""
    assert swept
    folder = tmp_path_factory.mktemp("alone")
    return {label: one(folder / str(i), *given.split()) for i, (label, given) in enumerate(SETTINGS.items())}


# The grid ------------------------------------------------------------------------------------------------------------

TYPES = {"rounds": int, "step_size": float, "rule": flags.RuleName, "centralized": flags._truth, "uplink": str}


def test_grid_is_every_combination_with_the_last_varying_fastest():
    assert sweep.grid(["step-size=0.1, 3", "rounds=1,2"], TYPES) == [
        {"step_size": 0.1, "rounds": 1},
        {"step_size": 0.1, "rounds": 2},
        {"step_size": 3.0, "rounds": 1},
        {"step_size": 3.0, "rounds": 2},
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=3", [3]),
        ("step-size=1e-3,2", [0.001, 2.0]),
        ("step_size=1", [1.0]),
        (" rounds = 1 , 2 ", [1, 2]),
        ("rule=hard,primal-dual", [flags.RuleName.hard, flags.RuleName.primal_dual]),
        ("centralized=true,false", [True, False]),
        ("uplink=topk:count=3,none", ["topk:count=3", "none"]),
    ],
)
def test_grid_reads_values_as_the_flag_would(text, expected):
    values = [value for setting in sweep.grid([text], TYPES) for value in setting.values()]
    assert values == expected
    assert [type(value) for value in values] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ([], "a sweep needs something to vary, such as --vary step-size=0.1,0.3"),
        (["rounds"], "--vary 'rounds': write SETTING=VALUE,VALUE, such as step-size=0.1,0.3"),
        (["rounds="], "--vary 'rounds=': write SETTING=VALUE,VALUE, such as step-size=0.1,0.3"),
        (
            ["round=1"],
            "--vary 'round=1': there is no setting 'round'; the settings are "
            "centralized, rounds, rule, step-size, uplink",
        ),
        (
            ["step-size=1", "step_size=2"],
            "--vary 'step_size=2': step_size is varied twice; give all its values at once",
        ),
        (["rounds=1,2.5"], "--vary 'rounds=1,2.5': '2.5' is no value of rounds"),
        (["step-size=0.1,,2"], "--vary 'step-size=0.1,,2': '' is no value of step-size"),
        (["rule=hard,fast"], "--vary 'rule=hard,fast': 'fast' is no value of rule"),
        (["centralized=yes"], "--vary 'centralized=yes': 'yes' is no value of centralized"),
    ],
)
def test_grid_refuses(vary, message):
    with pytest.raises(fedsgm.SettingError, match=f"^{re.escape(message)}$"):
        sweep.grid(vary, TYPES)


def test_settings_that_another_rule_uses_are_left_out():
    """From what each rule is: only the soft one has a beta, and so on; ipp-conex has no step size and no clients."""
    everything = {
        **{"margin": 1, "query": 1, "unheard": 1, "memory": 1, "adapt": 1},
        **{
            "beta": 1,
            "rho": 1,
            "dual_step": 1,
            "augment": 1,
            "proximal": 1,
            "primal_scale": 1,
            "dual_scale": 1,
        },
        **{
            "offset": 1,
            "inner_steps": 1,
            "step_size": 1,
            "anneal": 1,
            "participants": 1,
            "uplink": 1,
            "downlink": 1,
            "centralized": 1,
        },
        **{"rounds": 1, "bound": 1, "local_steps": 1, "radius": 1, "tolerance": 1, "batch_size": 1},
    }
    shared = {"rounds", "bound", "local_steps", "radius", "tolerance", "batch_size"}
    federated = {
        "step_size",
        "anneal",
        "participants",
        "query",
        "unheard",
        "uplink",
        "downlink",
        "memory",
        "centralized",
    }
    expected = {
        "hard": shared | federated | {"margin"},
        "soft": shared | federated | {"beta", "margin"},
        "adaptive": shared | federated | {"adapt", "margin"},
        "penalty": shared | federated | {"rho"},
        "primal-dual": shared | federated | {"dual_step", "augment"},
        "unconstrained": shared | federated,
        "ipp-conex": shared | {"proximal", "primal_scale", "dual_scale", "offset", "inner_steps"},
    }
    assert expected.keys() == set(flags.RuleName)
    for rule, names in expected.items():
        assert flags.relevant(everything, flags.RuleName(rule)).keys() == names


# A sweep on the command line -----------------------------------------------------------------------------------------


def test_every_row_is_what_a_run_of_its_own_gives(swept, alone):
    rows = rows_of(swept[0])
    assert [(row["setting"], row["seed"]) for row in rows] == [(label, seed) for label in SETTINGS for seed in (0, 1)]
    for row in rows:
        run = alone[row["setting"]]
        j = row["seed"]
        history = run.history["minority"][j]
        assert row["objective"] == run.document["values"]["train"]["objective"][ANSWER][j]
        assert row["constraint minority"] == run.document["values"]["train"]["minority"][ANSWER][j]
        assert row["excess"] == pytest.approx(row["constraint minority"] - 0.15, abs=1e-7)
        assert row["feasible_rounds"] == np.mean(history <= np.float32(0.15))
        assert row["kind"] == run.algorithm["rule"]["is"]
    feasible = [row["excess"] <= 0 for row in rows]
    assert any(feasible), "the sweep must have both kinds"
    assert not all(feasible), "the sweep must have both kinds"


def test_the_table_has_the_feasible_first_and_names_the_best(swept, alone):
    """From the runs' own files: feasible for every seed by mean objective, then the others by their worst seed."""
    ends = {label: run.document["values"]["train"] for label, run in alone.items()}
    worst = {label: max(end["minority"][ANSWER]) for label, end in ends.items()}
    mean = {label: np.mean(end["objective"][ANSWER]) for label, end in ends.items()}
    over = {label: value > np.float32(0.15) for label, value in worst.items()}
    expected = sorted(SETTINGS, key=lambda label: (over[label], worst[label] if over[label] else mean[label]))
    assert 0 < sum(over.values()) < len(over)
    lines = swept[1].out.splitlines()
    head, table = lines[0], lines[1 : 1 + len(SETTINGS)]
    assert head.split() == [
        "objective",
        "minority",
        "(worst)",
        "over",
        "by",
        "seeds",
        "feasible",
        "last",
        "100",
        "rounds",
    ]
    cells = [re.split(r"\s{2,}", line) for line in table]
    assert [row[0] for row in cells] == expected
    for label, objective, minority, excess, seeds, share in cells:
        assert float(objective) == pytest.approx(mean[label], rel=1e-3)
        assert float(minority) == pytest.approx(worst[label], rel=1e-3)
        assert excess == "within" if not over[label] else float(excess) == pytest.approx(worst[label] - 0.15, rel=1e-2)
        assert seeds == f"{sum(np.array(ends[label]['minority'][ANSWER]) <= np.float32(0.15))} of 2"
        assert share == f"{np.mean(alone[label].history['minority'] <= np.float32(0.15)):.0%}"
    best = expected[0]
    assert f"Best feasible: {best}, objective {mean[best]:.4g} (mean of 2 seeds)." in lines
    assert lines[-1] == f"Saved in {swept[0]}: sweep.parquet, sweep.png"


def test_the_folder_has_the_table_and_the_picture(swept):
    folder, _ = swept
    assert {path.name for path in folder.iterdir()} == {"sweep.parquet", "sweep.png"}
    table = pyarrow.parquet.read_table(folder / "sweep.parquet")
    assert table.column_names == [
        *("setting", "kind", "seed", "objective", "excess", "feasible_rounds"),
        "constraint minority",
    ]
    base = json.loads(table.schema.metadata[b"fedsgm"])
    assert base.items() >= {"rounds": 5, "clients": 4, "participants": 2, "bound": 0.15, "seeds": 2, "seed": 0}.items()
    assert not {"rule", "step_size", "beta", "out", "progress", "config"} & base.keys()
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_a_point_for_every_seed_and_a_ring_around_the_best(swept, drawn):
    folder, called = swept
    again = swept_to(folder, *VARY, "--resume")
    assert again.out == called.out
    (figure,) = drawn
    (axis,) = figure.axes
    rows = rows_of(folder)
    points = np.concatenate([c.get_offsets() for c in axis.collections[:-1]])
    np.testing.assert_allclose(points, [[row["excess"], row["objective"]] for row in rows], rtol=1e-6)
    best = re.search("Best feasible: (.*), objective", called.out)[1]
    ring = axis.collections[-1].get_offsets()
    np.testing.assert_allclose(ring, [[r["excess"], r["objective"]] for r in rows if r["setting"] == best], rtol=1e-6)
    (low, high), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    assert ((low < points[:, 0]) & (points[:, 0] < high)).all()
    assert ((bottom < points[:, 1]) & (points[:, 1] < top)).all()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Hard", "Soft", "best feasible"]


def test_none_is_feasible(tmp_path):
    called = swept_to(tmp_path / "out", "--vary", "step-size=0.1,0.2", "--bound", "0.01")
    assert "Best feasible: none; no answer is within every bound for every seed." in called.out
    assert "within" not in called.out.splitlines()[1]


def test_a_task_s_own_setting_and_a_compressor_are_varied(tmp_path):
    swept_to(tmp_path / "out", "--vary", "bound=0.2,5", "--vary", "uplink=none,topk:0.1")
    rows = rows_of(tmp_path / "out")
    labels = [f"bound {bound}, uplink {uplink}" for bound in ("0.2", "5.0") for uplink in ("none", "topk:0.1")]
    assert list(dict.fromkeys(row["setting"] for row in rows)) == labels
    for label, given in ((labels[0], "--bound 0.2 --uplink none"), (labels[3], "--bound 5 --uplink topk:0.1")):
        run = one(tmp_path / "one", *given.split())
        found = [row["objective"] for row in rows if row["setting"] == label]
        assert found == run.document["values"]["train"]["objective"][ANSWER]


def test_seeds_seed_and_their_grid(tmp_path):
    """The seeds of a row are the run's own, whether the first is a flag or varied."""
    swept_to(tmp_path / "flag", "--vary", "step-size=0.9", "--seed", "5")
    swept_to(tmp_path / "varied", "--vary", "seed=5,0", "--step-size", "0.9")
    flag, varied = rows_of(tmp_path / "flag"), rows_of(tmp_path / "varied")
    assert [row["seed"] for row in flag] == [5, 6]
    assert [(row["setting"], row["seed"]) for row in varied] == [
        *(("seed 5", 5), ("seed 5", 6)),
        *(("seed 0", 0), ("seed 0", 1)),
    ]
    assert [row["objective"] for row in flag] == [row["objective"] for row in varied[:2]]
    again = swept_to(tmp_path / "varied", "--vary", "seed=5,0", "--step-size", "0.9", "--resume")
    assert "Best feasible" in again.out


def test_a_config_file_may_hold_the_grid(swept, tmp_path):
    vary = [text for text in VARY if text != "--vary"]
    config = write(tmp_path / "c.toml", f"vary = {json.dumps(vary)}\nbound = 0.15\nseeds = 2\nrounds = 5\n")
    called = call(
        *SWEEP, "--clients", "4", "--participants", "2", "--config", config, "--no-progress", "--out", tmp_path
    )
    assert called.code == 0, called.err
    assert rows_of(tmp_path) == rows_of(swept[0])


@pytest.fixture
def canned(swept, alone, monkeypatch):
    """Sweeps that run nothing: the settings that they would run, and a finished run's result for each."""
    assert swept
    result = next(iter(alone.values())).result
    seen = []
    monkeypatch.setattr(building, "simulate", lambda flags, *_: (seen.append(flags), result)[1])
    return seen


VALUES = {
    "anneal": "0.5",
    "rule": "penalty",
    "ceiling": "0.5",
    "uplink": "topk:0.5",
    "downlink": "none",
    "centralized": "true",
    "query": "all",
    "unheard": "left-out",
    "memory": "false",
}


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(flags.RunFlags) if f.name in flags.value_types([])]
)
def test_every_setting_can_be_varied(name, canned, tmp_path):
    """And reaches the run, as a value of its type; the others keep what the command line says."""
    rule = next((rule for rule, names in flags.OWN.items() if name in names), "hard")
    value = VALUES.get(name, "3")
    called = call(*SWEEP, *SMALL, "--rule", rule, "--vary", f"{name}={value}", "--out", tmp_path)
    assert called.code == 0, called.err
    (used,) = canned
    expected = flags.value_types([])[name](value)
    assert getattr(used, name) == expected
    others = {"rounds": 5, "participants": 2, "seeds": 2, "rule": rule, "checkpoint": None, "debug": False}
    others.pop(name, None)
    assert {other: getattr(used, other) for other in others} == others


HERE = {
    "--vary": "test_every_row_is_what_a_run_of_its_own_gives",
    "--resume": "test_resume_after_a_crash",
    "--out": "test_out_is_where_it_says",
    "--progress": "test_progress_of_a_sweep",
    "--no-progress": "test_progress_of_a_sweep",
    "--seeds": "test_seeds_seed_and_their_grid",
    "--seed": "test_seeds_seed_and_their_grid",
    "--bound": "test_none_is_feasible",
    "--config": "test_a_config_file_may_hold_the_grid",
}


def test_every_flag_of_sweep_has_a_test():
    """Those that are run's too have theirs with it, and reach the sweep's runs by test_every_setting_can_be_varied."""
    of_run = {word for case in CASES for word in case.flags.split() if word.startswith("--")} | set(ELSEWHERE)
    command = typer.main.get_command(app).commands["sweep"].commands["neyman-pearson"]
    assert spellings(command) <= of_run | set(HERE)
    assert set(HERE) <= spellings(command)
    of_one_run = {"--checkpoint", "--checkpoint-every", "--debug", "--require-feasible", "--watch", "--log", "--track"}
    assert of_run - spellings(command) == of_one_run | {"--coordinator", "--processes", "--process"}
    assert all(callable(globals().get(test)) for test in HERE.values())


def test_out_is_where_it_says(canned, tmp_path, monkeypatch):
    """sweeps/TASK unless told; what was there is replaced unless it is gone on with."""
    monkeypatch.chdir(tmp_path)
    for value in ("0.1", "0.2"):
        assert call(*SWEEP, *SMALL, "--vary", f"step-size={value}").code == 0
    assert len(canned) == 2
    folder = tmp_path / "sweeps" / "neyman-pearson"
    assert {row["setting"] for row in rows_of(folder)} == {"step-size 0.2"}


def test_progress_of_a_sweep(canned, tmp_path, monkeypatch):
    """One line a setting where nobody is watching; settings of an earlier grid in the folder are not counted."""
    monkeypatch.setattr(progress, "_LINE_EVERY", -1.0)
    loud = call(*SWEEP, *SMALL, "--progress", "--vary", "step-size=0.1,0.2", "--out", tmp_path)
    lines = loud.err.splitlines()
    assert re.fullmatch(r"sweep: setting 2 of 2  objective \S+  over \S+", lines[-1])
    assert len(lines) == 3
    quiet = call(*SWEEP, *SMALL, "--vary", "step-size=0.1,0.2", "--out", tmp_path)
    assert (quiet.err, quiet.out) == ("", loud.out)
    more = call(*SWEEP, *SMALL, "--progress", "--vary", "step-size=0.2,0.3,0.4", "--out", tmp_path, "--resume")
    assert [line.split("  ")[0] for line in more.err.splitlines()] == [f"sweep: setting {i} of 3" for i in (1, 2, 3)]
    assert len(canned) == 2 + 2 + 2
    assert "step-size 0.1" not in more.out, "only what was asked for is shown"
    assert len(rows_of(tmp_path)) == 4 * 2, "and what was there is kept"


# Going on ------------------------------------------------------------------------------------------------------------


def counting(monkeypatch, stop_at=None):
    """Count the runs, and press Ctrl-C in one of them."""
    real, seen = fedsgm.simulate, []

    def simulate(algorithm, *args, **more):
        seen.append(algorithm)
        if len(seen) == stop_at:
            raise KeyboardInterrupt
        return real(algorithm, *args, **more)

    monkeypatch.setattr(fedsgm, "simulate", simulate)
    return seen


def test_resume_after_a_crash(swept, tmp_path, monkeypatch):
    """Two of six settings are done; the other four are run, and the file is that of an uninterrupted sweep."""
    folder = tmp_path / "out"
    with monkeypatch.context() as patch:
        counting(patch, stop_at=3)
        assert call(*SWEEP, *SMALL, "--out", folder, *VARY).code == 130
    assert [row["setting"] for row in rows_of(folder)[::2]] == list(SETTINGS)[:2]
    assert not (folder / "sweep.png").exists()
    seen = counting(monkeypatch)
    called = swept_to(folder, *VARY, "--resume")
    assert [algorithm.rule for algorithm in seen] == [fedsgm.Soft(beta) for beta in (5.0, 40.0, 5.0, 40.0)]
    assert (folder / "sweep.parquet").read_bytes() == (swept[0] / "sweep.parquet").read_bytes()
    assert called.out.replace(str(folder), "") == swept[1].out.replace(str(swept[0]), "")


def test_resume_where_there_is_nothing_yet(canned, tmp_path):
    assert call(*SWEEP, *SMALL, "--out", tmp_path, *VARY, "--resume").code == 0
    assert len(canned) == len(SETTINGS)


@pytest.fixture
def kept(swept, tmp_path, monkeypatch):
    """A copy of the sweep's folder; that nothing is run is part of every test."""
    monkeypatch.setattr(fedsgm, "simulate", lambda *_, **__: pytest.fail("a run had begun"))
    return Path(shutil.copytree(swept[0], tmp_path / "kept"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--rounds 6", ("rounds", "5 there", "6 here")),
        ("--bound 0.4", ("bound", r"0\.15 there", r"0\.4 here")),
        ("--seed 3", ("seed", "0 there", "3 here")),
        ("--uplink none", ("uplink", "'topk:0.1' there", "'none' here")),
        ("--radius 2", ("radius", "not set there", r"2\.0 here")),
        ("--vary bound=0.15", ("bound", r"0\.15 there", "varied or not set here")),
    ],
)
def test_resume_refuses_another_setting(given, words, kept):
    before = (kept / "sweep.parquet").read_bytes()
    called = call(*SWEEP, *SMALL, "--out", kept, *VARY, "--resume", *given.split())
    assert_one_error(called, 2, "--resume", re.escape(str(kept)), *words)
    assert (kept / "sweep.parquet").read_bytes() == before


@pytest.mark.parametrize("damage", ["empty", "cut", "in a page", "of another kind", "other columns"])
def test_resume_refuses_a_damaged_file(damage, kept):
    path = kept / "sweep.parquet"
    data = path.read_bytes()
    table = pyarrow.parquet.read_table(path)
    if damage == "of another kind":
        pyarrow.parquet.write_table(table.replace_schema_metadata(None), path)
    elif damage == "other columns":
        pyarrow.parquet.write_table(table.drop_columns(["seed"]), path)
    else:
        altered = data[:40] + bytes([data[40] ^ 1]) + data[41:]
        path.write_bytes({"empty": b"", "cut": data[:-50], "in a page": altered}[damage])
    called = call(*SWEEP, *SMALL, "--out", kept, *VARY, "--resume")
    assert_one_error(called, 2, re.escape(str(path)), "no sweep that can be gone on with", "remove it")


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", ("something to vary", "--vary step-size=0.1,0.3")),
        ("--vary step-size", ("'step-size'", "SETTING=VALUE")),
        ("--vary stepsize=1", ("no setting 'stepsize'", "step-size", "bound", "split")),
        ("--vary out=a,b", ("no setting 'out'",)),
        ("--vary progress=true", ("no setting 'progress'",)),
        ("--vary rounds=5 --vary rounds=6", ("rounds is varied twice",)),
        ("--vary rounds=few", ("'few' is no value of rounds",)),
        ("--rule hard --vary beta=1,2", ("--vary beta", "hard does not use it")),
        ("--vary rule=hard,ipp-conex --vary rho=1,2", ("--vary rho", "hard, ipp-conex does not use it")),
        ("--vary step-size=0.1,-1", ("step_size=-1.0", "above 0")),
        ("--vary participants=2,9", ("participants=9", "4 clients")),
        ("--vary uplink=none,zip", ("'zip'", "topk:0.1")),
        ("--vary radius=1 --box 1", ("--radius and --box",)),
        ("--vary beta=1 --checkpoint x", ("No such option", "--checkpoint")),
    ],
)
def test_wrong_sweeps(given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = call(*SWEEP, *SMALL, *given.split())
    assert_one_error(called, 2, *map(re.escape, words))
    assert called.out == ""
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_an_out_that_is_a_file(tmp_path, monkeypatch):
    taken = write(tmp_path / "taken", "mine")
    monkeypatch.setattr(fedsgm, "simulate", lambda *_, **__: pytest.fail("the run had begun"))
    assert_one_error(call(*SWEEP, *SMALL, *VARY, "--out", taken), 2, "--out", re.escape(str(taken)))
