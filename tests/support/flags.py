"""What every flag of a run does: a table that the tests of ``run`` and of ``sweep`` go through."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from fedsgm.data.breast_cancer import breast_cancer
from support.commands import Run, same_bits
from support.conex import constraint_extrapolation

D = 31  # parameters of the task: one bias, thirty weights


@dataclasses.dataclass(frozen=True)
class Case:
    """Flags, and what must then hold of the run (in the table below: and of the run without them)."""

    flags: str
    check: Callable[..., object]

    def __str__(self) -> str:
        return self.flags


def differs(run: Run, base: Run, name: str = "objective") -> bool:
    return not np.array_equal(run.history[name], base.history[name])


def weight_is(run: Run, expected: Callable[[np.ndarray], np.ndarray]) -> bool:
    """The weights follow from the violations, and both signs of the violation were met."""
    violation, weight = run.history["violation"][0], run.history["weight"][0]
    np.testing.assert_allclose(weight, expected(violation.astype(np.float64)), rtol=1e-5, atol=1e-6)
    return (violation > 0).any() and (violation <= 0).any()


def multipliers(violation: np.ndarray, step: float) -> np.ndarray:
    values = [0.0]
    for v in violation:
        values.append(max(0.0, values[-1] + step * v))
    return np.array(values[1:])


def measured(run: Run) -> list[bool]:
    names = ("objective", "minority")
    patterns = [(~np.isnan(run.history[name][0])).tolist() for name in names]
    assert patterns[0] == patterns[1]
    assert not np.isnan(run.history["violation"]).any()
    return patterns[0]


def losses(w: np.ndarray) -> tuple[float, np.ndarray, float, np.ndarray]:
    """The majority's and the minority's loss over all training data and their gradients, by hand in float64."""
    train, _ = breast_cancer(split=0)
    found = []
    for label in (0, 1):
        rows = train["x"][train["y"] == label].astype(np.float64)
        rows = np.concatenate([np.ones((len(rows), 1)), rows], axis=1)  # the bias comes first in the parameters
        sign = 1 - 2 * label
        found += [
            np.logaddexp(0, sign * rows @ w).mean(),
            sign / (1 + np.exp(-sign * rows @ w)) @ rows / len(rows),
        ]
    return tuple(found)


def switching_by_hand(*, step_size: float, bound: float) -> list[np.ndarray]:
    """Twenty-five steps of the centralised switching gradient, each fifth."""
    w, path = np.zeros(D), []
    for _ in range(25):
        _, of_f, g, of_g = losses(w)
        w = w - step_size * (of_g if g > bound else of_f)
        path.append(w)
    return path[4::5]


def ipp_conex_by_hand(*, proximal, primal, dual, offset, inner, bound) -> list[np.ndarray]:
    """Twenty-five inner steps, each fifth: a / 2 is the primal scale and 32 M^2 / a the dual."""
    path = constraint_extrapolation(
        lambda w: losses(w)[1],
        lambda w: losses(w)[2] - bound,
        lambda w: losses(w)[3],
        lambda w: w,
        np.zeros(D),
        r=proximal,
        a=2 * primal,
        M=np.sqrt(dual * 2 * primal / 32),
        t0=offset,
        steps=25,
        inner=inner,
    )
    return [w for w, _ in path][4::5]


def falling_by_hand(step_size: float, left: float, rounds: int) -> list[np.ndarray]:
    """Plain gradient steps on the majority's loss, each of a size that falls along a cosine; all w from the first."""
    w = np.zeros(D)
    path = []
    for t in range(rounds):
        share = left + (1 - left) * (1 + np.cos(np.pi * t / rounds)) / 2
        w = w - step_size * share * losses(w)[1]
        path.append(w)
    return path


def follows(run: Run, path: list[np.ndarray]) -> bool:
    """The run's measured values are those of this path."""
    for i, name in ((0, "objective"), (2, "minority")):
        values = run.history[name][0]
        np.testing.assert_allclose(values[~np.isnan(values)], [losses(w)[i] for w in path], rtol=1e-3)
    np.testing.assert_allclose(run.vector, path[-1], rtol=1e-3, atol=1e-4)
    return True


CASES = [
    Case(
        "--rule hard --bound 0.3",
        lambda run, _: run.algorithm["rule"] == {"is": "Hard", "margin": 0} and weight_is(run, lambda v: v > 0),
    ),
    Case(
        "--rule soft --beta 5 --bound 0.3",
        lambda run, _: (
            run.algorithm["rule"] == {"is": "Soft", "beta": 5, "ceiling": 1, "margin": 0}
            and weight_is(run, lambda v: np.clip(1 + 5 * v, 0, 1))
        ),
    ),
    Case(
        "--rule soft --ceiling 0.5 --bound 0.3",
        lambda run, _: weight_is(run, lambda v: np.clip(1 + 40 * v, 0, 0.5)) and run.history["weight"].max() == 0.5,
    ),
    Case(
        "--rule penalty --rho 2.5 --bound 0.3",
        lambda run, _: (
            run.algorithm["rule"] == {"is": "Penalty", "rho": 2.5} and weight_is(run, lambda v: 2.5 * (v > 0))
        ),
    ),
    Case(
        "--rule adaptive --adapt 4 --bound 0.55",
        lambda run, _: (
            run.algorithm["rule"] == {"is": "Adaptive", "step": 4, "margin": 0}
            and weight_is(run, lambda v: multipliers(v, 4) / (1 + multipliers(v, 4)))
        ),
    ),
    Case(
        "--rule primal-dual --dual-step 4 --bound 0.55",
        lambda run, _: (
            run.algorithm["rule"] == {"is": "PrimalDual", "step": 4, "augment": 0}
            and weight_is(run, lambda v: multipliers(v, 4))
            and np.array_equal(run.history["multiplier"], run.history["weight"])
        ),
    ),
    Case(
        "--rule primal-dual --dual-step 4 --augment 3 --bound 0.55",
        lambda run, _: (
            run.algorithm["rule"] == {"is": "PrimalDual", "step": 4, "augment": 3}
            and weight_is(run, lambda v: np.maximum(0, multipliers(v, 4) + 3 * v))
            and np.allclose(run.history["multiplier"][0], multipliers(run.history["violation"][0], 4), atol=1e-6)
        ),
    ),
    Case(
        "--rule ipp-conex --proximal 0.5 --primal-scale 3 --dual-scale 0.5 --offset 2 --inner-steps 7 --bound 0.3",
        lambda run, _: (
            run.algorithm["is"] == "IPPConEx"
            and (run.settings["clients"], run.settings["rounds"], run.algorithm["local_steps"]) == (1, 5, 5)
            and follows(run, ipp_conex_by_hand(proximal=0.5, primal=3, dual=0.5, offset=2, inner=7, bound=0.3))
            and run.history["multiplier"].any()
        ),
    ),
    Case(
        "--centralized --rule hard --bound 0.3 --uplink none --downlink none",
        lambda run, _: (
            (run.settings["clients"], run.settings["rounds"], run.algorithm["local_steps"]) == (1, 25, 1)
            and (run.algorithm["participants"], run.settings["evaluate_every"]) == (None, 5)
            and follows(run, switching_by_hand(step_size=0.3, bound=0.3))
            and weight_is(run, lambda v: v > 0)
            and run.toml["centralized"] is True
        ),
    ),
    Case(
        "--rule unconstrained",
        lambda run, _: run.algorithm["rule"] == {"is": "Unconstrained"} and not run.history["weight"].any(),
    ),
    Case(
        "--step-size 0.125",
        lambda run, base: (
            run.algorithm["step_size"] == 0.125 and base.algorithm["step_size"] == 0.3 and differs(run, base)
        ),
    ),
    Case(
        "--anneal 0.25 --centralized --rounds 4 --local-steps 1 --rule unconstrained --uplink none --downlink none",
        lambda run, _: follows(run, falling_by_hand(step_size=0.3, left=0.25, rounds=4)),
    ),
    Case(
        "--local-steps 2",
        lambda run, base: (
            run.algorithm["local_steps"] == 2 and base.algorithm["local_steps"] == 5 and differs(run, base)
        ),
    ),
    Case(
        "--query all",
        lambda run, base: (
            run.algorithm["query"] == "all"
            and (run.history["heard"] == 4).all()
            and np.allclose(run.history["estimate"][0, 1:], run.history["minority"][0, :-1], rtol=1e-5)
            and base.algorithm["query"] == "participants"
            and "heard" not in base.history
        ),
    ),
    Case(
        "--query memory --unheard asked",
        lambda run, _: run.algorithm["unheard"] == "asked" and (run.history["heard"] == 4).all(),
    ),
    Case(
        "--query memory --unheard left-out",
        lambda run, _: run.algorithm["unheard"] == "left out" and run.history["heard"][0, 0] == 2,
    ),
    Case(
        "--rule hard --bound 0.3 --margin 0.1",
        lambda run, _: run.algorithm["rule"] == {"is": "Hard", "margin": 0.1} and weight_is(run, lambda v: v + 0.1 > 0),
    ),
    Case(
        "--rule soft --margin se:1.645",
        lambda run, _: run.algorithm["rule"]["margin"] == {"is": "StandardErrors", "count": 1.645},
    ),
    Case(
        "--no-memory",
        lambda run, base: run.algorithm["memory"] is False and run.toml["memory"] is False and differs(run, base),
    ),
    Case("--memory", lambda run, base: run.algorithm["memory"] is True and same_bits(run.folder, base.folder)),
    Case(
        "--participants 0 --clients 7",
        lambda run, base: (
            run.algorithm["participants"] is None
            and (run.settings["clients"], base.settings["clients"]) == (7, 4)
            and (run.history["participants"] == np.arange(7)).all()
            and base.history["participants"].shape == (1, 5, 2)
        ),
    ),
    Case(
        "--tolerance 0.25",
        lambda run, base: (
            run.algorithm["tolerance"] == 0.25
            and np.allclose(run.history["violation"], run.history["estimate"] - 0.05 - 0.25, atol=1e-6)
            and np.allclose(base.history["violation"], base.history["estimate"] - 0.05, atol=1e-6)
        ),
    ),
    Case(
        "--radius 0.2 --downlink none",
        lambda run, base: (
            np.linalg.norm(run.vector) <= 0.2 * (1 + 1e-5)
            and np.linalg.norm(base.vector) > 0.3
            and run.toml["radius"] == 0.2
        ),
    ),
    Case(
        "--box 0.05 --downlink none",
        lambda run, base: (
            np.abs(run.vector).max() == pytest.approx(0.05)
            and np.abs(base.vector).max() > 0.1
            and run.toml["box"] == 0.05
        ),
    ),
    Case(
        "--batch-size 8 --constraint-batch-size 6",
        lambda run, base: (
            run.algorithm["batch_size"] == 8
            and run.algorithm["constraint_batch_size"] == 6
            and run.history["estimate"][0, 0] != pytest.approx(np.log(2))  # of all examples it is, at zero
            and base.history["estimate"][0, 0] == pytest.approx(np.log(2))
            and differs(run, base)
        ),
    ),
    Case(
        "--batch-size 0 --constraint-batch-size 0",
        lambda run, base: (
            run.algorithm["batch_size"] is None
            and run.algorithm["constraint_batch_size"] is None
            and same_bits(run.folder, base.folder)
        ),
    ),
    Case(
        "--bound 0.45",
        lambda run, _: (
            run.result.bounds == {"minority": 0.45}
            and np.allclose(run.history["violation"], run.history["estimate"] - 0.45, atol=1e-6)
        ),
    ),
    Case(
        "--split 1",
        lambda run, base: (
            run.toml["split"] == 1
            and differs(run, base)
            and not np.array_equal(run.result.values["test"]["objective"], base.result.values["test"]["objective"])
        ),
    ),
    Case(
        "--rounds 3",
        lambda run, base: (
            run.settings["rounds"] == 3
            and all(np.array_equal(a, base.history[name][:, :3]) for name, a in run.history.items())
        ),
    ),
    Case(
        "--seeds 3",
        lambda run, base: (
            run.settings["seeds"] == [0, 1, 2]
            and run.history["objective"].shape == (3, 5)
            and run.result.last["w"].shape == (3, 30)
            and np.array_equal(run.history["objective"][:1], base.history["objective"])
            and not np.array_equal(run.history["objective"][0], run.history["objective"][1])
        ),
    ),
    Case(
        "--seed 11",
        lambda run, base: run.settings["seeds"] == [11] and differs(run, base, "participants") and differs(run, base),
    ),
    Case(
        "--evaluate-every 1",
        lambda run, base: (
            all(measured(run))
            and run.settings == base.settings
            and all(np.array_equal(column, base.history[name]) for name, column in run.history.items())
            and (run.toml["evaluate-every"], base.toml.get("evaluate-every")) == (1, None)  # few examples: every round
        ),
    ),
    Case(
        "--evaluate-every 2",
        lambda run, base: (
            measured(run) == [False, True, False, True, True]
            and np.allclose(run.history["minority"][0, [1, 3, 4]], base.history["minority"][0, [1, 3, 4]], rtol=1e-5)
        ),
    ),
    Case(
        "--evaluate-every 0",
        lambda run, base: (
            measured(run) == [False, False, False, False, True]
            and np.allclose(run.vector, base.vector, rtol=1e-4, atol=1e-6)
        ),
    ),
    Case("--seeds 1 --seed 0", lambda run, base: same_bits(run.folder, base.folder)),
]


ELSEWHERE = {
    "--uplink": "test_building.test_uplink_and_downlink",
    "--downlink": "test_building.test_uplink_and_downlink",
    "--checkpoint": "test_run.test_checkpoint_and_resume",
    "--checkpoint-every": "test_run.test_checkpoint_every",
    "--resume": "test_run.test_checkpoint_and_resume",
    "--debug": "test_run.test_debug_names_the_client",
    "--out": "test_run.test_out",
    "--progress": "test_run.test_progress",
    "--no-progress": "test_run.test_progress",
    "--watch": "test_listening.test_watch_serves_the_page_while_the_run_goes_on",
    "--log": "test_listening.test_log_has_every_round_and_changes_nothing_else",
    "--track": "test_listening.test_track",
    "--require-feasible": "test_run.test_require_feasible",
    "--coordinator": "test_hosts.test_a_killed_process_stops_the_run_which_goes_on_with_one",
    "--processes": "test_hosts.test_a_killed_process_stops_the_run_which_goes_on_with_one",
    "--process": "test_hosts.test_a_killed_process_stops_the_run_which_goes_on_with_one",
    "--config": "test_config.test_config_gives_the_defaults_and_flags_win",
}
