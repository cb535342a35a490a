"""``fedsgm run``, as a person meets it: every flag does what its help says, and a run leaves what it should."""

import importlib
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import typer

from fedsgm.__main__ import app
from fedsgm.base import progress
from fedsgm.cli.flags import RuleName
from support.commands import FILES, RUN, TINY, Called, assert_one_error, call, run, same_bits, spellings
from support.flags import CASES, ELSEWHERE

# What every flag does -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flag(case, base, tmp_path):
    assert case.check(run(tmp_path / "run", *case.flags.split()), base)


def test_every_flag_has_a_test():
    """A new flag of the command must be named in the table above, or beside the test that is its own."""
    command = typer.main.get_command(app).commands["run"].commands["neyman-pearson"]
    named = {word for case in CASES for word in case.flags.split() if word.startswith("--")}
    flags = spellings(command)
    assert named | set(ELSEWHERE) == flags
    for module, _, test in (place.partition(".") for place in ELSEWHERE.values()):
        assert callable(getattr(importlib.import_module(module), test))


def test_every_rule_has_a_test():
    assert set(re.findall(r"--rule (\S+)", " ".join(case.flags for case in CASES))) == set(RuleName)


def test_the_step_is_proportional_to_the_step_size(tmp_path):
    """One round, one local step, nothing compressed: from zero, the model is minus eta times the gradient."""
    plain = ("--uplink", "none", "--downlink", "none", "--rounds", "1", "--local-steps", "1")
    short, long = (run(tmp_path / eta, *plain, "--step-size", eta).vector for eta in ("0.1", "0.4"))
    np.testing.assert_allclose(4 * short, long, rtol=1e-5)
    assert long.any()


def test_the_defaults_are_the_paper_s_experiment():
    command = typer.main.get_command(app).commands["run"].commands["neyman-pearson"]
    defaults = {parameter.name: parameter.default for parameter in command.params}
    expected = {"clients": 20, "participants": 10, "local_steps": 5, "rounds": 500, "bound": 0.05, "tolerance": 0.0}
    assert expected.items() <= defaults.items()
    assert (defaults["rule"], defaults["uplink"], defaults["downlink"]) == ("soft", "topk:0.1", "topk:0.1")


# Checkpoints, debugging, output ---------------------------------------------------------------------------------------


def test_checkpoint_and_resume(base, tmp_path):
    """Three rounds, then on to five: the bits of a run that was not interrupted."""
    saved = ("--checkpoint", tmp_path / "saved")
    run(tmp_path / "first", *saved, "--rounds", "3")
    assert [path.name for path in (tmp_path / "saved").glob("*.ckpt")] == ["round-000000003.ckpt"]
    resumed = run(tmp_path / "run", *saved, "--resume")
    assert same_bits(resumed.folder, base.folder)
    assert (tmp_path / "saved" / "round-000000005.ckpt").is_file()


def test_resume_begins_where_there_is_nothing_yet(base, tmp_path):
    """So that one command line serves a job that is started again and again."""
    done = run(tmp_path / "run", "--checkpoint", tmp_path / "saved", "--resume")
    assert same_bits(done.folder, base.folder)


def test_checkpoint_every(tmp_path):
    run(tmp_path / "run", "--checkpoint", tmp_path / "saved", "--checkpoint-every", "2")
    names = sorted(path.name for path in (tmp_path / "saved").glob("*.ckpt"))
    assert names == ["round-000000004.ckpt", "round-000000005.ckpt"]


def test_a_damaged_checkpoint_is_a_warning_of_one_line(base, tmp_path):
    saved = tmp_path / "saved"
    flags = ("--checkpoint", saved, "--checkpoint-every", "2")
    run(tmp_path / "first", *flags)
    newest = saved / "round-000000005.ckpt"
    newest.write_bytes(newest.read_bytes()[:-10])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        called = call(*RUN, *TINY, *flags, "--resume", "--out", tmp_path / "run", draw=False)
    assert called.code == 0
    assert re.fullmatch(r"warning: .*round-000000005\.ckpt is truncated.*going on from round 4\n", called.err)
    assert same_bits(tmp_path / "run", base.folder)


@pytest.mark.usefixtures("_programs_go_with_their_test")
def test_debug_names_the_client(tmp_path):
    """A step size beyond reason: compiled, the run ends with NaN; in debug mode it stops at the culprit."""
    wild = ("--step-size", "3e38", "--rounds", "2", "--local-steps", "1")
    called = call(*RUN, *TINY, *wild, "--debug", "--out", tmp_path / "debug")
    assert_one_error(called, 1, r"client \d, round \d", "NaN")
    assert not (tmp_path / "debug").exists()


def test_a_run_that_diverges_says_so(tmp_path):
    """It is saved and drawn like any other, without a warning from a library."""
    called = call(*RUN, *TINY, "--step-size", "3e38", "--require-feasible", "--out", tmp_path / "run")
    assert called.code == 3
    assert called.err == ""
    assert called.out.startswith("NOT FEASIBLE: the one seed diverged")
    shown = call("show", tmp_path / "run")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[0] == called.out.splitlines()[0]


def test_out(base, tmp_path, monkeypatch):
    """The folder, made with its parents, holds the five files and nothing else; unless told it is runs/TASK."""
    done = run(tmp_path / "a" / "b", draw=True)
    assert {path.name for path in done.folder.iterdir()} == FILES
    assert f"Saved in {done.folder}" in done.called.out
    assert all(name in done.called.out for name in FILES)
    monkeypatch.chdir(tmp_path)
    assert call(*RUN, *TINY, draw=False).code == 0
    assert same_bits(tmp_path / "runs" / "neyman-pearson", base.folder)


def test_out_replaces_a_run_that_is_there(base, tmp_path):
    first = run(tmp_path / "run", "--rounds", "3")
    assert first.settings["rounds"] == 3
    second = run(tmp_path / "run")
    assert same_bits(second.folder, base.folder)
    assert {path.name for path in second.folder.iterdir()} == FILES


def test_the_verdict_comes_first_and_is_kept(base):
    lines = base.called.out.splitlines()
    assert lines[0].startswith("NOT FEASIBLE: ")
    assert lines[: len(base.document["verdict"])] == base.document["verdict"]
    assert base.document["feasible"] is False
    assert not base.result.feasible.any()


def test_progress(tmp_path, monkeypatch):
    """Plain lines on standard error where nobody is watching, none if told so, and standard output is the same."""
    monkeypatch.setattr(progress, "_LINE_EVERY", -1.0)
    loud = call(*RUN, *TINY, "--progress", "--out", tmp_path / "run", draw=False)
    quiet = call(*RUN, *TINY, "--no-progress", "--out", tmp_path / "run", draw=False)
    usual = call(*RUN, *[flag for flag in TINY if flag != "--no-progress"], "--out", tmp_path / "run", draw=False)
    assert re.search(r"^FedSGM: round 5 of 5  objective \S+  violation \S+  weight \S+$", loud.err, re.MULTILINE)
    assert quiet.err == ""
    assert usual.err == loud.err
    assert loud.out == quiet.out == usual.out


@pytest.mark.parametrize(("bound", "code", "headline"), [("5", 0, "FEASIBLE: "), ("0.01", 3, "NOT FEASIBLE: ")])
def test_require_feasible(bound, code, headline, tmp_path):
    """Exit code 3 where a seed's answer is outside its bound; the run is saved all the same, and 0 without the flag."""
    done = run(tmp_path / "run", "--bound", bound, "--require-feasible", code=code)
    assert done.called.out.startswith(headline)
    assert done.document["feasible"] is (code == 0)
    assert {path.name for path in done.folder.iterdir()} == FILES
    assert call(*RUN, *TINY, "--bound", bound, "--out", tmp_path / "run", draw=False).code == 0


def test_require_feasible_means_every_seed(tmp_path):
    """The first round from zero goes to the constraint under either bound, so both runs end at the same models."""
    flags = ("--seeds", "3", "--rounds", "1")
    values = np.sort(run(tmp_path / "run", *flags).result.value("train", "minority", "answer"))
    assert values[0] < values[1] < np.log(2)
    done = run(tmp_path / "run", *flags, "--bound", values[:2].mean(), "--require-feasible", code=3)
    assert done.result.feasible.sum() == 1
    assert done.document["feasible"] is False


# As a process of its own ----------------------------------------------------------------------------------------------


def process(*arguments, **more):
    command = [sys.executable, "-m", "fedsgm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ, **more)


def test_a_process_gives_the_same_run(base, tmp_path):
    """Same bits, verdict on standard output, nothing on standard error."""
    ended = process(*RUN, *TINY, "--out", "run", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[0] == base.document["verdict"][0]
    assert same_bits(tmp_path / "run", base.folder)


def test_a_process_says_what_is_wrong_in_one_line(tmp_path):
    ended = process(*RUN, *TINY, "--participants", "9", cwd=tmp_path)
    assert_one_error(Called(ended.returncode, ended.stdout, ended.stderr), 2, "participants=9", "4 clients")
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []
