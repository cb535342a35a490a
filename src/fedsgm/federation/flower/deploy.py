"""What a user edits for a federation over Flower: ``fedsgm federate init --engine flower``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedsgm.federation.flare import deploy, kits
from fedsgm.federation.flower import apps

_README = Path(__file__).parent / "deployment" / "README.md"
_TABLES = """No table travels with the app: first let `data.py` say which folder of this machine they are in, and
`experiment.py` what to fit.
"""
_THERE, _HERE = "in its kit, as local/custom/data.py.", "in the folder that its node is told of."


def init(folder: Path, *, clients: int, server: str, port: int, kind: str = "jax") -> list[Path]:
    """Write an ordinary Flower app, with the experiment and the data function of this kind, and a README; the files."""
    deploy.check(folder, clients=clients, server=server, port=port)
    names = kits.names(clients)
    with tempfile.TemporaryDirectory() as made:
        files = deploy.write_code(Path(made), Path(made), kind=kind, clients=clients)
        for file in files:
            file.write_text(file.read_text().replace(_THERE, _HERE).replace("with the job", "with the app"))
        apps.write_app(folder, run="first", clients=names, experiment="experiment.make", data="data.load", files=files)
    words = {
        **deploy.WORDS[kind],
        "after": deploy.WORDS[kind]["after"].replace("runs/first", ".fedsgm/server/first/result"),
        "server": server,
        "port": port,
        "count": clients,
        "first": names[0],
        "names": ", ".join(names),
        "version": apps.VERSION,
        "extras": "flower,torch" if kind == "torch" else "flower",
        "simulation": _TABLES if kind == "table" else "",
    }
    (folder / "README.md").write_text(_README.read_text().format(**words))
    return sorted(path for path in folder.rglob("*") if path.is_file())
