"""``fedsgm show``: a finished run again, and folders that hold none."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedsgm.results.result import KINDS
from support.commands import FILES, assert_one_error, call, run, write


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
    rows = [line.split() for line in shown.out.splitlines() if line.startswith(tuple(f"{k} " for k in KINDS))]
    assert [row[:2] for row in rows] == [[kind, seed] for kind in KINDS for seed in ("5", "6", "7")]
    columns = [done.result.values[part][name] for part in ("train", "test") for name in ("objective", "minority")]
    for row, expected in zip(rows, np.stack(columns, axis=-1).reshape(12, 4), strict=True):
        np.testing.assert_allclose([float(cell.replace("undefined", "nan")) for cell in row[2:]], expected, rtol=1e-3)


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
