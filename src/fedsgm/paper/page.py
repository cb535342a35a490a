"""Run studies and write the page of results: each figure, what the paper says, what was measured, the same or not."""

from __future__ import annotations

import io
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

import fedsgm
from fedsgm.base.files import write_atomically
from fedsgm.base.progress import say
from fedsgm.paper import fair_adult, neyman_pearson
from fedsgm.paper.claims import MOST, NEARLY_ALL, SLIGHT
from fedsgm.paper.lines import GRID, LASTING
from fedsgm.paper.studies import STUDIES
from fedsgm.paper.study import Claim, Findings, Run, Scale, Study, Table, collect, seconds
from fedsgm.results.verdict import aligned

_INTRODUCTION = """\
# {title}

Written by `fedsgm reproduce` from the runs it keeps; only the notes in words are a person's. {scale}

A claim is put as a statistic, and has one of three outcomes: it holds, it is false, or it is not shown, where the \
runs are too few to tell. Runs on one split of the data are not independent, so a split is one observation: the mean \
of its runs, paired with the same split of the other line; where nothing is split, a run is. That one number is below \
another holds if the mean difference is above zero by a one-sided t test at 5%, and is false if it is, by the same \
test, below {slight:.0%} of the larger number ({adult_slight:.0%} for Adult's objectives). That two are alike is two \
such tests, against a margin that is said. That splits do something holds if more than {most:.0%} of all there are do, \
and is false if fewer than {nearly_all:.0%} do, by binomial tests. Beside a \
difference, `±` is half of its 90% interval by the t distribution over the splits or runs that are named there. \
With so many claims a few will hold \
or fail by chance. Claims of our own, about what the paper does not have, are marked and not counted.

Step sizes are tuned for every line alike, on the training data, from {grid} ({adult} for Adult; for the first lines \
also the paper's smaller ones down to {least:g}): the one with most runs within the bound in most of their last 100 \
rounds, and of those the one with the lowest objective. Speed is the round from which on, over {lasting} rounds on \
average, a run has an objective of at most {target[0]:g} and a constraint of at most {target[1]:g}, at the step size \
that gets there soonest; a run that never does counts with all its rounds.
"""
_FULL = "All seeds and rounds."
_QUICK = (
    "**A quick look**: few seeds, rounds and step sizes, and not all lines. The numbers are not the paper's experiment."
)


def reproduce(studies: Sequence[Study], scale: Scale, *, out: Path, page: Path, progress: bool) -> None:
    """Run the studies, draw their pictures beside the page, and write the page anew of all that ``out`` has.

    What the page has of other studies, which ``out`` does not have, stays as it is.
    """
    pictures = page.with_suffix("")
    for study in studies:
        runs = study.runs(scale)
        results = collect(study.name, runs, out / "runs", progress=progress)
        findings = study.findings(results, scale)
        for suffix in ("png", "svg"):
            _draw(findings.picture, pictures / f"{study.name}.{suffix}")
        section = _section(study, runs, findings, pictures.name, seconds(runs, out / "runs"))
        write_atomically(out / "sections" / f"{study.name}.md", section.encode())
        say(f"{verdicts(study, findings)}\nPicture: {pictures / study.name}.png\n")
    title = "A quick look at the paper's results" if scale.quick else "The paper's results"
    introduction = _INTRODUCTION.format(
        title=title,
        scale=_QUICK if scale.quick else _FULL,
        grid=", ".join(f"{step:g}" for step in GRID),
        adult=", ".join(f"{step:g}" for step in fair_adult.STEPS),
        slight=SLIGHT,
        most=MOST,
        nearly_all=NEARLY_ALL,
        adult_slight=fair_adult.NEAR,
        least=min(neyman_pearson.WIDE),
        lasting=LASTING,
        target=neyman_pearson.TARGET,
    )
    sections = _sections(out, page, title)
    text = [introduction, _machine(), _overview(sections), *sections.values()]
    write_atomically(page, "\n".join(text).encode())
    say(f"Page: {page}")


def _sections(out: Path, page: Path, title: str) -> dict[str, str]:
    """Every study's section by its title, in their order."""
    before = page.read_text() if page.exists() else ""
    there = before.split("\n## ")[1:] if before.startswith(f"# {title}\n") else []
    kept = {section.partition("\n")[0]: f"## {section.rstrip()}\n" for section in there}
    files = {study.title: out / "sections" / f"{study.name}.md" for study in STUDIES.values()}
    found = {title: path.read_text() if path.exists() else kept.get(title) for title, path in files.items()}
    return {title: section for title, section in found.items() if section}


def verdicts(study: Study, findings: Findings) -> str:
    """The claims on a terminal."""
    rows = [[claim.verdict, _whose(claim), claim.says, claim.measured] for claim in findings.claims]
    return f"{study.title}\n{aligned([['verdict', 'whose', 'claim', 'measured'], *rows])}"


def _section(study: Study, runs: Sequence[Run], findings: Findings, pictures: str, took: float) -> str:
    rows = [[claim.says, _whose(claim), claim.measured, _bold(claim.verdict)] for claim in findings.claims]
    claims = Table("", ["claim", "whose", "measured", "verdict"], rows)
    seeds = sum(run.seeds for run in runs)
    lines = [
        f"## {study.title}",
        f"`fedsgm reproduce {study.name}`: {len(runs)} runs, {seeds} seeds in all, {took / 60:.1f} minutes.",
        f"**The paper:** {study.paper}",
        f"**Here:** {_told(_counted(findings.claims))}.",
        f"![{study.title}]({pictures}/{study.name}.png)",
        _markdown(claims),
        *findings.notes,
        *(_markdown(table) for table in findings.tables),
    ]
    return "\n\n".join(lines) + "\n"


_VERDICTS = ("holds", "false", "not shown")


def _counted(claims: Sequence[Claim]) -> dict[str, int]:
    """How many of the paper's claims have each outcome."""
    return {verdict: sum(c.verdict == verdict and not c.ours for c in claims) for verdict in _VERDICTS}


def _told(count: Mapping[str, int]) -> str:
    return (
        f"{count['holds']} of {sum(count.values())} of the paper's claims hold, {count['false']} are false and "
        f"{count['not shown']} are not shown"
    )


_HERE = re.compile(r"^\*\*Here:\*\* (\d+) of \d+ of the paper's claims hold, (\d+) are false and (\d+) are not", re.M)


def _overview(sections: Mapping[str, str]) -> str:
    """The outcomes of every study, and their sum."""
    found = {title: _HERE.search(section) for title, section in sections.items()}
    counts = {title: [int(number) for number in here.groups()] for title, here in found.items() if here}
    total = dict(zip(_VERDICTS, map(sum, zip(*counts.values(), strict=True)), strict=True))
    rows = [[title, *map(str, count)] for title, count in counts.items()]
    return f"**{_told(total)}.**\n\n{_markdown(Table('', ['study', *_VERDICTS], rows))}\n"


def _whose(claim: Claim) -> str:
    return "ours" if claim.ours else "the paper's"


def _bold(verdict: str) -> str:
    return verdict if verdict == "holds" else f"**{verdict}**"


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
