"""Three sites with a table each, and a federation of them in this process whose every frame is written down."""

import contextlib
import functools
import io
import json

import numpy as np
import pandas as pd
import pytest

from fedsgm.federation import federate
from fedsgm.federation.agreement import carry_out
from fedsgm.federation.experiment import find
from fedsgm.federation.flare import kits, local, submit
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.preparation import Newcomer
from fedsgm.federation.protocol import Failure
from fedsgm.results.result import KINDS
from fedsgm.tables.federated import TableFit
from support.commands import FILES, Run, call

SITES = ("north", "south", "west")


def people(rows=360, seed=0):
    """Numbers and dates that some lack, categories that one site alone has or lacks, ids, and rare categories."""
    rng = np.random.default_rng(seed)
    site = np.sort(rng.choice(SITES, rows, p=[0.5, 0.3, 0.2]))
    frame = pd.DataFrame(
        {
            "site": site,
            "age": rng.normal(40, 9, rows).round(3) + 5 * (site == "west"),
            "seen": (pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D")).strftime(
                "%Y-%m-%d"
            ),
            "sex": rng.choice(["f", "m"], rows),
            "work": rng.choice(["clerk", "driver", "nurse"], rows),
            "region": site,
            "constant": "same",
        }
    )
    frame.loc[(site == "west") & (frame["work"] == "nurse"), "work"] = "clerk"
    frame.loc[rng.random(rows) < 0.15, "age"] = None
    frame.loc[rng.random(rows) < 0.1, "seen"] = None
    frame.loc[(site != "south") & (rng.random(rows) < 0.1), "work"] = None
    score = frame["age"].fillna(40) - 40 + 8 * (frame["sex"] == "m") + rng.normal(0, 5, rows)
    return frame.assign(ok=np.where(score > 3, "yes", "no"))


def write(frame, folder):
    """The whole table with its column of sites, and each site's own without."""
    frame.to_csv(folder / "all.csv", index=False)
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
    return [folder / f"{site}.csv" for site in SITES]


class Recorded(InProcess):
    """Clients in this process; ``frames`` has every request and every reply, as (client, way, bytes)."""

    def __init__(self, start, folder, plan=None):
        super().__init__(start, folder, plan)
        self.frames = []

    def exchange(self, requests, seconds):
        self.frames += [(name, "down", data) for name, data in requests.items()]
        replies = super().exchange(requests, seconds)
        self.frames += [(name, "up", data) for name, data in replies.items() if not isinstance(data, Failure)]
        return replies

    def said(self, way):
        return b"\n".join(data for _, each, data in self.frames if each == way)


def transport(stated, given, folder, plan=None, kind=Recorded):
    """A client for each of what data functions would give, named site-1, site-2, ..."""

    def starter(name, one):
        return functools.partial(Newcomer, stated, lambda: one, folder / name)

    return kind({n: starter(n, one) for n, one in zip(kits.names(len(given)), given, strict=True)}, folder, plan)


def run(experiment, carried, checkpoint=None):
    names = ("rounds", "seed", "test", "evaluate_every", "min_participants", "timeout", "beside")
    settings = {name: getattr(experiment, name) for name in names}
    stated = (experiment.algorithm, experiment.problem, carried, experiment.params)
    return federate(*stated, **settings, checkpoint=checkpoint, progress=False)


class Together:
    """In place of a federation of processes: its job is carried out in this one, by the functions that it names."""

    def __init__(self, folder, monkeypatch, within=()):
        folder.mkdir()
        self.folder, self.server, self.kits, self.admin = folder, "localhost", {"localhost": folder}, folder
        self.names, self.transport = [], None
        self._monkeypatch, self._within = monkeypatch, within
        monkeypatch.setattr(local, "LocalFederation", self._begin)
        monkeypatch.setattr(submit, "submit", self._submit)
        monkeypatch.setattr("os.fsync", lambda _: None)
        state_once(monkeypatch)

    def _begin(self, clients, *, modules, **_):
        self.names = kits.names(clients)
        self._monkeypatch.setenv("FEDSGM_MODULES", ",".join(modules))
        return contextlib.nullcontext(self)

    def tend(self):
        pass

    def _submit(self, _, job, **__):
        config = json.loads((job.folder / "app" / "config" / "config_fed_client.json").read_text())
        args = submit._client_args(config)
        make, load = (find(args[name], self._within) for name in ("experiment", "data"))
        stated = make(**args["settings"])
        given = [load(name, **args["settings"]) for name in job.clients]
        self.transport = transport(stated, given, self.folder / "state")
        result, agreed = carry_out(stated, self.transport, run)
        finished = self.folder / "finished"
        result.save(finished)
        stated.keep(agreed, result, finished)
        return finished


def state_once(monkeypatch):
    """Sites in one process share what is compiled, where each would otherwise state the experiment for itself."""
    real, known = TableFit.state, {}

    def state(self, agreed):
        key = (id(self), json.dumps(agreed))
        if key not in known:
            known[key] = real(self, agreed)
        return known[key]

    monkeypatch.setattr(TableFit, "state", state)


def assert_same_model(found, expected):
    """To 1e-4: the parameters, the history, the values of both parts, the encoding, and what is told of the model."""
    for name in ("objective", "violation", "weight", *expected.result.bounds):
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_array_equal(found.history["participants"], expected.history["participants"])
    for kind in KINDS:
        for mine, theirs in zip(getattr(found.result, kind), getattr(expected.result, kind), strict=True):
            for name, array in theirs.items():
                np.testing.assert_allclose(mine[name], array, rtol=1e-4, atol=1e-4, err_msg=kind)
    assert found.result.values.keys() == expected.result.values.keys()
    for part, values in expected.result.values.items():
        for name, value in values.items():
            np.testing.assert_allclose(found.result.values[part][name], value, rtol=1e-4, atol=1e-4, err_msg=name)
    models = [json.loads((run.folder / "model.json").read_text()) for run in (found, expected)]
    for mine, theirs in zip(*(model.pop("columns") for model in models), strict=True):
        for name in ("mean", "scale"):
            assert mine.pop(name) == pytest.approx(theirs.pop(name), rel=1e-9)
        assert mine == theirs
    for name in ("mean", "scale"):
        mine, theirs = (model["target"].pop(name) for model in models)
        assert mine == pytest.approx(theirs, rel=1e-9)
    digests = [model.pop("digest") for model in models]
    assert len(digests) == 2
    assert models[0] == models[1]


def assert_that_of_fit(tables, flags, tmp_path):
    """A fit over sites is the fit of all rows in one file: its model, what is noticed, told and predicted."""
    called = call("federate", "fit", *tables, *flags, "--out", tmp_path / "run", draw=False)
    assert called.code == 0, called.err
    whole = call(
        *("fit", tables[0].with_name("all.csv"), "--client-by", "site", *flags, "--out", tmp_path / "one"), draw=False
    )
    assert whole.code == 0, whole.err
    found, expected = Run(tmp_path / "run", called), Run(tmp_path / "one", whole)
    assert_same_model(found, expected)
    assert called.err == whole.err, "the same was noticed"
    assert headlines(called.out) == headlines(whole.out)
    told, all_of_it = (run.out.partition("\n\n")[0].splitlines() for run in (called, whole))
    assert [line for line in told if line in all_of_it] == told, "what fit tells of new data needs rows"
    assert any(line.startswith("  always ") for line in told)
    shown = call("show", found.folder, draw=False)
    assert shown.out.partition("\n\n")[0].splitlines() == told
    assert {path.name for path in found.folder.iterdir()} == {*FILES, "model.json"}
    for table in tables:
        answers = [call("predict", run.folder, table) for run in (found, expected)]
        assert [answer.code for answer in answers] == [0, 0], answers
        frames = [pd.read_csv(io.StringIO(answer.out)) for answer in answers]
        pd.testing.assert_frame_equal(*frames, atol=1e-4)


def headlines(out):
    """What a fit says of its model, and the verdict's first line: a fit of one table tells more in between."""
    found = [line for line in out.splitlines() if "on the training data" in line]
    assert len(found) == 2
    return found
