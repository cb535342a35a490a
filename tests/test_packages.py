"""The distributions: a wheel that is made of the sdist has the kernels where there is a compiler, and works without."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedsgm.base import native

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"
USE = """
import jax.numpy as jnp
import fedsgm
from fedsgm.core import topk
print(fedsgm.__file__, *topk.top_k(jnp.float32([1, -3, 2]), 2)[0], topk.in_use())
"""


def build(what, sources, out, **environment):
    arguments = [sys.executable, "-c", BUILD, what, str(out)]
    subprocess.run(arguments, cwd=sources, env=os.environ | environment, check=True, capture_output=True)
    return next(path for path in out.iterdir() if path.is_file())


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """What the sdist has, and nothing that was built beside the sources before."""
    checkout, out = (tmp_path_factory.mktemp(name) for name in ("checkout", "out"))
    built = shutil.ignore_patterns("_native*", "*.egg-info", "__pycache__")
    for folder in ("src", "native"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=built)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    with tarfile.open(build("sdist", checkout, out)) as sdist:
        sdist.extractall(out, filter="data")
    return next(path for path in out.iterdir() if path.is_dir())


def test_the_sdist_has_all_sources(sources):
    def files(folder):
        return {path.relative_to(folder) for path in folder.rglob("*.*") if path.parent.name != "__pycache__"}

    assert files(sources / "native") == files(ROOT / "native")
    own = {path for path in files(ROOT / "src" / "fedsgm") if not path.name.startswith("_native")}
    assert files(sources / "src" / "fedsgm") == own


@pytest.mark.parametrize(
    ("compiler", "told"),
    [
        pytest.param(
            {},
            "the compiled kernel",
            marks=pytest.mark.skipif(native.missing() is not None, reason=f"no kernel here: {native.missing()}"),
        ),
        ({"CC": "false", "CXX": "false"}, "in JAX, without the compiled kernel: "),
    ],
    ids=["compiler", "none"],
)
def test_the_wheel_works(sources, tmp_path, compiler, told):
    with zipfile.ZipFile(build("wheel", sources, tmp_path, **compiler)) as wheel:
        wheel.extractall(tmp_path / "installed")
    shutil.rmtree(sources / "build")  # or the next wheel would have what is there
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run([sys.executable, "-c", USE], cwd=tmp_path, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    where, words = done.stdout.strip().split(" ", 1)
    assert Path(where).is_relative_to(tmp_path / "installed")
    assert words.startswith(f"1 2 {told}")
