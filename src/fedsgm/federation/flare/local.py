"""A whole federation on this machine: kits, a server and clients as processes of their own, and nothing left behind."""

from __future__ import annotations

import json
import sys
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
        for site in (self.server, *self.names):
            self._set_up(site)

    def home(self, site: str) -> Path:
        return self.kits[site]

    def command(self, site: str) -> list[str]:
        role, more = ("server", []) if site == self.server else ("client", [f"uid={site}"])
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{role}.{role}_train", "-m"]
        command += [str(self.kits[site]), "-s", f"fed_{role}.json", "--set", "secure_train=true", *more]
        return [*command, "org=fedsgm", "config_folder=config"]

    def _set_up(self, site: str) -> None:
        """Let the site run this library's part of a job without code that is sent, and keep its jobs in its kit."""
        local = self.kits[site] / "local"
        resources = json.loads((local / "resources.json.default").read_text())
        resources["class_allow_list"].append("fedsgm.federation.flare.")
        if site == self.server:
            jobs = str(self.folder / "jobs")
            resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(self.folder / "snapshots")
            for component in resources["components"]:
                if component["id"] == "job_manager":
                    component["args"]["uri_root"] = jobs
        (local / "resources.json").write_text(json.dumps(resources))
