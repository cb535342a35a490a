"""What the server makes of a reply's content, trusting nothing in it, and which answers do not fit the others'."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedsgm.core.compression import Message
from fedsgm.engines.recording import Ends, Found, Kept
from fedsgm.federation.program import Program
from fedsgm.federation.protocol import FrameError, Kind, form_of, pack, unpack

ABSURD = 1e3  # times the length of most messages, now and in earlier rounds: longer is no honest answer
BEYOND = 1e9  # times most clients' value of a statistic: larger is none of theirs
LARGEST = 1e15  # of any statistic: beyond it a rule's own state may not be finite

Reasons = dict[int, str]
WRONG_SHAPE = "an answer of a wrong shape"
REJECTED = "a message that is not like the others'"
DOUBTED = "statistics that are not believed beside the others'"
INCONSISTENT = "messages that do not fit what it says of its values"
NOT_FINITE = "a NaN or an infinite value"
TOO_LARGE = "a statistic far beyond the others'"


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
    def read(cls, content: bytes, program: Program, named: np.ndarray | None = None) -> Update:
        uplink = program.algorithm.uplink
        message = program.decode(content, uplink, named)
        norm = float(np.linalg.norm(program.dense(message, uplink).astype(np.float64)))
        if not np.isfinite(norm):
            raise FrameError(NOT_FINITE)
        if program.longest is None:
            return cls(message, len(content), norm)
        if norm > program.longest:
            raise FrameError("a message longer than privacy lets it be")
        return cls(message, program.largest_update, norm)  # whatever its own bytes are: they tell of its client


class Forms:
    """Which forms of statistics and evaluations the problem's functions take; each is tried once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._fits: dict[tuple[str, bytes], bool] = {}

    def odd(self, reports: Mapping[int, Report]) -> Reasons:
        """The reports that the functions cannot take, or of another form than most."""
        statistics = {c: [r.statistics] for c, r in reports.items() if r.statistics is not None}
        evaluations = {c: r.evaluations for c, r in reports.items() if r.evaluations is not None}
        odd = self._odd("statistics", statistics) | self._odd("evaluations", evaluations)
        for trees in () if self._program.longest is not None else (statistics, evaluations):
            odd = _beyond({client: each for client, each in trees.items() if client not in odd}) | odd
        return odd

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
                key = part, hashlib.sha256(form).digest()  # a client may send another form of 1 MB in every answer
                if key not in self._fits:
                    self._fits[key] = fits(tree)
                votes[form] += self._fits[key]
        usual = {form for form, count in votes.most_common(1) if count}
        return {client: WRONG_SHAPE for client, each in forms.items() if each != usual}


def _beyond(trees: Mapping[int, Sequence[Any]]) -> Reasons:
    """The statistics with a value that is far larger than most clients' same value, or than any may be.

    Where most are so large the run diverges, and that is nobody's fault.
    """
    if not trees:
        return {}
    sizes = {
        client: np.concatenate([np.abs(np.ravel(leaf)).astype(np.float64) for leaf in jax.tree.leaves(tree)] or [[0.0]])
        for client, tree in trees.items()
    }
    middle = np.sort(np.stack(list(sizes.values())), axis=0)[(len(sizes) - 1) // 2]
    limit = np.where(middle > 0, np.minimum(middle * BEYOND, np.maximum(middle * ABSURD, LARGEST)), LARGEST)
    return {client: TOO_LARGE for client, size in sizes.items() if (size > limit).any()}


def usual_length(updates: Mapping[int, Update]) -> float:
    """What most messages are not longer than: the lower one of the two in the middle, which no one of three can move
    beyond an honest one's."""
    lengths = sorted(update.norm for update in updates.values())
    return lengths[(len(lengths) - 1) // 2] if lengths else 0.0


def absurd(updates: Mapping[int, Update], usual: float) -> Reasons:
    """The updates far longer than most of this round's and than the ``usual`` length of earlier ones.

    Of two that differ so much the shorter one is taken: it does less harm. A client may be the only one with something
    to say: what the others then send is nothing.
    """
    longest = ABSURD * max(usual, usual_length(updates))
    why = f"a message more than {ABSURD:g} times as long as the others'"
    return {client: why for client, update in updates.items() if 0 < longest < update.norm}


def values_of(found: Mapping[bytes, Any], ends: Ends) -> dict[str, np.ndarray]:
    """[kind, seed] of what was found; not a number where there is nothing to measure."""
    nothing = dict.fromkeys(next(iter(found.values()))[0], np.float32(np.nan))
    rows = [found.get(w.tobytes(), (nothing,))[0] for w in ends.vectors]
    return {name: np.array([[row[name]] for row in rows], np.float32) for name in nothing}


def answer_of(
    found: Found, start: np.ndarray, measured: Mapping[bytes, tuple[Mapping[str, Any], Any]], clients: int
) -> Kept:
    """The best iterate; where it is known of fewer clients than the least violated, as both are measured now."""
    best, least = found.best, found.least
    if best.evaluated >= least.evaluated:
        return found.answer
    now = Found.start(start)
    for kept in (best, least):
        if kept.round:
            values, worst = measured[kept.w.tobytes()]
            now = now.compared(kept.w, values["objective"], worst, clients, kept.round)
    return now.answer if now.answer.round else least
