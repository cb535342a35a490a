"""The pictures of the page: ranks, performance profiles, and what each problem's bound costs."""

from __future__ import annotations

import collections
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsgm.base.files import write_atomically
from fedsgm.benchmark.cases import Case
from fedsgm.benchmark.measures import Row
from fedsgm.benchmark.ranking import Estimate, Instance, above_best

_KINDS = {"hard": "tab:blue", "soft": "tab:cyan", "adaptive": "tab:green", "defaults": "black"}
_RIVALS = {"penalty": "tab:red", "primal-dual": "tab:orange", "augmented": "tab:purple", "ipp-conex": "tab:brown"}
_RIVALS |= {"fedavg": "tab:pink", "fairlearn": "tab:olive", "solver": "tab:gray"}
DEFAULTS, FREE = "defaults", "fedavg"
_FAR = (0.15, 0.6)  # quantiles of the points that say what is far: runs that fail are on one side
_CLEAR = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1}
_WORDS: dict[str, Any] = {"fontsize": 6, "ha": "right", "va": "top"}
_OTHERS = ("gold", "navy", "teal", "crimson", "indigo")
_MARKS, _LINES = {"all": "s", "memory": "^", "optimistic": "D"}, {"all": "--", "memory": ":", "optimistic": "-."}


def look(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour for each kind of method, and a mark and a line for whom it asks: the same in every picture."""
    found = {}
    for name in names:
        kind, *more = name.split("-")
        other = _OTHERS[sum(name.encode()) % len(_OTHERS)]
        found[name] = {
            "color": _RIVALS.get(name) or _KINDS.get(kind, other),
            "marker": next((_MARKS[each] for each in more if each in _MARKS), "o"),
            "linestyle": next((_LINES[each] for each in more if each in _LINES), "-"),
            "fill": "topk" not in more,
        }
    return found


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    write_atomically(path, buffer.getvalue())


def ranks(found: Mapping[str, Mapping[str, Estimate]], path: Path) -> None:
    """Mean places with their intervals, a panel for each kind of rows; the best of the first is on top."""
    first = next(iter(found.values()))
    order = sorted(first, key=lambda name: -first[name].mean)
    shown = look(order)
    figure = _figure(8.5, 0.9 + 0.28 * len(order))
    axes = figure.subplots(1, len(found), sharey=True, sharex=True, squeeze=False)[0]
    for axis, (title, estimates) in zip(axes, found.items(), strict=True):
        for at, name in enumerate(order):
            one, style = estimates[name], shown[name]
            axis.plot([one.low, one.high], [at, at], color=style["color"], linewidth=2)
            fill = style["color"] if style["fill"] else "white"
            axis.plot(one.mean, at, color=style["color"], marker=style["marker"], markersize=6, markerfacecolor=fill)
        axis.set_yticks(range(len(order)), order)
        axis.set_title(title, fontsize=10)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
    figure.supxlabel("mean place (1 is the best), 95% intervals by problem and split; hollow: compressed", fontsize=9)
    save(figure, path)


def profiles(found: Mapping[Instance, Mapping[str, Row]], names: Sequence[str], path: Path) -> None:
    """On what share of the instances a method is within the bound and at most so far above the best objective."""
    shown = look(names)
    grid = np.concatenate([[0], np.geomspace(1e-3, 1, 200)])
    panels = {
        "messages as they are": [name for name in names if shown[name]["fill"]],
        "compressed": [name for name in names if not shown[name]["fill"] or name == DEFAULTS],
    }
    panels = {title: mine for title, mine in panels.items() if set(mine) - {DEFAULTS}}
    figure = _figure(5.6 * len(panels), 5.4)
    for axis, (title, mine) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name in mine:
            above = np.array(above_best(found, name))
            if len(above):
                share = [(above <= limit).mean() for limit in grid]
                style = {key: shown[name][key] for key in ("color", "linestyle")}
                wide = 2.4 if name == DEFAULTS else 1.2
                axis.step(np.maximum(grid, 5e-4), share, where="post", label=name, linewidth=wide, **style)
        axis.set(xscale="log", ylim=(0, 1.02), title=title)
        axis.set_xlabel("objective above the best feasible one, as a share of it")
        axis.set_ylabel("share of problems, bounds and splits")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)
    save(figure, path)


def cost_of(case: Case) -> str:
    """What a trade-off is drawn against: the share that is wrong, where a reference has decisions alone."""
    return "wrong" if case.rate else "objective"


def trade_offs(rows: Sequence[Row], cases: Sequence[Case], names: Sequence[str], path: Path) -> None:
    """A panel for each problem: held-out value of the constraint against what it costs, means over splits."""
    shown = look(names)
    wide = min(3, len(cases))
    tall = math.ceil(len(cases) / wide)
    figure = _figure(4.3 * wide, 3.5 * tall + 0.6)
    axes = figure.subplots(tall, wide, squeeze=False).ravel()
    for axis, case in zip(axes, cases, strict=False):
        points = collections.defaultdict(list)
        for row in rows:
            if row["case"] == case.name and row["phase"] == "final":
                points[row["method"], row["bound"]].append(_point(row, cost_of(case)))
        means = {key: np.mean(values, axis=0) for key, values in points.items() if key[0] in names}
        for name in names:
            at = sorted(point.tolist() for (who, _), point in means.items() if who == name)
            if at:
                style = shown[name] | {"fillstyle": "full" if shown[name]["fill"] else "none"}
                del style["fill"]
                x, y = zip(*at, strict=True)
                axis.plot(x, y, label=name, markersize=5, linewidth=0.8, **style)
        bounds = sorted({bound for _, bound in means})
        for bound in bounds:
            axis.axvline(bound, color="red", linestyle=":", linewidth=1)
        _frame(axis, means, bounds)
        part = "held-out" if case.batch_size or case.natural else "measured"
        axis.set_title(case.name, fontsize=10)
        axis.set_xlabel(f"constraint, {part} (red: bounds)", fontsize=8)
        axis.set_ylabel("share wrong, held-out" if cost_of(case) == "wrong" else "objective, held-out", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
    for axis in axes[len(cases) :]:
        axis.set_visible(False)
    handles: dict[str, Any] = {}
    for axis in axes[: len(cases)]:
        lines, labels = axis.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    save(figure, path)


def _frame(axis: Any, means: Mapping[tuple[str, float], np.ndarray], bounds: Sequence[float]) -> None:
    """Room for most points; who is far from them is told in words, so that the others can be told apart."""
    near = np.array([point for (name, _), point in means.items() if name != FREE and np.isfinite(point).all()])
    if len(near) < 4:
        return
    low, high = np.quantile(near, _FAR, axis=0)
    room = 3 * np.maximum(high - low, 1e-9)
    near = near[((near >= low - room) & (near <= high + room)).all(axis=1)]
    low, high = near.min(axis=0), near.max(axis=0)
    low[0], high[0] = min(low[0], *bounds), max(high[0], *bounds)
    pad = 0.08 * np.maximum(high - low, 1e-9)
    far: dict[str, list[str]] = collections.defaultdict(list)
    for (name, _), point in sorted(means.items()):
        if not ((point >= low) & (point <= high)).all() and np.isfinite(point).all():
            far[name].append(f"({point[0]:.3g}, {point[1]:.3g})")
    told = [f"{name} {' '.join(places)}" for name, places in far.items()]
    words = 0.06 * (len(told) + 1) * (high[1] - low[1]) if told else 0.0  # room above the points
    axis.set(xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1] + words))
    if told:
        told = ["not shown:", *told]
        axis.text(0.98, 0.98, "\n".join(told), transform=axis.transAxes, bbox=_CLEAR, **_WORDS)


def _point(row: Row, cost: str) -> tuple[float, float]:
    part = "test" if row.get("test constraint") is not None else "train"
    if cost == "wrong":
        right = row.get(f"{part} right")
        return row[f"{part} constraint"], math.nan if right is None else 1 - right
    return row[f"{part} constraint"], row[f"{part} objective"]
