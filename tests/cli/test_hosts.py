"""A run whose clients are on several devices, of one process or of several."""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base import trees
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines import hosts
from fedsgm.engines.checkpoint import Saved
from support.waiting import until

SCRIPT = """
import pickle, sys
import jax
from support import sharded
assert len(jax.devices()) == int(sys.argv[2])
pickle.dump(sharded.runs(), open(sys.argv[1], "wb"))
"""


def assert_same(one, several):
    """To the bit: sums over clients are of one order."""
    for name, column in one.items():
        np.testing.assert_array_equal(several[name], column, err_msg=name)


def test_devices_share_the_clients(tmp_path):
    """Seven clients on three devices, the last of which has one; every way to ask and to take part."""
    from support import sharded

    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "PYTHONPATH": "tests"}
    arguments = [sys.executable, "-c", SCRIPT, str(tmp_path / "runs"), "3"]
    subprocess.run(arguments, env=environment, check=True, timeout=600)
    several = pickle.loads((tmp_path / "runs").read_bytes())
    for name, (history, ends) in sharded.runs().items():
        assert_same(history, several[name][0])
        jax.tree.map(np.testing.assert_array_equal, several[name][1], ends)


HOLDS = """
import sys
import numpy as np
import fedsgm as fs
from fedsgm.base import sizes
from fedsgm.engines import hosts
from support.runs import logistic

folder, port, process = sys.argv[1:]
hosts.join(f"127.0.0.1:{port}", 2, int(process))
asked, padded = [], sizes.padded
sizes.padded = lambda rows, counts, who: asked.extend(who.tolist()) or padded(rows, counts, who)
data = {name: np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in "xy"}
clients = fs.Clients(data, np.array([3, 1, 2, 2, 4, 1, 2]))
params = {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}
result = fs.simulate(fs.FedSGM(0.1, 2), fs.Problem(fs.Mean(logistic)), clients, params, rounds=3, progress=False)
print(asked, *result.last["w"])
"""


def test_a_process_takes_in_its_own_clients_alone(tmp_path):
    """Of arrays that are mapped from files it reads no others; the first client stands for one that is not there."""
    rng, port = np.random.default_rng(1), free_port()
    np.save(tmp_path / "x.npy", rng.normal(size=(15, 3)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.float32(np.arange(15) % 2))
    said = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(tmp_path), str(port), str(process)],
            env=os.environ | {"PYTHONPATH": "tests"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in (0, 1)
    ]
    first, second = (process.communicate(timeout=300)[0].splitlines()[-1] for process in said)
    assert first.startswith("[0, 1, 2, 3]")
    assert second.startswith("[4, 5, 6, 0]")
    assert first.partition("]")[2] == second.partition("]")[2] != ""


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int8, np.uint8, bool])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 1, 2)])
def test_what_devices_exchange_are_bytes_of_any_kind(dtype, shape):
    array = jnp.asarray(np.random.default_rng(0).integers(-3, 4, shape).astype(dtype))
    rows = trees.as_bytes(array)
    assert (rows.dtype, len(rows)) == (np.uint8, 5)
    back = trees.from_bytes(array, rows)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, array)


RUN = "run neyman-pearson --seeds 2 --uplink topk:0.1 --downlink topk:0.1 --participants 9 --rounds 2000 --no-progress"


def start(process, port, *flags):
    there = [*RUN.split(), *flags, "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process", str(process)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "fedsgm", *there], **pipes)


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def test_a_killed_process_stops_the_run_which_goes_on_with_one(tmp_path):
    """Two processes, one of them killed; the other says so, and one process alone ends at what it would have."""
    flags = ["--checkpoint", str(tmp_path / "kept"), "--checkpoint-every", "50", "--out", str(tmp_path / "out")]
    port = free_port()
    both = [start(process, port, *flags) for process in (0, 1)]
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / "kept").exists() or checkpoints.newest(tmp_path / "kept") is None:
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in both), [process.communicate() for process in both]
            time.sleep(0.05)
        both[1].kill()
        out, error = both[0].communicate(timeout=120)
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert both[0].returncode == 1
    assert "FEASIBLE" not in out
    told = error.strip().splitlines()[-1]
    assert told.startswith("error: another process of this run is gone (")
    assert "start all of them again" in told
    parts = sorted(path.name.partition(".")[2] for path in (tmp_path / "kept").glob("round-*0.?-of-2.ckpt"))
    assert {"0-of-2.ckpt", "1-of-2.ckpt"} <= set(parts)

    again = [sys.executable, "-m", "fedsgm", *RUN.split()]
    subprocess.run([*again, *flags, "--resume"], check=True, capture_output=True)
    subprocess.run([*again, "--out", str(tmp_path / "alone")], check=True, capture_output=True)
    resumed, alone = (fs.Result.load(tmp_path / name) for name in ("out", "alone"))
    assert_same(alone.history, resumed.history)
    jax.tree.map(np.testing.assert_array_equal, (resumed.last, resumed.average), (alone.last, alone.average))


def test_a_process_that_is_cut_off_stops_the_run(tmp_path):
    """Stopped, it keeps its connections and says nothing, as a machine does that has lost its network.

    Two runs at once: in one it is the first process, by way of which the others hear of each other.
    """
    runs = {silent: tmp_path / str(silent) for silent in (0, 1)}
    both = {}
    try:
        for silent, kept in runs.items():
            flags = ["--rounds", "1000000", "--checkpoint", str(kept), "--checkpoint-every", "50"]
            port = free_port()
            both[silent] = [start(i, port, *flags, "--out", str(tmp_path / f"out{silent}")) for i in (0, 1)]
        for silent, kept in runs.items():
            until(lambda kept=kept: kept.exists() and checkpoints.newest(kept), "the run goes on")
            os.kill(both[silent][silent].pid, signal.SIGSTOP)
        for silent, pair in both.items():
            out, error = pair[1 - silent].communicate(timeout=hosts._SILENCE + 60)
            assert pair[1 - silent].returncode == 1
            why = f"process {silent} says nothing for {hosts._SILENCE} s"
            assert error.splitlines()[-1].startswith(f"error: another process of this run is gone ({why}); start all")
            assert "FEASIBLE" not in out
    finally:
        for process in (process for pair in both.values() for process in pair):
            process.kill()
            process.communicate()


def saved(round, clients):
    memory = np.arange(clients, dtype=np.float32)[None, :, None] + 10 * round
    return Saved(round, {"state.memory.error": memory, "state.server": np.float32([round])}, {"seed": 1})


def test_parts_of_a_checkpoint_are_joined_and_an_unfinished_one_is_passed_over(tmp_path):
    for round in (5, 10, 15):
        for part in range(2 if round < 15 else 1):
            checkpoints.save(tmp_path, saved(round, 2 + part), part, 2)
    found = checkpoints.newest(tmp_path)
    assert found.round == 10
    np.testing.assert_array_equal(found.arrays["state.memory.error"][0, :, 0], [100, 101, 100, 101, 102])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("round-000000005.0-of-2.ckpt", "round-000000005.1-of-2.ckpt"),
        *("round-000000010.0-of-2.ckpt", "round-000000010.1-of-2.ckpt"),
        "round-000000015.0-of-2.ckpt",
    ]
    checkpoints.save(tmp_path, saved(20, 5))  # by one process
    assert checkpoints.newest(tmp_path).round == 20


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--processes 2", "--processes and --process need --coordinator HOST:PORT, where the first one listens"),
        ("--coordinator here", "--coordinator here: write HOST:PORT of the first process, with --processes N and "),
        ("--coordinator a:1 --processes 2", "--coordinator a:1: write HOST:PORT of the first process, with "),
        ("--coordinator a:1 --processes 2 --process 2", "--process 2: with --processes 2, it must be 0 to 1"),
        ("--coordinator auto", "--coordinator auto: "),
    ],
)
def test_wrong_flags_are_one_sentence(flags, told):
    done = subprocess.run(
        [sys.executable, "-m", "fedsgm", *RUN.split(), *flags.split()], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {told}")
    assert done.stderr.count("\n") == 1


def test_a_machine_without_an_address_is_told_of_by_name(monkeypatch):
    def devices():
        raise RuntimeError("Unable to initialize backend 'cpu': rv == 0. -3 vs 0\nand more")

    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: None)
    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(fs.FedSGMError) as told:
        hosts.join("127.0.0.1:1", 2, 0)
    assert f"its machine's name, {socket.gethostname()}, has an address (Unable" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [
        (
            fs.FedSGMError,
            "UNKNOWN: Gloo all-reduce failed: Connection reset by peer",
            "another process of this run is gone",
        ),
        (ValueError, "wrong shapes", "^wrong shapes$"),
    ],
)
def test_an_exchange_that_fails_is_a_process_that_is_gone(monkeypatch, kind, words, told):
    """JAX raises a ValueError where the program was a short one; those of anything else stay what they are."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "_heard", contextlib.nullcontext)
    with pytest.raises(kind, match=told), hosts.all_there():
        raise ValueError(words)
