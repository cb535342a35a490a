"""A constrained model of one's own table: what ``fedsgm fit`` trains and ``fedsgm predict`` applies."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.base.progress import say
from fedsgm.core.problem import Mean, Problem
from fedsgm.data.table import Encoder, Table
from fedsgm.results.result import Result
from fedsgm.results.verdict import found
from fedsgm.tables.dealing import Prepared
from fedsgm.tables.grammar import Wanted, build
from fedsgm.tables.models import MLP

_FILE, _PARAMS, _VERSION = "model.json", "params.safetensors", 2


def make_problem(
    model: MLP, wanted: Sequence[Wanted], prepared: Prepared, target: str, weigh: str = "clients"
) -> Problem:
    """Minimise the cross-entropy subject to the constraints that were said."""
    constraints = [build(one, model, groups=prepared.groups, target=target, classes=prepared.classes) for one in wanted]
    weight = _weight if prepared.weighted else None
    return Problem(objective=Mean(model.loss), constraints=constraints, weigh=weigh, weight=weight)


def _weight(example: Any) -> Any:
    return example["weight"]


@dataclasses.dataclass(frozen=True, eq=False)
class TableModel:
    """A trained model of a table, with all it needs to predict for new rows."""

    encoder: Encoder
    model: MLP
    params: Any
    target: str
    classes: tuple[str, str]

    def scores(self, table: Table) -> np.ndarray:
        """The predicted probability of the positive class, row by row."""
        return self.scores_of(self.encoder.encode(table))

    def scores_of(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(jax.vmap(self.model.score, (None, 0))(self.params, {"x": x}))

    def save(self, folder: Path) -> None:
        """Write ``model.json`` beside a saved run, whose answer the model has."""
        document = {
            "version": _VERSION,
            "target": self.target,
            "classes": self.classes,
            "hidden": self.model.hidden,
            "columns": self.encoder.to_json(),
            "digest": hashlib.sha256((folder / _PARAMS).read_bytes()).hexdigest(),
        }
        write_atomically(folder / _FILE, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())

    @classmethod
    def load(cls, folder: str | Path) -> TableModel:
        """Read the model that ``fedsgm fit`` left in a run's folder."""
        folder = Path(folder)
        result = Result.load(folder)
        try:
            document = json.loads((folder / _FILE).read_bytes())
            if document["version"] != _VERSION:
                raise SettingError(f"{folder / _FILE} is not of a version that this fedsgm reads ({_VERSION})")
            if document["digest"] != hashlib.sha256((folder / _PARAMS).read_bytes()).hexdigest():
                raise SettingError(f"{folder / _FILE} belongs to another run than the one in {folder}; fit again")
            negative, positive = document["classes"]
            if not all(isinstance(text, str) for text in (document["target"], negative, positive)):
                raise TypeError("a name that is no text")
            return cls(
                Encoder.from_json(document["columns"]),
                MLP(tuple(document["hidden"])),
                result.answer,
                document["target"],
                (negative, positive),
            )
        except FileNotFoundError:
            raise SettingError(f"{folder} has no {_FILE}: give a folder that fedsgm fit wrote") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, SettingError):
                raise
            raise SettingError(f"{folder / _FILE} is damaged ({type(error).__name__}: {error}); fit again") from None


def describe(trained: TableModel, result: Result, prepared: Prepared) -> str:
    """What the model is, whether it is within the bounds, and how often it is right."""
    told = f"the answer ({found(result)})" if result.answer_round.all() else "UNDEFINED, as the run diverged"
    if result.bounds and result.answer_round.all():
        within = "within every bound" if result.feasible.all() else "OVER A BOUND"
        told = f"{within} on the training data; {told}"
    rows = prepared.clients.counts.sum()
    train = np.concatenate([prepared.clients[j]["x"] for j in range(len(prepared.clients))])
    truth = np.concatenate([prepared.clients[j]["y"] for j in range(len(prepared.clients))])
    told += f"; {_accuracy(trained, train, truth):.1%} of {rows} training rows right"
    if prepared.test is not None:
        share = _accuracy(trained, prepared.test["x"], prepared.test["y"])
        told += f", {share:.1%} of {len(prepared.test['y'])} held-out rows"
        (excess,) = result.excess("test", "answer")
        if result.bounds and not excess <= 0:
            told += f", where it is {f'OVER A BOUND by {excess:.2g}' if excess > 0 else 'undefined for a constraint'}"
    return f"{told} (positive is {trained.classes[1]!r})"


def _accuracy(trained: TableModel, x: np.ndarray, y: np.ndarray) -> float:
    return float(((trained.scores_of(x) > 0.5) == (y == 1)).mean())


def write_predictions(trained: TableModel, table: Table, path: Path | None) -> None:
    """The predicted class and the positive class's probability for each row, as CSV or Parquet; None is stdout."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    scores = trained.scores(table)
    decided = np.array(trained.classes, object)[np.int32(scores > 0.5)]
    answer = pa.table({trained.target: decided, f"probability of {trained.classes[1]}": scores})
    sink = pa.BufferOutputStream()
    if path is not None and path.suffix == ".parquet":
        pyarrow.parquet.write_table(answer, sink)
    elif path is None or path.suffix == ".csv":
        pyarrow.csv.write_csv(answer, sink)
    else:
        raise SettingError(f"--out {path}: its name must end in .csv or .parquet")
    data = sink.getvalue().to_pybytes()
    if path is None:
        say(data.decode(), end="")
    else:
        write_atomically(path, data)
