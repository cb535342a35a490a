"""Structs: validation meets users and never JAX, and what is aside does not travel."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.structs import as_float32, aside, check_number, made_once, replaced, static, struct


@struct
class Strict:
    """It refuses all but a Python float above zero, which no tracer is."""

    rate: float
    size: int = static(default=3)
    note: str | None = aside(default=None)

    def __post_init__(self):
        if type(self.rate) is not float or self.rate <= 0:
            raise ValueError(f"rate={self.rate!r}")


def test_jax_rebuilds_without_init():
    made = jax.jit(lambda strict: jax.tree.map(lambda a: -a, strict))(Strict(2.0))
    assert (float(made.rate), made.size, made.note) == (-2.0, 3, None)
    assert jax.tree.map(lambda _: "not a rate", Strict(2.0)).rate == "not a rate"
    with pytest.raises(ValueError, match="rate=-1"):
        Strict(-1)


def test_replaced_changes_without_init_and_leaves_the_first_alone():
    first = Strict(2.0, note="mine")
    other = jax.jit(lambda s: replaced(s, rate=s.rate + 1))(first)
    assert float(other.rate) == 3.0
    assert replaced(first, rate="anything").note == "mine"
    assert (first.rate, first.note) == (2.0, "mine")
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.rate = 1.0


def test_what_is_aside_is_no_part_of_a_program():
    """Another note is neither another program nor another argument."""
    traces = []

    @jax.jit
    def run(strict):
        traces.append(strict.note)
        return strict.rate

    run(Strict(1.0, note="one"))
    run(Strict(2.0, note="two"))
    assert traces == [None]
    assert jax.tree.leaves(Strict(1.0, note="one")) == [1.0]


def test_numbers_become_float32_and_whole_arrays_stay():
    tree = as_float32({"a": 1, "b": 2.5, "c": np.arange(3, dtype=np.int32), "d": np.ones(2), "e": jnp.int32(4)})
    assert {name: np.asarray(leaf).dtype.name for name, leaf in tree.items()} == {
        "a": "float32", "b": "float32", "c": "int32", "d": "float32", "e": "int32"
    }  # fmt: skip


@pytest.mark.parametrize("value", [1, 2.5, np.float32(1), np.float64(3), np.int64(2), np.array(1.5), jnp.float32(2)])
def test_numbers_of_every_kind_are_numbers(value):
    check_number("it", "x", value, above=0)


@pytest.mark.parametrize(
    "value",
    [None, True, np.True_, "1", b"1", [1.0], (1,), {}, np.ones(1), 1j, float("nan"), np.inf, object, [[1], 2]],
    ids=repr,
)
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(fs.SettingError, match=r"^it: x=.*, but it must be a finite number$"):
        check_number("it", "x", value)


def test_a_tracer_is_no_number_of_a_user():
    with pytest.raises(fs.SettingError, match=r"step_size=.*, but it must be a finite number above 0"):
        jax.jit(lambda step: fs.FedSGM(step).step_size)(0.1)


def test_equal_arguments_give_what_was_made_before():
    @made_once
    def make(of, *, count=1):
        if count == 3:
            raise ValueError(of)
        return object()

    first = make("a", count=1)
    assert make("a", count=1) is first
    assert make("b", count=1) is not first
    assert make("a", count=1.0) is not first  # 1.0 may be refused where 1 is not
    assert make(["a"]) is not make(["a"])
    for _ in range(2):
        with pytest.raises(ValueError, match="a"):
            make("a", count=3)
