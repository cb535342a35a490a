"""What a bound costs: how often models are right against what they come to in a constraint, for several bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.results import drawing
from fedsgm.results.verdict import aligned, number
from fedsgm.tables.grammar import Wanted

PARTS = {"train": "training rows", "test": "held-out rows"}
FREE, CONSTANT = "without the constraints", "best constant"


@dataclasses.dataclass(frozen=True)
class Point:
    """One way of answering, with one seed: its bound, or :data:`FREE` or :data:`CONSTANT`.

    ``right`` and ``value``, the constraint's, are by part, ``"train"`` and perhaps ``"test"``.
    """

    way: str
    seed: int
    right: dict[str, float]
    value: dict[str, float]
    within: bool


def parse_bounds(text: str, wanted: Sequence[Wanted]) -> list[Wanted]:
    """``0.2,0.1,0.05``: the first constraint, with each of these bounds in turn."""
    if not wanted:
        raise SettingError(f"--bounds {text}: they are bounds of a constraint; add --constraint, with any bound")
    if wanted[0].least is not None:
        raise SettingError(f"--bounds {text}: {wanted[0].name} has two bounds; give it one")
    found: list[Wanted] = []
    for word in text.split(","):
        try:
            bound = float(word)
        except ValueError:
            bound = -1.0
        if not 0 <= bound < float("inf"):
            raise SettingError(f"--bounds {text}: {word.strip()!r} is no bound; write numbers, 0 or more: 0.1,0.05")
        if bound in [each.bound for each in found]:
            raise SettingError(f"--bounds {text}: {bound:g} is there twice")
        found.append(dataclasses.replace(wanted[0], bound=bound))
    return found


def table(points: Sequence[Point], name: str) -> str:
    """A line a way: means over seeds, and the range of the constraint's value."""
    parts = [part for part in PARTS if part in points[0].right]
    head = [f"bound on {name}", "within, training"]
    rows = [[*head, *(text for part in parts for text in (f"right, {PARTS[part]}", name))]]
    for way in dict.fromkeys(point.way for point in points):
        mine = [point for point in points if point.way == way]
        row = [way, f"{sum(point.within for point in mine)} of {len(mine)}"]
        for part in parts:
            values = np.array([point.value[part] for point in mine])
            told = number(values[0]) if len(values) == 1 else f"{number(values.min())} .. {number(values.max())}"
            row += [f"{np.mean([point.right[part] for point in mine]):.1%}", told]
        rows.append(row)
    return aligned(rows)


def save(points: Sequence[Point], path: Path) -> None:
    """One row a point and part."""
    import pyarrow as pa
    import pyarrow.parquet

    rows = [
        {"bound": point.way, "seed": point.seed, "part": part, "within": point.within}
        | {"right": point.right[part], "value": point.value[part]}
        for point in points
        for part in point.right
    ]
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), sink)
    write_atomically(path, sink.getvalue().to_pybytes())


def plot(points: Sequence[Point], name: str, path: Path) -> None:
    """The share that is right against the constraint's value: a colour a way, every seed, means joined over bounds."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    parts = [part for part in PARTS if part in points[0].right]
    figure = Figure(figsize=(5.2 * len(parts), 4.4), layout="constrained")
    axes = figure.subplots(1, len(parts), squeeze=False, sharey=True)[0]
    ways = list(dict.fromkeys(point.way for point in points))
    bounds = [way for way in ways if way not in (FREE, CONSTANT)]
    colours = {way: colormaps["viridis"](0.9 * i / max(1, len(bounds) - 1)) for i, way in enumerate(bounds)}
    others = {FREE: ("tab:red", "s"), CONSTANT: ("tab:gray", "X")}
    shown = drawing.no_formula(name)
    for axis, part in zip(axes, parts, strict=True):
        means = []
        for way in ways:
            mine = [point for point in points if point.way == way]
            x, y = ([getattr(point, what)[part] for point in mine] for what in ("value", "right"))
            colour, mark = others.get(way, (colours.get(way), "o"))
            label = f"bound {way}" if way in bounds else way
            axis.scatter(x, y, color=[colour], marker=mark, s=26, alpha=0.8, label=label if axis is axes[0] else None)
            if way in bounds:
                means.append((np.mean(x), np.mean(y)))
                axis.axvline(float(way), color=colour, linestyle=":", linewidth=0.9)
        axis.plot(*np.array(sorted(means)).T, color="black", linewidth=0.9, alpha=0.6, zorder=0)
        axis.set(xlabel=f"{shown}, {PARTS[part]}", title=PARTS[part])
        axis.grid(alpha=0.25)
        axis.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}" if share * 100 % 1 < 1e-6 else f"{share:.1%}")
    axes[0].set_ylabel("share of the rows that is right")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle("dotted: the bounds; line: means over seeds", fontsize=9)
    drawing.write(figure, path)
