"""Fair classification: predict income on the Adult data with a bounded gap between women and men.

The paper's second experiment: a neural network, mini-batches, clients with unequal mixes of labels, and demographic
parity as the constraint, |mean score of men - mean score of women| <= bound.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.core.problem import Mean, Problem
from fedsgm.data import Clients, dirichlet, split
from fedsgm.data.adult import adult
from fedsgm.data.table import Encoder, Table
from fedsgm.tables.fairness import demographic_parity
from fedsgm.tables.models import MLP

MODEL = MLP(hidden=(64,))
MIXES = ("label", "group", "label-group")


def fair_classification(bound: float = 0.05, *, model: MLP = MODEL, gradient: str = "linearized") -> Problem:
    """Minimise the cross-entropy subject to a gap of at most ``bound`` between the mean scores of the two sexes."""
    gap = demographic_parity(model.score, by="sex", groups=2, scores=True, gradient=gradient)
    return Problem(objective=Mean(model.loss), constraints=[gap <= bound])


def load(
    *,
    clients: int = 10,
    alpha: float = 2.0,
    mix: str = "label",
    model: MLP = MODEL,
    split_seed: int = 0,
    path: str | Path | None = None,
) -> tuple[Clients, dict[str, Any], Any]:
    """The experiment's clients, held-out examples ``{"x", "y", "sex"}`` and starting parameters.

    ``mix`` is what clients have unequal shares of, by Dirichlet(alpha): labels, groups, or labels within groups.
    ``path`` is a folder with the Adult files (see :func:`fedsgm.data.adult.adult`).
    """
    if mix not in MIXES:
        raise SettingError(f"load: mix={mix!r}, but it must be one of {', '.join(MIXES)}")
    tables = adult(path)
    # fnlwgt is a survey weight, and what is missing is a category of its own.
    encoder = Encoder.of(tables[0], [name for name in tables[0] if name not in ("income", "fnlwgt")])
    train, test = (_examples(table, encoder) for table in tables)
    shares = {"label": train["y"], "group": train["sex"], "label-group": 2 * train["sex"] + train["y"]}[mix]
    dealt = split(train | {"share": shares}, clients=clients, scheme=dirichlet(alpha, by="share"), seed=split_seed)
    examples = {name: dealt.examples[name] for name in train}
    return Clients(examples, dealt.counts), test, model.init(len(encoder.features), seed=split_seed)


def _examples(table: Table, encoder: Encoder) -> dict[str, Any]:
    return {
        "x": encoder.encode(table),
        "y": np.float32(table["income"] == ">50K"),
        "sex": np.int32(table["sex"] == "Male"),
    }
