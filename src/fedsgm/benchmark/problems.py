"""The problems of the benchmark. Most have clients that nobody dealt: states, precincts, charges, occupations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from fedsgm.benchmark import dealing, others
from fedsgm.benchmark.cases import Case, by_name
from fedsgm.benchmark.dealing import Features
from fedsgm.core.problem import Mean, Problem
from fedsgm.data.acs import acs_income
from fedsgm.data.adult import adult
from fedsgm.data.public import TABLES
from fedsgm.data.table import Table, as_text
from fedsgm.tables import fairness
from fedsgm.tables.models import MLP

LOGISTIC = MLP()
_HEALTH = 5
_RARE = {"fars": 0.03, "acs-income": 0.03}  # which have categories by the hundred
_ADULT = "Becker and Kohavi 1996, Adult, UCI data set 2 (CC BY 4.0)"
GAPS = {
    "DemographicParity": fairness.demographic_parity,
    "TruePositiveRateParity": fairness.equal_opportunity,
    "EqualizedOdds": fairness.equalized_odds,
}


def gap(kind: str, scores: bool = False) -> Callable[[float], Problem]:
    """The loss, subject to a bounded gap between two groups' rates, or mean scores; ``kind`` by fairlearn's name."""

    def problem(bound: float) -> Problem:
        between = GAPS[kind](LOGISTIC.score, by="group", groups=2, scores=scores, name="gap")
        return Problem(Mean(LOGISTIC.loss), [between <= bound], weigh="rows")

    return problem


def _negative(example: Any) -> Any:
    return example["y"] == 0


def of_class(bound: float) -> Problem:
    """Neyman-Pearson: the loss of the negatives, subject to that of the positives."""
    positives = fairness.class_loss(LOGISTIC.loss, label=1, name="positives' loss")
    return Problem(Mean(LOGISTIC.loss, where=_negative), [positives <= bound], weigh="rows")


def with_class(bound: float) -> Problem:
    """The loss of everybody, subject to that of the positives: for clients some of whom have one class alone."""
    positives = fairness.class_loss(LOGISTIC.loss, label=1, name="positives' loss")
    return Problem(Mean(LOGISTIC.loss), [positives <= bound], weigh="rows")


@functools.lru_cache(maxsize=2)
def _public(name: str, who: Callable[[Table], np.ndarray], group: str | None, drop: tuple[str, ...]) -> Features:
    public = TABLES[name]
    table = public.load()
    if name == "fars":  # people whose sex is unknown are of no group
        sex = table["SEX"].copy()
        sex[sex == "Unknown"] = None
        table = table | {"SEX": sex}
    if name == "health":  # one of so many, as runs over all of them take most of the time of all problems
        table = {column: values[::_HEALTH] for column, values in table.items()}
    told: dict[str, Any] = {"target": public.target, "positive": public.positive, "group": group, "drop": drop}
    return dealing.features(table, owner=who(table), rare=_RARE.get(name, 0.01), **told)


def _by(column: str) -> Callable[[Table], np.ndarray]:
    return lambda table: as_text(table[column])


def _hot(table: Table, *starts: str) -> np.ndarray:
    """The categories that one-hot columns of such names stand for, together."""
    texts = []
    for start in starts:
        names = [name for name in table if name.startswith(start)]
        which = np.argmax(np.stack([table[name] for name in names]), axis=0)
        texts.append(np.array(names, object)[which])
    return np.array(["/".join(each) for each in zip(*texts, strict=True)], object)


def _with_many(least: int, labels: np.ndarray) -> np.ndarray:
    """Labels, those that fewer rows have being one."""
    values, place, counts = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    return np.where(counts[place] >= least, values[place], "others").astype(object)


_state, _precinct, _crime_state = _by("CASE_STATE"), _by("policePrecinct"), _by("state")


def _household(table: Table) -> np.ndarray:
    return _with_many(100, _hot(table, "EDUCATION_", "MARRIAGE_"))


def _charge(table: Table) -> np.ndarray:
    return _with_many(50, _hot(table, "c-charge-desc_"))


def _age(table: Table) -> np.ndarray:
    return _hot(table, "age_")


@functools.lru_cache(maxsize=2)
def _adult(by_occupation: bool) -> Features:
    table = adult()[0]
    if by_occupation:
        owner = np.array(["unknown" if each is None else each for each in table["occupation"]], object)
        owner = _with_many(200, owner)
    else:
        label = (table["income"] == ">50K").astype(int)
        rng, owner = np.random.default_rng(0), np.empty(len(label), object)
        for value in (0, 1):  # each label is shared out unevenly
            rows = rng.permutation(np.flatnonzero(label == value))
            ends = (np.cumsum(rng.dirichlet(np.full(20, 0.5)))[:-1] * len(rows)).astype(int)
            for client, mine in enumerate(np.split(rows, ends)):
                owner[mine] = f"{client:02d}"
    drop = ("fnlwgt", "education", *(["occupation"] if by_occupation else []))
    return dealing.features(table, target="income", positive=">50K", group="sex", owner=owner, drop=drop)


@functools.lru_cache(maxsize=1)
def _acs() -> Features:
    table = acs_income()
    owner = as_text(table["ST"])
    return dealing.features(
        table, target="income", positive=">50K", group="SEX", owner=owner, drop=("ST",), rare=_RARE["acs-income"]
    )


def _case(
    name: str,
    says: str,
    load: Callable[[], Features],
    problem: Callable[[float], Any],
    init: Callable[[int, int], Any] = LOGISTIC.init,
    score: Callable[[Any, Any], Any] = LOGISTIC.score,
    **more: Any,
) -> Case:
    return Case(name, says, lambda number: dealing.split(load(), number, init), problem, score=score, **more)


def _source(name: str) -> str:
    return f"{TABLES[name].source}; {TABLES[name].member} of {TABLES[name].package}"


CASES = by_name(
    [
        _case(
            "communities",
            "violent crime in a community, high or not; the loss of the high ones bounded",
            functools.partial(_public, "communities", _crime_state, "share black", ("state",)),
            with_class,
            bounds=(0.25, 0.32, 0.4),
            participants=23,
            natural="46 states",
            convex=True,
            left_out="ViolentCrimesPerPop, of which the target is made; the community's name; the state",
            source=_source("communities"),
        ),
        _case(
            "compas",
            "arrested again within two years; the larger gap of true and false positive rates by race bounded",
            functools.partial(_public, "compas", _charge, "race", ("score-text_*", "c-charge-desc_*")),
            gap("EqualizedOdds"),
            bounds=(0.03, 0.08, 0.15),
            participants=10,
            natural="charges",
            rate="EqualizedOdds",
            left_out="decile-score and score-text, which are predictions of the same by others",
            source=_source("compas"),
        ),
        _case(
            "credit",
            "default of a credit card; the loss of those who default bounded, that of the others least",
            functools.partial(_public, "credit", _household, "SEX", ("EDUCATION_*", "MARRIAGE_*")),
            of_class,
            bounds=(0.55, 0.7, 0.9),
            participants=6,
            natural="education by marital status",
            convex=True,
            left_out="the row's number",
            source=_source("credit"),
        ),
        _case(
            "stops",
            "a person stopped by police is searched; the gap of the mean predicted rate by race bounded",
            functools.partial(_public, "stops", _precinct, "race", ("policePrecinct", "race", "lat", "long")),
            gap("DemographicParity", scores=True),
            bounds=(0.01, 0.03, 0.05),
            participants=3,
            natural="5 precincts",
            left_out="what the stop came to (citation, search of the vehicle), race as told afterwards, coordinates",
            source=_source("stops"),
        ),
        _case(
            "adult-occupation",
            "income above 50,000 dollars; the gap of predicted rates by sex bounded",
            functools.partial(_adult, True),
            gap("DemographicParity"),
            bounds=(0.02, 0.05, 0.1),
            participants=7,
            natural="occupations",
            rate="DemographicParity",
            left_out="fnlwgt, a survey weight; education, which education-num tells; the occupation, who is the client",
            source=_ADULT,
        ),
        _case(
            "fars",
            "death of a person in a fatal crash; the gap of the miss rate of deaths by sex bounded",
            functools.partial(_public, "fars", _state, "SEX", ("CASE_STATE",)),
            gap("TruePositiveRateParity"),
            bounds=(0.01, 0.025, 0.05),
            participants=17,
            rounds=60,
            natural="51 states",
            rate="TruePositiveRateParity",
            left_out="race, Hispanic origin and hospital, which are told of the dead alone or of the living alone",
            source=_source("fars"),
        ),
        _case(
            "health",
            "a comorbidity of an insured person; the gap of the miss rate by sex bounded",
            functools.partial(_public, "health", _age, "sex", ("age_*",)),
            gap("TruePositiveRateParity"),
            bounds=(0.005, 0.02, 0.05),
            participants=5,
            natural="10 bands of age",
            rate="TruePositiveRateParity",
            left_out="all of the Charlson index, of which the target is made; the person's number; four of five rows",
            source=_source("health"),
        ),
        _case(
            "adult-dirichlet",
            "income above 50,000 dollars; the larger gap of true and false positive rates by sex bounded",
            functools.partial(_adult, False),
            gap("EqualizedOdds"),
            bounds=(0.02, 0.04, 0.06),
            participants=10,
            rate="EqualizedOdds",
            left_out="fnlwgt, a survey weight; education, which education-num tells",
            source=_ADULT,
        ),
        _case(
            "neyman-pearson",
            "malignant or not; the loss of the malignant bounded, that of the others least",
            others.cancer,
            of_class,
            bounds=(0.03, 0.05, 0.1),
            participants=10,
            local_steps=5,
            batch_size=None,
            left_out="nothing; a plane parts the classes of most splits, so that there is no optimum to compare with",
            source="Wolberg et al. 1995, breast cancer Wisconsin, UCI data set 17 (CC BY 4.0), as in scikit-learn",
        ),
        _case(
            "digits",
            "which digit; the loss of each of the ten bounded, by a convolutional network",
            others.digits,
            others.every_class,
            others.cnn_init,
            others.cnn_score,
            bounds=(0.1, 0.15, 0.25),
            participants=10,
            batch_size=32,
            source="Alpaydin and Kaynak 1998, handwritten digits, UCI data set 80 (CC BY 4.0), as in scikit-learn",
        ),
        _case(
            "acs-income",
            "income above 50,000 dollars; the gap of predicted rates by sex bounded",
            _acs,
            gap("DemographicParity"),
            bounds=(0.02, 0.05, 0.1),
            participants=17,
            rounds=60,
            natural="50 states and Puerto Rico",
            rate="DemographicParity",
            left_out="the state, who is the client; 19 of 20 rows",
            source="US Census Bureau 2018, American Community Survey, by folktables (US government work)",
            optional=True,
        ),
        Case(
            "cartpole",
            "a pole balanced for as long as possible; the cost of forbidden places bounded",
            others.cartpole,
            others.budget,
            bounds=(30.0,),
            participants=7,
            rounds=60,
            local_steps=1,
            batch_size=None,
            evaluate_every=10,
            steps=(0.5, 1.0),
            source="simulated, as Gymnasium has it",
        ),
    ],
    "cases",
)
