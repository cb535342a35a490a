"""What a user edits for a federation across machines: ``fedsgm federate init``."""

from __future__ import annotations

import re
from pathlib import Path

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.federation.flare import kits

_TEMPLATES = Path(__file__).parent / "deployment"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")

WORDS = {
    "jax": {
        "experiment": "problem, algorithm, rounds",
        "data": "how this client reads its examples",
        "code": "experiment.py",
        "extras": "nvflare",
        "after": "",
    },
    "torch": {
        "experiment": "problem, algorithm, rounds; `model.py` beside it has the network and its loss",
        "data": "how this client reads its examples",
        "code": "experiment.py model.py",
        "extras": "nvflare,torch",
        "after": """
The network with the answer in it is `fedsgm.Result.load("runs/first").to_module(Net())`.
""",
    },
    "table": {
        "extras": "nvflare",
        "code": "experiment.py",
        "experiment": "target, constraints, rounds: the flags of `fedsgm federate fit`",
        "data": "where this client's table is, CSV or Parquet; as it stands, `NAME.csv` beside it",
        "after": """
The run's folder has the model, `model.json`. Whoever has the folder can apply it, also each client to its own rows:
`fedsgm predict runs/first NAME.csv`.
""",
    },
}


def init(folder: Path, *, clients: int, server: str, port: int, kind: str = "jax") -> list[Path]:
    """Write the project, the job, the client's data function and a README; the files.

    The job's problem is in JAX or in torch; or, of the kind ``"table"``, it fits a model to the clients' tables.
    """
    check(folder, clients=clients, server=server, port=port)
    names = kits.names(clients)
    words = {
        "server": server,
        "port": port,
        "admin": kits.ADMIN,
        "count": clients,
        "first": names[0],
        "names": ", ".join(names),
        "clients": "\n".join(f"  - {{name: {name}, type: client, org: fedsgm}}" for name in names),
        **WORDS[kind],
    }
    kits.write_job(
        folder / "job",
        run="first",
        clients=names,
        experiment="experiment.make",
        data="data.load",
    )
    write_code(folder, folder, kind=kind, clients=clients)
    for name in ("project.yml", "README.md"):
        (folder / name).write_text((_TEMPLATES / name).read_text().format(**words))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check(folder: Path, *, clients: int, server: str, port: int) -> None:
    """Refuse what cannot be written or reached."""
    check_count("federate init", "clients", clients)
    if not _HOST.fullmatch(server):
        raise SettingError(f"--server {server}: give the host name that the clients reach the server by")
    if not 1 <= port <= 65535:
        raise SettingError(f"--port {port}: a port is between 1 and 65535")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"{folder} is there already; choose a folder that is not, or an empty one")


def write_code(travels: Path, stays: Path, *, kind: str, clients: int) -> list[Path]:
    """The experiment, and the model where it is in torch, in one folder, the client's data function in the other."""
    prefix = "" if kind == "jax" else f"{kind}_"
    places = {"experiment": travels, "data": stays} | ({"model": travels} if kind == "torch" else {})
    for name, place in places.items():
        text = (_TEMPLATES / f"{prefix}{name}.py").read_text()
        (place / f"{name}.py").write_text(text.replace("clients=3", f"clients={clients}"))
    return [place / f"{name}.py" for name, place in places.items()]
