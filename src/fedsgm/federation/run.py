"""One federated run on the server: what it carries from round to round, and a round of it."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import FederationError, FedSGMError
from fedsgm.base.structs import as_float32, replaced
from fedsgm.core.rules import Direction
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines import recording
from fedsgm.engines.checkpoint import Checkpoint, Journal, Saved
from fedsgm.engines.recording import Ends, Found, Kept
from fedsgm.federation.answers import (
    NOT_FINITE,
    WRONG_SHAPE,
    Beside,
    Forms,
    Reasons,
    Report,
    Update,
    absurd,
    read_held_out,
)
from fedsgm.federation.panel import Account, Followed, Panel
from fedsgm.federation.program import At, Program
from fedsgm.federation.protocol import Kind, Transport, pack, unpack

TRIES = 5  # of a round, until enough have answered

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Tried:
    """What one try of a round came to."""

    who: list[int]
    reasons: Reasons
    statistics: Mapping[int, Any]  # of those who measured, participants or not
    told: int = 0  # participants that were told the direction
    decided: Any = None  # direction, server, what is recorded of it
    updates: Mapping[int, Update] = dataclasses.field(default_factory=dict)


class Run:
    """The server. ``step`` takes one round, ``finish`` measures what was found."""

    def __init__(
        self,
        program: Program,
        transport: Transport,
        *,
        seed: int,
        rounds: int,
        evaluate_every: int = 1,
        min_participants: int = 1,
        timeout: float = 60.0,
        beside: Sequence[np.ndarray] = (),
    ) -> None:
        self.program, self.seed, self.rounds, self.beside = program, seed, rounds, beside
        self.evaluate_every, self.min_participants = evaluate_every, min_participants
        self.panel = Panel(transport, seed, timeout, time.time_ns())
        self.model = Followed(program, program.start)
        self._form = b""  # of a client's statistics, as soon as it is known
        self.server = self._begin()
        self.found = Found.start(program.start)
        self.usual = 0.0  # length of messages: the largest median of a round
        self.history = Journal(rounds)
        self._forms = Forms(program)
        self._folder: Path | None = None
        self._settings: dict[str, Any] = {}

    def _begin(self) -> Any:
        """The server's state before the first round."""
        program, statistics = self.program, (lambda: unpack(self._form)) if self._form else None
        return as_float32(program.algorithm.init(program.task, program.start, len(self.accounts), statistics))

    @property
    def round(self) -> int:
        """The round that ``step`` takes next: as many are done."""
        return self.model.version

    @property
    def accounts(self) -> list[Account]:
        return self.panel.accounts

    def step(self) -> None:
        """One round: measure, decide, update, aggregate. Once it is saved it counts, and clients hear of its model."""
        t, at = self.round, At.of(self.seed, self.round)
        self.panel.up = self.panel.down = 0
        beside = Beside(self._everybody if self._evaluates(t) else (), self._witnesses())
        for again in range(TRIES):
            tried = self._try(at, again, beside)
            if len(tried.updates) >= self.min_participants:
                break
            self.panel.attempt += 1  # another try may have another direction: what is late of this one must not count
            self.save()
        else:
            raise self._too_few(tried.who, tried.reasons)
        direction, server, seen = tried.decided
        messages = [update.message for update in tried.updates.values()]
        after, broadcast = self.program.aggregate(server, messages, at)
        data = self.program.encode(broadcast)

        self._record_beside(t - 1, beside)
        for client in tried.updates:
            self.accounts[client].used = t
            self.accounts[client].answered += 1
        if len(tried.who) > 1:  # who is always alone has nothing to be held against
            self.usual = max(self.usual, float(np.median([update.norm for update in tried.updates.values()])))
        self.found = self.found.averaged(self.model.replica, direction.objective)
        self.model = self.model.after(data)
        self.server = replaced(after, replica=self.model.replica)
        self._record(t, {"participants": np.array(tried.who, np.int32)} | seen)
        sizes = [update.size for update in tried.updates.values()]
        statistics, everybody = tried.statistics.values(), len(self.accounts)
        counted = recording.total_traffic(statistics, direction, tried.told, sizes, len(data), everybody)
        frames = {"frames_up": np.int64(self.panel.up), "frames_down": np.int64(self.panel.down)}
        self._record(t, {"answered": np.int32(len(tried.updates))} | counted | frames)
        self.save()

    def _try(self, at: At, again: int, beside: Beside) -> _Tried:
        """Ask the participants to measure, decide, and ask those who did for their updates."""
        everybody = len(self.accounts)
        who = self.program.sample(at, everybody, again)
        asked = sorted({*who, *self.program.also_asked(self.server, everybody)})
        reports, reasons = self._measure(beside.kinds(asked), who)
        beside.take(reports)
        tried = _Tried(who, reasons, {client: reports[client].statistics for client in asked if client in reports})
        answered: Collection[int] = [client for client in who if client in reports]
        if len(answered) >= self.min_participants:
            self._form = self._form or pack(jax.tree.map(np.zeros_like, next(iter(tried.statistics.values()))))
            decided = self.program.decide(self.server, tried.statistics, everybody, at)
            updates, why = self._update(list(answered), decided[0])
            told, reasons = len(answered), reasons | why
            tried = dataclasses.replace(tried, decided=decided, updates=updates, told=told, reasons=reasons)
            answered = updates
        self._leave_out([client for client in who if client not in answered], tried.reasons)
        return tried

    def finish(self) -> tuple[Ends, dict[str, np.ndarray], list[dict[str, float]]]:
        """The parameters that the run ends with, and their true values over all clients that answer; and others'."""
        self.panel.up = self.panel.down = 0
        kept = (self.found.averages, self.found.best.w, self.found.least.w)
        models = [self.model.replica, *(w for w in kept if np.isfinite(w).all()), *self.beside]
        beside = Beside(self._everybody, self._witnesses())
        reasons: Reasons = {}
        for _ in range(TRIES):
            missing = sorted(beside.missing[Kind.EVALUATE])
            reports, why = self._measure(beside.kinds(()), missing, models[1:])
            beside.take(reports)
            reasons |= why
            if not beside.missing[Kind.EVALUATE]:
                break
        evaluations = self._forms.alike(beside.evaluations)
        if len(evaluations) < self.min_participants:
            raise self._too_few(list(self._everybody), reasons)
        for client in set(self._everybody) - evaluations.keys():
            reason = reasons.get(client, WRONG_SHAPE)
            log.warning("at the end %s is not measured: %s", self.accounts[client].name, reason)
        found = {
            model.tobytes(): self.program.summarise([each[i] for each in evaluations.values()])
            for i, model in enumerate(models)
        }
        self._record_beside(self.rounds - 1, beside)
        self._count_frames()
        ends = self.found.ends(self.model.replica, self.rounds, self._answer(found, len(evaluations)))
        others = [{name: float(value) for name, value in found[w.tobytes()][0].items()} for w in self.beside]
        return ends, self._values(found, ends), others

    def held_out(self, ends: Ends, program: Program) -> dict[str, np.ndarray] | None:
        """Their values over all examples that the clients hold out, of those that answer; None where nobody does."""
        self.panel.up = self.panel.down = 0
        models = list(dict.fromkeys(w.tobytes() for w in ends.vectors if np.isfinite(w).all()))
        answers: dict[int, Any] = {}
        reasons: Reasons = {}
        for _ in range(TRIES):
            missing = {client: Kind.TEST for client in self._everybody if client not in answers}
            if not missing:
                break
            reports, why = self.panel.ask(
                *(self.model, missing, b"".join(models), lambda _, content: read_held_out(content, len(models))),
                odd=lambda _: {},
                enough=lambda answered: len(answered) > 0,
            )
            answers |= reports
            reasons |= why
        self._count_frames()
        if len(answers) < self.min_participants:
            raise self._too_few(list(self._everybody), reasons)
        evaluations = Forms(program).alike({client: each for client, each in answers.items() if each is not None})
        for client in self._everybody:
            if client not in evaluations and answers.get(client, ()) is not None:
                reason = reasons.get(client, WRONG_SHAPE)
                log.warning("what %s holds out is not measured: %s", self.accounts[client].name, reason)
        if not evaluations:
            return None
        found = {model: program.summarise([e[i] for e in evaluations.values()]) for i, model in enumerate(models)}
        return self._values(found, ends)

    def _values(self, found: Mapping[bytes, Any], ends: Ends) -> dict[str, np.ndarray]:
        """[kind, seed] of what was found; not a number where there is nothing to measure."""
        nothing = dict.fromkeys(("objective", *self.program.task.task.bounds), np.float32(np.nan))
        rows = [found.get(w.tobytes(), (nothing,))[0] for w in ends.vectors]
        return {name: np.array([[row[name]] for row in rows], np.float32) for name in nothing}

    def _count_frames(self) -> None:
        """Add what was sent after the last round to its row."""
        last = self.rounds - 1
        for name, more in (("frames_up", self.panel.up), ("frames_down", self.panel.down)):
            self._record(last, {name: self.history.columns[name][last] + more})

    def _answer(self, measured: Mapping[bytes, tuple[Mapping[str, Any], Any]], clients: int) -> Kept:
        """The best iterate; where it is known of fewer clients than the least violated, as both are measured now."""
        best, least = self.found.best, self.found.least
        if best.evaluated >= least.evaluated:
            return self.found.answer
        now = Found.start(self.program.start)
        for kept in (best, least):
            if kept.round:
                values, worst = measured[kept.w.tobytes()]
                now = now.compared(kept.w, values["objective"], worst, clients, kept.round)
        return now.answer if now.answer.round else least

    @property
    def _everybody(self) -> range:
        return range(len(self.accounts))

    def _evaluates(self, t: int) -> bool:
        """Whether the true values of the model that round ``t`` starts from are recorded."""
        return t > 0 and self.evaluate_every > 0 and t % self.evaluate_every == 0

    def _witnesses(self) -> list[int]:
        """Who took part in the last round, and can say what there is to see of its step, if anything is."""
        if not self.round or not self.program.task.task.inspects:
            return []
        return [client for client in self._everybody if self.accounts[client].used == self.round - 1]

    def _measure(
        self, kinds: dict[int, Kind], who: list[int], models: Sequence[np.ndarray] = ()
    ) -> tuple[dict[int, Report], Reasons]:
        columns = self.program.task.task.inspects
        return self.panel.ask(
            self.model,
            kinds,
            b"".join(w.tobytes() for w in models),
            lambda kind, content: Report.read(content, kind, 1 + len(models), columns),
            self._forms.odd,
            lambda answered: len(answered & set(who)) >= min(self.min_participants, len(who)),
        )

    def _update(self, who: list[int], direction: Direction) -> tuple[dict[int, Update], Reasons]:
        return self.panel.ask(
            self.model,
            dict.fromkeys(who, Kind.UPDATE),
            pack((direction.objective, direction.constraint, direction.guide)),
            lambda _, content: Update.read(content, self.program),
            lambda updates: absurd(updates, self.usual),
            lambda answered: len(answered) >= self.min_participants,
        )

    def _too_few(self, who: list[int], reasons: Reasons) -> FedSGMError:
        if {reasons.get(client) for client in who} == {NOT_FINITE}:
            return FedSGMError(f"round {self.round}: the run diverged (not a finite number); take a smaller step size")
        told = "; ".join(f"{self.accounts[client].name}: {reasons[client]}" for client in who if client in reasons)
        then = "it can be resumed" if self._folder else "give it a checkpoint, and it can be resumed"
        return FederationError(
            f"round {self.round}: fewer than {self.min_participants} of {len(who)} clients answered, {TRIES} times "
            f"({told}); the run stops here, {then}"
        )

    def _leave_out(self, clients: Iterable[int], reasons: Reasons) -> None:
        """Name them in the log and count them in their accounts."""
        for client in clients:
            account = self.accounts[client]
            account.leave_out(reasons[client])
            log.warning("round %d: %s is left out: %s", self.round, account.name, reasons[client])

    def _record_beside(self, row: int, beside: Beside) -> None:
        """The true values of the present model, which ``row`` produced, and what its participants saw of that step."""
        self._record(row, beside.mean())
        evaluations = self._forms.alike(beside.evaluations)
        if evaluations:
            count, who = len(evaluations), np.array(sorted(evaluations))
            values, worst = self.program.summarise([evaluations[client][0] for client in who])
            places = {name: values[name] for name in self.program.task.task.places}
            named = {name: np.float32(who[int(at)]) for name, at in places.items() if np.isfinite(at)}
            self._record(row, {"evaluated": np.int32(count)} | values | named)
            found = self.found.compared(self.model.replica, values["objective"], worst, count, np.int32(row + 1))
            self.found = _numpy(found)

    def _record(self, row: int, values: Mapping[str, Any]) -> None:
        if row >= 0:
            self.history.record(row, values)

    def keep_in(self, checkpoint: Checkpoint, settings: dict[str, Any]) -> None:
        """Save every round there from now on, and go on from what is there, if that is wanted."""
        self._folder, self._settings = Path(checkpoint.directory), settings
        saved = checkpoints.resume(checkpoint, settings, self.rounds)
        self.history.keep_in(self._folder / "history", 0 if saved is None else int(saved.arrays["history"]))
        if saved is not None:
            self._restore(saved)
            self.save()  # before anybody is asked: no two servers have the same number

    def save(self) -> None:
        if self._folder is None:
            return
        self.history.flush()
        arrays = {
            "history": np.array(self.history.length, np.int64),
            "usual": np.array(self.usual),
            "run": np.array([self.panel.run, self.panel.attempt], np.uint64),
            "accounts": _bytes_as_array(json.dumps([dataclasses.asdict(a) for a in self.accounts]).encode()),
            "form": _bytes_as_array(self._form),
        }
        arrays |= checkpoints.pack("server", self.server) | checkpoints.pack("found", self.found)
        arrays |= {f"recent/{i:05d}": _bytes_as_array(data) for i, data in enumerate(self.model.recent)}
        checkpoints.save(self._folder, Saved(self.round, arrays, self._settings))

    def _restore(self, saved: Saved) -> None:
        arrays = saved.arrays
        recent = [arrays[name].tobytes() for name in sorted(arrays) if name.startswith("recent/")]
        self._form = arrays["form"].tobytes()
        self.server = checkpoints.unpack("server", arrays, self._begin())
        self.found = checkpoints.unpack("found", arrays, self.found)
        self.model = Followed(self.program, self.server.replica, saved.round, recent)
        self.usual = float(arrays["usual"])
        run, attempt = map(int, arrays["run"])
        self.panel.run, self.panel.attempt = run, attempt + 1
        self.panel.accounts = [Account(**fields) for fields in json.loads(arrays["accounts"].tobytes())]


def _bytes_as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def _numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)
