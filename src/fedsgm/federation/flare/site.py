"""A site's own: its folders and its keys, what outlives a job there, and the code that a job may name."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.private.privacy_manager import PrivacyService

from fedsgm.base.errors import SettingError
from fedsgm.federation.flare.kits import check_run
from fedsgm.federation.limits import Limits
from fedsgm.federation.signing import Identity

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


def identity(context: FLContext, role: str) -> Identity:
    """This site's, of its kit; ``role`` is server or client."""
    startup = _startup(context)
    return Identity.read(startup / f"{role}.key", startup / f"{role}.crt", startup / "rootCA.pem")


def server_name(context: FLContext) -> str:
    """The name in the server's certificate, by this client's kit."""
    startup = _startup(context)
    try:
        return str(json.loads((startup / "fed_client.json").read_text())["servers"][0]["identity"])
    except (OSError, ValueError, LookupError, TypeError):
        raise SettingError(f"{startup} does not say who the server is; get this site's kit anew") from None


def limits(context: FLContext, site: Path) -> Limits:
    """What this site lets be asked of it, by the file in its kit or among its states."""
    workspace: Workspace = context.get_prop(FLContextKey.WORKSPACE_OBJECT)
    return Limits.read([Path(workspace.get_site_config_dir()), site])


def filters(context: FLContext) -> str:
    """Why a client must not start here: FLARE's filters act on tasks, and would see nothing of these messages."""
    runner, manager = context.get_prop(FLContextKey.RUNNER), PrivacyService.get_manager()
    scopes = [] if manager is None else list(manager.name_to_scopes.values())
    of_site = [each for scope in scopes for each in (scope.task_data_filters, scope.task_result_filters)]
    if any(filter for chains in of_site for filter in chains.values()):
        return "this site has privacy filters for FLARE's tasks (privacy.json), which fedsgm's messages would bypass"
    if runner is not None and (runner.task_data_filters or runner.task_result_filters):
        return "the job has filters for FLARE's tasks, which fedsgm's messages would bypass; leave them out"
    return ""


def _startup(context: FLContext) -> Path:
    workspace: Workspace = context.get_prop(FLContextKey.WORKSPACE_OBJECT)
    return Path(workspace.get_startup_kit_dir())
