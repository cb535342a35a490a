"""Experiments that depend on everybody's data: a client describes its own before the run, and reviews the answer after.

What is described, agreed on and reviewed is plain JSON, in frames beside those of the run. A client that does not know
what was agreed on says so, and is told: also one whose process was started again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from fedsgm.base.errors import FedSGMError, SettingError
from fedsgm.federation.client import Client
from fedsgm.federation.experiment import Experiment
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import FrameError, checksum_of, one_line, seal, told, unseal

if TYPE_CHECKING:
    from fedsgm.results.result import Result

DESCRIBE, AGREE, REVIEW = "describe", "agree", "review"
MAGIC = b"fP"
_LARGEST = 2**26  # bytes of a frame that is read
_NESTED = 200_000  # lists and dictionaries in it, which take far more memory than they have bytes


@runtime_checkable
class Preparation(Protocol):
    """What a job's function may give in place of an :class:`Experiment`.

    A :class:`SettingError` of what runs on a client is told to the server as it is, so it must not quote data; of any
    other error only the kind is.
    """

    @property
    def question(self) -> Any:
        """What the agreement depends on beside the data, as plain JSON: a run is gone on with under the same alone."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds that a client has for an answer."""
        ...

    def load(self, given: Any) -> Any:
        """On a client: its data, of what its data function gave."""
        ...

    def describe(self, data: Any, client: int) -> Any:
        """On a client, by its number: all that the server is told of its data before the run."""
        ...

    def agree(self, descriptions: Mapping[str, Any]) -> Any:
        """On the server: what the experiment is stated with, of the clients' descriptions by name, in their order."""
        ...

    def state(self, agreed: Any) -> Experiment:
        """Everywhere."""
        ...

    def examples(self, data: Any, client: int, agreed: Any) -> Any:
        """On a client: what an :class:`Experiment` would have its data function give."""
        ...

    def review(self, examples: Any, params: Any, agreed: Any) -> Any:
        """On a client: what the server is told of these parameters, the run's answer."""
        ...

    def conclude(self, agreed: Any, result: Result, reviews: Mapping[str, Any]) -> Result:
        """On the server: the result with what the reviews, by the clients' names, say of it in its settings."""
        ...

    def keep(self, agreed: Any, result: Result, folder: Path) -> None:
        """On the server: write what belongs beside the saved run."""
        ...


def frame(words: Mapping[str, Any], vector: bytes = b"") -> bytes:
    """Plain JSON, and a vector of float32."""
    return seal(MAGIC + json.dumps(words, allow_nan=False, separators=(",", ":")).encode() + b"\0" + vector)


def opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    """What :func:`frame` put together; :class:`FrameError` for any other bytes."""
    if data[:2] != MAGIC:
        raise FrameError("the bytes are no frame of a preparation")
    if len(data) > _LARGEST:
        raise FrameError(f"a description of {len(data)} bytes, which is too long")
    text, _, vector = unseal(data)[2:].partition(b"\0")
    if text.count(b"[") + text.count(b"{") > _NESTED:
        raise FrameError("a description of more parts than are read")
    try:
        words = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise FrameError("what was said is no JSON") from None
    if not isinstance(words, dict):
        raise FrameError("what was said has no names")
    return words, vector


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


class Newcomer:
    """A client of an experiment that is yet to be agreed on; ``answer`` as a :class:`Client` has it.

    Args:
        stated: the same as the server's.
        give: this client's data function.
        state_dir: the client's folder.
        how: what else its :class:`Client` is made with.
    """

    def __init__(self, stated: Preparation, give: Callable[[], Any], state_dir: str | Path, **how: Any) -> None:
        self._stated, self._state_dir, self._how = stated, state_dir, how
        self._client: Client | None = None
        self._reviewed: tuple[Any, Any] = (None, None)  # examples, what was agreed
        self._data, self._failed = None, ""
        try:
            given = give()
        except Exception as error:
            self._failed = told(error).decode()  # whatever the user's own function says may quote a row
            return
        try:
            self._data = stated.load(given)
        except Exception as error:
            self._failed = _discreet(error)

    def answer(self, request: bytes) -> bytes:
        """The reply. What goes wrong is told in it in one line."""
        if request[:2] != MAGIC and self._client is not None:
            return self._client.answer(request)
        try:
            words = self._reply(*opened(request)) if request[:2] == MAGIC else {"forgot": True}
        except FrameError as error:
            words = {"damaged": str(error)}
        except Exception as error:
            words = {"error": _discreet(error)}
        return frame({"to": checksum_of(request)} | words)

    def _reply(self, asked: dict[str, Any], vector: bytes) -> dict[str, Any]:
        if self._failed:
            raise SettingError(self._failed)
        if asked["ask"] == DESCRIBE:
            return {"told": self._stated.describe(self._data, asked["client"])}
        if asked["ask"] == AGREE:
            return self._agree(asked["client"], asked["agreed"])
        if self._client is None:
            return {"forgot": True}
        params = self._client.program.task.layout.unflatten(np.frombuffer(vector, np.float32))
        examples, agreed = self._reviewed
        return {"told": self._stated.review(examples, params, agreed)}

    def _agree(self, client: int, agreed: Any) -> dict[str, Any]:
        experiment = self._stated.state(agreed)
        examples = self._stated.examples(self._data, client, agreed)
        program = Program.of(experiment.algorithm, experiment.problem, experiment.params)
        self._client = Client(program, examples, self._state_dir, **self._how)
        self._reviewed = (examples, agreed)
        return {}


def _discreet(error: Exception) -> str:
    """What may be said of an error elsewhere; the rest stays in this machine's log."""
    return one_line(str(error)) if isinstance(error, FedSGMError) else told(error).decode()
