"""The one record of a run, which every engine keeps: settings, columns, averages, the best iterate, the result.

An engine moves the clients and the server. What is written down of it, in which order, what a person sees while it goes
on and what is made of it in the end is said here, once.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm import theory
from fedsgm.base.cache import little, whole_program
from fedsgm.base.describe import describe
from fedsgm.base.errors import SettingError
from fedsgm.base.layout import Layout
from fedsgm.base.sizes import over
from fedsgm.base.structs import as_float32, replaced, static, struct
from fedsgm.core import wire
from fedsgm.core.algorithm import Flat
from fedsgm.core.problem import Problem
from fedsgm.core.rules import Direction, Measured
from fedsgm.core.task import Algorithm, Task
from fedsgm.data.clients import Clients, check_finite, length, same_form
from fedsgm.engines import work
from fedsgm.privacy.private import Private, radii
from fedsgm.results.method import Method
from fedsgm.results.result import KINDS, Result, excess
from fedsgm.theory.estimates import Watched

# Measuring the true values: parameters times examples that are few, the share of a round's work, rounds between.
_CHEAP = 2**20
_SHARE = 0.2
_MOST = 100

_CLIENTS = 10_000  # the most of which each one's own values are looked at
_WORST = 10  # of them that are told
OWN = "own "  # before the name of a value: each client's

TRAFFIC = ("bytes_up", "bytes_down")
_LAST = ("answered", "evaluated", *TRAFFIC, "frames_up", "frames_down")  # of the columns, where they are there


def settings_of(
    algorithm: Algorithm, problem: Task, *, clients: int, parameters: int, seeds: list[int], evaluate_every: int
) -> dict[str, Any]:
    """What a run is made with, as its result and checkpoints have it; a number of clients that cannot be is refused."""
    algorithm.cohort(clients)
    return {
        "algorithm": describe(algorithm),
        "problem": describe(problem),
        "clients": clients,
        "parameters": parameters,
        "seeds": seeds,
        "evaluate_every": evaluate_every,
    } | getattr(problem, "settings", {})


def rounds_between(told: int | None, algorithm: Algorithm, clients: Any, parameters: int) -> int:
    """After how many rounds the true values over all clients are measured, as ``told``, or by the sizes of the run.

    That is every round if this takes few operations, or a fifth of the examples that a round goes through; else so many
    rounds that it is a fifth, and at most a hundred.
    """
    if told is not None:
        return told
    rows = work.rows_of(clients)
    if rows * parameters <= _CHEAP:
        return 1
    return min(max(math.ceil(rows / (_SHARE * work.examples_of_a_round(algorithm, clients))), 1), _MOST)


@struct
class Kept:
    """One iterate, its score, the less the better, of how many clients that is, and the round (from 1) that made it."""

    w: Any
    score: Any
    evaluated: Any
    round: Any

    @classmethod
    def start(cls, w: np.ndarray) -> Kept:
        none = np.array(0, np.int32)
        return cls(np.full_like(w, np.nan), np.float32(np.inf), none, none)

    def against(self, new: Kept, may: Any) -> Kept:
        """The better of the two, by the lower score; the new one only where it ``may``.

        Scores of more clients come first: without the one that a constraint is about, many a model seems feasible.
        """
        to_beat = jnp.where(new.evaluated > self.evaluated, jnp.inf, self.score)
        better = may & (new.evaluated >= self.evaluated) & (new.score < to_beat)
        return jax.tree.map(functools.partial(jnp.where, better), new, self)


class Ends(NamedTuple):
    """[kind, seed] parameter vectors, in the order of ``KINDS``, and the rounds that produced them (0: none did)."""

    vectors: np.ndarray
    rounds: np.ndarray


@struct
class Found:
    """The iterates that are kept of a run: the theorems' average, the best within every bound, the least violated."""

    average: Any
    weight: Any
    best: Kept
    least: Kept

    @classmethod
    def start(cls, w: np.ndarray) -> Found:
        return cls(np.zeros_like(w), np.float32(0), Kept.start(w), Kept.start(w))

    @property
    def averages(self) -> np.ndarray:
        """Of every seed; not a number where every round went to the constraint alone."""
        return np.where(np.asarray(self.weight)[..., None] > 0, self.average, np.nan)

    @property
    def answer(self) -> Kept:
        """Of every seed the best iterate within every bound; the least violated where it is known of more clients."""
        best = np.asarray(self.best.evaluated >= self.least.evaluated) & (np.asarray(self.best.round) > 0)
        chosen = replaced(self.best, w=best[..., None], score=best, evaluated=best, round=best)
        return jax.tree.map(np.where, chosen, self.best, self.least)

    def mean(self, rounds: int) -> Kept:
        """The average as the answer, of a run of so many rounds; none where it is not a number."""
        w = self.averages
        sound = np.isfinite(w).all(axis=-1)
        return Kept(w, np.float32(np.inf), np.int32(0), np.where(sound, np.int32(rounds), 0))

    def averaged(self, w: Any, weight: Any) -> Found:
        """With one iterate more in the average, of the weight that its round gave the objective."""
        total = self.weight + weight
        share = weight / (total + (total <= 0))  # of nothing, nothing; no array of another kind than it was given
        return replaced(self, average=self.average + share * (w - self.average), weight=total)

    def compared(self, w: Any, objective: Any, worst: Any, clients: int, round: Any) -> Found:
        """With one candidate more, of that round, whose true values are those of so many clients."""
        sound = jnp.isfinite(objective) & jnp.all(jnp.isfinite(w))
        new = Kept(w, objective, np.int32(clients), round)
        return replaced(
            self,
            best=self.best.against(new, sound & (worst <= 0)),
            least=self.least.against(replaced(new, score=worst), sound),
        )

    def ends(self, last: Any, rounds: int, answer: Kept | None = None) -> Ends:
        """Of a run that has come to this model in so many rounds; the answer may be told."""
        answer = self.answer if answer is None else answer
        made = np.asarray(self.best.round)
        return Ends(
            np.stack([last, self.averages, self.best.w, answer.w]),
            np.stack([np.full_like(made, rounds), np.zeros_like(made), made, answer.round]),
        )


def counted(task: Task, before: Any, after: Any, direction: Direction, t: Any) -> tuple[Any, Any]:
    """The model of round t that goes into the average, and its weight: the theorems', or of a private run its answer's.

    There the models after rounds count by the squares of these: the noise of steps averages out, the way there counts
    little (polynomial decay: Shamir and Zhang, *Stochastic gradient descent for non-smooth optimization*, 2013).
    """
    return (after, jnp.float32(t + 1) ** 2) if isinstance(task, Private) else (before, direction.objective)


@struct
class Columns:
    """What rounds record: of each type one array, a row a round, since many small ones would cost more than the work.

    ``names`` says of each column where it stands: its name, its type and its shape, in the order of a row.
    """

    rows: Any
    names: tuple[tuple[str, str, tuple[int, ...]], ...] = static()

    @classmethod
    def empty(cls, like: Mapping[str, Any], rounds: int) -> Columns:
        names = tuple((name, str(a.dtype), tuple(a.shape)) for name, a in like.items())
        widths: dict[str, int] = {}
        for _, dtype, shape in names:
            widths[dtype] = widths.get(dtype, 0) + math.prod(shape)
        return cls({dtype: jnp.zeros((rounds, width), dtype) for dtype, width in widths.items()}, names)

    def recorded(self, round: jax.Array, info: Mapping[str, jax.Array]) -> Columns:
        """With this round's."""
        of = {dtype: [jnp.ravel(info[name]) for name, own, _ in self.names if own == dtype] for dtype in self.rows}
        rows = {
            dtype: jax.lax.dynamic_update_index_in_dim(rows, jnp.concatenate(of[dtype]), round, 0)
            for dtype, rows in self.rows.items()
        }
        return replaced(self, rows=rows)

    def split(self, rounds: int) -> dict[str, np.ndarray]:
        """[seed, round, ...] by name, of so many rounds."""
        rows = {dtype: np.asarray(a)[:, :rounds] for dtype, a in self.rows.items()}
        found, start = {}, dict.fromkeys(rows, 0)
        for name, dtype, shape in self.names:
            stop = start[dtype] + math.prod(shape)
            found[name] = rows[dtype][..., start[dtype] : stop].reshape(*rows[dtype].shape[:2], *shape)
            start[dtype] = stop
        return found


def decided(algorithm: Algorithm, server: Any, direction: Direction, measured: Measured) -> dict[str, jax.Array]:
    """What every round records of the server's decision."""
    seen = {"violation": measured.violation, "weight": direction.weight}
    seen |= {} if measured.doubted is None else {"doubted": measured.doubted}
    return seen | measured.report | algorithm.report(server)


def traffic(
    statistics: Any, asked: Any, direction: Direction, sent: jax.Array, broadcast: Any, told: int
) -> dict[str, jax.Array]:
    """Payload bytes of one round, in parts: up, of each participant's message and of all answers; down, of the
    broadcast, which everyone gets, and of all that the participants were ``told``.

    Statistics, of all that were ``asked``, and messages, of the bytes ``sent``, go up; the direction and the broadcast
    go down. The parts fit 32 bits where their sums may not.
    """
    each = wire.nbytes(jax.tree.map(lambda a: a[0], statistics))
    up = jnp.append(sent, asked * each)
    down = jnp.stack([wire.size(broadcast), jnp.int32(told * wire.nbytes(direction))])
    return dict(zip(TRAFFIC, (up, down), strict=True))


def in_all(parts: Mapping[str, np.ndarray], clients: int) -> dict[str, np.ndarray]:
    """The sums of what :func:`traffic` gives, round by round."""
    up, down = (parts[name].astype(np.int64) for name in TRAFFIC)
    return {"bytes_up": up.sum(axis=-1), "bytes_down": clients * down[..., 0] + down[..., 1]}


def total_traffic(
    statistics: Iterable[Any], direction: Direction, told: int, messages: Iterable[int], broadcast: int, clients: int
) -> dict[str, np.int64]:
    """The same, summed, of what was sent: the sizes of messages and broadcast are known, and how many were told."""
    up = sum(messages) + sum(wire.nbytes(each) for each in statistics)
    down = clients * broadcast + told * wire.nbytes(direction)
    return {"bytes_up": np.int64(up), "bytes_down": np.int64(down)}


def columns(history: dict[str, np.ndarray], problem: Task) -> dict[str, np.ndarray]:
    """In the order that every history has."""
    first = ("objective", *problem.bounds)
    last = [name for name in _LAST if name in history]
    return {name: history[name] for name in (*first, *sorted(history.keys() - {*first, *last}), *last)}


def shown(history: Mapping[str, np.ndarray], problem: Task) -> dict[str, float]:
    """For the progress bar: means over seeds of the last round that has them, of [seeds, rounds] columns."""
    rewarded = "reward" in history and "reward" not in problem.bounds
    found = {}
    for name in ("reward", "cost", "weight") if rewarded else ("objective", "violation", "weight", "epsilon"):
        known = history[name][:, ~np.isnan(history[name]).any(axis=0)] if name in history else np.zeros((1, 0))
        if known.size:
            found[name] = float(known[:, -1].mean())
    return found | ({"budget": float(problem.bounds["cost"])} if rewarded else {})


def held_out(problem: Task, test: Any, params: Any, like: Any = None) -> Any:
    """Held-out examples, prepared as one client's with a leading axis; ``like`` are a client's examples, if known."""
    if like is None and not isinstance(problem, (Problem, Watched)):
        raise SettingError("the test data: this task has no examples, so leave test out")
    examples = jax.tree.map(np.asarray, test)
    if like is not None:
        same_form(like, examples, "the test data")
    if not length(examples, "the test data"):
        raise SettingError("the test data has no examples")
    check_finite(examples, "the test data")
    return problem.prepare(Clients.from_list([examples]), params, owner="the test data")


def values_at(task: Flat, vectors: np.ndarray, data: Any) -> dict[str, np.ndarray]:
    """The true values over the clients of ``data``, of [kind, seed] parameter vectors; undefined where those are."""
    data = jax.device_put(data)
    return one_by_one(lambda w: _values_at(task, w, data), vectors)


def one_by_one(values: Callable[[np.ndarray], dict[str, jax.Array]], vectors: np.ndarray) -> dict[str, np.ndarray]:
    """The values of [kind, seed] parameter vectors: however many there are, the program is the same."""
    each = [[values(w) for w in kind] for kind in np.asarray(vectors)]
    return {name: np.array([[found[name] for found in kind] for kind in each]) for name in each[0][0]}


def summarised(task: Flat, w: jax.Array, evaluations: Any) -> tuple[dict[str, jax.Array], jax.Array]:
    """What the server makes of all clients' evaluations of ``w``; with noise where the task hides clients by it."""
    hide = getattr(task.task, "hide", None)
    return task.task.summarise(evaluations if hide is None else hide(evaluations, w))


@functools.partial(whole_program, light=lambda _, w, data: little(w, data))
def _values_at(task: Flat, w: jax.Array, data: Any) -> dict[str, jax.Array]:
    return where_sound(w, summarised(task, w, over(functools.partial(task.evaluate, w), data))[0])


def looked_at(task: Task, clients: int) -> bool:
    """Whether each client's own values are: in a private run they are nobody else's, and a page has no room for all."""
    return clients <= _CLIENTS and not isinstance(task, Private)


def own_values(task: Task, said: Any, clients: int) -> dict[str, jax.Array]:
    """What each client's answer comes to by itself, by name; nothing of very many, or of a private run."""
    if not looked_at(task, clients):
        return {}
    each = jax.vmap(lambda one: task.summarise(jax.tree.map(lambda a: a[None], one))[0])(said)
    return {OWN + name: each[name] for name in ("objective", *task.bounds)}


def worst_clients(values: Mapping[str, np.ndarray], ranges: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """For the settings: of the objective and each constraint, in whom the answer is worst.

    ``values`` are those of :func:`own_values`, [kind, seed, client]. A row is a client's number, from 0, and its least
    and largest value of all seeds; the first is the worst, and a client where the value is undefined is not among them.
    """
    found = {}
    for name in ("objective", *ranges):
        if OWN + name not in values:
            continue
        own = np.asarray(values[OWN + name])[KINDS.index("answer")]
        bad = np.max(excess(own, ranges[name]) if name in ranges else own, axis=0)  # NaN of one seed is NaN
        order = np.argsort(-bad, kind="stable")[: np.isfinite(bad).sum()][:_WORST]
        found[name] = [[int(j), float(own[:, j].min()), float(own[:, j].max())] for j in order]
    return {"worst_clients": found} if found else {}


def where_sound(w: jax.Array, values: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The values at these parameters, if they are finite; a rate of decisions is a number whatever they are."""
    sound = jnp.all(jnp.isfinite(w))
    return jax.tree.map(lambda value: jnp.where(sound, value, jnp.nan), values)


def values_of(problem: Task, clients: Any, candidates: Sequence[Any]) -> list[dict[str, float]]:
    """The true values, by name, of some parameters of one form, over all clients."""
    layout = Layout.of(candidates[0])
    vectors = np.stack([layout.flatten(jax.tree.map(np.asarray, params)) for params in candidates])
    data = problem.prepare(clients, candidates[0])
    found = values_at(as_float32(Flat(problem, layout)), vectors[:, None], data)
    return [{name: float(values[i, 0]) for name, values in found.items()} for i in range(len(candidates))]


def finished(
    history: dict[str, np.ndarray],
    ends: Ends,
    values: Mapping[str, Mapping[str, Any]],
    settings: dict[str, Any],
    problem: Task,
    unflatten: Callable[[Any], Any],
) -> Result:
    """The result, of the parameters that a run ended with and their values."""
    names = ("objective", *problem.bounds)
    measured = {part: {name: np.asarray(found[name]) for name in names} for part, found in values.items()}
    if isinstance(problem, Private):  # its answer is of no round
        history = history | radii(history, values["train"], problem.bounds)
    else:
        measured["train"] = _as_recorded(measured["train"], history, ends.rounds)
    return Result(
        **{kind: unflatten(vectors) for kind, vectors in zip(KINDS, ends.vectors, strict=True)},
        history=columns(history, problem),
        answer_round=ends.rounds[KINDS.index("answer")].astype(np.int64),
        values=measured,
        ranges={name: (float(low), float(high)) for name, (low, high) in problem.ranges.items()},
        settings=settings,
        module=getattr(problem, "module", None),
    )


def _as_recorded(
    values: dict[str, np.ndarray], history: dict[str, np.ndarray], rounds: np.ndarray
) -> dict[str, np.ndarray]:
    """The values that the rounds themselves found, unless fewer clients answered then than at the end.

    An iterate is judged by the numbers it was chosen by: another program's may differ in the last bit.
    """
    place = (np.arange(rounds.shape[1]), rounds - 1)
    known = rounds > 0
    if "evaluated" in history:
        known &= history["evaluated"][place] >= history["evaluated"][:, -1]
    return {name: np.where(known, history[name][place], found) for name, found in values.items()}


def check_promise(result: Result, problem: Task, clients: Any = None, params: Any = None) -> None:
    """Warn where a run that was set up from theory has left it; with the data, also of what only they can tell."""
    if Method.of(result.settings).promise is None:
        return
    stated = problem if clients is not None and isinstance(problem, Problem) else None
    for sentence in theory.check(result, stated, clients, params):
        warnings.warn(sentence, theory.TheoryWarning, stacklevel=3)
