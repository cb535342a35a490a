"""What should a constraint step follow when there are many constraints? Ways to share it out, on three problems.

    python benchmarks/many_constraints.py synthetic digits --out study.jsonl    run, and go on where it was left
    python benchmarks/many_constraints.py --table study.jsonl                    the tables of what was run

The ways were chosen between on the synthetic problem, whose optimum SciPy finds, and on scikit-learn's digits; Adult
was looked at afterwards. Every way has the same step sizes to choose from. A line of the file is one seed of one run.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedsgm as fs

BETA = 40.0


@fs.struct
class Way:
    """Soft switching, ``s`` of the largest violation, that shares the constraints' part out in one of many ways."""

    number: int
    beta: float = BETA

    def init(self, _constraints: int) -> None:
        return None

    def report(self, _state: None) -> dict[str, jax.Array]:
        return {}

    def decide(self, violations: jax.Array, state: None) -> tuple[fs.Direction, None]:
        hinges = jnp.clip(1 + self.beta * violations, 0, 1)
        s = jnp.max(hinges)
        largest = jax.nn.one_hot(jnp.argmax(violations), len(violations))
        violated = jnp.float32(violations > 0)
        excess = jnp.maximum(violations, 0)
        some = jnp.any(violated)
        smooth = jax.nn.softmax(self.beta * jnp.maximum(violations, -1e6))
        half = jnp.minimum(s, 0.5)
        every = 1 - s + jnp.sum(hinges)
        ways = {
            "largest": (1 - s, s * largest),
            "sum": (1 - s, s * jnp.where(some, violated, largest)),
            "mean": (1 - s, s * jnp.where(some, _share(violated), largest)),
            "shared": (1 - s, s * jnp.where(some, _share(excess), largest)),
            "hinges": (1 - s, s * _share(hinges)),
            "hinges, sum": (1 - s, hinges),
            "hinges, all": ((1 - s) / every, hinges / every),
            "smooth": (1 - s, s * smooth),
            "ceiling": (1 - half, half * largest),
        }
        assert tuple(ways) == WAYS
        objective, constraint = (jnp.stack(part)[jnp.int32(self.number)] for part in zip(*ways.values(), strict=True))
        return fs.Direction(objective, constraint), state


WAYS = ("largest", "sum", "mean", "shared", "hinges", "hinges, sum", "hinges, all", "smooth", "ceiling")


def _share(weights: jax.Array) -> jax.Array:
    total = jnp.sum(weights)
    return weights / jnp.where(total > 0, total, 1)


class Setting:
    """A problem with its data: what a run needs, and the lowest objective where it is known."""

    def __init__(
        self, name: str, problem: fs.Problem, clients: fs.Clients, params: Any, best: float | None, **more: Any
    ):
        self.name, self.problem, self.clients, self.params, self.best = name, problem, clients, params, best
        self.algorithm = {"local_steps": 5, "uplink": fs.TopK(0.1), "downlink": fs.TopK(0.1)} | more


@functools.cache
def digits_of(split: int) -> fs.Clients:
    from sklearn.datasets import load_digits

    loaded = load_digits()
    examples = {"x": np.float32(loaded.data / 16), "y": np.int32(loaded.target)}
    return fs.split(examples, clients=30, scheme=fs.dirichlet(0.3, by="y", least=5), seed=split)


def _cross_entropy(params: Any, example: Any) -> jax.Array:
    return -jax.nn.log_softmax(example["x"] @ params["w"] + params["b"])[example["y"]]


def _decayed(params: Any, example: Any) -> jax.Array:
    return _cross_entropy(params, example) + 0.005 * jnp.sum(params["w"] ** 2)


@functools.cache
def _labelled(label: int) -> Callable[[Any], jax.Array]:
    return lambda example: example["y"] == label


def digits(bound: float, split: int) -> Setting:
    """Softmax regression with weight decay; the loss of every digit is bounded, by the clients that have it."""
    classes = [
        fs.Mean(_cross_entropy, where=_labelled(label), name=f"class{label}", missing="absent") <= bound
        for label in range(10)
    ]
    params = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}
    problem = fs.Problem(fs.Mean(_decayed), classes)
    return Setting(f"digits {bound:g}", problem, digits_of(split), params, None, participants=10)


def _distance(w: jax.Array, example: Any) -> jax.Array:
    return 0.5 * jnp.sum(example["q"] * (w - example["a"]) ** 2)


@functools.cache  # the same function for every split is the same program
def _bowl(i: int) -> Callable[[Any, Any], jax.Array]:
    def value(w: jax.Array, example: Any) -> jax.Array:
        return example["b"][i] @ w + 0.05 * jnp.sum((w - example["c"][i]) ** 2)

    value.__name__ = f"g{i}"
    return value


def synthetic(count: int, split: int) -> Setting:
    """Quadratics of 20 different clients: ``count`` of them bounded so that most bounds hold at the optimum."""
    rng = np.random.default_rng([split, count])
    n, d = 20, 30
    slopes, centres = rng.normal(size=(count, d)) / np.sqrt(d) + 0.15, rng.normal(size=(count, d))
    clients = [
        {
            "a": 1 + 0.5 * rng.normal(size=d),
            "q": rng.uniform(0.5, 1.5, d),
            "b": slopes + 0.3 * rng.normal(size=(count, d)) / np.sqrt(d),
            "c": centres + 0.3 * rng.normal(size=(count, d)),
        }
        for _ in range(n)
    ]
    examples = [{name: np.float32(a)[None] for name, a in client.items()} for client in clients]
    start = np.zeros(d, np.float32)
    everyone = {name: np.stack([client[name] for client in clients]) for name in clients[0]}

    def constraint(w: np.ndarray, i: int) -> float:
        return float(np.mean(everyone["b"][:, i] @ w + 0.05 * np.sum((w - everyone["c"][:, i]) ** 2, axis=1)))

    # Half of what each would be at the objective's own optimum, from a point that is within: so all of them matter.
    free = np.sum(everyone["q"] * everyone["a"], axis=0) / np.sum(everyone["q"], axis=0)
    inside = -0.3 * np.ones(d)
    bounds = [0.5 * constraint(free, i) + 0.5 * constraint(inside, i) for i in range(count)]
    best = _solve(everyone, bounds, inside)
    problem = fs.Problem(_distance, [fs.Mean(_bowl(i)) <= bounds[i] for i in range(count)])
    return Setting(f"synthetic {count}", problem, fs.Clients.from_list(examples), start, best, participants=10)


def _solve(everyone: dict[str, np.ndarray], bounds: list[float], inside: np.ndarray) -> float:
    """The lowest objective within the bounds, by SLSQP in float64."""
    from scipy.optimize import minimize

    q, a, b, c = (everyone[name] for name in "qabc")

    def objective(w: np.ndarray) -> float:
        return float(np.mean(0.5 * np.sum(q * (w - a) ** 2, axis=1)))

    def slack(w: np.ndarray) -> np.ndarray:
        return np.array(bounds) - np.mean(b @ w + 0.05 * np.sum((w - c) ** 2, axis=2), axis=0)

    found = minimize(
        objective,
        inside,
        jac=lambda w: np.mean(q * (w - a), axis=0),
        constraints={"type": "ineq", "fun": slack, "jac": lambda w: -np.mean(b + 0.1 * (w - c), axis=0)},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    assert found.success, found.message
    assert slack(found.x).min() > -1e-8
    return float(found.fun)


@functools.cache
def adult_of(folder: str, split: int) -> tuple[fs.Clients, int]:
    from fedsgm.data.adult import adult
    from fedsgm.data.table import Encoder

    table, _ = adult(folder)
    encoder = Encoder.of(table, [name for name in table if name not in ("income", "fnlwgt")])
    examples = {
        "x": np.float32(encoder.encode(table)),
        "y": np.float32(table["income"] == ">50K"),
        "group": np.int32(table["sex"] == "Male") + 2 * np.int32(table["race"] == "White"),
    }
    few = np.random.default_rng(split).permutation(len(examples["y"]))[:8000]
    examples = {name: column[few] for name, column in examples.items()}
    examples["share"] = np.int32(examples["y"]) + 2 * examples["group"]
    dealt = fs.split(examples, clients=10, scheme=fs.dirichlet(2.0, by="share"), seed=split)
    return dealt, examples["x"].shape[1]


def _logistic(params: Any, example: Any) -> jax.Array:
    z = example["x"] @ params["w"] + params["b"]
    return jnp.logaddexp(0.0, z) - example["y"] * z


@functools.cache
def _of_group(groups: tuple[int, ...]) -> fs.Statistic:
    """The mean loss of those with a high income in these groups."""

    def sums(params: Any, example: Any) -> dict[str, jax.Array]:
        member = jnp.float32(example["y"] == 1) * jnp.any(example["group"] == jnp.array(groups))
        return {"count": member, "loss": member * _logistic(params, example)}

    name = "high" + "".join(map(str, groups))
    return fs.Statistic(sums, lambda total: total["loss"] / total["count"], name=name, members=lambda t: t["count"])


def adult(folder: str, count: int, bound: float, split: int) -> Setting:
    """Logistic regression whose loss on high incomes is bounded in 2 groups (sex) or 4 (sex and race)."""
    clients, features = adult_of(folder, split)
    groups = [(0, 2), (1, 3)] if count == 2 else [(0,), (1,), (2,), (3,)]
    problem = fs.Problem(_logistic, [_of_group(group) <= bound for group in groups])
    params = {"w": np.zeros(features, np.float32), "b": np.float32(0)}
    return Setting(f"adult {count} {bound:g}", problem, clients, params, None, participants=5)


def settings(study: str, folder: str) -> Iterator[tuple[int, Setting]]:
    for split in range(3 if study == "synthetic" else 2):
        if study == "synthetic":
            yield from ((split, synthetic(count, split)) for count in (2, 5, 20))
        elif study == "digits":
            yield from ((split, digits(bound, split)) for bound in (0.6, 0.4))
        else:
            yield from ((split, adult(folder, count, bound, split)) for count in (2, 4) for bound in (0.6, 0.4))


STEPS = {"synthetic": (0.03, 0.01, 0.003), "digits": (0.3, 0.1, 0.03), "adult": (0.3, 0.1, 0.03)}
ROUNDS = {"synthetic": 500, "digits": 400, "adult": 300}


def run(study: str, setting: Setting, way: str, step: float, query: str, seeds: int) -> list[dict[str, Any]]:
    algorithm = fs.FedSGM(step, rule=Way(WAYS.index(way)), query=query, **setting.algorithm)
    rounds = ROUNDS[study]
    result = fs.simulate(
        algorithm,
        setting.problem,
        setting.clients,
        setting.params,
        rounds=rounds,
        seed=1000,
        seeds=seeds,
        evaluate_every=5,
        progress=False,
    )
    bounds = np.array(list(setting.problem.bounds.values()))
    values = np.stack([result.history[name] for name in setting.problem.names], axis=-1) - bounds
    here = ~np.isnan(result.history["objective"][0])
    worst, objective = values.max(axis=-1)[:, here], result.history["objective"][:, here]
    late = slice(-rounds // 20, None)  # the last quarter
    rows = []
    for seed in range(seeds):
        within = worst[seed] <= 0
        rows.append(
            {
                "worst": float(worst[seed, late].mean()),
                "objective": float(objective[seed, late].mean()),
                "within": float(within[late].mean()),
                "answer": float(objective[seed][within].min()) if within.any() else None,
                "least": float(worst[seed].min()),
                "for the objective": float(1 - np.minimum(result.history["weight"][seed], 1).mean()),
            }
        )
    return rows


def measure(studies: list[str], out: Path, folder: str, seeds: int, queries: list[str], ways: list[str]) -> None:
    done = {_key(row) for row in _rows(out)} if out.exists() else set()
    for study in studies:
        for split, setting in settings(study, folder):
            for query in queries:
                for way in ways:
                    for step in STEPS[study]:
                        key = {"setting": setting.name, "split": split, "query": query, "way": way, "step": step}
                        if _key(key) in done:
                            continue
                        found = run(study, setting, way, step, query, seeds)
                        with out.open("a") as file:
                            for seed, row in enumerate(found):
                                print(json.dumps(key | {"seed": seed, "best": setting.best} | row), file=file)
            print(setting.name, split, flush=True)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("setting", "split", "query", "way", "step"))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(path: Path) -> None:
    """For every setting and way: the step size that serves it best, and what it then comes to."""
    grouped: dict[Any, dict[float, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in _rows(path):
        grouped[row["setting"], row["query"], row["way"]][row["step"]].append(row)
    before = None
    for (setting, query, way), by_step in grouped.items():
        if (setting, query) != before:
            print(f"\n{setting}, query {query}")
            print("               step runs within   answer   late f late worst  within f-share")
        before = setting, query
        step, rows = min(by_step.items(), key=lambda item: _score(item[1]))
        kept = [row["answer"] - (row["best"] or 0) for row in rows if row["answer"] is not None]
        late = [np.mean([row[name] for row in rows]) for name in ("objective", "worst", "within", "for the objective")]
        late[0] -= np.mean([row["best"] or 0 for row in rows])
        answer = f"{np.mean(kept):9.4f}" if kept else "        -"
        told = f"{len(kept)} of {len(rows)}"
        print(f"{way:13}{step:6g}{told:>12}{answer}{late[0]:9.4f}{late[1]:11.4f}{late[2]:8.0%}{late[3]:8.0%}")


def _score(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Runs without an answer, then the answers' mean objective, or the least violation where there is none."""
    kept = [row["answer"] for row in rows if row["answer"] is not None]
    return len(rows) - len(kept), float(np.mean(kept)) if kept else float(np.mean([row["least"] for row in rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", choices=("synthetic", "digits", "adult", []))
    parser.add_argument("--out", type=Path, default=Path("many_constraints.jsonl"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--adult", default="adult", help="folder with the Adult files")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--query", nargs="+", default=["participants"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options = parser.parse_args()
    if options.table:
        table(options.table)
    else:
        measure(options.studies, options.out, options.adult, options.seeds, options.query, options.ways)


if __name__ == "__main__":
    main()
