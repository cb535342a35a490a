"""A user's mistake is answered before anything runs, in one sentence that says what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsgm import (
    ClientError,
    Clients,
    Constraint,
    FedSGM,
    Hard,
    Mean,
    Penalty,
    PrimalDual,
    Problem,
    SettingError,
    Soft,
    TopK,
    Unconstrained,
    between,
    each_client,
    fairness,
    simulate,
)


def distance(params, example):
    return (params["w"] - example["x"]) ** 2


def size(params, example):
    return params["w"] * example["x"]


def is_ill(example):
    return example["ill"] == 1


def rows(*ill, x=1.0):
    return {"x": np.full(len(ill), x, np.float32), "ill": np.array(ill)}


CLIENTS = Clients.from_list([rows(0, 1), rows(1, 0, 0), rows(0, 1)])
PARAMS = {"w": np.float32(0)}
PROBLEM = Problem(objective=distance, constraints=[Mean(size, where=is_ill, name="ill") <= 1.0])


def run(algorithm=None, problem=PROBLEM, clients=CLIENTS, params=PARAMS, **options):
    options = {"rounds": 1, "progress": False} | options
    return simulate(algorithm or FedSGM(step_size=0.1), problem, clients, params, **options)


def refused(make, message):
    with pytest.raises(SettingError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_the_problem_of_this_file_runs():
    """So that what is refused below is refused for the one thing that is wrong with it."""
    result = run(test=rows(0, 1))
    assert np.isfinite(result.last["w"])


NAN = float("nan")
A_COUNT = "but it must be a whole number, 1 or more$"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_size": 0}, r"^FedSGM: step_size=0, but it must be a finite number above 0$"),
        ({"step_size": -0.1}, r"^FedSGM: step_size=-0\.1, but it must be a finite number above 0$"),
        ({"step_size": NAN}, r"^FedSGM: step_size=nan, but"),
        ({"step_size": float("inf")}, r"^FedSGM: step_size=inf, but"),
        ({"step_size": "0.1"}, r"^FedSGM: step_size='0\.1', but"),
        ({"step_size": None}, r"^FedSGM: step_size=None, but"),
        ({"step_size": True}, r"^FedSGM: step_size=True, but"),
        ({"tolerance": -0.01}, r"^FedSGM: tolerance=-0\.01, but it must be a finite number 0 or more$"),
        ({"tolerance": NAN}, r"^FedSGM: tolerance=nan, but"),
        ({"local_steps": 0}, rf"^FedSGM: local_steps=0, {A_COUNT}"),
        ({"local_steps": 1.5}, rf"^FedSGM: local_steps=1\.5, {A_COUNT}"),
        ({"local_steps": None}, rf"^FedSGM: local_steps=None, {A_COUNT}"),
        ({"participants": 0}, rf"^FedSGM: participants=0, {A_COUNT}"),
        ({"participants": 0.5}, rf"^FedSGM: participants=0\.5, {A_COUNT}"),
        ({"batch_size": 0}, rf"^FedSGM: batch_size=0, {A_COUNT}"),
        ({"constraint_batch_size": -3}, rf"^FedSGM: constraint_batch_size=-3, {A_COUNT}"),
        ({"rule": "hard"}, r"^(FedSGM|simulate): rule='hard', but it must be a rule"),
        ({"rule": Hard}, r"^(FedSGM|simulate): rule=.*Hard.*, but it must be a rule"),
        ({"uplink": "topk"}, r"^(FedSGM|simulate): uplink='topk', but it must be a compressor"),
        ({"memory": 1}, r"^FedSGM: memory=1, but it must be True or False$"),
        ({"downlink": None}, r"^(FedSGM|simulate): downlink=None, but it must be a compressor"),
        ({"uplink": TopK}, r"^(FedSGM|simulate): uplink=.*TopK.*, but it must be a compressor"),
        ({"project": 3}, r"^(FedSGM|simulate): project=3, but it must be a function"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_algorithm(settings, message):
    refused(lambda: run(FedSGM(**({"step_size": 0.1} | settings))), message)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Soft(beta=0), r"^Soft: beta=0, but it must be a finite number above 0$"),
        (lambda: Penalty(rho=-1), r"^Penalty: rho=-1, but it must be a finite number 0 or more$"),
        (lambda: PrimalDual(step=0.0), r"^PrimalDual: step=0\.0, but it must be a finite number above 0$"),
    ],
)
def test_rules(make, message):
    refused(make, message)


SIZE = Mean(size)
NEITHER = (
    r"^a constraint is neither true nor false, and Python drops a half of low <= quantity <= high; write between\("
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 0.1 <= SIZE <= 0.3, NEITHER),
        (lambda: 0.3 >= SIZE >= 0.1, NEITHER),
        (lambda: (SIZE >= 0.1) and (SIZE <= 0.3), NEITHER),
        (lambda: SIZE >= NAN, r"^Constraint: bound=nan, but it must be a finite number$"),
        (lambda: SIZE >= "0.1", r"^Constraint: bound='0\.1', but"),
        (lambda: between(0.3, SIZE, 0.1), r"^between: low=0\.3, high=0\.1, but low must be below high$"),
        (lambda: between(None, SIZE, 0.1), r"^between: low=None, but it must be a finite number$"),
        (lambda: between(0.1, each_client(SIZE), 0.3), r"^between: the worst client above is not the one below"),
        (lambda: Constraint(SIZE, 0.1, sense="<"), r"^Constraint: sense='<', but it must be one of <=, >=, between$"),
        (lambda: Constraint(SIZE, 0.1, sense="between"), r"^Constraint: least= is the lower bound of the sense"),
        (lambda: Constraint(SIZE, 0.1, least=0.0), r"^Constraint: least= is the lower bound of the sense"),
        (lambda: Mean(size, missing="skip"), r"^Mean: missing='skip', but it must be 'refuse' or 'absent'$"),
        (lambda: Problem(Mean(size, missing="absent")), r"^Problem: the objective is every client's; missing='absent'"),
        (lambda: Problem(each_client(SIZE)), r"^Problem: objective=.*, but it must be a function of"),
        (lambda: each_client(size), r"^each_client: .*, but it must be a quantity, such as Mean\(loss\)$"),
        (lambda: each_client(each_client(SIZE)), r"^each_client: .*, but it must be a quantity"),
        (lambda: each_client(SIZE, 0), r"^each_client: quantile=0, but it must be a finite number above 0, at most 1$"),
        (lambda: each_client(SIZE, 95), r"^each_client: quantile=95, but"),
        (lambda: each_client(SIZE, soft=0.0), r"^each_client: soft=0\.0, but it must be a finite number above 0$"),
        (
            lambda: Problem(size, [each_client(SIZE, name="a") <= 1, Mean(size, name="a_client") <= 1]),
            r"^Problem: the constraint name 'a_client' is used twice",
        ),
        (lambda: Problem(size, [SIZE <= 1, SIZE >= 0]), r"^Problem: the constraint name 'size' is used twice"),
    ],
)
def test_constraints(make, message):
    refused(make, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, rf"^simulate: rounds=0, {A_COUNT}"),
        ({"rounds": 2.5}, rf"^simulate: rounds=2\.5, {A_COUNT}"),
        ({"seeds": 0}, rf"^simulate: seeds=0, {A_COUNT}"),
        ({"seed": -1}, r"^simulate: seed=-1, but it must be a whole number, 0 or more$"),
        ({"seed": 2**32}, r"^simulate: .*seed=4294967296"),
        ({"evaluate_every": -1}, r"^simulate: evaluate_every=-1, but it must be a whole number, 0 or more$"),
        ({"algorithm": FedSGM(step_size=0.1, participants=5)}, r"^participants=5, but there are 3 clients$"),
        ({"clients": [rows(0, 1)]}, r"Clients\.from_list"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_run(options, message):
    refused(lambda: run(**options), message)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"w": np.float32(NAN)}, r"^params\['w'\] has a NaN or an infinite entry; start from finite parameters$"),
        ({"w": np.float32(np.inf)}, r"^params\['w'\] has a NaN or an infinite entry"),
        ({"w": np.int32(1)}, r"^params\['w'\] has type int32, but parameters must be floating-point arrays$"),
        ({"w": 1}, r"^params\['w'\] has type int64, but"),
        ({"w": np.float32(0), "b": [np.ones(2), np.arange(2)]}, r"^params\['b'\]\[1\] has type int64, but"),
        ({"w": "zero"}, r"^params\['w'\] has type .*, but"),
        ({}, r"^params: there is no array in it, so there is nothing to learn$"),
        (None, r"^params: there is no array in it"),
        ({"w": np.zeros(0, np.float32)}, r"^params.* nothing to learn$"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_params(params, message):
    refused(lambda: run(params=params), message)


class TestData:
    def test_a_client_lacks_what_a_constraint_averages_over(self):
        clients = Clients.from_list([rows(0, 1), rows(0, 1), rows(0, 0), rows(1)])
        refused(
            lambda: run(clients=clients),
            r"^client 2 has no example that the constraint 'ill' averages over; split the data so that each has one, "
            r"or let those without one be absent from it, Mean\(\.\.\., missing='absent'\), or .* with a Statistic$",
        )

    def test_nobody_has_what_may_be_absent(self):
        problem = Problem(distance, [Mean(size, where=is_ill, name="ill", missing="absent") <= 0.5])
        clients = Clients.from_list([rows(0, 0), rows(0)])
        refused(
            lambda: run(problem=problem, clients=clients), r"^no client has an example that the constraint 'ill' aver"
        )
        clients = Clients.from_list([rows(0, 1), rows(0)])
        assert np.isfinite(run(problem=problem, clients=clients).last["w"])
        refused(lambda: run(problem=problem, clients=clients, test=rows(0)), r"^the test data has no example")

    def test_no_client_can_measure_it_alone(self):
        """A gap between groups, where every client has one group."""
        gap = fairness.group_loss_gap(size, by="ill", groups=2)
        problem = Problem(distance, [each_client(gap) <= 0.5])
        refused(
            lambda: run(problem=problem, clients=Clients.from_list([rows(0, 0), rows(1)])),
            r"^the constraint 'group_loss_gap' has no value on any client alone; leave each_client out, or split",
        )

    def test_a_client_lacks_what_the_objective_averages_over(self):
        clients = Clients.from_list([rows(0, 1), rows(0)])
        problem = Problem(objective=Mean(distance, where=is_ill))
        refused(lambda: run(problem=problem, clients=clients), r"^client 1 has no example that the objective averages")

    def test_padding_does_not_count_as_an_example(self):
        """The first client is padded with copies of an example that the constraint averages over, and has one."""
        clients = Clients.from_list([rows(1), rows(1, 0, 0)])
        assert np.isfinite(run(clients=clients).last["w"])
        clients = Clients.from_list([rows(1, 0), rows(0), rows(1, 1, 1)])
        refused(lambda: run(clients=clients), r"^client 1 has no example")

    def test_test_data_lacks_it(self):
        refused(lambda: run(test=rows(0, 0)), r"^the test data has no example that the constraint 'ill' averages over")

    def test_nan_by_client_and_row(self):
        bad = rows(0, 1, 0)
        bad["x"][1] = NAN
        refused(
            lambda: Clients.from_list([rows(0), bad]),
            r"^client 1: the array \['x'\] has a NaN or an infinite value in row 1;",
        )

    def test_nan_in_test_data(self):
        bad = rows(0, 1, 0)
        bad["x"][2] = NAN
        refused(lambda: run(test=bad), r"^the test data: the array \['x'\] has a NaN or an infinite value in row 2;")

    def test_empty_test_data(self):
        refused(lambda: run(test=rows()), r"^the test data has no examples")

    def test_test_data_of_another_form(self):
        refused(lambda: run(test={"x": np.ones(2, np.float32)}), r"^the test data.* named or nested differently")

    def test_test_data_of_another_shape(self):
        test = {"x": np.ones((2, 4), np.float32), "ill": np.array([0, 1])}
        refused(lambda: run(test=test), r"^the test data.* shape \(4,\)")


def returning(make):
    """A loss that returns what ``make(params, example)`` does."""

    def loss(params, example):
        return make(params, example)

    return loss


NOT_A_NUMBER = [
    pytest.param(lambda w, e: jnp.stack([w["w"], e["x"]]), r"shape \(2,\)$", id="vector"),
    pytest.param(lambda w, e: w["w"][None] * e["x"], r"shape \(1,\)$", id="vector of one"),
    pytest.param(lambda w, e: {"loss": w["w"] * e["x"]}, r"a dict$", id="dict"),
    pytest.param(lambda w, e: (w["w"], e["x"]), r"a tuple$", id="tuple"),
    pytest.param(lambda w, e: None, r"(None|a NoneType)$", id="None"),  # noqa: ARG005
    pytest.param(lambda w, e: e["ill"], r"int32", id="integer"),  # noqa: ARG005
    pytest.param(lambda w, e: w["w"] > e["x"], r"bool", id="truth value"),
]


class TestFunctions:
    @pytest.mark.parametrize(("make", "told"), NOT_A_NUMBER)
    def test_objective_is_not_a_number(self, make, told):
        problem = Problem(objective=returning(make))
        refused(lambda: run(problem=problem), rf"^the objective: its function must return one .*{told}")

    @pytest.mark.parametrize(("make", "told"), NOT_A_NUMBER)
    def test_constraint_is_not_a_number(self, make, told):
        problem = Problem(objective=distance, constraints=[Mean(returning(make), name="limit") <= 1.0])
        refused(lambda: run(problem=problem), rf"^the constraint 'limit': its function must return one .*{told}")

    @pytest.mark.parametrize(
        ("where", "told"),
        [
            pytest.param(lambda e: jnp.stack([e["ill"], e["ill"]]) == 1, r"\(2,\)$", id="vector"),
            pytest.param(lambda e: {"ill": e["ill"] == 1}, r"dict$", id="dict"),
            pytest.param(lambda e: None, r"None", id="None"),  # noqa: ARG005
        ],
    )
    def test_where_is_not_a_truth_value(self, where, told):
        problem = Problem(objective=distance, constraints=[Mean(size, where=where, name="limit") <= 1.0])
        refused(lambda: run(problem=problem), rf"^the constraint 'limit': where must return one truth value .*{told}")

    @pytest.mark.parametrize("fn", [None, 3.0, "loss"])
    def test_not_a_function(self, fn):
        refused(lambda: Mean(fn), r"^Mean: fn=.*, but it must be a function of \(params, example\)$")
        refused(lambda: run(problem=Problem(objective=fn)), r"objective.*, but it must be a function")

    def test_where_is_not_a_function(self):
        refused(lambda: Mean(distance, where=1), r"^Mean: where=1, but it must be a function of one example$")


class TestConstraints:
    @pytest.mark.parametrize(
        "constraint",
        [Mean(size), size, True, "size <= 1", 1.0, None, (Mean(size), 1.0)],
        ids=lambda value: type(value).__name__,
    )
    def test_not_a_constraint(self, constraint):
        def make():
            run(problem=Problem(objective=distance, constraints=[constraint]))

        refused(make, r"^Problem: a constraint is quantity <= bound, for instance Mean\(loss\) <= 0\.05$")

    @pytest.mark.parametrize(
        "constraints", [Mean(size), size, None, {"size": Mean(size) <= 1.0}], ids=lambda value: type(value).__name__
    )
    def test_not_a_list_of_constraints(self, constraints):
        refused(lambda: run(problem=Problem(objective=distance, constraints=constraints)), r"^Problem: .*constraint")

    def test_a_constraint_on_a_bare_function(self):
        def make():
            run(problem=Problem(objective=distance, constraints=[Constraint(size, 1.0)]))

        refused(make, r"^(Problem|Constraint): .*Mean\(")

    def test_one_constraint_needs_no_list(self):
        assert Problem(objective=distance, constraints=Mean(size) <= 1.0).names == ("size",)

    @pytest.mark.parametrize("bound", [NAN, float("inf"), "1", None])
    def test_bound(self, bound):
        refused(lambda: Mean(size) <= bound, r"^Constraint: bound=.*, but it must be a finite number$")

    @pytest.mark.parametrize("scale", [0.0, -1.0, NAN])
    def test_scale(self, scale):
        refused(lambda: Constraint(Mean(size), 1.0, scale), r"^Constraint: scale=.*, but .* a finite number above 0$")

    def test_same_name_twice(self):
        refused(
            lambda: Problem(objective=distance, constraints=[Mean(size) <= 1.0, Mean(size, where=is_ill) <= 2.0]),
            r"^Problem: the constraint name 'size' is used twice; give another, Mean\(\.\.\., name=\.\.\.\)$",
        )

    def test_reserved_names(self):
        """A constraint is a column of the history, so none of the other columns' names is free."""
        taken = {*run().history, "seed", "round"} - {"ill"}
        assert "objective" in taken
        for name in taken:
            refused(
                lambda name=name: Problem(objective=distance, constraints=[Mean(size, name=name) <= 1.0]),
                rf"^Problem: the constraint name '{name}' is taken; give another, Mean\(\.\.\., name=\.\.\.\)$",
            )


def room_left(params, example):
    """Not a number once the model has gone past the example's room."""
    return jnp.log(example["room"] - params["w"])


def onward(params, example):
    """Makes every round a step of +step_size."""
    return -params["w"] + 0 * example["room"]


def root_of_room(params, example):
    return 2 * jnp.sqrt(example["room"] - params["w"])


class TestDebug:
    """In debug mode what goes wrong at a client is said with the client and the round."""

    ROOMY = Problem(objective=onward, constraints=[Mean(room_left) <= 100.0])
    CLIENTS = Clients.from_list([{"room": np.full(2, room, np.float32)} for room in (90, 90, 2.5, 90)])

    def failing(self, algorithm=None, problem=ROOMY, **options):
        algorithm = algorithm or FedSGM(step_size=1.0)
        with pytest.raises(ClientError) as caught:
            run(algorithm, problem, self.CLIENTS, debug=True, **({"rounds": 9, "evaluate_every": 0} | options))
        assert "\n" not in str(caught.value)
        return caught.value

    def test_a_sound_run_is_the_same_as_without(self):
        algorithm = FedSGM(step_size=0.25, participants=2)
        options = {"problem": self.ROOMY, "clients": self.CLIENTS, "rounds": 2, "evaluate_every": 2}
        slow, fast = (run(algorithm, debug=debug, **options) for debug in (True, False))
        np.testing.assert_allclose(slow.last["w"], fast.last["w"], rtol=1e-6)
        assert slow.history.keys() == fast.history.keys()
        for name, values in fast.history.items():
            np.testing.assert_allclose(slow.history[name], values, rtol=1e-6, err_msg=name)

    def test_nan_in_a_constraint(self):
        """The model is at t in round t: past 2.5 in round 3."""
        assert str(self.failing()).startswith("client 2, round 3: a NaN or an infinite value")

    def test_nan_in_the_evaluation(self):
        """Evaluated after the round's step, it is seen one round earlier."""
        assert str(self.failing(evaluate_every=1)).startswith("client 2, round 2: a NaN or an infinite value")

    def test_nan_in_a_gradient(self):
        """From 0, local steps of 3 / sqrt(2.5 - w) lead to 1.9 and then past 2.5."""
        algorithm = FedSGM(step_size=3.0, local_steps=3)
        error = self.failing(algorithm, Problem(objective=root_of_room))
        assert str(error).startswith("client 2, round 0: a NaN or an infinite value in local_update")

    def test_client_by_its_own_number_when_few_take_part(self):
        algorithm = FedSGM(step_size=1.0, participants=2, rule=Unconstrained())
        took_part = run(algorithm, self.ROOMY, self.CLIENTS, rounds=9, seed=1).history["participants"][0]
        expected = next(t for t in range(3, 9) if 2 in took_part[t])
        assert str(self.failing(algorithm, seed=1)).startswith(f"client 2, round {expected}: ")

    def test_exception_in_a_loss(self):
        def read(room):
            if (room < 10).any():
                raise LookupError("the sensor is gone")
            return room

        def sensed(params, example):
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            return params["w"] - jax.pure_callback(read, shape, example["room"], vmap_method="expand_dims")

        problem = Problem(objective=onward, constraints=[Mean(sensed) <= 100.0])
        error = self.failing(problem=problem)
        assert str(error).startswith("client 2, round 0: ")
        assert "the sensor is gone" in str(error.__cause__)
