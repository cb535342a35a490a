"""``fedsgm fit`` over sites, each with its own table: the experiment that they prepare together.

Only counts and sums of a table leave its site (``describing.py``); the server makes one encoding of them
(``agreeing.py``), by which each site encodes its own rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.problem import Problem
from fedsgm.data.reading import Written
from fedsgm.data.table import as_text
from fedsgm.federation import Experiment, Parts
from fedsgm.results.result import Result
from fedsgm.tables import fit, telling
from fedsgm.tables.agreeing import Agreed, agree
from fedsgm.tables.describing import Description, Question, Site
from fedsgm.tables.groups import mixes, numbers
from fedsgm.tables.models import MLP
from fedsgm.tables.targets import Target


@dataclasses.dataclass(frozen=True)
class TableFit:
    """A :class:`fedsgm.federation.Preparation`: a constrained model of all sites' tables.

    Args:
        about: what the sites are asked about their tables.
        model: the network.
        algorithm: for the model's starting parameters, the algorithm.
        weigh: what counts equally in the loss, ``"rows"`` or ``"clients"``.
        written: how the sites' CSV files are written.
        rounds, evaluate_every, min_participants, timeout: as in :class:`Experiment`.
    """

    about: Question
    model: MLP
    algorithm: Callable[[Any], FedSGM]
    weigh: str = "rows"
    written: Written = dataclasses.field(default_factory=Written)
    rounds: int = 500
    evaluate_every: int = 10
    min_participants: int = 1
    timeout: float = 60.0

    @property
    def question(self) -> dict[str, Any]:
        return dataclasses.asdict(self.about)

    def load(self, given: str | Path) -> Site:
        """The site's table, of its path."""
        if not isinstance(given, (str, Path)):
            raise SettingError(f"its data function gives a {type(given).__name__}, but it must give its table's path")
        return Site.read(given, self.about, self.written)

    def describe(self, data: Site, client: int) -> dict[str, Any]:
        return telling.to_json(Description.of(data, self.about, client))

    def agree(self, descriptions: Mapping[str, Any]) -> dict[str, Any]:
        read = {}
        for name, told in descriptions.items():
            try:
                read[name] = telling.read(told, self.about)
            except SettingError as error:
                raise SettingError(f"{name}: {error}") from None
        agreed = agree(self.about, read)
        self._problem(agreed)  # refuses what cannot be compared
        return agreed.to_json()

    def state(self, agreed: Any) -> Experiment:
        known = Agreed.from_json(agreed)
        params = self.model.init(len(known.encoder.features), seed=self.about.seed)
        return Experiment(
            self.algorithm(params),
            self._problem(known),
            params,
            self.rounds,
            seed=self.about.seed,
            test="clients",
            evaluate_every=self.evaluate_every,
            min_participants=self.min_participants,
            timeout=self.timeout,
        )

    def examples(self, data: Site, client: int, agreed: Any) -> Parts:
        """Its rows by the common encoding, in two parts."""
        known, table = Agreed.from_json(agreed), data.table
        examples = {
            "x": known.encoder.encode(table),
            "y": self._target(known).labels(table[self.about.target]),
        }
        if self.about.weight is not None:
            examples["weight"] = table[self.about.weight].astype(np.float32)
        for name, columns in self.about.groups.items():
            examples[name] = numbers(mixes(*(as_text(table[part]) for part in columns)), known.mixes[name])
        held = self.about.held_out(table, client)
        train, test = ({name: array[rows] for name, array in examples.items()} for rows in (~held, held))
        return Parts(train, test if held.any() else None)

    def review(self, examples: Parts, params: Any, agreed: Any) -> dict[str, Any]:
        """How many rows the model decides rightly, and of how many."""
        trained = self._model(Agreed.from_json(agreed), params)
        return dict(fit.right_rows(trained, {"train": examples.train, "test": examples.test}))

    def conclude(self, agreed: Any, reviews: Mapping[str, Any]) -> dict[str, Any]:
        """The same of all sites that tell it, and what was noticed of their tables."""
        right: dict[str, list[int]] = {}
        for told in reviews.values():
            for part, (count, rows) in _right(told).items():
                sums = right.setdefault(part, [0, 0])
                sums[0] += count
                sums[1] += rows
        return {"right": right, "notes": agreed["notes"]}

    def keep(self, agreed: Any, result: Result, folder: Path) -> None:
        """``model.json``, for ``fedsgm predict``."""
        self._model(Agreed.from_json(agreed), result.answer).save(folder)

    def _problem(self, known: Agreed) -> Problem:
        stated = fit.Stated(self._target(known), known.groups, known.weighted)
        return fit.make_problem(self.model, self.about.wanted, stated, self.weigh)

    def _model(self, known: Agreed, params: Any) -> fit.TableModel:
        return fit.TableModel(known.encoder, self.model, params, self._target(known))

    def _target(self, known: Agreed) -> Target:
        return Target(self.about.target, known.classes)


def _right(told: Any) -> dict[str, tuple[int, int]]:
    """A site's review, where it can be one."""
    found = {}
    for part in ("train", "test"):
        counts = told.get(part) if isinstance(told, dict) else None
        if isinstance(counts, list) and len(counts) == 2 and all(type(count) is int for count in counts):
            count, rows = counts
            if 0 <= count <= rows and 0 < rows <= telling.MOST_ROWS:
                found[part] = (count, rows)
    return found
