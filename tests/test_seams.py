"""What users attach from outside the package: rules, compressors, transforms, optimizers, in both engines, resumed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsgm as fs
from fedsgm.base.describe import describe
from fedsgm.core.compression import Sparse
from fedsgm.federation import Client, Program
from fedsgm.federation.inprocess import InProcess
from fedsgm.federation.panel import Followed
from fedsgm.federation.protocol import Kind, Reply, Request, pack
from support.runs import assert_identical, logistic, negative, positive

ROUNDS = 12


@fs.struct
class Smoothed:
    """A rule with a nest of vectors as state: a moving average of each violation, and how often it was the worst."""

    decay: float

    def init(self, constraints):
        return {"mean": np.zeros(constraints, np.float32), "worst": (np.zeros(constraints, np.int32),)}

    def decide(self, violations, state):
        mean = self.decay * state["mean"] + (1 - self.decay) * violations
        worst = jnp.argmax(mean)
        weights = jax.nn.one_hot(worst, len(mean)) * jnp.float32(mean[worst] > 0)
        state = {"mean": mean, "worst": (state["worst"][0].at[worst].add(1),)}
        return fs.Direction(1 - jnp.sum(weights), weights), state

    def report(self, state):
        return {"smoothed": state["mean"], "worst": state["worst"][0]}


@dataclasses.dataclass(frozen=True)
class Momentum:
    """A transform with a state: a client sends a moving average of its updates."""

    beta: float

    def init(self, d):
        return {"m": np.zeros(d, np.float32), "count": np.zeros((), np.int32)}

    def apply(self, x, state, key):
        m = self.beta * state["m"] + x
        return m, {"m": m, "count": state["count"] + 1}


@dataclasses.dataclass(frozen=True)
class Clip:
    """A transform without a state."""

    radius: float

    def init(self, d):
        return None

    def apply(self, x, state, key):
        return x * jnp.minimum(1, self.radius / jnp.linalg.norm(x)), state


@dataclasses.dataclass(frozen=True)
class Noise:
    """A random transform."""

    deviation: float

    def init(self, d):
        return None

    def apply(self, x, state, key):
        return x + self.deviation * jax.random.normal(key, x.shape), state


@dataclasses.dataclass(frozen=True)
class Block:
    """A compressor: a run of neighbours, drawn anew each time."""

    size: int

    def compress(self, x, key):
        places = (jax.random.randint(key, (), 0, len(x)) + jnp.arange(self.size)) % len(x)
        return Sparse(places, x[places], len(x))

    def decompress(self, message, d):
        return jnp.zeros(d).at[message.indices].set(message.values)

    def contraction(self, d):
        return self.size / d


PROBLEM = fs.Problem(
    objective=logistic,
    constraints=[
        fs.Mean(logistic, where=positive, name="positive") <= 0.45,
        fs.Mean(logistic, where=negative, name="negative") <= 0.5,
    ],
)
TOP = fs.TopK(count=2)
SEAMS = {
    "rule": {"rule": Smoothed(0.5), "uplink": TOP},
    "compressor": {"uplink": Block(2), "downlink": Block(3)},
    "transforms": {"uplink": fs.chain(Clip(0.5), Momentum(0.9), Noise(0.01), TOP), "downlink": TOP},
    "transforms alone": {"uplink": fs.chain(Momentum(0.9), Clip(0.5))},
    "adam": {"server": optax.adam(0.05), "uplink": TOP, "downlink": TOP},
    "optimistic": {"server": optax.optimistic_gradient_descent(0.1), "uplink": TOP, "downlink": TOP},
    "no memory": {"memory": False, "uplink": fs.chain(Clip(0.5), TOP), "downlink": TOP},
    "schedule": {"server": optax.sgd(optax.cosine_decay_schedule(0.2, ROUNDS), momentum=0.9)},
}


@pytest.fixture(scope="module", params=SEAMS)
def algorithm(request):
    return fs.FedSGM(0.1, local_steps=2, participants=4, **{"rule": fs.Soft(10.0)} | SEAMS[request.param])


def simulate(algorithm, clients, params, **more):
    return fs.simulate(algorithm, PROBLEM, clients, params, **{"rounds": ROUNDS, "seed": 3, "progress": False} | more)


def test_both_engines_take_the_same_steps_and_resume_to_the_same_bits(algorithm, clients, params, tmp_path):
    whole = simulate(algorithm, clients, params)
    assert np.abs(whole.last["w"] - params["w"]).max() > 0.01, "it must move"
    kept = fs.Checkpoint(tmp_path / "simulated", every=5, resume=True)
    simulate(algorithm, clients, params, rounds=7, checkpoint=kept)
    assert_identical(simulate(algorithm, clients, params, checkpoint=kept), whole)

    transport = InProcess.of(Program.of(algorithm, PROBLEM, params), clients, tmp_path / "clients")
    settings = {"seed": 3, "progress": False}
    kept = fs.Checkpoint(tmp_path / "server", resume=True)
    fs.federate(algorithm, PROBLEM, transport, params, rounds=7, checkpoint=kept, **settings)
    for name in transport.clients():
        transport.restart(name)  # what a client must not forget is on its disk
    federated = fs.federate(algorithm, PROBLEM, transport, params, rounds=ROUNDS, checkpoint=kept, **settings)
    for name, column in whole.history.items():
        np.testing.assert_allclose(federated.history[name], column, rtol=1e-4, atol=1e-5, err_msg=name)
    for kind in ("last", "average"):
        for left, right in zip(
            jax.tree.leaves(getattr(federated, kind)), jax.tree.leaves(getattr(whole, kind)), strict=True
        ):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5, err_msg=kind)


def test_the_rule_s_columns_are_what_it_names(clients, params, tmp_path):
    algorithm = fs.FedSGM(0.1, participants=4, rule=Smoothed(0.5))
    result = simulate(algorithm, clients, params)
    assert result.history["smoothed"].shape == (1, ROUNDS, 2)
    np.testing.assert_array_equal(result.history["worst"].sum(axis=2)[0], np.arange(1, ROUNDS + 1))
    result.save(tmp_path)
    np.testing.assert_array_equal(fs.Result.load(tmp_path).history["smoothed"], result.history["smoothed"])
    assert "multiplier" not in result.history


def test_every_constraint_has_its_multiplier(clients, params):
    """Of two constraints, one that can be met easily and one that cannot: one multiplier stays at zero."""
    bounds = [fs.Mean(logistic, where=positive, name="hard") <= 0.1, fs.Mean(logistic, name="easy") <= 5.0]
    problem = fs.Problem(objective=fs.Mean(logistic, where=negative), constraints=bounds)
    algorithm = fs.FedSGM(0.1, rule=fs.PrimalDual(0.5))
    result = fs.simulate(algorithm, problem, clients, params, rounds=40, progress=False)
    multipliers = result.history["multiplier"][0]
    assert (multipliers[:, 0] > 0).all()
    assert (multipliers[:, 1] == 0).all()
    np.testing.assert_array_equal(result.multiplier, multipliers[-1:])
    np.testing.assert_allclose(result.history["weight"][0], multipliers.sum(axis=1), rtol=1e-6)


def test_a_server_that_descends_with_the_step_size_is_the_default(clients, params):
    plain = simulate(fs.FedSGM(0.1, 2, 4, fs.Soft(10.0), uplink=TOP), clients, params)
    sgd = simulate(fs.FedSGM(0.1, 2, 4, fs.Soft(10.0), uplink=TOP, server=optax.sgd(0.1)), clients, params)
    np.testing.assert_allclose(sgd.last["w"], plain.last["w"], rtol=1e-5)


def test_adam_on_the_server_is_adam_on_the_mean_gradient(clients, params):
    """One local step, all clients, no constraint: optax's own loop over the gradient of the mean loss."""
    problem = fs.Problem(objective=logistic)
    algorithm = fs.FedSGM(0.1, server=optax.adam(0.05))
    found = fs.simulate(algorithm, problem, clients, params, rounds=10, progress=False).last

    def mean_loss(params):
        each = [jnp.mean(jax.vmap(logistic, (None, 0))(params, clients[j])) for j in range(len(clients))]
        return jnp.mean(jnp.stack(each))

    optimizer = optax.adam(0.05)
    state = optimizer.init(params)
    gradient = jax.jit(jax.grad(mean_loss))
    for _ in range(10):
        step, state = optimizer.update(gradient(params), state, params)
        params = optax.apply_updates(params, step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, params)


def test_optimism_is_an_optimizer_of_optax():
    """w <- w - eta (2 G_t - G_{t-1}), where G switches between the gradients of f and of g; by hand, in NumPy."""
    a, b = np.float32([[1, 2], [3, -1]]), np.float32([[1, 0.5], [0.5, 1]])
    problem = fs.Problem(
        objective=lambda w, example: 0.5 * jnp.sum((w - example["a"]) ** 2),
        constraints=[fs.Mean(lambda w, example: example["b"] @ w, name="g") <= 1.0],
    )
    clients = fs.Clients.from_list([{"a": a[j : j + 1], "b": b[j : j + 1]} for j in range(2)])
    algorithm = fs.FedSGM(0.1, server=optax.optimistic_gradient_descent(0.1))
    found = fs.simulate(algorithm, problem, clients, np.zeros(2, np.float32), rounds=30, progress=False)
    w, before, switched = np.zeros(2), None, 0
    for _ in range(30):
        over = b.mean(axis=0) @ w > 1.0
        now = b.mean(axis=0) if over else w - a.mean(axis=0)
        before = now if before is None else before
        w, before, switched = w - 0.1 * (2 * now - before), now, switched + over
    np.testing.assert_allclose(found.last, w, rtol=1e-4, atol=1e-5)
    assert 0 < switched < 30


def test_another_optimizer_is_another_run(clients, params, tmp_path):
    """Its settings are in closures; a checkpoint must tell 0.05 from 0.06 all the same."""
    simulate(fs.FedSGM(0.1, server=optax.adam(0.05)), clients, params, rounds=2, checkpoint=tmp_path)
    other = fs.FedSGM(0.1, server=optax.adam(0.06))
    with pytest.raises(fs.CheckpointError, match="step_size"):
        simulate(other, clients, params, rounds=3, checkpoint=fs.Checkpoint(tmp_path, resume=True))


def test_a_client_s_whole_memory_is_on_its_disk(clients, params, tmp_path):
    algorithm = fs.FedSGM(0.1, 2, uplink=fs.chain(Momentum(0.9), TOP))
    program = Program.of(algorithm, PROBLEM, params)
    transport = InProcess.of(program, clients, tmp_path)
    fs.federate(algorithm, PROBLEM, transport, params, rounds=3, seed=1, progress=False)
    for name in transport.clients():
        state = transport.processes[name].state
        disk = transport.processes[name].store.read()
        jax.tree.map(np.testing.assert_array_equal, disk.memory, state.memory)
        assert disk.memory.transforms[0]["count"] == 3
        assert disk.sent.before.transforms[0]["count"] == 2


@dataclasses.dataclass(frozen=True)
class Plain:
    """A rule that is no struct: half of the step, or ``share`` of it, for the constraints while one is violated."""

    share: float = 0.5
    margin: float = 0.0

    def init(self, constraints):
        return None

    def decide(self, violations, state):
        weight = self.share * jnp.float32(jnp.max(violations) > 0)
        return fs.Direction(1 - weight, weight), state

    def report(self, state):
        return {}


@fs.struct
class Registered:
    """The same as a struct."""

    share: float = 0.5
    margin: float = 0.0
    init, decide, report = Plain.init, Plain.decide, Plain.report


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    """With slots, and the weights the other way round."""

    share: float = 0.5
    margin: float = 0.0

    def init(self, constraints):
        return None

    def decide(self, violations, state):
        return fs.Direction(self.share, 1 - self.share), state

    def report(self, state):
        return {}


class Derived(fs.Soft):
    """A struct's subclass without a line above it."""


def test_a_plain_dataclass_is_a_rule_in_both_engines(clients, params, tmp_path):
    whole = simulate(fs.FedSGM(0.1, rule=Plain(0.75)), clients, params)
    assert (whole.history["weight"] == 0.75).any()
    assert_identical(simulate(fs.FedSGM(0.1, rule=Registered(0.75)), clients, params), whole)
    algorithm = fs.FedSGM(0.1, rule=Plain(0.75))
    transport = InProcess.of(Program.of(algorithm, PROBLEM, params), clients, tmp_path)
    federated = fs.federate(algorithm, PROBLEM, transport, params, rounds=ROUNDS, seed=3, progress=False)
    np.testing.assert_array_equal(federated.history["weight"], whole.history["weight"])


def test_plain_rules_are_told_apart(clients, params):
    """By their classes, their numbers and a margin; a number of another size compiles nothing anew."""
    rules = [Plain(0.75), Slotted(0.75), Plain(0.25), Derived(40.0)]
    weights = [simulate(fs.FedSGM(0.1, rule=rule), clients, params).history["weight"][0, 0] for rule in rules]
    np.testing.assert_array_equal(weights, np.float32([0.75, 0.25, 0.25, 1.0]))
    assert jax.tree.leaves(Plain(0.75, 2.0)) == [0.75, 2.0]
    assert jax.tree.structure(Plain()) == jax.tree.structure(Plain(0.75))
    assert jax.tree.structure(Plain()) != jax.tree.structure(Slotted())


@dataclasses.dataclass
class Loose:
    """A rule that is not frozen."""

    share: float = 0.5
    init, decide, report = Plain.init, Plain.decide, Plain.report


class Bare:
    """A rule that is no dataclass."""

    init, decide, report = Plain.init, Plain.decide, Plain.report


@dataclasses.dataclass(frozen=True)
class Said:
    """A rule with a word in it."""

    mode: str = "fast"
    init, decide, report = Plain.init, Plain.decide, Plain.report


@dataclasses.dataclass(frozen=True)
class Whether:
    """A rule with a truth value in it."""

    strict: bool = True
    init, decide, report = Plain.init, Plain.decide, Plain.report


@fs.struct
class Wrong:
    """A rule with one mistake."""

    mistake: str = fs.static()

    def init(self, constraints):
        return {"mean": np.zeros(constraints, np.float32)}

    def decide(self, violations, state):
        if self.mistake == "raises":
            raise ZeroDivisionError("of its own\nwith more lines")
        weights = jnp.zeros(3) if self.mistake == "length" else 0.5
        return fs.Direction(0.5, weights), None if self.mistake == "form" else state

    def report(self, state):
        return {"positive": state["mean"][0]} if self.mistake == "name" else {}


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("raises", r"the rule Wrong cannot decide about 2 constraints \(ZeroDivisionError: of its own\)"),
        ("length", r"the rule Wrong gives weights of shapes \(\) and \(3,\), but .* one or 2 numbers"),
        ("form", "the rule Wrong changes the form of its state in a round"),
        ("name", "the rule Wrong reports 'positive', which is another column's name"),
    ],
)
def test_a_rule_s_mistake_is_its_own_in_both_engines(mistake, message, clients, params, tmp_path):
    """And not the clients', whose answers it cannot take."""
    algorithm = fs.FedSGM(0.1, rule=Wrong(mistake))
    with pytest.raises(fs.SettingError, match=message):
        simulate(algorithm, clients, params)
    transport = InProcess.of(Program.of(algorithm, PROBLEM, params), clients, tmp_path)
    with pytest.raises(fs.SettingError, match=message):
        fs.federate(algorithm, PROBLEM, transport, params, rounds=2, progress=False)


def test_plain_numbers_are_weights(clients, params):
    assert (simulate(fs.FedSGM(0.1, rule=Wrong("none")), clients, params, rounds=2).history["weight"] == 0.5).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: optax.inject_hyperparams(optax.sgd)(rate),
        lambda rate: optax.MultiSteps(optax.sgd(rate), 2).gradient_transformation(),
    ],
    ids=["hyperparameters", "multiple steps"],
)
def test_optimizers_are_told_apart_by_all_that_they_hold(make):
    assert describe(make(0.1)) == describe(make(0.1))
    assert describe(make(0.1)) != describe(make(0.2))
    assert "0x" not in str(describe(make(0.1)))


@dataclasses.dataclass(frozen=True)
class Smallest:
    """A transform whose state begins at infinity."""

    def init(self, d):
        return np.float32(np.inf)

    def apply(self, x, state, key):
        return x, jnp.minimum(state, jnp.min(x) + jnp.inf)


def test_a_state_may_be_infinite(clients, params, tmp_path):
    algorithm = fs.FedSGM(0.1, uplink=fs.chain(Smallest(), TOP))
    transport = InProcess.of(Program.of(algorithm, PROBLEM, params), clients, tmp_path)
    federated = fs.federate(algorithm, PROBLEM, transport, params, rounds=2, progress=False)
    assert (federated.history["answered"] == len(clients)).all()


def asked_twice(folder, uplink, clients, params, *, again):
    """What a client has on its disk after two updates: of one round done again, or of two, the first one's lost."""
    program = Program.of(fs.FedSGM(0.1, uplink=uplink), PROBLEM, params)
    client = Client(program, clients[0], folder)
    model = Followed(program, program.start)
    for attempt, weight in ((0, 0.0), (1, 0.8)):
        if attempt and not again:
            model = model.after(program.encode(fs.Identity().compress(program.start, None)))
        parts, whole = model.since(-1, 0, 0)
        payload = pack((np.float32(1 - weight), np.float32(weight), (np.ones(2), (None, None))))
        request = Request(Kind.UPDATE, 1, attempt, model.version, model.checksum, -1, parts, whole, payload)
        assert Reply.decode(client.answer(request.encode())).kind == Kind.ANSWER
    return client.store.read()


@pytest.mark.parametrize("uplink", [fs.chain(Momentum(0.9), TOP), fs.chain(Momentum(0.9))], ids=["compressed", "plain"])
def test_a_round_done_again_takes_all_of_the_memory_back(uplink, clients, params, tmp_path):
    """The transform has seen one update, as if the first had never been."""
    state = asked_twice(tmp_path, uplink, clients, params, again=True)
    assert state.memory.transforms[0]["count"] == 1
    assert state.sent.before.transforms[0]["count"] == 0
    assert not state.sent.before.transforms[0]["m"].any()


def test_a_lost_message_is_in_the_error_memory_or_its_update_was_in_vain(clients, params, tmp_path):
    kept = asked_twice(tmp_path / "kept", fs.chain(Momentum(0.9), TOP), clients, params, again=False)
    assert kept.memory.transforms[0]["count"] == 2
    lost = asked_twice(tmp_path / "lost", fs.chain(Momentum(0.9)), clients, params, again=False)
    assert lost.memory.transforms[0]["count"] == 1
    assert lost.sent.before.transforms[0]["count"] == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fs.chain(), "chain: give it links, such as chain"),
        (lambda: fs.chain(TOP, Clip(1.0)), "chain: TopK.* is link 1 of 2, but a compressor must be the last"),
        (lambda: fs.chain(Clip, TOP), "chain: .*Clip'> is no link; a transform has init and apply"),
        (lambda: fs.chain("topk"), "chain: 'topk' is no link"),
        (lambda: fs.FedSGM(0.1, downlink=fs.chain(Clip(1.0), TOP)), "downlink=Chain.*, but it must be a compressor"),
        (lambda: fs.FedSGM(0.1, uplink=Clip(1.0)), "uplink=Clip.*, but it must be a compressor, .* or a chain"),
        (lambda: fs.FedSGM(0.1, server="adam"), "server='adam', but it must be an optimizer, such as optax.adam"),
        (lambda: fs.FedSGM(0.1, rule=Clip(1.0)), "rule=Clip.*, but it must be a rule, for instance Hard"),
        (lambda: fs.FedSGM(0.1, rule=Loose()), r"rule is a Loose, .* write @dataclasses.dataclass\(frozen=True\)"),
        (lambda: fs.FedSGM(0.1, rule=Bare()), "rule is a Bare, but it must be a frozen dataclass; write"),
        (lambda: fs.FedSGM(0.1, rule=Said()), r"mode='fast' is no number; .* mode: str = fedsgm.static\(\)"),
        (lambda: fs.FedSGM(0.1, rule=Whether()), r"strict=True is no number; .* strict: bool = fedsgm.static\(\)"),
        (
            lambda: fs.FedSGM(0.1, server=optax.noisy_sgd(0.1, key=jax.random.key(0))),
            "server: this optimizer keeps a random key",
        ),
        (lambda: fs.FedSGM(0.1, server=optax.lbfgs()), "server: this optimizer cannot step along a mean update"),
        (
            lambda: fs.FedSGM(0.1, server=optax.MultiSteps(optax.sgd(0.1), 2)),
            "it must be an optimizer, such as .*; of optax.MultiSteps take gradient_transformation",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(fs.SettingError, match=message):
        make()


def test_theory_is_for_compressors(clients, params):
    with pytest.raises(fs.SettingError, match="from_theory: the theorems are for compressors"):
        fs.FedSGM.from_theory(PROBLEM, clients, params, rounds=10, distance=1.0, uplink=fs.chain(Clip(1.0), TOP))
