"""How whole programs are compiled."""

import jax
import numpy as np
import pytest

from fedsgm.base import cache

FULL = {"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 1}
LIGHT = FULL | {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def without(word, options):
    return {name: value for name, value in options.items() if word not in name}


@pytest.mark.parametrize(
    ("backend", "flags", "full", "light"),
    [
        ("cpu", "", FULL, LIGHT),
        ("cpu", "--xla_backend_optimization_level=3", without("level", FULL), without("level", LIGHT)),
        ("cpu", " ".join(f"--{name}=3" for name in LIGHT), {}, {}),
        ("gpu", "", None, None),
    ],
)
def test_programs_for_the_cpu_are_compiled_with_less_work_unless_told(monkeypatch, backend, flags, full, light):
    given = []

    def jit(fn, donate_argnums=(), compiler_options=None):
        assert donate_argnums == (1,)
        given.append(compiler_options)
        return fn

    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "jit", jit)
    program = cache.whole_program(lambda a, b: a + b, donate=(1,), light=lambda a, b: a < b)
    assert given == []  # nothing is asked of JAX before it is needed
    assert [program(2, 1), program(4, 3)] == [3, 7]
    assert given == [full]
    assert [program(1, 2), program(3, 4), program(2, 1)] == [3, 7, 3]
    assert given == [full, light]
    assert cache.whole_program(lambda a, b: a - b, donate=(1,))(1, 2) == -1
    assert given == [full, light, full]


@pytest.mark.parametrize("light", [True, False])
def test_a_compiled_program_gives_what_the_function_gives(monkeypatch, light):
    monkeypatch.setenv("XLA_FLAGS", "")
    program = cache.whole_program(lambda x: (3 * x + 1).sum(), light=lambda _: light)
    assert program(jax.numpy.arange(4.0)) == 22


def test_little_is_parameters_times_numbers():
    params, data = {"w": np.zeros((2**9, 2)), "b": np.zeros(2**10)}, {"x": np.zeros((2**8, 2**9))}
    assert cache.little(params, data)  # 2^11 times 2^17
    assert not cache.little(params, data | {"y": 0.0})
