"""Rows that a client holds out: every row with the same chance, every mix of labels with its share."""

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.tables import dealing
from fedsgm.tables.grammar import parse
from fedsgm.tables.holding import check_groups, held_out, held_out_of_each


def labels(rows, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.choice(np.array(["yes", "no"], object), rows), rng.choice(np.array(["f", "m", None], object), rows)]


@pytest.mark.parametrize("fraction", [0.1, 0.2, 1 / 3, 0.5, 0.75])
@pytest.mark.parametrize("rows", [2, 3, 10, 997])
def test_every_mix_gives_its_share(rows, fraction):
    """Of a run of rows in order, as many as the fraction says, rounded up or down; and so of all of them."""
    for client in range(20):
        given = labels(rows, client)
        held = held_out(given, fraction, seed=0, client=client)
        assert not held.all()
        if rows * (1 - fraction) >= 1:
            assert abs(held.sum() - fraction * rows) < 1 + 1e-9
            for mix in set(zip(*given, strict=True)):
                same = np.array([row == mix for row in zip(*given, strict=True)])
                assert abs(held[same].sum() - fraction * same.sum()) < 1 + 1e-9


@pytest.mark.parametrize("rows", [2, 3, 7])
def test_every_row_has_the_same_chance(rows):
    """Also of clients with fewer rows than would give one; of one row, none. Three standard deviations of a share."""
    given, draws = labels(rows), 4000
    share = np.mean([held_out(given, 0.2, seed=seed, client=3) for seed in range(draws)], axis=0)
    np.testing.assert_allclose(share, 0.2, atol=3.5 * np.sqrt(0.2 * 0.8 / draws))
    assert not any(held_out(labels(1), 0.9, seed=seed, client=0).any() for seed in range(50))
    assert not held_out(labels(50), 0.0, seed=0, client=0).any()


def test_the_choice_is_the_client_s_own():
    """Whoever else there is, and in whatever place among the rows of all; other seeds and numbers choose others."""
    given = labels(60)
    owner = np.random.default_rng(5).integers(0, 4, 60)
    together = held_out_of_each(given, owner, 0.3, seed=7)
    for client in range(4):
        mine = [column[owner == client] for column in given]
        np.testing.assert_array_equal(together[owner == client], held_out(mine, 0.3, seed=7, client=client))
    choices = {held_out(given, 0.3, seed=s, client=c).tobytes() for s in range(5) for c in range(5)}
    assert len(choices) == 25


def test_fit_holds_out_what_each_client_would(monkeypatch):
    """By the texts of the target and of the groups' columns, with rows left out before."""
    rng = np.random.default_rng(1)
    rows = {
        "y": rng.choice(np.array(["a", "b", None], object), 300, p=[0.45, 0.45, 0.1]),
        "sex": rng.choice(np.array(["f", "m"], object), 300),
        "x": rng.normal(size=300),
        "site": rng.choice(np.array(["1", "2", "3"], object), 300),
    }
    seen = []
    monkeypatch.setattr(dealing, "held_out_of_each", lambda *g, **k: seen.append(held_out_of_each(*g, **k)) or seen[0])
    wanted = [parse("demographic_parity(sex) <= 0.1")]
    prepared = dealing.prepare(rows, target="y", wanted=wanted, client_by="site", test_fraction=0.25, seed=3)
    kept = rows["y"] != None  # noqa: E711 - of every row
    for client, site in enumerate("123"):
        mine = kept & (rows["site"] == site)
        expected = held_out([rows["y"][mine], rows["sex"][mine]], 0.25, seed=3, client=client)
        np.testing.assert_array_equal(seen[0][rows["site"][kept] == site], expected)
        assert prepared.clients.counts[client] == (~expected).sum()


def test_a_group_without_rows_is_named():
    one, odds = parse("demographic_parity(sex) <= 0.1"), parse("equalized_odds(sex) <= 0.1")
    counts = {"train": np.array([[3, 0], [2, 2]]), "test": np.array([[1, 1], [0, 0]])}
    with pytest.raises(fs.SettingError, match=r"no row of group 'm' to hold out; .*, or hold nothing out$"):
        check_groups(one, ("f", "m"), ("no", "yes"), counts)
    check_groups(one, ("f", "m"), ("no", "yes"), {"train": counts["train"]})
    with pytest.raises(
        fs.SettingError, match=r"no row of group 'f' and class 'yes' to train on; .* leave its rows out$"
    ):
        check_groups(odds, ("f", "m"), ("no", "yes"), {"train": counts["train"]})


def test_strata_are_texts_and_each_column_once():
    rows = {"y": np.array([1.0, 0.0]), "sex": np.array(["f", None], object), "n": np.array([2.5, np.nan])}
    wanted = [parse(text) for text in ("demographic_parity(sex * n) <= 0.1", "equalized_odds(sex) <= 0.1")]
    found = dealing.strata(rows, "y", wanted)
    assert [column.tolist() for column in found] == [["1", "0"], ["f", None], ["2.5", None]]
