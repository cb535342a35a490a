"""The command line, as a person meets it: every flag does what its help says, every mistake gets one clear line."""

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import typer

import fedsgm
from fedsgm.__main__ import app
from fedsgm.base import progress
from fedsgm.base.describe import describe
from fedsgm.cli import flags
from fedsgm.core import wire
from fedsgm.results.result import KINDS
from support.commands import FILES, RUN, TINY, Called, Run, assert_one_error, call, run, same_bits, spellings, write
from support.flags import CASES, ELSEWHERE, D


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The tiny run without further flags."""
    return run(tmp_path_factory.mktemp("base") / "run", draw=True)


@pytest.fixture
def damaged(base, tmp_path):
    """A copy of a finished run, to be damaged."""
    return Path(shutil.copytree(base.folder, tmp_path / "damaged"))


# What every flag does ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flag(case, base, tmp_path):
    assert case.check(run(tmp_path / "run", *case.flags.split()), base)


def test_every_flag_has_a_test():
    """A new flag of the command must be named in the table above, or beside the test that is its own."""
    command = typer.main.get_command(app).commands["run"].commands["neyman-pearson"]
    named = {word for case in CASES for word in case.flags.split() if word.startswith("--")}
    flags = spellings(command)
    assert named | set(ELSEWHERE) == flags
    assert all(callable(globals().get(test)) for test in ELSEWHERE.values())


COMPRESSORS = {
    "none": ({"is": "Identity"}, 8 + 4 * D),
    "topk:0.1": ({"is": "TopK", "fraction": 0.1, "count": None}, 9 + 2 + 4 * 3),
    "topk:count=4": ({"is": "TopK", "fraction": None, "count": 4}, 9 + 3 + 4 * 4),
    "randk:0.2": ({"is": "RandK", "fraction": 0.2, "count": None}, 9 + 3 + 4 * 6),
    "randk:count=5": ({"is": "RandK", "fraction": None, "count": 5}, 9 + 3 + 4 * 5),
    "float16": ({"is": "Quantize", "format": "float16", "block": None}, 9 + 2 * D + 4),
    "float8": ({"is": "Quantize", "format": "float8", "block": None}, 9 + D + 4),
    "float4": ({"is": "Quantize", "format": "float4", "block": None}, 9 + 16 + 4),
    "int4:8": ({"is": "Quantize", "format": "int4", "block": 8}, 9 + 16 + 4 * 4),
    "int2": ({"is": "Quantize", "format": "int2", "block": None}, 9 + 8 + 4),
    "int8:64": ({"is": "Quantize", "format": "int8", "block": 64}, 9 + D + 4),
    "sign": ({"is": "ScaledSign"}, 9 + 4 + 4),
    "natural": ({"is": "Natural"}, 9 + 35),
    "layers:topk:0.1": (
        {"is": "Layerwise", "compressor": {"is": "TopK", "fraction": 0.1, "count": None}, "sizes": [1, 30]},
        8 + (3 + 1 + 4) + (3 + 2 + 4 * 3),
    ),
    "layers:int4:16": (
        {"is": "Layerwise", "compressor": {"is": "Quantize", "format": "int4", "block": 16}, "sizes": [1, 30]},
        8 + (3 + 1 + 4) + (3 + 15 + 8),
    ),
}
"""Spelling: what it is, and the bytes of one message of 31 entries, by hand: header, indices, codes, floats."""


@pytest.mark.parametrize("spelling", COMPRESSORS)
def test_compressors(spelling):
    """What a spelling means, and that it costs what it should."""
    compressor = flags.parse_compressor(spelling, {"w": np.zeros(30, np.float32), "b": np.zeros((), np.float32)})
    assert describe(compressor) == COMPRESSORS[spelling][0]
    message = compressor.compress(jax.numpy.arange(D, dtype=np.float32), jax.random.key(0))
    assert len(wire.encode(message, D)) == COMPRESSORS[spelling][1]


@pytest.mark.parametrize(
    ("up", "down"),
    [("none", "layers:topk:0.1"), ("randk:0.2", "float8"), ("int4:8", "natural"), ("sign", "none")],
)
def test_uplink_and_downlink(up, down, tmp_path):
    """A participant also sends one float and receives three; indices that are all small take a byte less."""
    done = run(tmp_path / "run", "--uplink", up, "--downlink", down)
    assert done.algorithm["uplink"] == COMPRESSORS[up][0]
    assert done.algorithm["downlink"] == COMPRESSORS[down][0]
    assert (done.toml["uplink"], done.toml["downlink"]) == (up, down)
    less_up, less_down = (int("topk" in link or "randk" in link) for link in (up, down))
    assert 0 <= 2 * (4 + COMPRESSORS[up][1]) - done.history["bytes_up"].min() <= 2 * less_up
    assert done.history["bytes_up"].max() == 2 * (4 + COMPRESSORS[up][1])
    assert 0 <= 2 * 12 + 4 * COMPRESSORS[down][1] - done.history["bytes_down"].min() <= 4 * less_down
    assert done.history["bytes_down"].max() == 2 * 12 + 4 * COMPRESSORS[down][1]
    assert np.isfinite(done.vector).all()
    assert done.vector.any()


def test_every_compressor_in_the_help_is_tried():
    """The kinds that the help names, whatever their numbers."""
    named = set(re.findall(r"\b(none|topk|randk|float\d+|int\d|sign|natural|layers)\b", flags._COMPRESSOR))
    tried = {part for spelling in COMPRESSORS for part in re.split("[:=]", spelling)}
    assert named <= tried


def test_compressors_may_be_spelled_in_capitals():
    params = {"w": np.zeros(3)}
    assert flags.parse_compressor(" TopK:0.5 ", params) == flags.parse_compressor("topk:0.5", params)


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


# Checkpoints, debugging, output --------------------------------------------------------------------------------------


def test_checkpoint_and_resume(base, tmp_path):
    """Three rounds, then on to five: the bits of a run that was not interrupted."""
    saved = ("--checkpoint", tmp_path / "saved")
    run(tmp_path / "first", *saved, "--rounds", "3")
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["round-000000003.ckpt"]
    resumed = run(tmp_path / "run", *saved, "--resume")
    assert same_bits(resumed.folder, base.folder)
    assert (tmp_path / "saved" / "round-000000005.ckpt").is_file()


def test_resume_begins_where_there_is_nothing_yet(base, tmp_path):
    """So that one command line serves a job that is started again and again."""
    done = run(tmp_path / "run", "--checkpoint", tmp_path / "saved", "--resume")
    assert same_bits(done.folder, base.folder)


def test_checkpoint_every(tmp_path):
    run(tmp_path / "run", "--checkpoint", tmp_path / "saved", "--checkpoint-every", "2")
    names = sorted(path.name for path in (tmp_path / "saved").iterdir())
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
    """Exit code 3 where a seed ends outside its bound; the run is saved all the same, and 0 without the flag."""
    done = run(tmp_path / "run", "--bound", bound, "--require-feasible", code=code)
    assert done.called.out.startswith(headline)
    assert done.document["feasible"] is (code == 0)
    assert {path.name for path in done.folder.iterdir()} == FILES
    assert call(*RUN, *TINY, "--bound", bound, "--out", tmp_path / "run", draw=False).code == 0


def test_require_feasible_means_every_seed(tmp_path):
    """The first round from zero goes to the constraint under either bound, so both runs end at the same models."""
    flags = ("--seeds", "3", "--rounds", "1")
    values = np.sort(run(tmp_path / "run", *flags).result.values["train"]["minority"][0])
    assert values[0] < values[1] < np.log(2)
    done = run(tmp_path / "run", *flags, "--bound", values[:2].mean(), "--require-feasible", code=3)
    assert done.result.feasible.sum() == 1
    assert done.document["feasible"] is False


# Settings in a file --------------------------------------------------------------------------------------------------


def test_config_gives_the_defaults_and_flags_win(tmp_path):
    text = "rounds = 3\nclients = 6\nparticipants = 2\nseeds = 1\nseed = 7\nstep-size = 0.2\ndual_step = 0.7\n"
    text += f'rule = "hard"\nprogress = false\nrequire-feasible = true\nout = "{tmp_path / "run"}"\n'
    config = write(tmp_path / "settings.toml", text)
    called = call(*RUN, "--config", config, "--clients", "4", "--rule=soft", draw=False)
    assert called.code == 3, called.err
    done = Run(tmp_path / "run")
    assert done.settings["rounds"] == 3
    assert done.settings["seeds"] == [7]
    assert done.settings["clients"] == 4, "the flag wins over the file"
    assert done.algorithm["rule"] == {"is": "Soft", "beta": 40.0, "ceiling": 1.0}, "the flag wins over the file"
    assert done.algorithm["step_size"] == 0.2, "a key with a hyphen"
    assert done.toml["dual-step"] == 0.7, "a key with an underscore"


def test_a_flag_wins_even_with_the_default_value_and_before_the_file(base, tmp_path):
    config = write(tmp_path / "c.toml", "participants = 2\nclients = 4\nrounds = 5\nseeds = 1\nbeta = 3.0\nseed = 7\n")
    flags = ("--beta", "40", "--seed", "0", "--config", config, "--no-progress", "--out", tmp_path / "run")
    assert call(*RUN, *flags, draw=False).code == 0
    assert same_bits(tmp_path / "run", base.folder)


def test_an_empty_config_changes_nothing(base, tmp_path):
    done = run(tmp_path / "run", "--config", write(tmp_path / "empty.toml", "# nothing\n"))
    assert same_bits(done.folder, base.folder)


@pytest.mark.parametrize(
    "flags",
    [
        "--rule penalty --rho 0.3 --uplink layers:topk:0.2 --downlink int4:8 --radius 0.7 --batch-size 4 --seed 3",
        "--rule primal-dual --dual-step 4 --tolerance 0.01 --bound 0.55 --split 2",
        "--box 0.1 --downlink none",
        "--rule ipp-conex --proximal 0.5 --primal-scale 3 --dual-scale 0.5 --offset 2 --inner-steps 7 --bound 0.3",
        "--centralized --rule hard --bound 0.3 --uplink none --downlink none",
        "--rho inf --dual-step nan",
    ],
)
def test_settings_of_a_run_repeat_it_bit_for_bit(flags, tmp_path):
    first = run(tmp_path / "first", *flags.split())
    called = call(
        *RUN, "--config", first.folder / "settings.toml", "--out", tmp_path / "again", "--no-progress", draw=False
    )
    assert called.code == 0, called.err
    assert same_bits(first.folder, tmp_path / "again")
    assert not {"out", "checkpoint", "resume", "debug", "progress"} & first.toml.keys()


# Looking at a run again ----------------------------------------------------------------------------------------------


def test_show_prints_the_verdict_and_draws_again(base, tmp_path):
    folder = Path(shutil.copytree(base.folder, tmp_path / "run"))
    picture = folder / "history.png"
    before = picture.read_bytes()
    picture.unlink()
    shown = call("show", folder)
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[: len(base.document["verdict"])] == base.document["verdict"]
    assert f"Picture: {picture}" in lines
    assert picture.read_bytes() == before
    assert {path.name for path in folder.iterdir()} == FILES


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("deep/p.svg", b"<?xml"), ("p.pdf", b"%PDF")])
def test_show_draws_elsewhere(name, start, damaged, tmp_path):
    (damaged / "history.png").unlink()
    shown = call("show", damaged, "--plot", tmp_path / name)
    assert shown.code == 0
    assert str(tmp_path / name) in shown.out
    assert (tmp_path / name).read_bytes().startswith(start)
    assert not (damaged / "history.png").exists()


def test_show_table(tmp_path):
    done = run(tmp_path / "run", "--seeds", "3", "--seed", "5", "--bound", "0.4")
    plain = call("show", done.folder)
    shown = call("show", done.folder, "--table")
    assert shown.code == 0
    assert "(train)" not in plain.out
    rows = [line.split() for line in shown.out.splitlines() if line.startswith(("last ", "average ", "best_feasible "))]
    assert [row[:2] for row in rows] == [[kind, seed] for kind in KINDS for seed in ("5", "6", "7")]
    columns = [done.result.values[part][name] for part in ("train", "test") for name in ("objective", "minority")]
    for row, expected in zip(rows, np.stack(columns, axis=-1).reshape(9, 4), strict=True):
        np.testing.assert_allclose([float(cell.replace("undefined", "nan")) for cell in row[2:]], expected, rtol=1e-3)


# Help ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--help", ["run", "show", "Constrained federated learning"]),
        ("-h", ["run", "show"]),
        ("run --help", ["neyman-pearson", "Least loss on the majority class"]),
        ("run neyman-pearson --help", ["result.json", "topk:0.1", "layers:", "exit with 3"]),
        ("show --help", ["RUN", "--plot", "--table", "verdict"]),
    ],
)
def test_help(arguments, words):
    shown = call(*arguments.split())
    assert (shown.code, shown.err) == (0, "")
    text = " ".join(re.sub(r"[│╭╰─╮╯]", " ", shown.out).split()).lower()
    assert [word for word in words if word.lower() not in text] == []


@pytest.mark.parametrize(
    "path", [("run", "neyman-pearson"), ("sweep", "neyman-pearson"), ("show",), ("compare",)], ids=" ".join
)
def test_help_names_every_flag(path):
    """On a terminal of the usual 80 columns, and in full."""
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    shown = call(*path, "--help").out
    flags = {flag for flag in spellings(command) if flag.startswith("-")}
    assert {flag for flag in flags if not re.search(rf"{flag}(?![\w-])", shown)} == set()


@pytest.mark.parametrize("arguments", [(), ("run",), ("sweep",)], ids=["fedsgm", "fedsgm run", "fedsgm sweep"])
def test_no_arguments_print_the_help(arguments):
    shown = call(*arguments)
    assert shown.code in (0, 2)
    assert "Usage:" in shown.out
    assert shown.out.split() == call(*arguments, "--help").out.split()
    assert shown.err == "", "help is no error"


# Mistakes ------------------------------------------------------------------------------------------------------------


WRONG_FLAGS = {
    "--stepsize 0.1": ("No such option", "--stepsize", "--step-size"),
    "--rule fast": ("--rule", "fast", "hard", "soft", "penalty", "primal-dual", "unconstrained"),
    "--rounds many": ("--rounds", "integer"),
    "--rounds 2.5": ("--rounds", "integer"),
    "--rounds 0": ("rounds=0", "1 or more"),
    "--seeds 0": ("seeds=0", "1 or more"),
    "--seed -1": ("seed=-1", "0 or more"),
    "--seed 4294967296": ("seed=4294967296",),
    "--split -1": ("split", "-1", "0 or more"),
    "--step-size -0.1": ("step_size=-0.1", "above 0"),
    "--step-size nan": ("step_size=nan", "finite"),
    "--local-steps 0": ("local_steps=0", "1 or more"),
    "--participants 5": ("participants=5", "4 clients"),
    "--participants -1": ("participants=-1", "whole number"),
    "--clients 457": ("clients=457", "456 examples"),
    "--clients 200": ("client", "no example", "minority"),
    "--clients 0": ("clients=0", "1 or more"),
    "--tolerance -1": ("tolerance=-1.0",),
    "--bound nan": ("bound=nan", "finite"),
    "--beta 0": ("beta=0.0", "above 0"),
    "--rule penalty --rho -1": ("rho=-1.0",),
    "--rule primal-dual --dual-step 0": ("step=0.0", "above 0"),
    "--rule primal-dual --augment -1": ("augment=-1.0", "0 or more"),
    "--rule ipp-conex --proximal 0": ("proximal=0.0", "above 0"),
    "--rule ipp-conex --primal-scale nan": ("primal_scale=nan", "finite"),
    "--rule ipp-conex --dual-scale -1": ("dual_scale=-1.0", "above 0"),
    "--rule ipp-conex --offset -1": ("offset=-1.0", "0 or more"),
    "--rule ipp-conex --inner-steps 0": ("inner_steps=0", "1 or more"),
    "--rule ipp-conex --inner-steps 2.5": ("--inner-steps", "integer"),
    "--rule ipp-conex --local-steps 0": ("local_steps=0", "1 or more"),
    "--rule ipp-conex --batch-size -2": ("batch_size=-2",),
    "--rule ipp-conex --tolerance -1": ("tolerance=-1.0",),
    "--rule conex": ("--rule", "conex", "ipp-conex"),
    "--centralized --local-steps 0": ("local_steps=0", "1 or more"),
    "--centralized yes": ("unexpected extra argument", "yes"),
    "--batch-size -2": ("batch_size=-2",),
    "--constraint-batch-size -2": ("constraint_batch_size=-2",),
    "--evaluate-every -1": ("evaluate_every=-1", "0 or more"),
    "--resume": ("--resume needs --checkpoint",),
    "--checkpoint saved --checkpoint-every 0": ("every=0", "1 or more"),
    "--radius 1 --box 1": ("--radius and --box", "one of them"),
    "--radius 0": ("--radius 0", "above 0"),
    "--radius nan": ("--radius nan", "above 0"),
    "--box -2": ("--box -2", "above 0"),
    "--rounds": ("--rounds", "requires an argument"),
    "extra": ("unexpected extra argument", "extra"),
}


@pytest.mark.parametrize("flags", WRONG_FLAGS)
def test_wrong_flags(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = call(*RUN, *TINY, *flags.split())
    assert_one_error(called, 2, *map(re.escape, WRONG_FLAGS[flags]))
    assert called.out == ""
    assert list(tmp_path.iterdir()) == [], "nothing was written"


WRONG_COMPRESSORS = {
    "topk": ("'topk'", "topk:0.1"),
    "topk:abc": ("'topk:abc'", "topk:0.1"),
    "topk:1.5": ("fraction=1.5", "at most 1"),
    "topk:0": ("fraction=0.0", "above 0"),
    "topk:nan": ("fraction=nan",),
    "topk:count=0": ("count=0", "1 or more"),
    "topk:count=x": ("'topk:count=x'", "topk:count=3"),
    "topk:size=3": ("'topk:size=3'", "topk:count=3"),
    "randk": ("'randk'", "randk:0.1"),
    "float7": ("'float7'", "float16", "float8", "float4"),
    "int9": ("'int9'", "int2 to int8"),
    "int4:0": ("block=0", "1 or more"),
    "int4:big": ("'int4:big'", "int4:64"),
    "nonsense": ("'nonsense'", "topk:0.1", "sign", "natural"),
    "sign:3": ("'sign:3'", "sign"),
    "none:1": ("'none:1'", "none"),
    "layers:": ("'layers:'", "topk:0.1"),
    "layers:nonsense": ("nonsense", "topk:0.1"),
    "": ("''", "topk:0.1"),
}


@pytest.mark.parametrize("link", ["--uplink", "--downlink"])
@pytest.mark.parametrize("spelling", WRONG_COMPRESSORS)
def test_wrong_compressors(spelling, link, tmp_path):
    called = call(*RUN, *TINY, link, spelling, "--out", tmp_path / "run")
    assert_one_error(called, 2, *map(re.escape, WRONG_COMPRESSORS[spelling]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run neyman-person", ("No such command", "neyman-person")),
        ("rum", ("No such command", "rum")),
        ("show", ("Missing argument", "RUN")),
        ("--verbose", ("No such option", "--verbose")),
    ],
)
def test_wrong_commands(arguments, words):
    assert_one_error(call(*arguments.split()), 2, *words)


WRONG_CONFIGS = {
    "rounds = = 3": ("not a TOML file", "line 1"),
    "\ufffd": ("not a TOML file",),
    "round = 3": ("unknown setting 'round'", "rounds"),
    "config = 'other.toml'": ("unknown setting 'config'",),
    "help = true": ("unknown setting 'help'",),
    "rounds = 'many'": ("rounds", "integer"),
    "seed = 2.5": ("seed", "integer"),
    "beta = 'sharp'": ("beta", "number"),
    "rule = 'fast'": ("rule", "fast", "soft"),
    "[algorithm]\nbeta = 3.0": ("unknown setting 'algorithm'",),
    "[beta]\nvalue = 3.0": ("beta must be one value",),
    "seeds = [1, 2]": ("seeds must be one value",),
    "step-size = 0.1\nstep_size = 0.2": ("step.size", "twice"),
}


@pytest.mark.parametrize("text", WRONG_CONFIGS)
def test_wrong_configs(text, tmp_path):
    config = tmp_path / "c.toml"
    config.write_bytes(text.encode("latin-1" if text.isascii() else "utf-16"))
    called = call(*RUN, "--config", config, "--clients", "4", "--participants", "2", "--out", tmp_path / "run")
    assert_one_error(called, 2, *WRONG_CONFIGS[text])
    assert not (tmp_path / "run").exists()


def test_a_config_that_is_not_a_file(tmp_path):
    assert_one_error(call(*RUN, "--config", tmp_path / "none.toml"), 2, "none.toml", "no such file")
    assert_one_error(call(*RUN, "--config", tmp_path), 2, re.escape(str(tmp_path)))


def test_an_out_that_is_a_file_is_seen_before_the_run(tmp_path, monkeypatch):
    """Not after an hour's work that then has nowhere to go."""
    taken = write(tmp_path / "taken", "mine")
    monkeypatch.setattr(fedsgm, "simulate", lambda *_, **__: pytest.fail("the run had begun"))
    for out in (taken, taken / "below"):
        called = call(*RUN, *TINY, "--out", out)
        assert_one_error(called, 2, "--out", re.escape(str(taken)), "file")
        assert called.out == ""
    assert taken.read_text() == "mine"


def test_a_checkpoint_folder_that_is_a_file(tmp_path):
    taken = write(tmp_path / "taken", "mine")
    called = call(*RUN, *TINY, "--checkpoint", taken, "--out", tmp_path / "run")
    assert called.code in (1, 2)
    assert_one_error(called, called.code, re.escape(str(taken)))
    assert taken.read_text() == "mine"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoints of a finished tiny run."""
    folder = tmp_path_factory.mktemp("checkpoints")
    run(folder / "run", "--checkpoint", folder / "saved")
    return folder / "saved"


class TestCheckpointsThatDoNotFit:
    def refused(self, saved, tmp_path, *flags):
        before = {path: path.read_bytes() for path in saved.iterdir()}
        called = call(*RUN, *TINY, "--checkpoint", saved, "--out", tmp_path / "run", *flags)
        assert not (tmp_path / "run").exists()
        assert {path: path.read_bytes() for path in saved.iterdir()} == before
        return called

    def test_one_is_there_and_resume_was_not_asked_for(self, saved, tmp_path):
        called = self.refused(saved, tmp_path)
        assert_one_error(called, 1, re.escape(str(saved)), "round 5", "resume", "empty folder")

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            ("--step-size 0.1", ("step_size", r"0\.3\b", r"0\.1\b")),
            ("--rule hard", ("rule", "Soft", "Hard")),
            ("--bound 0.1", ("bound", r"0\.05", r"0\.1\b")),
            ("--seeds 2", ("seeds", r"\[0\]", r"\[0, 1\]")),
            ("--clients 5", ("clients", "4", "5")),
            ("--split 1", ("data",)),
        ],
    )
    def test_other_settings(self, flags, words, saved, tmp_path):
        """The message is about what differs, and short enough to see it."""
        called = self.refused(saved, tmp_path, "--resume", *flags.split())
        assert_one_error(called, 1, *words, "same settings")
        assert len(called.err.replace(str(saved), "")) < 250

    def test_fewer_rounds_than_it_has_done(self, saved, tmp_path):
        called = self.refused(saved, tmp_path, "--resume", "--rounds", "4")
        assert_one_error(called, 1, "round 5", "4 rounds")


class TestShowRefuses:
    def refused(self, folder, *words):
        assert_one_error(call("show", folder), 2, re.escape(str(folder)), *words)

    def test_a_folder_that_is_no_run(self, tmp_path):
        self.refused(tmp_path, "not a run", "result.json")
        self.refused(tmp_path / "nowhere", "not a run")

    def test_a_file(self, tmp_path):
        self.refused(write(tmp_path / "file", "text"), "not a run")

    @pytest.mark.parametrize("name", ["params.safetensors", "history.parquet"])
    def test_a_truncated_file(self, name, damaged):
        path = damaged / name
        path.write_bytes(path.read_bytes()[:-20])
        self.refused(damaged, name, "altered")

    @pytest.mark.parametrize("name", ["params.safetensors", "history.parquet"])
    def test_one_altered_byte(self, name, damaged):
        path = damaged / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        self.refused(damaged, name, "altered")

    @pytest.mark.parametrize("name", ["params.safetensors", "history.parquet"])
    def test_a_missing_file(self, name, damaged):
        (damaged / name).unlink()
        self.refused(damaged, name, "missing")

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 99}', "\x00\x01"])
    def test_a_result_that_is_none(self, text, damaged):
        (damaged / "result.json").write_text(text)
        self.refused(damaged, "result.json")

    @pytest.mark.parametrize("name", ["p.jpg", "p", "p.png.gz"])
    def test_a_picture_of_an_unknown_kind(self, name, base, tmp_path):
        called = call("show", base.folder, "--plot", tmp_path / name)
        assert_one_error(called, 2, re.escape(name), r"\.png", r"\.svg", r"\.pdf")
        assert called.out == ""


def test_version():
    called = call("--version")
    assert (called.code, called.out, called.err) == (0, f"{fedsgm.__version__}\n", "")


def test_an_interrupted_run_ends_quietly(tmp_path, monkeypatch):
    """Ctrl-C is no crash: no traceback, and the exit code that a shell expects."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fedsgm, "simulate", interrupt)
    called = call(*RUN, *TINY, "--out", tmp_path / "run")
    assert called.code == 130
    assert len(called.err.splitlines()) <= 1
    assert "Traceback" not in called.err


# As a process of its own ---------------------------------------------------------------------------------------------


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
