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

import fedsgm as fs
from fedsgm import paper
from fedsgm.__main__ import main
from fedsgm.base.describe import describe
from fedsgm.paper import cartpole, fair_adult, np_beta, np_penalty, np_skewness, page
from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.lines import Data, Line
from fedsgm.paper.studies import STUDIES
from fedsgm.paper.study import Claim, Run, Scale, collect, told
from fedsgm.results.result import KINDS
from fedsgm.theory.estimates import SKEWNESS, skewness
from support import processes

NAMES = [
    "np-progress",
    "np-local-steps",
    "np-participation",
    "np-compression",
    "np-beta",
    "np-penalty",
    "np-skewness",
    "fair-adult",
    "cartpole-main",
    "cartpole-participation",
    "cartpole-compression",
]


def made_up(run, rng, *, objective=None, constraint=None):
    """A result of the run's form; every seed's objective and constraint constant over the rounds unless drawn."""
    on_cartpole = run.name.startswith("cartpole")
    name, bound = ("cost", 30.0) if on_cartpole else ("gap" if "adult" in run.name else "minority", 0.05)
    of_clients = SKEWNESS if run.name.startswith("skewness") else ()
    shape = (run.seeds, run.rounds)

    def drawn(given, scale):
        values = rng.uniform(0.5, 1.5, shape) * scale if given is None else np.full(shape, given)
        values = values.astype(np.float32)
        measured = np.arange(1, run.rounds + 1) % run.evaluate_every == 0
        return np.where(measured, values, np.nan).astype(np.float32)

    history = {"objective": drawn(objective, 0.1), name: drawn(constraint, bound)}
    history |= {column: drawn(None, 1.0) for column in of_clients}
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
        seeds = {"np": 3, "fa": 1, "ca": 5}[name[:2]]
        assert quick or {run.seeds for run in runs if run.seeds > 1 or name[:2] == "ca"} <= {
            seeds,
            20 if name[:2] == "ca" else 10,
        }

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
        chosen = runs["neyman-pearson, soft 40, E 5, m 10, K/d 0.1, step 0.1, split 2"]
        top = fs.TopK(0.1)
        assert chosen.algorithm == fs.FedSGM(0.1, 5, 10, fs.Soft(40.0), uplink=top, downlink=top)
        assert (chosen.rounds, chosen.seeds) == (500, 3)
        rhos = {run.algorithm.rule.rho for run in runs.values() if isinstance(run.algorithm.rule, fs.Penalty)}
        assert rhos == {0.001, 0.5, 2.0, 10.0, 20.0, 100.0}
        assert (np_task.WIDE[0], np_task.WIDE[-1]) == (1.0, 1e-4)
        adult = {run.name: run for run in fair_adult.runs(Scale())}
        federated = adult["fair-adult, share 0.15, soft, step 0.1, split 0"]
        assert federated.algorithm == fs.FedSGM(0.1, 2, 5, fs.Soft(40.0), batch_size=64)
        alone = adult["fair-adult, share 0.15, soft, centralised, step 0.1, split 0"]
        assert (alone.rounds, alone.evaluate_every) == (2 * 500, 2 * federated.evaluate_every)

    def test_a_setting_that_is_as_by_default_is_not_told(self):
        assert told(fs.FedSGM(0.1)) == {"is": "FedSGM", "step_size": 0.1}
        assert told(fs.FedSGM(0.1, rule=fs.Hard(0.0))) == told(fs.FedSGM(0.1))
        assert told(fs.FedSGM(0.1, rule=fs.Soft(40.0)))["rule"] == {"is": "Soft", "beta": 40.0}
        assert told(fs.FedSGM(0.1, uplink=fs.TopK(0.1)))["uplink"] == {"is": "TopK", "fraction": 0.1}

    def test_studies_share_runs(self):
        progress, beta = ({run.folder for run in STUDIES[name].runs(Scale())} for name in ("np-progress", "np-beta"))
        soft_and_hard = 2 * 4 * 10  # at four step sizes on ten splits
        assert len(progress & beta) == soft_and_hard

    def test_what_draws_nothing_is_run_once(self):
        for run in STUDIES["np-participation"].runs(Scale()):
            assert run.seeds == (1 if run.algorithm.participants in (None, 20) else 3)

    @pytest.mark.parametrize("variant", [None, np_task.BENIGN])
    def test_both_readings_of_the_labels(self, variant):
        line = np_task.line("hard", fs.Hard(), variant=variant)
        run = line.runs(np_task.data(Scale()), Scale())[0]
        problem, clients, _, test = run.load()
        assert problem.bounds == {"minority": 0.05}
        assert len(clients) == 20
        ones = sum(clients[j]["y"].sum() for j in range(20)) + test["y"].sum()
        assert ones == (212 if variant is None else 357)  # of 569 cases, 212 are malignant
        alone = np_task.centralised("hard", fs.Hard(), variant=variant).runs(np_task.data(Scale()), Scale())[0]
        assert len(alone.load()[1]) == 1
        assert (variant or "") in run.name


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

    def line(self, *steps):
        return Line("toy", lambda step: fs.FedSGM(step), steps=steps)

    def test_feasible_first_then_the_lowest_objective(self):
        line = self.line(1.0, 0.3, 0.1, 0.01)
        levels = {1.0: (0.01, 0.06), 0.3: (0.05, 0.04), 0.1: (0.03, 0.05), 0.01: (0.2, 0.01)}
        tuned = line.tuned(self.data, self.results(line, levels), Scale())
        assert tuned.step == 0.1
        assert tuned.kept.tolist() == [[True] * 3] * 2
        np.testing.assert_allclose(tuned.settled, 0.03, rtol=1e-5)

    def test_a_run_that_diverged_is_not_chosen(self):
        line = self.line(1.0, 0.1)
        levels = {1.0: (np.nan, np.nan), 0.1: (0.3, 0.9)}
        assert line.tuned(self.data, self.results(line, levels), Scale()).step == 0.1

    def test_most_of_the_last_hundred_rounds(self):
        line = self.line(1.0)
        results = self.results(line, {1.0: (0.1, 0.0)})
        for result, over in zip(results.values(), (49, 50), strict=True):
            result.history["minority"][:, : 400 + over] = 1.0
        assert line.tuned(self.data, results, Scale()).kept.tolist() == [[True] * 3, [False] * 3]

    def test_rounds_to_a_target(self):
        line = self.line(1.0)
        results = self.results(line, {1.0: (0.1, 0.04)})
        first, second = results.values()
        first.history["objective"][0, :30] = 0.5  # on average over rounds 29 to 48 it is 0.14
        first.history["objective"][1, :20] = 0.5
        first.history["minority"][1, 38:40] = 0.3  # after rounds 19 to 38
        second.history["minority"][:] = 0.07
        line = line.at(1.0, self.data, results)
        assert line.rounds_to(0.15, 0.06).tolist() == [[29, 19, 1], [500] * 3]
        assert line.rounds_to(0.15, 0.06, steadily=True).tolist() == [[31, 41, 1], [500] * 3]

    def test_rounds_to_a_target_of_sparse_measurements(self):
        data = dataclasses.replace(self.data, every=10, splits=1)
        line = self.line(1.0)
        (run,) = line.runs(data, Scale())
        result = made_up(run, np.random.default_rng(0), objective=0.1, constraint=0.04)
        result.history["objective"][0, :100] *= 5
        assert line.at(1.0, data, {run.name: result}).rounds_to(0.15, 0.06).tolist() == [[110, 10, 10]]

    def test_all_rounds_over_the_bound(self):
        line = self.line(1.0)
        results = self.results(line, {1.0: (0.1, 0.04)})
        next(iter(results.values())).history["minority"][:, :125] = 0.07
        np.testing.assert_allclose(line.at(1.0, self.data, results).violated, [[0.25] * 3, [0.0] * 3])


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
    claims = re.findall(r"^\| .* \| the paper's \| .* \| \**(holds|false|not shown)\** \|$", text, re.M)
    counts = [claims.count(verdict) for verdict in ("holds", "false", "not shown")]
    assert claims
    told = "{} of {} of the paper's claims hold, {} are false and {} are not shown."
    assert text.count(told.format(counts[0], len(claims), *counts[1:])) == 2  # of all studies, and of this one
    assert "| {} | {} | {} | {} |".format(study.title, *counts) in text
    drawn = (tmp_path / "results" / f"{name}.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "results" / f"{name}.svg").read_text()
    title = study.findings({r.name: made_up(r, rng) for r in study.runs(scale)}, scale).picture.get_suptitle()
    assert title.startswith("QUICK LOOK") == quick
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    every = re.split("Every (?:seed|split)", text)[-1]
    assert name == "np-skewness" or len(re.findall(r"^\| (?:split|seed) \d", every, re.M)) >= (1 if quick else 5)


def test_a_page_keeps_the_studies_that_are_not_run_again(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(page, "collect", lambda _name, runs, _out, **_: {r.name: made_up(r, rng) for r in runs})
    monkeypatch.setattr(page, "seconds", lambda _runs, _out: 90.0)
    written = tmp_path / "results.md"

    def reproduce(name, out, quick=False):
        page.reproduce([STUDIES[name]], Scale(quick), out=tmp_path / out, page=written, progress=False)
        return written.read_text().partition("\n## ")

    section = reproduce("np-penalty", "first")[2]
    beginning, _, rest = reproduce("np-beta", "elsewhere")
    assert rest.partition("\n## ")[2] == section
    counts = [
        [int(number) for number in re.findall(r"\d+", line)[:4]]
        for line in re.findall(r"\*\*(?:Here:\*\* )?(\d.* are not shown)", beginning + rest)
    ]
    assert counts[0] == [a + b for a, b in zip(*counts[1:], strict=True)]
    assert reproduce("np-beta", "elsewhere")[0] == beginning
    assert STUDIES["np-penalty"].title not in "".join(reproduce("np-beta", "quick", quick=True))


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


def falling(rounds, at):
    """An objective that is there from so many rounds on."""
    return np.where(np.arange(rounds) < at - 1, 0.5, 0.1)


class TestClaims:
    def test_beta(self):
        def as_the_paper_says(run):
            beta = getattr(run.algorithm.rule, "beta", np.inf)
            return 0.1, 0.05 - 0.5 / beta

        def otherwise(run):
            return 0.1, 0.02 if np.isfinite(getattr(run.algorithm.rule, "beta", np.inf)) else 0.05

        says = (
            "Beta 20 is more conservative than 40 (each at its tuned step size)",
            "Beta 20 is more conservative than 40 (both at step size 1)",
            "High beta nears the hard rule",
        )

        def at_step_1(decide):
            return lambda run: (decide(run)[0] / run.algorithm.step_size, decide(run)[1])

        assert [claims_of("np-beta", at_step_1(as_the_paper_says))[claim] for claim in says] == [True] * 3
        assert [claims_of("np-beta", at_step_1(otherwise))[claim] for claim in says] == [False] * 3

    def test_penalty(self):
        def as_the_paper_says(run):
            rho = getattr(run.algorithm.rule, "rho", None)
            if rho is None:
                return 0.05, 0.04
            return (0.01, 0.2) if rho <= 0.5 else (0.06 * rho, 0.04)

        held = claims_of("np-penalty", as_the_paper_says)
        comparable = held.pop("A tuned penalty is about as good as hard switching")
        assert set(held.values()) == {True}
        assert comparable is False
        held = claims_of("np-penalty", lambda run: (0.05 if hasattr(run.algorithm.rule, "rho") else 0.06, 0.04))
        assert set(held.values()) == {False}
        held = claims_of("np-penalty", lambda run: (0.058 if hasattr(run.algorithm.rule, "rho") else 0.06, 0.04))
        assert held["A tuned penalty is about as good as hard switching"] is True

    @pytest.mark.parametrize(
        ("rounds", "found"),
        [
            (lambda e: 200 / e, [{True}, {True}]),
            (lambda e: 400 - 20 * e, [{True}, {False}]),
            (lambda e: 400 - 3 * e**2, [{True}, {False}]),
            (lambda e: 20 * e, [{False}, {False}]),
        ],
    )
    def test_local_steps(self, rounds, found):
        held = claims_of("np-local-steps", lambda run: (falling(500, rounds(run.algorithm.local_steps)), 0.04))
        starts = ("More local steps are faster", "Each")
        assert [{held[says] for says in held if says.startswith(start)} for start in starts] == found
        assert len(held) == 2 * 2 * 4  # of both rules, at one step size and each at its best

    def test_local_steps_at_the_same_step_size_and_at_their_best(self):
        """Where only E x step size matters, E helps at one step size and not where each has its best."""

        def decide(run):
            return falling(500, round(100 / (run.algorithm.step_size * run.algorithm.local_steps))), 0.04

        held = claims_of("np-local-steps", lambda run: decide(run) if run.algorithm.step_size <= 0.1 else (1.0, 0.04))
        same, apart = (
            {held[says] for says in held if says.startswith("More") and what in says}
            for what in ("for all", "its best")
        )
        assert same == {True}
        assert apart == {True}  # 0.1 is the largest step size that works, for every E
        held = claims_of(
            "np-local-steps",
            lambda run: decide(run) if run.algorithm.step_size * run.algorithm.local_steps <= 1 else (1.0, 0.04),
        )
        assert {held[says] for says in held if "faster" in says and "its best" in says} == {False}

    @pytest.mark.parametrize(("ratio", "matches"), [(1.0, True), (1.05, True), (1.25, False), (0.7, False)])
    def test_participation(self, ratio, matches):
        def decide(run):
            alone = run.algorithm.participants is None
            return 0.1 if alone else 0.1 * ratio, 0.04 if (run.algorithm.participants or 20) > 2 else 0.07

        held = claims_of("np-participation", decide)
        assert {held[says] for says in held if "matches" in says} == {matches}
        assert {held[says] for says in held if "faster" in says} == {True}  # two clients never keep the constraint
        assert {held[says] for says in held if "better" in says} == {True}

    def test_compression(self):
        def decide(run):
            forgets = not run.algorithm.memory
            compressed = getattr(run.algorithm.downlink, "fraction", 1) == 0.1
            return falling(500, 300 if forgets else 100 if compressed else 50), 0.04

        held = claims_of("np-compression", decide)
        starts = ("K/d = 0.1 converges", "Compression makes it slower", "That it converges is error feedback's")
        assert {holds for says, holds in held.items() if says.startswith(starts)} == {True}
        assert {holds for says, holds in held.items() if "less steady" in says} == {False}
        held = claims_of("np-compression", lambda _: (falling(500, 100), 0.04))
        assert {holds for says, holds in held.items() if says.startswith(starts[1:])} == {False}

    def test_progress_counts_splits(self):
        def only_soft(run):
            return 0.1, 0.04 if isinstance(run.algorithm.rule, fs.Soft) else 0.06

        held = claims_of("np-progress", only_soft)
        for reading in ("malignant is 1", "benign is 1"):
            assert held[f"The constraint is kept: soft, beta 40 ({reading})"] is True
            assert held[f"The constraint is kept: hard ({reading})"] is False
            assert held[f"Over the whole run, soft switching is over the bound in fewer rounds ({reading})"] is True

        for count, holds in ((18, False), (24, True)):
            held = claims_of(
                "np-progress", lambda run, count=count: (0.1, 0.04 if int(run.name.split()[-1]) < count else 0.06)
            )
            assert held["The constraint is kept: hard (malignant is 1)"] is holds

    def test_skewness(self):
        """The constraint swings as far as the clients differ, in local steps, unless something is done about it."""

        def decide(run):
            skewed = "evenly" not in run.data
            calm = isinstance(run.algorithm.rule, fs.Soft) or "pulled" in run.name
            size = 0.001 * (1 + skewed) * run.algorithm.local_steps * (0.1 if calm else 1)
            return 0.1, 0.05 + size * (-1.0) ** (np.arange(500) // 5)

        held = claims_of("np-skewness", decide)
        assert {holds for says, holds in held.items() if "K_loc - K_glob" not in says} == {True}
        held = claims_of("np-skewness", lambda _: (0.1, 0.05 + 0.005 * (-1.0) ** (np.arange(500) // 5)))
        assert {holds for says, holds in held.items() if "K_loc - K_glob" not in says} == {False}

    @pytest.mark.parametrize(("objective", "at_equal_gap"), [(0.37, True), (0.39, False)])
    def test_adult_at_an_equal_gap(self, objective, at_equal_gap):
        def decide(run):
            rule = getattr(run.algorithm, "rule", None)
            if isinstance(rule, fs.Soft):
                return objective, 0.04
            if isinstance(rule, fs.Hard):
                return (0.4, 0.03) if rule.margin else (0.36, 0.05)  # 0.38 at a gap of 0.04
            return 0.5 - getattr(rule, "rho", 0.0) / 1000, 0.02

        held = claims_of("fair-adult", decide)
        assert held["At an equal gap soft has a lower objective than hard"] is at_equal_gap
        assert held["At an equal gap soft has a lower objective than hard, own gaps"] is at_equal_gap
        assert held["soft has a lower objective than hard"] is False
        assert held["soft has a lower objective than penalty, rho 10"] is True
        assert held["soft, centralised is more conservative than soft"] is False
        assert held["IPP-ConEx is the most conservative"] is False

    def test_only_the_papers_claims_are_counted(self):
        claims = [Claim("a", "", True), Claim("b", "", None), Claim("c", "", True, ours=True), Claim("d", "", False)]
        assert page._counted(claims) == {"holds": 1, "false": 1, "not shown": 1}

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
        assert len(held) == 2 * (7 * 2 + 3 + 2)  # seven rows, three of quantisation, two of Top-K, two rules
        assert {claim.ours for claim in findings.claims if "ceiling" in claim.says} == {True}
        assert {claim.ours for claim in findings.claims if "ceiling" not in claim.says} == {False}
        for row, alike in (("no compression", True), ("float8", True), ("K/d = 0.25", False)):
            assert held[f"{row}, soft: the paper's reward"] is alike, (
                "a reward far above the paper's is not the paper's"
            )
            assert held[f"{row}, soft: within the budget"] is (cost <= 30)
        assert held["float4, soft: quantisation costs hardly a round"] is True
        assert held["K/d = 0.25, soft: Top-K slows learning"] is False
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


class TestSkewness:
    def run(self, key):
        line = np_skewness.lines(Scale())[key]
        return line.runs(np_skewness.data(Scale()), Scale())[0]

    def test_dealing_changes_the_clients_and_not_the_problem(self):
        rng = np.random.default_rng(0)
        examples = {"x": rng.normal(size=(60, 2)) * [9, 1], "y": np.arange(60) % 2}  # components 0 and 1 are the axes
        for how in np_skewness.DEALT:
            parts = np_skewness.dealt(how)(examples, 5, rng)
            assert sorted(np.concatenate(parts)) == list(range(60))
            assert {(examples["y"][part] == 1).sum() for part in parts} == {6}
            columns = {"evenly": None, "sorted": (0, 0), "crossed": (0, 1)}[how]
            for label, column in enumerate(columns or ()):
                means = [examples["x"][part][examples["y"][part] == label, column].mean() for part in parts]
                assert sorted(means) in (means, means[::-1])

    def test_sorted_and_crossed_clients_have_skewness(self):
        found = {}
        for how in np_skewness.DEALT:
            problem, clients, params, _ = self.run(("hard", 5, 20, how)).load()
            found[how] = skewness(problem.problem, clients, params)
        for how in ("sorted", "crossed"):
            for name in SKEWNESS[:2]:
                assert found[how][name] > 2 * found["evenly"][name]
            assert found[how]["skew_of_clients"] > 5 * found["evenly"]["skew_of_clients"]

    def test_regularised_clients_stay_nearer(self):
        """One client, one example, f = (w - 1)^2 / 2 with a pull of mu: E steps by hand."""
        problem = fs.Problem(
            objective=lambda w, ex: 0.5 * (w - ex["a"]) ** 2,
            constraints=[fs.Mean(lambda w, ex: w * ex["a"] - 9, name="g") <= 0.0],
        )
        clients = fs.split({"a": np.ones(1, np.float32)}, clients=1)
        for mu in (0.0, 2.0):
            result = fs.simulate(
                fs.FedSGM(0.1, 3),
                np_skewness.Pulled(problem, mu),
                clients,
                np.float32(0.0),
                rounds=1,
                progress=False,
            )
            w, total = 0.0, 0.0
            for _ in range(3):
                direction = (w - 1) + mu * w
                total += direction
                w -= 0.1 * direction
            np.testing.assert_allclose(result.last, -0.1 * total, rtol=1e-6)

    def test_with_one_step_and_all_clients_dealing_changes_nothing(self):
        """Up to clients' sizes, which differ by one or two examples."""
        ends = []
        for how in np_skewness.DEALT:
            run = self.run(("hard", 1, 20, how))
            problem, clients, params, _ = run.load()
            result = fs.simulate(run.algorithm, problem, clients, params, rounds=30, progress=False)
            ends.append(result.history["objective"][0, -1])
        np.testing.assert_allclose(ends, ends[0], rtol=0.05)
