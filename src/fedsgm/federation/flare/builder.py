"""What this library adds to a kit when FLARE makes it: a site takes no code from a job, and no message without end.

Nor does a site's memory grow with the rounds. FLARE sends its own small messages, a client's question for a task every
two seconds among them, as streams, with a buffer of a whole part, 1 MB, for each; and these stay until Python collects
garbage in full, which is seldom. So parts are small here, and the window still has as many as FLARE expects at most.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Project
from nvflare.lighter.spec import Builder

OWN = "fedsgm.federation.flare."
LARGEST = 2**28  # bytes of one message between sites, unless the kit says otherwise
_PART, _WINDOW = 2**16, 2**25  # bytes of a part of a stream, and of what may be on its way
_RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "app_command")  # of a submitter


class SiteBuilder(Builder):
    """Comes after FLARE's own builders of files; what it writes into ``local`` is the site's to change.

    Args:
        largest: bytes of one message between sites; the largest model that is sent as a whole must fit.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self._largest = largest

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        for participant in (project.get_server(), *project.get_clients()):
            close(Path(ctx.get_local_dir(participant)), self._largest)
        kits = map(ctx.get_ws_dir, project.get_all_participants())
        for folder in (ctx.get_state_dir(), *kits):  # with the root's key, and with logs, which may quote data
            Path(folder).chmod(0o700)


def close(local: Path, largest: int = LARGEST) -> None:
    """Write a site's own files over FLARE's defaults."""
    resources = _read(local / "resources.json.default")
    resources["class_allow_list"].append(OWN)
    _write(local / "resources.json", resources)
    rights = _read(local / "authorization.json.default")
    for role, given in rights["permissions"].items():
        own = dict.fromkeys(_RIGHTS, "any") if given == "any" else dict(given)
        rights["permissions"][role] = own | {"byoc": "none", "shell_commands": "none"}
    _write(local / "authorization.json", rights)
    options = [["grpc.max_send_message_length", largest], ["grpc.max_receive_message_length", largest]]
    limits = {"max_message_size": largest, "streaming_max_blob_size": largest, "grpc": {"options": options}}
    streams = {"streaming_chunk_size": _PART, "streaming_window_size": _WINDOW}
    _write(local / "comm_config.json", limits | streams)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
