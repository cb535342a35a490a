"""The same bits before and after a change: the same runs by two checkouts, every array of every result compared.

    python benchmarks/same_bits.py REVISION [--adult FOLDER]

checks REVISION out beside this checkout, makes the runs with the code of each in a process of its own, and prints which
arrays differ. The runs use public names alone, so that both versions have them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROUNDS, CARTPOLE_ROUNDS = 150, 12


def results(adult: str | None):
    """Each run's name and its result."""
    import fedsgm as fs
    from fedsgm.federation import Program
    from fedsgm.federation.inprocess import InProcess
    from fedsgm.tasks import cmdp, fair_classification, neyman_pearson

    clients, test, params = neyman_pearson.load()
    problem = neyman_pearson.neyman_pearson()
    half = {"local_steps": 5, "participants": 10}
    both = {"uplink": fs.TopK(0.1), "downlink": fs.TopK(0.1)}
    for name, settings in {
        "np hard": {"step_size": 1.0, "rule": fs.Hard(), **half},
        "np soft": {"step_size": 0.3, "rule": fs.Soft(40.0), **half},
        "np compressed": {"step_size": 0.3, "rule": fs.Soft(40.0), **half, **both},
        "np random": {"step_size": 0.1, "rule": fs.Hard(), **half, "uplink": fs.RandK(0.3), "downlink": fs.Natural()},
        "np mini-batch": {"step_size": 0.1, "rule": fs.Hard(), **half, "batch_size": 4, "constraint_batch_size": 4},
        "np multiplier": {"step_size": 0.1, "rule": fs.PrimalDual(0.5), **half, **both},
        "np penalty": {"step_size": 0.1, "rule": fs.Penalty(10.0), "local_steps": 2},
    }.items():
        algorithm = fs.FedSGM(**settings)
        yield name, fs.simulate(algorithm, problem, clients, params, rounds=ROUNDS, seeds=3, test=test, progress=False)

    few, held_out, start = neyman_pearson.load(clients=5)
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in {"plain": {}, "compressed": both}.items():
            algorithm = fs.FedSGM(0.3, local_steps=5, participants=3, rule=fs.Soft(40.0), **settings)
            transport = InProcess.of(Program.of(algorithm, problem, start), few, Path(folder) / name)
            result = fs.federate(algorithm, problem, transport, start, rounds=ROUNDS, test=held_out, progress=False)
            yield f"federate {name}", result

    if adult is not None:
        dealt, test, weights = fair_classification.load(path=adult)
        algorithm = fs.FedSGM(0.1, local_steps=2, participants=5, rule=fs.Soft(40.0), batch_size=64)
        fair = fair_classification.fair_classification()
        yield (
            "adult",
            fs.simulate(algorithm, fair, dealt, weights, rounds=40, evaluate_every=5, test=test, progress=False),
        )

    experiment = cmdp.load()
    algorithm = fs.FedSGM(1.0, participants=7, rule=fs.Soft(0.3), uplink=fs.TopK(0.25), downlink=fs.TopK(0.25))
    play = {"rounds": CARTPOLE_ROUNDS, "seed": 1000, "evaluate_every": 4, "progress": False}
    yield "cartpole", fs.simulate(algorithm, experiment.task, experiment.clients, experiment.params, **play)


def write(path: str, adult: str | None) -> None:
    """All arrays of all results, by name."""
    import jax

    arrays = {}
    for run, result in results(adult):
        arrays |= {f"{run}: {name}": column for name, column in result.history.items()}
        kinds = [kind for kind in ("last", "average", "best_feasible", "answer") if hasattr(result, kind)]
        for kind in kinds:
            leaves = jax.tree_util.tree_leaves_with_path(getattr(result, kind))
            arrays |= {f"{run}: {kind}{jax.tree_util.keystr(place)}": np.asarray(leaf) for place, leaf in leaves}
        for part, values in result.values.items():
            for name, rows in values.items():
                arrays |= {f"{run}: {part} {name}, {kind}": row for kind, row in zip(kinds, rows, strict=True)}
    np.savez(path, **arrays)


def compare(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> int:
    """Print what differs; how many do."""
    differ = 0
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            print(f"  {name}: {'new' if name in after else 'gone'}")
            continue
        old, new = before[name], after[name]
        if old.dtype != new.dtype or old.shape != new.shape or old.tobytes() != new.tobytes():
            differ += 1
            far = np.nanmax(np.abs(old - new)) if old.shape == new.shape else np.nan
            print(f"  {name}: differs, {old.dtype}{old.shape} and {new.dtype}{new.shape}, by up to {far:.2g}")
    print(f"{len(before.keys() & after.keys())} arrays are in both, {differ} of them differ")
    return differ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="what to compare with, such as HEAD~1")
    parser.add_argument("--adult", help="folder with adult.data and adult.test; left out unless given")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.write, given.adult)
        return
    here = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "-C", here, "worktree", "add", "--detach", old, given.revision], check=True)
        try:
            found = []
            for tree in (old, here):
                target = str(Path(folder) / f"{tree.name}.npz")
                command = [sys.executable, str(Path(__file__)), given.revision, "--write", target]
                command += ["--adult", str(Path(given.adult).resolve())] if given.adult else []
                subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(tree / "src")})
                with np.load(target) as arrays:
                    found.append(dict(arrays))
        finally:
            subprocess.run(["git", "-C", here, "worktree", "remove", "--force", old], check=True)
    sys.exit(1 if compare(*found) else 0)


if __name__ == "__main__":
    main()
