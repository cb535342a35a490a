"""Clients from blocks of rows and from Parquet, by a key."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import fedsgm as fs

RNG = np.random.default_rng(3)
SITES = RNG.integers(0, 7, 40)
ROWS = {"x": RNG.normal(size=(40, 3)).astype(np.float32), "y": np.arange(40, dtype=np.int32)}


def batches(sites=SITES):
    for some in (slice(0, 11), slice(11, 12), slice(12, 40)):
        yield {"site": sites[some]} | {name: column[some] for name, column in ROWS.items()}


def assert_by_site(clients, sites=SITES):
    """A client for each value, its rows in the order that they came."""
    values = np.unique(sites)
    assert len(clients) == len(values)
    for j, value in enumerate(values):
        np.testing.assert_equal(clients[j], {name: column[sites == value] for name, column in ROWS.items()})


@pytest.mark.parametrize("sites", [SITES, np.sort(SITES), SITES.astype(str)], ids=["numbers", "sorted", "words"])
def test_blocks_of_a_generator(sites):
    assert_by_site(fs.Clients.from_batches(batches(sites), key="site"), sites)


def test_a_parquet_file_and_a_folder(tmp_path):
    table = pa.table({"site": SITES, "x": pa.FixedSizeListArray.from_arrays(ROWS["x"].reshape(-1), 3), "y": ROWS["y"]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=9)
    assert_by_site(fs.Clients.from_parquet(tmp_path / "rows.parquet", key="site"))
    (tmp_path / "parts").mkdir()
    for i in range(4):
        pyarrow.parquet.write_table(table.slice(10 * i, 10), tmp_path / "parts" / f"{i}.parquet")
    assert_by_site(fs.Clients.from_parquet(tmp_path / "parts", key="site"))
    only = fs.Clients.from_parquet(tmp_path / "rows.parquet", key="site", columns=["y"])
    assert list(only.examples) == ["y"]


def refused(batches, told, key="site"):
    with pytest.raises(fs.SettingError, match=told):
        fs.Clients.from_batches(batches, key)


def refused_file(path, told, key="site", **more):
    with pytest.raises(fs.SettingError, match=told):
        fs.Clients.from_parquet(path, key, **more)


def test_mistakes_are_told(tmp_path):
    def missing():
        return pa.table({"site": pa.array([1, None]), "y": [1.0, 2.0]})

    refused([], r"^Clients: there are no batches")
    refused(batches(), r"^Clients: batch 0 has no column 'bank'; it has 'site'", key="bank")
    refused(
        [{"site": [1], "y": [1.0]}, {"site": [1]}], "^batch 1: its arrays are named or nested differently from batch 0"
    )
    refused([{"site": [1], "y": [np.nan]}], "^the batches: the array .* has a NaN")
    refused([{"site": [1, 2], "y": [1.0]}], "^batch 0: every array must have the same number")
    refused_file(tmp_path / "none", "none")
    pyarrow.parquet.write_table(missing(), tmp_path / "missing.parquet")
    refused_file(tmp_path / "missing.parquet", "the column 'site' has missing values; fill or drop them")
    refused_file(tmp_path / "missing.parquet", "bank", key="bank", columns=["y"])
    (tmp_path / "text.parquet").write_text("no Parquet")
    refused_file(tmp_path / "text.parquet", r"text\.parquet")
