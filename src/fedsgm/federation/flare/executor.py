"""A client's part of a FLARE job: requests go through its door to the client's code in its own process, and back."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from fedsgm.base.errors import SettingError
from fedsgm.federation.door import Audit, Closed, Door
from fedsgm.federation.flare.site import code_folders, filters, identity, limits, server_name, state_folder
from fedsgm.federation.flare.transport import ASK, CHANNEL, LOOK
from fedsgm.federation.limits import Limits
from fedsgm.federation.resident import Resident, Setup
from fedsgm.federation.sessions import REFUSED, Listener, refusal


class FedSGMExecutor(Executor):
    """A client's part of a job: hands its server's requests to the client's code in its own process, and answers back.

    Args:
        run, experiment, settings: as for the server.
        data: dotted name of a function on this client's machine: its examples for the client's name (and settings).
    """

    def __init__(self, run: str, experiment: str, data: str, settings: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.run, self.experiment, self.data, self.settings = run, experiment, data, settings or {}
        self.resident: Resident | Closed | None = None
        self._door: Door | None = None
        self._server = ""  # the cell of the server's part of this job

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            self._start(fl_ctx)
        elif event_type == EventType.END_RUN and self.resident:
            self.resident.close()

    def execute(self, *_: Any) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def _start(self, fl_ctx: FLContext) -> None:
        name = fl_ctx.get_identity_name()
        state = state_folder(fl_ctx, name, self.run)
        me = identity(fl_ctx, "client")
        server = server_name(fl_ctx)
        listener = Listener(me, server, self.run)
        own, why = Limits(), filters(fl_ctx)
        try:
            own = limits(fl_ctx, state.parent)
        except SettingError as error:
            self.log_error(fl_ctx, str(error))
            why = "this site's fedsgm.toml cannot be used; its log says more"
        setup = Setup(
            experiment=self.experiment,
            data=self.data,
            settings=self.settings,
            name=name,
            state_dir=str(state),
            path=code_folders(fl_ctx),
            signed=True,
            quantities=own.quantities,
            root=me.root.public_bytes(Encoding.PEM).decode(),
            server=server,
            clients=own.clients,
            requests=own.requests,
        )
        self.resident = Closed(why) if why else Resident(setup)
        self._door = Door(listener, self.resident, Audit(state), own, state.parent)
        self._server = FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()])
        cell = fl_ctx.get_engine().get_cell().core_cell
        cell.register_request_cb(channel=CHANNEL, topic=ASK, cb=self._answer)
        cell.register_request_cb(channel=CHANNEL, topic=LOOK, cb=self._look)

    def _is_server_s(self, request: Message) -> bool:
        """Whether the message came from the server's part of this job, as the engine has it; if not, that is noted."""
        assert self._door is not None
        origin = request.get_header(MessageHeaderKey.ORIGIN)
        if origin != self._server:
            self._door.refuse("it comes from another site", str(origin), bytes(request.payload or b""))
        return bool(origin == self._server)

    def _look(self, request: Message) -> Message:
        """One word for whether it can be asked; what is wrong is for its server alone."""
        if not self._is_server_s(request) or self.resident is None:
            return Message(payload=refusal(REFUSED))
        status = self.resident.status()
        return Message(payload=status.encode() if status in ("ready", "starting") else b"failed")

    def _answer(self, request: Message) -> Message:
        if not self._is_server_s(request) or self._door is None:
            return Message(payload=refusal(REFUSED))
        return Message(payload=self._door.answer(bytes(request.payload or b""), self._server))
