"""What a run gives: its history, the parameters it found, and an honest verdict on them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base import trees
from fedsgm.base.describe import describe
from fedsgm.base.files import write_together
from fedsgm.results import reading
from fedsgm.results.reading import KINDS

__all__ = ["KINDS", "RECENT", "Result", "excess", "worst_excess"]

RECENT = 100  # rounds over which the end of a run is judged


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """A finished run, as :func:`fedsgm.simulate` and :func:`fedsgm.federate` give it; ``print(result.verdict())``
    says first whether its answer is within every bound, and ``Result.load(folder)`` reads one that was saved.

    >>> import fedsgm as fs
    >>> clients = fs.split({"a": np.arange(8, dtype=np.float32)}, clients=4)
    >>> problem = fs.Problem(
    ...     lambda w, example: (w - example["a"]) ** 2, [fs.Mean(lambda w, example: w, name="size") <= 2.0]
    ... )
    >>> result = fs.simulate(fs.FedSGM(0.1), problem, clients, np.float32(0), rounds=50, progress=False)
    >>> print(result.verdict().partition(" is within")[0])
    FEASIBLE: the answer (round 49)
    >>> bool(result.value("train", "size", "answer") <= 2.0), result.history["size"].shape
    (True, (1, 50))

    Attributes:
        history: arrays of shape [seeds, rounds, ...]. Row t has the participants' ``estimate`` and ``violation``
            at the round's start, on which it decided, and the true ``objective`` and constraints, by name, of
            the model that the round produced.
        answer: the parameters to take, with a leading axis of seeds where several were run: of the rounds whose true
            values were measured, the one within every bound that has the lowest objective; where none was within, the
            least violated one. NaN only where no round's values were finite. Of a private run it is the ``average``.
        answer_round: the round, counted from 1, that produced each seed's answer; 0 where there is none. Of a private
            run the last one.
        last, average, best_feasible: other parameters, of the same form. ``average`` is the theorems' (uniform over
            the feasible rounds for Hard, weights 1 - s for Soft); it and ``best_feasible`` are NaN where no round was
            feasible. Of a private run the model after round t counts by t squared.
        values: ``values["train"]["objective"]`` and so on, arrays of shape [4, seeds] in the order of ``KINDS``;
            :meth:`value` has them by name.
        ranges: the values that each constraint allows, from the least to the largest, infinite where there is no bound.
        settings: everything the run was made with.
        module: the PyTorch module of a run of :class:`fedsgm.torch.Problem`, which is not saved; None of another run.
    """

    history: dict[str, np.ndarray]
    last: Any
    average: Any
    best_feasible: Any
    answer: Any
    answer_round: np.ndarray
    values: dict[str, dict[str, np.ndarray]]
    ranges: dict[str, tuple[float, float]]
    settings: dict[str, Any]
    module: Any = None

    @property
    def bounds(self) -> dict[str, float]:
        """Each constraint's bound; of one between two the upper."""
        return {name: high if math.isfinite(high) else low for name, (low, high) in self.ranges.items()}

    @property
    def feasible(self) -> np.ndarray:
        """Whether each seed's answer is, on training data, within every bound."""
        return self.excess("train", "answer") <= 0

    @property
    def last_feasible(self) -> np.ndarray:
        """Whether each seed's last parameters are."""
        return self.excess("train", "last") <= 0

    def value(self, part: str, name: str, kind: str) -> np.ndarray:
        """Each seed's value, such as ``result.value("test", "objective", "answer")``."""
        return self.values[part][name][KINDS.index(kind)]

    @property
    def feasible_rounds(self) -> np.ndarray:
        """Of each seed's last 100 rounds, those that were evaluated: the share that is within every bound."""
        measured = self.evaluated()[-RECENT:].sum()
        return (self.excess_history()[:, -RECENT:] <= 0).sum(axis=1) / measured

    @property
    def multiplier(self) -> np.ndarray:
        """The multiplier, estimated: sum(s) / sum(1 - s) of a switching run, or the last that the rule carried."""
        if "multiplier" in self.history:
            return self.history["multiplier"][:, -1].astype(np.float64)
        weight = self.history["weight"].astype(np.float64)
        rest = (1 - weight).sum(axis=1)
        return np.divide(weight.sum(axis=1), rest, out=np.full(len(weight), np.inf), where=rest > 0)

    def __repr__(self) -> str:
        from fedsgm.results.showing import in_a_line

        return in_a_line(self)

    def _repr_html_(self) -> str:
        from fedsgm.results.showing import as_html

        return as_html(self)

    def to_frame(self) -> Any:
        """The history as a pandas ``DataFrame``: a row for each seed and round, counted from 1, a column for each name.

        What has several numbers in a round, such as who took part, is a list there.
        """
        from fedsgm.results.showing import frame

        return frame(self)

    def verdict(self) -> str:
        """Feasible or not, first; then by how much, the objective, the rounds and the bytes."""
        from fedsgm.results.verdict import verdict

        return verdict(self)

    def certified(self, problem: Any, clients: Any, params: Any, **options: Any) -> Result:
        """The run with a certificate of its last parameters, which the verdict then tells; the problem must be convex.

        ``problem``, ``clients`` and ``params`` are those of :func:`simulate`, and ``options`` those of
        :func:`fedsgm.theory.certificates.certify`. Of several seeds it is the feasible one with the least objective.
        """
        from fedsgm.base.layout import Layout
        from fedsgm.theory.certificates import certify

        layout = Layout.of(params)
        within = self.last_feasible
        objective = self.value("train", "objective", "last")
        seed = int(np.argmin(np.where(within | ~within.any(), objective, np.inf)))
        if len(self.bounds) == 1 and np.isfinite(self.multiplier[seed]):
            options = {"multipliers": self.multiplier[seed]} | options
        certificate = certify(problem, clients, layout.unflatten(layout.rows(self.last)[seed]), **options)
        return dataclasses.replace(self, settings=self.settings | {"certificate": describe(certificate)})

    def to_module(self, module: Any = None, kind: str = "answer", seed: int | None = None) -> Any:
        """A copy of the run's PyTorch module, or of another of its form, with the answer in it.

        Of a run of several seeds it is the answer of ``seed``. A result that was loaded has no module, so give one.
        """
        from fedsgm.results.modules import filled

        return filled(self, module, kind, seed)

    def table(self) -> str:
        """Every seed's objective and constraints: of the answer, and of the other parameters."""
        from fedsgm.results.verdict import table

        return table(self)

    def plot(self, path: str | Path) -> None:
        """Draw objective and constraints against rounds, with the bounds and the answers, into a PNG, SVG or PDF."""
        from fedsgm.results.plots import plot

        plot(self, Path(path))

    def report(self, path: str | Path) -> None:
        """Write a page of the run for a browser, one HTML file that needs nothing else."""
        from fedsgm.results.page import write
        from fedsgm.results.shown import Shown, in_a_program

        write(Path(path), [Shown.of(self, "run", again=(in_a_program(self.settings),))])

    def save(self, folder: str | Path) -> None:
        """Write the run into a folder: ``history.parquet``, ``params.safetensors`` and, last, ``result.json``.

        A run that is there can be read until this one is complete.
        """
        write_together(Path(folder), self.files())

    def files(self) -> dict[str, bytes]:
        """What :meth:`save` writes, by name; the last has the digests of the others."""
        import safetensors.numpy

        arrays: dict[str, np.ndarray] = {}
        forms = {kind: trees.form(getattr(self, kind), kind, arrays) for kind in KINDS}
        files = {
            reading.HISTORY: _to_parquet(self.history, self.settings["seeds"]),
            reading.PARAMS: safetensors.numpy.save(arrays),
        }
        document = {
            "version": reading.VERSION,
            "feasible": bool(self.feasible.all()),
            "verdict": self.verdict().splitlines(),
            "answer_round": self.answer_round.tolist(),
            "kinds": KINDS,
            "values": {
                part: {name: _jsonable(rows.astype(float).tolist()) for name, rows in values.items()}
                for part, values in self.values.items()
            },
            "ranges": {name: _jsonable(list(each)) for name, each in self.ranges.items()},
            "settings": _finite(self.settings),
            "params": forms,
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        }
        return files | {reading.FILE: (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()}

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read a run that :meth:`save` wrote. Arrays are equal bit for bit."""
        return cls(**reading.load(Path(folder)))

    def evaluated(self) -> np.ndarray:
        """Which rounds' true values were measured; what is not a number in them is a run that diverged."""
        rounds, every = self.settings["rounds"], self.settings["evaluate_every"]
        t = np.arange(1, rounds + 1)
        wanted = (t == rounds) | ((t % every == 0) if every else False)
        return wanted | ~np.isnan(self.history["objective"]).all(axis=0)

    def excess(self, part: str, kind: str) -> np.ndarray:
        """How far each seed is past a bound at most; negative is within every bound."""
        ranges = self.ranges if part == "test" else self.sure_ranges
        return worst_excess({name: self.value(part, name, kind) for name in self.values[part]}, ranges)

    @property
    def private(self) -> dict[str, Any] | None:
        """The settings of privacy, of a run whose values are noisy."""
        return self.settings["algorithm"].get("privacy")

    @property
    def sure_ranges(self) -> dict[str, tuple[float, float]]:
        """The ranges that measured values must keep: of a private run narrower, by what noise may have moved them."""
        radii = {name: float(np.nanmax(self.history.get(f"{name}_radius", np.zeros(1)))) for name in self.ranges}
        return {name: (low + radii[name], high - radii[name]) for name, (low, high) in self.ranges.items()}

    def excess_history(self) -> np.ndarray:
        """The same of every [seed, round]; NaN where the true values were not measured."""
        return worst_excess(self.history, self.sure_ranges)


def excess(values: np.ndarray, allowed: tuple[float, float]) -> np.ndarray:
    """How far values are over the largest that is allowed, or under the least; in float32, as a run compares."""
    low, high = map(np.float32, allowed)
    if np.isinf(low):
        return values - high
    return low - values if np.isinf(high) else np.maximum(values - high, low - values)


def worst_excess(values: Mapping[str, np.ndarray], ranges: Mapping[str, tuple[float, float]]) -> np.ndarray:
    """The largest excess; NaN where the objective is not finite."""
    like = np.where(np.isfinite(values["objective"]), -np.inf, np.nan).astype(np.float32)
    return np.max([like, *(excess(values[name], allowed) for name, allowed in ranges.items())], axis=0)


def _jsonable(value: Any) -> Any:
    """NaN as null and infinities as words: JSON has none."""
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return None if np.isnan(value) else value if np.isfinite(value) else str(value)


def _finite(settings: Any) -> Any:
    """Settings with ``{"number": "nan"}`` for a number that JSON does not have, as a run that diverged may hold."""
    if isinstance(settings, dict):
        return {name: _finite(value) for name, value in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [_finite(item) for item in settings]
    return {"number": str(settings)} if isinstance(settings, float) and not math.isfinite(settings) else settings


def _to_parquet(history: dict[str, np.ndarray], seeds: list[int]) -> bytes:
    """One row a seed and round, counted from 1; what has more axes becomes a list column."""
    import pyarrow as pa
    import pyarrow.parquet

    rounds = next(iter(history.values())).shape[1]
    columns: dict[str, Any] = {
        "seed": np.repeat(np.array(seeds, np.int64), rounds),
        "round": np.tile(np.arange(1, rounds + 1, dtype=np.int64), len(seeds)),
    }
    for name, values in history.items():
        flat = values.reshape(len(seeds) * rounds, -1)
        columns[name] = (
            flat[:, 0] if values.ndim == 2 else pa.FixedSizeListArray.from_arrays(flat.reshape(-1), flat.shape[1])
        )
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()
