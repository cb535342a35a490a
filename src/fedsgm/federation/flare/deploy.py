"""What a user edits for a federation across machines: ``fedsgm federate init``."""

from __future__ import annotations

import re
from pathlib import Path

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.federation.flare import kits

_TEMPLATES = Path(__file__).parent / "deployment"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def init(folder: Path, *, clients: int, server: str, port: int) -> list[Path]:
    """Write the project, the job, the client's data function and a README; the files."""
    check_count("federate init", "clients", clients)
    if not _HOST.fullmatch(server):
        raise SettingError(f"--server {server}: give the host name that the clients reach the server by")
    if not 1 <= port <= 65535:
        raise SettingError(f"--port {port}: a port is between 1 and 65535")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"{folder} is there already; choose a folder that is not, or an empty one")
    names = kits.names(clients)
    words = {
        "server": server,
        "port": port,
        "admin": kits.ADMIN,
        "count": clients,
        "first": names[0],
        "names": ", ".join(names),
        "clients": "\n".join(f"  - {{name: {name}, type: client, org: fedsgm}}" for name in names),
    }
    kits.write_job(
        folder / "job",
        run="first",
        clients=names,
        experiment="experiment.make",
        data="data.load",
        files=[_TEMPLATES / "experiment.py"],
    )
    data = (_TEMPLATES / "data.py").read_text()
    (folder / "data.py").write_text(data.replace("clients=3", f"clients={clients}"))
    for name in ("project.yml", "README.md"):
        (folder / name).write_text((_TEMPLATES / name).read_text().format(**words))
    return sorted(path for path in folder.rglob("*") if path.is_file())
