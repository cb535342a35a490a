"""The page of a run: what is on it, and that a real browser draws it."""

import dataclasses
import json
import re

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.federation.inprocess import Fault, InProcess
from fedsgm.results import page
from fedsgm.results.shown import POINTS, Shown, document
from support.browser import WIDTHS, browser
from support.commands import TINY, assert_one_error, call
from support.federated import ALGORITHM, CLIENTS, PARAMS, PROBLEM, PROGRAM, TEST

HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">\u202e<b>"


@pytest.fixture(scope="module")
def simulated():
    return fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=30, seeds=3, test=TEST, progress=False)


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


def chart(shown, name):
    return next(each for each in document(shown)["charts"] if each["name"] == name)


def content(path):
    """The data that a page holds."""
    text = path.read_text()
    return json.loads(re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.S)[1])


def test_lines_are_the_seeds_means_and_their_band(simulated):
    line = chart(Shown.of(simulated, "run"), "minority")["line"]
    values = simulated.history["minority"]
    assert line["x"] == list(range(1, 31))
    np.testing.assert_allclose(line["mean"], values.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(line["low"], values.min(axis=0), rtol=1e-5)
    np.testing.assert_allclose(line["high"], values.max(axis=0), rtol=1e-5)


def test_of_many_rounds_a_point_is_several_and_the_page_stays_small(simulated, tmp_path):
    rounds, names = 20_000, [f"constraint {i}" for i in range(12)]
    rng = np.random.default_rng(0)
    history = {
        name: np.tile(column, (1, 1 + rounds // 30, *[1] * (column.ndim - 2)))[:, :rounds]
        for name, column in simulated.history.items()
    }
    history |= {name: rng.normal(size=(3, rounds)).astype(np.float32) for name in names}
    values = {part: found | dict.fromkeys(names, found["minority"]) for part, found in simulated.values.items()}
    settings = simulated.settings | {"rounds": rounds}
    ranges = simulated.ranges | dict.fromkeys(names, (-np.inf, 0.5))
    long = dataclasses.replace(simulated, history=history, values=values, settings=settings, ranges=ranges)
    line = chart(Shown.of(long, "run"), names[0])["line"]
    assert len(line["x"]) == POINTS
    groups = np.array_split(history[names[0]], POINTS, axis=1)
    np.testing.assert_allclose(line["low"], [group.min() for group in groups], rtol=1e-5)
    np.testing.assert_allclose(line["mean"], [group.mean() for group in groups], rtol=1e-4, atol=1e-6)
    page.write(tmp_path / "long.html", [Shown.of(long, f"run {i}") for i in range(6)])
    assert 300_000 < (tmp_path / "long.html").stat().st_size <= 2_000_000


def test_the_page_says_what_the_run_says(simulated):
    found = document(Shown.of(simulated, "run"))
    assert "\n".join([found["headline"], "", found["verdict"]]) == simulated.verdict()
    parts = {row["name"]: row["parts"] for row in found["answer"]}
    within = simulated.excess("test", "answer") <= 0
    assert parts["minority"]["test"]["within"] == bool(within.all())
    assert found["plane"]["answers"]["train"]["y"] == pytest.approx(
        simulated.value("train", "objective", "answer"), rel=1e-5
    )
    marks = chart(Shown.of(simulated, "run"), "minority")["answers"]
    assert [mark["round"] for mark in marks] == simulated.answer_round.tolist()
    assert [mark["test"] for mark in marks] == pytest.approx(simulated.value("test", "minority", "answer"), rel=1e-5)


def own_losses(w, label):
    """Of each client, by itself: the mean logistic loss of its examples with this label."""
    found = []
    for j in range(len(CLIENTS)):
        x, y = (np.asarray(CLIENTS[j][name], float) for name in ("x", "y"))
        z = x[y == label] @ np.asarray(w["w"], float) + float(w["b"])
        found.append(np.mean(np.logaddexp(0, z) - label * z))
    return np.array(found)


def test_the_worst_clients_are_those_with_the_largest_losses(simulated):
    each = {"objective": 0, "minority": 1}
    answers = [{name: leaf[i] for name, leaf in simulated.answer.items()} for i in range(3)]
    rows = document(Shown.of(simulated, "run"))["worst"]
    for name, label in each.items():
        losses = np.array([own_losses(w, label) for w in answers])
        order = np.argsort(-losses.max(axis=0), kind="stable")
        found = [row for row in rows if row["of"] == name]
        assert [row["client"] for row in found] == [f"client {j}" for j in order]
        assert [row["low"] for row in found] == pytest.approx(losses.min(axis=0)[order], rel=1e-4)
        assert [row["high"] for row in found] == pytest.approx(losses.max(axis=0)[order], rel=1e-4)
        if name == "minority":
            assert [row["within"] for row in found] == (losses.max(axis=0)[order] <= 0.05).tolist()


def test_runs_of_different_problems_are_not_ranked(simulated):
    other = dataclasses.replace(simulated, ranges={"minority": (-np.inf, 0.5)})
    for runs, told in (
        ((simulated,), ""),
        ((simulated, simulated), "Best feasible: "),
        ((simulated, other), "Not ranked"),
    ):
        made = page.page([Shown.of(run, f"run {i}") for i, run in enumerate(runs)]).decode()
        note = json.loads(re.search(r'id="content">(.*?)</script>', made, re.S)[1])["note"]
        assert note.startswith(told)
        assert bool(note) == bool(told)


def test_a_run_that_diverged_has_a_page(simulated, tmp_path):
    wild = {
        name: np.where(np.arange(30) > 3, np.inf, column)
        for name, column in simulated.history.items()
        if column.ndim == 2 and column.dtype.kind == "f"
    }
    nothing = {
        part: {name: np.full_like(v, np.nan) for name, v in found.items()} for part, found in simulated.values.items()
    }
    gone = dataclasses.replace(simulated, history=simulated.history | wild, values=nothing)
    gone.report(tmp_path / "gone.html")
    assert content(tmp_path / "gone.html")["runs"][0]["state"] == "over"


def hostile(result):
    """The same run, of a constraint with a name that no page should run."""

    def named(found):
        return {HOSTILE if name == "minority" else name: each for name, each in found.items()}

    values = {part: named(found) for part, found in result.values.items()}
    settings = result.settings | {"problem": {"is": HOSTILE, HOSTILE: HOSTILE}}
    return dataclasses.replace(
        result, history=named(result.history), ranges=named(result.ranges), values=values, settings=settings
    )


def test_names_are_data(simulated, tmp_path, chromium):
    shown = Shown.of(hostile(simulated), HOSTILE, about=HOSTILE, again=(HOSTILE, HOSTILE))
    page.write(tmp_path / "page.html", [shown])
    text = (tmp_path / "page.html").read_text()
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert "\u202e" not in text
    chromium.see(f"file://{tmp_path}/page.html")
    assert not chromium.run("return document.querySelectorAll('img, main b').length")
    assert chromium.driver.title.startswith("</script><img")
    assert HOSTILE.partition("\u202e")[0] in chromium.text
    assert chromium.said == []


def test_report_refuses_what_is_no_page(simulated, tmp_path):
    with pytest.raises(fs.SettingError, match=r"must end in \.html"):
        simulated.report(tmp_path / "page.pdf")
    assert_one_error(call("report", tmp_path), 2, "is not a run")


def federated(folder):
    """With a client whose requests are lost now and then."""

    def plan(exchange, name):
        return Fault.LOSE_REQUEST if name == "client-1" and exchange % 3 == 0 else None

    transport = InProcess.of(PROGRAM, CLIENTS, folder / "clients", plan)
    fs.federate(ALGORITHM, PROBLEM, transport, PARAMS, rounds=12, test=TEST, progress=False).save(folder / "run")
    return ("client-1", "no answer", "Worst clients", "fs.federate(algorithm, problem, transport, params, rounds=12")


def simulated_on_the_command_line(folder):
    assert call("run", "neyman-pearson", *TINY, "--seeds", "2", "--out", folder / "run", draw=False).code == 0
    return (f"fedsgm run neyman-pearson --config {folder / 'run' / 'settings.toml'}", "minority", "Worst clients")


def cmdp(folder):
    flags = (
        "--rounds",
        "2",
        "--clients",
        "2",
        "--steps",
        "40",
        "--horizon",
        "20",
        "--hidden",
        "4",
        "--participants",
        "0",
        "--no-progress",
    )
    called = call("run", "cartpole", *flags, "--out", folder / "run", draw=False)
    assert called.code == 0, called.err
    return ("reward", "cost")


def fitted(folder):
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(9)},{'ab'[i % 2]},{'yes' if rng.random() < 0.5 else 'no'}" for i in range(120)]
    (folder / "t.csv").write_text("\n".join(["age,group,bought", *rows]))
    flags = ("--target", "bought", "--constraint", "demographic_parity(group) <= 0.1", "--rounds", "4", "--no-progress")
    called = call("fit", folder / "t.csv", *flags, "--out", folder / "run", draw=False)
    assert called.code == 0, called.err
    return ("demographic_parity(group)", "always 'no'")


@pytest.mark.parametrize("make", [simulated_on_the_command_line, federated, cmdp, fitted])
def test_a_browser_draws_it(make, tmp_path, chromium):
    """At the width of a desk and of a phone, light and dark: every plot, nothing beside the page, no complaint."""
    words = make(tmp_path)
    assert call("report", tmp_path / "run", "-o", tmp_path / "page.html").code == 0
    papers = set()
    for width in WIDTHS:
        for dark in (False, True):
            chromium.see(f"file://{tmp_path}/page.html", width=width, dark=dark)
            figures = chromium.figures()
            assert len(figures) >= 5
            for figure in figures:
                assert figure["points"] > 0, f"nothing is drawn of {figure['title']}"
                assert figure["width"] > 200
                assert figure["height"] > 100
                assert figure["right"] <= WIDTHS[width]
            assert sum(figure["bounds"] for figure in figures) >= 2  # of the constraint, and in the plane
            assert chromium.run("return document.documentElement.scrollWidth") <= WIDTHS[width]
            papers.add(chromium.run("return getComputedStyle(document.body).backgroundColor"))
            assert chromium.said == []
    assert len(papers) == 2
    chromium.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    for word in words:
        assert word in chromium.text


def test_lines_are_hidden_zoomed_and_told(simulated, tmp_path, chromium):
    page.write(tmp_path / "two.html", [Shown.of(simulated, "first"), Shown.of(hostile(simulated), "second")])
    chromium.see(f"file://{tmp_path}/two.html")
    before = {figure["title"]: figure["points"] for figure in chromium.figures()}
    assert {"objective", "minority"} <= before.keys()
    chromium.run("document.querySelector('figure .legend button').click()")
    after = chromium.figures()[0]
    assert 0 < after["points"] < before["objective"]
    chromium.run("""
        const svg = document.querySelector("figure svg"), box = svg.getBoundingClientRect();
        const place = (x) => ({clientX: box.left + x, clientY: box.top + 60, bubbles: true});
        const at = (kind, x, more) => svg.dispatchEvent(new PointerEvent(kind, {...place(x), ...more}));
        at("pointermove", 200, {});
        window.read = document.querySelector("figure .tip").textContent;
        at("pointerdown", 200, {pointerType: "touch"});
        at("pointermove", 300, {buttons: 1});
        at("pointerup", 300, {});
    """)
    assert re.search(r"round \d+second: 0\.\d+ \(0\.\d+ \.\. 0\.\d+\)", chromium.run("return window.read"))
    assert chromium.run("return !document.querySelector('figure .reset').hidden")
    ticks = chromium.run("return [...document.querySelectorAll('figure svg')][0].textContent")
    chromium.run("document.querySelector('figure .reset').click()")
    assert chromium.run("return [...document.querySelectorAll('figure svg')][0].textContent") != ticks
    assert chromium.said == []
