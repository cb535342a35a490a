"""``fedsgm fit`` and ``fedsgm predict``: a constrained model of one's own table, from the file to the predictions."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import typer
from fairlearn.metrics import demographic_parity_difference
from sklearn.metrics import log_loss, recall_score

import fedsgm as fs
from fedsgm.__main__ import app
from fedsgm.cli.flags import RuleName
from fedsgm.methods import IPPConEx
from fedsgm.tables import dealing, recipe
from fedsgm.tables.models import MLP
from support.applications import TIGHT, applications, examinations
from support.commands import FILES, Run, assert_one_error, call, same_bits, spellings
from support.flags import Case

ROWS = 3000
COLUMNS = ["age", "workclass", "education-num", "hours-per-week", "race", "sex", "income"]
PARITY = ("--constraint", "demographic_parity(sex) <= 0.05")
FIT = ("--target", "income", *PARITY, "--rounds", "300", "--step-size", "0.3", "--no-progress")


@pytest.fixture(scope="module")
def frame(adult_tables):
    """The first rows, without the categories that a held-out part could have all of."""
    frame = pd.DataFrame({name: adult_tables[0][name][:ROWS] for name in COLUMNS})
    return frame.assign(workclass=frame["workclass"].replace(["Without-pay", "Never-worked"], None))


@pytest.fixture(scope="module")
def table(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "adult.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def base(table, tmp_path_factory):
    """A fit of the table; ``held`` are the rows that it held out."""
    held = []
    with pytest.MonkeyPatch.context() as patch:
        original = dealing.held_out_of_each
        patch.setattr(
            dealing, "held_out_of_each", lambda *given, **more: held.append(original(*given, **more)) or held[-1]
        )
        folder = tmp_path_factory.mktemp("base") / "run"
        called = call("fit", table, *FIT, "--out", folder)
    assert (called.code, called.err) == (0, "")
    return SimpleNamespace(run=Run(folder, called), folder=folder, held=held[0])


@pytest.fixture(scope="module")
def predicted(base, table):
    """Its predictions for the very rows of the table."""
    called = call("predict", base.folder, table)
    assert (called.code, called.err) == (0, "")
    path = base.folder.parent / "predicted.csv"
    path.write_text(called.out)
    return pd.read_csv(path)


@pytest.fixture
def damaged(base, tmp_path):
    return Path(shutil.copytree(base.folder, tmp_path / "damaged"))


# The model that comes of it ------------------------------------------------------------------------------------------


def test_verdict(base):
    lines = base.run.called.out.splitlines()
    of = f"the answer (round {base.run.result.answer_round[0]})"
    assert lines[0].startswith(f"Model: within every bound on the training data; {of}; ")
    assert lines[3].startswith("  on new data: demographic_parity(sex) ")
    assert lines[5].startswith(f"FEASIBLE: {of} is within every bound on the training data")
    assert ("OVER A BOUND" in lines[0]) == (base.run.result.excess("test", "answer")[0] > 0)
    assert lines[5 : 5 + len(base.run.document["verdict"])] == base.run.document["verdict"]
    assert {path.name for path in base.folder.iterdir()} == {*FILES, "model.json"}
    assert f"fedsgm predict {base.folder} NEW.csv" in lines[-1]


def test_the_bound_is_met_on_the_training_rows(base, predicted, frame):
    """Fairlearn, on what ``predict`` wrote, agrees with the run on both parts; without the bound the gap is larger."""
    truth, sex = frame["income"], frame["sex"]
    for part, rows in (("train", ~base.held), ("test", base.held)):
        gap = demographic_parity_difference(
            truth[rows] == ">50K", predicted["income"][rows] == ">50K", sensitive_features=sex[rows]
        )
        assert gap == pytest.approx(base.run.result.value(part, "demographic_parity(sex)", "answer")[0], abs=1e-6)
        assert gap <= 0.05 or part == "test"
    rates = (truth == ">50K").groupby(sex).mean()
    assert rates.max() - rates.min() > 0.15, "a model that is right about everybody would be far over the bound"


def test_the_accuracy_is_the_one_that_was_told(base, predicted, frame):
    right = (predicted["income"] == frame["income"]).to_numpy()
    told = f"{right[~base.held].mean():.1%} of 2400 training rows right, {right[base.held].mean():.1%} of 600 held-out"
    assert told in base.run.called.out
    assert right.mean() > (frame["income"] == "<=50K").mean(), "better than the same answer for everybody"


def test_beside_doing_nothing(base, table, frame, tmp_path):
    """The same model without its constraint, by a run of its own, and the more frequent answer."""
    free = call("fit", table, *FIT, "--rule", "unconstrained", "--out", tmp_path / "free", draw=False)
    assert free.code == 0
    alone = Run(tmp_path / "free")
    right = alone.settings["model"]["compared"]["model"]["good"]
    best = alone.history["objective"][0].argmin()  # within the bound or not, where the other was chosen
    gap = alone.history["demographic_parity(sex)"][0, best]
    _, without, constant = base.run.called.out.splitlines()[:3]
    assert "without the constraints: the same, they were never in the way" in free.out
    told = re.fullmatch(
        r"  without the constraints: (\S+)% right \((\S+)% held out\), demographic_parity\(sex\) (\S+)", without
    )
    assert float(told[3]) == pytest.approx(gap, rel=1e-3)
    assert float(told[1]) / 100 >= base.run.settings["model"]["compared"]["model"]["good"]["train"]
    assert right["train"] <= float(told[1]) / 100 + 0.02
    often = (frame["income"] == "<=50K")[~base.held].mean()
    assert constant == f"  always '<=50K': {often:.1%} right, within every bound"


def test_worse_than_a_constant_is_said_first(tmp_path):
    """At beta 40 a bound of 0.005 is within the soft rule's ramp at any gap: said before the run, and after it."""
    pd.DataFrame(applications()).to_csv(tmp_path / "t.csv", index=False)
    former = ("--rule", "soft", "--step-size", "0.1", "--anneal", "1", "--evaluate-every", "10")
    called = call(
        *("fit", tmp_path / "t.csv", "--target", "granted", "--constraint", TIGHT[0], *former),
        *("--no-progress", "--require-feasible", "--out", tmp_path / "run"),
        draw=False,
    )
    note = "note: the soft rule with beta 40 weighs equalized_odds(group) from 0.025 below its bound of 0.005, even at "
    assert called.err == note + "0; take --beta 800 or more, or --rule adaptive\n"
    first, model, *_ = called.out.splitlines()
    assert first.startswith("WORSE THAN A CONSTANT: always 'no': ")
    assert model.startswith("Model: within every bound")
    assert called.code == 3
    assert "take a larger beta, or the adaptive rule" in called.out or "the last parameters are" not in called.out


def test_a_fit_below_a_constant_is_run_again_to_be_right_as_often(tmp_path):
    pd.DataFrame(examinations()).to_csv(tmp_path / "t.csv", index=False)
    flags = ("--target", "passed", "--constraint", "equalized_odds(group) <= 0.1", "--no-progress")
    called = call("fit", tmp_path / "t.csv", *flags, "--require-feasible", "--out", tmp_path / "run", draw=False)
    assert called.code == 0, called.out
    assert called.out.startswith("Model: within every bound")
    run = fs.Result.load(tmp_path / "run")
    floor = "right as often as always 'yes'"
    (least, _), right = run.ranges[floor], run.value("train", floor, "answer")[0]
    assert right >= least
    compared = run.settings["model"]["compared"]
    assert compared["model"]["good"]["train"] == pytest.approx(right) == pytest.approx(least, abs=0.01)
    assert compared["model"]["values"].keys() == {"equalized_odds(group)"}
    assert f"{floor} " in run.verdict()
    table = call("fit", tmp_path / "t.csv", *flags, "--bounds", "0.1", "--out", tmp_path / "bounds", draw=False).out
    bound, constant = (re.search(rf"^{way} .*?(\d+\.\d)%", table, re.M)[1] for way in ("0.1", "best constant"))
    assert float(bound) >= float(constant)


def test_a_fit_that_diverged_is_json_for_strict_readers_and_is_shown_again(tmp_path):
    pd.DataFrame(applications(300)).to_csv(tmp_path / "t.csv", index=False)
    flags = ("--target", "x0", "--constraint", "mean_gap(group) <= 0.1", "--step-size", "1e20", "--rounds", "5")
    called = call("fit", tmp_path / "t.csv", *flags, "--no-progress", "--out", tmp_path / "run", draw=False)
    assert called.code == 0, called.err
    assert "Model: UNDEFINED, as the run diverged" in called.out

    def refuse(constant):
        raise AssertionError(constant)

    json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=refuse)
    again = call("show", tmp_path / "run", draw=False)
    assert again.code == 0, again.err
    assert again.out.splitlines()[:6] == called.out.splitlines()[:6]


def test_what_bounds_cost(table, tmp_path):
    """Every seed at every bound, as a fit of that seed and bound has it, beside no constraint and a constant answer."""
    short = ("--target", "income", "--rounds", "60", "--no-progress")
    words = "demographic_parity(sex) <= 0.5"
    flags = (*short, "--constraint", words, "--bounds", "0.2,0.05", "--seeds", "2", "--out", tmp_path / "cost")
    called = call("fit", table, *flags)
    assert (called.code, called.err) == (0, "")
    found = pd.read_parquet(tmp_path / "cost" / "trade-off.parquet")
    ways = ["0.2", "0.05", "without the constraints", "best constant"]
    assert [line.split("  ")[0] for line in called.out.splitlines()[1:5]] == ways
    assert list(found["bound"].unique()) == ways
    assert len(found) == len(ways) * 2 * 2
    assert found.groupby("bound")["seed"].unique().map(sorted).tolist() == [[0, 1]] * 4
    alone = call(
        *("fit", table, *short, "--constraint", "demographic_parity(sex) <= 0.05", "--seed", "1"),
        *("--out", tmp_path / "one"),
        draw=False,
    )
    assert alone.code == 0, alone.err
    run = Run(tmp_path / "one")
    for part in ("train", "test"):
        (mine,) = found[(found["bound"] == "0.05") & (found["seed"] == 1) & (found["part"] == part)].to_dict("records")
        assert mine["value"] == pytest.approx(run.result.value(part, "demographic_parity(sex)", "answer")[0], abs=1e-7)
        assert mine["right"] == pytest.approx(run.settings["model"]["compared"]["model"]["good"][part], abs=1e-7)
        assert mine["within"] == bool(run.result.feasible[0])
    free = found[(found["bound"] == ways[2]) & (found["part"] == "train")]
    assert (free["value"] > 0.1).all()
    assert (found[found["bound"] == ways[3]]["value"].abs() < 1e-6).all()
    assert (tmp_path / "cost" / "trade-off.png").stat().st_size > 10_000
    assert not (tmp_path / "cost" / "model.json").exists()


@pytest.mark.parametrize(("bound", "kept"), [(0.4, True), (0.02, False)])
def test_bounds_on_new_data(table, tmp_path, bound, kept):
    """600 held-out rows, of which 200 are women's, can show a gap of at most 0.4, and cannot show one of 0.02."""
    words = f"demographic_parity(sex) <= {bound}"
    called = call(
        *("fit", table, "--target", "income", "--constraint", words, "--confidence", "0.9", "--rounds", "60"),
        *("--no-progress", "--require-feasible", "--out", tmp_path / "run"),
        draw=False,
    )
    first = called.out.splitlines()[0]
    told = (
        "KEPT ON NEW DATA: every bound is kept there" if kept else "NOT SHOWN ON NEW DATA: demographic_parity(sex) may"
    )
    assert first.startswith(told)
    assert "0.9 confidence, by the held-out rows" in first
    assert called.code == (0 if kept else 3)
    run = Run(tmp_path / "run")
    low, high = run.settings["model"]["shown"]["limits"]["demographic_parity(sex)"]
    assert low <= run.result.value("test", "demographic_parity(sex)", "answer")[0] <= high
    assert (high <= bound) == kept
    assert run.result.bounds == {"demographic_parity(sex)": bound}, "the one that was asked for"
    assert run.result.value("train", "demographic_parity(sex)", "answer")[0] <= bound
    again = call("show", tmp_path / "run", "--plot", tmp_path / "p.png", draw=False)
    assert again.out.splitlines()[0] == first


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--bounds", "0.1,x"), "--bounds 0.1,x: 'x' is no bound"),
        (("--bounds", "0.1,0.1"), "0.1 is there twice"),
        (("--bounds", "-1"), "'-1' is no bound"),
        (("--seeds", "3"), "--seeds 3: a fit has one seed"),
        (("--confidence", "1"), "--confidence 1: it must be from 0.5 to below 1"),
        (("--confidence", "0.9", "--test-fraction", "0"), "held-out rows show it, but --test-fraction is 0"),
    ],
)
def test_bounds_and_confidence_that_cannot_be(table, flags, words):
    assert_one_error(call("fit", table, *FIT, *flags), 2, re.escape(words))


def test_bounds_need_a_constraint(table):
    assert_one_error(call("fit", table, "--target", "income", "--bounds", "0.1"), 2, "add --constraint")
    both = ("--constraint", "0.1 <= recall('>50K') <= 0.9")
    assert_one_error(call("fit", table, "--target", "income", *both, "--bounds", "0.1"), 2, "has two bounds; give it")


def test_the_held_out_rows_have_the_same_mix(base, frame):
    """A fifth of each class and group: each of ten clients is off by less than a row, so three deviations are 5."""
    for _, rows in frame.groupby(["income", "sex"]):
        assert abs(base.held[rows.index].sum() - len(rows) / 5) <= 3 * np.sqrt(10 / 4)


def test_predictions_by_hand(base, predicted, frame):
    """The features by pandas, the training rows' means; the model by NumPy, from the run's own parameters."""
    train = frame[~base.held]
    parts = []
    for name in COLUMNS[:-1]:
        if frame[name].dtype.kind == "f":
            parts.append((frame[name] - train[name].mean()) / train[name].std(ddof=0))
            continue
        parts += [frame[name] == value for value in sorted(train[name].dropna().unique())]
        parts += [frame[name].isna()] if train[name].isna().any() else []
    (layer,) = base.run.result.answer
    logits = np.stack(parts, axis=1).astype(float) @ layer["w"] + layer["b"]
    np.testing.assert_allclose(predicted["probability of >50K"], 1 / (1 + np.exp(-logits)), atol=1e-5)
    clear = abs(logits) > 1e-4
    assert clear.mean() > 0.99
    assert (predicted["income"] == np.where(logits > 0, ">50K", "<=50K"))[clear].all()


def test_parquet_gives_the_same_model_and_so_does_the_same_seed(base, table, frame, tmp_path):
    """Bit for bit, whatever the table's format; and the predictions of either."""
    frame.astype({"sex": "category"}).to_parquet(tmp_path / "adult.parquet")
    called = call("fit", tmp_path / "adult.parquet", *FIT, "--out", tmp_path / "run", draw=False)
    assert called.code == 0, called.err
    for name in ("params.safetensors", "history.parquet", "result.json", "model.json"):
        assert (tmp_path / "run" / name).read_bytes() == (base.folder / name).read_bytes()
    assert call("predict", base.folder, tmp_path / "adult.parquet").out == call("predict", base.folder, table).out


def test_settings_of_a_fit_repeat_it_bit_for_bit(table, tmp_path):
    """Lists of constraints and of dropped columns too."""
    more = ("--constraint", "class_loss('>50K') <= 0.001", "--drop", "race", "--drop", "age", "--rounds", "20")
    first = call("fit", table, *FIT, *more, "--clients", "4", "--out", tmp_path / "first", draw=False)
    assert first.code == 0, first.err
    settings = tmp_path / "first" / "settings.toml"
    run = Run(tmp_path / "first")
    assert run.toml["constraint"] == [PARITY[1], "class_loss('>50K') <= 0.001"]
    assert run.toml["drop"] == ["race", "age"]
    assert list(run.result.bounds) == ["demographic_parity(sex)", "class_loss(>50K)"]
    assert settings.read_text().startswith(f"# fedsgm fit {table} --config settings.toml\n")
    flags = ("--config", settings, "--no-progress", "--require-feasible", "--out", tmp_path / "again")
    again = call("fit", table, *flags, draw=False)
    assert same_bits(tmp_path / "first", tmp_path / "again")
    assert (tmp_path / "again" / "model.json").read_bytes() == (tmp_path / "first" / "model.json").read_bytes()
    assert_not_feasible(again, tmp_path / "again", table)


def assert_not_feasible(called, folder, table):
    """Such a loss cannot be had in 20 rounds: exit code 3, with a model that is written all the same, and says so."""
    assert called.code == 3, called.err
    first, model, *_ = called.out.splitlines()
    assert first.startswith("WORSE THAN A CONSTANT: always '>50K': "), "which has no loss on its class"
    assert first.endswith("right, past a bound.")
    assert model.startswith("Model: OVER A BOUND on the training data; ")
    over = fs.Result.load(folder).excess("test", "answer")[0]
    assert f"held-out rows, where it is OVER A BOUND by {over:.2g} (" in model
    assert "\nNOT FEASIBLE: " in called.out
    assert call("predict", folder, table).code == 0


def test_a_network_with_two_constraints(table, frame, tmp_path):
    """Clients by a column, the other class positive: scikit-learn's and fairlearn's numbers for its predictions."""
    called = call(
        *("fit", table, "--target", "income", "--client-by", "race", "--model", "mlp", "--hidden", "8"),
        *("--constraint", "demographic_parity(sex) <= 0.2", "--constraint", "error_rate(income == '>50K') <= 0.4"),
        *("--positive", "<=50K", "--test-fraction", "0", "--rounds", "120", "--step-size", "0.3"),
        *("--require-feasible", "--no-progress", "--out", tmp_path / "run"),
    )
    run = Run(tmp_path / "run", called)
    assert run.settings["clients"] == frame["race"].nunique() == 5
    assert "test" not in run.result.values, "nothing was held out"
    out = tmp_path / "new" / "p.parquet"
    assert call("predict", tmp_path / "run", table, "--out", out).code == 0
    predicted = pd.read_parquet(out)
    assert list(predicted) == ["income", "probability of <=50K"]
    gap = demographic_parity_difference(
        frame["income"] == ">50K", predicted["income"] == "<=50K", sensitive_features=frame["sex"]
    )
    wrong = 1 - recall_score(frame["income"], predicted["income"], pos_label=">50K")
    parity, errors = (run.result.value("train", name, "answer")[0] for name in run.result.bounds)
    assert gap == pytest.approx(parity, abs=1e-6)
    assert wrong == pytest.approx(errors, abs=1e-6)
    assert gap <= 0.2 + 1e-7
    assert wrong <= 0.4 + 1e-7
    assert called.out.startswith("Model: within every bound on the training data; ")
    assert called.code == 0, "the exit code is about the model that was written"


# What every flag does ------------------------------------------------------------------------------------------------


class Begun(Exception):
    """The run would begin now."""


@pytest.fixture
def begin(table, tmp_path, monkeypatch):
    """``begin(flags)`` gives what the engine was called with; nothing is run."""
    given = {}

    def simulate(algorithm, problem, clients, params, **more):
        given.update(algorithm=algorithm, problem=problem, clients=clients, params=params, **more)
        raise Begun

    monkeypatch.setattr(fs, "simulate", simulate)

    def begin(*flags, table=table):
        with pytest.raises(Begun):
            call("fit", table, "--target", "income", *flags)
        return SimpleNamespace(**given)

    monkeypatch.chdir(tmp_path)
    return begin


def features(run) -> int:
    return run.params[0]["w"].shape[0]


ALL = 3 + 7 + 5 + 2  # three numbers; workclass with its missing values, race, sex
CASES = [
    Case("--rule hard", lambda run: run.algorithm.rule == fs.Hard()),
    Case("--rule unconstrained", lambda run: run.algorithm.rule == fs.Unconstrained()),
    Case("--rule soft --beta 7 --ceiling 0.5", lambda run: run.algorithm.rule == fs.Soft(7.0, 0.5)),
    Case("--rule penalty --rho 2", lambda run: run.algorithm.rule == fs.Penalty(2.0)),
    Case("--rule primal-dual --dual-step 3 --augment 2", lambda run: run.algorithm.rule == fs.PrimalDual(3.0, 2.0)),
    Case(
        "--rule ipp-conex --proximal 3 --primal-scale 4 --dual-scale 5 --offset 7 --inner-steps 6",
        lambda run: (
            run.algorithm == IPPConEx(3.0, 4.0, 5.0, 7.0, inner_steps=6, local_steps=2, batch_size=128)
            and len(run.clients) == 1
        ),
    ),
    Case(
        "--centralized --rounds 7 --local-steps 3",
        lambda run: len(run.clients) == 1 and run.rounds == 21 and run.algorithm.local_steps == 1,
    ),
    Case("--step-size 0.25 --anneal 1", lambda run: run.algorithm.step_size == 0.25),
    Case(
        "--step-size 0.5 --anneal 0.1 --rounds 80",
        lambda run: np.allclose([run.algorithm.at(t).step_size for t in (0, 40, 80)], [0.5, 0.275, 0.05]),
    ),
    Case("--rule adaptive --adapt 3", lambda run: run.algorithm.rule == fs.Adaptive(3.0)),
    Case("", lambda run: run.algorithm == recipe.algorithm() and run.evaluate_every == 1 and run.rounds == 500),
    Case("--model mlp", lambda run: run.algorithm == recipe.algorithm(MLP((64,))) != recipe.algorithm()),
    Case("--local-steps 3", lambda run: run.algorithm.local_steps == 3),
    Case("--participants 3", lambda run: run.algorithm.participants == 3),
    Case("--memory", lambda run: run.algorithm.memory is True),
    Case("--no-memory", lambda run: run.algorithm.memory is False),
    Case("--query all", lambda run: run.algorithm.query == "all"),
    Case("--query memory", lambda run: (run.algorithm.query, run.algorithm.unheard) == ("memory", "asked")),
    Case("--query memory --unheard left-out", lambda run: run.algorithm.unheard == "left out"),
    Case("--rule hard --margin 0.01", lambda run: run.algorithm.rule == fs.Hard(0.01)),
    Case("--margin se:1.5", lambda run: run.algorithm.rule.margin == fs.StandardErrors(1.5)),
    Case("--tolerance 0.5", lambda run: run.algorithm.tolerance == 0.5),
    Case("--uplink topk:0.5", lambda run: run.algorithm.uplink == fs.TopK(0.5)),
    Case("--downlink sign", lambda run: run.algorithm.downlink == fs.ScaledSign()),
    Case("--radius 2", lambda run: np.isclose(np.linalg.norm(run.algorithm.project({"w": np.full(4, 9.0)})["w"]), 2)),
    Case("--box 2", lambda run: run.algorithm.project({"w": np.full(4, 9.0)})["w"].tolist() == [2] * 4),
    Case("--batch-size 9", lambda run: run.algorithm.batch_size == 9),
    Case("--batch-size 0", lambda run: run.algorithm.batch_size is None),
    Case("--constraint-batch-size 9", lambda run: run.algorithm.constraint_batch_size == 9),
    Case("--rounds 7", lambda run: run.rounds == 7),
    Case("--seed 3", lambda run: run.seed == 3 and run.seeds is None),
    Case("--evaluate-every 4", lambda run: run.evaluate_every == 4),
    Case("--checkpoint saved", lambda run: run.checkpoint == fs.Checkpoint(Path("saved"), 100, False)),
    Case(
        "--checkpoint saved --checkpoint-every 6 --resume",
        lambda run: run.checkpoint == fs.Checkpoint(Path("saved"), 6, True),
    ),
    Case("--debug", lambda run: run.debug is True),
    Case("--progress", lambda run: run.progress is True and run.debug is False),
    Case("--no-progress", lambda run: run.progress is False),
    Case("--target sex", lambda run: features(run) == ALL and run.clients[0]["y"].mean() > 0.5),
    Case("--constraint class_loss('>50K')<=0.5", lambda run: run.problem.bounds == {"class_loss(>50K)": 0.5}),
    Case(
        "--constraint equalized_odds(sex)<=0.5 --constraint group_loss_gap<=0.25",
        lambda run: run.problem.bounds == {"equalized_odds(sex)": 0.5, "group_loss_gap": 0.25},
    ),
    Case(
        "--constraint worst_group_error(sex*race)<=0.5 --constraint 0.1<=recall('>50K')<=0.9",
        lambda run: (
            run.problem.ranges["recall(>50K)"] == (0.1, 0.9)
            and set(run.test["sex * race"]) == set(range(10))
            and run.problem.names == ("worst_group_error(sex * race)", "recall(>50K)")
        ),
    ),
    Case(
        "--constraint each_client(demographic_parity(sex),quantile=0.95)<=0.5",
        lambda run: run.problem.constraints[0].quantity.quantile == 0.95,
    ),
    Case("--clients 7", lambda run: len(run.clients) == 7 and np.ptp(run.clients.counts) < 60),
    Case("--client-by race", lambda run: len(run.clients) == 5 and features(run) == ALL - 5),
    Case("--client-by race --clients 7", lambda run: len(run.clients) == 5),
    Case("--model logistic", lambda run: len(run.params) == 1 and features(run) == ALL),
    Case("--model mlp", lambda run: [layer["b"].shape for layer in run.params] == [(64,), ()]),
    Case("--model mlp --hidden 5,3", lambda run: [layer["b"].shape for layer in run.params] == [(5,), (3,), ()]),
    Case(
        "--target education-num --task number",
        lambda run: run.params[0]["w"].shape == (ALL + 1,) and abs(run.test["y"].mean()) < 0.2,
    ),
    Case("--target education-num --task classes", lambda run: run.params[0]["w"].shape == (ALL + 1, 16)),
    Case("--target race", lambda run: run.params[0]["w"].shape == (ALL - 3, 5) and set(run.test["y"]) == set(range(5))),
    Case("--drop sex", lambda run: features(run) == ALL - 2),
    Case("--drop sex --drop age", lambda run: features(run) == ALL - 3),
    Case("--positive <=50K", lambda run: run.test["y"].mean() > 0.5),
    Case("--positive >50K", lambda run: run.test["y"].mean() < 0.5),
    Case("--test-fraction 0.5", lambda run: abs(len(run.test["y"]) - ROWS / 2) <= 2),
    Case("--test-fraction 0", lambda run: run.test is None and run.clients.counts.sum() == ROWS),
    Case("--client-by race", lambda run: run.problem.weigh == "rows" and run.problem.weight is None),
    Case("--weigh rows", lambda run: run.problem.weigh == "rows"),
    Case("--weigh clients", lambda run: run.problem.weigh == "clients"),
    Case("--weight hours-per-week", lambda run: run.problem.weight({"weight": 7}) == 7 and features(run) == ALL - 1),
    Case(
        "--watch --log log.jsonl --track tensorboard",
        lambda run: [type(each).__name__ for each in run.callbacks] == ["_Course", "JSONLines", "TensorBoard"],
    ),
]

ELSEWHERE = {
    "--out": "test_verdict",
    "--bounds": "test_what_bounds_cost",
    "--seeds": "test_what_bounds_cost",
    "--confidence": "test_bounds_on_new_data",
    "--require-feasible": "test_settings_of_a_fit_repeat_it_bit_for_bit",
    "--config": "test_settings_of_a_fit_repeat_it_bit_for_bit",
    "--separator": "test_a_table_that_is_written_another_way",
    "--decimal": "test_a_table_that_is_written_another_way",
    "--encoding": "test_a_table_that_is_written_another_way",
}
WRITTEN = ("--separator", "|", "--decimal", ",", "--encoding", "latin-1")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flag(case, begin):
    assert case.check(begin(*case.flags.split()))


def test_every_flag_has_a_test():
    command = typer.main.get_command(app).commands["fit"]
    named = {word for case in CASES for word in case.flags.split() if word.startswith("--")}
    assert named | set(ELSEWHERE) == spellings(command) - {"table"}
    assert all(callable(globals().get(test)) for test in ELSEWHERE.values())


def test_every_rule_has_a_test():
    assert set(re.findall(r"--rule (\S+)", " ".join(case.flags for case in CASES))) == set(RuleName)


def test_every_flag_of_predict_has_a_test():
    command = typer.main.get_command(app).commands["predict"]
    assert spellings(command) == {"folder", "table", "--out", *WRITTEN[::2]}  # test_a_table_that_is_written_another_way


def test_every_row_is_dealt_once(begin, frame):
    """Training and held-out rows together are the table's, by their features and labels."""
    run = begin(*PARITY)
    parts = [run.clients[j] for j in range(len(run.clients))] + [run.test]
    ages = np.concatenate([part["x"][:, 0] for part in parts])
    y = np.concatenate([part["y"] for part in parts])
    assert len(ages) == ROWS
    assert np.unique(ages, return_counts=True)[1].tolist() == frame["age"].value_counts().sort_index().tolist()
    assert y.sum() == (frame["income"] == ">50K").sum()
    sex = np.concatenate([part["sex"] for part in parts])
    assert sex.sum() == (frame["sex"] == "Male").sum()


def test_weights_go_with_their_rows(begin, frame):
    """In training and held out, by each row's features."""
    run = begin("--weight", "hours-per-week", "--drop", "race", "--drop", "sex", "--drop", "workclass")
    parts = [run.clients[j] for j in range(len(run.clients))] + [run.test]
    age = np.concatenate([part["x"][:, 0] for part in parts])
    found = pd.Series(np.concatenate([part["weight"] for part in parts])).groupby(age).sum()
    expected = frame.groupby("age")["hours-per-week"].sum()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_row_of_weight_two_is_two_rows(frame, tmp_path):
    """Rates and losses of the run, by fairlearn and scikit-learn with sample weights, of what ``predict`` writes."""
    frame = frame.assign(w=1 + np.arange(ROWS) % 3)
    frame.to_parquet(tmp_path / "t.parquet")
    flags = ("--weight", "w", "--test-fraction", "0", "--rounds", "40", "--out", tmp_path / "run")
    called = call("fit", tmp_path / "t.parquet", *FIT, *flags, draw=False)
    assert (called.code, called.err) == (0, "")
    called = call("predict", tmp_path / "run", tmp_path / "t.parquet", "--out", tmp_path / "p.parquet")
    assert called.code == 0, called.err
    predicted = pd.read_parquet(tmp_path / "p.parquet")
    gap = demographic_parity_difference(
        frame["income"] == ">50K",
        predicted["income"] == ">50K",
        sensitive_features=frame["sex"],
        sample_weight=frame["w"],
    )
    run = Run(tmp_path / "run")
    assert gap == pytest.approx(run.result.value("train", "demographic_parity(sex)", "answer")[0], abs=1e-6)
    loss = log_loss(frame["income"] == ">50K", predicted["probability of >50K"], sample_weight=frame["w"])
    assert loss == pytest.approx(run.result.value("train", "objective", "answer")[0], rel=1e-4)
    assert run.toml["weight"] == "w"
    assert run.toml["weigh"] == "rows"


def test_a_table_that_is_written_another_way(base, begin, frame, table, tmp_path):
    """The same examples and predictions; without a word of it the encoding stops the reading."""
    named = frame.rename(columns={"sex": "Größe"}).assign(age=frame["age"] / 7)
    named.to_csv(tmp_path / "plain.csv", index=False)
    named.to_csv(tmp_path / "other.csv", index=False, sep="|", decimal=",", encoding="latin-1")
    plain, other = begin(table=tmp_path / "plain.csv"), begin(*WRITTEN, table=tmp_path / "other.csv")
    for name, array in plain.clients.examples.items():
        np.testing.assert_array_equal(other.clients.examples[name], array)
    called = call("fit", tmp_path / "other.csv", "--target", "income")
    assert_one_error(called, 2, "other.csv", "UTF-8", "--encoding, such as latin-1")
    assert_one_error(call("fit", tmp_path / "other.csv", "--target", "income", *WRITTEN[4:]), 2, "Expected 1 columns")

    frame.to_csv(tmp_path / "new.csv", index=False, sep="|", decimal=",", encoding="latin-1")
    assert call("predict", base.folder, tmp_path / "new.csv", *WRITTEN).out == call("predict", base.folder, table).out


@pytest.mark.parametrize("command", ["fit", "predict"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--separator", ";;"), "separator: ';;'"),
        (("--decimal", "x"), "decimal: 'x'"),
        (("--encoding", "klingon"), "none called 'klingon'"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_no_such_way_to_write(command, flags, words, base, table):
    given = ("fit", table, "--target", "income") if command == "fit" else ("predict", base.folder, table)
    assert_one_error(call(*given, *flags), 2, words)


# Tables as they come -------------------------------------------------------------------------------------------------


def people(rows=120, seed=0):
    """A table with names and values beyond ASCII, and a column that never changes."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "größe in m": rng.normal(1.7, 0.1, rows).round(2),
            "couleur préférée": rng.choice(["röt", "blau, hell", "緑"], rows),
            "konstant": "immer",
            "性別": rng.choice(["男", "女"], rows),
            "Straße": rng.choice(["Süd", "Nord", "West"], rows),
        }
    )
    score = (frame["größe in m"] - 1.7) * 8 + (frame["性別"] == "男") + rng.normal(0, 0.5, rows)
    frame["Entscheidung"] = np.where(score > 0.5, "ja, sofort", "nein")
    return frame.astype(object)


UNICODE = ("--target", "Entscheidung", "--constraint", "demographic_parity('性別') <= 0.1", "--no-progress")


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A fit of a table with all that is strange at once; its folder and what was said."""
    folder = tmp_path_factory.mktemp("strange")
    frame = people()
    frame.loc[3, "Straße"] = "Einzelweg"
    frame.loc[21:26, "Straße"] = None
    frame.loc[[7, 8, 9], "性別"] = None
    frame.loc[10, "Entscheidung"] = None
    frame.loc[11:20, "größe in m"] = None
    frame.to_csv(folder / "leute.csv", index=False)
    more = ("--client-by", "Straße", "--rounds", "30", "--out", folder / "run")
    return SimpleNamespace(called=call("fit", folder / "leute.csv", *UNICODE, *more), folder=folder, frame=frame)


def test_what_was_noticed_is_told(strange):
    assert strange.called.code == 0, strange.called.err
    assert strange.called.err.splitlines() == [
        "note: 1 row without a value of the target 'Entscheidung' left out",
        "note: 3 rows without a value of '性別': no group counts them",
        "note: 6 rows without a value of 'Straße' form a client of their own",
        "note: constant, so not a feature: 'konstant'",
        "note: 1 of 5 clients has one training row only",
    ]
    run = Run(strange.folder / "run")
    assert list(run.result.bounds) == ["demographic_parity(性別)"]
    assert run.settings["clients"] == 5
    columns = json.loads((strange.folder / "run" / "model.json").read_text())["columns"]
    assert [column["name"] for column in columns] == ["größe in m", "couleur préférée", "konstant", "性別"]


@pytest.fixture
def accounts(tmp_path):
    """Account numbers, ZIP codes, dates, an infinite value, a list, weights: as CSV, without the list, and Parquet."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "account": 2**60 + np.arange(80),
            "zip": rng.choice(["01234", "98765"], 80),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, 80), "D"),
            "n": rng.normal(size=80).round(3),
            "weight": rng.integers(0, 3, 80),
            "ok": rng.random(80) < 0.5,
        }
    )
    frame.loc[[4, 5], "n"] = np.inf
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.assign(tags=[[1, 2]] * 80).to_parquet(tmp_path / "t.parquet")
    return tmp_path, frame


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_tables_as_people_have_them(end, accounts):
    """The same notes and the same model from either; what cannot be a feature is dropped."""
    folder, frame = accounts
    dropped = ("--drop", "account", *(("--drop", "tags") if end == "parquet" else ()))
    flags = ("--target", "ok", "--weight", "weight", *dropped, "--rounds", "3", "--clients", "2", "--no-progress")
    called = call("fit", folder / f"t.{end}", *flags, "--out", folder / "run", draw=False)
    assert called.code == 0, called.err
    kept = frame[frame["weight"] > 0]
    assert called.err.splitlines() == [
        f"note: {(frame['weight'] == 0).sum()} rows of weight 0 left out",
        "note: 'day' has dates; each is its number of days since 1970-01-01",
        f"note: {np.isinf(kept['n']).sum()} rows with an infinite value of 'n', which is taken for missing",
    ]
    model = json.loads((folder / "run" / "model.json").read_text())
    assert [column["name"] for column in model["columns"]] == ["zip", "day", "n"]
    assert model["columns"][0]["categories"] == ["01234", "98765"]
    days = (kept["day"] - pd.Timestamp("1970-01-01")).dt.days
    assert days.min() <= model["columns"][1]["mean"] <= days.max()
    other = {"csv": "parquet", "parquet": "csv"}[end]
    answers = [call("predict", folder / "run", folder / f"t.{name}") for name in (end, other)]
    assert [answer.code for answer in answers] == [0, 0], answers
    assert answers[0].out == answers[1].out


def test_columns_that_are_no_features_unless_dropped(accounts):
    """Account numbers are categories, each with all its digits; a list is none."""
    folder, _ = accounts
    flags = ("--target", "ok", "--weight", "weight", "--rounds", "3", "--no-progress", "--out", folder / "run")
    called = call("fit", folder / "t.csv", *flags, draw=False)
    assert called.code == 0, called.err
    account, *_ = json.loads((folder / "run" / "model.json").read_text())["columns"]
    assert len(account["categories"]) > 20
    assert set(account["categories"]) <= {str(2**60 + row) for row in range(80)}
    assert_one_error(call("fit", folder / "t.parquet", *flags), 2, "the column 'tags' has values of type list", "drop")


def test_new_rows_with_unseen_categories(strange, tmp_path):
    """They are predicted for and counted; the target, the clients and the constant are not needed."""
    new = people(rows=8, seed=1).drop(columns=["Entscheidung", "Straße", "konstant"])
    new.loc[[0, 1], "couleur préférée"] = "violet"
    new.loc[2, "性別"] = "?"
    new.loc[3, "性別"] = "divers"
    new.to_csv(tmp_path / "neu.csv", index=False)
    called = call("predict", strange.folder / "run", tmp_path / "neu.csv", "--out", tmp_path / "p.csv")
    assert called.code == 0, called.err
    assert called.out == ""
    assert called.err.splitlines() == [
        "note: 2 rows have values of 'couleur préférée' that are no category of the model; treated as none",
        "note: 1 row has a value of '性別' that are no category of the model; treated as none",
    ]
    predicted = pd.read_csv(tmp_path / "p.csv")
    assert list(predicted) == ["Entscheidung", "probability of nein"]
    assert len(predicted) == 8
    assert (predicted["Entscheidung"] == np.where(predicted.iloc[:, 1] > 0.5, "nein", "ja, sofort")).all()


def test_new_rows_that_lack_a_feature(strange, tmp_path):
    people(rows=8).drop(columns="性別").to_csv(tmp_path / "neu.csv", index=False)
    assert_one_error(call("predict", strange.folder / "run", tmp_path / "neu.csv"), 2, "no column '性別'")


def test_new_rows_with_a_text_for_a_number(strange, tmp_path):
    new = people(rows=8)
    new.loc[4, "größe in m"] = "groß"
    new.to_csv(tmp_path / "neu.csv", index=False)
    called = call("predict", strange.folder / "run", tmp_path / "neu.csv")
    assert_one_error(called, 2, "größe in m", "number in training", "has '")


def changed(**columns):
    return lambda frame: frame.assign(**{name.replace("_", " "): value for name, value in columns.items()})


def where(rows, name, value):
    def change(frame):
        frame.loc[rows, name] = value
        return frame

    return change


NOT_FITTED = {
    "no target column": (None, "--target Entscheidun", ("target", "'Entscheidun'", "'Entscheidung'")),
    "no target": (changed(Entscheidung=None), "", ("target", "'Entscheidung'", "no value in any row")),
    "one class": (changed(Entscheidung="ja"), "", ("'Entscheidung'", "'ja'", "two classes")),
    "a class of one row": (where(0, "Entscheidung", "vielleicht"), "", ("class 'vielleicht'", "one row only")),
    "a rate of a number": (
        changed(Entscheidung=np.arange(120) / 7),
        "",
        ("demographic_parity", "the target is a number", "mean_gap"),
    ),
    "a positive number": (changed(Entscheidung=np.arange(120) / 7), "--positive 1", ("positive", "is a number")),
    "a positive one of three": (
        changed(Entscheidung=["a", "b", "c"] * 40),
        "--positive a",
        ("positive", "3 classes, none of which is the positive one"),
    ),
    "a text for a number": (None, "--task number", ("task", "'ja, sofort'", "no number but classes")),
    "no such task": (None, "--task ranks", ("--task", "ranks", "classes", "number")),
    "no sensitive column": (lambda frame: frame.drop(columns="性別"), "", ("no column '性別'",)),
    "one group": (changed(性別="女"), "", ("'性別'", "only one value")),
    "21 groups": (changed(性別=np.arange(120) % 21), "--test-fraction 0", ("'性別'", "21 values", "at most 20")),
    "a group of one row": (where(0, "性別", "divers"), "", ("'divers'", "no row", "to train on")),
    "a group of another": (where(1, "性別", "divers"), "", ("'divers'", "no row", "to hold out", "hold nothing out")),
    "a group of one class": (
        lambda frame: where([0, 1, 2], "Entscheidung", "nein")(where([0, 1, 2], "性別", "divers")(frame)),
        "--constraint equalized_odds(性別)<=0.5",
        ("equalized_odds", "'divers'", "'ja, sofort'", "to train on"),
    ),
    "a column called x": (changed(x="a"), "--constraint demographic_parity(x)<=0.5", ("'x'", "rename")),
    "no features left": (
        lambda frame: frame[["konstant", "性別", "Entscheidung"]],
        "--drop 性別",
        ("no column is left to predict from",),
    ),
    "no column to drop": (None, "--drop Strasse", ("drop", "'Strasse'", "'Straße'")),
    "no weight column": (None, "--weight w", ("weight", "no column 'w'")),
    "a weight below 0": (changed(w=np.arange(120) - 3), "--weight w", ("weight: row 1 of 'w' has -3", "0 or more")),
    "a weight that is missing": (
        changed(w=[1.0, np.nan] * 60),
        "--weight w",
        ("row 2 of 'w' has no finite value", "0 or more"),
    ),
    "a weight that is a text": (None, "--weight Straße", ("row 1 of 'Straße' has ", "a number, 0 or more")),
    "no weight above 0": (changed(w=0), "--weight w", ("'w' is 0 in every row",)),
    "the target for a weight": (None, "--weight Entscheidung", ("'Entscheidung' is the target",)),
    "groups of a column called weight": (
        changed(weight=[1, 2] * 60),
        "--weight weight --constraint demographic_parity(weight)<=0.5",
        ("'weight'", "rename the column", "x, y and weight have another meaning"),
    ),
    "no such thing to weigh": (None, "--weigh groups", ("--weigh", "groups", "rows", "clients")),
    "no client column": (None, "--client-by Strasse", ("client-by", "'Strasse'", "'Straße'")),
    "more clients than rows": (None, "--clients 121", ("clients", "121", "120 rows")),
    "no clients": (None, "--clients 0", ("clients=0", "1 or more")),
    "all held out": (None, "--test-fraction 1", ("held-out fraction is 1", "below 1")),
    "less than nothing held out": (None, "--test-fraction -0.1", ("held-out fraction is -0.1", "from 0")),
    "hidden layers of a logistic model": (None, "--hidden 5", ("--hidden 5", "--model mlp")),
    "a constraint twice": (
        None,
        "--constraint class_loss(nein)<=0.5 --constraint class_loss(nein)<=0.6",
        ("class_loss(nein)", "twice"),
    ),
    "no positive": (None, "--positive Ja", ("positive", "'Ja'", "'ja, sofort' and 'nein'")),
    "no such class": (None, "--constraint error_rate(Entscheidung==ja)<=0.5", ("'ja'", "'ja, sofort' and 'nein'")),
    "not the target": (None, "--constraint error_rate(konstant==immer)<=0.5", ("'konstant' is not the target",)),
    "no such kind": (None, "--constraint parity(性別)<=0.5", ("'parity'", "demographic_parity")),
    "which column": (
        None,
        "--constraint worst_group_loss(Straße)<=1 --constraint equalized_odds<=0.5",
        ("say which column", "'性別', 'Straße'"),
    ),
    "the same constraint again": (None, "--constraint demographic_parity('性別')<=0.3", ("twice",)),
    "no such model": (None, "--model tree", ("--model", "tree", "logistic", "mlp")),
    "widths that are none": (None, "--model mlp --hidden wide", ("--hidden wide", "64,32")),
    "a width of nothing": (None, "--model mlp --hidden 8,0", ("hidden=0", "1 or more")),
    "too many participants": (None, "--participants 11", ("participants=11", "10 clients")),
    "no rounds": (None, "--rounds 0", ("rounds=0", "1 or more")),
    "a negative seed": (None, "--seed -1", ("seed=-1", "0 or more")),
    "several seeds": (None, "--seeds 3", ("--seeds 3: a fit has one seed, --seed",)),
}


@pytest.mark.parametrize("what", NOT_FITTED)
def test_not_fitted(what, tmp_path):
    change, flags, words = NOT_FITTED[what]
    frame = people() if change is None else change(people())
    frame.to_csv(tmp_path / "leute.csv", index=False)
    called = call("fit", tmp_path / "leute.csv", *UNICODE, *flags.split(), "--out", tmp_path / "run")
    errors = [line for line in called.err.splitlines(keepends=True) if not line.startswith("note: ")]
    assert_one_error(dataclasses.replace(called, err="".join(errors)), 2, *map(re.escape, words))
    assert called.out == ""
    assert not (tmp_path / "run").exists()


def test_no_table_and_no_target(table, tmp_path):
    assert_one_error(call("fit", tmp_path / "none.csv", "--target", "y"), 2, "none.csv", "no such file")
    assert_one_error(call("fit", tmp_path, "--target", "y"), 2, re.escape(str(tmp_path)), "a folder")
    assert_one_error(call("fit", table), 2, "--target")
    assert_one_error(call("fit"), 2, "TABLE")


@pytest.mark.parametrize("text", ["constraint = 'demographic_parity(sex) <= 0.05'", "drop = 'sex'"])
def test_a_config_whose_list_is_none(text, table, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    called = call("fit", table, "--target", "income", "--config", tmp_path / "c.toml")
    assert_one_error(called, 2, text.split()[0], "must be a list")


# Folders that hold no model ------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_run(table, tmp_path):
    assert_one_error(call("predict", tmp_path, table), 2, re.escape(str(tmp_path)), "not a run")
    assert_one_error(call("predict", tmp_path / "nowhere", table), 2, "nowhere", "not a run")
    assert_one_error(call("predict", table, table), 2, "not a run")


def test_a_run_that_fit_did_not_write(damaged, table):
    (damaged / "model.json").unlink()
    assert_one_error(call("predict", damaged, table), 2, r"has no model\.json", "fedsgm fit")


def test_a_damaged_model(damaged, table):
    """Cut anywhere, or with a part missing, or of another kind."""
    path = damaged / "model.json"
    whole = path.read_bytes()
    document = json.loads(whole)
    wrong = [whole[:length] for length in (0, 1, len(whole) // 2, len(whole) - 3)]
    wrong += [b"[]", b"null", b"\xff\xfe", b"3"]
    wrong += [json.dumps({k: v for k, v in document.items() if k != key}).encode() for key in document]
    wrong += [json.dumps(document | {key: None}).encode() for key in document]
    wrong += [json.dumps(document | change).encode() for change in ({"columns": [{}]}, {"hidden": 3})]
    for data in wrong:
        path.write_bytes(data)
        assert_one_error(call("predict", damaged, table), 2, r"model\.json")


def test_a_model_of_another_version(damaged, table):
    path = damaged / "model.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": 99}))
    assert_one_error(call("predict", damaged, table), 2, r"model\.json", "version")


def test_a_model_of_another_run(damaged, strange, table):
    shutil.copy(strange.folder / "run" / "model.json", damaged / "model.json")
    assert_one_error(call("predict", damaged, table), 2, "belongs to another run", "fit again")


def test_a_run_with_damaged_parameters(damaged, table):
    path = damaged / "params.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    assert_one_error(call("predict", damaged, table), 2, "params.safetensors", "altered")


@pytest.mark.parametrize("name", ["p.txt", "p", "p.csv.gz"])
def test_out_must_be_csv_or_parquet(name, base, table, tmp_path):
    called = call("predict", base.folder, table, "--out", tmp_path / name)
    assert_one_error(called, 2, "--out", re.escape(name), r"\.csv or \.parquet")
    assert list(tmp_path.iterdir()) == []


def test_new_rows_that_are_no_table(base, tmp_path):
    assert_one_error(call("predict", base.folder, tmp_path / "none.csv"), 2, "none.csv", "no such file")
    (tmp_path / "bad.csv").write_bytes(b"age,sex\n1\n")
    assert_one_error(call("predict", base.folder, tmp_path / "bad.csv"), 2, "bad.csv", "Expected 2 columns")
    assert_one_error(call("predict", base.folder), 2, "TABLE")
