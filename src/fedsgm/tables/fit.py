"""A constrained model of one's own table: what ``fedsgm fit`` trains and ``fedsgm predict`` applies."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.files import MOST_TEXT, place_of, read_file, write_atomically
from fedsgm.base.progress import say
from fedsgm.core.problem import Mean, Problem
from fedsgm.data.table import Encoder, Table
from fedsgm.results import reading
from fedsgm.results.result import Result
from fedsgm.results.verdict import found, number
from fedsgm.tables import confidence
from fedsgm.tables.grammar import Wanted, build
from fedsgm.tables.models import MLP
from fedsgm.tables.sanity import Comparison
from fedsgm.tables.targets import Tally, Target

if TYPE_CHECKING:
    from fedsgm.tables.dealing import Prepared

FILE, _PARAMS, _VERSION = "model.json", "params.safetensors", 3
_SURE = 0.95
PARTS = {"train": "training", "test": "held-out"}


class Stated(NamedTuple):
    """What a problem is made of beside the constraints: :class:`Prepared` has it, too."""

    target: Target
    groups: Mapping[str, Sequence[str]]
    weighted: bool


def make_problem(model: MLP, wanted: Sequence[Wanted], known: Stated | Prepared, weigh: str = "clients") -> Problem:
    """Minimise the model's loss subject to the constraints that were said."""
    constraints = [build(one, model, groups=known.groups, target=known.target) for one in wanted]
    weight = _weight if known.weighted else None
    return Problem(objective=Mean(model.loss), constraints=constraints, weigh=weigh, weight=weight)


def _weight(example: Any) -> Any:
    return example["weight"]


@dataclasses.dataclass(frozen=True, eq=False)
class TableModel:
    """A trained model of a table, with all it needs to predict for new rows."""

    encoder: Encoder
    model: MLP
    params: Any
    target: Target

    def scores(self, table: Table) -> np.ndarray:
        """What the model's score is, row by row; ``target`` knows what is decided of it."""
        return self.scores_of(self.encoder.encode(table))

    def scores_of(self, x: np.ndarray) -> np.ndarray:
        return self.model.scores(self.params, x)

    def save(self, folder: Path) -> None:
        """Write ``model.json`` beside a saved run, whose answer the model has."""
        write_atomically(folder / FILE, self.file((folder / _PARAMS).read_bytes()))

    def file(self, params: bytes) -> bytes:
        """What ``model.json`` has, beside a run whose file of parameters is this one."""
        document = {
            "version": _VERSION,
            "target": self.target.to_json(),
            "hidden": self.model.hidden,
            "columns": self.encoder.to_json(),
            "digest": hashlib.sha256(params).hexdigest(),
        }
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def load(cls, folder: str | Path) -> TableModel:
        """Read the model that ``fedsgm fit`` left in a run's folder."""
        folder = Path(folder)
        result = Result.load(folder)
        last = read_file(folder / reading.FILE)
        try:
            data = read_file(place_of(folder / FILE, last), MOST_TEXT)
        except FileNotFoundError:
            raise SettingError(f"{folder} has no {FILE}: give a folder that fedsgm fit wrote") from None
        with reading.believed(folder / FILE):
            document = json.loads(data)
            if document["version"] != _VERSION:
                raise SettingError(f"{folder / FILE} is not of a version that this fedsgm reads ({_VERSION})")
            if document["digest"] != json.loads(last)["files"][_PARAMS]:
                raise SettingError(f"{folder / FILE} belongs to another run than the one in {folder}; fit again")
            target = Target.from_json(document["target"])
            model = target.model(tuple(document["hidden"]))
            encoder = Encoder.from_json(document["columns"])
            _check_params(model, result.answer, len(encoder.features))
            return cls(encoder, model, result.answer, target)


def _check_params(model: MLP, params: Any, features: int) -> None:
    """They are those of such a model with so many features, or a ValueError."""
    sizes, logits = [features, *model.hidden], () if model.classes in (None, 2) else (model.classes,)
    shapes = [((a, b), (b,)) for a, b in itertools.pairwise(sizes)] + [((sizes[-1], *logits), logits)]
    found = [tuple((layer[name].dtype.name, layer[name].shape) for name in ("w", "b")) for layer in params]
    if found != [tuple(("float32", shape) for shape in pair) for pair in shapes]:
        raise ValueError("the parameters of the run are not those of this model")


Good = Mapping[str, str]
"""Of each part, ``train`` and ``test``, how good the model is there, in words."""


def tallies(trained: TableModel, parts: Mapping[str, Any]) -> dict[str, Tally]:
    """How good the model is on the examples of each part that there are."""
    return {
        part: trained.target.tally(trained.scores_of(examples["x"]), examples["y"])
        for part, examples in parts.items()
        if examples is not None
    }


def how_good(target: Target, tallies: Mapping[str, Tally]) -> Good:
    return {part: target.told(tally, PARTS[part]) for part, tally in tallies.items()}


@dataclasses.dataclass(frozen=True)
class Shown:
    """What held-out rows show of the constraints on new data: limits that hold with this confidence.

    ``asked`` is whether the confidence was asked for, and ``past`` names the constraints that are not shown to be kept.
    """

    confidence: float
    limits: dict[str, tuple[float, float]]
    past: tuple[str, ...]
    asked: bool

    @property
    def kept(self) -> bool:
        return not self.past

    def lines(self) -> list[str]:
        """First, in capitals, what was asked for."""
        sure = f"{self.confidence:g} confidence, by the held-out rows"
        each = [f"{name} {number(max(low, 0.0))} .. {number(high)}" for name, (low, high) in self.limits.items()]
        line = f"  on new data: {', '.join(each)} ({sure})"
        if not self.asked:
            return [line] if each else []
        if self.kept:
            return [f"KEPT ON NEW DATA: every bound is kept there, too ({sure}).", line]
        instead = "more rows, or a looser bound, would show it"
        return [f"NOT SHOWN ON NEW DATA: {', '.join(self.past)} may be past its bound there ({sure}); {instead}.", line]


NOTHING_SHOWN = Shown(_SURE, {}, (), False)


def shown_on_new_data(problem: Problem, params: Any, held_out: Any, asked: float | None) -> Shown:
    """By the held-out rows, if there are any; with 0.95 confidence unless another is asked for."""
    sure = _SURE if asked is None else asked
    if held_out is None:
        return NOTHING_SHOWN
    found = confidence.limits(problem, params, held_out, sure, one_sided=asked is not None)
    kept = confidence.kept(problem, found)
    untold = [name for name in problem.names if name not in found]  # of each client, which held-out rows are not
    return Shown(sure, found, (*(name for name in kept if not kept[name]), *untold), asked is not None)


def with_model(result: Result, good: Good, target: Target, compared: Comparison | None, shown: Shown) -> Result:
    """The run with what :func:`told` tells of its model, which is saved with it."""
    model: dict[str, Any] = {"good": good, "target": target.to_json(), "shown": dataclasses.asdict(shown)}
    model["compared"] = None if compared is None else compared.to_json()
    return dataclasses.replace(result, settings=result.settings | {"model": model})


def told(result: Result) -> str:
    """What the model of a fit is worth, beside doing nothing; nothing of a run that is no fit."""
    model = result.settings.get("model")
    if model is None:
        return ""
    compared = model["compared"] and Comparison.from_json(model["compared"])
    *warning, unconstrained, constant = compared.lines() if compared else ("", "")
    *first, limits = Shown(**model["shown"]).lines() or [""]
    line = f"Model: {describe(result, model['good'], Target.from_json(model['target']))}"
    return "\n".join(text for text in (*warning, *first, line, unconstrained, constant, limits) if text)


def worse_than_constant(result: Result) -> bool:
    """Whether a constant answer would be better than the model of a fit, as far as that is known."""
    compared = result.settings.get("model", {}).get("compared")
    return compared is not None and Comparison.from_json(compared).worse


def describe(result: Result, good: Good, target: Target) -> str:
    """Whether the answer of a fit is within the bounds, and how good it is."""
    told = f"the answer ({found(result)})" if result.answer_round.all() else "UNDEFINED, as the run diverged"
    if result.bounds and result.answer_round.all():
        within = "within every bound" if result.feasible.all() else "OVER A BOUND"
        told = f"{within} on the training data; {told}"
    if "train" in good:  # where any site of a federation told it
        told += f"; {good['train']}{' right' if target.classes else ''}"
    if "test" in good:
        told += f", {good['test']}"
        (excess,) = result.excess("test", "answer")
        if result.bounds and not excess <= 0:
            told += f", where it is {f'OVER A BOUND by {excess:.2g}' if excess > 0 else 'undefined for a constraint'}"
    return f"{told} (positive is {target.classes[1]!r})" if target.kind == "binary" else told


def write_predictions(trained: TableModel, table: Table, path: Path | None) -> None:
    """What is predicted for each row, as CSV or Parquet; None is stdout.

    Of classes also the probabilities, of two that of the positive one.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    target, scores = trained.target, trained.scores(table)
    decided = target.decide(scores)
    columns = {target.name: np.array(target.classes, object)[decided] if target.classes else decided}
    if target.classes:
        each = scores.T if scores.ndim == 2 else [scores]
        columns |= {f"probability of {name}": p for name, p in zip(target.classes[-len(each) :], each, strict=True)}
    answer = pa.table(columns)
    sink = pa.BufferOutputStream()
    if path is not None and path.suffix == ".parquet":
        pyarrow.parquet.write_table(answer, sink)
    elif path is None or path.suffix == ".csv":
        pyarrow.csv.write_csv(answer, sink)
    else:
        raise SettingError(f"--out {path}: its name must end in .csv or .parquet")
    data = sink.getvalue().to_pybytes()
    if path is None:
        say(data.decode(), end="", exact=True)
    else:
        write_atomically(path, data)
