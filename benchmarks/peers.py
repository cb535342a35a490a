"""How fast is a round of FedAvg? Against FedJAX, pfl and Flower's simulation.

    make bench
    python benchmarks/peers.py [--quick]

A logistic model of 31 parameters on the breast cancer data, 20 clients of 22 rows, 10 of them in a round, E = 5
full-batch steps. Each peer is written as its own documentation has it (``peer_*.py``), draws its own participants and
runs in a virtual environment that is made for it, once, in fedsgm's cache folder. First every peer has to reach
fedsgm's loss with all clients in every round. Then all take turns; a time is of steady rounds: no start, no compiling,
no evaluation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import fedsgm as fs
import turns
from fedsgm.methods.presets import fedavg
from fedsgm.tasks import neyman_pearson as task

STEP, LOCAL_STEPS, PARTICIPANTS, CHECKED, WARM, TOLERANCE = 0.5, 5, 10, 10, 3, 1e-4
HERE = Path(__file__).parent
PEERS: dict[str, tuple[str, tuple[str, ...], int, int]] = {
    # FedJAX calls jax.tree_map, which later versions of JAX do not have.
    "FedJAX": ("peer_fedjax.py", ("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.12"), 100, 200),
    "pfl": ("peer_pfl.py", ("pfl[pytorch]==0.6.0", "torch==2.13.0"), 50, 400),
    "Flower simulation": ("peer_flower.py", ("flwr[simulation]==1.41.0",), 20, 2000),
}
"""The script, what is installed for it, how many rounds are timed in a turn, and the target."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    repetitions = 3 if parser.parse_args().quick else 7
    print(turns.machine())
    x, y = load()
    expected = loss(x, y, flat(simulate(x, y, None, WARM + CHECKED).last))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        np.savez(f"{folder}/data.npz", x=x, y=y)
        clocks = {"fedsgm": turns.steady(lambda rounds: simulate(x, y, PARTICIPANTS, rounds), 100, 4100)}
        said = {}
        for name, (script, packages, rounds, target) in PEERS.items():
            try:
                python = environment(name, packages)
                ask = running.enter_context(started(python, script, folder))
                reached = loss(x, y, np.float32(ask(len(x), CHECKED)["params"]))
            except (OSError, subprocess.SubprocessError, RuntimeError) as error:
                print(f"{name}: left out, {error}")
                continue
            if not abs(reached / expected - 1) < TOLERANCE:
                sys.exit(f"{name}: a loss of {reached} after {WARM + CHECKED} rounds, but fedsgm has {expected}")
            print(f"{name}: a loss of {reached:.6f}, fedsgm's is {expected:.6f}", flush=True)
            clocks[name], said[name] = asked(ask, rounds), turns.at_least(target)
        taken = turns.take(clocks, repetitions)
    print(f"\none round, {PARTICIPANTS} of {len(x)} clients, median of {repetitions}; load {os.getloadavg()[0]:.1f}")
    turns.table(taken, "us", said)


def load() -> tuple[np.ndarray, np.ndarray]:
    """Clients of one size, so that all ways of weighing them are the same: [client, row, feature] and [client, row]."""
    clients, _, _ = task.load()
    rows = int(min(clients.counts))
    each = [clients[j] for j in range(len(clients))]
    return np.stack([client["x"][:rows] for client in each]), np.stack([client["y"][:rows] for client in each])


def simulate(x: np.ndarray, y: np.ndarray, participants: int | None, rounds: int) -> fs.Result:
    clients = fs.Clients.from_list([{"x": x[j], "y": y[j]} for j in range(len(x))])
    start = {"w": np.zeros(x.shape[-1], np.float32), "b": np.float32(0)}
    algorithm, options = fedavg(STEP, local_steps=LOCAL_STEPS, participants=participants), {"evaluate_every": 0}
    problem = fs.Problem(task.logistic_loss)
    return fs.simulate(algorithm, problem, clients, start, rounds=rounds, progress=False, **options)


def flat(params: dict[str, np.ndarray]) -> np.ndarray:
    return np.append(params["w"], params["b"])


def loss(x: np.ndarray, y: np.ndarray, params: np.ndarray) -> float:
    """The mean over all clients' rows, of parameters with the intercept last."""
    logit = x @ params[:-1] + params[-1]
    return float(np.mean(np.logaddexp(0, logit) - y * logit))


def environment(name: str, packages: tuple[str, ...]) -> Path:
    """The Python of an environment with these packages, made if it is not there yet."""
    cache = Path(os.environ.get("FEDSGM_CACHE") or "~/.cache/fedsgm").expanduser()
    folder = cache / "peers" / "-".join(packages).replace("==", "-").translate(str.maketrans("[]", "--"))
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"{name}: installing {' '.join(packages)} in {folder}", flush=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
            done = subprocess.run(install, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"pip failed: {(done.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return python


Ask = Callable[[int, int], dict]


@contextlib.contextmanager
def started(python: Path, script: str, folder: str) -> Iterator[Ask]:
    """A function of the number of participants and of rounds, answered by a peer's process, which ends after use."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    private = {"FLWR_HOME": f"{folder}/flwr", "RAY_TMPDIR": folder}
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | quiet | private
    settings = [f"{folder}/data.npz", *map(str, (STEP, LOCAL_STEPS, WARM))]
    errors = Path(folder) / f"{script}.log"
    with errors.open("w") as log:
        child = subprocess.Popen(
            [python, HERE / script, *settings], env=own, cwd=folder, stdin=-1, stdout=-1, stderr=log, text=True
        )

    def ask(participants: int, rounds: int) -> dict:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(f"{participants} {rounds}\n")
            child.stdin.flush()
        for line in child.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"it failed: {(errors.read_text().strip().splitlines() or ['it says nothing'])[-1]}")

    try:
        yield ask
    finally:
        child.stdin.close()
        child.wait(60)


def asked(ask: Ask, rounds: int) -> Callable[[], turns.Cost]:
    """Seconds a round by the peer's own clock. Its CPU time is not known: some have processes of their own."""
    return lambda: (ask(PARTICIPANTS, rounds)["seconds"] / rounds, float("nan"))


if __name__ == "__main__":
    main()
