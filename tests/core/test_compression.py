"""Every compressor keeps the contract of contraction and error feedback; each then keeps its own promises."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsgm import Identity, Layerwise, Natural, Quantize, RandK, ScaledSign, SettingError, SharedK, TopK
from fedsgm.core import compression, feedback, shared, wire

LAYERS = (15, 1, 15)


@dataclasses.dataclass(frozen=True)
class Named:
    """Shared-K whose entries the worst history names, those that are least, or the best."""

    compressor: SharedK
    worst: bool = True

    def compress(self, x, key):
        many = self.compressor.named(x.shape[-1])
        order = jnp.argsort(jnp.abs(x) if self.worst else -jnp.abs(x))
        return self.compressor.compress(x, key, jnp.sort(order[:many]).astype(jnp.int32) if many else None)

    def decompress(self, message, d):
        return self.compressor.decompress(message, d)

    def contraction(self, d):
        return self.compressor.contraction(d)


COMPRESSORS = [
    Identity(),
    TopK(0.1),
    TopK(count=3),
    RandK(0.25),
    RandK(count=2),
    SharedK(0.25),
    SharedK(count=2, reach=4, bits=24),
    Named(SharedK(0.25, history=0.25)),
    Named(SharedK(0.25, history=0.25), worst=False),
    Named(SharedK(0.5, history=0.6)),
    Named(SharedK(count=2, reach=4, bits=24, history=0.5)),
    Quantize("float16"),
    Quantize("float8"),
    Quantize("float4"),
    Quantize("float16", block=64),
    Quantize("float8", block=64),
    Quantize("float4", block=64),
    Quantize("int8"),
    Quantize("int4"),
    Quantize("int2"),
    Quantize("int8", block=64),
    Quantize("int4", block=64),
    Quantize("int2", block=64),
    ScaledSign(),
    Natural(),
    Layerwise(TopK(0.1), LAYERS),
    Layerwise(Quantize("int4"), LAYERS),
    Layerwise(RandK(0.25), LAYERS),
    Layerwise(SharedK(0.25), LAYERS),
]
RANDOM = (RandK, SharedK, Natural)
# As users' programs are compiled: without its fusion emitters, as the other tests' are, XLA rounds to float4 twice.
jit = functools.partial(jax.jit, compiler_options={"xla_cpu_use_fusion_emitters": True})
KEYS = 400
EPS = float(np.finfo(np.float32).eps)


D = sum(LAYERS)


def is_random(compressor):
    return isinstance(getattr(compressor, "compressor", compressor), RANDOM)


def keys(compressor):
    return jax.random.split(jax.random.key(7), KEYS if is_random(compressor) else 2)


def sizes(compressor):
    return (D,) if isinstance(compressor, Layerwise) else (1, 2, D, 1000)


CASES = [pytest.param(c, d, id=f"{c}-{d}") for c in COMPRESSORS for d in sizes(c)]


def vectors(d):
    """One vector of each kind, the ones on which some compressor is at its worst among them."""
    rng = np.random.default_rng(d)
    normal = rng.standard_normal(d)
    one_hot = np.eye(1, d, d // 2)[0]
    kinds = {
        "gaussian": normal,
        "heavy-tailed": rng.standard_cauchy(d),
        "sparse": normal * (rng.random(d) < 0.05),
        "one-hot": one_hot,
        "constant": np.full(d, -0.7),
        "alternating": (-1.0) ** np.arange(d),
        "zero": np.zeros(d),
        "tiny": 1e-30 * normal,
        "huge": 1e30 * normal,
        "spread": normal * 10.0 ** rng.uniform(-8, 8, d),
        "thirds": 4 / 3 * 2.0 ** rng.integers(-5, 5, d),  # where rounding to a power of two is worst
        "int4 ties": np.where(one_hot, 7.0, 0.5),  # the largest on the grid's end, the rest between two points
        "int2 ties": np.where(one_hot, 1.0, 0.5),
        "float4 ties": np.where(one_hot, 6.0, 0.25),
    }
    return {kind: x.astype(np.float32) for kind, x in kinds.items()}


def promised(compressor, x):
    """Whether the contraction is promised of this vector: a fixed point has a reach and a step."""
    each = getattr(compressor, "compressor", compressor)
    if not isinstance(each, SharedK):
        return True
    parts = np.split(x, np.cumsum(LAYERS)[:-1]) if isinstance(compressor, Layerwise) else [x]
    lengths = [np.sqrt(np.mean(part.astype(np.float64) ** 2)) for part in parts]
    return np.abs(x).max() <= each.reach and min(lengths) >= each.step


def through(compressor, x, key):
    return compressor.decompress(compressor.compress(x, key), x.shape[-1])


@functools.cache
def arrivals(compressor, d):
    """What arrives of every kind of vector, for each key of ``keys(compressor)``: {kind: [keys, d]}."""
    kinds = vectors(d)
    both = jax.vmap(jax.vmap(functools.partial(through, compressor), in_axes=(0, None)), in_axes=(None, 0))
    arrives = jit(both)(np.stack(list(kinds.values())), keys(compressor))
    return dict(zip(kinds, np.moveaxis(np.asarray(arrives), 1, 0), strict=True))


def test_every_compressor_is_in_the_list():
    found = [*vars(compression).values(), *vars(shared).values()]
    kinds = {kind for kind in found if isinstance(kind, type) and hasattr(kind, "compress")}
    assert {type(compressor) for compressor in COMPRESSORS} - {Named} == kinds - {compression.Compressor}
    assert {c.format for c in COMPRESSORS if isinstance(c, Quantize)} >= set(compression._FLOATS)


class Doubling:
    """A transform."""

    def init(self, _d):
        return None

    def apply(self, x, state, _key):
        return 2 * x, state


class TestContract:
    @pytest.mark.parametrize(("compressor", "d"), CASES)
    def test_contraction(self, compressor, d):
        q = compressor.contraction(d)
        assert 0 < q <= 1
        # float32 may add a few roundings of each entry; a ratio in [0, 1] with mean 1 - q has at most this deviation.
        bound = (np.sqrt(1 - q) + 4 * EPS) ** 2 + is_random(compressor) * 4 * np.sqrt(q * (1 - q) / KEYS)
        worse = {}
        for kind, x in vectors(d).items():
            if not promised(compressor, x):
                continue
            error = np.sum((arrivals(compressor, d)[kind] - x.astype(np.float64)) ** 2, axis=1).mean()
            norm = np.sum(x.astype(np.float64) ** 2)
            if not error <= bound * norm:
                worse[kind] = error / norm
        assert not worse, f"the promise is {1 - q}"

    @pytest.mark.parametrize(("compressor", "d"), CASES)
    def test_zero_maps_to_zero(self, compressor, d):
        np.testing.assert_array_equal(arrivals(compressor, d)["zero"], 0)

    @pytest.mark.parametrize(("compressor", "d"), CASES)
    def test_shape_and_type(self, compressor, d):
        arrives = jax.eval_shape(functools.partial(through, compressor), jnp.zeros(d), jax.random.key(0))
        assert (arrives.shape, arrives.dtype) == ((d,), jnp.float32)

    @pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
    def test_same_answer_again_and_under_jit_and_vmap(self, compressor):
        x, key = jnp.asarray(vectors(D)["gaussian"]), keys(compressor)[0]
        one = functools.partial(through, compressor)
        plainly = np.asarray(one(x, key))
        np.testing.assert_array_equal(one(x, key), plainly)
        np.testing.assert_allclose(arrivals(compressor, D)["gaussian"][0], plainly, rtol=2 * EPS)

    @pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
    def test_key_matters_only_to_the_random(self, compressor):
        arrives = arrivals(compressor, D)["gaussian"]
        assert (arrives != arrives[0]).any() == is_random(compressor)

    @pytest.mark.parametrize("compressor", COMPRESSORS[1:], ids=str)
    def test_error_feedback_loses_nothing(self, compressor):
        """What is sent and what is kept add up to what there was, round after round."""

        @jit
        def run(updates, keys):
            def step(memory, given):
                message, kept = feedback.send(compressor, memory, *given)
                return kept, (memory.error, feedback.received(compressor, message, D), kept.error)

            return jax.lax.scan(step, feedback.init(compressor, D), (updates, keys))[1]

        kinds = ("gaussian", "heavy-tailed", "constant", "sparse")
        updates = np.stack([vectors(D)[kind] for kind in kinds])
        before, sent, kept = (np.asarray(a, np.float64) for a in run(updates, jax.random.split(jax.random.key(1), 4)))
        np.testing.assert_array_equal(before[1:], kept[:-1])
        size = np.abs(before) + np.abs(updates) + np.abs(sent)
        assert (np.abs(sent + kept - before - updates.astype(np.float64)) <= 2 * EPS * size).all()


class TestFeedback:
    def test_no_memory_without_compression(self):
        update = np.float32([1, 2, 3])
        message, memory = feedback.send(Identity(), feedback.init(Identity(), 3), update, None)
        assert memory == feedback.Memory(None)
        before = feedback.Memory(None, ("as it was",))
        assert feedback.take_back(memory, before, update) is before, "there is nothing to give it back to"
        np.testing.assert_array_equal(message.values, update)

    @pytest.mark.parametrize("compressor", [Identity(), TopK(0.1), Quantize("int4"), ScaledSign()], ids=str)
    def test_replica_nears_a_resting_model_at_the_promised_rate(self, compressor):
        """w <- w + C(x - w) leaves at most (1 - q) of ||x - w||^2 each time, and nothing of it if q = 1."""
        model = vectors(D)["heavy-tailed"]

        @jit
        def run(model):
            def step(w, _):
                message = feedback.broadcast(compressor, w, model, None)
                w = feedback.follow(compressor, w, message)
                return w, w

            return jax.lax.scan(step, jnp.zeros(D), None, length=5)[1]

        replicas = np.concatenate([np.zeros((1, D)), np.asarray(run(model), np.float64)])
        far = np.linalg.norm(model - replicas, axis=1)
        rate = np.sqrt(1 - compressor.contraction(D))
        assert (far[1:] <= (rate + 4 * EPS) * far[:-1]).all()


class TestTopK:
    @pytest.mark.parametrize(("d", "count"), [(1, 1), (2, 1), (31, 3), (1000, 100), (5, 9)])
    def test_keeps_the_largest_magnitudes_ties_to_the_lowest_index(self, d, count):
        rng = np.random.default_rng(d)
        x = rng.integers(-3, 4, d).astype(np.float32)  # few values, so many ties
        message = jit(TopK(count=count).compress)(x, None)
        expected = np.argsort(-np.abs(x), kind="stable")[:count]
        assert len(message.indices) == min(count, d)
        np.testing.assert_array_equal(np.sort(message.indices), np.sort(expected))
        np.testing.assert_array_equal(message.values, x[np.asarray(message.indices)])

    def test_sends_exactly_k_even_of_zeros(self):
        message = jit(TopK(0.5).compress)(np.zeros(10, np.float32), None)
        np.testing.assert_array_equal(np.sort(message.indices), np.arange(5))

    @pytest.mark.parametrize(
        ("compressor", "d", "kept"),
        [(TopK(0.1), 1000, 100), (TopK(0.1), 31, 3), (TopK(0.1), 1, 1), (TopK(1.0), 7, 7), (TopK(count=9), 4, 4)],
    )
    def test_number_kept(self, compressor, d, kept):
        assert compressor.kept(d) == kept
        assert compressor.contraction(d) == kept / d

    def test_contraction_is_tight(self):
        """A constant vector loses exactly (d - K)/d of its square."""
        x = vectors(D)["alternating"]
        error = np.sum((arrivals(TopK(count=3), D)["alternating"][0] - x) ** 2) / D
        assert error == pytest.approx(1 - TopK(count=3).contraction(D))


class TestRandK:
    def test_every_entry_is_as_likely(self):
        """How often each entry is kept has the spread of a uniform draw without replacement (chi-square)."""
        kept = arrivals(RandK(0.25), D)["alternating"] != 0
        p = RandK(0.25).kept(D) / D
        spread = (D - 1) / D * np.sum((kept.sum(axis=0) - KEYS * p) ** 2) / (KEYS * p * (1 - p))
        assert abs(spread - (D - 1)) < 4 * np.sqrt(2 * (D - 1))

    def test_values_are_sent_unscaled(self):
        x, arrives = vectors(D)["gaussian"], arrivals(RandK(count=2), D)["gaussian"]
        assert (np.count_nonzero(arrives, axis=1) == 2).all()
        np.testing.assert_array_equal(arrives, np.where(arrives != 0, x, 0))

    def test_expected_error_is_exactly_what_is_promised(self):
        """For any vector: E||C(x) - x||^2 = (1 - K/d) ||x||^2."""
        x, arrives = vectors(D)["gaussian"], arrivals(RandK(0.25), D)["gaussian"]
        ratio = np.sum((arrives - x) ** 2, axis=1) / np.sum(x**2)
        assert abs(ratio.mean() - (1 - RandK(0.25).contraction(D))) < 4 * ratio.std() / np.sqrt(KEYS)


class TestSharedK:
    """Beside the promise for vectors within its reach, which the contract has."""

    def test_most_kinds_of_vector_are_promised_something(self):
        kinds = [kind for kind, x in vectors(D).items() if promised(SharedK(0.25), x)]
        assert len(kinds) >= 8, kinds

    @pytest.mark.parametrize("kind", sorted(vectors(D)))
    def test_never_further_than_nothing_is(self, kind):
        """Also of what is too large or too small for the fixed point."""
        x = vectors(D)[kind].astype(np.float64)
        error = np.sum((arrivals(SharedK(0.25), D)[kind] - x) ** 2, axis=1)
        assert (error <= np.sum(x**2) * (1 + 4 * EPS)).all()

    def test_rounds_to_the_nearest_step_and_clips(self):
        compressor = SharedK(1.0, reach=3, bits=4)
        assert compressor.step == 0.5
        x = np.float32([0.2, 0.3, -0.8, 3.4, 3.6, -100])
        np.testing.assert_array_equal(through(compressor, x, jax.random.key(1)), [0, 0.5, -1, 3.5, 3.5, -3.5])

    def test_contraction_is_tight(self):
        """Half a step is lost of each entry, and the root mean square is one step: a quarter of what is drawn."""
        compressor = SharedK(0.5)
        x = compressor.step * np.where(np.arange(1000) % 8 < 3, 1.5, 0.5).astype(np.float32)
        x = np.where(x > compressor.step, x * (1 - EPS), x)  # not on the tie that is rounded up
        found = jit(jax.vmap(functools.partial(through, compressor), in_axes=(None, 0)))(x, keys(compressor))
        ratio = np.sum((np.asarray(found, np.float64) - x) ** 2, axis=1) / np.sum(x.astype(np.float64) ** 2)
        assert abs(ratio.mean() - (1 - compressor.contraction(1000))) < 4 * ratio.std() / np.sqrt(KEYS)

    def test_contraction_is_tight_where_nothing_is_named_that_is_there(self):
        """All that is sent is what is drawn of the others: (K - H) of d - H; whole steps, of which nothing is lost."""
        compressor = SharedK(0.5, history=0.6)
        x = compressor.step * np.where(np.arange(1000) < 300, 0, 1).astype(np.float32)
        found = jit(jax.vmap(functools.partial(through, Named(compressor)), in_axes=(None, 0)))(x, keys(compressor))
        left = np.sum((np.asarray(found, np.float64) - x) ** 2, axis=1) / np.sum(x.astype(np.float64) ** 2)
        np.testing.assert_allclose(left, 1 - 200 / 700, rtol=1e-6)
        assert compressor.contraction(1000) == pytest.approx(3 / 4 * 200 / 700)

    @pytest.mark.parametrize("d", [31, 1000])
    def test_the_named_are_sent_and_of_the_others_all_are_as_likely(self, d):
        """Also those before, between and after the named, at either end."""
        compressor, rng = SharedK(0.25, history=0.25), np.random.default_rng(d)
        k, many = compressor.kept(d), compressor.named(d)
        named = np.sort(np.append(rng.permutation(d - 2)[: many - 1] + 1, 0)).astype(np.int32)
        x = jnp.ones(d)

        def one(key):
            return compressor.decompress(compressor.compress(x, key, named), d)

        sent = np.asarray(jit(jax.vmap(one))(jax.random.split(jax.random.key(5), 4000)))
        assert (sent.sum(axis=1) == k).all(), "K different entries"
        assert (sent[:, named] == 1).all()
        often, share = np.delete(sent, named, axis=1).sum(axis=0), (k - many) / (d - many)
        assert (np.abs(often - 4000 * share) < 5 * np.sqrt(4000 * share * (1 - share))).all()

    def test_how_many_are_named(self):
        """One at least is drawn, or nothing would be promised; and where all are sent there is nothing to name."""
        cases = [(SharedK(0.1, history=0.25), 100, 2), (SharedK(0.1), 100, 0), (SharedK(0.1, history=0.99), 100, 9)]
        cases += [(SharedK(count=1, history=0.9), 100, 0), (SharedK(1.0, history=0.5), 100, 0)]
        for compressor, d, many in cases:
            assert compressor.named(d) == many
            found = feedback.history(compressor, d)
            assert (found is None) == (many == 0)
            if many:
                assert found.largest().shape == (many,)
        assert feedback.history(feedback.chain(Doubling(), SharedK(0.1, history=0.5)), 100).many == 5
        assert feedback.history(TopK(0.1), 100) is None

    def test_history(self):
        """By hand: what an entry grew by in a round, times the rounds since it was sent."""
        history = SharedK(count=3, history=0.7).remember(4)
        history = history.after(jnp.float32([6, 0, 1, 0]))  # rates 6, ?, 1, ?
        np.testing.assert_array_equal(history.largest(), [0, 2])
        history = history.after(jnp.float32([-1, 0, 0, 8]))  # rates -1, ?, 1, 4: the last has grown for two rounds
        np.testing.assert_array_equal(history.rate, [-1, 0, 1, 4])
        np.testing.assert_array_equal(history.age, [1, 3, 2, 1])
        np.testing.assert_array_equal(history.largest(), [2, 3])

    def test_the_sum_of_messages_is_exact_and_has_one_support(self):
        compressor, rng = SharedK(0.5, bits=24, reach=1), np.random.default_rng(0)
        vectors = rng.uniform(-1, 1, (7, 100)).astype(np.float32)
        messages = jit(jax.vmap(compressor.compress, in_axes=(0, None)))(vectors, jax.random.key(3))
        dense = jax.vmap(lambda message: compressor.decompress(message, 100))(messages)
        assert (np.count_nonzero(np.any(np.asarray(dense), axis=0))) == 50
        whole = np.asarray(messages.codes, np.int64).sum(axis=0)
        found = np.asarray(feedback.Summed.nothing(100).after(compressor, messages).total, np.float64)
        np.testing.assert_array_equal(np.sort(found[found != 0]), np.sort(np.float32(whole) * compressor.step))
        with pytest.raises(SettingError, match="300 messages of 24 bits overflow their sum"):
            compressor.total(jax.tree.map(lambda a: jnp.zeros((300, *a.shape[1:]), a.dtype), messages), 100)

    def test_settings(self):
        with pytest.raises(SettingError, match="bits=25, but it must be at most 24"):
            SharedK(0.1, bits=25)
        with pytest.raises(SettingError, match="reach"):
            SharedK(0.1, reach=0)
        for history in (1.0, -0.1):
            with pytest.raises(SettingError, match=f"history={history}, but it must be a finite number 0 or more, bel"):
                SharedK(0.1, history=history)


class TestNatural:
    def test_one_of_the_two_nearest_powers_of_two(self):
        x, arrives = vectors(D)["gaussian"].astype(np.float64), arrivals(Natural(), D)["gaussian"]
        below = np.sign(x) * 2.0 ** np.floor(np.log2(np.abs(x)))
        assert np.isin(arrives / below, (1, 2)).all()

    def test_a_power_of_two_stays_what_it_is(self):
        x, arrives = vectors(D)["alternating"], arrivals(Natural(), D)["alternating"]
        np.testing.assert_array_equal(arrives, np.broadcast_to(x, arrives.shape))

    @pytest.mark.parametrize("kind", ["gaussian", "tiny", "huge", "spread"])
    def test_unbiased(self, kind):
        """Between a and 2a the deviation is at most a/2."""
        x, arrives = vectors(D)[kind].astype(np.float64), arrivals(Natural(), D)[kind].astype(np.float64)
        deviation = 2.0 ** np.floor(np.log2(np.abs(x))) / 2 / np.sqrt(KEYS)
        assert (np.abs(arrives.mean(axis=0) - x) <= 4 * deviation).all()

    def test_contraction_is_tight(self):
        """At 4/3 of a power of two the variance is (1/3)(2/3) of its square, an eighth of the entry's."""
        x, arrives = vectors(D)["thirds"].astype(np.float64), arrivals(Natural(), D)["thirds"]
        error = (arrives - x) ** 2 / x**2
        assert abs(error.mean() - (1 - Natural().contraction(D))) < 4 * error.std() / np.sqrt(error.size)


def float_grid(exponent_bits, mantissa_bits, largest):
    """The non-negative numbers of a small float, from its definition."""
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    fractions = np.arange(steps) / steps
    subnormal = fractions * 2.0 ** (1 - bias)
    normal = [(1 + fractions) * 2.0 ** (e - bias) for e in range(1, 2**exponent_bits)]
    grid = np.concatenate([subnormal, *normal])
    return grid[grid <= largest]


GRIDS = {
    "float16": float_grid(5, 10, 65504.0),
    "float8": float_grid(4, 3, 448.0),
    "float4": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]),
    "int8": np.arange(128.0),
    "int4": np.arange(8.0),
    "int2": np.arange(2.0),
}


def nearest(points, values):
    """How far each value is from the nearest of the sorted points."""
    right = np.clip(np.searchsorted(points, values), 1, len(points) - 1)
    return np.minimum(np.abs(values - points[right - 1]), np.abs(values - points[right]))


class TestQuantize:
    @pytest.mark.parametrize("format", GRIDS)
    @pytest.mark.parametrize("kind", ["gaussian", "heavy-tailed", "tiny"])
    def test_rounds_to_the_nearest_point_of_the_scaled_grid(self, format, kind):
        block, d = 64, 1000
        x = vectors(d)[kind].astype(np.float64)
        arrives = arrivals(Quantize(format, block), d)[kind][0].astype(np.float64)
        grid = np.unique(np.concatenate([-GRIDS[format], GRIDS[format]]))
        for start in range(0, d, block):
            part, got = x[start : start + block], arrives[start : start + block]
            points = np.abs(part).max() / grid[-1] * grid
            close = 4 * EPS * np.abs(part)
            assert (nearest(points, got) <= 4 * EPS * np.abs(got)).all()
            assert (np.abs(got - part) <= nearest(points, part) + close).all()

    @pytest.mark.parametrize("format", GRIDS)
    def test_small_vectors_are_not_rounded_away(self, format):
        """The scale, not the format's smallest number, decides what is small."""
        x, arrives = vectors(D)["tiny"], arrivals(Quantize(format), D)["tiny"][0]
        largest = np.argmax(np.abs(x))
        assert arrives[largest] == pytest.approx(x[largest], rel=4 * EPS)

    @pytest.mark.parametrize("d", [2, 31, 1000])
    @pytest.mark.parametrize("format", ["float4", "int4"])
    def test_contraction_is_tight(self, format, d):
        """One entry on the grid's end, the others all at the worst midpoint: the promise is all but reached."""
        grid = GRIDS[format]
        midpoints = (grid[1:] + grid[:-1]) / 2
        x = np.repeat(midpoints[:, None], d, axis=1)
        x[:, 0] = grid[-1]
        one = jit(jax.vmap(functools.partial(through, Quantize(format)), in_axes=(0, None)))
        error = np.sum((np.asarray(one(np.float32(x), None)) - x) ** 2, axis=1) / np.sum(x**2, axis=1)
        assert error.max() == pytest.approx(1 - Quantize(format).contraction(d), rel=0.01)

    def test_a_block_is_scaled_by_itself(self):
        x = np.float32([896, 7, 7, 3.5])
        both = [functools.partial(through, Quantize("int4", block)) for block in (None, 2)]
        together, apart = map(np.asarray, jit(lambda x: [one(x, None) for one in both])(x))
        np.testing.assert_array_equal(together[1:], 0)
        np.testing.assert_array_equal(apart, [896, 0, 7, 4])  # 3.5 is a tie and goes to the even 4

    @pytest.mark.parametrize("format", GRIDS)
    def test_contraction_is_of_the_block_and_not_of_the_vector(self, format):
        assert Quantize(format, block=64).contraction(10_000) == Quantize(format).contraction(64)
        assert Quantize(format, block=64).contraction(5) == Quantize(format).contraction(5)
        assert Quantize(format).contraction(1) == pytest.approx(1)


class TestScaledSign:
    def test_formula(self):
        x = np.float32([3, -1, 0.5, -0.5])
        np.testing.assert_allclose(through(ScaledSign(), x, None), [1.25, -1.25, 1.25, -1.25], rtol=EPS)

    @pytest.mark.parametrize("d", sizes(ScaledSign()))
    def test_contraction_is_tight(self, d):
        """A vector with one entry loses all but 1/d."""
        error = np.sum((arrivals(ScaledSign(), d)["one-hot"][0].astype(np.float64) - vectors(d)["one-hot"]) ** 2)
        assert error == pytest.approx(1 - ScaledSign().contraction(d), rel=1e-5, abs=1e-12)

    def test_gaussian_keeps_two_over_pi(self):
        x = vectors(1000)["gaussian"].astype(np.float64)
        error = np.sum((arrivals(ScaledSign(), 1000)["gaussian"][0] - x) ** 2) / np.sum(x**2)
        assert error == pytest.approx(1 - 2 / np.pi, abs=0.03)


class TestLayerwise:
    @pytest.mark.parametrize("compressor", [TopK(0.1), Quantize("int4", block=8), ScaledSign()], ids=str)
    def test_is_the_compressor_on_each_layer(self, compressor):
        x = vectors(D)["heavy-tailed"]
        whole = jit(functools.partial(through, Layerwise(compressor, LAYERS)))(x, jax.random.key(0))
        pieces = np.split(x, np.cumsum(LAYERS)[:-1])
        apart = jit(lambda pieces: [through(compressor, piece, jax.random.key(0)) for piece in pieces])(pieces)
        np.testing.assert_allclose(whole, np.concatenate(apart), rtol=2 * EPS)

    def test_layers_draw_independently(self):
        """Four of fifteen by chance the same in both layers: once in 1365 draws."""
        kept = arrivals(Layerwise(RandK(0.25), LAYERS), D)["alternating"] != 0
        assert (kept[:, :15] == kept[:, 16:]).all(axis=1).mean() < 0.02

    def test_no_layer_is_starved(self):
        x = np.float32([9, 8, 7, 6, 0.1, 0.2])
        arrives = np.asarray(through(Layerwise(TopK(0.5), (4, 2)), x, jax.random.key(0)))
        np.testing.assert_array_equal(arrives, np.float32([9, 8, 0, 0, 0, 0.2]))

    def test_sizes_from_parameters(self):
        params = {"b": np.zeros(3), "w": np.zeros((2, 4)), "z": 0.0}
        assert Layerwise.of(TopK(0.5), params) == Layerwise(TopK(0.5), (3, 8, 1))

    def test_contraction_is_the_worst_layers(self):
        assert Layerwise(TopK(count=2), (2, 10, 4)).contraction(16) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("compressor", "d", "nbytes"),
    [
        (Identity(), 31, 2 + 31 * 4),
        (TopK(count=3), 31, 3 + 1 + 3 * 4),
        (RandK(0.5), 1000, 5 + 125 + 500 * 4),
        (Quantize("float16"), 31, 3 + 31 * 2 + 4),
        (Quantize("float8"), 31, 3 + 31 + 4),
        (Quantize("float4"), 31, 3 + 16 + 4),
        (Quantize("int8", block=64), 1000, 4 + 1000 + 16 * 4),
        (Quantize("int4", block=64), 1000, 4 + 500 + 16 * 4),
        (Quantize("int2", block=64), 31, 3 + 8 + 4),
        (Quantize("int3"), 3, 3 + 2 + 4),
        (ScaledSign(), 31, 3 + 4 + 4),
        (Natural(), 31, 3 + 35),
        (Layerwise(TopK(count=2), LAYERS), 31, 2 + 3 * (3 + 1) + (2 + 1 + 2) * 4),
        (Layerwise(Quantize("int4"), LAYERS), 31, 2 + 3 * 3 + (8 + 1 + 8) + 3 * 4),
    ],
    ids=str,
)
def test_bytes_on_the_wire(compressor, d, nbytes):
    """By hand: magic, version and checksum; the header; indices of the first entries; codes; floats."""
    message = compressor.compress(jnp.arange(d, 0, -1, dtype=jnp.float32), jax.random.key(0))
    assert len(wire.encode(message, d)) == wire.size(message) == 6 + nbytes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), r"^TopK: fraction=0, but it must be above 0 and at most 1$"),
        (lambda: TopK(1.5), r"^TopK: fraction=1\.5, but"),
        (lambda: TopK(-0.1), r"^TopK: fraction=-0\.1, but"),
        (lambda: TopK(float("nan")), r"^TopK: fraction=nan, but"),
        (lambda: TopK(True), r"^TopK: fraction=True, but"),
        (lambda: TopK("0.1"), r"^TopK: fraction='0\.1', but"),
        (lambda: RandK(0.0), r"^RandK: fraction=0\.0, but"),
        (lambda: TopK(0.1, count=3), r"^TopK: give a fraction, .* or a count, .* and not both$"),
        (lambda: RandK(), r"^RandK: give a fraction, .* or a count"),
        (lambda: TopK(count=0), r"^TopK: count=0, but it must be a whole number, 1 or more$"),
        (lambda: RandK(count=2.5), r"^RandK: count=2\.5, but"),
        (lambda: Quantize("int1"), r"^Quantize: format='int1', but it must be one of float16, .*int2 to int8$"),
        (lambda: Quantize("float32"), r"^Quantize: format='float32', but"),
        (lambda: Quantize(4), r"^Quantize: format=4, but"),
        (lambda: Quantize("int4", block=0), r"^Quantize: block=0, but it must be a whole number, 1 or more$"),
        (lambda: Layerwise(TopK(0.5), (3, 4)).contraction(8), r"layers \(3, 4\) add up to 7, but there are 8 param"),
        (
            lambda: Layerwise(TopK(0.5), (3, 4)).compress(jnp.zeros(8), jax.random.key(0)),
            r"layers \(3, 4\) add up to 7, but there are 8 param",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(SettingError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("compressor", [TopK(0.3), RandK(0.3)], ids=lambda c: type(c).__name__)
def test_what_is_added_in_place_has_the_bits_of_the_whole_vector(compressor, sign):
    """x + v and x - v, entry by entry, with zeros of both signs, denormals and an infinity that becomes NaN."""
    x = np.float32([0.0, -0.0, 1.5, -2.0, 1e-42, 3e38, np.inf, -7.0, 0.1, 0.3])
    message = compressor.compress(jnp.asarray(x), jax.random.key(1))
    whole = np.asarray(jnp.asarray(x) + sign * compressor.decompress(message, len(x)))
    kept = np.asarray(message.indices)
    added = np.asarray(compressor.added(jnp.asarray(x), message, sign))
    np.testing.assert_array_equal(added[kept], whole[kept])
    rest = np.setdiff1d(np.arange(len(x)), kept)
    np.testing.assert_array_equal(added[rest].view(np.int32), x[rest].view(np.int32))
