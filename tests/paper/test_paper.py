"""The paper's studies: what is chosen, what is claimed, what is kept, and that a killed command goes on."""

import dataclasses
import importlib
import json
import pkgutil
import re
import signal
import time

import numpy as np
import pytest
import scipy.stats

import fedsgm as fs
from fedsgm import paper
from fedsgm.__main__ import main
from fedsgm.base.describe import describe
from fedsgm.paper import cartpole, fair_adult, np_beta, np_penalty, page
from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.lines import GRID, Data, Line, compared
from fedsgm.paper.studies import STUDIES
from fedsgm.paper.study import Run, Scale, collect
from fedsgm.results.result import KINDS
from support import processes

NAMES = [
    "np-progress",
    "np-local-steps",
    "np-participation",
    "np-compression",
    "np-beta",
    "np-penalty",
    "fair-adult",
    "cartpole-main",
    "cartpole-participation",
    "cartpole-compression",
]


def made_up(run, rng, *, objective=None, constraint=None):
    """A result of the run's form; every seed's objective and constraint constant over the rounds unless drawn."""
    on_cartpole = run.name.startswith("cartpole")
    name, bound = ("cost", 30.0) if on_cartpole else ("gap" if "adult" in run.name else "minority", 0.05)
    shape = (run.seeds, run.rounds)

    def drawn(given, scale):
        values = rng.uniform(0.5, 1.5, shape) * scale if given is None else np.full(shape, given)
        values = values.astype(np.float32)
        measured = np.arange(1, run.rounds + 1) % run.evaluate_every == 0
        return np.where(measured, values, np.nan).astype(np.float32)

    history = {"objective": drawn(objective, 0.1), name: drawn(constraint, bound)}
    history["violation"] = history[name] - np.float32(bound)
    if on_cartpole:
        history["reward"] = drawn(None, 150.0)
        history["estimate"] = rng.uniform(20, 80, shape).astype(np.float32)
        history["kl"] = rng.uniform(0, 0.03, shape).astype(np.float32)
    ends = {
        key: np.repeat(values[None, :, -1], len(KINDS), axis=0)
        for key, values in history.items()
        if key not in ("violation", "estimate", "kl")
    }
    return fs.Result(
        history=history,
        **{kind: {} for kind in KINDS},
        answer_round=np.full(run.seeds, run.rounds),
        values={"train": ends, "test": ends},
        ranges={name: (-np.inf, bound)},
        settings={
            "algorithm": describe(run.algorithm),
            "problem": {"radius": 0.01, "schedule": {"over": 100.0, "least": 0.5}},
            "rounds": run.rounds,
            "seeds": list(range(run.seed, run.seed + run.seeds)),
            "evaluate_every": run.evaluate_every,
            "clients": 10,
        },
    )


def test_every_module_with_a_study_is_in_the_list():
    modules = (
        importlib.import_module(f"{paper.__name__}.{module.name}") for module in pkgutil.iter_modules(paper.__path__)
    )
    assert {module.STUDY.name for module in modules if hasattr(module, "STUDY")} == {*NAMES}


def test_the_list_has_every_figure_and_the_table(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedsgm", "reproduce", "--list"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES == list(STUDIES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "reproduce: give one or more of np-progress, "),
        (["np-progres"], "reproduce np-progres: give one or more of np-progress, "),
        (["np-beta", "--page", "results.txt"], "--page results.txt: the name of a page must end in .md"),
        (["np-beta", "--out", "taken"], "--out taken: taken is a file, but a folder is needed there"),
        (["fair-adult", "--quick", "--adult", "nowhere"], "nowhere"),
    ],
)
def test_wrong_commands(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    monkeypatch.setattr("sys.argv", ["fedsgm", "reproduce", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


class TestRuns:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("quick", [False, True])
    def test_names_and_folders_tell_runs_apart(self, name, quick):
        runs = STUDIES[name].runs(Scale(quick))
        assert len({run.name for run in runs}) == len({run.folder for run in runs}) == len(runs)
        seeds = {"np": 3, "fa": 5, "ca": 5}[name[:2]]  # the paper's
        assert quick or min(run.seeds for run in runs) >= seeds

    def test_quick_runs_are_kept_apart_from_full_ones(self):
        for study in STUDIES.values():
            full, quick = ({run.folder for run in study.runs(Scale(q))} for q in (False, True))
            assert not full & quick

    def test_every_setting_changes_the_folder(self):
        run = np_task.runs(np_beta.LINES, Scale())[0]
        others = [
            dataclasses.replace(run, algorithm=dataclasses.replace(run.algorithm, step_size=0.5)),
            dataclasses.replace(run, data="other"),
            dataclasses.replace(run, rounds=3),
            dataclasses.replace(run, seeds=7),
            dataclasses.replace(run, seed=7),
            dataclasses.replace(run, evaluate_every=7),
        ]
        assert len({one.folder for one in (run, *others)}) == 7

    def test_settings_are_the_papers(self):
        runs = {run.name: run for run in np_task.runs([*np_beta.LINES, *np_penalty.LINES], Scale())}
        chosen = runs["neyman-pearson, beta 40, step 0.1, split 2"]
        top = fs.TopK(0.1)
        assert chosen.algorithm == fs.FedSGM(0.1, 5, 10, fs.Soft(40.0), uplink=top, downlink=top)
        assert (chosen.rounds, chosen.seeds) == (500, 3)
        rhos = {run.algorithm.rule.rho for run in runs.values() if isinstance(run.algorithm.rule, fs.Penalty)}
        assert rhos == {0.001, 0.5, 2.0, 20.0, 100.0}
        assert (GRID[0], GRID[-1]) == (1.0, 1e-4)
        adult = {run.name: run for run in fair_adult.runs(Scale())}
        federated = adult["fair-adult, FedSGM, soft, step 0.1, split 0"]
        assert federated.algorithm == fs.FedSGM(0.1, 2, 5, fs.Soft(40.0), batch_size=64)
        alone = adult["fair-adult, centralised, soft, step 0.1, split 0"]
        assert (alone.rounds, alone.evaluate_every) == (2 * 500, 2 * federated.evaluate_every)

    def test_a_margin_lowers_the_bound_that_the_method_has(self):
        line = np_task.line("hard", fs.Hard(), margin=0.02)
        problem, clients, _, _ = line.runs(np_task.data(Scale()), Scale())[0].load()
        assert problem.bounds == {"minority": pytest.approx(0.03)}
        assert len(clients) == 20
        alone = np_task.centralised("hard", fs.Hard()).runs(np_task.data(Scale()), Scale())[0]
        assert len(alone.load()[1]) == 1


class TestTuning:
    data = Data("toy", lambda *_: None, splits=2, seeds=3, rounds=500, local_steps=5)

    def results(self, line, levels):
        """``levels``: objective and constraint at every step size."""
        rng = np.random.default_rng(0)
        runs = line.runs(self.data, Scale())
        assert [run.algorithm.step_size for run in runs[:: self.data.splits]] == list(levels)
        by_step = {run.name: levels[run.algorithm.step_size] for run in runs}
        return {
            run.name: made_up(run, rng, objective=by_step[run.name][0], constraint=by_step[run.name][1]) for run in runs
        }

    def line(self, *steps, margin=0.0):
        return Line("toy", lambda step: fs.FedSGM(step), steps=steps, margin=margin)

    def test_feasible_first_then_the_lowest_objective(self):
        line = self.line(1.0, 0.3, 0.1, 0.01)
        levels = {1.0: (0.01, 0.06), 0.3: (0.05, 0.04), 0.1: (0.03, 0.05), 0.01: (0.2, 0.01)}
        tuned = line.tuned(self.data, self.results(line, levels), Scale())
        assert tuned.step == 0.1
        assert tuned.kept.tolist() == [True] * 6
        np.testing.assert_allclose(tuned.settled, 0.03, rtol=1e-5)

    def test_a_run_that_diverged_is_not_chosen(self):
        line = self.line(1.0, 0.1)
        levels = {1.0: (np.nan, np.nan), 0.1: (0.3, 0.9)}
        assert line.tuned(self.data, self.results(line, levels), Scale()).step == 0.1

    def test_the_real_bound_judges_a_method_with_a_margin(self):
        line = self.line(1.0, margin=0.02)
        tuned = line.tuned(self.data, self.results(line, {1.0: (0.1, 0.06)}), Scale())
        assert tuned.bound == pytest.approx(0.07)
        assert tuned.kept.all()

    def test_most_of_the_last_hundred_rounds(self):
        line = self.line(1.0)
        results = self.results(line, {1.0: (0.1, 0.0)})
        for result, over in zip(results.values(), (49, 50), strict=True):
            result.history["minority"][:, : 400 + over] = 1.0
        assert line.tuned(self.data, results, Scale()).kept.tolist() == [True] * 3 + [False] * 3


def test_a_comparison_is_a_paired_test():
    rng = np.random.default_rng(1)
    outcomes = set()
    for shift in np.linspace(-1, 1, 41):
        a, b = rng.normal(size=(2, 12))
        b = b + shift
        claim = compared("says", "what", ("a", a), ("b", b))
        assert claim.holds == (scipy.stats.ttest_rel(b, a).statistic > 2)
        outcomes.add(claim.holds)
    assert outcomes == {True, False}
    assert not compared("says", "what", ("a", np.zeros(1)), ("b", np.ones(1))).holds  # one run proves nothing


@pytest.mark.parametrize(
    ("name", "quick"),
    [
        *((name, True) for name in NAMES),
        *((name, False) for name in ("np-beta", "cartpole-main", "cartpole-compression")),
    ],
)
def test_every_study_says_what_it_found(name, quick, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    study, scale = STUDIES[name], Scale(quick)
    monkeypatch.setattr(page, "collect", lambda _name, runs, _out, **_: {r.name: made_up(r, rng) for r in runs})
    monkeypatch.setattr(page, "seconds", lambda _runs, _out: 90.0)
    page.reproduce([study], scale, out=tmp_path, page=tmp_path / "results.md", progress=False)
    text = (tmp_path / "results.md").read_text()
    assert ("quick look" in text) == quick
    assert study.paper in text
    assert "1.5 minutes" in text
    claims = re.findall(r"^\| .* \| .* \| (true|\*\*false\*\*) \|$", text, re.M)
    assert claims
    assert f"{claims.count('true')} of {len(claims)} claims hold" in text
    drawn = (tmp_path / "results" / f"{name}.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "results" / f"{name}.svg").read_text()
    title = study.findings({r.name: made_up(r, rng) for r in study.runs(scale)}, scale).picture.get_suptitle()
    assert title.startswith("QUICK LOOK") == quick
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    every_seed = text.partition("Every seed")[2]
    assert len(re.findall(r"^\| (?:split|seed) \d", every_seed, re.M)) >= (1 if quick else 5)


def claims_of(name, decide):
    """A study's claims when every run's objective and constraint are as ``decide(run)`` says, with a little noise."""
    rng = np.random.default_rng(0)
    runs = STUDIES[name].runs(Scale())
    results = {}
    for run in runs:
        objective, constraint = decide(run)
        result = made_up(run, rng, objective=objective, constraint=constraint)
        for key in ("objective", next(iter(result.bounds))):
            result.history[key] *= rng.uniform(0.999, 1.001, result.history[key].shape).astype(np.float32)
        results[run.name] = result
    return {claim.says: claim.holds for claim in STUDIES[name].findings(results, Scale()).claims}


class TestClaims:
    def test_beta(self):
        def as_the_paper_says(run):
            beta = getattr(run.algorithm.rule, "beta", np.inf)
            return 0.1, 0.05 - 0.5 / beta

        def otherwise(run):
            return 0.1, 0.02 if np.isfinite(getattr(run.algorithm.rule, "beta", np.inf)) else 0.05

        says = ("Beta 20 is more conservative than 40", "High beta nears the hard rule")
        assert [claims_of("np-beta", as_the_paper_says)[claim] for claim in says] == [True, True]
        assert [claims_of("np-beta", otherwise)[claim] for claim in says] == [False, False]

    def test_penalty(self):
        def as_the_paper_says(run):
            rho = getattr(run.algorithm.rule, "rho", None)
            if rho is None:
                return 0.05, 0.04
            return (0.01, 0.2) if rho <= 0.5 else (0.06 * rho, 0.04)

        assert set(claims_of("np-penalty", as_the_paper_says).values()) == {True}
        held = claims_of("np-penalty", lambda run: (0.05 if hasattr(run.algorithm.rule, "rho") else 0.06, 0.04))
        assert set(held.values()) == {False}

    def test_local_steps(self):
        def found(decide):
            held = claims_of("np-local-steps", decide)
            return [{held[says] for says in held if says.startswith(start)} for start in ("More", "Each")]

        assert found(lambda run: (1 / run.algorithm.local_steps, 0.04)) == [{True}, {True}]
        assert found(lambda run: (10 - np.sqrt(run.algorithm.local_steps), 0.04)) == [{True}, {True}]
        assert found(lambda run: (100 - run.algorithm.local_steps**2, 0.04)) == [{True}, {False}]
        assert found(lambda run: (run.algorithm.local_steps, 0.04))[0] == {False}

    def test_local_steps_are_compared_at_the_same_step_size_too(self):
        held = claims_of("np-local-steps", lambda run: (run.algorithm.step_size * run.algorithm.local_steps, 0.04))
        assert not held["More local steps help (soft, step size 0.0001)"]
        tuned = claims_of(
            "np-local-steps", lambda run: (abs(run.algorithm.step_size * run.algorithm.local_steps - 1.5) + 0.1, 0.04)
        )
        assert any("each step size tuned" in says for says in tuned)

    def test_progress_counts_splits(self):
        def only_soft(run):
            return 0.1, 0.04 if isinstance(run.algorithm.rule, fs.Soft) else 0.06

        held = claims_of("np-progress", only_soft)
        assert held["The soft, beta 40 rule ends within the bound"]
        assert not held["The hard rule ends within the bound"]

    @pytest.mark.parametrize(
        ("reward", "cost", "good"), [(199.5, 29.0, True), (199.5, 31.0, False), (189.0, 29.0, False)]
    )
    def test_the_table(self, reward, cost, good):
        rng = np.random.default_rng(0)
        results = {run.name: made_up(run, rng) for run in STUDIES["cartpole-compression"].runs(Scale())}
        for result in results.values():
            result.history["reward"][:] = reward
            result.history["cost"][:] = cost
        findings = STUDIES["cartpole-compression"].findings(results, Scale())
        held = {claim.says: claim.holds for claim in findings.claims}
        assert len(held) == 14  # seven rows, with and without the ceiling
        for row, wanted in (("no compression", 190), ("float8", 199.1), ("K/d = 0.25", 25.5)):
            (holds,) = (held[says] for says in held if says.startswith(f"{row}, soft: "))
            assert holds == (cost <= 30 and reward >= wanted)
        cells = {row[0]: row for row in findings.tables[0].rows}
        assert cells["float8"][2] == "199.1 / 26.5"
        assert cells["float8"][1] == "91.4 / 31.4*"
        assert cells["float8"][5] == ("5 of 5" if good else "0 of 5")
        assert cells["no compression"][5] == ("20 of 20" if good else "0 of 20")


def toy_runs():
    """Six short runs and a long one on a problem of two parameters."""
    examples = {"x": np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)}

    def load():
        problem = fs.Problem(
            objective=lambda p, ex: ((p["w"] - ex["x"] - 1) ** 2).sum(),
            constraints=[fs.Mean(lambda p, ex: (p["w"] * ex["x"] ** 2).sum(), name="level") <= 0.5],
        )
        return problem, fs.split(examples, clients=4), {"w": np.zeros(2, np.float32)}, examples

    def run(i, **more):
        return Run(f"toy {i}", fs.FedSGM(0.01 * (i + 1), participants=2), load, "toy", seeds=2, **more)

    return [*(run(i, rounds=30) for i in range(6)), run(6, rounds=4000, long=True)]


class TestKept:
    def test_a_run_that_is_there_is_not_run_again(self, tmp_path, monkeypatch):
        runs = toy_runs()[:2]
        first = collect("toy", runs, tmp_path, progress=False)
        monkeypatch.setattr("fedsgm.paper.study.simulate", None)
        again = collect("toy", runs, tmp_path, progress=False)
        for name in first:
            np.testing.assert_array_equal(first[name].history["objective"], again[name].history["objective"])

    def test_a_damaged_run_is_named(self, tmp_path):
        run = toy_runs()[0]
        collect("toy", [run], tmp_path, progress=False)
        (tmp_path / run.folder / "history.parquet").write_bytes(b"")
        with pytest.raises(fs.SettingError, match=r"history.parquet is missing or altered.*remove the folder to run"):
            collect("toy", [run], tmp_path, progress=False)

    def test_a_kept_run_is_the_run(self, tmp_path):
        run = toy_runs()[0]
        kept = collect("toy", [run], tmp_path, progress=False)[run.name]
        problem, clients, params, test = run.load()
        direct = fs.simulate(run.algorithm, problem, clients, params, rounds=30, seeds=2, test=test, progress=False)
        np.testing.assert_array_equal(kept.history["level"], direct.history["level"])
        np.testing.assert_array_equal(fs.Result.load(tmp_path / run.folder).last["w"], direct.last["w"])

    def test_killed_it_goes_on_and_ends_with_the_same_files(self, tmp_path):
        def start(out):
            return processes.start(toy_page, out, log=tmp_path / "log")

        def to_the_end(out):
            process = start(out)
            process.join(300)
            assert process.exitcode == 0, (tmp_path / "log").read_text()

        to_the_end(tmp_path / "whole")
        out = tmp_path / "killed"
        moments = [
            lambda: len(list(out.glob("runs/*/seconds.json"))) >= 2,  # between two runs
            lambda: any(out.glob("runs/*/checkpoint/*.ckpt")),  # in the middle of one
            lambda: any(out.glob("results/*.png")),  # before the page is there
        ]
        for reached in moments:
            process = start(out)
            while process.is_alive() and not reached():
                time.sleep(0.002)
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL, "it ended before it could be killed"
            assert not (out / "results.md").exists()
        to_the_end(out)
        whole, killed = (files(tmp_path / name) for name in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert sum(name.endswith("history.parquet") for name in whole) == 7
        for name, data in whole.items():
            assert data == killed[name], name


def toy_page(out):
    """A whole study of the toy runs: its page and pictures."""
    study = dataclasses.replace(
        STUDIES["np-beta"],
        runs=lambda _scale: toy_runs(),
        findings=lambda results, _scale: dataclasses.replace(
            STUDIES["np-beta"].findings(
                {run.name: made_up(run, np.random.default_rng(0)) for run in STUDIES["np-beta"].runs(Scale())}, Scale()
            ),
            notes=[json.dumps({name: result.history["level"][:, -1].tolist() for name, result in results.items()})],
        ),
    )
    page.reproduce([study], Scale(), out=out, page=out / "results.md", progress=False)


def files(folder):
    """Every file's bytes but for the times."""
    found = {}
    for path in sorted(folder.glob("**/*")):
        if path.is_file() and path.name != "seconds.json":
            data = path.read_bytes()
            found[str(path.relative_to(folder))] = (
                re.sub(rb"[\d.]+ minutes", b"", data) if path.suffix == ".md" else data
            )
    return found


def test_rewards_and_costs_at_a_round():
    run = STUDIES["cartpole-main"].runs(Scale())[0]
    result = made_up(run, np.random.default_rng(0))
    reward, _ = cartpole.at(result, 100)
    np.testing.assert_array_equal(reward, result.history["reward"][:, 99])
    np.testing.assert_array_equal(cartpole.at(result, 900)[1], result.history["cost"][:, 499])
    result.history["violation"][:, 400:] = np.where(np.arange(100) < 30, 1.0, -1.0)
    np.testing.assert_allclose(cartpole.over_budget(result), 0.3, rtol=1e-6)
    result.history["kl"][:] = np.where(np.arange(500) < 25, 0.021, 0.0099)  # from 0.01 down to 0.005
    assert cartpole.within_radius(result) == pytest.approx(0.95)
