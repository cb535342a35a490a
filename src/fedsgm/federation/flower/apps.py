"""Flower apps as folders, and the switches that keep Flower quiet."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedsgm.base.errors import SettingError
from fedsgm.federation.flare.kits import check_run

VERSION = "1.41.0"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: Ray, in a simulation, listens on 127.0.0.1 alone
}
"""No telemetry, no look for updates, no installation at run time: what a user has set in the environment wins."""
_HERE = Path(__file__).parent
_SERVER_APP = '''"""The server's part of the run."""

from pathlib import Path

from flwr.serverapp import ServerApp

from fedsgm.federation.flower import server

app = ServerApp()


@app.main()
def main(grid, context):
    server.main(grid, context, Path(__file__).parent)
'''


def require_flower() -> None:
    """Say what to install, if Flower is not there or another one is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise SettingError("--engine flower needs Flower; install it with: pip install 'fedsgm[flower]'") from None
    if found != VERSION:
        raise SettingError(f"flwr {found} is installed, but fedsgm works with {VERSION}: pip install 'fedsgm[flower]'")


def quiet(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with Flower's switches off that it does not set itself."""
    return QUIET | dict(environment)


def write_app(
    folder: Path,
    *,
    run: str,
    clients: Sequence[str],
    experiment: str,
    data: str,
    settings: dict[str, Any] | None = None,
    files: Iterable[Path] = (),
) -> Path:
    """The folder of an app that ``flwr run`` takes; ``files`` of Python travel with it to every node."""
    check_run(run)
    config = {
        "run": run,
        "clients": ", ".join(sorted(clients)),
        "experiment": experiment,
        "data": data,
        "settings": json.dumps(settings or {}),
        "wait": 60.0,
    }
    about = {
        "project": {
            "name": "fedsgm-app",
            "version": "1.0.0",
            "description": "A constrained federated run of fedsgm",
            "license": "Apache-2.0",
            "dependencies": [f"flwr=={VERSION}", "fedsgm[flower]"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedsgm",
                    "components": {"serverapp": "server_app:app", "clientapp": "client_app:app"},
                    "config": config,
                }
            }
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(about))
    (folder / "server_app.py").write_text(_SERVER_APP)
    for file in (_HERE / "client_app.py", *files):
        shutil.copy(file, folder)
    return folder
