"""Jobs of a federation that a test has started, submitted as a user submits them: by a process of their own."""

import os
import subprocess
import sys

import fedsgm as fs
from support.waiting import LONG


def submit(federation, job, out):
    """The result of ``fedsgm federate submit``."""
    command = [sys.executable, "-m", "fedsgm", "federate", "submit", job, "--kit", federation.admin]
    done = subprocess.run(
        [*map(str, command), "--run", job.name, "--out", str(out)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    return fs.Result.load(out)
