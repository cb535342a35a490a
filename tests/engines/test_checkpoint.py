"""Nothing is lost: a run killed at any moment goes on to the same bits; a damaged file is never used."""

import fcntl
import hashlib
import os
import random
import signal
import stat
import time

import numpy as np
import pytest
import safetensors.numpy

import fedsgm as fs
from fedsgm.base.files import write_atomically
from fedsgm.base.lock import held
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines.checkpoint import Saved
from support import processes
from support.runs import EVERYTHING, assert_identical


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "state.w": rng.normal(size=(2, 5)).astype(np.float32),
        "history/participants": np.arange(6).reshape(1, 2, 3),
    }


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path, arrays):
    arrays["state.w"][0, 0] = np.nan
    checkpoints.save(tmp_path, Saved(7, arrays, {"a": [1, None], "b": "text"}))
    saved = checkpoints.newest(tmp_path)
    assert (saved.round, saved.settings) == (7, {"a": [1, None], "b": "text"})
    for name, array in arrays.items():
        assert saved.arrays[name].dtype == array.dtype
        assert saved.arrays[name].tobytes() == array.tobytes()


def test_the_newest_two_are_kept_and_nothing_else_is_left(tmp_path, arrays):
    left = tmp_path / ".round-000000001.ckpt.0123456789abcdef.tmp"
    left.write_bytes(b"of a killed writer")
    os.utime(left, (0, 0))
    for round in (10, 20, 30):
        checkpoints.save(tmp_path, Saved(round, arrays, {}))
    assert sorted(os.listdir(tmp_path)) == ["round-000000020.ckpt", "round-000000030.ckpt"]


def test_what_others_have_there_is_left(tmp_path, arrays):
    """Another run's part that is being written, however long that takes, one of just now, and what is no part."""
    names = [f".round-000000001.ckpt.{letter * 16}.tmp" for letter in "abc"]
    others = [names[0], names[1], ".round-000000001.ckpt.notes.tmp", ".mine.tmp", f"{names[2]}.tmp"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, None if name == names[1] else (0, 0))
    with (tmp_path / names[0]).open("rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        checkpoints.save(tmp_path, Saved(10, arrays, {}))
        assert sorted(os.listdir(tmp_path)) == sorted([*others, "round-000000010.ckpt"])


def test_a_checkpoint_is_its_owner_s_alone(tmp_path, arrays):
    """It has clients' memories; a folder that was there keeps its mode."""
    checkpoints.save(tmp_path / "new", Saved(10, arrays, {}))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new" / "round-000000010.ckpt").stat().st_mode) == 0o600
    (tmp_path / "old").mkdir(mode=0o755)
    checkpoints.save(tmp_path / "old", Saved(10, arrays, {}))
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o755


def with_digest(block):
    return b"fedsgm checkpoint 3\n" + hashlib.sha256(block).digest() + block


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xff" * 8,
        safetensors.numpy.save({"a": np.zeros(2)}),
        safetensors.numpy.save({"a": np.zeros(2)}, {"round": "many", "settings": "{}"}),
        safetensors.numpy.save({"a": np.zeros(2)}, {"round": "1", "settings": "{"}),
        safetensors.numpy.save({"a": np.zeros(2)}, {"round": "1", "settings": "[" * 100_000}),
        safetensors.numpy.save({"a": np.zeros(2)}, {"round": "1", "settings": "[]"}),
    ],
    ids=["nothing", "a header without end", "no round", "no number", "no settings", "depths", "a list"],
)
def test_a_right_digest_is_not_all(tmp_path, block):
    path = tmp_path / "round-000000003.ckpt"
    path.write_bytes(with_digest(block))
    with pytest.raises(fs.CheckpointError, match=r"round-000000003\.ckpt is not what fedsgm writes"):
        checkpoints.read(path)


def test_a_checkpoint_that_is_a_pipe_or_a_link_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "round-000000003.ckpt")
    (tmp_path / "round-000000004.ckpt").symlink_to("/proc/kmsg")
    with pytest.raises(fs.CheckpointError, match="no whole checkpoint is left"):
        checkpoints.newest(tmp_path)


@pytest.mark.parametrize("change", ["left out", "of another shape", "of another type"])
@pytest.mark.parametrize("name", ["state.server.replica", "history/objective"])
def test_arrays_that_are_not_the_run_s(name, change, tmp_path, clients, problem, params):
    def run(resume):
        checkpoint = fs.Checkpoint(tmp_path, 10, resume)
        fs.simulate(fs.FedSGM(0.1), problem, clients, params, rounds=20, checkpoint=checkpoint, progress=False)

    run(resume=False)
    (tmp_path / "round-000000020.ckpt").unlink()
    saved = checkpoints.read(tmp_path / "round-000000010.ckpt")
    array = saved.arrays.pop(name)
    if change != "left out":
        saved.arrays[name] = array[:, 1:] if change == "of another shape" else array.astype(np.int64)
    checkpoints.save(tmp_path, saved)
    with pytest.raises(fs.CheckpointError, match="start again"):
        run(resume=True)


def test_two_runs_do_not_share_a_folder(tmp_path, clients, problem, params):
    def run(**more):
        few = fs.FedSGM(0.1, participants=1, uplink=fs.TopK(0.5))
        fs.simulate(few, problem, clients, params, rounds=3, progress=False, **more)

    with held(tmp_path, "another's"):
        with pytest.raises(fs.SettingError, match=r"checkpoint .*: another run is at work there"):
            run(checkpoint=tmp_path)
        with pytest.raises(fs.SettingError, match=r"offload .*: another run is at work there"):
            run(offload=tmp_path)
    run(checkpoint=tmp_path)
    assert checkpoints.newest(tmp_path).round == 3


@pytest.mark.parametrize(
    "damage", ["cut at the start", "cut in the middle", "cut by one", "one bit", "empty", "longer"]
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(tmp_path, arrays, damage):
    for round in (10, 20):
        checkpoints.save(tmp_path, Saved(round, arrays, {}))
    newest = tmp_path / "round-000000020.ckpt"
    data = bytearray(newest.read_bytes())
    if damage == "one bit":
        data[len(data) // 2] ^= 1
    elif damage == "longer":
        data += b"x"
    else:
        del data[{"cut at the start": 30, "cut in the middle": len(data) // 2, "cut by one": -1, "empty": 0}[damage] :]
    newest.write_bytes(data)
    with pytest.raises(fs.CheckpointError, match=r"round-000000020\.ckpt is (truncated or altered|not a fedsgm)"):
        checkpoints.read(newest)
    with pytest.warns(UserWarning, match=r"round-000000020\.ckpt is .*; going on from round 10"):
        assert checkpoints.newest(tmp_path).round == 10


def test_every_single_bit_matters(tmp_path, arrays):
    checkpoints.save(tmp_path, Saved(3, arrays, {"a": 1}))
    path = tmp_path / "round-000000003.ckpt"
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
        with pytest.raises(fs.CheckpointError):
            checkpoints.read(path)


def test_when_none_is_whole_it_says_so(tmp_path, arrays):
    checkpoints.save(tmp_path, Saved(10, arrays, {}))
    (tmp_path / "round-000000010.ckpt").write_bytes(b"")
    with pytest.raises(fs.CheckpointError, match="no whole checkpoint is left"):
        checkpoints.newest(tmp_path)
    assert checkpoints.newest(tmp_path / "nothing here") is None


def test_another_format_is_named(tmp_path, arrays):
    checkpoints.save(tmp_path, Saved(1, arrays, {}))
    path = tmp_path / "round-000000001.ckpt"
    path.write_bytes(path.read_bytes().replace(b"checkpoint 3\n", b"checkpoint 2\n", 1))
    with pytest.raises(fs.CheckpointError, match="has format 2, this fedsgm reads format 3"):
        checkpoints.read(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, arrays, monkeypatch):
    checkpoints.save(tmp_path, Saved(1, arrays, {}))

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(tmp_path, Saved(2, arrays, {}))
    assert os.listdir(tmp_path) == ["round-000000001.ckpt"]


@pytest.mark.parametrize(("every", "stop"), [(1, 13), (10, 30), (25, 40), (200, 60)])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, clients, problem, params, every, stop):
    """Every kind of state at once: multiplier, memories, replica, mini-batches, random compressors, averages."""
    algorithm = fs.FedSGM(**EVERYTHING)

    def run(rounds, **more):
        return fs.simulate(algorithm, problem, clients, params, rounds=rounds, seeds=2, progress=False, **more)

    run(stop, checkpoint=fs.Checkpoint(tmp_path, every))
    resumed = run(100, checkpoint=fs.Checkpoint(tmp_path, every, resume=True))
    assert_identical(resumed, run(100))
    again = run(100, checkpoint=fs.Checkpoint(tmp_path, every, resume=True))  # nothing is left to do
    assert_identical(resumed, again)


def test_what_was_seen_of_sums_is_resumed(tmp_path, clients, problem, params):
    """Which entries are named after the break depends on what was sent before it."""
    algorithm = fs.FedSGM(0.1, uplink=fs.SharedK(count=3, history=0.7))

    def run(rounds, **more):
        return fs.simulate(algorithm, problem, clients, params, rounds=rounds, progress=False, **more)

    run(7, checkpoint=fs.Checkpoint(tmp_path, 7))
    resumed = run(30, checkpoint=fs.Checkpoint(tmp_path, 7, resume=True))
    assert_identical(resumed, run(30))


def test_resume_on_an_empty_folder_starts(tmp_path, clients, problem, params):
    checkpoint = fs.Checkpoint(tmp_path / "new", 10, resume=True)
    result = fs.simulate(fs.FedSGM(0.1), problem, clients, params, rounds=20, checkpoint=checkpoint, progress=False)
    assert result.history["objective"].shape == (1, 20)


def test_what_cannot_be_resumed(tmp_path, clients, problem, params):
    def run(algorithm=fs.FedSGM(0.1), start=params, rounds=20, resume=True, seed=0):
        checkpoint = fs.Checkpoint(tmp_path, 10, resume)
        fs.simulate(algorithm, problem, clients, start, rounds=rounds, checkpoint=checkpoint, progress=False, seed=seed)

    run()
    with pytest.raises(fs.CheckpointError, match="holds a checkpoint of round 20; resume from it"):
        run(resume=False)
    with pytest.raises(
        fs.CheckpointError,
        match=r"with algorithm\.step_size=0\.1, this run has algorithm\.step_size=0\.2; use the same settings",
    ):
        run(fs.FedSGM(0.2))
    with pytest.raises(fs.CheckpointError, match=r"was made with seeds=\[0\], this run has seeds=\[1\]"):
        run(seed=1)
    with pytest.raises(fs.CheckpointError, match="was made with start="):
        run(start={"w": params["w"] + 1, "b": params["b"]})
    with pytest.raises(fs.CheckpointError, match="is of round 20, but this run has 5 rounds"):
        run(rounds=5)


def test_kill_at_random_moments(tmp_path):
    """kill -9, again and again, until the run gets through: its files are those of a run left alone."""
    rounds, kills = 6000, 10
    arguments = ["run", "neyman-pearson", "--rounds", str(rounds), "--seeds", "1", "--checkpoint-every", "50"]
    arguments += ["--no-progress", "--uplink", "randk:0.2", "--batch-size", "6", "--out"]
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    resumed = [*arguments, str(tmp_path / "killed"), "--checkpoint", str(folder), "--resume"]
    rng = random.Random(0)

    def to_the_end(arguments):
        process = processes.start(processes.command, arguments, log=log)
        process.join(300)
        assert process.exitcode == 0, log.read_text()

    def reached():
        return max((int(path.stem.removeprefix("round-")) for path in folder.glob("round-*.ckpt")), default=0)

    to_the_end([*arguments, str(tmp_path / "whole")])
    killed_at = []
    for kill in range(kills):
        process = processes.start(processes.command, resumed, log=log)
        # Some way on from where the last one died, then any moment: in a round, in a write, in a rename.
        target = reached() + rng.randrange(rounds // (2 * kills)) if kill else 0
        while reached() < target and process.is_alive():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run must still be going when it is killed"
        killed_at.append(reached())
    assert len(set(killed_at)) > kills // 2, f"the kills must fall inside the run: {killed_at}"
    to_the_end(resumed)
    for name in ("history.parquet", "params.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_rights_that_the_user_wants(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
