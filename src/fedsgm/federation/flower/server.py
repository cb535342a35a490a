"""The server's part of a Flower run: the whole of it, as the main function of a ServerApp."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from fedsgm.base.files import write_atomically
from fedsgm.base.lock import alone
from fedsgm.base.progress import say
from fedsgm.federation import job
from fedsgm.federation.experiment import find
from fedsgm.federation.flare.kits import check_run
from fedsgm.federation.flower.transport import FlowerTransport

OUTCOME, PROGRESS, RESULT = "outcome.json", "progress.json", "result"  # in the run's folder on the server
_WAIT = 60.0  # seconds that clients have to join, unless the app says otherwise


def run_folder(run: str) -> Path:
    """Where the server keeps a run, its checkpoint and its result: under FEDSGM_STATE, or under ~/.fedsgm."""
    check_run(run)
    return Path(os.environ.get("FEDSGM_STATE") or Path.home() / ".fedsgm") / "server" / run


def main(grid: Grid, context: Context, code: Path) -> None:
    """Run what the app's configuration says, whose functions are in the folder ``code``, and print the verdict."""
    config = {name: str(value) for name, value in context.run_config.items()}
    folder = run_folder(config["run"])
    names = sorted(name.strip() for name in config["clients"].split(","))
    failed: Exception | None = None
    with alone(folder):
        (folder / OUTCOME).unlink(missing_ok=True)
        report = _Written(folder / PROGRESS)
        transport = FlowerTransport(names, grid)
        try:
            stated = find(config["experiment"], [code])(**json.loads(config.get("settings", "{}")))
            transport.await_clients(float(config.get("wait", _WAIT)))
            say(job.run(stated, transport, folder, folder / RESULT, report).verdict())
            say(f"The run is in {folder / RESULT}; fedsgm show prints it again.")
        except Exception as error:
            failed = error
        outcome = job.outcome(failed, "give the run another name: --run-config 'run=\"...\"'")
        write_atomically(folder / OUTCOME, json.dumps(outcome).encode())
    if failed is not None:
        raise failed


class _Written(job.Report):
    """Progress in a file, and in the lines that Flower shows of a run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        path.unlink(missing_ok=True)

    def update(self, done: int, **values: float) -> None:
        super().update(done, **values)
        write_atomically(self._path, json.dumps(self.done).encode())
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        say(f"round {done} of {self.done['rounds']}  {shown}")
