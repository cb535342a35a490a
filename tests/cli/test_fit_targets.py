"""``fedsgm fit`` and ``fedsgm predict`` of several classes and of a number, from the file to the predictions."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, log_loss, r2_score, recall_score, root_mean_squared_error

from support.commands import Run, assert_one_error, call

RUN = ("--test-fraction", "0", "--batch-size", "0", "--no-progress")


def fit_and_predict(frame, folder, *flags):
    """The run, and what is predicted for the very rows."""
    frame.to_csv(folder / "t.csv", index=False)
    called = call("fit", folder / "t.csv", *RUN, *flags, "--out", folder / "run", draw=False)
    assert called.code == 0, called.err
    answer = call("predict", folder / "run", folder / "t.csv", "--out", folder / "p.parquet")
    assert (answer.code, answer.err) == (0, "")
    return Run(folder / "run", called), pd.read_parquet(folder / "p.parquet")


@pytest.fixture(scope="module")
def wine():
    data = load_wine(as_frame=True)
    lab = np.where(data.data["alcohol"] + np.random.default_rng(0).normal(size=len(data.data)) > 13, "north", "south")
    return data.data.assign(lab=lab, wine=np.array(["red", "rosé", "white"])[data.target])


def test_several_classes(wine, tmp_path):
    """Decisions and probabilities as written; by scikit-learn they give what the run told of itself."""
    constraints = ("--constraint", "demographic_parity(lab) <= 0.2", "--constraint", "recall(wine == 'rosé') >= 0.9")
    run, predicted = fit_and_predict(wine, tmp_path, "--target", "wine", *constraints, "--rounds", "150")
    assert run.called.err == "note: the target 'wine' is taken for one of 3 classes\n"
    names = [f"probability of {name}" for name in ("red", "rosé", "white")]
    assert list(predicted) == ["wine", *names]
    p = predicted[names].to_numpy()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert (predicted["wine"] == np.array(["red", "rosé", "white"])[p.argmax(axis=1)]).all()
    told = {name: run.result.value("train", name, "answer")[0] for name in ("objective", *run.result.bounds)}
    assert told["objective"] == pytest.approx(log_loss(wine["wine"], p / p.sum(axis=1, keepdims=True)), rel=1e-4)
    recall = recall_score(wine["wine"], predicted["wine"], labels=["rosé"], average=None)[0]
    assert told["recall(wine == rosé)"] == pytest.approx(recall, abs=1e-6)
    each = pd.crosstab(wine["lab"], predicted["wine"], normalize="index")
    assert told["demographic_parity(lab)"] == pytest.approx((each.max() - each.min()).max(), abs=1e-6)
    assert run.result.feasible.all()
    right = accuracy_score(wine["wine"], predicted["wine"])
    assert right > 0.6
    assert f"; {right:.1%} of 178 training rows right\n" in run.called.out


def test_whole_numbers_are_classes_unless_told(wine, tmp_path):
    """Few of them: numbers from 0 as texts, sorted as numbers are; as a number they get one column of predictions."""
    frame = wine.assign(stars=5 * wine["wine"].map({"red": 0, "rosé": 1, "white": 2})).drop(columns="wine")
    run, predicted = fit_and_predict(frame, tmp_path, "--target", "stars", "--rounds", "30")
    assert run.called.err == "note: the target 'stars' is taken for one of 3 classes; add --task number if it is one\n"
    assert list(predicted) == ["stars", *(f"probability of {stars}" for stars in (0, 5, 10))]
    assert (predicted["stars"].astype(int) == frame["stars"]).mean() > 0.9
    run, predicted = fit_and_predict(frame, tmp_path, "--target", "stars", "--task", "number", "--rounds", "30")
    assert run.called.err == ""
    assert run.toml["task"] == "number"
    assert list(predicted) == ["stars"]
    assert r2_score(frame["stars"], predicted["stars"]) > 0.7


@pytest.fixture(scope="module")
def diabetes():
    data = load_diabetes(as_frame=True, scaled=False)
    return data.data.assign(sex=np.where(data.data["sex"] > 1, "a", "b"), progress=data.target)


def test_a_number(diabetes, tmp_path):
    """In the target's own units; without constraints least squares' answer, and what is told of it is so.

    Without two columns that are nearly functions of others, in which gradient descent is slow.
    """
    diabetes = diabetes.drop(columns=["s1", "s2"])
    flags = ("--target", "progress", "--clients", "1", "--rounds", "400", "--step-size", "1")
    run, predicted = fit_and_predict(diabetes, tmp_path, *flags)
    assert run.called.err == "note: the target 'progress' is taken for a number; add --task classes if it is none\n"
    assert list(predicted) == ["progress"]
    truth, told = diabetes["progress"], predicted["progress"]
    features = pd.get_dummies(diabetes.drop(columns="progress")).astype(float)
    exact = LinearRegression().fit(features, truth)
    assert r2_score(truth, told) == pytest.approx(exact.score(features, truth), abs=1e-4)
    assert np.abs(told - exact.predict(features)).max() < 0.02 * truth.std()
    loss = run.result.value("train", "objective", "answer")[0]
    assert loss == pytest.approx(1 - r2_score(truth, told), rel=1e-4), "1 is the variance"
    error, r2 = root_mean_squared_error(truth, told), r2_score(truth, told)
    assert f"; root mean squared error {error:.3g}, R2 {r2:.2f} on 442 training rows\n" in run.called.out


def test_a_gap_of_means(diabetes, tmp_path):
    """Of the predictions, in the target's own units: over the bound for least squares, within it here."""
    assert diabetes.groupby("sex")["progress"].mean().diff().abs().max() > 6, "and so are least squares' predictions"
    flags = ("--target", "progress", "--constraint", "mean_gap(sex) <= 2", "--rounds", "200")
    run, predicted = fit_and_predict(diabetes, tmp_path, *flags)
    gap = predicted["progress"].groupby(diabetes["sex"]).mean().diff().abs().max()
    assert run.result.value("train", "mean_gap(sex)", "answer")[0] == pytest.approx(gap, rel=1e-3)
    assert gap <= 2
    assert r2_score(diabetes["progress"], predicted["progress"]) > 0.4


def test_held_out_rows_of_a_number(diabetes, tmp_path):
    """A fifth, a row of each client's more or less; judged in units of the training rows' spread."""
    diabetes.to_csv(tmp_path / "t.csv", index=False)
    flags = ("--target", "progress", "--constraint", "group_loss_gap(sex) <= 0.2", "--rounds", "60", "--no-progress")
    called = call("fit", tmp_path / "t.csv", *flags, "--out", tmp_path / "run", draw=False)
    assert called.code == 0, called.err
    told = re.search(r" on (\d+) training rows, root mean squared error .* on (\d+) held-out rows", called.out)
    train, held = map(int, told.groups())
    assert train + held == len(diabetes)
    assert abs(held - len(diabetes) / 5) <= 10
    result = Run(tmp_path / "run").result
    assert 0.3 < result.value("test", "objective", "answer")[0] < 1


def test_a_model_whose_target_is_damaged(wine, tmp_path):
    run, _ = fit_and_predict(wine, tmp_path, "--target", "wine", "--rounds", "2")
    path = run.folder / "model.json"
    path.write_text(path.read_text().replace('"white"', "7"))
    assert_one_error(call("predict", run.folder, tmp_path / "t.csv"), 2, r"model\.json", "damaged")
