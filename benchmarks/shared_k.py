"""How many rounds does secure aggregation's compressor take, with part of its entries named by earlier sums?

    python benchmarks/shared_k.py [--quick] [--keep 0.1] [--only digits ...]

Rounds to a target: the least objective within the bounds (by 0.005) that a run without compression has found in the
first quarter of its rounds. All clients take part, E = 5. Every compressor has the same three step sizes to choose
from, by three seeds; what is printed is of others. The share of named entries was chosen on the first four problems.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedsgm as fs
import many_constraints
import networks
import turns
from fedsgm.tables.models import MLP
from fedsgm.tasks import fair_classification, neyman_pearson

ADULT = Path(__file__).parents[1] / "../shared/adult"
WITHIN, BETA = 0.005, 40.0
SHARES = (0.0, 0.25, 0.5)
TUNING, FRESH = (100, 3), (200, 5)
"""The first seed, and how many."""


class Setting:
    """A problem with its data, the step sizes to choose from, and how many rounds a run has."""

    def __init__(
        self, problem: fs.Problem, clients: Any, params: Any, steps: tuple[float, ...], rounds: int, **more: Any
    ):
        self.problem, self.clients, self.params, self.steps, self.rounds = problem, clients, params, steps, rounds
        self.algorithm = {"local_steps": 5, "rule": fs.Soft(beta=BETA)} | more

    def run(self, link: Any, step: float, seeds: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """The rounds that are measured, and of each seed the least objective within the bounds up to them."""
        jax.clear_caches()  # programs of hundreds of runs do not fit into memory
        result = fs.simulate(
            fs.FedSGM(step, uplink=link, **self.algorithm),
            self.problem,
            self.clients,
            self.params,
            rounds=self.rounds,
            seed=seeds[0],
            seeds=seeds[1],
            evaluate_every=2,
            progress=False,
        )
        here = np.flatnonzero(~np.isnan(result.history["objective"][0]))
        worst = np.max([result.history[name] - bound for name, bound in self.problem.bounds.items()], axis=0)
        objective = np.where(worst <= WITHIN, result.history["objective"], np.inf)
        return here + 1, np.minimum.accumulate(objective[:, here], axis=1)

    def target(self) -> float:
        found = []
        for step in self.steps:
            rounds, least = self.run(fs.Identity(), step, TUNING)
            found.append(least[:, rounds <= self.rounds / 4][:, -1].mean())
        return float(min(found))

    def rounds_to(self, target: float, link: Any, step: float, seeds: tuple[int, int]) -> np.ndarray:
        """Of each seed; all rounds and one where it is never reached."""
        rounds, least = self.run(link, step, seeds)
        return np.append(rounds, self.rounds + 1)[(least > target).sum(axis=1)]


def np_task() -> Setting:
    clients, _, params = neyman_pearson.load()
    return Setting(neyman_pearson.neyman_pearson(), clients, params, (0.1, 0.3, 1.0), 200, rule=fs.Hard())


def digits() -> Setting:
    found = many_constraints.digits(0.6, 0)
    return Setting(found.problem, found.clients, found.params, (0.1, 0.3, 1.0), 300)


def adult(model: MLP, rounds: int) -> Setting:
    clients, _, params = fair_classification.load(model=model, path=ADULT)
    problem = fair_classification.fair_classification(model=model)
    return Setting(problem, clients, params, (0.03, 0.1, 0.3), rounds, batch_size=64)


def network() -> Setting:
    found = networks.Network(64, 64)
    return Setting(found.problem, found.clients, found.start, (0.1, 0.3, 1.0), 200)


def quadratics() -> Setting:
    found = many_constraints.synthetic(5, 0)
    return Setting(found.problem, found.clients, found.params, (0.003, 0.01, 0.03), 300)


SETTINGS: dict[str, Callable[[], Setting]] = {
    "neyman-pearson": np_task,
    "digits": digits,
    "adult": functools.partial(adult, MLP(), 200),
    "network": network,
    "adult network": functools.partial(adult, fair_classification.MODEL, 200),
    "quadratics": quadratics,
}
OTHERS = ("adult network", "quadratics")  # which nothing was chosen on


def compare(name: str, setting: Setting, keep: float) -> None:
    target = setting.target()
    links = {f"{share:g} named": fs.SharedK(keep, history=share) for share in SHARES}
    links |= {"Top-K": fs.TopK(keep)}
    cells = []
    for link in links.values():
        taken = [setting.rounds_to(target, link, step, TUNING).mean() for step in setting.steps]
        rounds = setting.rounds_to(target, link, setting.steps[int(np.argmin(taken))], FRESH)
        never = (rounds > setting.rounds).sum()
        cells.append(f"{rounds.mean():6.0f} ({rounds.min()}-{rounds.max()}{f', {never} never' if never else ''})")
    print(f"{name:15}{target:9.4f}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small problems alone")
    parser.add_argument("--keep", type=float, default=0.1, help="K/d")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, help="these problems alone")
    options = parser.parse_args()
    names = options.only or (("neyman-pearson", "quadratics") if options.quick else SETTINGS)
    print(turns.machine())
    print(f"K/d = {options.keep:g}: rounds to the target, means over {FRESH[1]} seeds (least-most)")
    heads = [f"{share:g} named" for share in SHARES] + ["Top-K"]
    print(f"{'problem':15}{'target':>9}" + "".join(f"{head:>24}" for head in heads))
    for name in names:
        compare(name + (" *" if name in OTHERS else ""), SETTINGS[name](), options.keep)
    print("* nothing was chosen on these")


if __name__ == "__main__":
    main()
