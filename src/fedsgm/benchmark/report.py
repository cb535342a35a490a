"""The page of the benchmark: what all rows come to, in tables, pictures and a few sentences made of their numbers."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fedsgm
from fedsgm.base.errors import SettingError
from fedsgm.base.files import write_atomically
from fedsgm.benchmark import pictures, ranking, registry, runs, wording
from fedsgm.benchmark.cases import TRIALS, Case, Method
from fedsgm.benchmark.measures import LASTING, Row
from fedsgm.benchmark.ranking import Instance, feasible
from fedsgm.benchmark.wording import NONE, number, percent, table

DEFAULTS = "defaults"


class Found(NamedTuple):
    """All rows, and the problems and methods that they are of."""

    rows: list[Row]
    cases: list[Case]
    methods: dict[str, Method]
    instances: dict[Instance, dict[str, Row]]

    @property
    def ranked(self) -> list[str]:
        return [name for name, method in self.methods.items() if method.ranked]

    def of(self, name: str, case: str | None = None) -> list[Row]:
        """A method's final rows: of one problem all, else where every method was run."""
        final = [row for row in self.rows if row["phase"] == "final" and row["method"] == name]
        if case is not None:
            return [row for row in final if row["case"] == case]
        return [row for row in final if (row["case"], row["bound"], row["split"]) in self.instances]


def write(folders: Sequence[Path], told: Sequence[Mapping[str, Any]], page: Path, files: tuple[str, ...]) -> None:
    """Put folders of rows together and write the page, its pictures in a folder of its name."""
    found = _found(folders, files)
    beside = page.with_suffix("")
    parts = {"training rows": ranking.TRAIN, "held-out rows": ranking.HELD}
    placed = {title: ranking.ranks(found.instances, found.ranked, part) for title, part in parts.items()}
    pictures.ranks(placed, beside / "ranks.png")
    pictures.profiles(found.instances, found.ranked, beside / "profiles.png")
    plain = [name for name in found.methods if not name.endswith("topk")]
    whole = {case for case, _, _ in found.instances}
    drawn = [case for case in found.cases if case.name in whole]
    pictures.trade_offs(found.rows, drawn, plain, beside / "trade-offs.png")
    text = [
        "# The benchmark of constrained federated learning",
        _scope(found, folders, told),
        "## What it means for choosing a method",
        wording.meaning(found),
        "## The methods",
        _overview(found),
        f"![Mean places with intervals]({beside.name}/ranks.png)",
        f"![Performance profiles]({beside.name}/profiles.png)",
        "## Where a rival is better than the defaults of fit",
        wording.rivals(found),
        "## The problems",
        _problems(found),
        f"![What the bounds cost]({beside.name}/trade-offs.png)",
        *(_section(found, case) for case in found.cases),
        "## How it is done",
        wording.PROTOCOL.format(lasting=percent(LASTING), trials=TRIALS, same=percent(ranking.SAME)),
    ]
    write_atomically(page, ("\n\n".join(text) + "\n").encode())


def _found(folders: Sequence[Path], files: tuple[str, ...]) -> Found:
    """Rows that two folders have are taken from the first."""
    cases, methods = registry.of(files)
    rows: dict[Any, Row] = {}
    for folder in folders:
        for row in runs.rows_of(folder):
            for what, known in (("case", cases), ("method", methods)):
                if row[what] not in known:
                    raise SettingError(f"{folder}: there is no {what} {row[what]!r} here; give its file by --with")
            names = ("case", "method", "bound", "split", "phase", "setting", "rounds")
            rows.setdefault(tuple(row[name] for name in names), row)
    everything = list(rows.values())
    here = {row["case"] for row in everything}
    used = {row["method"] for row in everything}
    of_rows = {name: method for name, method in methods.items() if name in used}
    ranked = [name for name, method in of_rows.items() if method.ranked]
    every = ranking.instances(everything, ranked)
    compared = ranking.complete(every, lambda method, case: methods[method].fits(cases[case]), ranked)
    if not compared:
        raise SettingError("report: there is no problem and bound on which all methods were run; go on with --resume")
    return Found(everything, [case for case in cases.values() if case.name in here], of_rows, compared)


def _scope(found: Found, folders: Sequence[Path], told: Sequence[Mapping[str, Any]]) -> str:
    """What was run, and what was not: the first thing that a reader is told."""
    final = [row for row in found.rows if row["phase"] == "final"]
    splits = sorted({row["split"] for row in final})
    cells = {(row["case"], row["bound"], row["method"]) for row in final}
    quick = [bool(each.get("quick")) for each in told]
    cases, methods = registry.of()
    here = {case.name for case in found.cases}
    wanted = [case for case in cases.values() if case.name in here or not case.optional]
    whole = sum(len(case.bounds) for case in wanted for method in methods.values() if method.fits(case))
    lines = []
    if any(quick):
        lines.append(
            "**A quick look**: one bound a problem, few rounds, two settings a method and few splits. The numbers show "
            "that everything works; they rank nobody."
        )
    if not all(quick) and len(cells) < whole:
        lines.append(
            f"**Not the whole suite**: {len(cells)} of its {whole} combinations of a problem, a bound and a method "
            "were run when this page was written. Methods are compared where all of those told here were run, that "
            f"is on {wording.compared(found)}."
        )
    hours = sum(row["seconds"] for row in found.rows) / 3600
    commands = " ".join(str(folder.name) for folder in folders)
    lines.append(
        f"Written by `fedsgm benchmark report {commands}` from {len(found.rows)} runs, {len(final)} of them of tuned "
        f"methods on splits that nothing was chosen on: {len(found.cases)} problems, {len(found.methods)} methods, "
        f"{len(splits)} split{'s' if len(splits) > 1 else ''}. The runs took {hours:.2g} processor-hours in "
        f"all, on a machine of {os.cpu_count()} cores; Python {platform.python_version()}, fedsgm {fedsgm.__version__}."
    )
    return "\n\n".join(lines)


def _overview(found: Found) -> str:
    placed = ranking.ranks(found.instances, found.ranked)
    held = ranking.ranks(found.instances, found.ranked, ranking.HELD)
    order = sorted(placed, key=lambda name: placed[name].mean)
    rest = [name for name in found.methods if name not in placed and found.of(name)]
    rows = [_line(found, name, placed.get(name), held.get(name)) for name in [*order, *rest]]
    head = (
        *("method", "what", "runs", "place", "place, held-out", "within, training", "within, held-out"),
        "above the best",
        *("rounds to lasting", "MB to lasting", "rounds within", "worst client", "processor-seconds"),
    )
    return f"{table(head, rows)}\n\n{wording.COLUMNS.format(lasting=percent(LASTING))}"


def _line(found: Found, name: str, *places: ranking.Estimate | None) -> list[str]:
    rows = found.of(name)
    held = [row for row in rows if row.get("test excess") is not None]
    return [
        f"**{name}**" if name == DEFAULTS else name,
        found.methods[name].says,
        str(len(rows)),
        *(NONE if place is None else f"{place.mean:.1f} ({place.low:.1f} to {place.high:.1f})" for place in places),
        percent(sum(map(feasible, rows)) / len(rows)),
        percent(sum(feasible(row, "test") for row in held) / len(held)) if held else NONE,
        NONE if places[0] is None else percent(ranking.median(ranking.above_best(found.instances, name))),
        _never(ranking.median([row.get("lasting_round") for row in rows]), name, found),
        _never(ranking.median([row.get("lasting_bytes") for row in rows]) / 1e6, name, found),
        percent(ranking.mean(rows, lambda row: row.get("rounds_within"))),
        number(ranking.median(_known(rows, "train worst client"))),
        number(ranking.mean(rows, lambda row: row["seconds"])),
    ]


def _known(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None and math.isfinite(row[name])]


def _never(value: float, name: str, found: Found) -> str:
    if found.methods[name].answer is not None:
        return NONE
    return "never" if math.isinf(value) else number(value)


def _problems(found: Found) -> str:
    rows = []
    for case in found.cases:
        any_row = next(row for row in found.rows if row["case"] == case.name)
        free = ranking.mean(found.of("fedavg", case.name), lambda row: row["last constraint"])
        rows.append(
            [
                case.name,
                case.says,
                f"{any_row['clients']}, {case.natural}" if case.natural else f"{any_row['clients']}, dealt",
                number(any_row["examples"]),
                str(any_row["parameters"]),
                ", ".join(f"{bound:g}" for bound in case.bounds),
                number(free),
                case.left_out or "nothing",
                case.source,
            ]
        )
    head = (
        "problem",
        "what",
        "clients",
        "training rows",
        "parameters",
        "bounds",
        "without a bound",
        "left out",
        "source",
    )
    return table(head, rows)


def _section(found: Found, case: Case) -> str:
    """A problem's table: each method at each bound, means over splits."""
    rows = []
    for bound in case.bounds:
        for name in found.methods:
            mine = [row for row in found.of(name, case.name) if row["bound"] == bound]
            if mine:
                rows.append([f"{bound:g}", name, *_cells(mine)])
    head = (
        *("bound", "method", "within, training", "objective", "constraint", "objective, held-out"),
        *("constraint, held-out", "right, held-out", "rounds to lasting", "chosen"),
    )
    grid = table(head, rows)
    return f"<details><summary>{case.name}: every method</summary>\n\n{grid}\n\n</details>"


def _cells(rows: Sequence[Row]) -> list[str]:
    names = ("train objective", "train constraint", "test objective", "test constraint", "test right")
    values = [number(ranking.mean(rows, lambda row, name=name: row.get(name))) for name in names]  # type: ignore[misc]
    lasting = ranking.median([row.get("lasting_round") for row in rows])
    within = f"{sum(map(feasible, rows))} of {len(rows)}"
    return [within, *values, NONE if math.isinf(lasting) else number(lasting), rows[0]["setting"].strip("{}") or NONE]
