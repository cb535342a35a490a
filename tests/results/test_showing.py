"""What is shown at a prompt and in a notebook: short, true, and text where text was given."""

import re
import sys
import types

import numpy as np
import optax
import pytest

import fedsgm as fs
from fedsgm.base import notebook, progress
from support.federated import ALGORITHM, CLIENTS, PARAMS, PROBLEM


@pytest.fixture(scope="module")
def result():
    return fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=3, seeds=2, progress=False)


def test_a_line_for_each(result):
    rule = fs.Soft(beta=40.0)
    algorithm = fs.FedSGM(0.1, local_steps=5, rule=rule, uplink=fs.TopK(0.1), server=optax.adam(0.1))
    assert repr(algorithm).startswith("FedSGM(step_size=0.1, local_steps=5, rule=Soft(beta=40.0), uplink=TopK(")
    mean = fs.Mean(abs, name="size")
    assert repr(fs.Problem(objective=abs, constraints=[mean <= 1, fs.between(0, fs.Mean(max), 2)])) == (
        "Problem(objective=Mean(fn=abs), constraints=[size <= 1, 0 <= max <= 2])"
    )
    clients = fs.split({"x": np.zeros((10, 3), np.float32), "y": np.zeros(10)}, clients=3)
    assert repr(clients) == "Clients(3 clients, 10 examples, 3 to 4 each: x float32[3], y float64[])"
    told = repr(result)
    assert told.startswith("Result(NOT FEASIBLE: " if "NOT" in result.verdict() else "Result(feasible: ")
    assert "; 3 rounds, 2 seeds)" in told
    for thing in (result, clients, algorithm, PROBLEM):
        assert len(repr(thing)) < 300
        assert thing._repr_html_().startswith("<table>")


def test_names_are_text_in_a_notebook():
    problem = fs.Problem(objective=abs, constraints=[fs.Mean(abs, name="<script>x</script>") <= 1])
    assert "<script>" not in problem._repr_html_()
    assert "&lt;script&gt;" in problem._repr_html_()


def test_a_result_in_a_notebook_has_its_verdict_and_its_picture(result):
    shown = result._repr_html_()
    assert result.verdict().splitlines()[0] in shown
    assert "src='data:image/png;base64,iVBOR" in shown
    assert not re.search(r"src='http|href=", shown)


def test_a_frame_has_a_row_for_each_seed_and_round(result):
    frame = result.to_frame()
    assert frame["seed"].tolist() == [0] * 3 + [1] * 3
    assert frame["round"].tolist() == [1, 2, 3] * 2
    assert set(frame.columns) == {"seed", "round", *result.history}
    assert frame["objective"].to_numpy().tobytes() == result.history["objective"].tobytes()
    assert frame["participants"][4].tolist() == result.history["participants"][1, 1].tolist()


def test_without_pandas_it_is_said(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fs.SettingError, match="pip install pandas"):
        result.to_frame()


def test_a_notebook_has_a_bar(monkeypatch, capsys):
    """As IPython's display does it: one output that is replaced."""
    shown = []
    handle = types.SimpleNamespace(update=shown.append)
    fake = types.ModuleType("IPython")
    fake.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    fake.display = types.ModuleType("IPython.display")
    fake.display.HTML = str
    fake.display.display = lambda first, **_: (shown.append(first), handle)[1]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake.display)
    monkeypatch.setattr(notebook, "_EVERY", 0.0)
    with progress.Progress("<np>", 3) as bar:
        bar.update(2, objective=0.5)
        bar.update(3, objective=0.25)
    assert "compiling" in shown[1]
    assert "value='2' max='3'" in shown[2]
    assert re.search(r"3/3 .* objective 0\.25", shown[-1])
    assert not [text for text in shown if "<np>" in text]
    assert capsys.readouterr().err == "", "and no lines beside it"
