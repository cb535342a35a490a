"""One federated run on the server: what it carries from round to round, and a round of it."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import FederationError, FedSGMError
from fedsgm.core.algorithm import Server
from fedsgm.core.rules import Direction
from fedsgm.engines import checkpoint as checkpoints
from fedsgm.engines.checkpoint import Checkpoint, Saved
from fedsgm.federation.accounts import Account
from fedsgm.federation.answers import NOT_FINITE, WRONG_SHAPE, Forms, Reasons, Report, Update, absurd
from fedsgm.federation.model import Followed
from fedsgm.federation.panel import Panel
from fedsgm.federation.program import At, Program
from fedsgm.federation.protocol import Kind, Transport, pack

TRIES = 5  # of a round, until enough have answered

log = logging.getLogger(__name__)


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
    ) -> None:
        self.program, self.seed, self.rounds = program, seed, rounds
        self.evaluate_every, self.min_participants = evaluate_every, min_participants
        self.panel = Panel(transport, seed, timeout, time.time_ns())
        w = program.start
        server = program.algorithm.init(w)
        self.model = Followed(program, w)
        self.own: Any = server.model
        self.rule = jax.tree.map(np.float32, server.rule)
        self.average, self.best = np.zeros_like(w), np.full_like(w, np.nan)
        self.average_weight: Any = np.float32(0)
        self.best_objective: Any = np.float32(np.inf)
        self.best_evaluated = 0  # clients that its values are of
        self.usual = 0.0  # length of messages: the largest median of a round
        self.history: dict[str, np.ndarray] = {}
        self._forms = Forms(program)
        self._folder: Path | None = None
        self._settings: dict[str, Any] = {}

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
        w: Any = self.model.replica
        self.panel.up = self.panel.down = 0
        missing = set(self._everybody) if self._evaluates(t) else set()  # whose true values are not known yet
        evaluations: dict[int, Any] = {}
        for again in range(TRIES):
            who = self.program.sample(at, len(self.accounts), again)
            kinds = dict.fromkeys(missing, Kind.EVALUATE)
            kinds |= {c: Kind.MEASURE_AND_EVALUATE if c in missing else Kind.MEASURE for c in who}
            reports, reasons = self._measure(kinds, who)
            evaluations |= {c: reports[c].evaluations for c in missing & reports.keys()}
            missing -= evaluations.keys()
            measured = [client for client in who if client in reports]
            updates: dict[int, Update] = {}
            answered: Collection[int] = measured
            if len(measured) >= self.min_participants:
                statistics = [reports[client].statistics for client in measured]
                direction, rule, seen = self.program.decide(self.rule, statistics, at)
                updates, why = self._update(measured, direction)
                answered, reasons = updates, reasons | why
            self._leave_out([client for client in who if client not in answered], reasons)
            if len(updates) >= self.min_participants:
                break
            self.panel.attempt += 1  # another try may have another direction: what is late of this one must not count
            self.save()
        else:
            raise self._too_few(who, reasons)
        messages = [update.message for update in updates.values()]
        server, broadcast = self.program.aggregate(Server(w, self.own, rule), messages, at)

        if evaluations:
            self._record_values(t - 1, self._forms.alike(evaluations))
        for client in updates:
            self.accounts[client].used = t
            self.accounts[client].answered += 1
        total = self.average_weight + direction.objective
        share = direction.objective / (total if total > 0 else np.float32(1))
        self.average, self.average_weight = self.average + share * (w - self.average), total
        if len(who) > 1:  # who is always alone has nothing to be held against
            self.usual = max(self.usual, float(np.median([update.norm for update in updates.values()])))
        self.rule, self.own, self.model = rule, server.model, self.model.after(broadcast)
        self._record(t, violation=seen.violation, weight=direction.constraint, **seen.report)
        if rule is not None:
            self._record(t, multiplier=rule)
        self._record(t, participants=np.array(who, np.int32), answered=np.int32(len(updates)))
        self._record(t, bytes_up=np.int64(self.panel.up), bytes_down=np.int64(self.panel.down))
        self.save()

    def finish(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The last, average and best parameters, and their true values over the clients, all that answer."""
        self.panel.up = self.panel.down = 0
        average = self.average if self.average_weight > 0 else np.full_like(self.average, np.nan)
        models = [self.model.replica, *(w for w in (average, self.best) if np.isfinite(w).all())]
        evaluations: dict[int, Any] = {}
        reasons: Reasons = {}
        for _ in range(TRIES):
            missing = [client for client in self._everybody if client not in evaluations]
            reports, why = self._measure(dict.fromkeys(missing, Kind.EVALUATE), missing, models[1:])
            evaluations |= {client: report.evaluations for client, report in reports.items()}
            reasons |= why
            if len(evaluations) == len(self._everybody):
                break
        evaluations = self._forms.alike(evaluations)
        if len(evaluations) < self.min_participants:
            raise self._too_few(list(self._everybody), reasons)
        for client in set(self._everybody) - evaluations.keys():
            reason = reasons.get(client, WRONG_SHAPE)
            log.warning("at the end %s is not measured: %s", self.accounts[client].name, reason)
        found = {
            model.tobytes(): self.program.summarise([each[i] for each in evaluations.values()])[0]
            for i, model in enumerate(models)
        }
        self._record_values(self.rounds - 1, evaluations)
        ends = np.stack([self.model.replica, average, self.best])
        nothing = dict.fromkeys(("objective", *self.program.task.task.bounds), np.float32(np.nan))
        rows = [found.get(w.tobytes(), nothing) for w in ends]
        for name, more in (("bytes_up", self.panel.up), ("bytes_down", self.panel.down)):
            self.history[name][self.rounds - 1] += more
        return ends, {name: np.array([[row[name]] for row in rows], np.float32) for name in nothing}

    @property
    def _everybody(self) -> range:
        return range(len(self.accounts))

    def _evaluates(self, t: int) -> bool:
        """Whether the true values of the model that round ``t`` starts from are recorded."""
        return t > 0 and self.evaluate_every > 0 and t % self.evaluate_every == 0

    def _measure(
        self, kinds: dict[int, Kind], who: list[int], models: Sequence[np.ndarray] = ()
    ) -> tuple[dict[int, Report], Reasons]:
        return self.panel.ask(
            self.model,
            kinds,
            b"".join(w.tobytes() for w in models),
            lambda kind, content: Report.read(content, kind, 1 + len(models)),
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

    def _record_values(self, row: int, evaluations: dict[int, Any]) -> None:
        """The true values of the present model, which ``row`` produced; it may be the best feasible one so far.

        Values of more clients come first: without the one that a constraint is about, many a model seems feasible.
        """
        count = len(evaluations)
        values, worst = self.program.summarise([evaluations[client][0] for client in sorted(evaluations)])
        self._record(row, evaluated=np.int32(count), **values)
        if worst > 0 or count < self.best_evaluated:
            return
        if count > self.best_evaluated or values["objective"] < self.best_objective:
            self.best, self.best_objective = self.model.replica, values["objective"]
            self.best_evaluated = count

    def _record(self, row: int, **values: Any) -> None:
        for name, value in values.items():
            if name not in self.history:
                fill = np.nan if value.dtype.kind == "f" else 0
                self.history[name] = np.full((self.rounds, *value.shape), fill, value.dtype)
            self.history[name][row] = value

    def keep_in(self, checkpoint: Checkpoint, settings: dict[str, Any]) -> None:
        """Save every round there from now on, and go on from what is there, if that is wanted."""
        self._folder, self._settings = Path(checkpoint.directory), settings
        saved = checkpoints.resume(checkpoint, settings, self.rounds)
        if saved is not None:
            self._restore(saved)
            self.save()  # before anybody is asked: no two servers have the same number

    def save(self) -> None:
        if self._folder is None:
            return
        arrays = {
            "replica": self.model.replica,
            "average": self.average,
            "best": self.best,
            "scalars": np.array(
                [self.average_weight, self.best_objective, self.usual, self.best_evaluated], np.float64
            ),
            "run": np.array([self.panel.run, self.panel.attempt], np.uint64),
            "accounts": _bytes_as_array(json.dumps([dataclasses.asdict(a) for a in self.accounts]).encode()),
        }
        if self.own is not None:
            arrays["model"] = self.own
        arrays |= {f"rule/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.rule))}
        arrays |= {f"recent/{i:05d}": _bytes_as_array(data) for i, data in enumerate(self.model.recent)}
        arrays |= {f"history/{name}": column[: self.round] for name, column in self.history.items()}
        checkpoints.save(self._folder, Saved(self.round, arrays, self._settings))

    def _restore(self, saved: Saved) -> None:
        arrays = saved.arrays
        recent = [arrays[name].tobytes() for name in sorted(arrays) if name.startswith("recent/")]
        self.model = Followed(self.program, arrays["replica"], saved.round, recent)
        self.own = arrays.get("model")
        names = iter(sorted(name for name in arrays if name.startswith("rule/")))
        self.rule = jax.tree.map(lambda leaf: arrays[next(names)].reshape(np.shape(leaf)), self.rule)
        self.average, self.best = arrays["average"], arrays["best"]
        self.average_weight, self.best_objective = arrays["scalars"][:2].astype(np.float32)
        self.usual, self.best_evaluated = float(arrays["scalars"][2]), int(arrays["scalars"][3])
        run, attempt = map(int, arrays["run"])
        self.panel.run, self.panel.attempt = run, attempt + 1
        self.panel.accounts = [Account(**fields) for fields in json.loads(arrays["accounts"].tobytes())]
        for name, column in arrays.items():
            if name.startswith("history/"):
                for row, value in enumerate(column):
                    self._record(row, **{name.removeprefix("history/"): value})


def _bytes_as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)
