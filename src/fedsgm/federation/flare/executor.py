"""A client's part of a FLARE job: requests go to the client's code in its own process, and its answers back."""

from __future__ import annotations

from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedsgm.base.errors import ClientError
from fedsgm.federation.flare.site import code_folders, state_folder
from fedsgm.federation.flare.transport import ASK, LOOK
from fedsgm.federation.resident import Resident, Setup


class FedSGMExecutor(Executor):
    """A client's part of a job: hands requests to the client's code in its own process, and its answers back.

    Args:
        run, experiment, settings: as for the server.
        data: dotted name of a function on this client's machine: its examples for the client's name (and settings).
    """

    def __init__(self, run: str, experiment: str, data: str, settings: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.run, self.experiment, self.data, self.settings = run, experiment, data, settings or {}
        self.resident: Resident | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            name = fl_ctx.get_identity_name()
            setup = Setup(
                experiment=self.experiment,
                data=self.data,
                settings=self.settings,
                name=name,
                state_dir=str(state_folder(fl_ctx, name, self.run)),
                path=code_folders(fl_ctx),
            )
            self.resident = Resident(setup)
            engine = fl_ctx.get_engine()
            engine.register_aux_message_handler(ASK, self._answer)
            engine.register_aux_message_handler(LOOK, self._look)
        elif event_type == EventType.END_RUN and self.resident:
            self.resident.close()

    def execute(self, *_: Any) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def _look(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        reply = make_reply(ReturnCode.OK)
        reply["status"] = self.resident.status() if self.resident else "starting"
        return reply

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        assert self.resident is not None
        try:
            answer = self.resident.ask(request["bytes"], request["seconds"])
        except ClientError as error:
            self.log_warning(fl_ctx, str(error))
            reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
            reply["reason"] = str(error)
            return reply
        reply = make_reply(ReturnCode.OK)
        reply["bytes"] = answer
        return reply
