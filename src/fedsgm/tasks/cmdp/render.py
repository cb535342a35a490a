"""A moving picture of a policy on CartPole, with the forbidden bands drawn."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.tasks.cmdp.cartpole import EDGE, CartPole
from fedsgm.tasks.cmdp.environment import rollout
from fedsgm.tasks.cmdp.task import CMDP

_FRAMES_A_SECOND = 25  # of the environment's fifty steps
_LENGTH, _HEIGHT = 1.0, 0.15  # of the pole and of its foot, in metres


def render(task: CMDP, params: Any, path: str | Path, *, seed: int = 0) -> None:
    """Write one episode of the policy as a GIF; the cart and the pole are red while a step costs."""
    path = Path(path)
    if path.suffix != ".gif":
        raise SettingError(f"{path}: the name of a moving picture must end in .gif")
    environment = task.environment
    if not isinstance(environment, CartPole):
        raise SettingError("render: there is a picture of CartPole only")
    from matplotlib.animation import FuncAnimation, PillowWriter
    from matplotlib.figure import Figure

    states = _episode(task, params, seed)
    costs = np.asarray(environment.cost(states))
    figure = Figure(figsize=(6, 2.4), layout="constrained")
    axis = figure.subplots()
    axis.set(xlim=(-EDGE - 0.2, EDGE + 0.2), ylim=(-0.1, 1.4), aspect="equal", yticks=[], xlabel="position (m)")
    for low, high in environment.bands:
        axis.axvspan(low, high, color="red", alpha=0.15)
    axis.axhline(0, color="black", linewidth=0.8)
    (cart,) = axis.plot([], [], marker="s", markersize=14)
    (pole,) = axis.plot([], [], linewidth=3)

    def draw(i: int) -> tuple[Any, ...]:
        x, _, angle, _ = states[i]
        colour = "red" if costs[i] else "tab:blue"
        cart.set_data([x], [_HEIGHT / 2])
        pole.set_data([x, x + _LENGTH * np.sin(angle)], [_HEIGHT, _HEIGHT + _LENGTH * np.cos(angle)])
        for line in (cart, pole):
            line.set_color(colour)
        axis.set_title(f"step {i}: cost so far {costs[: i + 1].sum():.0f}", fontsize=10)
        return cart, pole

    animation = FuncAnimation(figure, draw, frames=range(0, len(states), 50 // _FRAMES_A_SECOND))
    with tempfile.TemporaryDirectory() as folder:
        animation.save(Path(folder) / path.name, writer=PillowWriter(fps=_FRAMES_A_SECOND))
        write_atomically(path, (Path(folder) / path.name).read_bytes())


def _episode(task: CMDP, params: Any, seed: int) -> np.ndarray:
    """The states of one episode, which are its observations."""

    @jax.jit
    def play(params: Any) -> Any:
        key = jax.random.key(seed)
        return rollout(
            task.environment, task.policy, params, key, environments=1, steps=task.horizon, horizon=task.horizon
        )[0]

    steps = play(params)
    over = np.flatnonzero(np.asarray(steps.times) == 0)[1:]
    return np.asarray(steps.observations)[: over[0] if len(over) else None]
