"""What the server makes of a reply's content, trusting nothing in it, and which answers do not fit the others'."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedsgm.core.compression import Message
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import FrameError, Kind, form_of, pack, unpack

ABSURD = 1e3  # times the length of the others' messages, now and in earlier rounds: longer is no honest answer

Reasons = dict[int, str]
WRONG_SHAPE = "an answer of a wrong shape"
NOT_FINITE = "a NaN or an infinite value"


@dataclasses.dataclass(frozen=True)
class Report:
    """Statistics of the constraints, of all quantities at each model asked, and what was seen of the last step."""

    statistics: Any
    evaluations: Any
    inspected: Any

    @classmethod
    def read(cls, content: bytes, kind: Kind, models: int, columns: Sequence[str]) -> Report:
        tree = unpack(content)
        if not isinstance(tree, tuple) or len(tree) != 3:
            raise FrameError(WRONG_SHAPE)
        if kind & Kind.MEASURE and tree[0] is None:
            raise FrameError(WRONG_SHAPE)
        if kind & Kind.EVALUATE and not (isinstance(tree[1], tuple) and len(tree[1]) == models):
            raise FrameError(WRONG_SHAPE)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)):
            raise FrameError(NOT_FINITE)
        inspected = tree[2] if kind & Kind.INSPECT else None
        if inspected is not None and not _are_numbers(inspected, columns):
            raise FrameError(WRONG_SHAPE)
        return cls(tree[0] if kind & Kind.MEASURE else None, tree[1] if kind & Kind.EVALUATE else None, inspected)


def read_held_out(content: bytes, models: int) -> tuple[Any, ...] | None:
    """Statistics of all quantities at each model asked, of what a client holds out; None if it holds nothing out."""
    tree = unpack(content)
    if tree is not None and not (isinstance(tree, tuple) and len(tree) == models):
        raise FrameError(WRONG_SHAPE)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)):
        raise FrameError(NOT_FINITE)
    return tree


def _are_numbers(inspected: Any, columns: Sequence[str]) -> bool:
    """Whether these are the columns, a number each."""
    if not isinstance(inspected, dict) or inspected.keys() != set(columns):
        return False
    return all(isinstance(value, np.ndarray) and value.shape == () for value in inspected.values())


class Beside:
    """What rides on the exchanges of a round: true values that are not known yet, and looks back at the last step."""

    def __init__(self, evaluate: Iterable[int], inspect: Iterable[int]) -> None:
        self.missing = {Kind.EVALUATE: set(evaluate), Kind.INSPECT: set(inspect)}
        self.evaluations: dict[int, Any] = {}
        self.inspected: dict[int, Any] = {}

    def kinds(self, measure: Iterable[int]) -> dict[int, Kind]:
        """What to ask of whom, besides the measurements of these clients."""
        asked = dict.fromkeys(measure, Kind.MEASURE)
        for kind, clients in self.missing.items():
            asked |= {client: asked.get(client, Kind(0)) | kind for client in sorted(clients)}
        return asked

    def take(self, reports: Mapping[int, Report]) -> None:
        """Keep what came back; nobody is asked for it again."""
        evaluate, inspect = self.missing[Kind.EVALUATE], self.missing[Kind.INSPECT]
        self.evaluations |= {client: reports[client].evaluations for client in evaluate & reports.keys()}
        self.inspected |= {client: reports[client].inspected for client in inspect & reports.keys()}
        evaluate.difference_update(reports)  # -= would make new sets of keys
        inspect.difference_update(reports)

    def mean(self) -> dict[str, np.float32]:
        """Over those who saw the last step."""
        seen = [self.inspected[client] for client in sorted(self.inspected) if self.inspected[client] is not None]
        return {name: np.float32(np.mean([one[name] for one in seen])) for name in seen[0]} if seen else {}


@dataclasses.dataclass(frozen=True)
class Update:
    """To ``update``: the message, its bytes, and the length of the vector that it stands for."""

    message: Message
    size: int
    norm: float

    @classmethod
    def read(cls, content: bytes, program: Program) -> Update:
        uplink = program.algorithm.uplink
        message = program.decode(content, uplink)
        norm = float(np.linalg.norm(program.dense(message, uplink).astype(np.float64)))
        if not np.isfinite(norm):
            raise FrameError(NOT_FINITE)
        return cls(message, len(content), norm)


class Forms:
    """Which forms of statistics and evaluations the problem's functions take; each is tried once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._fits: dict[tuple[str, bytes], bool] = {}

    def odd(self, reports: Mapping[int, Report]) -> Reasons:
        """The reports that the functions cannot take, or of another form than most."""
        statistics = {c: [r.statistics] for c, r in reports.items() if r.statistics is not None}
        evaluations = {c: r.evaluations for c, r in reports.items() if r.evaluations is not None}
        return self._odd("statistics", statistics) | self._odd("evaluations", evaluations)

    def alike(self, evaluations: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Those of the form that most have, of evaluations that came in several exchanges."""
        odd = self._odd("evaluations", evaluations)
        return {client: each for client, each in evaluations.items() if client not in odd}

    def _odd(self, part: str, trees: Mapping[int, Sequence[Any]]) -> Reasons:
        fits = {"statistics": self._program.can_decide, "evaluations": self._program.can_summarise}[part]
        forms: dict[int, set[bytes]] = {}
        votes: collections.Counter[bytes] = collections.Counter()
        for client, each in trees.items():
            forms[client] = set()
            for tree in each:
                form = form_of(pack(tree))
                forms[client].add(form)
                if (part, form) not in self._fits:
                    self._fits[part, form] = fits(tree)
                votes[form] += self._fits[part, form]
        usual = {form for form, count in votes.most_common(1) if count}
        return {client: WRONG_SHAPE for client, each in forms.items() if each != usual}


def absurd(updates: dict[int, Update], usual: float) -> Reasons:
    """The updates far longer than most of the others and than the ``usual`` length.

    A client may be the only one with something to say: what the others then send is nothing, or a compressor's dust.
    """
    found = {}
    for client, update in updates.items():
        others = sorted(other.norm for c, other in updates.items() if c != client)
        reference = max(usual, others[(len(others) - 1) // 2] if others else 0.0)
        if 0 < reference * ABSURD < update.norm:
            found[client] = f"a message more than {ABSURD:g} times as long as the others'"
    return found
