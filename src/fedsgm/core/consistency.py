"""Whether a client's messages are the slopes of what it says: what robust aggregation holds clients to over the rounds.

Only a client's own words are held against each other, so that honest clients may be as unlike as they are, and nobody
can have another one left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsgm.base.structs import replaced, struct
from fedsgm.core.compression import Identity, Quantize
from fedsgm.core.feedback import Summed
from fedsgm.core.pooling import Heard, median_of
from fedsgm.core.robust import believed

if TYPE_CHECKING:
    from fedsgm.core.algorithm import FedSGM, Flat
    from fedsgm.core.rules import Measured

DECAY = 0.98  # of what was found, from one round to the next
LIMIT = 1.0  # as wrong about the changes as messages of nothing would be
AGAIN = 0.5  # who was doubted is believed again once it is less wrong than that, or than the median client
OTHERS = 3.0  # and so many times as wrong as the median client, which noise and long steps make wrong, too
MOST = 10.0  # that one round counts, so that one step too long for its slope does not tell of a client for long
ROUNDING = 1e-6  # of a value in float32, a sum over many examples


@struct
class Screened(Summed):
    """What an aggregator made of messages, with the vectors that they stand for, and whose they are."""

    vectors: jax.Array
    who: jax.Array


@struct
class Consistency:
    r"""How well what each client sends fits what it says.

    The model's step from one round to the next changes what client j follows, h = (1 - s) f_j + s g_j, by its slope
    along the step, which its messages v = C(\Delta) are E times. With the mean of both rounds' the error is of third
    order in the step:

    .. math:: e_j(t) = \tfrac12 \sum_{r \in \{t-1, t\}} \Big( h_j^{(r)}(w_t) - h_j^{(r)}(w_{t-1})
        - \big\langle \tfrac1E v_j^{(r)}, w_t - w_{t-1} \big\rangle \Big)

    A client is inconsistent where the sum of their squares is larger than that of the changes themselves; rounds
    count less by ``DECAY`` each, and equally by the median client's change in them.

    ``said`` has what each client said last, ``step`` what the model moved by in the last round, and ``slopes`` each
    client's message of it along the step after it. ``change`` and ``size`` are of the round that is under way,
    ``due`` is 1 where they are known; ``error`` and ``total`` are the sums, and ``doubted`` is 1 for whom they find.
    """

    said: Any
    direction: Any
    step: Any
    slopes: Any
    change: Any
    size: Any
    heard: Any
    due: Any
    sent: Any
    error: Any
    total: Any
    doubted: Any

    @classmethod
    def nothing(cls, said: Any, direction: Any, clients: int, d: int) -> Consistency:
        """Before the first round; ``said`` is that of any clients, stacked."""
        empty = jax.tree.map(lambda a: jnp.zeros((clients, *a.shape[1:]), a.dtype), said)
        return cls(
            empty, jax.tree.map(jnp.zeros_like, direction), jnp.zeros(d), *(jnp.zeros(clients) for _ in range(9))
        )

    @classmethod
    def of_run(cls, algorithm: FedSGM, task: Flat, server: Any, told: Any, clients: int) -> Consistency:
        """The same before anybody spoke, where clients' statistics have these shapes."""
        said = jax.tree.map(lambda a: np.zeros((clients, *a.shape), a.dtype), told)

        def first(key: jax.Array) -> Any:
            return algorithm.decide(task, server, said, jnp.arange(clients), clients, key)[1].consistency

        shapes = jax.eval_shape(first, jax.eval_shape(jax.random.key, 0))
        return jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes)

    def judged(self) -> Consistency:
        """With those ``doubted`` whose messages do not fit what they say."""
        score = self.error / jnp.maximum(self.total, jnp.finfo(jnp.float32).tiny)
        typical = median_of(score, self.total)
        most = jnp.where(self.doubted > 0, jnp.fmax(AGAIN, typical), jnp.fmax(LIMIT, OTHERS * typical))
        return replaced(self, doubted=jnp.float32((self.total > 0) & (score > most)))

    def after_saying(self, task: Flat, who: jax.Array, said: Any, direction: Any) -> Consistency:
        """With what these clients say in this round, and the direction that follows from it."""
        before = jax.tree.map(lambda a: a[who], self.said)
        problem: Any = task.task
        each = jax.vmap(problem.followed, (0, None))
        now, then = ([each(own, to) for to in (self.direction, direction)] for own in (said, before))
        change = (now[0] - then[0] + now[1] - then[1]) / 2
        size = jnp.abs(change) + ROUNDING * sum(map(jnp.abs, (*now, *then)))
        none = jnp.zeros_like(self.heard)
        return replaced(
            self,
            said=jax.tree.map(lambda old, new: old.at[who].set(new), self.said, said),
            direction=direction,
            change=none.at[who].set(jnp.sum(change, axis=1)),
            size=none.at[who].set(jnp.sum(size, axis=1)),
            heard=none.at[who].set(1),
            due=none.at[who].set(self.heard[who]),
        )

    def after_sending(self, sent: Screened, local_steps: int, step: jax.Array) -> Consistency:
        """With the messages of this round, after which the model takes this step."""
        who, slopes = sent.who, sent.vectors / local_steps
        due = self.due[who] * self.sent[who]
        error = self.change[who] - (self.slopes[who] + slopes @ self.step) / 2
        squares = self.size[who] ** 2
        unit = jnp.fmax(jnp.fmax(squares, median_of(squares, due)), jnp.finfo(jnp.float32).tiny)
        wrong = jnp.clip(jnp.nan_to_num(error**2 / unit, nan=MOST), 0, MOST)

        def added(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[who].set(jnp.where(due > 0, DECAY * old[who] + new, old[who]))

        none = jnp.zeros_like(self.heard)
        return replaced(
            self,
            step=step,
            slopes=none.at[who].set(slopes @ step),
            sent=none.at[who].set(1),
            error=added(self.error, wrong),
            total=added(self.total, jnp.nan_to_num(squares / unit, nan=1.0)),
        ).judged()


def can_compare(algorithm: FedSGM) -> bool:
    """Whether a message is about the slope of what its client says in the same round.

    It is not where a compressor leaves entries to later rounds, nor where values are of a few examples or have noise.
    """
    whole = isinstance(algorithm.uplink, (Identity, Quantize))
    exact = algorithm.constraint_batch_size is None and algorithm.privacy is None
    return whole and exact


def judged(
    combine: Callable[..., Measured],
    robust: Any,
    consistency: Consistency | None,
    who: jax.Array,
    clients: int,
    heard: Heard,
) -> Measured:
    """The estimate without those whose messages do not fit what they said, and who is ``doubted``, of all clients.

    The statistics are those of the clients ``who``, or of all of whom some were ``heard``.
    """
    out = jnp.zeros(clients) if consistency is None else consistency.doubted
    own = out[who] if heard is None else out
    measured = combine(heard if consistency is None else believed(heard, own), robust)
    found = own if measured.doubted is None else jnp.maximum(own, measured.doubted)
    return measured._replace(doubted=jnp.zeros(clients).at[who].set(found) if heard is None else found)
