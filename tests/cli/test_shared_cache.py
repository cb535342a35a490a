"""Programs on disk are shared by commands: what one has compiled, another process finds there."""

import os
import subprocess
import sys

import pytest

RUN = "neyman-pearson --rounds 3 --clients 4 --participants 2"
FIT = "fit TABLE --target y --constraint demographic_parity(g)<=0.1 --clients 2 --rounds 3"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"run {RUN}", f"sweep {RUN} --vary step-size=0.1,0.2 --vary bound=0.1,0.3"),
        (FIT, f"sweep {FIT} --vary adapt=1,3"),
    ],
)
def test_another_command_compiles_no_round(first, second, tmp_path):
    table = tmp_path / "table.csv"
    rows = [f"{i % 7},{'ab'[i % 2]},{'yn'[i % 3 == 0]}" for i in range(60)]
    table.write_text("\n".join(["x,g,y", *rows]) + "\n")

    def programs(command, out):
        given = [str(table) if word == "TABLE" else word for word in command.split()]
        env = os.environ | {"FEDSGM_CACHE": str(tmp_path / "cache")}
        env.pop("JAX_COMPILATION_CACHE_DIR", None)
        run = [sys.executable, "-m", "fedsgm", *given, "--out", str(tmp_path / out), "--no-progress"]
        done = subprocess.run(run, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {path.name for path in (tmp_path / "cache" / "compiled").glob("*-cache")}

    before = programs(first, "first")
    rounds = {name for name in before if "advance" in name}
    assert len(rounds) == 1
    after = programs(second, "second")
    assert {name for name in after if "advance" in name} == rounds
    assert before <= after
