"""Files that somebody else wrote, or that a kill or a disk has damaged: a sentence, an exit code, and no more."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedsgm as fs
from fedsgm.base.progress import harmless
from support.commands import RUN, TINY, assert_one_error, call, write

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import fuzz_files


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return fuzz_files.Sound(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize("kind", fuzz_files.KINDS)
def test_damaged_files_of_every_kind(kind, sound, tmp_path, monkeypatch):
    """``make fuzz`` has many more."""
    monkeypatch.chdir(tmp_path)
    assert fuzz_files.fuzz(10, 5, sound, [kind])[kind].total() == 10


def test_the_fuzzer_finds_what_it_looks_for(sound, monkeypatch):
    """A traceback, control characters, and a wrong exit code."""

    def fails(*_):
        raise KeyError("seeds")

    monkeypatch.setitem(fuzz_files.KINDS, "model.json", (*fuzz_files.KINDS["model.json"][:2], fails))
    with pytest.raises(fuzz_files.Wrong, match=r"2 went wrong .*\n.*KeyError"):
        fuzz_files.fuzz(2, 0, sound, ["model.json"])
    for said, code, why in (("\x1b[2J", 0, "control"), ("", 3, "exit code"), ("", 1, "exit code")):

        def command(said=said, code=code):
            print(said)
            sys.exit(code)

        monkeypatch.setattr(fuzz_files, "command", command)
        with pytest.raises(fuzz_files.Wrong, match=why):
            fuzz_files.call()


class TestACraftedRun:
    def altered(self, folder, change):
        document = json.loads((folder / "result.json").read_text())
        change(document)
        write(folder / "result.json", json.dumps(document))
        return call("show", folder)

    @pytest.mark.parametrize("name", ["/proc/kmsg", "../outside", "more"])
    def test_names_no_other_file(self, name, damaged):
        """/proc/kmsg never ends."""
        write(damaged.parent / "outside", "secret")
        called = self.altered(damaged, lambda document: document["files"].update({name: "0" * 64}))
        assert called.code == 0, "a name that it does not know is not looked at"

    @pytest.mark.parametrize("name", ["result.json", "history.parquet", "params.safetensors"])
    def test_has_a_pipe_or_a_link_for_a_file(self, name, damaged):
        for make in (os.mkfifo, lambda path: path.symlink_to("/proc/kmsg")):
            (damaged / name).unlink()
            make(damaged / name)
            assert_one_error(call("show", damaged), 2, re.escape(str(damaged)))

    @pytest.mark.parametrize(
        "change",
        [
            lambda document: document["settings"].pop("rounds"),
            lambda document: document["settings"].update(rounds=10**12),
            lambda document: document["settings"].update(seeds=7),
            lambda document: document["settings"].update(algorithm=None),
            lambda document: document["values"]["train"].update(objective=[[1]]),
            lambda document: document["ranges"].update(minority=[None, 1]),
            lambda document: document.update(answer_round=[99]),
            lambda document: document["params"].update(last="array"),
        ],
    )
    def test_has_other_fields(self, change, damaged):
        assert_one_error(self.altered(damaged, change), 2, r"result\.json is damaged, or of another version")

    def test_is_nested_without_end(self, damaged):
        write(damaged / "result.json", "[" * 10**6)
        assert_one_error(call("show", damaged), 2, "not JSON")

    def test_writes_nothing_to_the_terminal(self, damaged):
        def change(document):
            document["settings"]["algorithm"]["promise"] = {"\x1b[2J": "\x1b]0;title\x07"}
            document["settings"]["federation"] = {"clients": [{"name": "\x1b[2J", "left_out": {"\x07": 1}}]}

        called = self.altered(damaged, change)
        assert called.code == 2
        assert called.err.isprintable() or set(called.err) - {"\n"} <= {c for c in called.err if c.isprintable()}


FLIPPING = """
import numpy as np
from fedsgm.results import reading, result
columns = {name: np.zeros((1, 4), np.float32) for name in reading.ALWAYS}
data = result._to_parquet(columns, [0])
refused = 0
for at in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8):
    for bit in (1, 2, 16):
        try:
            reading.from_parquet(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], 1, 4)
        except ValueError:
            refused += 1
print(refused)
"""


def test_a_history_that_says_wrong_things_of_itself_does_not_end_the_process():
    """Asked for more than was needed, the library that reads it aborted: exit code 134 and no sentence."""
    done = subprocess.run([sys.executable, "-c", FLIPPING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


def test_what_a_terminal_is_shown():
    """Written out, but for letters of any alphabet, line ends and tabs."""
    assert harmless("\x1b[31mred\x07\r") == r"\x1b[31mred\x07\r"
    assert harmless("a\u202eb\x9b\udcff") == r"a\u202eb\x9b\udcff"
    assert harmless("größe\t数\n👩\u200d🌾") == "größe\t数\n👩\u200d🌾"


def test_names_from_a_table_reach_the_terminal_in_letters(tmp_path):
    """Of a column that is wrong, and of the file itself."""
    table = write(tmp_path / "a\x1b[2Jb.csv", "x\x1b[2J,y\n" + "1,a\n2,b\n" * 20)
    called = call("fit", table, "--target", "x")
    assert_one_error(called, 2, re.escape(r"\x1b[2J"))
    assert "\x1b" not in called.err
    called = call("fit", tmp_path / "\x1b[2J.csv", "--target", "x")
    assert_one_error(called, 2, re.escape(r"\x1b[2J.csv"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit, and the arguments of it."""
    folder = tmp_path_factory.mktemp("fitted")
    rows = "".join(f"{i},{'ab'[i % 2]},{'yn'[int(i > 30)]}\n" for i in range(60))
    table = write(folder / "t.csv", f"x,group,label\n{rows}")
    arguments = ["fit", table, "--target", "label", "--clients", "2", "--no-progress", "--rounds"]
    assert call(*arguments, "3", "--out", folder / "out", draw=False).code == 0
    return folder / "out", arguments


@pytest.mark.parametrize("step", [0, 3, 4, 5, 8])
def test_a_fit_that_is_killed_while_it_saves_loses_no_model(step, fitted, tmp_path, monkeypatch):
    """Whenever that is, the folder has the old model or the new one; the fourth rename is that of result.json."""
    old, arguments = fitted
    out = Path(shutil.copytree(old, tmp_path / "out"))
    real, steps = os.replace, []

    def replace(*paths):
        steps.append(paths)
        if len(steps) > step:
            raise KeyboardInterrupt
        real(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        assert call(*arguments, "4", "--out", out, draw=False).code == 130
    assert fs.Result.load(out).settings["rounds"] == (3 if step < 5 else 4)
    assert call("predict", out, arguments[1]).code == 0


def test_an_out_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(fs, "simulate", lambda *_, **__: pytest.fail("the run had begun"))
    for flag in ("--out", "--checkpoint"):
        called = call(*RUN, *TINY, "--out", tmp_path / "run", flag, "/proc/fedsgm")
        assert_one_error(called, 2, f"{flag} /proc/fedsgm: nothing can be written there")


def test_a_long_cell_is_no_more_than_a_cell(tmp_path):
    """One of 20,000 characters in 20,000 rows took 2.4 GB, a text of that length for each row."""
    cells = ["x" * 20_000, *(f"c{i % 5}" for i in range(19_999))]
    write(tmp_path / "t.csv", "a,y\n" + "".join(f"{cell},{'yn'[i % 2]}\n" for i, cell in enumerate(cells)))
    limited = (
        "import resource, sys; from fedsgm.data.reading import read_table; from fedsgm.data.summary import Summary\n"
        "values = read_table(sys.argv[1])['a']\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, -1))\n"
        "print(Summary.of(values).categories['c1'])"
    )
    done = subprocess.run([sys.executable, "-c", limited, tmp_path / "t.csv"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "4000\n"), done.stderr


# A library whose threads are at work when it is taken down ends the process so, now and then.
ABORTING = """
import atexit, ctypes, sys
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
atexit.register(print, "at the end")
sys.argv = ["fedsgm", *sys.argv[1:]]
from fedsgm.__main__ import {entry}
{entry}()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's own list of what is done at the end")
@pytest.mark.parametrize(("arguments", "code"), [(["show", "/nonexistent"], 2), (["--version"], 0)])
def test_the_exit_code_is_the_command_s_whatever_libraries_do_at_the_end(arguments, code):
    """And what Python does at the end is done, and all that was printed is there."""
    entry = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]["fedsgm"]
    program = ABORTING.format(entry=entry.removeprefix("fedsgm.__main__:"))
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == "at the end"
    assert len(done.stderr.splitlines()) == (code != 0)
