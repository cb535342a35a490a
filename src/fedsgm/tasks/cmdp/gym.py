"""CartPole with costs for Gymnasium: importing this module registers it as ``fedsgm/SafeCartPole-v0``.

The environment that FedSGM learns in, for any other agent; ``info["cost"]`` is a step's cost.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.tasks.cmdp.cartpole import EDGE, FALL, HORIZON, CartPole

try:
    import gymnasium
except ImportError as error:
    raise SettingError("this environment needs Gymnasium; install it with pip install 'fedsgm[cmdp]'") from error

ID = "fedsgm/SafeCartPole-v0"


class SafeCartPole(gymnasium.Env[np.ndarray, Any]):
    """:class:`CartPole` behind Gymnasium's interface; the settings are CartPole's."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own annotation)

    def __init__(self, render_mode: None = None, **settings: Any) -> None:
        self._environment = CartPole(**settings)
        self._step = jax.jit(lambda state, action: self._environment.step(jax.random.key(0), state, action)[1:])
        self._state = np.zeros(4, np.float32)
        self.render_mode = render_mode
        most = np.finfo(np.float32).max
        high = np.array([2 * EDGE, most, 2 * FALL, most], np.float32)
        self.observation_space = gymnasium.spaces.Box(-high, high, dtype=np.float32)
        self.action_space = (
            gymnasium.spaces.Box(-1, 1, (1,), np.float32)
            if self._environment.continuous
            else gymnasium.spaces.Discrete(2)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        self._state = self.np_random.uniform(-0.05, 0.05, 4).astype(np.float32)
        return self._state.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        state, reward, done, info = self._step(self._state, np.asarray(action))
        self._state = np.array(state)
        return self._state.copy(), float(reward), bool(done), False, {"cost": float(info["cost"])}


gymnasium.register(ID, entry_point=SafeCartPole, max_episode_steps=HORIZON)
