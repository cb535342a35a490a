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
from fedsgm.tables import fit, sanity, telling
from fedsgm.tables.agreeing import Agreed, agree
from fedsgm.tables.describing import Description, Question, Site
from fedsgm.tables.groups import mixes, numbers
from fedsgm.tables.models import MLP
from fedsgm.tables.targets import Tally


@dataclasses.dataclass(frozen=True)
class TableFit:
    """A :class:`fedsgm.federation.Preparation`: a constrained model of all sites' tables.

    Args:
        about: what the sites are asked about their tables.
        hidden: the widths of the network's hidden layers.
        algorithm: of the model and its starting parameters, the algorithm.
        weigh: what counts equally in the loss, ``"rows"`` or ``"clients"``.
        written: how the sites' CSV files are written.
        rounds, evaluate_every, min_participants, timeout: as in :class:`Experiment`.
    """

    about: Question
    hidden: tuple[int, ...]
    algorithm: Callable[[MLP, Any], FedSGM]
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
        model = known.target.model(self.hidden)
        params = model.init(len(known.encoder.features), seed=self.about.seed)
        return Experiment(
            self.algorithm(model, params),
            self._problem(known),
            params,
            self.rounds,
            seed=self.about.seed,
            test="clients",
            evaluate_every=self.evaluate_every,
            min_participants=self.min_participants,
            timeout=self.timeout,
            beside=tuple(sanity.always(model, params, known.target).values()),
        )

    def examples(self, data: Site, client: int, agreed: Any) -> Parts:
        """Its rows by the common encoding, in two parts."""
        known, table = Agreed.from_json(agreed), data.table
        examples = {
            "x": known.encoder.encode(table),
            "y": known.target.labels(table[self.about.target]),
        }
        if self.about.weight is not None:
            examples["weight"] = table[self.about.weight].astype(np.float32)
        for name, columns in self.about.groups.items():
            examples[name] = numbers(mixes(*(as_text(table[part]) for part in columns)), known.mixes[name])
        held = self.about.held_out(table, client)
        train, test = ({name: array[rows] for name, array in examples.items()} for rows in (~held, held))
        return Parts(train, test if held.any() else None)

    def review(self, examples: Parts, params: Any, agreed: Any) -> dict[str, Any]:
        """How good the model is, in sums; of a number not of fewer rows than it tells a mean of."""
        known = Agreed.from_json(agreed)
        found = fit.tallies(self._model(known, params), {"train": examples.train, "test": examples.test})
        least = 1 if known.target.classes else self.about.least
        told = {part: each for part, each in found.items() if each.rows >= least and np.isfinite(each.left)}
        return {part: telling.tally_to_json(each) for part, each in told.items()}

    def conclude(self, agreed: Any, result: Result, reviews: Mapping[str, Any]) -> Result:
        """With how good the model is at all sites that tell it, beside constant answers, and what was noticed."""
        known = Agreed.from_json(agreed)
        sums: dict[str, Tally] = {}
        for told in reviews.values():
            for part, tally in telling.read_tallies(told, known.target).items():
                sums[part] = sums[part] + tally if part in sums else tally
        good = fit.how_good(known.target, sums)
        compared = self._compared(known, result, sums) if "train" in sums else None
        told_of = fit.with_model(result, good, known.target, compared, fit.NOTHING_SHOWN)
        federation = result.settings["federation"] | {"notes": agreed["notes"]}
        return dataclasses.replace(told_of, settings=told_of.settings | {"federation": federation})

    def _compared(self, known: Agreed, result: Result, sums: Mapping[str, Tally]) -> sanity.Comparison:
        """With constant answers, whose values the sites have measured at the end of the run."""
        problem = self._problem(known)
        values = {name: float(result.value("train", name, "answer")[0]) for name in problem.names}
        names = sanity.always(known.target.model(self.hidden), result.answer, known.target)
        beside = zip(names, result.settings["federation"]["beside"], strict=True)
        return sanity.Comparison(
            sanity.judged("the model", {part: tally.quality for part, tally in sums.items()}, values, problem),
            None,
            tuple(
                sanity.judged(name, {part: tally.always(label) for part, tally in sums.items()}, measured, problem)
                for label, (name, measured) in enumerate(beside)
            ),
            sanity.measure(known.target),
            sanity.in_the_way(result),
        )

    def keep(self, agreed: Any, result: Result, folder: Path) -> None:
        """``model.json``, for ``fedsgm predict``."""
        self._model(Agreed.from_json(agreed), result.answer).save(folder)

    def _problem(self, known: Agreed) -> Problem:
        stated = fit.Stated(known.target, known.groups, known.weighted)
        return fit.make_problem(known.target.model(self.hidden), self.about.wanted, stated, self.weigh)

    def _model(self, known: Agreed, params: Any) -> fit.TableModel:
        return fit.TableModel(known.encoder, known.target.model(self.hidden), params, known.target)
