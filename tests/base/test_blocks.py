"""Members in blocks are what they are all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsgm.base import blocks

MANY = 23  # a prime
STACKED = {"x": np.arange(MANY * 3, dtype=np.float32).reshape(MANY, 3)}, np.arange(MANY)


def square(data, i):
    return {"sum": (data["x"] ** 2).sum(), "index": i}


@pytest.mark.parametrize("size", [1, 2, 7, 22, 23, 100])
def test_blocks_give_every_answer_in_order(size):
    together = jax.vmap(square)(*STACKED)
    parted = jax.jit(blocks.in_blocks(square, size))(*STACKED)
    for name in together:
        np.testing.assert_array_equal(parted[name], together[name])


@pytest.mark.parametrize("size", [1, 2, 7, 22, 23, 100])
def test_a_fold_adds_up_and_writes_memories_where_they_are(size):
    data, _ = STACKED
    who = jnp.arange(MANY)[::-1] * 2  # of 46, in another order
    memory = np.full(2 * MANY, 100.0, np.float32)

    def fn(data, memory, i):
        return data["x"].sum(), memory + i

    def add(total, messages):
        return total + messages.sum(), messages

    total, said, after = jax.jit(
        lambda: blocks.fold(fn, add, jnp.float32(0), data, memory, who, who, size=size, slices=blocks.Slices())
    )()
    np.testing.assert_array_equal(said, data["x"].sum(axis=1))
    assert total == data["x"].sum()
    np.testing.assert_array_equal(after, 100 + np.arange(2 * MANY) * (np.arange(2 * MANY) % 2 == 0))


@pytest.mark.parametrize("room", [4 * MANY, 4 * MANY - 1])
def test_what_a_fold_makes_before_is_made_for_all_at_once_where_there_is_room(room, monkeypatch):
    monkeypatch.setattr(blocks, "_AT_ONCE", room)
    data, index = STACKED
    given = []

    def before(data, i):
        return {"twice": 2 * data["x"], "i": i}

    def fn(data, memory, i, *made):
        given.append(len(made))
        made = made[0] if made else before(data, i)
        return made["twice"].sum() + made["i"], memory

    def add(total, messages):
        return total + messages.sum(), messages

    memory = np.zeros(MANY, np.float32)
    found = blocks.fold(
        fn, add, jnp.float32(0), data, memory, index, index, size=1, slices=blocks.Slices(), before=before
    )
    assert set(given) == {room // (4 * MANY)}
    np.testing.assert_array_equal(found[1], 2 * data["x"].sum(axis=1) + index)


def test_blocks_are_alike_where_they_can_be():
    """So that one program is compiled for them: 20 by at most 8 are four of 5; 23 are two of 8 and one of 7."""

    def lots(many, size):
        return [lot.shape for lot in blocks._lots(jnp.arange(many), size)]

    assert lots(20, 8) == [(4, 5)]
    assert lots(23, 8) == [(2, 8), (1, 7)]
    assert lots(23, 1) == [(23, 1)]
    assert lots(5, 9) == [(1, 5)]


def test_members_with_much_of_their_own_are_worked_on_one_by_one_and_others_at_once(monkeypatch):
    few = np.zeros((20, 30))
    assert blocks.size_for(few, vector=31) == 20
    assert blocks.size_for(few, vector=blocks._VECTOR - 1) == 20
    assert blocks.size_for(few, vector=blocks._VECTOR) == 1
    assert blocks.size_for(few, vector=10**4, matrices=blocks._MATRICES - 1) == 20
    assert blocks.size_for(few, vector=10**4, matrices=blocks._MATRICES) == 1
    assert blocks.size_for(few, told=7, vector=10**6, matrices=10**6) == 7
    assert blocks.size_for(few, told=70) == 20
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # room is what counts there
    assert blocks.size_for(few, vector=10**6, matrices=10**6) == 20
    assert blocks.size_for(few, vector=10**7) == 3


def test_a_block_has_at_most_so_many_numbers(monkeypatch):
    monkeypatch.setattr(blocks, "_AT_ONCE", 100)
    assert blocks.size_for(np.zeros((20, 30))) == 3
    assert blocks.size_for(np.zeros((20, 5))) == 20
    assert blocks.size_for(np.zeros((20, 500))) == 1
