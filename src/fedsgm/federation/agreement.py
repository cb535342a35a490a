"""The server's part of a preparation: ask, agree, tell whoever does not know, and hear what clients say of the end."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import CheckpointError, FederationError, SettingError
from fedsgm.base.files import write_atomically
from fedsgm.base.layout import Layout, start_of
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.federation.experiment import Experiment
from fedsgm.federation.preparation import AGREE, DESCRIBE, MAGIC, REVIEW, Preparation, frame, opened
from fedsgm.federation.protocol import Failure, FrameError, Transport, checksum_of, one_line
from fedsgm.federation.run import TRIES
from fedsgm.results.result import Result

_FILE = "agreed.json"

log = logging.getLogger(__name__)


def carry_out(
    stated: Preparation,
    transport: Transport,
    run: Callable[[Experiment, Transport], Result],
    folder: Path | None = None,
) -> tuple[Result, Any]:
    """Agree with the clients on an experiment, ``run`` it, and let them review the answer; and what was agreed on.

    What was agreed on is kept in ``folder``, the run's checkpoint: a run that goes on does so under the same.
    """
    talk = Talk(transport, stated.timeout)
    agreed = _agreed(stated, talk, folder)
    experiment = stated.state(agreed)
    result = run(experiment, Informed(talk, agreed))
    start = start_of(experiment.params, experiment.seed)
    vector = Layout.of(start).flatten(jax.tree.map(np.asarray, result.answer))
    reviews = talk.review(vector, agreed)
    federation = result.settings["federation"] | {"preparation": {"up": talk.up, "down": talk.down}}
    counted = dataclasses.replace(result, settings=result.settings | {"federation": federation})
    return stated.conclude(agreed, counted, reviews), agreed


def _agreed(stated: Preparation, talk: Talk, folder: Path | None) -> Any:
    """What was agreed on, now or before the first round of the run that goes on."""
    asked = {"question": stated.question, "clients": list(talk.names)}
    if folder is not None and checkpoints.newest(folder) is not None:
        try:
            kept = json.loads((folder / _FILE).read_bytes())
            before, agreed = kept["asked"], kept["agreed"]
        except (OSError, ValueError, LookupError, TypeError):
            raise CheckpointError(
                f"{folder} has a checkpoint, but not what its clients agreed on; begin anew"
            ) from None
        if before != json.loads(json.dumps(asked)):
            raise CheckpointError(
                f"the checkpoint in {folder} was made for another question to the clients; use the same settings, or "
                "another folder for a new run"
            )
        return agreed
    agreed = json.loads(json.dumps(stated.agree(talk.describe())))  # as the clients will have it
    if folder is not None:
        write_atomically(folder / _FILE, json.dumps({"asked": asked, "agreed": agreed}).encode(), private=True)
    return agreed


class Talk:
    """Frames of the preparation, each with its answer or a reason for none; ``up`` and ``down`` count their bytes."""

    def __init__(self, transport: Transport, timeout: float) -> None:
        self.transport, self.timeout = transport, timeout
        self.names = list(transport.clients())
        self.up = self.down = 0

    def describe(self) -> dict[str, Any]:
        """Every client's description. One that cannot give it stops the run: the others would agree without it."""
        requests = {name: frame({"ask": DESCRIBE, "client": i}) for i, name in enumerate(self.names)}
        told: dict[str, Any] = {}
        for _ in range(TRIES):
            replies, why = self.ask({name: request for name, request in requests.items() if name not in told})
            told |= {name: reply.get("told") for name, reply in replies.items()}
            if len(told) == len(requests):
                return {name: told[name] for name in self.names}
        missing = next(name for name in self.names if name not in told)
        raise FederationError(f"{missing}: {why[missing]}; every client must describe its data before the run")

    def tell(self, names: Iterable[str], agreed: Any, seconds: float) -> dict[str, str]:
        """Tell them what was agreed on; why some could not make use of it."""
        numbers = {name: self.names.index(name) for name in names}
        requests = {n: frame({"ask": AGREE, "client": i, "agreed": agreed}) for n, i in numbers.items()}
        return self.ask(requests, seconds, stop=False)[1]

    def review(self, vector: np.ndarray, agreed: Any) -> dict[str, Any]:
        """What the clients say of parameters, those that answer."""
        request = frame({"ask": REVIEW}, np.asarray(vector, np.float32).tobytes())
        told: dict[str, Any] = {}
        for _ in range(TRIES):
            missing = [name for name in self.names if name not in told]
            if not missing:
                break
            replies, why = self.ask(dict.fromkeys(missing, request), stop=False)
            forgot = [name for name, reply in replies.items() if "forgot" in reply]
            why |= self.tell(forgot, agreed, self.timeout)
            told |= {name: reply.get("told") for name, reply in replies.items() if name not in forgot}
        for name in self.names:
            if name not in told:
                log.warning("%s has not reviewed the answer: %s", name, why.get(name, "no answer"))
        return {name: told[name] for name in self.names if name in told}

    def ask(
        self, requests: Mapping[str, bytes], seconds: float | None = None, *, stop: bool = True
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """What each client says, and why others say nothing; with ``stop`` one that refuses ends the run."""
        if not requests:
            return {}, {}
        limit = self.timeout if seconds is None else seconds
        replies = self.transport.exchange(requests, limit)
        said: dict[str, dict[str, Any]] = {}
        reasons: dict[str, str] = {}
        for name, request in requests.items():
            reply = replies.get(name, Failure(f"no answer in {limit:g} s"))
            self.down += len(request)
            self.up += 0 if isinstance(reply, Failure) else len(reply)
            try:
                words = _read(reply, request)
            except FrameError as error:
                reasons[name] = str(error)
                continue
            if "error" not in words:
                said[name] = words
                continue
            reasons[name] = one_line(str(words["error"]))
            if stop:
                raise SettingError(f"{name}: {reasons[name]}")
        return said, reasons


def _read(reply: bytes | Failure, request: bytes) -> dict[str, Any]:
    if isinstance(reply, Failure):
        raise FrameError(reply.reason)
    words, _ = opened(reply)
    if words.get("to") != checksum_of(request):
        raise FrameError("an answer to another request")
    if "damaged" in words:
        raise FrameError(one_line(str(words["damaged"])))
    return words


class Informed:
    """A transport of the run that tells each client first what was agreed on, and again where it has forgotten it."""

    def __init__(self, talk: Talk, agreed: Any) -> None:
        self._talk, self._agreed = talk, agreed
        self._knows: set[str] = set()

    def clients(self) -> Sequence[str]:
        return self._talk.names

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure]:
        replies = self._carry(requests, seconds)
        forgot = {name: requests[name] for name, reply in replies.items() if _forgot(reply)}
        self._knows -= forgot.keys()
        return replies | self._carry(forgot, seconds)

    def _carry(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Failure]:
        failed = self._talk.tell([name for name in requests if name not in self._knows], self._agreed, seconds)
        asked = {name: request for name, request in requests.items() if name not in failed}
        self._knows |= asked.keys()
        replies = self._talk.transport.exchange(asked, seconds) if asked else {}
        return {name: Failure(reason) for name, reason in failed.items()} | dict(replies)


def _forgot(reply: bytes | Failure) -> bool:
    """Whether a client says that it does not know what was agreed on."""
    return isinstance(reply, bytes) and reply[:2] == MAGIC
