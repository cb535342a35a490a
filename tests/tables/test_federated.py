"""What sites tell of their tables, what the server makes of it, and that no row is in anything that they send."""

import copy
import dataclasses
import json
import logging

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

import fedsgm as fs
from fedsgm.data.reading import Written, read_table
from fedsgm.federation.agreement import carry_out
from fedsgm.federation.preparation import MAGIC, opened
from fedsgm.federation.protocol import Kind, Reply, Request, unpack
from fedsgm.tables import telling
from fedsgm.tables.agreeing import Agreed, agree
from fedsgm.tables.describing import LONGEST, MOST_LABELS, MOST_NAMED, Description, Question, Site
from fedsgm.tables.federated import TableFit
from fedsgm.tables.holding import held_out
from fedsgm.tables.targets import Target
from support.sites import SITES, people, run, state_once, transport, write

CONSTRAINTS = ("demographic_parity(sex) <= 0.1", "equalized_odds(sex * work) <= 0.9")
QUESTION = Question("ok", CONSTRAINTS, test_fraction=0.25, seed=2)


@pytest.fixture(scope="module")
def frame():
    """With an id for each row, a name that two have, and a group without a value here and there."""
    found = people()
    found["id"] = [f"id-{i:05}-x" for i in range(len(found))]
    found.loc[[3, 4], "work"] = "astronaut"
    found.loc[found["site"] == "west", "tall"] = np.where(np.arange((found["site"] == "west").sum()) < 3, 1.98765, None)
    return found


@pytest.fixture(scope="module")
def tables(frame, tmp_path_factory):
    return write(frame, tmp_path_factory.mktemp("tables"))


def stated(**more):
    def algorithm(*_):
        return fs.FedSGM(0.1, 2, rule=fs.Soft(20.0), batch_size=16)

    about = dataclasses.replace(QUESTION, **{name: more.pop(name) for name in list(more) if name in vars(QUESTION)})
    return TableFit(about, (), algorithm, **{"rounds": 3, "evaluate_every": 1} | more)


# A description -------------------------------------------------------------------------------------------------------


def test_a_description_is_sums_by_pandas(frame, tables):
    """Of the rows that a site does not hold out, but for labels, which are of all."""
    for client, (site, path) in enumerate(zip(SITES, tables, strict=True)):
        own = frame[frame["site"] == site].reset_index(drop=True)
        told = Description.of(Site.read(path, QUESTION, Written()), QUESTION, client)
        strata = [own[name].astype(object).where(own[name].notna(), None).to_numpy() for name in ("ok", "sex", "work")]
        held = held_out(strata, 0.25, seed=2, client=client)
        train = own[~held]
        assert told.rows == {"train": (~held).sum(), "test": held.sum()}
        assert told.classes == own["ok"].value_counts().to_dict()
        age = told.columns["age"]
        known = train["age"].dropna()
        assert (age.told, age.untold, age.missing) == (len(known), 0, train["age"].isna().sum())
        assert (age.mean, age.squares) == pytest.approx((known.mean(), known.var(ddof=0) * len(known)))
        work = train["work"].value_counts()
        assert told.columns["work"].categories == work[work >= 5].to_dict()
        assert told.columns["work"].untold == work[work < 5].sum()
        assert (told.columns["id"].categories, told.columns["id"].untold) == ({}, len(train))
        for group, rows in told.groups["sex * work"].rows.items():
            mine = own[(own["sex"] == group[0]) & (own["work"] == group[1])]
            for part, here in (("train", mine[~held[mine.index]]), ("test", mine[held[mine.index]])):
                assert rows[part] == tuple((here["ok"] == label).sum() for label in told.classes)
        assert told.groups["sex * work"].ungrouped == own["work"].isna().sum()
        assert told.groups["sex"].rows[("f",)]["train"] == ((train["sex"] == "f").sum(),), "of all classes together"


def test_few_numbers_are_not_told(frame, tables):
    """Three rows of one site have a value: their mean would be about them."""
    site = Site.read(tables[2], QUESTION, Written())
    told = Description.of(site, QUESTION, 2).columns["tall"]
    rows = frame[(frame["site"] == "west")].reset_index(drop=True)["tall"].notna()
    train = rows[~QUESTION.held_out(site.table, 2)]
    assert (told.told, told.untold, told.mean, told.squares) == (0, train.sum(), 0, 0)


def test_a_description_travels_as_json(tables):
    for client, path in enumerate(tables):
        told = Description.of(Site.read(path, QUESTION, Written()), QUESTION, client)
        assert telling.read(json.loads(json.dumps(telling.to_json(told))), QUESTION) == told


@pytest.fixture(scope="module")
def document(tables):
    told = Description.of(Site.read(tables[0], QUESTION, Written()), QUESTION, 0)
    return json.loads(json.dumps(telling.to_json(told)))


def put(document, *path):
    """With another value at a place."""
    *way, last, value = path
    changed = copy.deepcopy(document)
    place = changed
    for step in way:
        place = place[step]
    place[last] = value
    return changed


WRONG = {
    "nothing": lambda _: None,
    "a list": lambda _: [],
    "a part less": lambda d: {name: part for name, part in d.items() if name != "classes"},
    "a part more": lambda d: d | {"row": [1, 2]},
    "rows below 0": lambda d: put(d, "rows", 0, -1),
    "no rows": lambda d: put(d, "rows", 0, 0),
    "half a row": lambda d: put(d, "rows", 0, 0.5),
    "a truth for a row": lambda d: put(d, "rows", 1, True),
    "too many rows": lambda d: put(d, "left out", 0, 2**60),
    "three parts": lambda d: put(d, "rows", [1, 2, 3]),
    "a target that is none": lambda d: put(d, "target", 0, "rows"),
    "a target of few words": lambda d: put(d, "target", ["classes", True]),
    "a mean of classes": lambda d: put(d, "target", ["classes", True, 10.0, 1.0, 1.0]),
    "a mean of texts": lambda d: put(put(d, "target", ["number", False, 10.0, 1.0, 1.0]), "classes", []),
    "a mean of no rows": lambda d: put(put(d, "target", ["number", True, 0.0, 1.0, 1.0]), "classes", []),
    "squares of a target below 0": lambda d: put(put(d, "target", ["number", True, 9.0, 1.0, -1.0]), "classes", []),
    "classes of a number": lambda d: put(d, "target", ["number", True, 9.0, 1.0, 1.0]),
    "classes that are not all rows": lambda d: put(d, "classes", 0, 1, 10**6),
    "a class twice": lambda d: put(d, "classes", [d["classes"][0]] * 2),
    "a class that is a number": lambda d: put(d, "classes", 0, 0, 7),
    "a class of half a character": lambda d: put(d, "classes", 0, 0, "\ud800"),
    "a long class": lambda d: put(d, "classes", 0, 0, "x" * (LONGEST + 1)),
    "many classes": lambda d: put(d, "classes", [[str(i), 1] for i in range(MOST_LABELS + 1)]),
    "other groups": lambda d: put(d, "groups", {"sex": d["groups"]["sex"]}),
    "groups that are none": lambda d: put(d, "groups", "sex", []),
    "groups of more columns": lambda d: put(d, "groups", "sex", 1, 0, 0, ["f", "g"]),
    "groups of more classes": lambda d: put(d, "groups", "sex", 1, 0, 1, [1, 2]),
    "more rows in groups": lambda d: put(d, "groups", "sex", 1, 0, 1, [10**6]),
    "a group twice": lambda d: put(d, "groups", "sex", 1, [d["groups"]["sex"][1][0]] * 2),
    "rows of no group": lambda d: put(d, "groups", "sex", 0, 7),
    "a column that is none": lambda d: put(d, "columns", 0, {}),
    "a column without a name": lambda d: put(d, "columns", 0, 0, None),
    "a column twice": lambda d: put(d, "columns", 1, d["columns"][0]),
    "a kind that is none": lambda d: put(d, "columns", 0, 1, "row"),
    "a kind that is a list": lambda d: put(d, "columns", 0, 1, []),
    "a mean that is a text": lambda d: put(d, "columns", 0, 5, "40"),
    "a mean that is whole": lambda d: put(d, "columns", 0, 5, 10**400),
    "an infinite mean": lambda d: put(d, "columns", 0, 5, float("inf")),
    "no number for a mean": lambda d: put(d, "columns", 0, 5, float("nan")),
    "a mean beyond all": lambda d: put(d, "columns", 0, 5, 1e200),
    "squares below 0": lambda d: put(d, "columns", 0, 6, -1.0),
    "fewer rows in a column": lambda d: put(d, "columns", 0, 4, 10**6),
    "categories of numbers": lambda d: put(d, "columns", 0, 7, [["a", 1]]),
    "a category twice": lambda d: put(d, "columns", 2, 7, [["f", 1], ["f", 1]]),
    "many categories": lambda d: put(d, "columns", 2, 7, [[str(i), 1] for i in range(MOST_NAMED + 1)]),
    "many columns": lambda d: put(d, "columns", d["columns"] * 10_000),
    "what was not dropped": lambda d: put(d, "dropped", ["age"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_description_that_cannot_be_right_is_refused(what, document):
    telling.read(document, QUESTION)
    with pytest.raises(fs.SettingError, match=r"^what it tells of its table cannot be right \("):
        telling.read(WRONG[what](document), QUESTION)


def places(node, path=()):
    """The way to every value of a document."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def test_any_value_anywhere_is_a_description_or_one_sentence(document):
    rng = np.random.default_rng(0)
    values = (None, True, -1, 0, 3, 10**400, 1.5, -2.0, 1e308, "", "x", "y" * 10**4, "\ud800", [], {}, [[]], {"a": 1})
    ways = list(places(document))
    for _ in range(3000):
        changed = put(document, *ways[rng.integers(len(ways))], values[rng.integers(len(values))])
        try:
            told = telling.read(changed, QUESTION)
        except fs.SettingError:
            continue
        assert isinstance(told, Description)
        json.dumps(telling.to_json(told), ensure_ascii=False).encode()


def test_a_wrong_description_names_its_site(document):
    fit = stated()
    with pytest.raises(fs.SettingError, match=r"^site-2: what it tells of its table cannot be right \(classes\)"):
        fit.agree({"site-1": document, "site-2": WRONG["a class twice"](document)})


# What they agree on --------------------------------------------------------------------------------------------------


def described(frames, question):
    return {
        name: Description.of(Site.of(table(frame), question), question, client)
        for client, (name, frame) in enumerate(frames.items())
    }


def table(frame):
    """As a file would be read."""
    from fedsgm.data.table import parse_table

    return parse_table(frame.to_csv(index=False).encode(), "t")


def test_notes_are_of_all_sites():
    rows = 40
    plain = {"x": np.arange(rows) % 7, "ok": ["a", "b"] * (rows // 2), "name": [f"n{i}" for i in range(rows)]}
    one = pd.DataFrame({**plain, "sex": ["f", "m", "f", None] * 10, "day": "2020-01-01", "w": 1})
    two = one.assign(day="2021-01-01", w=[0, 0] + [1] * 38, ok=["a", "b", None, None] + ["a", "b"] * 18)
    last = one.iloc[:1].assign(x=None)
    question = Question("ok", ("demographic_parity(sex) <= 0.5",), weight="w", test_fraction=0)
    agreed = agree(question, described({"A": one, "B": two, "C": last}, question))
    assert agreed.notes == (
        "2 rows without a value of the target 'ok' left out",
        "2 rows of weight 0 left out",
        "19 rows without a value of 'sex': no group counts them",
        "'day' has dates; each is its number of days since 1970-01-01",
        "constant, so not a feature: 'name'",
        "77 rows with a value of 'name' that is rare at their site, so that it does not tell it: a category only if "
        "another site does",
        "1 row with a value of 'sex' that is rare at their site, so that it does not tell it: a category only if "
        "another site does",
        "1 row of sites with too few values of 'day': not in its mean",
        "1 of 3 clients has one training row only",
    )
    assert Agreed.from_json(json.loads(json.dumps(agreed.to_json()))) == agreed
    assert agreed.groups == {"sex": ("f", "m")}


def test_a_column_that_is_empty_at_a_site_is_of_the_others_kind():
    """CSV does not say what an empty column would have had in it."""
    rows = {"ok": ["a", "b"] * 10, "n": np.arange(20.0), "t": ["u", "v"] * 10, "d": ["2020-01-01", "2021-01-01"] * 10}
    full = pd.DataFrame(rows)
    empty = full.assign(n=None, t=None, d=None)
    question = Question("ok", test_fraction=0)
    for frames in ({"A": full, "B": empty}, {"A": empty, "B": full}):
        encoder = agree(question, described(frames, question)).encoder
        assert [(column.categories, column.date) for column in encoder.columns] == [
            *((None, False), (("u", "v"), False), (None, True))
        ]
        assert encoder.columns[0].mean == 9.5
        assert all(column.missing for column in encoder.columns)
        x = encoder.encode(table(empty))
        assert x.tolist() == [[0, 1, 0, 0, 1, 0, 1]] * 20


def test_more_than_the_most_frequent_categories():
    """Of counts over all sites; those that no site tells count for nothing."""
    rng = np.random.default_rng(0)
    names = np.repeat([f"k{i:03}" for i in range(90)], 6)
    frames = {s: pd.DataFrame({"k": rng.permutation(names), "ok": rng.choice(["a", "b"], 540)}) for s in "AB"}
    frames["C"] = pd.DataFrame({"k": np.repeat(["k000", "k089"], 9), "ok": ["a", "b"] * 9})
    question = Question("ok", test_fraction=0)
    agreed = agree(question, described(frames, question))
    assert len(agreed.encoder.features) == 64
    assert {"k = k000", "k = k089"} < set(agreed.encoder.features)
    assert agreed.notes == ("'k' has many values; the 64 most frequent are categories",)


NUMBERS = {"A": np.arange(30) / 7, "B": 3 + np.arange(50) / 9, "C": np.array([100.0, 200.0])}


def numbers(**more):
    """Sites whose target is a number; the last has two rows."""
    rng = np.random.default_rng(0)
    frames = {
        name: pd.DataFrame({"x": rng.normal(size=len(y)), "sex": ["f", "m"] * (len(y) // 2), "y": y, "w": 1 + y % 2})
        for name, y in NUMBERS.items()
    }
    question = Question("y", ("mean_gap(sex) <= 1",), test_fraction=0, **more)
    return question, described(frames, question)


@pytest.mark.parametrize("weight", [None, "w"])
def test_the_mean_of_a_number_is_that_of_all_rows(weight):
    """By NumPy; two rows are too few to tell of, unless that is asked for."""
    for least, sites in ((5, "AB"), (1, "ABC")):
        question, told = numbers(weight=weight, least=least, task="number")
        y = np.concatenate([NUMBERS[name] for name in sites])
        weights = np.ones(len(y)) if weight is None else 1 + y % 2
        target = agree(question, told).target
        mean = np.average(y, weights=weights)
        assert target.mean == pytest.approx(mean)
        assert target.scale == pytest.approx(np.sqrt(np.average((y - mean) ** 2, weights=weights)))
        assert target.classes == ()
        notes = agree(question, told).notes
        assert ("2 rows of sites with too few values of 'y': not in its mean" in notes) == (least == 5)


def test_values_of_a_number_are_not_told_as_classes():
    """Not even those of a site that has two rows, and cannot know what they are."""
    question, told = numbers()
    assert [site.target.kind for site in told.values()] == ["number", "number", "unsure"]
    assert [site.classes for site in told.values()] == [{}] * 3
    assert told["C"].target.mean == 0
    words = r"what 'y' is cannot be found out .*number at B and unsure at C.*; add --task classes or --task number$"
    with pytest.raises(fs.SettingError, match=words):
        agree(question, told)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 1, 1, 1], "classes"),
        ([3.0, 4.0], "unsure"),
        (["c", "d", "e"], "classes"),
        ([1, 2, 3] * 5, "classes"),
        ([1, 2, 3] * 4, "unsure"),
        ([0.5, 1.5, 2.5] * 9, "number"),
        (list(range(21)), "number"),
    ],
)
def test_what_a_site_takes_its_target_for(values, kind):
    """Labels of numbers are named where each is that of five rows, or 0 or 1."""
    frame = pd.DataFrame({"y": values, "x": np.arange(len(values)) % 3})
    question = Question("y", test_fraction=0)
    told = described({"A": frame}, question)["A"]
    assert told.target.kind == kind
    assert (told.classes == {}) == (kind != "classes")


def test_classes_of_all_sites():
    frame = pd.DataFrame({"y": ["a", "b"] * 9, "x": np.arange(18)})
    question = Question("y", test_fraction=0)
    frames = {"A": frame, "B": frame.assign(y=["c", "b"] * 9)}
    agreed = agree(question, described(frames, question))
    assert agreed.target.classes == ("a", "b", "c")
    assert "the target 'y' is taken for one of 3 classes" in agreed.notes
    alone = frames | {"B": frame.assign(y=["c"] + ["b"] * 17)}
    with pytest.raises(fs.SettingError, match="the class 'c' of 'y' has one row only"):
        agree(question, described(alone, question))
    other = Question("y", positive="a", test_fraction=0)
    with pytest.raises(fs.SettingError, match="positive: 'y' has 3 classes"):
        agree(other, described(frames, other))


def test_numbers_that_are_more_classes_together_than_at_any_site():
    """Of one table they would be a number."""
    question = Question("y", test_fraction=0)
    frames = {name: pd.DataFrame({"y": np.repeat(np.arange(12) + first, 5)}) for name, first in (("A", 0), ("B", 12))}
    frames = {name: frame.assign(x=np.arange(60)) for name, frame in frames.items()}
    with pytest.raises(fs.SettingError, match="what 'y' is cannot be found out"):
        agree(question, described(frames, question))
    assert len(agree(dataclasses.replace(question, task="classes"), described(frames, question)).target.classes) == 24


# How good the model is -----------------------------------------------------------------------------------------------

TWO, THREE, NUMBER = Target("y", ("a", "b")), Target("y", ("a", "b", "c")), Target("y")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (TWO, None),
        (TWO, [1, 2]),
        (TWO, [10, 11, [5, 5]]),
        (TWO, [10, 5, [5, 6]]),
        (TWO, [10, 5, [10]]),
        (TWO, [0, 0, [0, 0]]),
        (TWO, [10, 5.0, [5, 5]]),
        (THREE, [10, 5, [5, 5]]),
        (NUMBER, [10, 5, [5, 5]]),
        (NUMBER, [0, 0.0, 0.0, 0.0]),
        (NUMBER, [10, 1.0, -1.0, 1.0]),
        (NUMBER, [10, 1.0, 1.0, "1"]),
        (NUMBER, [10, 1e200, 1e300, 1.0]),
    ],
)
def test_a_review_that_cannot_be_right_does_not_count(target, told):
    assert telling.read_tallies({"train": told}, target) == {}


def test_reviews_add_up_to_those_of_all_rows():
    """By scikit-learn, of two parts; and of the constant answers."""
    rng = np.random.default_rng(0)
    for target, scores, labels in (
        (TWO, rng.random(50), rng.integers(0, 2, 50).astype(np.float32)),
        (THREE, rng.random((50, 3)), rng.integers(0, 3, 50).astype(np.float32)),
        (NUMBER, rng.normal(size=50), 2 + rng.normal(size=50)),
    ):
        sums = []
        for part in (slice(0, 20), slice(20, None)):
            told = json.loads(json.dumps(telling.tally_to_json(target.tally(scores[part], labels[part]))))
            sums.append(telling.read_tallies({"test": told}, target)["test"])
        both = sums[0] + sums[1]
        if target is NUMBER:
            assert both.quality == pytest.approx(metrics.r2_score(labels, scores))
            assert both.always(0) == pytest.approx(metrics.r2_score(labels, np.zeros(50)))
            continue
        assert both.quality == pytest.approx(metrics.accuracy_score(labels, target.decide(scores)))
        for place in range(len(target.classes)):
            assert both.always(place) == pytest.approx((labels == place).mean())


# A site's errors -----------------------------------------------------------------------------------------------------

SECRET = "Jane Doe"
FILES = {
    "no header": f"{SECRET},41,yes\nJohn,42,no\n",
    "a row too long": f"age,ok,sex\n1,yes,f\n{SECRET},2,no,f,more\n",
    "another encoding": f"age,ok,sex\n{SECRET},yes,f\n".encode() + b"\xff,no,m\n",
    "a name twice": f"{SECRET},{SECRET},ok\n1,2,yes\n",
    "no rows": f"age,ok,{SECRET}\n",
    "no target": f"age,sex,{SECRET}\n1,f,2\n",
    "no value of the target": f"age,ok,sex,w\n{SECRET},,f,1\n",
    "a weight that is none": f"age,ok,sex,w\n1,yes,f,{SECRET}\n2,no,m,1\n",
    "a target of many classes": "age,ok,sex,w\n" + "".join(f"1,{SECRET} {i},f,1\n" for i in range(30)),
    "many groups": "age,ok,sex,w\n" + "".join(f"1,yes,{SECRET} {i},1\n" for i in range(30)),
    "a long name": f"age,ok,sex,w,{SECRET * 40}\n1,yes,f,1,1\n2,no,m,1,1\n",
    "a table that is not there": None,
}


@pytest.mark.parametrize("what", FILES)
def test_a_site_s_errors_quote_nothing_of_it(what, tables, tmp_path, caplog):
    """Neither rows nor the file's name leave it, whatever is wrong; the site's own log has more."""
    question = {"constraints": CONSTRAINTS[:1], "weight": "w", "drop": ("id", "tall")}
    folder = tmp_path / f"{SECRET}s folder"
    folder.mkdir()
    given = []
    for site, path in zip(SITES, tables, strict=True):
        pd.read_csv(path).assign(w=1).to_csv(folder / f"{site}.csv", index=False)
        given.append(folder / f"{site}.csv")
    content = FILES[what]
    if content is None:
        given[1].unlink()
    else:
        given[1].write_bytes(content if isinstance(content, bytes) else content.encode())
    with caplog.at_level(logging.CRITICAL, logger="fedsgm.federation"):
        carried = transport(stated(**question), given, tmp_path)
        with pytest.raises(fs.SettingError, match=r"^site-2: ") as stopped:
            carry_out(stated(**question), carried, run)
    for words in (str(stopped.value).encode(), carried.said("up")):
        assert not [part for part in (b"Jane", b"folder", b"csv", str(tmp_path).encode()) if part in words]


@pytest.mark.parametrize("given", [7, None, ["a.csv"]])
def test_what_is_no_path(given):
    with pytest.raises(fs.SettingError, match=r"its data function gives a .*, but it must give its table's path"):
        stated().load(given)


# No row leaves its site ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def carried(tables, tmp_path_factory):
    """A whole run, with every frame of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        state_once(patch)
        fit = stated(constraints=("demographic_parity(sex) <= 0.1", "equalized_odds(sex) <= 0.5"))
        found = transport(fit, tables, tmp_path_factory.mktemp("sites"))
        found.result, found.agreed = carry_out(fit, found, run)
    return found


def test_before_the_run_a_site_sends_its_description_and_after_it_counts(carried):
    said = [(name, opened(data)[0]) for name, way, data in carried.frames if way == "up" and data[:2] == MAGIC]
    assert [words.keys() - {"to"} for _, words in said] == [{"told"}] * 3 + [set()] * 3 + [{"told"}] * 3
    for _, words in said[:3]:
        assert words["told"].keys() == {"rows", "left out", "target", "classes", "groups", "dropped", "columns"}
        assert words["told"]["target"] == ["classes", False, 0, 0, 0], "of classes no more than their counts"
        for name, kind, *numbers, categories in words["told"]["columns"]:
            assert len(numbers) == 5
            assert len(categories) <= {"sex": 2, "work": 3, "region": 1, "constant": 1}.get(name, 0), kind
    rows = {name: sum(words["told"]["rows"]) for name, words in said[:3]}
    for name, words in said[6:]:
        assert words["told"].keys() == {"train", "test"}
        assert sum(count for count, *_ in words["told"].values()) == rows[name]
        assert all(right <= count == sum(by_class) for count, right, by_class in words["told"].values())


def test_in_the_run_a_site_sends_as_much_as_any_other_whatever_its_rows(carried):
    """Sums of statistics, which are as many as the constraints need, and updates, which are as long as the model."""
    requests = [Request.decode(data) for _, way, data in carried.frames if way == "down" and data[:2] != MAGIC]
    replies = [(name, Reply.decode(data)) for name, way, data in carried.frames if way == "up" and data[:2] != MAGIC]
    assert {request.kind for request in requests} == {
        *(Kind.MEASURE, Kind.MEASURE | Kind.EVALUATE, Kind.UPDATE, Kind.EVALUATE, Kind.TEST)
    }
    assert {reply.kind for _, reply in replies} == {Kind.ANSWER}
    sizes = [[len(reply.content) for name, reply in replies if name == each] for each in ("site-1", "site-2", "site-3")]
    assert sizes[0] == sizes[1] == sizes[2]
    asked = [request.kind for request in requests]
    sums = [unpack(reply.content) for kind, (_, reply) in zip(asked, replies, strict=True) if kind != Kind.UPDATE]
    counts = [sum(np.size(leaf) for leaf in jax.tree.leaves(each)) for each in sums]
    each = 2 + 3 * 2 + 3 * 4  # the loss and its rows; rows, scores and decisions by group, and by group and class
    assert max(counts) == 6 * each, (
        "of the last, the average, the best and the least violated parameters, two constants"
    )


def test_no_value_of_a_row_is_in_what_is_sent(carried, frame, tables):
    """As text, as the bytes of a number, or as the standardised number of the training; either way."""
    sent = carried.said("up") + carried.said("down")
    texts = [*frame["id"], *frame["seen"].dropna(), *frame["age"].dropna().map(str), "astronaut", "1.98765"]
    assert len(set(texts)) > 700
    assert not [text for text in texts if text.encode() in sent]
    encoder = Agreed.from_json(carried.agreed).encoder
    for path in tables:
        rows = read_table(path)
        numbers = np.concatenate([rows["age"], encoder.encode(rows)[:, :2].ravel()])
        numbers = np.unique(numbers[np.isfinite(numbers) & (numbers != 0) & (numbers != 1)])
        for number in numbers:
            for kind in ("<f4", "<f8"):
                assert np.array(number, kind).tobytes() not in sent, number


def test_the_recording_sees_what_is_sent(carried):
    """What must be there is found by the same means: the mean of an age, the names of categories, the model."""
    sent = carried.said("up") + carried.said("down")
    age = next(column for column in carried.agreed["encoder"] if column["name"] == "age")
    assert json.dumps(age["mean"]).encode() in sent
    assert b"clerk" in sent
    assert np.asarray(carried.result.answer[0]["w"], "<f4").tobytes() in sent


def test_of_a_number_five_sums_are_sent_and_no_value(frame, tables, tmp_path, monkeypatch):
    """Before the run its weight, mean and squares by pandas, after it the rows and three sums; of enough rows alone."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    state_once(monkeypatch)
    fit = stated(target="age", constraints=("mean_gap(sex) <= 1",), least=20)
    found = transport(fit, tables, tmp_path)
    result, agreed = carry_out(fit, found, run)
    said = [opened(data)[0].get("told") for _, way, data in found.frames if way == "up" and data[:2] == MAGIC]
    for client, (site, told, review) in enumerate(zip(SITES, said[:3], said[6:], strict=True)):
        own = frame[(frame["site"] == site) & frame["age"].notna()].reset_index(drop=True)
        held = held_out([own["sex"].to_numpy(object)], 0.25, seed=2, client=client)
        age = own["age"][~held]
        expected = pytest.approx([len(age), age.mean(), age.var(ddof=0) * len(age)])
        assert (told["target"][:2], told["target"][2:]) == (["number", True], expected)
        assert told["classes"] == []
        assert review.keys() == ({"train", "test"} if held.sum() >= 20 else {"train"})
        assert [len(sums) for sums in review.values()] == [4] * len(review)
        label = (age - agreed["target"]["mean"]) / agreed["target"]["scale"]
        assert review["train"][:3] == pytest.approx([len(age), label.sum(), (label**2).sum()], rel=1e-4, abs=1e-4)
    sent = found.said("up") + found.said("down")
    ages = frame["age"].dropna()
    assert not [text for text in ages.map(str) if text.encode() in sent]
    labels = ((ages - agreed["target"]["mean"]) / agreed["target"]["scale"]).to_numpy()
    for number in (*ages, *labels):
        for kind in ("<f4", "<f8"):
            assert np.array(number, kind).tobytes() not in sent, number
    assert result.settings["model"]["compared"]["measure"] == "R2"
