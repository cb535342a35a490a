"""A site's folders: what outlives a job there, and the code that a job may name."""

from __future__ import annotations

import os
from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace

from fedsgm.federation.flare.kits import check_run

SERVER = "server"  # its name among the sites' states


def state_folder(context: FLContext, site: str, run: str) -> Path:
    """Where this site keeps what must outlive the job: in its kit's folder, or where FEDSGM_STATE says."""
    check_run(run)
    workspace: Workspace = context.get_prop(FLContextKey.WORKSPACE_OBJECT)
    root = os.environ.get("FEDSGM_STATE")
    return (Path(root) / site if root else Path(workspace.get_root_dir()) / "fedsgm") / run


def code_folders(context: FLContext) -> list[str]:
    """The code that the engine has let in with the job, and the site's own."""
    workspace: Workspace = context.get_prop(FLContextKey.WORKSPACE_OBJECT)
    return [workspace.get_app_custom_dir(context.get_job_id()), workspace.get_site_custom_dir()]
