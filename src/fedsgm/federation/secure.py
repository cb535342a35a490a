"""A run in which the server sees sums alone: of the statistics at each model, and of each round's updates.

What follows from clients' statistics follows from their mean, so every client that is in the sum is taken to have said
the mean; of the updates, one message has the sum and the others nothing. The rest of the run is as without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import replaced
from fedsgm.core.algorithm import FedSGM, Flat
from fedsgm.core.compression import Fixed
from fedsgm.core.each_client import EachClient
from fedsgm.core.feedback import compressor_of
from fedsgm.core.problem import Problem
from fedsgm.core.rules import Direction, StandardErrors
from fedsgm.core.shared import SharedK
from fedsgm.engines.recording import Kept
from fedsgm.federation.answers import WRONG_SHAPE, Reasons, Report, Update
from fedsgm.federation.masking import WIDE, Sums, width
from fedsgm.federation.program import At, Program, pack_direction
from fedsgm.federation.protocol import FrameError, Kind, Transport
from fedsgm.federation.run import Run
from fedsgm.privacy import shares
from fedsgm.privacy.clients import PrivateClients
from fedsgm.privacy.private import Private
from fedsgm.privacy.secure import FEWEST, threshold

_NOT_IN_IT = "it is not in the sum at this model"


def check(algorithm: Any, problem: Any, clients: int, test: Any = None) -> None:
    """Refuse what needs to see a client by itself."""
    private, problem = problem, problem.problem if isinstance(problem, Private) else problem
    if not isinstance(algorithm, FedSGM) or not isinstance(problem, Problem):
        raise SettingError("secure: only FedSGM on a Problem of examples, in JAX, has statistics that are sums")
    if algorithm.query == "memory":
        raise SettingError("secure: query='memory' keeps each client's answer, which nobody sees; take 'all'")
    if getattr(algorithm, "robust", None) is not None:
        raise SettingError("secure: robust aggregation looks at each client's message, which nobody sees; leave it out")
    if isinstance(getattr(algorithm.rule, "margin", None), StandardErrors):
        raise SettingError("secure: a margin in standard errors needs the clients' values one by one; give a number")
    for constraint in problem.constraints:
        if isinstance(constraint.quantity, EachClient):
            raise SettingError(f"secure: {constraint.name!r} bounds each client's own value, which nobody sees")
    link = compressor_of(algorithm.uplink)
    if not isinstance(link, SharedK):
        raise SettingError(f"secure: uplink={link!r}, but only messages of SharedK(...) can be added unseen")
    if isinstance(test, str) and test == "clients":
        raise SettingError("secure: test='clients' would be sums over other clients; hold examples out on the server")
    _check_clients(algorithm, clients, link)
    if isinstance(private, PrivateClients):
        shares.check(private, link, clients)


def _check_clients(algorithm: FedSGM, clients: int, link: SharedK) -> None:
    least, cohort = threshold(clients), algorithm.cohort(clients)
    if clients < FEWEST:
        raise SettingError(f"secure: {clients} clients, but a sum hides nobody among fewer than {FEWEST}")
    if cohort < least:
        raise SettingError(f"secure: participants={cohort}, but a sum must be of at least {least} of {clients} clients")
    if cohort < clients and algorithm.query != "all":
        raise SettingError("secure: with participants drawn, every client answers the query: take query='all'")
    if width(link.bits, clients) > 4:
        raise SettingError(f"secure: {clients} clients and {link.bits} bits overflow the sum; take fewer bits")


def _without_noise(program: Program, clients: int) -> Program:
    """The server's, of a run that hides clients: they have added the noise themselves, in shares."""
    task = program.task.task
    if not isinstance(task, PrivateClients):
        return program
    told = replaced(task, widened=np.float32(threshold(clients)))
    return dataclasses.replace(program, task=Flat(told, program.task.layout))


class SecureRun(Run):
    """The server of such a run."""

    sees_each = False

    def __init__(self, program: Program, transport: Transport, **settings: Any) -> None:
        super().__init__(_without_noise(program, len(transport.clients())), transport, **settings)
        identity = getattr(transport, "identity", None)
        if identity is None:
            raise SettingError("secure: the clients' certificates are needed, which a federation over FLARE has")
        self.sums = Sums(self.panel, identity)
        link: Any = compressor_of(program.algorithm.uplink)
        self.panel.largest_update = 1 + width(link.bits, self.sums.clients) * link.kept(program.size)
        self.min_participants = max(self.min_participants, self.sums.least)
        self._known: tuple[int, dict[int, Report], Reasons] | None = None  # the version, and what its sum came to

    def _measure(
        self, kinds: dict[int, Kind], who: list[int], models: Sequence[np.ndarray] = ()
    ) -> tuple[dict[int, Report], Reasons]:
        """At one model there is one sum: what was not in it is never added, and what is known is not asked again."""
        if self._known is None or self._known[0] != self.model.version:
            reports, reasons = self._summed(kinds, models)
            if not reports:
                return {}, reasons
            self._known = self.model.version, reports, reasons
        _, reports, reasons = self._known
        why = {client: reasons.get(client, _NOT_IN_IT) for client in {*kinds, *who} if client not in reports}
        return {client: report for client, report in reports.items() if client in kinds}, why

    def _measured_before(self) -> dict[bytes, tuple[Mapping[str, Any], Any]]:
        """Of the models that are kept: a second sum there, without a client that has left since, would show it."""
        columns, names = self.history.columns, ("objective", *self.program.task.task.bounds)
        kept = [(self.found.averages, at) for at in self._alone()]
        kept += [(each.w, each.round) for each in (self.found.best, self.found.least) if each.round]
        unknown = np.float32(np.nan)  # of the start: a round measures the model that it made
        return {
            w.tobytes(): ({name: columns[name][made - 1] if made else unknown for name in names}, None)
            for w, made in kept
        }

    def _alone(self) -> list[int]:
        """The round that made the one iterate that the average is, if it is one; their noise hides those of others."""
        if isinstance(self.program.task.task, Private):
            return []
        weights = np.float32(1) - self.history.columns["weight"][: self.rounds]
        (some,) = np.nonzero(weights > 0)
        return some.tolist() if len(some) == 1 and weights[some[0]] == self.found.weight else []

    def _answer(self, measured: Mapping[bytes, tuple[Mapping[str, Any], Any]], clients: int) -> Kept:  # noqa: ARG002
        return self.found.answer  # what it is held against was measured once, then

    def _summed(self, kinds: Mapping[int, Kind], models: Sequence[np.ndarray]) -> tuple[dict[int, Report], Reasons]:
        (kind,) = set(kinds.values())
        payload = b"".join(w.tobytes() for w in models)
        found, reasons = self.sums.ask(self.model, kind, list(kinds), payload, WIDE)
        if found is None:
            return {}, reasons
        try:
            report = Report.read(found.mean, kind, 1 + len(models), ())
        except FrameError as error:
            return {}, dict.fromkeys(kinds, str(error))
        if self._forms.odd({0: report}):
            return {}, dict.fromkeys(kinds, WRONG_SHAPE)
        return dict.fromkeys(found.survivors, report), reasons

    def _update(self, who: list[int], direction: Direction) -> tuple[dict[int, Update], Reasons]:
        link = compressor_of(self.program.algorithm.uplink)
        assert isinstance(link, SharedK)
        size = width(link.bits, self.sums.clients)
        found, reasons = self.sums.ask(self.model, Kind.UPDATE, who, pack_direction(direction), size)
        if found is None or len(found.numbers) != link.kept(self.program.size):
            return {}, reasons | {client: reasons.get(client, WRONG_SHAPE) for client in who}
        key: Any = np.asarray(jax.random.key_data(At.of(self.seed, self.round).keys.shared))
        codes: Any = np.zeros((len(found.survivors), len(found.numbers)), np.int32)
        codes[0] = found.numbers
        messages: list[Any] = [Fixed(row, key, self.program.size, link.bits, direction.named) for row in codes]
        return {
            client: Update(message, found.size, 0.0) for client, message in zip(found.survivors, messages, strict=True)
        }, reasons
