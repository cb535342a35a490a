"""The experiments that commands run: each gives its problem, and what loads the data that the problem does not need.

Their parameters are flags of ``fedsgm run``, ``sweep`` and ``federate local``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fedsgm.base.errors import SettingError
from fedsgm.cli.flags import PROBLEM, option, own_parameters

Load = Callable[[], tuple[Any, Any, Any]]
"""Gives the clients, the first parameters and the test data, which may be None."""


def neyman_pearson(
    bound: Annotated[float, option(panel=PROBLEM, help="Bound on the minority class's loss.")] = 0.05,
    clients: Annotated[int, option(panel=PROBLEM, help="Clients, n.")] = 20,
    split: Annotated[int, option(panel=PROBLEM, help="Seed of the train/test split and of the deal to clients.")] = 0,
) -> tuple[Any, Load]:
    """Least loss on the majority class with the minority's loss within a bound (breast cancer data).

    The defaults are the paper's experiment. The run folder gets history.parquet, params.safetensors,
    settings.toml (give it to --config to repeat the run), result.json and history.png.
    """
    from fedsgm.tasks import neyman_pearson as task

    def load() -> tuple[Any, Any, Any]:
        dealt, test, params = task.load(clients=clients, split_seed=split)
        return dealt, params, test

    return task.neyman_pearson(bound), load


def fair_adult(
    bound: Annotated[float, option(panel=PROBLEM, help="Bound on the gap of women's and men's mean scores.")] = 0.05,
    clients: Annotated[int, option(panel=PROBLEM, help="Clients, n.")] = 10,
    alpha: Annotated[float, option(panel=PROBLEM, help="Dirichlet parameter: a small one makes clients differ.")] = 2.0,
    mix: Annotated[
        str, option(panel=PROBLEM, help="What clients have unequal shares of: label, group or label-group.")
    ] = "label",
    gradient: Annotated[
        str, option(panel=PROBLEM, help="Of the gap: linearized (exact at E = 1) or local (each client its own gap).")
    ] = "linearized",
    hidden: Annotated[str, option(panel=PROBLEM, help="Widths of the hidden layers, such as 64 or 64,32.")] = "64",
    split: Annotated[int, option(panel=PROBLEM, help="Seed of the deal to clients and of the first weights.")] = 0,
    adult: Annotated[
        Path | None, option(panel=PROBLEM, help="Folder with adult.data and adult.test; fetched once if not given.")
    ] = None,
) -> tuple[Any, Load]:
    """Least loss on the Adult data with a bounded gap between women and men (demographic parity).

    The defaults are the paper's experiment; the run folder is as for neyman-pearson.
    """
    from fedsgm.tables.models import MLP
    from fedsgm.tasks import fair_classification as task

    model = MLP(widths(hidden))

    def load() -> tuple[Any, Any, Any]:
        dealt, test, params = task.load(
            clients=clients, alpha=alpha, mix=mix, model=model, split_seed=split, path=adult
        )
        return dealt, params, test

    return task.fair_classification(bound, model=model, gradient=gradient), load


def cartpole(
    clients: Annotated[int, option(panel=PROBLEM, help="Clients, n.")] = 10,
    lowest_budget: Annotated[float, option(panel=PROBLEM, help="The first client's budget of cost.")] = 25.0,
    highest_budget: Annotated[float, option(panel=PROBLEM, help="The last client's; the others lie between.")] = 35.0,
    continuous: Annotated[
        bool, option("--continuous", panel=PROBLEM, help="A force between -10 and 10 newtons, not left or right.")
    ] = False,
    angle: Annotated[float, option(panel=PROBLEM, help="Degrees that the pole may lean without cost.")] = 6.0,
    integrator: Annotated[str, option(panel=PROBLEM, help="euler or semi-implicit.")] = "euler",
    horizon: Annotated[int, option(panel=PROBLEM, help="Steps after which an episode ends.")] = 200,
    hidden: Annotated[str, option(panel=PROBLEM, help="Widths of the policy's hidden layers.")] = "128,128",
    environments: Annotated[int, option(panel=PROBLEM, help="Environments a client plays side by side.")] = 5,
    steps: Annotated[int, option(panel=PROBLEM, help="Steps that it plays in each, a round.")] = 200,
    kl_radius: Annotated[float, option(panel=PROBLEM, help="Trust region of a local step, as a divergence.")] = 0.02,
    decay: Annotated[bool, option(panel=PROBLEM, help="Shrink the trust region from round to round.")] = True,
    damping: Annotated[float, option(panel=PROBLEM, help="Added to the Fisher information's diagonal.")] = 0.01,
    solver: Annotated[str, option(panel=PROBLEM, help="Of the natural gradient: gram (exact) or cg.")] = "gram",
    line_search: Annotated[
        bool,
        option(
            "--line-search", panel=PROBLEM, help="Shorten a step until it is within its radius and the surrogate rises."
        ),
    ] = False,
    all_episodes: Annotated[
        bool,
        option(
            "--all-episodes", panel=PROBLEM, help="Decide by episodes that outlast the batch too, run to their end."
        ),
    ] = False,
    gae: Annotated[float, option(panel=PROBLEM, help="Lambda of generalised advantage estimation; 1 is none.")] = 1.0,
    mix: Annotated[
        str, option(panel=PROBLEM, help="Reward and cost: mixed as advantages, or as steps of a radius each.")
    ] = "steps",
    split: Annotated[
        int | None, option(panel=PROBLEM, help="Seed of the policy that every run starts from; its own if not given.")
    ] = None,
) -> tuple[Any, Load]:
    """Balance a pole for as long as possible with the cost of forbidden places within the clients' budgets.

    The defaults are the paper's experiment.
    """
    from fedsgm.tasks import cmdp

    experiment = cmdp.load(
        clients=clients,
        budgets=(lowest_budget, highest_budget),
        environment=cmdp.CartPole(continuous=continuous, angle=angle, integrator=integrator),
        hidden=widths(hidden),
        policy_seed=split,
        horizon=horizon,
        environments=environments,
        steps=steps,
        radius=kl_radius,
        damping=damping,
        solver=solver,
        line_search=line_search,
        gae=gae,
        mix=mix,
        **{"finished": False} if all_episodes else {},
        **{} if decay else {"schedule": None},
    )
    return experiment.task, lambda: (experiment.clients, experiment.params, None)


def widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise SettingError(f"--hidden {text}: write the layers' widths, such as 64 or 64,32") from None


@dataclasses.dataclass(frozen=True)
class Setup:
    """An experiment as commands know it: what makes it, its defaults of their flags, and those it has no use for."""

    make: Callable[..., tuple[Any, Load]]
    defaults: dict[str, Any]
    without: tuple[str, ...] = ()

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The flags that are its own."""
        return own_parameters(self.make)


SETUPS = {
    "neyman-pearson": Setup(
        neyman_pearson,
        {"step_size": 0.3, "participants": 10, "uplink": "topk:0.1", "downlink": "topk:0.1", "seeds": 3},
    ),
    "fair-adult": Setup(
        fair_adult,
        {"local_steps": 2, "participants": 5, "batch_size": 64, "seeds": 5, "evaluate_every": 5},
    ),
    "cartpole": Setup(
        cartpole,
        {"step_size": 1.0, "beta": 0.3, "local_steps": 1, "participants": 7, "evaluate_every": 10},
        without=("batch_size", "constraint_batch_size"),
    ),
}
