"""Who takes part, and what each gets: the project, every site's start-up kit with its certificate, and the job."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsgm.base.errors import FedSGMError, SettingError

ADMIN = "admin@fedsgm.org"
STATUS, STOP = "fedsgm.status", "fedsgm.stop"  # commands that a running job understands
OUTCOME, RESULT = "fedsgm.json", "fedsgm"  # a file and a folder that it leaves in its own
_BUILDERS = "nvflare.lighter.impl"
_ENGINE = "fedsgm.federation.flare"


def require_flare() -> None:
    """Say what to install, if FLARE is not there or another one is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("nvflare")
    except PackageNotFoundError:
        raise SettingError("a federation needs NVIDIA FLARE; install it with: pip install 'fedsgm[nvflare]'") from None
    if not found.startswith("2.9."):
        raise SettingError(f"nvflare {found} is installed, but fedsgm works with 2.9: pip install 'fedsgm[nvflare]'")


def check_run(name: str) -> None:
    """A run's name is a folder's on every site: nothing but that."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise SettingError(f"a run's name has letters, digits, dots, hyphens and underscores, but it is {name!r}")


def names(count: int) -> list[str]:
    """Names of so many clients, in the order of their numbers."""
    return [f"site-{number:0{len(str(count))}d}" for number in range(1, count + 1)]


def project(clients: Sequence[str], *, server: str = "localhost", port: int = 8002) -> dict[str, Any]:
    """What FLARE provisions from: who there is, and how their kits are made."""
    organisation = "fedsgm"
    return {
        "api_version": 3,
        "name": "fedsgm",
        "description": "A federation of fedsgm",
        "participants": [
            {"name": server, "type": "server", "org": organisation, "fed_learn_port": port},
            *({"name": name, "type": "client", "org": organisation} for name in clients),
            {"name": ADMIN, "type": "admin", "org": organisation, "role": "project_admin"},
        ],
        "builders": [
            {"path": f"{_BUILDERS}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": f"{_BUILDERS}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{_ENGINE}.builder.SiteBuilder"},
            {"path": f"{_BUILDERS}.cert.CertBuilder"},
            {"path": f"{_BUILDERS}.signature.SignatureBuilder"},
        ],
    }


class _Quiet:
    """Keeps what provisioning says, for the case that it fails."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def debug(self, _message: str) -> None: ...

    info = warning = debug

    def error(self, message: str) -> None:
        self.errors.append(message)


def provision(project: dict[str, Any], folder: Path) -> dict[str, Path]:
    """Make a certificate authority and a kit for everybody of the project; the kits' folders by name."""
    from nvflare.lighter.provision import prepare_builders, prepare_project
    from nvflare.lighter.provisioner import Provisioner

    said = _Quiet()
    made = prepare_project(copy.deepcopy(project))  # it takes the names out of what it is given
    Provisioner(str(folder), prepare_builders(project)).provision(made, logger=said)
    if said.errors:
        raise FedSGMError(f"the start-up kits could not be made: {said.errors[0]}")
    kits = folder / project["name"] / "prod_00"
    return {participant["name"]: kits / participant["name"] for participant in project["participants"]}


def write_job(
    folder: Path,
    *,
    run: str,
    clients: Sequence[str],
    experiment: str,
    data: str,
    settings: dict[str, Any] | None = None,
) -> Path:
    """The folder that is submitted. No code is in it: the sites have what it names."""
    both = {"run": run, "experiment": experiment, "settings": settings or {}}
    control = {"path": f"{_ENGINE}.controller.FedSGMController", "args": {**both, "clients": sorted(clients)}}
    execute = {"path": f"{_ENGINE}.executor.FedSGMExecutor", "args": {**both, "data": data}}
    app = folder / "app"
    server = {"workflows": [{"id": "fedsgm", **control}]}
    client = {"executors": [{"tasks": ["*"], "executor": execute}]}
    meta = {"name": run, "min_clients": 1, "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}}
    (app / "config").mkdir(parents=True)
    _write(folder / "meta.json", meta)
    _write(app / "config" / "config_fed_server.json", {"format_version": 2, **server, "components": []})
    _write(app / "config" / "config_fed_client.json", {"format_version": 2, **client, "components": []})
    return folder


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
