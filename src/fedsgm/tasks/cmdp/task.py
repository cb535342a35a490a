"""A constrained Markov decision process as a task of FedSGM: one environment, and a budget for each client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number, replaced, static, struct
from fedsgm.core.pooling import mean_of, standard_error
from fedsgm.core.rules import Direction, Measured
from fedsgm.tasks.cmdp import trpo
from fedsgm.tasks.cmdp.environment import Environment, Steps, check, episodes, rollout
from fedsgm.tasks.cmdp.policies import MLP, Policy

SOLVERS = ("cg", "gram")
MIXES = ("advantages", "steps")


@struct
class Kept:
    """What a client keeps of its query for the update that follows."""

    steps: Steps
    advantages: jax.Array


@struct
class CMDP:
    """Maximise the mean reward of an episode subject to its mean cost staying within the clients' budgets.

    The objective is minus the reward. Client j measures its mean cost minus ``budgets[j]`` on whole episodes, and takes
    its local step, a trust-region step, from the same trajectories. The step is the message, so
    ``FedSGM(step_size=1.0, ...)`` applies it as it is.

    Args:
        environment, policy: see :class:`Environment` and :class:`Policy`.
        budgets: d_j, one a client.
        horizon: the steps after which an episode ends.
        environments, steps: a client's batch is that many environments side by side, that many steps each.
        radius: of a local step, as a mean KL divergence; ``schedule(round)``, if there is one, is multiplied to it.
        damping: added to the Fisher information's diagonal.
        fisher_samples: the Fisher information is taken on so many of a batch's states, evenly spread over it.
        solver: "cg", conjugate gradient in ``cg_iterations`` steps for any policy; "gram", exact, for an ``MLP``.
        line_search: shorten a step until the surrogate rises and the divergence on all of the batch's states is within
            the radius. The divergence is nearly convex, so that the mean of such steps keeps within it as well.
        gae: lambda of generalised advantage estimation; at 1, what is to go minus the critic's guess.
        mix: "advantages", one step of the mixed advantages; or "steps", a step for the reward and one for the cost,
            each as long as the radius has it, mixed by the rule's weights.
        finished: the rule decides by the episodes that began and ended within the batch, as is usual, though it favours
            short ones; otherwise by all that began, run to their end.
        evaluation_episodes: whole episodes a client plays where the true values are measured.
    """

    environment: Environment = static()
    policy: Policy = static()
    budgets: Any
    horizon: int = static()
    environments: int = static(default=5)
    steps: int = static(default=200)
    radius: Any = 0.003
    schedule: Callable[[jax.Array], jax.Array] | None = static(default=None)
    damping: float = 1e-3
    fisher_samples: int = static(default=200)
    solver: str = static(default="cg")
    cg_iterations: int = static(default=10)
    line_search: bool = static(default=False)
    gae: float = 1.0
    mix: str = static(default="advantages")
    finished: bool = static(default=False)
    evaluation_episodes: int = static(default=5)

    def __post_init__(self) -> None:
        for name in ("horizon", "environments", "steps", "fisher_samples", "cg_iterations", "evaluation_episodes"):
            check_count("CMDP", name, getattr(self, name))
        check_number("CMDP", "radius", self.radius, above=0)
        check_number("CMDP", "damping", self.damping, above=0)
        check_number("CMDP", "gae", self.gae, least=0, most=1)
        for name, known in (("solver", SOLVERS), ("mix", MIXES)):
            if getattr(self, name) not in known:
                raise SettingError(f"CMDP: {name}={getattr(self, name)!r}, but it must be {' or '.join(known)}")
        if self.solver == "gram" and not hasattr(self.policy, "factors"):
            raise SettingError("CMDP: solver='gram' is for an MLP; take solver='cg' for a policy of another form")
        if self.fisher_samples > self.environments * self.steps:
            raise SettingError(
                f"CMDP: fisher_samples={self.fisher_samples}, but a batch has {self.environments * self.steps} steps"
            )
        if self.finished and self.steps < self.horizon:
            raise SettingError(
                f"CMDP: finished=True, but of steps={self.steps} an episode of horizon={self.horizon} may not finish"
            )
        object.__setattr__(self, "budgets", _budgets(self.budgets))

    @property
    def clients(self) -> np.ndarray:
        """What ``simulate`` takes for clients: the budgets."""
        return self.budgets

    @property
    def bounds(self) -> dict[str, float]:
        """The mean cost over all clients against the mean of their budgets."""
        return {"cost": np.mean(self.budgets)}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return {"cost": (-math.inf, self.bounds["cost"])}

    @property
    def inspects(self) -> tuple[str, ...]:
        return ("kl",)

    @property
    def places(self) -> tuple[str, ...]:
        return ()

    def centralized(self, clients: Any) -> tuple[CMDP, np.ndarray]:
        """The task of one client with the mean budget, and with all the clients' environments."""
        budgets = np.asarray(self.budgets)
        alone = dataclasses.replace(
            self, budgets=[float(budgets.mean())], environments=self.environments * len(budgets)
        )
        return alone, alone.clients

    def at(self, round: jax.Array) -> CMDP:
        """The task with the radius of this round."""
        if self.schedule is None:
            return self
        return replaced(self, radius=self.radius * self.schedule(round))

    def prepare(self, clients: Any, params: Any, *, owner: str = "client") -> dict[str, np.ndarray]:
        """Each client's budget and number."""
        if not np.array_equal(clients, self.budgets):
            raise SettingError(
                "clients: those of a CMDP are its budgets; give simulate(algorithm, task, task.clients, ...)"
            )
        check(self.environment, self.policy, params)
        return {"budget": self.budgets, "client": np.arange(len(self.budgets), dtype=np.int32)}

    def prepare_one(self, data: Any, params: Any) -> dict[str, Any]:
        """The same of the client whose number is ``data``."""
        everybody = self.prepare(self.budgets, params)
        if not isinstance(data, int) or not 0 <= data < len(self.budgets):
            raise SettingError(f"a CMDP's client is its number, 0 to {len(self.budgets) - 1}, but it is {data!r}")
        return {name: values[data] for name, values in everybody.items()}

    def measure(self, params: Any, data: Any, key: jax.Array, *, batch_size: int | None) -> tuple[Any, Kept]:
        """Roll out; the mean reward and cost of an episode, and that cost minus the client's budget."""
        _refuse(batch_size)
        steps, returns = rollout(
            self.environment,
            self.policy,
            params,
            key,
            environments=self.environments,
            steps=self.steps,
            horizon=self.horizon,
            finished=self.finished,
        )
        statistics = {"reward": returns[0], "cost": returns[1], "excess": returns[1] - data["budget"]}
        return statistics, Kept(steps, trpo.advantages(steps, self.horizon, self.environments, self.gae))

    def combine(self, statistics: Any, tolerance: Any, key: jax.Array, heard: jax.Array | None = None) -> Measured:
        """The clients' mean cost over their budgets, and its standard error."""
        reward, cost, excess = (mean_of(statistics[name], heard) for name in ("reward", "cost", "excess"))
        return Measured(
            (excess - tolerance)[None],
            None,
            {"estimate": cost, "reward_estimate": reward},
            scales=jnp.ones(1),
            errors=standard_error(statistics["excess"], heard)[None],
        )

    def direction(
        self, params: Any, direction: Direction, data: Any, kept: Kept, key: jax.Array, *, batch_size: int | None
    ) -> Any:
        """Minus a trust-region step of the mixed advantages, or the mean of the reward's and the cost's."""
        _refuse(batch_size)
        reward, cost = kept.advantages
        shares, mixed = [direction.objective, direction.weight], [reward, -cost]
        if self.mix == "advantages":
            shares, mixed = [jnp.float32(1)], [direction.objective * reward - direction.weight * cost]
        batch = self.environments * self.steps
        spread = np.arange(self.fisher_samples) * batch // self.fisher_samples

        # One client after another: products of matrices in batches are slow on a CPU, and a client's fill it.
        @jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
        def step(params: Any, steps: Steps, mixed: Any, radius: jax.Array, damping: jax.Array) -> Any:
            sample = steps.observations[spread]

            def solve(gradient: Any) -> tuple[Any, jax.Array]:
                if self.solver == "gram":
                    return trpo.by_gram(cast(MLP, self.policy), params, gradient, sample, damping)
                return trpo.by_conjugate_gradient(self.policy, params, gradient, sample, damping, self.cg_iterations)

            return [
                trpo.trust_region_step(
                    self.policy, params, steps, advantage, radius, solve, line_search=self.line_search
                )
                for advantage in mixed
            ]

        taken = step(params, kept.steps, mixed, jnp.float32(self.radius), jnp.float32(self.damping))
        return jax.tree.map(lambda *parts: -sum(map(jnp.multiply, shares, parts)), *taken)

    def share(self, direction: Any, kept: Kept) -> int:
        """All count alike."""
        return 1

    def inspect(self, before: Any, after: Any, kept: Kept) -> dict[str, jax.Array]:
        """The mean KL divergence that the round's step, of all participants together, made on the client's states."""
        return {"kl": trpo.kl(self.policy, before, after, kept.steps.observations[:: self.environments])}

    def evaluate(self, params: Any, data: Any, key: jax.Array) -> jax.Array:
        """Mean reward and cost of fresh episodes; not a number where the parameters are not."""
        key = jax.random.fold_in(key, data["client"])
        returns = episodes(
            self.environment, self.policy, params, key, count=self.evaluation_episodes, horizon=self.horizon
        )
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)])
        return jnp.where(jnp.all(finite), jnp.mean(returns, 0), jnp.nan)

    def summarise(self, evaluations: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        """Over all clients: minus the reward, the cost, the reward; and the cost over the mean budget."""
        reward, cost = jnp.mean(evaluations, 0)
        return {"objective": -reward, "cost": cost, "reward": reward}, cost - jnp.mean(self.budgets)


def _refuse(batch_size: int | None) -> None:
    if batch_size is not None:
        raise SettingError("FedSGM: a batch size has no meaning for a CMDP; set CMDP(environments=..., steps=...)")


def _budgets(given: Any) -> np.ndarray:
    try:
        budgets = np.array(given, np.float32)
    except (TypeError, ValueError):
        budgets = np.zeros(0, np.float32)
    if budgets.ndim != 1 or not len(budgets) or not np.isfinite(budgets).all():
        raise SettingError(f"CMDP: budgets={given!r}, but it must be a list of finite numbers, one a client")
    return budgets
