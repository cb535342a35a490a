"""CartPole with costs: one for a step that ends in a forbidden band or with the pole leaning too far."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import LARGEST_SEED, check_count, check_number
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.rules import Soft
from fedsgm.tasks.cmdp.policies import MLP, Categorical, Gaussian
from fedsgm.tasks.cmdp.schedules import HarmonicDecay
from fedsgm.tasks.cmdp.task import CMDP

# Gymnasium's constants.
_GRAVITY, _CART, _POLE, _HALF_LENGTH, _FORCE, _TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_TOTAL, _MOMENT = _CART + _POLE, _POLE * _HALF_LENGTH
EDGE, FALL = 2.4, 12 * 2 * math.pi / 360
BANDS = ((-2.4, -2.2), (-1.3, -1.1), (-0.1, 0.1), (1.1, 1.3), (2.2, 2.4))
_MOST_CLIENTS = 10**6
HORIZON = 200
SETTINGS = {"radius": 0.02, "schedule": HarmonicDecay(100), "damping": 0.01, "mix": "steps"}
INTEGRATORS = ("euler", "semi-implicit")


@dataclasses.dataclass(frozen=True)
class CartPole:
    """A pole on a cart, as Gymnasium has it; the reward is 1 a step, until the pole falls or the cart leaves the track.

    A step costs 1 if it ends with the cart in one of ``bands`` or the pole leaning more than ``angle`` degrees.

    Args:
        continuous: the action is a vector of one number, the force in [-1, 1] times ten newtons; otherwise 0 or 1,
            ten newtons to the left or to the right.
        integrator: "euler" or "semi-implicit".
    """

    continuous: bool = False
    bands: tuple[tuple[float, float], ...] = BANDS
    angle: float = 6.0
    integrator: str = "euler"

    def __post_init__(self) -> None:
        if self.integrator not in INTEGRATORS:
            raise SettingError(f"CartPole: integrator={self.integrator!r}, but it must be {' or '.join(INTEGRATORS)}")
        check_number("CartPole", "angle", self.angle, least=0)
        try:
            bands = tuple((float(low), float(high)) for low, high in self.bands)
        except (TypeError, ValueError):
            bands = ((1.0, 0.0),)
        if not all(low <= high for low, high in bands):
            raise SettingError(f"CartPole: bands={self.bands!r}, but each must be a pair, from and to, in metres")
        object.__setattr__(self, "bands", bands)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return state, state

    def step(
        self, key: jax.Array, state: jax.Array, action: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        state = self.move(state, action)
        done = (jnp.abs(state[..., 0]) > EDGE) | (jnp.abs(state[..., 2]) > FALL)
        return state, state, jnp.ones(()), done, {"cost": self.cost(state)}

    def move(self, state: jax.Array, action: jax.Array) -> jax.Array:
        """The state a fiftieth of a second later: position, speed, angle, angular speed."""
        push = jnp.clip(action[..., 0], -1, 1) if self.continuous else jnp.where(action == 1, 1.0, -1.0)
        x, speed, angle, turn = (state[..., i] for i in range(4))
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        drive = (_FORCE * push + _MOMENT * turn**2 * sin) / _TOTAL
        twist = (_GRAVITY * sin - cos * drive) / (_HALF_LENGTH * (4 / 3 - _POLE * cos**2 / _TOTAL))
        thrust = drive - _MOMENT * twist * cos / _TOTAL
        new_speed, new_turn = speed + _TAU * thrust, turn + _TAU * twist
        ahead = (speed, turn) if self.integrator == "euler" else (new_speed, new_turn)
        return jnp.stack([x + _TAU * ahead[0], new_speed, angle + _TAU * ahead[1], new_turn], -1)

    def cost(self, state: Any) -> jax.Array:
        """1 for a state that is forbidden, 0 for any other."""
        forbidden = jnp.abs(state[..., 2]) > math.radians(self.angle)
        for low, high in self.bands:
            forbidden |= (state[..., 0] >= low) & (state[..., 0] <= high)
        return forbidden.astype(jnp.result_type(state))


class Experiment(NamedTuple):
    """What ``simulate`` needs: ``simulate(algorithm, task, clients, params, rounds=500)``.

    ``params`` is a function of the seed, or parameters.
    """

    task: CMDP
    clients: np.ndarray
    params: Any
    algorithm: FedSGM


def load(
    *,
    clients: int = 10,
    budgets: tuple[float, float] = (25.0, 35.0),
    environment: CartPole | None = None,
    hidden: tuple[int, ...] = (128, 128),
    policy_seed: int | None = None,
    **settings: Any,
) -> Experiment:
    """The paper's experiment: ten clients with budgets from 25 to 35, a network of 17,410 parameters.

    Args:
        budgets: the clients' budgets are evenly spaced between these two; a single client has their mean.
        environment: the paper's bands and angle with two actions, unless another is given.
        hidden: sizes of the policy's hidden layers.
        policy_seed: of the policy that every run starts from; with None, each starts from that of its own seed.
        settings: of :class:`CMDP`, in place of those that are known to work here.
    """
    check_count("load", "clients", clients, most=_MOST_CLIENTS)
    if policy_seed is not None:
        check_count("load", "policy_seed", policy_seed, least=0, most=LARGEST_SEED)
    environment = environment or CartPole()
    low, high = budgets
    policy = MLP((4, *hidden, 2), Gaussian() if environment.continuous else Categorical())
    settings = {"horizon": HORIZON, "environments": 5, "steps": 200, "solver": "gram", **SETTINGS, **settings}
    settings = {"finished": settings["steps"] >= settings["horizon"], **settings}
    batch = settings["environments"] * settings["steps"]
    task = CMDP(
        environment,
        policy,
        np.linspace(low, high, clients) if clients > 1 else [(low + high) / 2],
        **{"fisher_samples": min(200, batch), **settings},
    )
    algorithm = FedSGM(step_size=1.0, participants=math.ceil(0.7 * clients), rule=Soft(beta=0.3))
    start = policy.init if policy_seed is None else policy.init(policy_seed)
    return Experiment(task, task.clients, start, algorithm)
