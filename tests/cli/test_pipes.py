"""What reads a command's words may go away, as ``head -1`` does: the folder is written all the same."""

import os

import pandas as pd
import pytest

import fedsgm as fs
from support import processes
from support.commands import FILES, RUN, TINY


def unread(arguments, streams):
    """``fedsgm`` whose standard output, and error where it is wanted, is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    for stream in streams:
        os.dup2(writing, stream)
    processes.command(arguments)


@pytest.fixture
def loans(tmp_path):
    rows = range(60)
    frame = pd.DataFrame({"x": rows, "same": "a", "y": [row % 3 == 0 or row > 40 for row in rows]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


@pytest.mark.parametrize("streams", [(1,), (1, 2)], ids=["output", "output and errors"])
@pytest.mark.parametrize("command", ["run", "fit", "sweep"])
def test_the_folder_is_written(command, streams, loans, tmp_path):
    """With the exit code of a run that was read; a note is told on standard error before the fit begins."""
    out, log = tmp_path / "out", tmp_path / "log"
    given = {
        "run": [*RUN, *TINY],
        "fit": ["fit", str(loans), "--target", "y", "--rounds", "5", "--no-progress"],
        "sweep": ["sweep", RUN[1], *TINY, "--vary", "step-size=0.1,0.2"],
    }[command]
    process = processes.start(unread, [*given, "--out", str(out)], streams, log=log)
    process.join(240)
    assert process.exitcode == 0, log.read_text()
    written = {path.name for path in out.iterdir()}
    if command == "sweep":
        assert written == {"sweep.parquet", "sweep.png"}
    else:
        assert written == FILES | ({"model.json"} if command == "fit" else set())
        assert fs.Result.load(out).settings["rounds"] == 5
    said = [line for line in log.read_text().splitlines() if not line.startswith("note: ")]
    assert said == [], "nor is there an error"
