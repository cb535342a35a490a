"""The notebooks in examples/ run from top to bottom, show what they end cells with, and come to feasible answers."""

import ast
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def run_cell(text, names):
    """As a notebook does: what the last line comes to is shown."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        assert len(repr(value)) < 3000
        getattr(value, "_repr_html_", str)()


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.usefixtures("_programs_go_with_their_test")
def test_a_notebook_runs(name, monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLES)
    document = json.loads((EXAMPLES / name).read_text())
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():
        for cell in document["cells"]:
            if cell["cell_type"] == "code":
                run_cell("".join(cell["source"]), names)
    assert names["result"].feasible.all()
    assert "FEASIBLE: the answer" in capsys.readouterr().out
    if name == "federation.ipynb":
        for key, value in names["simulated"].last.items():
            np.testing.assert_allclose(names["quiet"].last[key], value, rtol=1e-4, atol=1e-5)
        left = names["faulty"].settings["federation"]["clients"]
        assert [bool(each["left_out"]) for each in left] == [True, True, False, False, False]


def test_there_is_one_for_each_user():
    assert NOTEBOOKS == ["federation.ipynb", "research.ipynb", "table.ipynb"]
