"""The scripts in examples/ run, and end within their bounds."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
MODELS = {"digits_cnn.py": 1898, "digits_torch.py": 1898, "lora_transformer.py": 4 * (64 + 64 + 160 + 160)}


@pytest.mark.parametrize(("name", "parameters"), MODELS.items())
def test_a_model_of_another_library_trains_within_its_bounds(name, parameters, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = runpy.run_path(str(EXAMPLES / name), run_name="__main__")["result"]
    assert capsys.readouterr().out.startswith("FEASIBLE: the answer")
    assert result.feasible.all()
    assert result.settings["parameters"] == parameters  # of the transformer, the additions alone: rank times both sides
    assert result.value("train", "objective", "answer") < 0.2  # a constant answer has log 10 and log 4


def test_every_script_that_trains_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*MODELS, "applicants.py", "benchmark_case.py"}
