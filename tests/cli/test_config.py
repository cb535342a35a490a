"""Settings in a file: what a run leaves repeats it, and every mistake gets one clear line."""

import math
import os
import re
import sys
import tomllib
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
import typer

import fedsgm as fs
from fedsgm.__main__ import app
from fedsgm.cli import config
from support.commands import RUN, Run, assert_one_error, call, run, same_bits, write


def test_config_gives_the_defaults_and_flags_win(tmp_path):
    text = "rounds = 3\nclients = 6\nparticipants = 2\nseeds = 1\nseed = 7\nstep-size = 0.2\ndual_step = 0.7\n"
    text += f'rule = "hard"\nprogress = false\nrequire-feasible = true\nout = "{tmp_path / "run"}"\n'
    given = write(tmp_path / "settings.toml", text)
    called = call(*RUN, "--config", given, "--clients", "4", "--rule=soft", draw=False)
    assert called.code == 3, called.err
    done = Run(tmp_path / "run")
    assert done.settings["rounds"] == 3
    assert done.settings["seeds"] == [7]
    assert done.settings["clients"] == 4, "the flag wins over the file"
    assert done.algorithm["rule"] == {"is": "Soft", "beta": 40.0, "ceiling": 1.0, "margin": 0.0}, (
        "the flag wins over the file"
    )
    assert done.algorithm["step_size"] == 0.2, "a key with a hyphen"
    assert done.toml["dual-step"] == 0.7, "a key with an underscore"


def test_a_flag_wins_even_with_the_default_value_and_before_the_file(base, tmp_path):
    given = write(tmp_path / "c.toml", "participants = 2\nclients = 4\nrounds = 5\nseeds = 1\nbeta = 3.0\nseed = 7\n")
    flags = ("--beta", "40", "--seed", "0", "--config", given, "--no-progress", "--out", tmp_path / "run")
    assert call(*RUN, *flags, draw=False).code == 0
    assert same_bits(tmp_path / "run", base.folder)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("rounds = 3.0", "rounds", 3),
        ("rounds = 0x10", "rounds", 16),
        ("rounds = '3'", "rounds", 3),
        ("debug = 1", "debug", True),
        ("debug = true", "debug", True),
        ("debug = false", "debug", False),
        ("progress = 'off'", "progress", False),
        ("progress = true", "progress", True),
        ("seeds = 1_000", "seeds", 1000),
    ],
)
def test_values_are_read_as_if_they_were_typed(text, name, expected, tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(fs, "simulate", lambda *_, **more: (given.update(more), sys.exit(0)))
    assert call(*RUN, "--config", write(tmp_path / "c.toml", text), "--out", tmp_path / "run").code == 0
    assert (given[name], type(given[name])) == (expected, type(expected))


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


STRANGE = {
    "emoji": "\U0001f600 caf\u00e9 \u7dd1",
    "not in the first plane": "\U00020000\U0010ffff",
    "quotes": 'it\'s "so" \'\'\' """',
    "newline": "a\nb\r\nc\rd",
    "backslash": "\\ \\n \\u0041 \\",
    "control characters": "\x00\x01\t\x1f\x7f\x85\u2028\ufeff",
    "nothing": "",
    "spaces": "  a = 1 # no comment ",
    "bracket": "[table]",
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_any_text_is_read_as_it_was_written(text, tmp_path):
    """In a value, in a list, and in the command that the file begins with."""
    settings = {"client_by": text, "drop": [text, "b", text], "rounds": 3}
    config.write(tmp_path, f"fit {text}", settings)
    written = (tmp_path / "settings.toml").read_bytes()
    assert tomllib.loads(written.decode()) == {"client-by": text, "drop": [text, "b", text], "rounds": 3}
    first, rest = written.split(b"\n", 1)
    assert first.startswith(b"# fedsgm fit ")
    assert first.endswith(b" --config settings.toml")
    assert rest.startswith(b"client-by = ")
    context = SimpleNamespace(resilient_parsing=False, command=typer.main.get_command(app).commands["fit"])
    config.read(context, tmp_path / "settings.toml")
    assert context.default_map == settings | {"rounds": "3"}


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, 1e-5, 1e22, 5e-324, 0.1, -0.0, True, False, 2**62, [], ["a"], [[1, 2], [3]]], ids=str
)
def test_any_value_is_read_as_it_was_written(value, tmp_path):
    config.write(tmp_path, "run", {"value": value})
    (found,) = tomllib.loads((tmp_path / "settings.toml").read_text()).values()
    assert (found, str(found), type(found)) == (value, str(value), type(value))


def test_a_file_s_name_that_is_not_utf_8_spoils_no_run(tmp_path):
    """There is no such text in TOML: the file is written all the same, and not taken for another one."""
    name = os.fsdecode(b"caf\xe9.csv")
    config.write(tmp_path, f"fit {name}", {"adult": name})
    written = (tmp_path / "settings.toml").read_bytes()
    assert written == b'# fedsgm fit caf\\udce9.csv --config settings.toml\nadult = "caf\xe9.csv"\n'
    assert_one_error(call(*RUN, "--config", tmp_path / "settings.toml"), 2, "not a TOML file")


@pytest.mark.parametrize("name", [STRANGE["emoji"], STRANGE["quotes"], STRANGE["newline"], STRANGE["backslash"]])
def test_a_fit_with_strange_names_is_repeated_bit_for_bit(name, tmp_path):
    """The target, a client's column and a dropped one, through the command line."""
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.normal(size=60),
        name: rng.choice(["ja", "nein"], 60),
        f"{name} 2": rng.choice(["a", "b"], 60),
        f"{name} 3": rng.normal(size=60),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    fit = ("fit", tmp_path / "t.parquet", "--no-progress")
    flags = ("--target", name, "--client-by", f"{name} 2", "--drop", f"{name} 3", "--rounds", "3")
    first = call(*fit, *flags, "--out", tmp_path / "first", draw=False)
    assert first.code == 0, first.err
    again = call(*fit, "--config", tmp_path / "first" / "settings.toml", "--out", tmp_path / "again", draw=False)
    assert again.code == 0, again.err
    assert same_bits(tmp_path / "first", tmp_path / "again")
    settings = Run(tmp_path / "again").toml
    assert (settings["target"], settings["client-by"], settings["drop"]) == (name, f"{name} 2", [f"{name} 3"])


# Mistakes -------------------------------------------------------------------------------------------------------------


WRONG_CONFIGS = {
    "rounds = = 3": ("not a TOML file", "line 1"),
    "\ufffd": ("not a TOML file",),
    "round = 3": ("unknown setting 'round'", "rounds"),
    "config = 'other.toml'": ("unknown setting 'config'",),
    "help = true": ("unknown setting 'help'",),
    "rounds = 'many'": ("rounds", "integer"),
    "seed = 2.5": ("seed", "integer"),
    "beta = 'sharp'": ("beta", "number|float"),
    "seed = true": ("seed", "integer"),
    "beta = true": ("beta", "number|float"),
    "debug = 2.5": ("debug", "boolean"),
    "debug = 2": ("debug", "boolean"),
    "rounds = 2024-01-01": ("rounds", "integer"),
    "rule = 3": ("rule", "3", "soft"),
    "rule = 'fast'": ("rule", "fast", "soft"),
    "[algorithm]\nbeta = 3.0": ("unknown setting 'algorithm'",),
    "[beta]\nvalue = 3.0": ("beta must be one value",),
    "seeds = [1, 2]": ("seeds must be one value",),
    "step-size = 0.1\nstep_size = 0.2": ("step.size", "twice"),
}


@pytest.mark.parametrize("text", WRONG_CONFIGS)
def test_wrong_configs(text, tmp_path):
    given = tmp_path / "c.toml"
    given.write_bytes(text.encode("latin-1" if text.isascii() else "utf-16"))
    called = call(*RUN, "--config", given, "--clients", "4", "--participants", "2", "--out", tmp_path / "run")
    assert_one_error(called, 2, *WRONG_CONFIGS[text])
    assert not (tmp_path / "run").exists()


def test_a_config_that_is_not_a_file(tmp_path):
    assert_one_error(call(*RUN, "--config", tmp_path / "none.toml"), 2, "none.toml", "no such file")
    assert_one_error(call(*RUN, "--config", tmp_path), 2, re.escape(str(tmp_path)))
