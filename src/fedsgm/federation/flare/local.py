"""A whole federation on this machine: kits, a server and clients as processes of their own, and nothing left behind."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fedsgm.federation.flare import kits
from fedsgm.federation.sites import Sites


class LocalFederation(Sites):
    """``with LocalFederation(3) as federation:`` starts a server and three clients on 127.0.0.1 with mutual TLS.

    The arguments are those of :class:`Sites`.
    """

    server = "localhost"

    @property
    def admin(self) -> Path:
        """The kit of the one who submits jobs."""
        return self.kits[kits.ADMIN]

    def provide(self) -> None:
        self.kits = kits.provision(kits.project(self.names, server=self.server, port=self.port), self.folder)
        self._keep_jobs()

    def home(self, site: str) -> Path:
        return self.kits[site]

    def command(self, site: str) -> list[str]:
        role, more = ("server", []) if site == self.server else ("client", [f"uid={site}"])
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{role}.{role}_train", "-m"]
        command += [str(self.kits[site]), "-s", f"fed_{role}.json", "--set", "secure_train=true", *more]
        return [*command, "org=fedsgm", "config_folder=config"]

    def environment(self, site: str) -> Mapping[str, str]:  # noqa: ARG002 - the same for all
        """As the script sets it that starts a kit elsewhere: few arenas, not eight for each core, hold freed memory."""
        return {"MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "4")}

    def _keep_jobs(self) -> None:
        """In this federation's folder, and not in FLARE's own."""
        path = self.kits[self.server] / "local" / "resources.json"
        resources = json.loads(path.read_text())
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(self.folder / "snapshots")
        for component in resources["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = str(self.folder / "jobs")
        path.write_text(json.dumps(resources))
