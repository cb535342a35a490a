"""Algorithm 1 of the paper: FedSGM, in the five functions that clients and the server call.

            client                                server
     measure(w, data)        -> statistics   -->
                                                  decide(statistics)      -> direction
     local_update(w, direction, data, memory)
                             -> message, memory -->
                                                  aggregate(messages)     -> server, broadcast
     receive(w, broadcast)   -> w            <--

Line numbers are those of the paper's listing, every line counted. Every function is pure and works on flat float32
vectors. An engine decides where they run; randomness is a function of (seed, round, client) alone, so every engine
gives the same iterates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedsgm.base.layout import Layout
from fedsgm.base.structs import Scheduled, aside, replaced, static, struct
from fedsgm.base.structs import check_participants as check_there
from fedsgm.core import feedback
from fedsgm.core.compression import Compressor, Identity, Message
from fedsgm.core.consistency import Consistency, Screened, can_compare, judged
from fedsgm.core.drawing import distinct
from fedsgm.core.feedback import Memory, Summed, Uplink
from fedsgm.core.pooling import calmed
from fedsgm.core.queries import Remembered
from fedsgm.core.robust import Robust, believed, check_participants
from fedsgm.core.rules import Direction, Hard, Measured, Rule, check_rule, margin_of
from fedsgm.core.settings import check_settings, check_task
from fedsgm.core.task import Task
from fedsgm.core.walk import Products, Walk, walk

if TYPE_CHECKING:
    import optax


@struct
class Flat:
    """A task that speaks of flat vectors."""

    task: Task
    layout: Layout = static()

    def at(self, round: jax.Array) -> Flat:
        return Flat(self.task.at(round), self.layout)

    def measure(self, w: jax.Array, data: Any, key: jax.Array, batch_size: int | None, **more: bool) -> tuple[Any, Any]:
        return self.task.measure(self.layout.unflatten(w), data, key, batch_size=batch_size, **more)

    def direction(
        self, w: jax.Array, direction: Direction, data: Any, kept: Any, key: jax.Array, batch_size: int | None
    ) -> jax.Array:
        step = self.task.direction(self.layout.unflatten(w), direction, data, kept, key, batch_size=batch_size)
        return self.layout.flatten(step)

    def inspect(self, before: jax.Array, after: jax.Array, kept: Any) -> dict[str, jax.Array]:
        return self.task.inspect(self.layout.unflatten(before), self.layout.unflatten(after), kept)

    def evaluate(self, w: jax.Array, data: Any) -> Any:
        return self.task.evaluate(self.layout.unflatten(w), data, jax.random.key(0))

    def project(self, project: Callable[[Any], Any] | None, w: jax.Array) -> jax.Array:
        return w if project is None else self.layout.flatten(project(self.layout.unflatten(w)))


@struct
class Server:
    """What the server carries from round to round.

    ``replica`` is w, the model that every client holds; ``model`` is x, the server's own, which differs from
    it only where the downlink is compressed with error feedback (None otherwise). ``rule`` and ``optimizer`` have the
    states of these, ``remembered`` the clients' last statistics, where the estimate is made of them, ``history`` what
    earlier mean messages tell of where the next ones are large, where the uplink's entries are named by that, and
    ``consistency`` how well clients' messages fit what they say, where they may be dishonest.
    """

    replica: jax.Array
    model: jax.Array | None
    rule: Any
    optimizer: Any
    remembered: Remembered | None = None
    history: Any = None
    consistency: Consistency | None = None


@struct
class FedSGM:
    r"""Federated switching gradient method with local steps, partial participation and compression both ways.

    A round t measures the constraints, decides on weights :math:`(1 - s_t, s_t)` by its rule, and has m clients take E
    steps on that mix of gradients; the messages C(·) carry what error feedback has kept back:

    .. math:: w_j \leftarrow w_j - \eta \big((1 - s_t) \nabla f_j(w_j) + s_t \nabla g_j(w_j)\big), \qquad
        w_{t+1} = \Pi_X\Big(w_t - \frac{\eta}{m} \sum_{j \in S_t} C(e_j + \Delta_j)\Big)

    Algorithm 1 of Upadhyay, Moon and Hashemi, *FedSGM: A Unified Framework for Constraint Aware, Bidirectionally
    Compressed, Multi-Step Federated Optimization*; ``docs/algorithm.md`` goes through its lines beside the code.

    >>> import fedsgm as fs
    >>> fs.FedSGM(step_size=0.1, local_steps=5, participants=10, rule=fs.Soft(beta=40.0), uplink=fs.TopK(0.1))
    FedSGM(step_size=0.1, local_steps=5, participants=10, rule=Soft(beta=40.0), uplink=TopK(fraction=0.1, count=None))

    Args:
        step_size: eta, of the local steps and of the server's: a number, or a function of the round such as optax's
            schedules.
        local_steps: E.
        participants: m clients drawn each round; None is all of them.
        rule: how violations become a direction, e.g. ``Hard()`` or ``Soft(beta=40.0)``.
        tolerance: epsilon, the slack on top of the user's bound before a round counts as violated.
        uplink, downlink: compressors; error feedback is on wherever one is not ``Identity``. The uplink may be a
            :func:`fedsgm.chain` of transforms that ends in a compressor.
        project: the projection onto X, from parameters to parameters (any ``optax.projections`` fits).
        batch_size: examples drawn for each local gradient; None is all of the client's.
        constraint_batch_size: examples drawn for each constraint query; None is all of the client's.
        server: the optimizer that takes the server's step along the mean message, any of optax's, for instance
            ``optax.adam(0.01)``; None is the paper's, a plain step of ``step_size``.
        query: whose statistics decide. ``"participants"`` is the paper's. ``"all"``: every client answers the cheap
            query of the constraints, the participants do the local work. ``"memory"``: the participants answer, and the
            server decides on the last answers of all clients.
        unheard: what is done with ``query="memory"`` about clients that were never heard: they are ``"asked"`` first,
            in a query of their own, or ``"left out"`` of the estimate until their turn comes.
        robust: how messages and statistics are put together where clients may be dishonest, e.g. ``Outliers()``;
            None is the mean of all.
        privacy: a :class:`fedsgm.Privacy`, for runs whose clients send nothing but what is differentially private.
        memory: False turns error feedback off, both ways: what a compressor leaves out is lost. For comparison only.
        promise: the guarantee that the settings were made for, by :meth:`from_theory`; of no effect on a run.
    """

    step_size: float | Scheduled
    local_steps: int = static(default=1)
    participants: int | None = static(default=None)
    rule: Rule = Hard()
    tolerance: float = 0.0
    uplink: Uplink = static(default=Identity())
    downlink: Compressor = static(default=Identity())
    project: Callable[[Any], Any] | None = static(default=None)
    batch_size: int | None = static(default=None)
    constraint_batch_size: int | None = static(default=None)
    server: optax.GradientTransformation | None = static(default=None)
    query: str = static(default="participants")
    unheard: str = static(default="asked")
    memory: bool = static(default=True)
    robust: Robust | None = None
    privacy: Any = None
    promise: Any = aside(default=None)

    @classmethod
    def from_theory(cls, problem: Any, clients: Any, params: Any, *, rounds: int, **settings: Any) -> FedSGM:
        """Step size, tolerance and beta from the theorem that covers the setting; the verdict then has its promise.

        Args:
            rounds: T, as the run will have.
            rule: ``"hard"`` or ``"soft"``.
            beta: of the soft rule; any is promised something, and the theorem's own if it is not given.
            local_steps, participants, uplink, downlink, project, batch_size, constraint_batch_size: as above.
            query: with sampled clients ``"all"`` if it is not given: then the estimate does not depend on who is drawn
                for the gradients, as the theorems assume.
            distance, lipschitz, sigma: D, G and sigma; measured (:mod:`fedsgm.theory.estimates`) if not given.
            delta: how often the promise may fail, with sampled clients or mini-batches.
            gradient_noise, query_noise: sigma_xi and sigma_b, for mini-batches.
            weak_convexity, proximal, multiplier: rho, rho_hat and Lambda, for a weakly convex objective.
            form: ``"proof"`` or ``"statement"``, see :mod:`fedsgm.theory`.
        """
        from fedsgm.theory import plan

        return cls(**plan(problem, clients, params, rounds=rounds, **settings))

    def __post_init__(self) -> None:
        if callable(self.step_size):
            object.__setattr__(self, "step_size", Scheduled(self.step_size))
        check_settings(self)

    def cohort(self, clients: int) -> int:
        """m."""
        check_there(self.participants, clients)
        m = clients if self.participants is None else self.participants
        if self.robust is not None:
            check_participants(self.robust, m)
        return m

    def at(self, round: jax.Array) -> FedSGM:
        """With the step size of this round."""
        if not isinstance(self.step_size, Scheduled):
            return self
        step = self.step_size
        return replaced(self, step_size=jnp.float32(step.scale * step.schedule(round)))

    @property
    def eta(self) -> Any:
        """The step size, a number in the round that :meth:`at` is for."""
        return self.step_size

    def queried(self, who: jax.Array, clients: int) -> jax.Array:
        """The participants, unless everybody is asked."""
        return jnp.arange(clients) if self.query == "all" else who

    @property
    def asks_first(self) -> bool:
        return self.query == "memory" and self.unheard == "asked"

    @property
    def draws(self) -> bool:
        return self.batch_size is not None

    def init(self, task: Flat, w: Any, clients: int, statistics: Callable[[], Any] | None = None) -> Server:
        """x_0 = w_0; no server model of its own where the downlink is not compressed, or nothing is made up for."""
        check_rule(self.rule, tuple(task.task.bounds))
        if self.robust is not None:
            check_task(task.task)
        model = w if self.memory and not isinstance(self.downlink, Identity) else None
        optimizer = None if self.server is None else self.server.init(w)
        known = statistics() if self.query == "memory" and statistics is not None else None
        remembered = None if known is None else Remembered.nothing(self.said(known), clients)
        history = feedback.history(self.uplink, len(w))
        server = Server(w, model, self.rule.init(self._weighed(task.task)), optimizer, remembered, history)
        if not self.compares or statistics is None:
            return server
        return replaced(server, consistency=Consistency.of_run(self, task, server, statistics(), clients))

    @property
    def compares(self) -> bool:
        """Whether clients say their objective's values, too, and their messages are held against what they say."""
        return self.robust is not None and can_compare(self)

    def said(self, statistics: Any) -> Any:
        """What clients say of the constraints."""
        return statistics[0] if self.compares else statistics

    def init_memory(self, d: int) -> Memory:
        """A client's: e_j = 0."""
        return feedback.init(self.uplink, d, self.memory, feedback.longest(self))

    def sample(self, key: jax.Array, clients: int) -> jax.Array:
        """S_t: m distinct clients, uniformly, in ascending order (line 2)."""
        m = self.cohort(clients)
        if m == clients:
            return jnp.arange(clients)
        return jnp.sort(distinct(key, m, clients))

    def measure(self, task: Flat, w: jax.Array, data: Any, key: jax.Array) -> tuple[Any, Any]:
        """Client: the statistics of its constraints at w_t (line 3), and what the task keeps for the update."""
        more = {"objective": True} if self.compares else {}
        return task.measure(w, data, jax.random.fold_in(key, 0), self.constraint_batch_size, **more)

    def decide(
        self, task: Flat, server: Server, statistics: Any, who: jax.Array, clients: int, key: jax.Array
    ) -> tuple[Direction, Server, Measured]:
        """Server: the estimate of the constraints and the weights that follow from it (lines 4, 8-17)."""
        heard, told, said = None, statistics, self.said(statistics)
        if self.query == "memory":
            server = self.remember(server, statistics, who, clients)
            assert server.remembered is not None
            said, heard = server.remembered.statistics, server.remembered.heard
        drawn = jax.random.fold_in(key, 0)
        if self.robust is None:
            measured = task.task.combine(said, self.tolerance, drawn, heard)
        else:
            judge = functools.partial(task.task.combine, said, self.tolerance, drawn)
            measured = judged(judge, self.robust, server.consistency, who, clients, heard)
        if self.query == "all":  # all that answered
            measured = measured._replace(report=measured.report | {"heard": jnp.int32(len(who))})
        noise = 0.0 if getattr(self.rule, "averages", False) else measured.radius  # which cancels where it is added up
        margins = (self._margin(measured, len(who) / clients) + noise) / measured.scales
        direction, rule = self._decided(measured, margins, server.rule)
        if server.history is not None:
            direction = replaced(direction, named=server.history.largest())
        server = replaced(server, rule=rule)
        if self.compares:
            before = server.consistency or Consistency.nothing(told, direction, clients, len(server.replica))
            server = replaced(server, consistency=before.after_saying(task, who, told, direction))
        return direction, server, measured

    def _decided(self, measured: Measured, margins: jax.Array, state: Any) -> tuple[Direction, Any]:
        """By the rule: of the constraints or, if it weighs each by itself, of their parts."""
        calm, parts = calmed(self.rule, measured), measured.parts if getattr(self.rule, "of_parts", False) else None
        if parts is None:
            chosen, state = calm.decide(measured.violations + margins, state)
            return Direction(jnp.float32(chosen.objective), jnp.float32(chosen.constraint), measured.guide), state
        chosen, state = self.rule.decide(parts.violations + margins[parts.of], state)
        active, guides, *rest = measured.guide
        weights, guides = parts.told(jnp.float32(chosen.constraint), guides)
        return Direction(jnp.float32(chosen.objective), weights, (active, guides, *rest)), state

    def _weighed(self, task: Task) -> int:
        """How many weights the rule gives: one for each constraint, or for each of their parts."""
        own = getattr(task, "parts", None) if getattr(self.rule, "of_parts", False) else None
        return len(task.bounds) if own is None else sum(own)

    def _margin(self, measured: Measured, share: float) -> Any:
        """How far below the bounds the rule switches, in units of the constraints."""
        share = 0.0 if self.constraint_batch_size is not None else 1.0 if self.query == "memory" else share
        return margin_of(self.rule, measured, share)

    def remember(self, server: Server, statistics: Any, who: jax.Array, clients: int) -> Server:
        """The server with these clients' statistics in place of their last ones."""
        statistics = self.said(statistics)
        one = jax.tree.map(lambda a: a[0], statistics)
        before = Remembered.nothing(one, clients) if server.remembered is None else server.remembered
        return replaced(server, remembered=before.after(who, statistics))

    def report(self, server: Server) -> dict[str, jax.Array]:
        """What the rule names of its state, and of whom the estimate is where that changes."""
        known = {} if server.remembered is None else server.remembered.report()
        return known | self.rule.report(server.rule)

    def local_update(
        self,
        task: Flat,
        w: list[Any],
        direction: Direction,
        data: Any,
        kept: Any,
        memory: Memory,
        key: jax.Array,
        shared: jax.Array | None = None,
        products: Products | None = None,
    ) -> tuple[Message, Memory]:
        """Client: E local steps from w_t, then the compressed sum of their directions (lines 6-27).

        Where clients count by their rows, a large one's directions are longer, its local steps are not: it walks its
        own data as any other, and its message counts more. w_t is taken apart, once for all clients.
        """
        share, path = task.task.share(direction, kept), self._path(task, w, direction, data, kept, products)

        def step(tau: jax.Array, total: Any) -> Any:
            return path.after(tau, total, self.eta, share, jax.random.fold_in(key, 2 + tau))

        update = path.update(jax.lax.fori_loop(0, self.local_steps, step, path.nothing))
        key, longest = jax.random.fold_in(key, 1), feedback.longest(self)
        return feedback.send(self.uplink, memory, update, key, shared, longest, direction.named)

    def products(self, task: Flat, w: list[Any], direction: Direction, data: Any, kept: Any) -> Products:
        """Client: of its local steps, the products that are the same for all clients but for their rows."""
        return self._path(task, w, direction, data, kept).first

    def _path(self, task: Flat, w: Any, direction: Direction, data: Any, kept: Any, given: Any = None) -> Walk:
        def follow(params: Any, key: jax.Array) -> Any:
            return task.task.direction(params, direction, data, kept, key, batch_size=self.batch_size)

        return walk(task.layout, w, follow, self.local_steps, given)

    def summed(self, total: Summed, messages: Message) -> Summed:
        """Server: what :meth:`aggregate` needs of messages, once these are added to others' total."""
        return total.after(self.uplink, messages)

    def screened(self, messages: Message, who: jax.Array, d: int, doubted: Any) -> tuple[Summed, jax.Array]:
        """Server: what :meth:`aggregate` needs of all messages, with the share of each that is left out as doubtful.

        ``doubted`` is 1 for who said in this round what is not believed, whose message is not used either.
        """
        assert self.robust is not None
        vectors = jax.vmap(lambda message: feedback.received(self.uplink, message, d))(messages)
        said = jnp.zeros(len(vectors)) if doubted is None else doubted
        mean, rejected = self.robust.combined(vectors, believed(None, said))
        return Screened(mean, jnp.float32(1), vectors, who), jnp.float32(rejected)

    def aggregate(
        self, task: Flat, server: Server, messages: Message | Summed, key: jax.Array
    ) -> tuple[Server, Message]:
        """Server: one projected step along the mean message, and what is sent to all (lines 29-34, 38)."""
        sums = messages if isinstance(messages, Summed) else self._added_up(messages, len(server.replica))
        mean = sums.mean(task.task, key)
        moved, optimizer = self._step(server, mean)
        model = task.project(self.project, moved)
        broadcast = feedback.broadcast(self.downlink, server.replica, model, jax.random.fold_in(key, 1))
        replica = self.receive(server.replica, broadcast)
        own, before = None if server.model is None else model, server.replica
        history = None if server.history is None else server.history.after(mean)
        server = replaced(server, replica=replica, model=own, optimizer=optimizer, history=history)
        if isinstance(sums, Screened) and server.consistency is not None:
            fits = server.consistency.after_sending(sums, self.local_steps, replica - before)
            server = replaced(server, consistency=fits)
        return server, broadcast

    def _added_up(self, messages: Message, d: int) -> Summed:
        if self.robust is None:
            return self.summed(Summed.nothing(d), messages)
        used = self.screened(messages, jnp.arange(0), d, None)[0]
        return Summed(used.total, used.count)  # whose they are is not known

    def _step(self, server: Server, mean: jax.Array) -> tuple[jax.Array, Any]:
        """x - eta * mean, or what the server's optimizer makes of the mean; and the optimizer's state."""
        current = server.replica if server.model is None else server.model
        if self.server is None:
            return current - self.eta * mean, None
        step, state = self.server.update(mean, server.optimizer, current)
        return current + step, state

    def receive(self, w: jax.Array, broadcast: Message) -> jax.Array:
        """Client: the next model (lines 35-36)."""
        return feedback.follow(self.downlink, w, broadcast)
