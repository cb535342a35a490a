"""Members of different sizes in groups: how they are chosen, and that nobody's rows are lost, doubled or mixed up."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsgm.base import sizes
from fedsgm.core.examples import Examples

RNG = np.random.default_rng(3)


def zipf(members, rows, power=1.0):
    shares = np.arange(1, members + 1) ** -power
    return np.maximum(1, (rows * shares / shares.sum()).astype(int))


def rows_of(counts, width=3):
    """Rows that say whose they are and which, and two rows of weights."""
    total = counts.sum()
    numbered = {"of": np.repeat(np.arange(len(counts)), counts), "x": RNG.normal(size=(total, width))}
    return Examples(numbered, RNG.uniform(1, 2, (2, total)).astype(np.float32), None)


def padded_size(room):
    return sum(length * many for length, many in room)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_the_groups_are_the_best_of_all_ways_to_cut(many_groups, share):
    """Sizes that are powers of two, so that a group may begin at any."""
    many_groups(True, share)
    for _ in range(20):
        given = np.sort(2 ** RNG.integers(0, 9, 10))[::-1]

        def cost(cuts, given=given):
            ends = [*cuts, len(given)]
            pieces = zip([0, *cuts], ends, strict=True)
            return sum(given[a] * (b - a) for a, b in pieces) + share * given.sum() * len(ends)

        ways = (cuts for k in range(10) for cuts in itertools.combinations(range(1, 10), k))
        room = sizes._room(given, rows_of(given))
        found = padded_size(room) + share * given.sum() * len(room)
        assert found == pytest.approx(min(map(cost, ways)))
        assert sum(many for _, many in room) == len(given)


def test_few_groups_and_little_padding_for_zipf():
    counts = zipf(60, 100_000)
    rows = [np.broadcast_to(np.float32(0), (counts.sum(), 50))]
    room = sizes._room(np.sort(counts)[::-1], rows)
    assert 1 < len(room) <= 6
    assert padded_size(room) < 1.6 * counts.sum() < 0.15 * 60 * counts.max()


@pytest.mark.parametrize("counts", [np.full(40, 2500), 2500 + np.arange(40) % 2, np.arange(2, 6002, 150)])
def test_about_equal_members_are_one_group(counts):
    """One array has at most twice the rows that are there."""
    assert sizes._room(np.sort(counts)[::-1], rows_of(counts, width=50)) == ((counts.max(), len(counts)),)


def test_small_data_are_one_group_whatever_the_sizes():
    """Compiling another program would take longer than all rounds."""
    counts = zipf(30, 3000)
    assert isinstance(sizes.arranged(rows_of(counts), counts), Examples)


def seen(one, number):
    """What tells a member's data apart: whose they are, how many, their sums, and its own number."""
    first = one.examples["of"][0]
    whose = jnp.all(one.examples["of"] == first)
    return first, whose, one.count, jnp.sum(one.weights, axis=1), one.weights @ one.examples["x"], number


def expected(rows, counts, who):
    ends = np.cumsum(counts)
    for j in who:
        mine = slice(ends[j] - counts[j], ends[j])
        weights = rows.weights[:, mine]
        yield j, True, counts[j], weights.sum(axis=1), weights @ rows.examples["x"][mine], 10 * j


def assert_members(answers, rows, counts, who):
    for found, wanted in zip(zip(*map(np.asarray, answers), strict=True), expected(rows, counts, who), strict=True):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("many_groups")
def test_every_member_has_its_own_rows_in_its_own_place():
    counts = RNG.permutation(zipf(25, 800))
    rows = rows_of(counts)
    data = sizes.arranged(rows, counts)
    assert len(data.groups) > 3
    assert sorted(np.concatenate(data.members)) == list(range(25))
    answers = jax.jit(lambda data: sizes.over(seen, data, 10 * jnp.arange(25)))(data)
    assert_members(answers, rows, counts, range(25))
    for group, members in zip(data.groups, data.members, strict=True):
        away = np.arange(group.weights.shape[2]) >= counts[members, None]
        assert away.any() or len(set(counts[members])) == 1
        assert (group.weights.swapaxes(0, 1)[:, away] == 0).all()
        repeated = np.broadcast_to(group.examples["x"][:, :1], group.examples["x"].shape)
        np.testing.assert_array_equal(group.examples["x"][away], repeated[away])


@pytest.mark.usefixtures("many_groups")
@pytest.mark.parametrize("many", [1, 4, 24])
def test_there_is_room_for_whoever_is_taken(many):
    counts = RNG.permutation(zipf(25, 800))
    rows = rows_of(counts)
    data = sizes.ready(sizes.arranged(rows, counts), many, draws=False)
    taken = jax.jit(lambda data, who: sizes.over(seen, sizes.take(data, who), 10 * who))
    largest = np.argsort(-counts)
    draws = [np.sort(RNG.choice(25, many, replace=False)) for _ in range(20)]
    for who in (np.sort(largest[:many]), np.sort(largest[-many:]), *draws):
        assert_members(taken(data, who), rows, counts, who)
    room = padded_size(data.store.room)
    assert room <= 1.3 * np.sort(counts)[-many:].sum(), "no more than for the largest ones"


@pytest.mark.usefixtures("many_groups")
def test_a_member_can_be_drawn_from_where_it_is():
    counts = zipf(25, 800)
    rows = rows_of(counts)
    data = jax.device_put(sizes.ready(sizes.arranged(rows, counts), 3, draws=True))

    def drawn(one, key):
        batch = one.batch(7, key)
        return batch.examples, batch.weights, batch.count

    who, keys = jnp.array([3, 0, 24]), jax.random.split(jax.random.key(0), 3)
    there = sizes.over(drawn, sizes.to_draw_from(data, who, None), keys)
    taken = sizes.over(drawn, sizes.take(data, who), keys)
    jax.tree.map(np.testing.assert_array_equal, there, taken)
    assert (there[0]["of"] == who[:, None]).all()


@pytest.mark.usefixtures("many_groups")
def test_what_is_not_needed_is_not_kept():
    counts = zipf(25, 800)
    data = sizes.arranged(rows_of(counts), counts)
    assert sizes.ready(data, 25, draws=False).store is None
    assert sizes.ready(data, 25, draws=True).store is not None
    assert sizes.ready(data, 3, draws=False).store is not None
    assert jax.device_put(data).origin is None
