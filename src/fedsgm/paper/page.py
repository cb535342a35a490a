"""Run studies and write the page of results: each figure, what the paper says, what was measured, the same or not."""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import jax

import fedsgm
from fedsgm.base.files import write_atomically
from fedsgm.paper import fair_adult
from fedsgm.paper.lines import GRID
from fedsgm.paper.studies import STUDIES
from fedsgm.paper.study import Findings, Run, Scale, Study, Table, collect, seconds
from fedsgm.results.verdict import aligned

_INTRODUCTION = """\
# {title}

Written by `fedsgm reproduce` from the runs it keeps; only the notes in words are a person's. {scale}

A claim of the paper is put as a statistic over seeds. Where two lines are compared, the runs are paired (the same \
split and seed), and the claim holds if the mean difference is more than two standard errors on its side; with many \
claims a few may hold or fail by chance. Step sizes are tuned for every line alike, on the training data, from the \
grid {grid} ({adult} for Adult): the one with most runs within the bound in most of their last 100 rounds, and of \
those the one with the lowest objective.
"""
_FULL = "All seeds and rounds."
_QUICK = (
    "**A quick look**: few seeds, rounds and step sizes, and not all lines. The numbers are not the paper's experiment."
)


def reproduce(studies: Sequence[Study], scale: Scale, *, out: Path, page: Path, progress: bool) -> None:
    """Run the studies, draw their pictures beside the page, and write the page anew of all that ``out`` has."""
    pictures = page.with_suffix("")
    for study in studies:
        runs = study.runs(scale)
        results = collect(study.name, runs, out / "runs", progress=progress)
        findings = study.findings(results, scale)
        for suffix in ("png", "svg"):
            _draw(findings.picture, pictures / f"{study.name}.{suffix}")
        section = _section(study, runs, findings, pictures.name, seconds(runs, out / "runs"))
        write_atomically(out / "sections" / f"{study.name}.md", section.encode())
        print(f"{verdicts(study, findings)}\nPicture: {pictures / study.name}.png\n", flush=True)
    sections = [out / "sections" / f"{name}.md" for name in STUDIES]
    title = "A quick look at the paper's results" if scale.quick else "The paper's results"
    introduction = _INTRODUCTION.format(
        title=title,
        scale=_QUICK if scale.quick else _FULL,
        grid=", ".join(f"{step:g}" for step in GRID),
        adult=", ".join(f"{step:g}" for step in fair_adult.STEPS),
    )
    text = [introduction, _machine(), *(path.read_text() for path in sections if path.exists())]
    write_atomically(page, "\n".join(text).encode())
    print(f"Page: {page}")


def verdicts(study: Study, findings: Findings) -> str:
    """The claims on a terminal."""
    rows = [["yes" if claim.holds else "NO", claim.says, claim.measured] for claim in findings.claims]
    return f"{study.title}\n{aligned([['holds', 'claim', 'measured'], *rows])}"


def _section(study: Study, runs: Sequence[Run], findings: Findings, pictures: str, took: float) -> str:
    held = sum(claim.holds for claim in findings.claims)
    total = len(findings.claims)
    same = "yes" if held == total else "no" if held == 0 else "in part"
    claims = Table("", ["claim", "measured", "holds"], [[c.says, c.measured, _word(c.holds)] for c in findings.claims])
    seeds = sum(run.seeds for run in runs)
    lines = [
        f"## {study.title}",
        f"`fedsgm reproduce {study.name}`: {len(runs)} runs, {seeds} seeds in all, {took / 60:.1f} minutes.",
        f"**The paper:** {study.paper}",
        f"**The same here:** {same}, {held} of {total} claims hold.",
        f"![{study.title}]({pictures}/{study.name}.png)",
        _markdown(claims),
        *findings.notes,
        *(_markdown(table) for table in findings.tables),
    ]
    return "\n\n".join(lines) + "\n"


def _word(holds: bool) -> str:
    return "true" if holds else "**false**"


def _markdown(table: Table) -> str:
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    grid = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    if table.folded:
        return f"<details><summary>{table.title}</summary>\n\n{grid}\n\n</details>"
    return f"{table.title}:\n\n{grid}" if table.title else grid


def _machine() -> str:
    return (
        f"Machine: {_processor()}, {os.cpu_count()} cores; Python {platform.python_version()}, JAX {jax.__version__}, "
        f"fedsgm {fedsgm.__version__}. Times are of the runs themselves, on a machine that may have had other work.\n"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _draw(figure: object, path: Path) -> None:
    """The same figure gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    metadata = {"Software": None} if path.suffix == ".png" else {"Date": None}
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(buffer, format=path.suffix[1:], dpi=130, metadata=metadata)  # type: ignore[attr-defined]
    write_atomically(path, buffer.getvalue())
