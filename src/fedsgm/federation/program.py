"""What the server and every client have in common: the algorithm, the problem, the form of the parameters.

Each makes it from the same settings; a fingerprint, which comes with the model, tells when they differ. Its methods
are the functions of ``algorithm.py``, compiled, with randomness from (seed, round, client), so that a federated run
takes the steps that :func:`fedsgm.engines.simulate` takes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.cache import use_compilation_cache
from fedsgm.base.describe import describe
from fedsgm.base.errors import SettingError, WireError
from fedsgm.base.layout import Layout, start_of
from fedsgm.base.structs import as_float32, replaced, struct
from fedsgm.core import feedback, wire
from fedsgm.core.algorithm import FedSGM, Flat
from fedsgm.core.compression import Message
from fedsgm.core.drawing import RoundKeys
from fedsgm.core.feedback import Uplink, compressor_of
from fedsgm.core.rules import Direction
from fedsgm.core.task import Task
from fedsgm.engines import recording
from fedsgm.federation.protocol import VERSION, FrameError, pack, unpack
from fedsgm.privacy.task import fresh, guarded, plain


@struct
class At:
    """Where in a run: all that its randomness depends on. ``client`` is -1 on the server."""

    seed: Any
    round: Any
    client: Any

    @classmethod
    def of(cls, seed: int, round: int, client: int = -1) -> At:
        return cls(np.uint32(seed), np.int32(round), np.int32(client))

    @property
    def keys(self) -> RoundKeys:
        return RoundKeys.of(self.seed, self.round)

    @property
    def key(self) -> jax.Array:
        return self.keys.client(self.client)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """One run's algorithm and problem, as server and clients call them; vectors are flat float32 arrays."""

    algorithm: FedSGM
    task: Flat
    params: Any

    @classmethod
    def of(cls, algorithm: FedSGM, problem: Task, params: Any, seed: int = 0) -> Program:
        """The program of these settings; ``params`` are the run's starting parameters, on the client their like.

        Where they are a function of the seed, the server has the run's ``seed``; a client needs none.
        """
        use_compilation_cache()
        if hasattr(problem, "program"):  # another framework's, with functions of its own
            return problem.program(algorithm, params, seed)
        params, problem = start_of(params, seed), guarded(algorithm, problem)
        traced, task = as_float32((algorithm, Flat(problem, Layout.of(params))))
        return cls(traced, task, params)

    @functools.cached_property
    def pooled(self) -> Program:
        """The same for values over everybody's examples together, as those of held-out ones are."""
        if not hasattr(self.task.task, "pooled"):
            raise SettingError("test='clients': this task has no examples of its own to hold out, so leave test out")
        return dataclasses.replace(self, task=Flat(self.task.task.pooled, self.task.layout))

    @property
    def size(self) -> int:
        """d, the number of parameters."""
        return self.task.layout.size

    @functools.cached_property
    def start(self) -> np.ndarray:
        """The starting parameters, flat."""
        return self.task.layout.flatten(jax.tree.map(np.asarray, self.params))

    @property
    def _noised(self) -> Flat:
        """The task, of a private run with noise that no other answer or sum has."""
        return self.task if getattr(self.algorithm, "privacy", None) is None else fresh(self.task)

    @functools.cached_property
    def fingerprint(self) -> int:
        """The same for the same settings, in any process."""
        layout = self.task.layout
        settings = [describe(self.algorithm), describe(self.task.task), str(layout.structure), layout.shapes]
        text = re.sub(r" at 0x[0-9a-f]+", "", json.dumps([VERSION, *settings], sort_keys=True))
        return zlib.crc32(text.encode())

    def prepare(self, data: Any) -> Any:
        """A client's own data, checked and ready for the functions below."""
        return jax.tree.map(jnp.asarray, self.task.task.prepare_one(data, self.params))

    def init_memory(self) -> Any:
        """A client's at the start of a run."""
        return self.algorithm.init_memory(self.size)

    def held_out(self, test: Any) -> Any:
        """Examples that the server holds out, ready for :meth:`values_at`."""
        return recording.held_out(plain(self.task).task, test, self.params)

    def values_at(self, vectors: np.ndarray, held_out: Any) -> dict[str, Any]:
        """The values on them, of [kind, seed] parameter vectors."""
        return recording.values_at(plain(self.task), vectors, held_out)

    def sample(self, at: At, clients: int, again: int = 0) -> list[int]:
        """The participants of a round; others, where it is done again because too few of the first answered."""
        return [int(i) for i in _sample(self.algorithm, at, clients, again)]

    def measure(self, w: np.ndarray, data: Any, at: At, memory: Any = None) -> tuple[Any, Any]:
        """Of the client's memory, a framework's own program may have use."""
        statistics, kept = _measure(self.algorithm, self._noised, w, data, at)
        return _numpy(statistics), kept

    def decide(
        self, server: Any, statistics: Mapping[int, Any], clients: int, at: At
    ) -> tuple[Direction, Any, dict[str, np.ndarray]]:
        """The direction, the server's state, and what is recorded of the decision, from these clients' statistics."""
        who = np.array(list(statistics), np.int32)
        said = _stacked(list(statistics.values()))
        return _numpy(_decide(self.algorithm, self._noised, server, said, who, clients, at))

    def also_asked(self, server: Any, clients: int) -> list[int]:
        """Who is asked beside the participants: everybody, or who was never heard, or nobody."""
        if self.algorithm.query == "all":
            return list(range(clients))
        if not self.algorithm.asks_first:
            return []
        heard = np.zeros(clients) if server.remembered is None else server.remembered.heard
        return [client for client in range(clients) if not heard[client]]

    def local_update(
        self, w: np.ndarray, direction: Direction, data: Any, kept: Any, memory: Any, at: At
    ) -> tuple[Message, Any]:
        return _numpy(_local_update(self.algorithm, self._noised, w, direction, data, kept, memory, at))

    def aggregate(
        self,
        server: Any,
        messages: list[Message],
        at: At,
        who: Sequence[int] = (),
        doubted: np.ndarray | None = None,
    ) -> tuple[Any, Message]:
        """``who`` sent them, and ``doubted`` is 1 for whom robust aggregation does not believe."""
        whose = np.array(who or range(len(messages)), np.int32)
        return _numpy(_aggregate(self.algorithm, self._noised, server, _stacked(messages), at, whose, doubted))

    def rejected(self, messages: list[Message], doubted: np.ndarray | None) -> list[float]:
        """The share of each message that robust aggregation leaves out."""
        return np.asarray(_rejected(self.algorithm, _stacked(messages), self.size, doubted)).tolist()

    def receive(self, w: np.ndarray, broadcast: Message) -> np.ndarray:
        """``algorithm.receive`` in two parts: as one program, products and sums could be fused, and the last bit of a
        client's model be another than that of the server's on another machine."""
        return np.asarray(feedback.follow(self.algorithm.downlink, jnp.asarray(w), broadcast, _dense))

    def inspect(self, before: np.ndarray, after: np.ndarray, kept: Any, at: At) -> dict[str, np.ndarray]:
        return _numpy(_inspect(self.task, before, after, kept, at))

    def evaluate(self, w: np.ndarray, data: Any, memory: Any = None) -> Any:
        return _numpy(_evaluate(self._noised, w, data))

    def summarise(self, evaluations: list[Any], w: np.ndarray | None = None) -> tuple[dict[str, np.ndarray], Any]:
        """Of all clients' evaluations of ``w``, which a private run must say: a model's values have one noise."""
        return _numpy(_summarise(self.task, self.start if w is None else w, _stacked(evaluations)))

    def disbelieved(self, evaluations: list[Any]) -> np.ndarray:
        """1 for each client whose evaluation of a model robust aggregation does not believe beside the others'."""
        judge = getattr(self.task.task, "disbelieved", None)
        if self.algorithm.robust is None or judge is None:
            return np.zeros(len(evaluations))
        return np.asarray(_disbelieved(self.task, _stacked(evaluations)))

    def can_decide(self, statistics: Any) -> bool:
        """Whether one client's statistics are of a form that :meth:`decide` takes."""
        server = self.algorithm.init(self.task, self.start, 1)
        return _scalars(functools.partial(_seen, self.algorithm, self.task), server, statistics, At.of(0, 0))

    def can_summarise(self, evaluation: Any) -> bool:
        return _scalars(lambda one: _summarise(self.task, self.start, _alone(one)), evaluation)

    def encode(self, message: Message) -> bytes:
        return wire.encode(message, self.size)

    @functools.cached_property
    def largest_update(self) -> int:
        """Bytes of the longest message that a client's compressor can make."""
        uplink: Any = self.algorithm.uplink
        return wire.largest(_like(uplink, self.size))

    @property
    def longest(self) -> float | None:
        """The length of a message's vector at most, where a private run cuts it to that."""
        told = feedback.longest(self.algorithm)
        return None if told is None else float(told)

    def direction(self, payload: bytes) -> Direction:
        """What :func:`pack_direction` packed, or :class:`FrameError` where the uplink has other entries named."""
        told, history = unpack(payload), feedback.history(self.algorithm.uplink, self.size)
        direction = Direction(*told[:3], *(entries.view(np.int32) for entries in told[3:]))
        many = 0 if history is None else history.many
        named = np.zeros(0, np.int32) if direction.named is None else direction.named
        if named.shape != (many,) or np.diff(named, prepend=-1, append=self.size).min() < 1:
            raise FrameError("the entries that the server names are not those of the uplink")
        return direction

    def decode(self, data: bytes, link: Any, named: np.ndarray | None = None) -> Message:
        """A message that this link can have made where these entries were ``named``, or :class:`FrameError`."""
        like = _like(link, self.size)
        if len(data) > wire.largest(like):
            raise FrameError("the message is longer than its compressor makes any")
        try:
            message = wire.decode(data, self.size, len(like) if isinstance(like, tuple) else 0)
        except WireError as error:
            raise FrameError(str(error)) from None
        forms: Any = [jax.tree.structure(tree) for tree in (message, like)]
        if forms[0] != forms[1]:
            raise FrameError("the message has a wrong shape")
        leaves, expected = jax.tree.leaves(message), jax.tree.leaves(like)
        for leaf, form in zip(leaves, expected, strict=True):
            if (leaf.shape, leaf.dtype) != (form.shape, form.dtype):
                raise FrameError("the message has a wrong shape")
        return message if named is None else replaced(message, named=named)

    def dense(self, message: Message, link: Uplink) -> np.ndarray:
        """The vector that a message stands for."""
        return np.asarray(_dense(link, message, self.size))


def pack_direction(direction: Direction) -> bytes:
    """What participants are told; the entries that are named, whole numbers, are packed bit for bit as if floats."""
    named = () if direction.named is None else (np.asarray(direction.named, np.int32).view(np.float32),)
    return pack((direction.objective, direction.constraint, direction.guide, *named))


@functools.cache
def _like(link: Any, d: int) -> Message:
    """The shapes of a link's message."""
    vector = jax.ShapeDtypeStruct((d,), np.float32)
    return jax.eval_shape(compressor_of(link).compress, vector, jax.eval_shape(lambda: jax.random.key(0)))


def _scalars(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the function takes these arguments and makes numbers of them."""
    try:
        made = jax.eval_shape(function, *arguments)
    except Exception:  # the user's functions, on what a client sent
        return False
    return all(leaf.shape == () for leaf in jax.tree.leaves(made))


def _seen(algorithm: FedSGM, task: Flat, server: Any, statistics: Any, at: At) -> Any:
    who = jnp.zeros(1, jnp.int32)
    measured = algorithm.decide(task.at(at.round), server, _alone(statistics), who, 1, at.keys.server)[2]
    return measured.violation, measured.report


def _alone(tree: Any) -> Any:
    """One client's, stacked."""
    return jax.tree.map(lambda a: a[None], tree)


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _sample(algorithm: FedSGM, at: At, clients: int, again: int) -> jax.Array:
    key = at.keys.sampling
    return algorithm.sample(jax.random.fold_in(key, again) if again else key, clients)


@jax.jit
def _measure(algorithm: FedSGM, task: Flat, w: jax.Array, data: Any, at: At) -> tuple[Any, Any]:
    return algorithm.at(at.round).measure(task.at(at.round), w, data, at.key)


@functools.partial(jax.jit, static_argnums=5)
def _decide(
    algorithm: FedSGM, task: Flat, server: Any, statistics: Any, who: jax.Array, clients: int, at: At
) -> tuple[Direction, Any, dict]:
    algorithm, task, key = algorithm.at(at.round), task.at(at.round), at.keys.server
    direction, server, measured = algorithm.decide(task, server, statistics, who, clients, key)
    return direction, server, recording.decided(algorithm, server, direction, measured)


@jax.jit
def _local_update(
    algorithm: FedSGM, task: Flat, w: jax.Array, direction: Direction, data: Any, kept: Any, memory: Any, at: At
) -> tuple[Message, Any]:
    keys = (at.key, at.keys.shared)
    start = task.layout.apart(w)
    return algorithm.at(at.round).local_update(task.at(at.round), start, direction, data, kept, memory, *keys)


@jax.jit
def _aggregate(
    algorithm: FedSGM, task: Flat, server: Any, messages: Message, at: At, who: Any, doubted: Any
) -> tuple[Any, Message]:
    used: Any = messages
    if algorithm.robust is not None:
        used = algorithm.screened(messages, who, len(server.replica), doubted)[0]
    return algorithm.at(at.round).aggregate(task.at(at.round), server, used, at.keys.server)


@functools.partial(jax.jit, static_argnums=2)
def _rejected(algorithm: FedSGM, messages: Message, d: int, doubted: Any) -> jax.Array:
    return algorithm.screened(messages, jnp.arange(0), d, doubted)[1]


@jax.jit
def _evaluate(task: Flat, w: jax.Array, data: Any) -> Any:
    return task.evaluate(w, data)


@jax.jit
def _inspect(task: Flat, before: jax.Array, after: jax.Array, kept: Any, at: At) -> dict[str, jax.Array]:
    return task.at(at.round).inspect(before, after, kept)


@jax.jit
def _summarise(task: Flat, w: jax.Array, evaluations: Any) -> tuple[dict[str, jax.Array], jax.Array]:
    return recording.summarised(task, w, evaluations)


@jax.jit
def _disbelieved(task: Flat, evaluations: Any) -> jax.Array:
    problem: Any = task.task
    return problem.disbelieved(evaluations)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _dense(link: Uplink, message: Message, d: int) -> jax.Array:
    return feedback.received(link, message, d)
