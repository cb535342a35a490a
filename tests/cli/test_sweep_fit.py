"""``fedsgm sweep fit``: every row is what a fit of its own gives, and the best stands beside a constant answer."""

import re

import numpy as np
import pandas as pd
import pytest
import typer
from sklearn.metrics import log_loss

import fedsgm
from fedsgm.__main__ import app
from support.applications import applications
from support.commands import Run, assert_one_error, call, spellings, write

PARITY = ("--constraint", "demographic_parity(group) <= 0.1")
SHORT = ("--target", "granted", *PARITY, "--clients", "3", "--rounds", "30", "--no-progress")
VARY = ("--vary", "rule=adaptive,soft", "--vary", "model=logistic,mlp", "--vary", "hidden=4", "--vary", "beta=80")
SETTINGS = {
    "rule adaptive, model logistic": "--rule adaptive",
    "rule adaptive, model mlp, hidden 4": "--rule adaptive --model mlp --hidden 4",
    "rule soft, model logistic, beta 80.0": "--rule soft --beta 80",
    "rule soft, model mlp, hidden 4, beta 80.0": "--rule soft --beta 80 --model mlp --hidden 4",
}
"""What the grid comes to, in its order: the adaptive rule has no beta, and a logistic model no hidden layers."""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "t.csv"
    pd.DataFrame(applications(600)).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def swept(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept") / "out"
    called = call("sweep", "fit", table, *SHORT, *VARY, "--out", folder)
    assert (called.code, called.err) == (0, "")
    return folder, called


def rows_of(folder):
    return pd.read_parquet(folder / "sweep.parquet").set_index("setting")


def test_every_row_is_what_a_fit_of_its_own_gives(swept, table, tmp_path):
    rows = rows_of(swept[0])
    assert list(rows.index) == list(SETTINGS)
    for label, flags in SETTINGS.items():
        called = call("fit", table, *SHORT, *flags.split(), "--out", tmp_path, draw=False)
        assert called.code == 0, called.err
        run = Run(tmp_path)
        row = rows.loc[label]
        assert row["objective"] == run.result.value("train", "objective", "answer")[0]
        name = "demographic_parity(group)"
        assert row[f"constraint {name}"] == run.result.value("train", name, "answer")[0]
        good = run.settings["model"]["compared"]["model"]["good"]
        assert (row["good right, training"], row["good right, held out"]) == (good["train"], good["test"])


def test_the_table_is_ranked_and_the_best_feasible_named(swept):
    """By feasibility, then objective, of the file's numbers; beside the more frequent answer."""
    folder, called = swept
    rows = rows_of(folder)
    within, past = rows[rows["excess"] <= 0], rows[rows["excess"] > 0]
    order = [*within.sort_values("objective").index, *past.sort_values("excess").index]
    head, *lines = called.out.splitlines()
    assert [re.split("  +", line)[0] for line in lines[:4]] == order
    for column in ("objective", "demographic_parity(group) (worst)", "right, training", "right, held out", "over by"):
        assert column in re.split("  +", head)
    shares = [re.split("  +", line)[3] for line in lines[:4]]
    np.testing.assert_allclose([float(share) for share in shares], rows.loc[order, "good right, training"], atol=5e-5)
    assert lines[5].startswith(f"Best feasible: {order[0]}, objective ")
    assert re.fullmatch(r"Best constant answer: always 'no': \d\d\.\d% right, within every bound\.", lines[6])
    assert {path.name for path in folder.iterdir()} == {"sweep.parquet", "sweep.png"}


def test_no_setting_is_worth_more_than_a_constant(table, tmp_path):
    """One short step from a model that is sure of nothing, where one that is sure of yes has no loss of that class."""
    flags = ("--target", "granted", "--constraint", "class_loss(yes) <= 0.01", "--rounds", "1", "--no-progress")
    called = call("sweep", "fit", table, *flags, "--vary", "step-size=0.001,0.002", "--out", tmp_path)
    assert called.code == 0, called.err
    assert "\nBest feasible: none; " in called.out
    assert re.search(
        r"\nWORSE THAN A CONSTANT: always 'yes': .*, within every bound; the model: .*, past a bound\.\n"
        r"Best constant answer: always 'yes': ",
        called.out,
    )


def test_what_weighs_is_compared_over_rows(tmp_path):
    """With clients of 500 and 20 rows their losses differ; that of all rows is what the predictions say."""
    frame = pd.DataFrame(applications(520)).assign(home=["big"] * 500 + ["small"] * 20)
    frame.to_csv(tmp_path / "t.csv", index=False)
    flags = ("--target", "granted", "--client-by", "home", "--rounds", "20", "--test-fraction", "0", "--no-progress")
    called = call("sweep", "fit", tmp_path / "t.csv", *flags, "--vary", "weigh=rows,clients", "--out", tmp_path / "s")
    assert called.code == 0, called.err
    for weigh, row in rows_of(tmp_path / "s").iterrows():
        run = call("fit", tmp_path / "t.csv", *flags, *f"--{weigh}".split(), "--out", tmp_path / "run", draw=False)
        assert run.code == 0, run.err
        answers = pd.read_csv(write(tmp_path / "p.csv", call("predict", tmp_path / "run", tmp_path / "t.csv").out))
        expected = log_loss(frame["granted"] == "yes", answers["probability of yes"])
        assert row["objective"] == pytest.approx(expected, abs=1e-5)
        own = Run(tmp_path / "run").result.value("train", "objective", "answer")[0]
        assert (own == pytest.approx(expected, abs=1e-5)) == (weigh == "weigh rows")


def test_flags_of_the_fit_reach_it_and_other_settings_are_varied(table, tmp_path):
    """Whose rows are whose, too."""
    flags = (*SHORT[:-1], "--drop", "x0", "--seed", "3", "--positive", "no", "--weight", "x9", "--no-progress")
    pd.read_csv(table).assign(x9=1 + np.arange(600) % 3).to_csv(tmp_path / "t.csv", index=False)
    given = ("--vary", "clients=2,5", "--vary", "uplink=float16")
    called = call("sweep", "fit", tmp_path / "t.csv", *flags, *given, "--out", tmp_path / "s")
    assert called.code == 0, called.err
    rows = rows_of(tmp_path / "s")
    assert list(rows.index) == ["clients 2, uplink float16", "clients 5, uplink float16"]
    alone = ("--clients", "5", "--uplink", "float16", "--out", tmp_path / "run")
    assert call("fit", tmp_path / "t.csv", *flags, *alone, draw=False).code == 0
    assert rows["objective"].iloc[1] == Run(tmp_path / "run").result.value("train", "objective", "answer")[0]


def test_resume_runs_the_rest(swept, table, tmp_path, monkeypatch):
    real, seen = fedsgm.simulate, []

    def simulate(algorithm, *given, **more):
        seen.append(algorithm.rule)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(algorithm, *given, **more)

    monkeypatch.setattr(fedsgm, "simulate", simulate)
    assert call("sweep", "fit", table, *SHORT, *VARY, "--out", tmp_path).code == 130
    assert list(rows_of(tmp_path).index) == list(SETTINGS)[:2]
    called = call("sweep", "fit", table, *SHORT, *VARY, "--out", tmp_path, "--resume")
    assert called.code == 0, called.err
    assert seen[3:] == [fedsgm.Soft(80.0)] * 2
    assert (tmp_path / "sweep.parquet").read_bytes() == (swept[0] / "sweep.parquet").read_bytes()
    assert called.out.replace(str(tmp_path), "") == swept[1].out.replace(str(swept[0]), "")
    again = call("sweep", "fit", table, *SHORT, *VARY, "--out", tmp_path, "--resume", "--drop", "x1")
    assert_one_error(again, 2, "--resume", "another drop", r"\['x1'\] here")


def test_a_config_file_may_hold_the_grid(swept, table, tmp_path):
    vary = [text for text in VARY if text != "--vary"]
    config = write(tmp_path / "c.toml", f"vary = {vary}\ntarget = 'granted'\nrounds = 30\n")
    more = ("--config", config, *PARITY, "--clients", "3", "--no-progress")
    assert call("sweep", "fit", table, *more, "--out", tmp_path / "s").code == 0
    pd.testing.assert_frame_equal(rows_of(tmp_path / "s"), rows_of(swept[0]))


def test_notes_are_told_once(table, tmp_path):
    soft = ("--rule", "soft", "--beta", "5", "--vary", "step-size=0.1,0.2", "--rounds", "1", "--out", tmp_path)
    called = call("sweep", "fit", table, *SHORT, *soft)
    assert called.code == 0
    assert called.err.count("note: the soft rule with beta 5 weighs ") == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", ("something to vary",)),
        ("--vary target=x1,x2", ("no setting 'target'", "step-size")),
        ("--vary bounds=0.1", ("no setting 'bounds'",)),
        ("--vary seeds=2", ("no setting 'seeds'",)),
        ("--vary model=tree", ("'tree' is no value of model",)),
        ("--vary hidden=3,4", ("--hidden 3", "--model mlp")),
        ("--vary hidden=a --model mlp", ("--hidden a", "widths")),
        ("--vary rule=hard --vary beta=1,2", ("--vary beta", "hard does not use it")),
        ("--vary participants=2,9", ("participants=9", "3 clients")),
        ("--vary client-by=nobody", ("client-by", "'nobody'")),
        ("--vary beta=1 --bounds 0.1", ("No such option", "--bounds")),
        ("--vary beta=1 --confidence 0.9", ("No such option", "--confidence")),
        ("--vary beta=1 --seeds 3", ("No such option", "--seeds")),
    ],
)
def test_wrong_sweeps(given, words, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fedsgm, "simulate", lambda *_, **__: pytest.fail("a run had begun"))
    assert_one_error(call("sweep", "fit", table, *SHORT, *given.split()), 2, *map(re.escape, words))
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_the_flags_are_those_of_fit():
    """Which have their tests with it, less those of one run, and more those of a sweep, which are tested here."""
    commands = typer.main.get_command(app).commands
    own, plain = spellings(commands["sweep"].commands["fit"]), spellings(commands["fit"])
    of_one_run = {"--checkpoint", "--checkpoint-every", "--debug", "--require-feasible", "--watch", "--log", "--track"}
    assert plain - own == of_one_run | {"--bounds", "--confidence", "--seeds"}
    assert own - plain == {"--vary"}


def test_out_unless_told(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = call("sweep", "fit", table, *SHORT, "--rounds", "1", "--vary", "step-size=0.1")
    assert called.code == 0, called.err
    assert (tmp_path / "sweeps" / "fit" / "sweep.png").stat().st_size > 1000
