"""The functions of a federation's server and clients where the problem is torch's.

What crosses is the same as of a problem in JAX: a server cannot tell which of both a client runs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from fedsgm.base.layout import Layout
from fedsgm.base.structs import as_float32, struct
from fedsgm.core.algorithm import FedSGM, Flat
from fedsgm.core.compression import Message
from fedsgm.core.feedback import Memory
from fedsgm.core.rules import Direction
from fedsgm.federation.program import At, Program
from fedsgm.torch import rounds as jax_part
from fedsgm.torch.examples import Weighed
from fedsgm.torch.preparing import prepare
from fedsgm.torch.worker import Worker


@struct
class Held(Memory):
    """A client's memory, with the module's buffers that are its own."""

    buffers: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class TorchProgram(Program):
    """A :class:`Program` whose clients compute in torch."""

    worker: Worker
    kept: dict[str, np.ndarray]

    @classmethod
    def made(cls, problem: Any, algorithm: FedSGM, params: dict[str, np.ndarray]) -> TorchProgram:
        jax_part.check(algorithm, problem.buffers == "average" and bool(problem.settings))
        layout = Layout.of(params)
        traced, task = as_float32((algorithm, Flat(problem.stated, layout)))
        return cls(traced, task, params, Worker(problem, layout), problem.kept)

    @property
    def _stated(self) -> Any:
        return self.task.task

    @property
    def _every(self) -> range:
        return range(len(self._stated.quantities))

    def init_memory(self) -> Any:
        memory = self.algorithm.init_memory(self.size)
        return Held(memory.error, memory.transforms, self.kept)

    def prepare(self, data: Any) -> Weighed:
        return prepare(self._stated, self.worker, [data], self.start, owner="this client", everybody=False)[0]

    def held_out(self, test: Any) -> Weighed:
        return prepare(self._stated, self.worker, [test], self.start, owner="the test data")[0]

    def values_at(self, vectors: np.ndarray, held_out: Weighed) -> dict[str, np.ndarray]:
        names = ("objective", *self._stated.names)
        found = {name: np.full(vectors.shape[:2], np.nan, np.float32) for name in names}
        for kind, seed in np.argwhere(np.isfinite(vectors).all(axis=2)):
            values = self.summarise([self.evaluate(vectors[kind, seed], held_out)])[0]
            for name in names:
                found[name][kind, seed] = values[name]
        return found

    def measure(self, w: np.ndarray, data: Weighed, at: At, memory: Any = None) -> tuple[Any, Any]:
        query, _, seed = _drawn(self.algorithm, at, data)
        which, kept = self._every[0 if self.algorithm.compares else 1 :], self._buffers(memory)
        sums = self.worker.sums(w, data, which, buffers=kept, index=query, seed=seed) if which else []
        return _numpy(jax_part.told(self._stated, tuple(sums), tuple(data.sizes), self.algorithm.compares))

    def local_update(
        self, w: np.ndarray, direction: Direction, data: Weighed, kept: Any, memory: Any, at: At
    ) -> tuple[Message, Any]:
        stated, algorithm, buffers = self._stated, self.algorithm.at(at.round), self._buffers(memory)
        slopes = jax_part.followed(stated, direction, kept)
        if jax_part.is_linear(stated):  # of any sums
            slopes = slopes(self.worker.sums(w, data, self._every, buffers=buffers, index=np.zeros(1, int)))
        _, steps, seed = _drawn(self.algorithm, at, data)
        total, buffers = self.worker.walk(
            *(w, data, slopes),
            steps=algorithm.local_steps if steps is None else steps,
            step_size=float(algorithm.eta),
            share=float(stated.share(direction, kept)),
            buffers=buffers,
            seed=seed,
        )
        before, keys = Memory(memory.error, memory.transforms), (at.key, at.keys.shared)
        message, after = _numpy(jax_part.message(algorithm, before, total, *keys, direction.named))
        return message, Held(after.error, after.transforms, buffers)

    def evaluate(self, w: np.ndarray, data: Weighed, memory: Any = None) -> Any:
        sums = self.worker.sums(w, data, self._every, buffers=self._buffers(memory))
        return _numpy(jax_part.evaluated(self._stated, tuple(sums), tuple(data.sizes)))

    def _buffers(self, memory: Any) -> Any:
        return self.kept if memory is None else memory.buffers


def _drawn(algorithm: FedSGM, at: At, data: Weighed) -> tuple[Any, Any, int]:
    query, steps, seed = _numpy(jax_part.drawn_at(algorithm, at.key, np.int32(data.rows.count)))
    return query, steps, int(seed)


def _numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)
