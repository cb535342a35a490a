"""Sums of parts of a column make the encoding of the whole."""

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.data.summary import Summary, merge
from fedsgm.data.table import Column


def parts_of(values, seed):
    """Five parts of different sizes, one of them empty."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(values), 3))
    return np.split(values, [*cuts[:2], cuts[1], cuts[2]])


def number(rng):
    values = rng.normal(1e9, 3, 200)
    return np.where(rng.random(200) < 0.3, np.nan, values)


def date(rng):
    values = np.datetime64("2020-01-01", "us") + rng.integers(0, 10**12, 200).astype("timedelta64[us]")
    values[rng.random(200) < 0.3] = "NaT"
    return values


def text(rng):
    return rng.choice(np.array(["a", "b", "ü", None], object), 200)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", [number, date, text])
def test_merged_parts_encode_as_the_whole(make, seed):
    """Numbers far from 0, where the difference of two sums of squares would have no digit right."""
    values = make(np.random.default_rng(seed))
    merged = Column.summed("c", merge(map(Summary.of, parts_of(values, seed))))
    whole = Column.of("c", values)
    assert (merged.categories, merged.missing, merged.date) == (whole.categories, whole.missing, whole.date)
    assert (merged.mean, merged.scale) == pytest.approx((whole.mean, whole.scale), rel=1e-6)
    np.testing.assert_allclose(merged.encode(values), whole.encode(values), rtol=1e-5, atol=1e-5)


def test_merged_sums_are_numpy_s():
    values = number(np.random.default_rng(0))
    merged = merge(map(Summary.of, parts_of(values, 0)))
    known = values[~np.isnan(values)]
    assert (merged.told, merged.untold, merged.missing) == (len(known), 0, np.isnan(values).sum())
    assert merged.mean == pytest.approx(known.mean(), rel=1e-14)
    assert merged.squares == pytest.approx(known.var() * len(known), rel=1e-6)


@pytest.mark.parametrize("nothing", [np.full(3, np.nan), np.full(3, None, object), np.full(3, "NaT", "datetime64[us]")])
@pytest.mark.parametrize("make", [number, date, text])
def test_a_part_without_a_value_goes_with_any_kind(make, nothing):
    """As CSV, whose empty columns have no kind."""
    values = make(np.random.default_rng(1))
    for parts in ((values, nothing), (nothing, values)):
        found = merge(map(Summary.of, parts))
        assert found.kind == make.__name__
        assert found.missing == Summary.of(values).missing + 3


def test_kinds_do_not_mix():
    rng = np.random.default_rng(2)
    with pytest.raises(fs.SettingError, match="numbers and texts have no common summary"):
        merge([Summary.of(number(rng)), Summary.of(text(rng))])


def test_what_is_rare_is_untold():
    """Categories of fewer rows than wanted, long ones, and those beyond the most frequent; and means of few rows."""
    names = np.repeat(np.array(["often", "some", "other", "rare", "x" * 30, None], object), [9, 5, 5, 4, 7, 2])
    whole = Summary.of(names)
    told = whole.discreet(5, most=10, longest=20)
    assert told.categories == {"often": 9, "other": 5, "some": 5}
    assert (told.told, told.untold, told.missing) == (19, 11, 2)
    assert whole.discreet(5, most=2, longest=20).categories == {"often": 9, "other": 5}
    assert whole.discreet(1, most=10, longest=30) == whole
    few = np.array([3.0, np.nan, 4.0, 5.0, 6.0])
    assert Summary.of(few).discreet(4, most=10, longest=20) == Summary.of(few)
    assert Summary.of(few).discreet(5, most=10, longest=20) == Summary("number", untold=4, missing=1)


def test_untold_values_are_in_no_sum():
    """Nor is their column a constant: one category, and others that have no name."""
    known = np.arange(7.0)
    merged = merge([Summary.of(known), Summary.of(np.array([1e9])).discreet(5, most=10, longest=20)])
    assert (merged.mean, merged.squares, merged.untold) == (3.0, 28.0, 1)
    assert Column.summed("n", merged).scale == pytest.approx(known.std())
    names = Summary.of(np.array(["a"] * 6 + ["b"], object)).discreet(5, most=10, longest=20)
    made = Column.summed("c", names)
    assert (made.features, made.shortened) == (("c = a",), True)
    assert made.encode(np.array(["a", "b"], object)).tolist() == [[1], [0]]
