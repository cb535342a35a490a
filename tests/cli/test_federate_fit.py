"""``fedsgm federate fit``: the model of ``fedsgm fit`` from tables that stay where they are."""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import typer

import fedsgm as fs
from fedsgm.__main__ import app
from fedsgm.cli import federate_fit, rehearsal
from fedsgm.federation.flare import kits
from support.commands import Run, assert_one_error, call, spellings
from support.flags import Case
from support.sites import SITES, Together, assert_that_of_fit, people
from support.sites import write as write_tables

FIT = ("--target", "ok", "--rounds", "12", "--evaluate-every", "3", "--no-progress")
PARITY = ("--constraint", "demographic_parity(sex) <= 0.1")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return write_tables(people().assign(w=1 + np.arange(360) % 3), folder)


@pytest.fixture
def together(tmp_path, monkeypatch):
    return Together(tmp_path / "federation", monkeypatch)


# The same model ------------------------------------------------------------------------------------------------------


SETTINGS = {
    "two constraints": (*PARITY, "--constraint", "equalized_odds(sex) <= 0.3", "--seed", "3"),
    "weights, each client": (
        *("--weigh", "clients", "--weight", "w", "--positive", "no", "--drop", "region", "--test-fraction", "0.3"),
        *("--constraint", "each_client(error_rate) <= 0.4", "--constraint", "demographic_parity(sex * region) <= 0.4"),
    ),
    "a network": (
        *("--model", "mlp", "--hidden", "4", "--participants", "2", "--query", "all", "--uplink", "float16"),
        *("--constraint", "recall(ok == yes) >= 0.8", "--test-fraction", "0", "--batch-size", "0"),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.usefixtures("together")
def test_the_model_is_that_of_fit(name, tables, tmp_path):
    """With missing numbers and dates, categories that one site alone has, and one that a site lacks."""
    assert_that_of_fit(tables, (*FIT, *SETTINGS[name]), tmp_path)


def test_the_settings_repeat_it_and_an_exit_code_judges_it(tables, together, tmp_path):
    """Exit code 3 of a bound that cannot be kept, with a model that is written all the same."""
    more = ("--constraint", "class_loss(yes) <= 0.001", "--drop", "region", "--least", "9", "--rounds", "3")
    first = call("federate", "fit", *tables, *FIT, *more, "--out", tmp_path / "first", draw=False)
    assert first.code == 0, first.err
    settings = tmp_path / "first" / "settings.toml"
    named = " ".join(map(str, tables))
    assert settings.read_text().startswith(f"# fedsgm federate fit {named} --config settings.toml\n")
    shutil.rmtree(together.folder / "data")
    shutil.rmtree(together.folder / "job")
    flags = ("--config", settings, "--no-progress", "--require-feasible", "--out", tmp_path / "again")
    again = call("federate", "fit", *tables, *flags, draw=False)
    assert again.code == 3, again.err
    worse, model, *_ = again.out.splitlines()
    assert worse.startswith("WORSE THAN A CONSTANT: always 'yes': "), "which has no loss of that class"
    assert model.startswith("Model: OVER A BOUND on the training data; ")
    for name in ("params.safetensors", "model.json", "settings.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    toml = Run(tmp_path / "again").toml
    assert (toml["least"], toml["drop"], toml["timeout"]) == (9, ["region"], 60.0)
    assert not {"port", "seeds", "clients", "client-by", "debug", "centralized"} & toml.keys()
    assert again.out.splitlines()[-1] == (
        f"Its model is in model.json. Apply it: fedsgm predict {tmp_path / 'again'} NEW.csv"
    )


@pytest.mark.usefixtures("together")
def test_worse_than_a_constant(tables, tmp_path):
    """Within every bound, but less often right than to say the same to everybody: exit code 3."""
    flags = ("--rounds", "1", "--step-size", "1e-30", "--evaluate-every", "0", "--require-feasible")
    called = call(
        "federate", "fit", *tables, *FIT, *flags, "--constraint", "error_rate <= 0.6", "--out", tmp_path / "run"
    )
    rows = people()["ok"]
    assert rows.value_counts(normalize=True).max() > 0.52
    assert called.code == 3, called.out
    worse, model, *_ = called.out.splitlines()
    assert re.match(r"WORSE THAN A CONSTANT: always '(yes|no)': .* on the training rows, within every bound; ", worse)
    assert model.startswith("Model: within every bound")


# What every flag does ------------------------------------------------------------------------------------------------


class Begun(Exception):
    """The federation would be started now."""


@pytest.fixture
def begin(tables, tmp_path, monkeypatch):
    """``begin(flags)`` gives what the job says, and what the sites would agree on; nothing is started."""
    given = {}

    def carry_out(job, clients, flags, **more):
        federation = SimpleNamespace(folder=tmp_path / "federation", names=kits.names(clients))
        federation.folder.mkdir()
        settings = settings_of(job(federation))
        paths = [Path(federate_fit.path(name, **settings)) for name in federation.names]
        given.update(stated=federate_fit.local(**settings), clients=clients, flags=flags, paths=paths, **more)
        raise Begun

    monkeypatch.setattr(rehearsal, "carry_out", carry_out)
    monkeypatch.chdir(tmp_path)

    def begin(*flags):
        with pytest.raises(Begun):
            call("federate", "fit", *tables, "--target", "ok", *flags)
        stated = given["stated"]
        agreed = federate_fit._rehearsed(stated, given["paths"])
        return SimpleNamespace(**given, **vars(stated.state(agreed)), agreed=agreed)

    return begin


def settings_of(job):
    """What a job for either engine says to the functions that it names."""
    if (job / "pyproject.toml").exists():
        about = tomllib.loads((job / "pyproject.toml").read_text())
        return json.loads(about["tool"]["flwr"]["app"]["config"]["settings"])
    config = json.loads((job / "app" / "config" / "config_fed_client.json").read_text())
    return config["executors"][0]["executor"]["args"]["settings"]


def features(run):
    return [column["name"] for column in run.agreed["encoder"]]


CASES = [
    Case("--rule hard", lambda run: run.algorithm.rule == fs.Hard()),
    Case("--rule soft --beta 7 --ceiling 0.5", lambda run: run.algorithm.rule == fs.Soft(7.0, 0.5)),
    Case("--rule penalty --rho 2", lambda run: run.algorithm.rule == fs.Penalty(2.0)),
    Case("--rule primal-dual --dual-step 3 --augment 2", lambda run: run.algorithm.rule == fs.PrimalDual(3.0, 2.0)),
    Case("--margin 0.01", lambda run: run.algorithm.rule.margin == 0.01),
    Case("--step-size 0.25 --anneal 1", lambda run: run.algorithm.step_size == 0.25),
    Case("--rule adaptive --adapt 3", lambda run: run.algorithm.rule == fs.Adaptive(3.0)),
    Case("--local-steps 3", lambda run: run.algorithm.local_steps == 3),
    Case("--participants 2", lambda run: run.algorithm.participants == 2),
    Case("--memory", lambda run: run.algorithm.memory is True),
    Case("--no-memory", lambda run: run.algorithm.memory is False),
    Case("--query memory --unheard left-out", lambda run: run.algorithm.unheard == "left out"),
    Case("--tolerance 0.5", lambda run: run.algorithm.tolerance == 0.5),
    Case("--uplink topk:0.5", lambda run: run.algorithm.uplink == fs.TopK(0.5)),
    Case("--downlink sign", lambda run: run.algorithm.downlink == fs.ScaledSign()),
    Case("--radius 2", lambda run: np.isclose(np.linalg.norm(run.algorithm.project({"w": np.full(4, 9.0)})["w"]), 2)),
    Case("--box 2", lambda run: run.algorithm.project({"w": np.full(4, 9.0)})["w"].tolist() == [2] * 4),
    Case("--batch-size 9", lambda run: run.algorithm.batch_size == 9),
    Case("--constraint-batch-size 9", lambda run: run.algorithm.constraint_batch_size == 9),
    Case("--rounds 7", lambda run: run.rounds == 7),
    Case("--seed 3", lambda run: run.seed == 3 and run.stated.about.seed == 3),
    Case("--evaluate-every 4", lambda run: run.evaluate_every == 4),
    Case("--checkpoint saved", lambda run: run.flags.checkpoint == Path("saved") and not run.flags.resume),
    Case("--checkpoint saved --resume", lambda run: run.flags.resume is True),
    Case("--progress", lambda run: run.flags.progress is True),
    Case("--no-progress", lambda run: run.flags.progress is False),
    Case("--engine flower", lambda run: run.engine is rehearsal.Engine.flower),
    Case("--engine flare", lambda run: run.engine is rehearsal.Engine.flare),
    Case("--port 8123", lambda run: run.port == 8123),
    Case("--timeout 7.5", lambda run: run.timeout == run.stated.timeout == 7.5),
    Case("--min-participants 2", lambda run: run.min_participants == 2),
    Case("--target sex", lambda run: run.agreed["target"]["classes"] == ("f", "m") and "ok" in features(run)),
    Case("--constraint class_loss(yes)<=0.5", lambda run: run.problem.bounds == {"class_loss(yes)": 0.5}),
    Case("--model logistic", lambda run: len(run.params) == 1),
    Case("--model mlp --hidden 5,3", lambda run: [layer["b"].shape for layer in run.params] == [(5,), (3,), ()]),
    Case("--drop sex --drop age", lambda run: features(run) == ["seen", "work", "region", "constant", "w"]),
    Case("--target w --task number", lambda run: run.agreed["target"]["mean"] > 1 and run.params[0]["b"].shape == ()),
    Case("--target w --task classes", lambda run: run.agreed["target"]["classes"] == ("1", "2", "3")),
    Case("--positive no", lambda run: run.agreed["target"]["classes"] == ("yes", "no")),
    Case("--test-fraction 0.5", lambda run: run.stated.about.test_fraction == 0.5),
    Case("--weigh clients", lambda run: run.problem.weigh == "clients"),
    Case("--weigh rows", lambda run: run.problem.weigh == "rows"),
    Case("--weight w", lambda run: run.problem.weight({"weight": 7}) == 7 and "w" not in features(run)),
    Case("--least 40", lambda run: run.stated.about.least == 40 and "1" in str(run.agreed["notes"])),
    Case(
        "--watch --log log.jsonl --track mlflow",
        lambda run: (run.flags.watch, run.flags.log, run.flags.track) == (True, Path("log.jsonl"), ["mlflow"]),
    ),
]

ELSEWHERE = {
    "--out": "test_the_model_is_that_of_fit",
    "--require-feasible": "test_the_settings_repeat_it_and_an_exit_code_judges_it",
    "--config": "test_the_settings_repeat_it_and_an_exit_code_judges_it",
    "--separator": "test_tables_that_are_written_another_way",
    "--decimal": "test_tables_that_are_written_another_way",
    "--encoding": "test_tables_that_are_written_another_way",
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flag(case, begin):
    run = begin(*case.flags.split())
    assert run.clients == 3
    assert case.check(run)


def test_every_flag_has_a_test():
    command = typer.main.get_command(app).commands["federate"].commands["fit"]
    named = {word for case in CASES for word in case.flags.split() if word.startswith("--")}
    assert named | set(ELSEWHERE) == spellings(command) - {"tables"}
    assert all(callable(globals().get(test)) for test in ELSEWHERE.values())


def test_the_defaults_are_those_of_fit():
    own, plain = (
        {each.name: each.default for each in command.params}
        for command in (
            typer.main.get_command(app).commands["federate"].commands["fit"],
            typer.main.get_command(app).commands["fit"],
        )
    )
    of_one_table = {"table", "client_by", "clients", "bounds", "confidence"}
    assert plain.keys() - own.keys() == {*of_one_table, *rehearsal.NOT_FEDERATED}
    assert own.keys() - plain.keys() == {"tables", "least", "engine", "port", "timeout", "min_participants"}
    differ = {name for name in own.keys() & plain.keys() if own[name] != plain[name]}
    assert differ == {"out"}


def test_each_site_is_handed_its_own_path_alone(begin, tables):
    run = begin()
    folder = run.paths[0].parent
    assert run.paths == [table.resolve() for table in tables]
    assert folder == tables[0].parent
    assert run.module == federate_fit.__name__


def test_tables_that_are_written_another_way(tables, together, tmp_path):
    """The same parameters; and the word about it goes to every site."""
    for site, table in zip(SITES, tables, strict=True):
        frame = pd.read_csv(table).rename(columns={"age": "Größe"})
        frame.to_csv(tmp_path / f"{site}-plain.csv", index=False)
        frame.to_csv(tmp_path / f"{site}-other.csv", index=False, sep="|", decimal=",", encoding="latin-1")
    flags = (*FIT, "--rounds", "2", "--drop", "w")
    written = ("--separator", "|", "--decimal", ",", "--encoding", "latin-1")
    for kind, more in (("plain", ()), ("other", written)):
        shutil.rmtree(together.folder)
        together.folder.mkdir()
        files = [tmp_path / f"{site}-{kind}.csv" for site in SITES]
        called = call("federate", "fit", *files, *flags, *more, "--out", tmp_path / kind, draw=False)
        assert called.code == 0, called.err
    for name in ("params.safetensors", "model.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    called = call("federate", "fit", *files, *flags, "--out", tmp_path / "none")
    assert_one_error(called, 2, "north-other.csv", "--encoding, such as latin-1")


# What is refused before anything starts ------------------------------------------------------------------------------


def column(name, value, sites=("south",)):
    """A change of one column at some sites."""

    def change(frames):
        return {s: f.assign(**{name: value(f) if callable(value) else value}) if s in sites else f for s, f in frames}

    return change


def without(name):
    return lambda frames: {s: f.drop(columns=name) if s == "south" else f for s, f in frames}


REFUSED = {
    "no file": (lambda frames: dict(list(frames)[:2]), "", ("west.csv", "no such file")),
    "no target": (without("ok"), "", ("south.csv", "target: there is no column 'ok'")),
    "no sensitive column": (without("sex"), "", ("south.csv", "no column 'sex'")),
    "a column less": (
        without("work"),
        "",
        ("south.csv has no column 'work', but .*north.csv has; add it, or drop it",),
    ),
    "a column more": (
        column("more", 1),
        "",
        (r"north.csv has no column 'more', but .*south.csv has; add it, or drop it everywhere",),
    ),
    "another kind": (
        column("age", "old"),
        "",
        (r"column 'age': it has numbers at .*north.csv and texts at .*south.csv; write it alike everywhere",),
    ),
    "the positive one of three classes": (
        column("ok", lambda f: np.where(np.arange(len(f)) < 9, "maybe", f["ok"])),
        "--positive maybe",
        ("'ok' has 3 classes", "leave 'maybe' out"),
    ),
    "many classes": (
        column("ok", lambda f: [f"k{i}" for i in range(len(f))]),
        "",
        ("south.csv: target: 'ok' has .* classes, but at most 20 are told", "--task number"),
    ),
    "a rate of numbers": (
        column("ok", lambda f: np.arange(len(f)) / 7, SITES),
        "",
        ("the target is a number", "mean_gap"),
    ),
    "no number": (None, "--task number", ("north.csv: task: 'ok' has values that are no numbers",)),
    "few rows of a number": (
        lambda frames: {s: f.assign(ok=np.arange(len(f)) / 7) for s, f in frames},
        "--task number --least 1000",
        ("no site has 1000 rows to tell the mean of 'ok' of; lower --least",),
    ),
    "one class": (column("ok", "yes", SITES), "", ("'ok' has 1 value", "two classes")),
    "numbers at one site": (
        column("ok", lambda f: np.arange(len(f)) / 7),
        "",
        ("what 'ok' is cannot be found out", "number at .*south.csv", "add --task classes or --task number"),
    ),
    "one group": (column("sex", "f", SITES), "", ("'sex'", "only one value")),
    "many groups": (
        column("sex", lambda f: [f"g{i}" for i in range(len(f))]),
        "",
        ("south.csv: constraint on 'sex': it has", "groups, and at most 20"),
    ),
    "a group without a row": (
        column("sex", lambda f: ["x", *f["sex"][1:]]),
        "",
        ("demographic_parity", "no row of group 'x' to hold out", "hold nothing out"),
    ),
    "a weight below 0": (column("w", -3), "--weight w", ("south.csv: weight: row 1 of 'w' has -3", "0 or more")),
    "no column to drop": (None, "--drop wrok", ("drop: no site has a column 'wrok'",)),
    "no features": (
        None,
        "--drop age --drop seen --drop sex --drop work --drop region --drop w",
        ("no column is left to predict from",),
    ),
    "a constraint twice": (None, PARITY[1].replace(" ", "").join(("--constraint ", "")), ("twice",)),
    "a class that is none": (None, "--constraint error_rate(ok==sure)<=0.5", ("'sure' is no class",)),
    "a bound that is none": (None, "--constraint error_rate<=x", ("bound is 'x'",)),
    "everything held out": (None, "--test-fraction 1", ("held-out fraction is 1",)),
    "nothing to tell": (None, "--least 0", ("least=0", "1 or more")),
    "the target for a weight": (None, "--weight ok", ("'ok' is the target",)),
    "too many participants": (None, "--participants 4", ("participants=4, but there are 3 clients",)),
    "another place": (None, "--rule ipp-conex", ("--rule ipp-conex", "one place")),
    "hidden layers of a logistic model": (None, "--hidden 5", ("--hidden 5", "--model mlp")),
    "clients of a federation": (None, "--clients 3", ("No such option", "--clients")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, tmp_path, monkeypatch):
    change, flags, words = REFUSED[what]
    frames = [(site, rows.drop(columns="site")) for site, rows in people().assign(w=1).groupby("site")]
    for site, rows in (dict(frames) if change is None else change(frames)).items():
        rows.to_csv(tmp_path / f"{site}.csv", index=False)
    monkeypatch.setattr(rehearsal, "carry_out", lambda *_, **__: pytest.fail("it was started"))
    files = [tmp_path / f"{site}.csv" for site in SITES]
    called = call("federate", "fit", *files, *FIT, *PARITY, *flags.split(), "--out", tmp_path / "run")
    assert_one_error(called, 2, *words)
    assert not (tmp_path / "run").exists()


def test_no_table_no_target_and_the_same_table_twice(tables):
    assert_one_error(call("federate", "fit", "--target", "ok"), 2, "TABLE")
    assert_one_error(call("federate", "fit", *tables), 2, "--target")
    again = call("federate", "fit", tables[0], tables[1], tables[0], "--target", "ok")
    assert_one_error(again, 2, r"north\.csv is given twice, but every site has a table of its own")


@pytest.mark.usefixtures("together")
def test_a_site_with_one_class_and_one_group_is_fine(tmp_path):
    frame = people()
    frame.loc[frame["site"] == "west", "ok"] = "no"
    frame.loc[frame["site"] == "north", "sex"] = "f"
    tables = write_tables(frame, tmp_path)
    called = call("federate", "fit", *tables, *FIT, *PARITY, "--rounds", "2", "--out", tmp_path / "run", draw=False)
    assert called.code == 0, called.err
    assert json.loads((tmp_path / "run" / "model.json").read_text())["target"]["classes"] == ["no", "yes"]


# Machines of their own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "round", "port", "engine"])
def test_settings_of_an_experiment_are_looked_at(name):
    settings = {} if name is None else {"target": "y", name: 3}
    words = "say which column is the target" if name is None else f"there is no setting '{name}' of a fit over"
    with pytest.raises(fs.SettingError, match=words):
        federate_fit.experiment(**settings)


def test_settings_that_are_not_given_are_the_command_s(begin):
    stated, of_command = federate_fit.experiment(target="ok"), begin().stated
    assert stated.algorithm.args == of_command.algorithm.args
    for name in ("about", "weigh", "rounds", "evaluate_every", "min_participants", "timeout"):
        assert getattr(stated, name) == getattr(of_command, name), name


@pytest.mark.parametrize(
    ("name", "value"),
    [("rule", "softer"), ("model", "tree"), ("weigh", "groups"), ("task", "text"), ("rule", "ipp-conex")],
)
def test_settings_that_are_no_choice(name, value):
    with pytest.raises(fs.SettingError, match=rf"{name}[= ]'?{value}"):
        federate_fit.experiment(target="y", **{name: value})


def test_a_project_of_tables(tmp_path, monkeypatch):
    """What init writes runs as it stands once each site has a table where it says, and submit tells of the model."""
    made = call("federate", "init", tmp_path / "new", "--table", "--clients", "3")
    assert made.code == 0, made.err
    project = tmp_path / "new"
    assert "fedsgm predict runs/first NAME.csv" in (project / "README.md").read_text()
    assert "{" not in (project / "README.md").read_text()
    source = (project / "experiment.py").read_text()
    source = source.replace('"approved"', '"ok"').replace("rounds=500", "rounds=3, evaluate_every=0")
    (project / "experiment.py").write_text(source)
    for name, table in zip(kits.names(3), write_tables(people(), tmp_path), strict=True):
        shutil.copy(table, project / f"{name}.csv")
    monkeypatch.syspath_prepend(project)
    for module in ("experiment", "data"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    Together(tmp_path / "federation", monkeypatch, within=[project])
    called = call("federate", "submit", project / "job", "--kit", ".", "--out", tmp_path / "run", draw=False)
    for module in ("experiment", "data"):
        del sys.modules[module]
    assert called.code == 0, called.err
    words = r"Model: .*% of \d+ training rows right, .*% of \d+ held-out rows.*\n  always 'yes': .*\n\n(NOT )?FEASIBLE"
    assert re.search(words, called.out)
    assert "note: constant, so not a feature: 'constant'\n" in called.err
    assert called.out.endswith(f"Apply it: fedsgm predict {tmp_path / 'run'} NEW.csv\n")
    assert call("predict", tmp_path / "run", project / "site-1.csv").code == 0


def test_a_project_of_one_s_own_is_as_it_was(tmp_path):
    assert call("federate", "init", tmp_path / "new").code == 0
    readme = (tmp_path / "new" / "README.md").read_text()
    assert "problem, algorithm, rounds" in readme
    assert "predict" not in readme
