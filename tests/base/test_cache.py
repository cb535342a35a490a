"""How whole programs are compiled."""

import jax
import pytest

from fedsgm.base import cache

LIGHT = {"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 1}


@pytest.mark.parametrize(
    ("backend", "flags", "options"),
    [
        ("cpu", "", LIGHT),
        ("cpu", "--xla_backend_optimization_level=3", {k: v for k, v in LIGHT.items() if "level" not in k}),
        ("cpu", " ".join(f"--{name}=3" for name in LIGHT), {}),
        ("gpu", "", None),
    ],
)
def test_programs_for_the_cpu_are_compiled_lightly_unless_told(monkeypatch, backend, flags, options):
    given = []

    def jit(fn, donate_argnums=(), compiler_options=None):
        assert donate_argnums == (1,)
        given.append(compiler_options)
        return fn

    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "jit", jit)
    program = cache.whole_program(lambda a, b: a + b, donate=(1,))
    assert given == []  # nothing is asked of JAX before it is needed
    assert [program(1, 2), program(3, 4)] == [3, 7]
    assert given == [options]


def test_a_lightly_compiled_program_gives_what_the_function_gives(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    assert cache.whole_program(lambda x: (3 * x + 1).sum())(jax.numpy.arange(4.0)) == 22
