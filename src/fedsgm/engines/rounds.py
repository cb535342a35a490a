"""One round of one seed, of Algorithm 1's five functions, and many in one compiled program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fedsgm.base import blocks, sizes, trees
from fedsgm.base.cache import of_run
from fedsgm.base.structs import as_float32, replaced, static, struct
from fedsgm.core import feedback
from fedsgm.core.algorithm import Flat
from fedsgm.core.drawing import RoundKeys
from fedsgm.core.feedback import Summed
from fedsgm.core.pooling import mean_of
from fedsgm.core.rules import Direction
from fedsgm.core.task import Algorithm
from fedsgm.engines import recording
from fedsgm.engines.recording import Columns, Found

CAPACITY = 128  # rounds that one call of the compiled program can record, at most
CLIENTS = "clients"  # the axis over devices


@struct
class State:
    """What one seed's run carries from round to round, and what a checkpoint needs."""

    server: Any
    memory: Any
    found: Any

    @classmethod
    def cut(cls) -> Any:
        """How the states of all seeds lie on several devices: everybody's memory is with the client."""
        return cls(P(), P(None, CLIENTS), P())


@struct
class Compiled:
    """All that a compiled round is made of; with ``debug``, one client after another.

    ``evaluate_every`` is None where true values are found outside of the rounds. With ``devices`` each of them has an
    equal share of the clients, and room for so many participants. ``light`` is where the run is little work.
    """

    algorithm: Algorithm
    task: Flat
    rounds: Any
    n: int = static()
    evaluate_every: int | None = static()
    debug: bool = static(default=False)
    block: int | None = static(default=None)
    capacity: int = static(default=CAPACITY)
    devices: Mesh | None = static(default=None)
    room: int = static(default=0)
    light: bool = static(default=False)

    def at(self, round: jax.Array) -> Compiled:
        """With what changes from round to round as it is in this one."""
        return replaced(self, algorithm=self.algorithm.at(round), task=self.task.at(round))

    @property
    def share(self) -> int:
        """Clients of a device."""
        return self.n if self.devices is None else -(-self.n // self.devices.size)

    def slots(self, who: jax.Array, keys: RoundKeys) -> Slots:
        """Whom of these, in ascending order, this device works for."""
        m, everyone = len(who), len(who) == self.n
        if self.devices is None:
            return Slots(who, jax.vmap(keys.client)(who), None if everyone else who)
        here = jax.lax.axis_index(CLIENTS)
        if everyone:
            return Slots(who, jax.vmap(keys.client)(here * self.share + jnp.arange(self.share)), None, who)
        starts = jnp.searchsorted(who, jnp.arange(self.devices.size + 1) * self.share)
        at, owner = starts[here] + jnp.arange(self.room), who // self.share
        some = who[jnp.minimum(at, m - 1)]
        rows = jnp.where(at < starts[here + 1], some - here * self.share, self.share)
        return Slots(who, jax.vmap(keys.client)(some), rows, owner * self.room + jnp.arange(m) - starts[owner])

    def each(self, fn: Callable[..., Any], slots: Slots, round: jax.Array, *stacked: Any) -> Any:
        """``fn`` of the slice of every client here, its answers stacked."""
        if self.debug:
            return sizes.over(fn, *stacked, slots.who, each=lambda fn: functools.partial(blocks.one_by_one, round, fn))
        return sizes.over(fn, *stacked, each=functools.partial(blocks.in_blocks, told=self.block))

    def sharded(self, fn: Callable[..., Any], given: Any, gives: Any) -> Callable[..., Any]:
        """``fn`` on every device, where there are several; arrays are cut as these say."""
        if self.devices is None:
            return fn
        return jax.shard_map(fn, mesh=self.devices, in_specs=given, out_specs=gives, check_vma=False)


@struct
class Slots:
    """The clients that are worked for: all of them by number, and of those here the keys and where their rows stand.

    ``rows`` is None where they are all that are here. An empty slot's is beyond the last: it is read as that and
    written nowhere. ``place`` says, with several devices, where everybody's answer stands among those of all devices.
    """

    who: Any
    keys: Any
    rows: Any
    place: Any = None

    def take(self, tree: Any) -> Any:
        return tree if self.rows is None else sizes.take(tree, self.rows)

    def put(self, tree: Any, new: Any) -> Any:
        return new if self.rows is None else sizes.put(tree, self.rows, new)

    def joined(self, answers: Any) -> Any:
        """Everybody's, in order; in one exchange, since between machines two at once may meet in either order."""
        leaves, form = jax.tree.flatten(answers)
        if self.place is None or not leaves:
            return answers
        own = [trees.as_bytes(leaf) for leaf in leaves]
        everybody = jax.lax.all_gather(jnp.concatenate(own, axis=1), CLIENTS, tiled=True)[self.place]
        parts = jnp.split(everybody, np.cumsum([part.shape[1] for part in own])[:-1], axis=1)
        return jax.tree.unflatten(form, list(map(trees.from_bytes, leaves, parts)))

    def own(self, everybody: jax.Array) -> jax.Array:
        """Of a number for each in order, those of the clients here; 0 for an empty slot."""
        if self.place is None:
            return everybody
        here, many = jax.lax.axis_index(CLIENTS), len(self.keys)
        slots = jnp.zeros(many * jax.lax.axis_size(CLIENTS), everybody.dtype).at[self.place].set(everybody)
        return jax.lax.dynamic_slice_in_dim(slots, here * many, many)


@struct
class Window:
    """What some rounds need of clients whose data and memories are elsewhere, of every seed.

    Of every round its participants, their data, and where their memories stand among the window's.
    """

    who: Any
    theirs: Any
    rows: Any


@functools.partial(of_run, donate=(2,))
def advance(
    program: Compiled, data: Any, states: State, seeds: jax.Array, start: int, stop: int
) -> tuple[State, Columns]:
    """Rounds ``start`` to ``stop`` of every seed."""
    windows = data if isinstance(data, Window) else None

    def one_seed(data: Any, state: State, seed: jax.Array, window: Window | None) -> Any:
        # All rounds' draws at once: they depend on (seed, round, client) alone, and small draws cost dispatch.
        rounds = start + jnp.arange(program.capacity)
        draws = jax.vmap(lambda t, window: Draw.of(program, seed, t, window))(rounds, window)
        a_round, first = jax.jit(one_round), jax.tree.map(lambda a: a[0], draws)  # traced once, for shapes and the loop
        info = jax.eval_shape(a_round, replaced(program, debug=False), data, state, first, start)[1]

        def body(t: jax.Array, carry: tuple[State, Columns]) -> tuple[State, Columns]:
            draw = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, t - start, keepdims=False), draws)
            state, info = a_round(program, data, carry[0], draw, t)
            return state, carry[1].recorded(t - start, info)

        return jax.lax.fori_loop(start, stop, body, (state, Columns.empty(info, program.capacity)))

    def every_seed(data: Any, states: State, seeds: jax.Array) -> Any:
        data, states = jax.tree.map(jnp.asarray, (data, states))
        return jax.lax.map(lambda each: one_seed(data, *each), (states, seeds, windows))

    cut = State.cut()
    run = program.sharded(every_seed, (P(CLIENTS), cut, P()), (cut, P()))
    return run(None if windows is not None else data, states, seeds)


@struct
class Draw:
    """All that is random in one round of one seed; ``asked`` is None where only those are asked who work.

    ``theirs`` is the data of those who work, where it comes from outside.
    """

    work: Slots
    asked: Slots | None
    server: jax.Array
    shared: jax.Array
    theirs: Any = None

    @classmethod
    def of(cls, program: Compiled, seed: jax.Array, round: jax.Array, window: Window | None = None) -> Draw:
        keys = RoundKeys.of(seed, round)
        if window is not None:
            work = replaced(program.slots(window.who, keys), rows=window.rows)
            return cls(work, None, keys.server, keys.shared, window.theirs)
        who = program.algorithm.sample(keys.sampling, program.n)
        asked = program.algorithm.queried(who, program.n)
        everyone = None if len(asked) == len(who) else program.slots(asked, keys)
        return cls(program.slots(who, keys), everyone, keys.server, keys.shared)


@of_run
def drawn(program: Compiled, seeds: jax.Array, start: int) -> jax.Array:
    """Who takes part in as many rounds of every seed as a chunk can have."""
    rounds = start + jnp.arange(program.capacity)
    return jax.vmap(lambda seed: jax.vmap(lambda t: Draw.of(program, seed, t).work.who)(rounds))(seeds)


def one_round(
    program: Compiled, data: Any, state: State, draw: Draw, t: jax.Array
) -> tuple[State, dict[str, jax.Array]]:
    """One round of one seed: the participants' work, and what there is to see of it."""
    program = program.at(t)
    algorithm, task, each = program.algorithm, program.task, program.each
    server, w, work = state.server, state.server.replica, draw.work
    asked = work if draw.asked is None else draw.asked
    theirs = work.take(data) if draw.theirs is None else draw.theirs

    def measure(data: Any, key: jax.Array) -> Any:
        return algorithm.measure(task, w, data, key)

    statistics, kept = each(measure, asked, t, theirs if draw.asked is None else data, asked.keys)
    kept = kept if draw.asked is None else work.take(kept)
    statistics = asked.joined(statistics)
    direction, server, measured = algorithm.decide(task, server, statistics, asked.who, program.n, draw.server)
    info = {"participants": work.who} | recording.decided(algorithm, server, direction, measured)

    if algorithm.draws and draw.theirs is None:
        theirs = sizes.to_draw_from(data, work.who, theirs)
    doubted = None if measured.doubted is None else measured.doubted[work.who]
    messages, sent, memory, seen = _updates(program, w, direction, draw, t, theirs, state.memory, kept, doubted)
    server, broadcast = algorithm.aggregate(task, server, messages, draw.server)
    first = jnp.where(t == 0, program.n, len(work.who)) if algorithm.asks_first else len(asked.who)
    info |= seen | recording.traffic(statistics, first, direction, sent, broadcast, len(work.who))

    def inspect(kept: Any) -> Any:
        return task.inspect(w, server.replica, kept)

    if task.task.inspects:
        info |= jax.tree.map(mean_of, work.joined(each(inspect, work, t, kept)))
    found = state.found.averaged(*recording.counted(task.task, w, server.replica, direction, t))
    if program.evaluate_every is not None:
        values, worst = _true_values(program, task, data, server.replica, t)
        found = found.compared(server.replica, values["objective"], worst, program.n, t + 1)
        info |= values
    return State(server, memory, found), info


def _updates(
    program: Compiled,
    w: jax.Array,
    direction: Direction,
    draw: Draw,
    t: jax.Array,
    data: Any,
    memory: Any,
    kept: Any,
    doubted: jax.Array | None,
) -> tuple[Any, jax.Array, Any, dict[str, jax.Array]]:
    """The participants' messages, or what is made of all of them, their bytes, all memories, and what was rejected."""
    algorithm: Any = program.algorithm
    summed, robust = (getattr(algorithm, name, None) for name in ("summed", "robust"))
    work, task, layout = draw.work, program.task, program.task.layout
    apart = layout.apart(w)  # once for all: a client after another would copy it

    def local_update(data: Any, memory: Any, kept: Any, key: jax.Array, *made: Any) -> Any:
        return algorithm.local_update(task, apart, direction, data, kept, memory, key, draw.shared, *made)

    def products(data: Any, kept: Any, _: jax.Array) -> Any:
        return algorithm.products(task, apart, direction, data, kept)

    size = blocks.size_for((kept, work.keys), program.block, layout.size, layout.matrices)
    if program.debug or program.devices is not None or summed is None or size == len(work.who) or robust is not None:
        before = work.take(memory)
        own, new = program.each(local_update, work, t, data, before, kept, work.keys)
        messages = work.joined(own)
        nbytes = feedback.sizes_of(algorithm, messages)
        if robust is None:
            return messages, nbytes, work.put(memory, new), {}
        total, rejected = algorithm.screened(messages, work.who, layout.size, doubted)
        new = jax.vmap(feedback.settled)(new, before, work.own(rejected))
        return total, nbytes, work.put(memory, new), {"rejected": rejected}

    def add(total: Summed, messages: Any) -> tuple[Summed, jax.Array]:
        return summed(total, messages), feedback.sizes_of(algorithm, messages)

    none, rows = Summed.nothing(layout.size), work.rows
    rows = jnp.arange(len(work.who)) if rows is None else rows
    given, before = (data, memory, rows, kept, work.keys), products if hasattr(algorithm, "products") else None
    slices = feedback.slices(algorithm)
    return *blocks.fold(local_update, add, none, *given, size=size, slices=slices, before=before), {}


def _true_values(
    program: Compiled, task: Flat, data: Any, w: jax.Array, t: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Objective and constraints over all clients at ``w``, in the rounds where they are wanted; NaN in others."""

    def now(program: Compiled = program) -> Any:
        return values_at(program, task, data, w, t)

    if program.evaluate_every == 1:
        return now()
    wanted = t + 1 == program.rounds
    if program.evaluate_every:
        wanted |= (t + 1) % program.evaluate_every == 0
    shapes = jax.eval_shape(functools.partial(now, replaced(program, debug=False)))
    skipped = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), shapes)
    return jax.lax.cond(wanted, now, lambda: skipped)


def values_at(
    program: Compiled, task: Flat, data: Any, w: jax.Array, t: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Objective and constraints over all clients, and the largest violation."""
    return recording.summarised(task, w, evaluations_at(program, task, data, w, t))


def evaluations_at(program: Compiled, task: Flat, data: Any, w: jax.Array, t: jax.Array) -> Any:
    """What all clients say of ``w``, one after another."""
    everyone = program.slots(jnp.arange(program.n), RoundKeys.of(jnp.uint32(0), t))

    def evaluate(data: Any) -> Any:
        return task.evaluate(w, data)

    return everyone.joined(program.each(evaluate, everyone, t, data))


def first_states(program: Compiled, w: np.ndarray, data: Any) -> State:
    """Every seed's state before the first round, for clients whose data have the shapes of this one's; no memories."""

    def statistics() -> Any:
        measure = functools.partial(program.algorithm.measure, program.task)
        return jax.eval_shape(measure, w[0], data, jax.eval_shape(jax.random.key, 0))[0]

    def first(start: np.ndarray) -> State:
        server = program.algorithm.init(program.task, start, program.n, statistics)
        return as_float32(State(server, None, Found.start(start)))

    alike = (w == w[0]).all()  # as they are unless each seed has its own start
    states = [first(w[0])] * len(w) if alike else [first(start) for start in w]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


def first_memory(program: Compiled, d: int) -> Any:
    """A client's before its first update."""
    return as_float32(program.algorithm.init_memory(d))


@of_run
def ask_first(program: Compiled, data: Any, states: State, seeds: jax.Array) -> State:
    """Every seed's state once everybody was asked, as in the first round: what they say is of its age then."""

    def one_seed(data: Any, state: State, seed: jax.Array) -> State:
        task, keys = program.task.at(jnp.int32(0)), RoundKeys.of(seed, jnp.int32(0))
        everybody = program.slots(jnp.arange(program.n), keys)

        def measure(data: Any, key: jax.Array) -> Any:
            return program.algorithm.measure(task, state.server.replica, data, key)[0]

        statistics = everybody.joined(program.each(measure, everybody, jnp.int32(0), data, everybody.keys))
        return told_first(program, state, statistics)

    def every_seed(data: Any, states: State, seeds: jax.Array) -> State:
        return jax.lax.map(lambda each: one_seed(data, *each), (states, seeds))

    cut = State.cut()
    return program.sharded(every_seed, (P(CLIENTS), cut, P()), cut)(data, states, seeds)


def told_first(program: Compiled, state: State, statistics: Any) -> State:
    """The state once everybody has said this."""
    server = program.algorithm.remember(state.server, statistics, jnp.arange(program.n), program.n)
    return replaced(state, server=replaced(server, remembered=server.remembered.before()))
