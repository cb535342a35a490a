"""ACS income through folktables: what is made of its table, and the sentences where there is none."""

import sys
import types

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.benchmark import problems, registry
from fedsgm.data.acs import acs_income

COLUMNS = ("AGEP", "WKHP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "SEX", "RAC1P", "ST", "PINCP", "PWGTP")


def pretend(monkeypatch, get_data):
    """A folktables whose source answers like this."""
    module = types.ModuleType("folktables")
    module.ACSDataSource = lambda **told: types.SimpleNamespace(get_data=get_data, **told)
    module.adult_filter = lambda people: {name: values[people["AGEP"] > 16] for name, values in people.items()}
    monkeypatch.setitem(sys.modules, "folktables", module)
    problems._acs.cache_clear()


def test_a_table_with_the_state_as_client(monkeypatch):
    asked = []

    def get_data(**told):
        asked.append(told)
        rng = np.random.default_rng(0)
        people = {name: rng.integers(1, 4, 600).astype(float) for name in COLUMNS}
        people["AGEP"] = rng.integers(10, 80, 600).astype(float)
        people["PINCP"] = rng.choice([20000.0, 50000.0, 50001.0], 600)
        return people

    pretend(monkeypatch, get_data)
    table = acs_income()
    assert asked == [{"states": ["WY"], "download": True}, {"density": 0.05, "download": True}]
    assert table["AGEP"].min() > 16
    assert set(table["ST"]) == {"1", "2", "3"}
    assert 0.2 < (table["income"] == ">50K").mean() < 0.5
    assert "PINCP" not in table
    data = registry.of()[0]["acs-income"].load(1)
    assert len(data.clients) == 3
    assert set(np.unique(data.test["group"])) == {0, 1, 2}


def test_without_a_network_one_sentence(monkeypatch):
    def get_data(**_):
        print("Exception:  no route to the host")
        raise FileNotFoundError("psam_p56.csv")

    pretend(monkeypatch, get_data)
    with pytest.raises(fs.FedSGMError, match=r"fetched from the Census \(no route to the host\); run where"):
        acs_income()


def test_a_suite_goes_on_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "folktables", None)
    problems._acs.cache_clear()
    cases = registry.suite("natural", (), [])[0]
    kept, sentences = registry.there(cases, [])
    assert {case.name for case in cases} - {case.name for case in kept} == {"acs-income"}
    assert sentences == ["acs-income is left out: ACS income needs the package folktables; run pip install folktables"]
    assert registry.there(cases, ["acs-income"]) == (cases, [])
