"""``fedsgm run cartpole``: every flag reaches the task, and its defaults are the paper's experiment."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import typer

import fedsgm as fs
from fedsgm.__main__ import app
from fedsgm.base.describe import describe
from fedsgm.base.layout import start_of
from fedsgm.tasks import cmdp
from fedsgm.tasks.cmdp import CartPole, Categorical, Gaussian
from support.commands import call, spellings
from support.flags import Case


class Begun(Exception):
    """Raised where the run would begin."""


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """``begin(flags)`` gives what the engine was called with; nothing is run."""
    given = {}

    def simulate(algorithm, problem, clients, params, **more):
        given.update(algorithm=algorithm, task=problem, clients=clients, params=params, **more)
        raise Begun

    monkeypatch.setattr(fs, "simulate", simulate)
    monkeypatch.chdir(tmp_path)

    def begin(*flags):
        with pytest.raises(Begun):
            call("run", "cartpole", *flags)
        return SimpleNamespace(**given)

    return begin


def sizes(run) -> list[int]:
    return [np.size(leaf) for leaf in jax.tree.leaves(start_of(run.params, 0))]


def same(left, right) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(left), jax.tree.leaves(right)))


CASES = [
    Case("--clients 4", lambda run: run.clients.tolist() == pytest.approx(np.linspace(25, 35, 4))),
    Case("--lowest-budget 10 --highest-budget 20", lambda run: (run.clients[0], run.clients[-1]) == (10, 20)),
    Case("--continuous", lambda run: run.task.environment.continuous and run.task.policy.distribution == Gaussian()),
    Case("--angle 3", lambda run: run.task.environment.angle == 3),
    Case("--integrator semi-implicit", lambda run: run.task.environment.integrator == "semi-implicit"),
    Case("--horizon 50", lambda run: run.task.horizon == 50),
    Case("--hidden 8", lambda run: sum(sizes(run)) == 4 * 8 + 8 + 8 * 2 + 2),
    Case("--environments 3 --steps 100", lambda run: (run.task.environments, run.task.steps) == (3, 100)),
    Case("--kl-radius 0.01", lambda run: run.task.radius == 0.01),
    Case("--no-decay", lambda run: run.task.schedule is None),
    Case("--decay", lambda run: run.task.schedule is not None),
    Case("--damping 0.5", lambda run: run.task.damping == 0.5),
    Case("--solver cg", lambda run: run.task.solver == "cg"),
    Case("--gae 0.97", lambda run: run.task.gae == 0.97),
    Case("--mix advantages", lambda run: run.task.mix == "advantages"),
    Case("--all-episodes", lambda run: run.task.finished is False),
    Case("--line-search", lambda run: run.task.line_search is True),
    Case("--split 3", lambda run: same(run.params, cmdp.load(policy_seed=3).params)),
    Case(
        "--rule hard --participants 3", lambda run: run.algorithm.rule == fs.Hard() and run.algorithm.participants == 3
    ),
    Case("--uplink topk:0.25", lambda run: run.algorithm.uplink == fs.TopK(0.25)),
    Case(
        "--centralized",
        lambda run: run.clients.tolist() == [30] and run.task.environments == 50,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flag(case, begin):
    assert case.check(begin(*case.flags.split()))


def test_split_gives_another_policy(begin):
    first, other = (begin("--split", seed).params for seed in (0, 1))
    assert not same(first, other)
    each = begin().params
    assert same(each(0), first)
    assert same(each(1), other)


def test_the_defaults_are_the_paper_s_experiment(begin):
    run = begin()
    assert (len(run.clients), run.rounds, sum(sizes(run))) == (10, 500, 17_410)
    assert run.task.environment == CartPole()
    assert run.task.policy.distribution == Categorical()
    assert run.algorithm == fs.FedSGM(1.0, participants=7, rule=fs.Soft(0.3))
    assert describe(run.task) == describe(cmdp.load().task)
    assert run.task.finished


def test_every_flag_of_its_own_has_a_test():
    commands = typer.main.get_command(app).commands["run"].commands
    own = spellings(commands["cartpole"]) - spellings(commands["neyman-pearson"])
    named = {word for case in CASES for word in case.flags.split() if word.startswith("--")}
    assert own <= named | {"--render"}  # test_render
    of_sweep = spellings(typer.main.get_command(app).commands["sweep"].commands["cartpole"])
    assert own - of_sweep == {"--render"}


WRONG = {
    "--solver newton": "'newton'",
    "--integrator rk4": "'rk4'",
    "--mix costs": "'costs'",
    "--gae 1.5": "gae=1.5",
    "--hidden a": "--hidden a",
    "--clients 0": "clients=0",
    "--participants 11": "10 clients",
    "--kl-radius 0": "radius=0",
    "--render film.mp4": ".gif",
    "--rule ipp-conex": "ipp-conex",
}


@pytest.mark.parametrize("flags", WRONG)
def test_wrong_values_get_one_sentence(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = call("run", "cartpole", *flags.split())
    assert called.code == 2
    assert called.err.startswith("error: ")
    assert called.err.count("\n") == 1
    assert WRONG[flags] in called.err


def test_render(tmp_path, monkeypatch):
    """An episode of the first seed's answer; ``tests/test_cmdp.py`` looks at the picture itself."""
    drawn = []
    monkeypatch.setattr(cmdp, "render", lambda task, params, path: drawn.append((task, params, path)))

    def simulate(*given, **_):
        answer = jax.tree.map(lambda a: np.stack([a, a + 1]), given[3](0))
        return SimpleNamespace(
            answer=answer, verdict=lambda: "", files=lambda: {"result.json": b""}, plot=lambda _: None
        )

    monkeypatch.setattr(fs, "simulate", simulate)
    called = call("run", "cartpole", "--out", tmp_path / "run", "--render", tmp_path / "a.gif")
    assert called.code == 0, called.err
    ((task, params, path),) = drawn
    assert path == tmp_path / "a.gif"
    assert task.horizon == 200
    assert same(params, cmdp.load().params(0))
    assert "render" not in (tmp_path / "run" / "settings.toml").read_text()
