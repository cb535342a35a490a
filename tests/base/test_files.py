"""Files are whole or not there, several as one too; what is no plain file is not read; a folder is tried first."""

import os
import stat

import pytest

import fedsgm as fs
from fedsgm.base import files

OLD = {"a": b"old a", "b": b"old b", "last": b"old last"}
NEW = {"a": b"new a", "b": b"new b", "last": b"new last"}


def read(folder):
    """As a reader does: the last one says which the others are."""
    last = files.read_file(folder / "last")
    return {name: files.read_file(files.place_of(folder / name, last)) for name in ("a", "b")} | {"last": last}


class Killed(BaseException):
    pass


def killed_at(monkeypatch, step):
    """From the step-th rename on, nothing happens any more."""
    real, steps = os.replace, []

    def replace(*paths):
        steps.append(paths)
        if len(steps) > step:
            raise Killed
        real(*paths)

    monkeypatch.setattr(os, "replace", replace)


@pytest.mark.parametrize("step", range(5))
def test_a_save_that_is_killed_leaves_all_the_old_or_all_the_new(step, tmp_path, monkeypatch):
    """Two wait, the last one takes its place, and they take theirs; then a save that nobody kills is as any other."""
    files.write_together(tmp_path, OLD)
    with monkeypatch.context() as patch:
        killed_at(patch, step)
        with pytest.raises(Killed):
            files.write_together(tmp_path, NEW)
    assert read(tmp_path) == (OLD if step < 3 else NEW)
    with monkeypatch.context() as patch:  # and one more, before it has replaced anything
        killed_at(patch, 2)
        with pytest.raises(Killed):
            files.write_together(tmp_path, OLD | {"last": b"third"})
    assert read(tmp_path) == (OLD if step < 3 else NEW)
    files.write_together(tmp_path, NEW)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == NEW


def test_other_files_of_the_folder_stay(tmp_path):
    mine = [".a.new", ".a.0123.new", ".c.0123456789abcdef.new", ".a.0123456789abcdef.tmp"]
    for name in mine:
        (tmp_path / name).write_bytes(b"mine")
    files.write_together(tmp_path, OLD)
    assert {path.name for path in tmp_path.iterdir()} == {*OLD, *mine}


def test_what_is_private_is_the_owner_s_alone(tmp_path):
    files.write_atomically(tmp_path / "new" / "file", b"", private=True)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "new/file")]
    assert modes == [0o700, 0o600]


def test_what_is_no_plain_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").write_bytes(b"data")
    for name in ("pipe", "link", "."):
        with pytest.raises(fs.SettingError, match=r"is no plain file|cannot be read"):
            files.read_file(tmp_path / name)
    assert files.read_file(tmp_path / "link", links=True) == b"data"
    with pytest.raises(fs.SettingError, match="has 4 bytes, but such a file has at most 3"):
        files.read_file(tmp_path / "file", 3)


def test_a_folder_is_tried_and_left_as_it_was(tmp_path):
    files.check_writable("--out", tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []
    for folder in (tmp_path / ("x" * 300), tmp_path / "a\0b", "/proc/fedsgm", "/proc/1/fedsgm/deep"):
        with pytest.raises(fs.SettingError, match=r"nothing can be written there .*; choose another folder"):
            files.check_writable("--out", type(tmp_path)(folder))
