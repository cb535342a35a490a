"""What a first run takes, and how much of it is compilation: this checkout beside version 0.1.0.

    python benchmarks/compile_time.py [--revision REVISION] [--quick]

checks REVISION out beside this checkout (0.1.0 unless told), and runs the two commands of ``make demo`` and the fit of
docs/tables.md with the code of each, taking turns, every run in a process of its own with an empty cache. ``wall`` and
``CPU`` are the seconds of the whole command. JAX says when it traces, lowers and compiles, and how often: these are
seconds of CPU, as walls depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import json
import os
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST_VERSION = "d19130d"  # the last commit that the changelog's 0.1.0 has
STAGES = {
    "trace": "/jax/core/compile/jaxpr_trace_duration",
    "lower": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "XLA": "/jax/core/compile/backend_compile_duration",
}
DEMO = ["run", "neyman-pearson", "--seeds", "3"]
FIT = ["fit", "examples/applicants.csv", "--target", "approved", "--client-by", "state"]
FIT += ["--constraint", "demographic_parity(sex) <= 0.05", "--constraint", "error_rate(approved == no) <= 0.25"]
COMMANDS = {
    "demo, hard": [*DEMO, "--rule", "hard"],
    "demo, soft": [*DEMO, "--rule", "soft", "--beta", "100"],
    "fit": FIT,
}
COLUMNS = ("wall", "CPU", "compile", *STAGES, "programs", "traces")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--revision", default=FIRST_VERSION, help="what to compare with")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    given = parser.parse_args()
    turns = 1 if given.quick else 3
    here = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "-C", here, "worktree", "add", "--quiet", "--detach", old, given.revision], check=True)
        try:
            taken = in_turns({given.revision: old, "now": here}, turns)
        finally:
            subprocess.run(["git", "-C", here, "worktree", "remove", "--force", old], check=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {turns} turns; seconds\n")
    print(f"{'':24}" + "".join(f"{name:>10}" for name in COLUMNS))
    for command in COMMANDS:
        medians = {}
        for tree in (given.revision, "now"):
            runs = taken[command, tree]
            medians[tree] = {name: statistics.median(run[name] for run in runs) for name in COLUMNS}
            row = "".join(f"{value:10.2f}" if value % 1 else f"{value:10.0f}" for value in medians[tree].values())
            print(f"{f'{command}, {tree}':24}{row}")
        before, now = medians.values()
        print(f"{'now / before':24}" + "".join(f"{now[name] / before[name]:10.2f}" for name in COLUMNS))


def in_turns(trees: dict[str, Path], turns: int) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Every run of each command by each tree."""
    taken = collections.defaultdict(list)
    for _ in range(turns):
        for name, command in COMMANDS.items():
            for tree, path in trees.items():
                asks = ["--query", "all"] if name.startswith("demo") and knows_query(path) else []
                taken[name, tree].append(first_run(path, [*command, *asks]))
    return taken


def knows_query(tree: Path) -> bool:
    """Whether its demo asks every client."""
    return "--query all" in (tree / "Makefile").read_text()


def first_run(tree: Path, command: list[str]) -> dict[str, float]:
    """What a run in a process of its own says of itself, with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        env = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "FEDSGM_CACHE": f"{folder}/cache",
            "COMPILE_TIME": str(told),
        }
        run = [sys.executable, __file__, *command, "--out", f"{folder}/run", "--no-progress"]
        subprocess.run(run, check=True, env=env, cwd=tree, stdout=subprocess.DEVNULL)
        return json.loads(told.read_text())


def as_child(told: str) -> None:
    """The command line itself, and what it took."""
    began, taken, times, since = time.perf_counter(), collections.Counter(), collections.Counter(), {}

    import jax

    def begun(event: str, _: float, **__: object) -> None:
        since[event] = time.process_time()

    def ended(event: str, _: float, **__: object) -> None:
        if event in since:
            taken[event] += time.process_time() - since.pop(event)
            times[event] += 1

    jax.monitoring.register_scalar_listener(begun)
    jax.monitoring.register_event_duration_secs_listener(ended)

    def tell() -> None:
        used, stages = resource.getrusage(resource.RUSAGE_SELF), {name: taken[event] for name, event in STAGES.items()}
        whole = {"wall": time.perf_counter() - began, "CPU": used.ru_utime + used.ru_stime}
        counts = {"programs": times[STAGES["XLA"]], "traces": times[STAGES["trace"]]}
        Path(told).write_text(json.dumps(whole | {"compile": sum(stages.values())} | stages | counts))

    atexit.register(tell)  # a command ends its process itself
    runpy.run_module("fedsgm", run_name="__main__")


if __name__ == "__main__":
    if "COMPILE_TIME" in os.environ:
        as_child(os.environ["COMPILE_TIME"])
    else:
        main()
