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
    DOUBTED,
    INCONSISTENT,
    NOT_FINITE,
    REJECTED,
    WRONG_SHAPE,
    Beside,
    Forms,
    Reasons,
    Report,
    Update,
    absurd,
    answer_of,
    usual_length,
    values_of,
)
from fedsgm.federation.ledger import Ledger
from fedsgm.federation.panel import Account, Followed, Panel
from fedsgm.federation.program import At, Program, pack_direction
from fedsgm.federation.protocol import Kind, Transport, pack, unpack
from fedsgm.privacy.private import Private
from fedsgm.results.result import KINDS

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

    @property
    def doubted(self) -> np.ndarray | None:
        """With robust aggregation, a 1 for each of the updates whose client's statistics are not believed."""
        everybody = self.decided[2].get("doubted")
        return None if everybody is None else np.asarray(everybody)[list(self.updates)]


class Run:
    """The server. ``step`` takes one round, ``finish`` measures what was found."""

    sees_each = True  # what each client says by itself

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
        self.usual = 0.0  # length of messages: the largest of a round's
        self.history = Journal(rounds)
        self._forms = Forms(program)
        if isinstance(program.task.task, Private):
            self.panel.ledger = Ledger(program.task.task)
        self._asking = False  # a private run's server, for what it must count even if it is stopped
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
        beside = Beside(self.everybody if self._evaluates(t) else (), self._witnesses())
        self._ask(True)
        for again in range(TRIES):
            if again and not self.affords(again):
                self._ask(False)
                return
            tried = self._try(at, again, beside)
            if len(tried.updates) >= self.min_participants:
                break
            self.panel.attempt += 1  # another try may have another direction: what is late of this one must not count
            self.save()
        else:
            raise self.too_few(tried.who, tried.reasons)
        direction, server, seen = tried.decided
        messages = [update.message for update in tried.updates.values()]
        after, broadcast = self.program.aggregate(server, messages, at, list(tried.updates), tried.doubted)
        data = self.program.encode(broadcast)

        self._record_beside(t - 1, beside)
        used = self._accepted(tried)
        for client in used:
            self.accounts[client].used = t
            self.accounts[client].answered += 1
        if len(tried.who) > 1:  # who is always alone has nothing to be held against
            self.usual = max(self.usual, usual_length(tried.updates))
        before, self.model = self.model.replica, self.model.after(data)
        task, now = self.program.task.task, self.model.replica
        self.found = self.found.averaged(*recording.counted(task, before, now, direction, t))
        self.server = replaced(after, replica=now)
        self._record(t, {"participants": np.array(tried.who, np.int32)} | seen)
        sizes = [update.size for update in tried.updates.values()]
        statistics, everybody = tried.statistics.values(), len(self.accounts)
        counted = recording.total_traffic(statistics, direction, tried.told, sizes, len(data), everybody)
        counted |= {"frames_up": np.int64(self.panel.up), "frames_down": np.int64(self.panel.down)}
        self._record(t, {"answered": np.int32(len(used))} | counted)
        self._record_spent(t)
        self._asking = False
        self.save()

    def affords(self, again: int = 0) -> bool:
        """Whether everybody whom the next round asks has privacy left to spend on it."""
        ledger, everybody = self.panel.ledger, len(self.accounts)
        if ledger is None:
            return True
        who = self.program.sample(At.of(self.seed, self.round), everybody, again)
        others = self.program.also_asked(self.server, everybody)
        kinds = dict.fromkeys(others, (Kind.MEASURE,)) | dict.fromkeys(who, (Kind.MEASURE, Kind.UPDATE))
        return all(ledger.affords(self.accounts[client], *each) for client, each in kinds.items())

    def _ask(self, asking: bool) -> None:
        """A private run keeps that it asks before it does."""
        if self.panel.ledger is not None:
            self._asking = asking
            self.save()

    def _record_spent(self, row: int) -> None:
        if self.panel.ledger is not None:
            self._record(row, {"epsilon": self.panel.ledger.epsilon(self.accounts)})

    def _accepted(self, tried: _Tried) -> list[int]:
        """Whose messages are used; the others, whom robust aggregation rejects, are left out."""
        if self.program.algorithm.robust is None:
            return list(tried.updates)
        shares = self.program.rejected([update.message for update in tried.updates.values()], tried.doubted)
        rejected = dict(zip(tried.updates, shares, strict=True))
        self._record(self.round, {"rejected": np.array([rejected.get(c, 0) for c in tried.who], np.float32)})
        out = [client for client, share in rejected.items() if share >= 1]
        said = () if tried.doubted is None else np.array(list(tried.updates))[tried.doubted > 0]
        fits = self.server.consistency
        odd = () if fits is None else np.flatnonzero(np.asarray(fits.doubted))
        reasons = {client: DOUBTED if client in said else REJECTED for client in out}
        self._leave_out(out, reasons | {client: INCONSISTENT for client in out if client in odd})
        return [client for client in rejected if client not in out]

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
        known = self._measured_before()
        kept = (self.found.averages, self.found.best.w, self.found.least.w)
        wanted = [w for w in kept if np.isfinite(w).all() and w.tobytes() not in known]
        models = [self.model.replica, *wanted, *self.beside]
        beside = Beside(self.everybody, self._witnesses())
        reasons: Reasons = {}
        self._ask(True)
        for _ in range(TRIES):
            missing = sorted(beside.missing[Kind.EVALUATE])
            reports, why = self._measure(beside.kinds(()), missing, models[1:])
            beside.take(reports)
            reasons = why | reasons  # the first one's: a private run may not ask twice
            if not beside.missing[Kind.EVALUATE]:
                break
        evaluations = self._believed(beside.evaluations, reasons)
        if len(evaluations) < self.min_participants:
            raise self.too_few(list(self.everybody), reasons)
        for client in set(self.everybody) - evaluations.keys():
            reason = reasons.get(client, WRONG_SHAPE)
            log.warning("at the end %s is not measured: %s", self.accounts[client].name, reason)
        found = known | {
            model.tobytes(): self.program.summarise([each[i] for each in evaluations.values()], model)
            for i, model in enumerate(models)
        }
        self._record_beside(self.rounds - 1, beside)
        self._record_spent(self.rounds - 1)
        self.count_frames()
        self._ask(False)
        private = isinstance(self.program.task.task, Private)
        answer = self.found.mean(self.rounds) if private else self._answer(found, len(evaluations))
        ends = self.found.ends(self.model.replica, self.rounds, answer)
        others = [{name: float(value) for name, value in found[w.tobytes()][0].items()} for w in self.beside]
        # the parameters themselves, or where they are none of these, the last
        place = next((i for i, model in enumerate(models) if model.tobytes() == np.asarray(answer.w).tobytes()), 0)
        own = self._own({client: each[place] for client, each in evaluations.items()})
        return ends, values_of(found, ends) | own, others

    def _measured_before(self) -> dict[bytes, tuple[Mapping[str, Any], Any]]:
        """The values of models that are not measured once more at the end."""
        return {}

    def _answer(self, measured: Mapping[bytes, tuple[Mapping[str, Any], Any]], clients: int) -> Kept:
        return answer_of(self.found, self.program.start, measured, clients)

    def _own(self, evaluations: Mapping[int, Any]) -> dict[str, np.ndarray]:
        """Each client's own values at the answer, as :func:`recording.own_values` has them."""
        task = self.program.task.task
        if not (self.sees_each and recording.looked_at(task, len(self.accounts))):
            return {}
        each = {client: self.program.summarise([said])[0] for client, said in evaluations.items()}
        own = {}
        for name in ("objective", *task.bounds):
            row = [each[client][name] if client in each else np.nan for client in self.everybody]
            own[recording.OWN + name] = np.tile(np.array(row, np.float32), (len(KINDS), 1, 1))
        return own

    def count_frames(self) -> None:
        """Add what was sent after the last round to its row."""
        last = self.rounds - 1
        for name, more in (("frames_up", self.panel.up), ("frames_down", self.panel.down)):
            self._record(last, {name: self.history.columns[name][last] + more})

    @property
    def everybody(self) -> range:
        return range(len(self.accounts))

    def _evaluates(self, t: int) -> bool:
        """Whether the true values of the model that round ``t`` starts from are recorded."""
        return t > 0 and self.evaluate_every > 0 and t % self.evaluate_every == 0

    def _witnesses(self) -> list[int]:
        """Who took part in the last round, and can say what there is to see of its step, if anything is."""
        if not self.round or not self.program.task.task.inspects:
            return []
        return [client for client in self.everybody if self.accounts[client].used == self.round - 1]

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
            pack_direction(direction),
            lambda _, content: Update.read(content, self.program, direction.named),
            lambda updates: {} if self.program.longest is not None else absurd(updates, self.usual),
            lambda answered: len(answered) >= self.min_participants,
        )

    def too_few(self, who: list[int], reasons: Reasons) -> FedSGMError:
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
        evaluations = self._believed(beside.evaluations, {})
        if evaluations:
            count, who = len(evaluations), np.array(sorted(evaluations))
            values, worst = self.program.summarise([evaluations[client][0] for client in who], self.model.replica)
            places = {name: values[name] for name in self.program.task.task.places}
            named = {name: np.float32(who[int(at)]) for name, at in places.items() if np.isfinite(at)}
            self._record(row, {"evaluated": np.int32(count)} | values | named)
            found = self.found.compared(self.model.replica, values["objective"], worst, count, np.int32(row + 1))
            self.found = _numpy(found)

    def _believed(self, evaluations: Mapping[int, Sequence[Any]], reasons: Reasons) -> dict[int, Any]:
        """Those of one form, and with robust aggregation only whose values are believed at every model."""
        alike = self._forms.alike(evaluations)
        doubts = [self.program.disbelieved(list(at)) for at in zip(*alike.values(), strict=True)]
        out = [client for client, *each in zip(alike, *doubts, strict=True) if any(each)]
        if len(out) == len(alike):
            return alike
        reasons |= dict.fromkeys(out, DOUBTED)
        return {client: each for client, each in alike.items() if client not in out}

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
            "accounts": np.frombuffer(json.dumps([dataclasses.asdict(a) for a in self.accounts]).encode(), np.uint8),
            "form": np.frombuffer(self._form, np.uint8),
            "asking": np.array(self._asking),
        }
        arrays |= checkpoints.pack("server", self.server) | checkpoints.pack("found", self.found)
        arrays |= {f"recent/{i:05d}": np.frombuffer(data, np.uint8) for i, data in enumerate(self.model.recent)}
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
        if self.panel.ledger is not None and arrays["asking"]:
            self.panel.ledger.charge_unknown(self.accounts, ended=saved.round >= self.rounds)


def _numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)
