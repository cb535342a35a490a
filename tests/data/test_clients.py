"""Dealing examples out to clients: nobody's example is lost, doubled or made up."""

import numpy as np
import pytest

from fedsgm import Clients, SettingError, by, data, dirichlet, iid, split

TOTAL = 103
CLASSES = np.repeat([0, 1, 2], [50, 40, 13])
EXAMPLES = {
    "id": np.arange(TOTAL),
    "x": np.random.default_rng(0).normal(size=(TOTAL, 2, 3)).astype(np.float32),
    "y": np.random.default_rng(1).permutation(CLASSES),
}
SCHEMES = [iid(), iid(stratify="y"), dirichlet(0.3, by="y"), dirichlet(100.0, by="y", least=5), by("y")]


def deal(scheme, *, clients=7, seed=0):
    return split(EXAMPLES, clients=None if isinstance(scheme, by) else clients, scheme=scheme, seed=seed)


def dealt(clients):
    """Each client's example numbers."""
    return [clients[j]["id"].tolist() for j in range(len(clients))]


def class_counts(clients):
    return np.array([np.bincount(clients[j]["y"], minlength=3) for j in range(len(clients))])


def test_every_scheme_is_in_the_list():
    public = (getattr(data, name) for name in data.__all__)
    schemes = {kind for kind in public if isinstance(kind, type) and "__call__" in vars(kind)}
    assert schemes - {data.Scheme} == {type(scheme) for scheme in SCHEMES}


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
class TestEveryScheme:
    def test_every_example_is_dealt_exactly_once(self, scheme):
        np.testing.assert_array_equal(np.sort(np.concatenate(dealt(deal(scheme)))), np.arange(TOTAL))

    def test_arrays_stay_together(self, scheme):
        clients = deal(scheme)
        for j, rows in enumerate(dealt(clients)):
            np.testing.assert_array_equal(clients[j]["x"], EXAMPLES["x"][rows])
            np.testing.assert_array_equal(clients[j]["y"], EXAMPLES["y"][rows])

    def test_same_seed_same_split(self, scheme):
        assert dealt(deal(scheme, seed=3)) == dealt(deal(scheme, seed=3))

    def test_other_seed_other_split(self, scheme):
        differ = dealt(deal(scheme, seed=3)) != dealt(deal(scheme, seed=4))
        assert differ == (not isinstance(scheme, by))  # a column leaves nothing to chance

    def test_number_of_clients(self, scheme):
        assert len(deal(scheme)) == (3 if isinstance(scheme, by) else 7)


class TestIid:
    @pytest.mark.parametrize("stratify", [None, "y"])
    @pytest.mark.parametrize("clients", [1, 2, 7, 20, TOTAL])
    def test_equal_shares(self, clients, stratify):
        counts = deal(iid(stratify=stratify), clients=clients).counts
        assert counts.sum() == TOTAL
        assert np.ptp(counts) <= 1

    @pytest.mark.parametrize("clients", [2, 7, 20])
    def test_stratified_classes_differ_by_at_most_one(self, clients):
        assert (np.ptp(class_counts(deal(iid(stratify="y"), clients=clients)), axis=0) <= 1).all()

    def test_plain_shares_are_random(self):
        """Not the first rows to the first client, nor every seventh."""
        rows = dealt(deal(iid()))
        assert rows[0] != list(range(len(rows[0])))
        assert rows[0] != list(range(0, TOTAL, 7))

    def test_is_the_default(self):
        assert dealt(split(EXAMPLES, clients=7, seed=5)) == dealt(deal(iid(), seed=5))


class TestDirichlet:
    def test_small_alpha_is_more_skewed(self):
        """The mean share of each client's commonest class: near 1 for a small alpha, near the data's for a large."""

        def commonest(alpha):
            counts = [class_counts(deal(dirichlet(alpha, by="y"), seed=seed)) for seed in range(20)]
            return np.mean([(c.max(axis=1) / c.sum(axis=1)).mean() for c in counts])

        skewed, mild, even = (commonest(alpha) for alpha in (0.1, 1.0, 1000.0))
        assert skewed > mild + 0.1 > even + 0.1
        assert even == pytest.approx(50 / TOTAL, abs=0.06)

    def test_large_alpha_is_an_even_deal(self):
        counts = class_counts(deal(dirichlet(1e6, by="y")))
        np.testing.assert_allclose(counts, np.broadcast_to(np.array([50, 40, 13]) / 7, counts.shape), atol=1.5)

    @pytest.mark.parametrize("least", [1, 4, 8])
    def test_least_is_respected(self, least):
        fewest = [deal(dirichlet(0.5, by="y", least=least), seed=seed).counts.min() for seed in range(10)]
        assert min(fewest) >= least

    def test_least_is_what_keeps_clients_from_being_poor(self):
        fewest = [deal(dirichlet(0.5, by="y", least=1), seed=seed).counts.min() for seed in range(10)]
        assert min(fewest) < 8

    def test_least_that_cannot_be_had(self):
        with pytest.raises(SettingError, match=r"^dirichlet: 1000 draws .* one of 7 clients with fewer than 15 "):
            deal(dirichlet(0.5, by="y", least=15))

    @pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), "1"])
    def test_refuses_alpha(self, alpha):
        with pytest.raises(SettingError, match=r"^dirichlet: alpha=.*, but it must be a finite number above 0$"):
            dirichlet(alpha, by="y")

    @pytest.mark.parametrize("least", [0, 1.5])
    def test_refuses_least(self, least):
        with pytest.raises(SettingError, match=r"^dirichlet: least=.*, but it must be a whole number, 1 or more$"):
            dirichlet(1.0, by="y", least=least)


class TestBy:
    def test_one_client_for_each_value_in_sorted_order(self):
        hospital = np.array(["york", "bath", "york", "ely", "bath", "york"])
        clients = split({"hospital": hospital, "id": np.arange(6)}, scheme=by("hospital"))
        assert dealt(clients) == [[1, 4], [3], [0, 2, 5]]

    def test_number_of_clients_may_be_said_if_it_is_right(self):
        assert len(split(EXAMPLES, clients=3, scheme=by("y"))) == 3
        with pytest.raises(SettingError, match=r"^split: clients=4, but column 'y' has 3 values; leave clients out$"):
            split(EXAMPLES, clients=4, scheme=by("y"))


class TestFromList:
    GIVEN = (
        {"x": np.float32([[1, 2], [3, 4], [5, 6]]), "y": np.array([0, 1, 1])},
        {"x": np.float32([[7, 8]]), "y": np.array([2])},
        {"x": np.float32([[9, 1], [2, 3]]), "y": np.array([3, 4])},
    )

    def test_gives_the_same_arrays_back(self):
        clients = Clients.from_list(self.GIVEN)
        assert len(clients) == 3
        for j, given in enumerate(self.GIVEN):
            assert clients[j].keys() == given.keys()
            for name, array in given.items():
                np.testing.assert_array_equal(clients[j][name], array)
                assert clients[j][name].dtype == array.dtype

    def test_one_client_after_another_without_padding(self):
        clients = Clients.from_list(self.GIVEN)
        assert clients.longest == 3
        np.testing.assert_array_equal(clients.counts, [3, 1, 2])
        np.testing.assert_array_equal(clients.owners, [0, 0, 0, 1, 2, 2])
        np.testing.assert_array_equal(clients.examples["y"], [0, 1, 1, 2, 3, 4])
        np.testing.assert_array_equal(clients.examples["x"], [[1, 2], [3, 4], [5, 6], [7, 8], [9, 1], [2, 3]])

    def test_together_is_one_client_with_all(self):
        clients = Clients.from_list(self.GIVEN)
        whole = clients.together()
        assert whole.counts.tolist() == [6]
        np.testing.assert_array_equal(whole[0]["y"], [0, 1, 1, 2, 3, 4])
        np.testing.assert_array_equal(clients[-1]["y"], [3, 4])
        with pytest.raises(IndexError):
            clients[3]

    def test_any_nesting(self):
        clients = Clients.from_list([(np.arange(2), [np.ones((2, 5))]), (np.arange(4), [np.ones((4, 5))])])
        number, (ones,) = clients[1]
        np.testing.assert_array_equal(number, np.arange(4))
        assert ones.shape == (4, 5)
        assert clients.examples[1][0].shape == (6, 5)


def with_bad(value):
    x = EXAMPLES["x"].copy()
    x[42, 1, 2] = value
    return EXAMPLES | {"x": x}


ONE = {"x": np.ones((2, 3)), "y": np.zeros(2)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: Clients.from_list([]), r"^Clients: the list is empty", id="no clients"),
        pytest.param(
            lambda: Clients.from_list([ONE, {"x": np.ones((0, 3)), "y": np.zeros(0)}]),
            r"^client 1 has no examples",
            id="empty client",
        ),
        pytest.param(
            lambda: Clients.from_list([ONE, ONE, ONE | {"y": np.array([0, np.nan])}]),
            r"^client 2: the array \['y'\] has a NaN or an infinite value in row 1",
            id="NaN",
        ),
        pytest.param(
            lambda: Clients.from_list([ONE, ONE | {"x": np.array([[1, -np.inf, 1], [1, 1, 1]])}]),
            r"^client 1: the array \['x'\] has a NaN or an infinite value in row 0",
            id="infinity",
        ),
        pytest.param(
            lambda: split(with_bad(np.nan), clients=7),
            r"^the data: the array \['x'\] has a NaN or an infinite value in row 42",
            id="NaN before the split, by the row of the user's own array",
        ),
        pytest.param(
            lambda: Clients.from_list([ONE, ONE | {"y": np.zeros(3)}]),
            r"^client 1: every array must have the same number of examples, but \['x'\] has 2, \['y'\] has 3$",
            id="lengths within a client",
        ),
        pytest.param(
            lambda: split({"x": np.ones((5, 2)), "y": np.ones(4)}, clients=2),
            r"^the data: every array must have the same number of examples, but \['x'\] has 5, \['y'\] has 4$",
            id="lengths within the data",
        ),
        pytest.param(
            lambda: Clients.from_list([ONE, ONE | {"x": np.ones((2, 4))}]),
            r"^client 1: the array \['x'\] has shape \(4,\) per example, client 0 has \(3,\)$",
            id="shapes",
        ),
        pytest.param(
            lambda: Clients.from_list([ONE, ONE, {"x": np.ones((2, 3))}]),
            r"^client 2: its arrays are named or nested differently from client 0's$",
            id="structure",
        ),
        pytest.param(
            lambda: Clients(ONE, np.array([1, 2])),
            r"^Clients: there are 2 examples, but the counts add up to 3$",
            id="counts of other examples",
        ),
        pytest.param(
            lambda: split(ONE, clients=2, scheme=lambda *_: [np.arange(2), np.arange(0)]),
            r"^client 1 has no examples",
            id="a scheme that leaves a client empty",
        ),
        pytest.param(
            lambda: split(ONE, clients=2, scheme=lambda *_: []),
            r"^Clients: the list is empty",
            id="a scheme without clients",
        ),
        pytest.param(
            lambda: Clients.from_list([{"x": 1.0}]), r"^client 0: examples must be arrays whose first axis", id="scalar"
        ),
        pytest.param(
            lambda: split({}, clients=2), r"^the data: examples must be arrays whose first axis", id="nothing"
        ),
        pytest.param(
            lambda: deal(iid(stratify="label")),
            r"^split: there is no column 'label'; the data has 'id', 'x', 'y'$",
            id="unknown column, iid",
        ),
        pytest.param(
            lambda: deal(dirichlet(1.0, by="label")),
            r"^split: there is no column 'label'",
            id="unknown column, dirichlet",
        ),
        pytest.param(lambda: deal(by("label")), r"^split: there is no column 'label'", id="unknown column, by"),
        pytest.param(
            lambda: split(np.ones((4, 2)), scheme=by("y")),
            r"^split: there is no column 'y'; the data has no named columns$",
            id="no columns",
        ),
        pytest.param(
            lambda: deal(by("x")),
            r"^split: column 'x' has shape \(103, 2, 3\), but it must have one value per example$",
            id="column of vectors",
        ),
        pytest.param(
            lambda: deal(iid(), clients=TOTAL + 1),
            r"^split: clients=104, but there are only 103 examples$",
            id="more clients than examples",
        ),
        pytest.param(lambda: deal(iid(), clients=0), r"^split: clients=0, but it must be a whole", id="zero clients"),
        pytest.param(
            lambda: deal(iid(), clients=2.5), r"^split: clients=2\.5, but it must be a whole", id="2.5 clients"
        ),
        pytest.param(lambda: split(EXAMPLES), r"^split: say how many clients there are", id="clients not said"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(SettingError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
