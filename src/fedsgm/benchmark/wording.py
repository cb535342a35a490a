"""The sentences of the page: what the numbers mean for who has to choose, and how they were made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsgm.benchmark import ranking
from fedsgm.benchmark.measures import Row
from fedsgm.benchmark.ranking import Instance, feasible

if TYPE_CHECKING:
    from fedsgm.benchmark.report import Found

DEFAULTS = "defaults"
CHOSEN_ON = ("compas", "credit", "adult-occupation", "adult-dirichlet", "health")  # by benchmarks/fits.py
NONE = "-"
PROTOCOL = """\
Every client's rows are cut 3 : 1 : 1 into training, validation and test rows, with the client's mix of labels \
and groups. A method tries {trials} settings on one split, two step sizes with three values of its own setting; \
chosen is the one within the bound on the training and on the validation rows with the least validation loss, or \
else the one least past the bound. It is then run on other splits, each with another seed, and those runs are \
what is told. Rounds, local steps, participants and batches are the same for all; all federated methods have \
steps that fall along a cosine. The answer of a run is the measured round within the bound that has the least \
training objective, for everybody alike. Of two runs the one within the bound on the training rows is better, \
then the one with the lower training objective; those nearer than {same} are the same; on held-out rows likewise. \
Settings are chosen by validation rows, which a shorter step suits better than it suits the training objective: the \
defaults are not chosen, take the longer one, and gain by that on the training rows. *Lasting* feasibility \
begins with the first measured round from which on {lasting} are within.

Hard and soft switching, the penalty, both Lagrangians and plain FedAvg are run by one compiled program, to \
which the rule is a number; a test has that each comes to the same bits as by itself. Optimistic switching \
(arXiv 2505.09146) takes the server's step along twice the mean of the clients' messages less that of the \
round before. Seconds are of one thread's processor time, the compilation of a program in its first run. \
CartPole has no compression here, as [the paper's results](results.md) have it, and no optimism. ACS income \
by state needs the package folktables and the Census's server; a suite is run without it, and says so, where \
one of them is missing. fairlearn's answer is randomised and has decisions alone, so it has no objective. \
The sharing out of Adult by Dirichlet, of digits and of the breast cancer data is ours, not nature's. The \
defaults of `fit` were chosen on other samples of credit, compas, Adult and health, among others \
(`benchmarks/fits.py`), and not on communities, stops and fars.

## Add a problem, a method or rows

A problem or a method is one file with a list `CASES` or `METHODS` of `fedsgm.benchmark.cases`, given by \
`--with`; `examples/benchmark_case.py` has one of each. Rows are a folder: send it, and `fedsgm benchmark report \
OURS THEIRS` puts them together. `fedsgm benchmark again FOLDER` runs ten random rows anew and compares all \
their numbers.

`make benchmark` is `fedsgm benchmark run all --resume --out benchmarks-run`, and then this page; `--only NAME` \
keeps to a problem or a method, and `--quick` is a first look.

```sh
fedsgm benchmark list
make benchmark
```"""

COLUMNS = """\
Places are means over problems, bounds and splits, by the training rows and by held-out ones, with 95% \
intervals by a bootstrap of clusters, a cluster \
being all bounds of one split of one problem. *Above the best* is the median of the objective's distance from \
the best feasible one, as a share of it, a run past the bound counting as infinitely far. *Lasting* is the \
median round, and what all clients and the server had sent by then, from which on {lasting} of the measured \
rounds are within the bound; *never* where half of the runs have none. *Worst client* is the median over runs of \
the largest objective that a client has. Those without a place see all data, or keep no bound. \
Splits of one problem share rows, so that intervals are too narrow if anything."""


def number(value: float | None) -> str:
    """Three figures, or a dash where there is none."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float) -> str:
    if not math.isfinite(share):
        return NONE if math.isnan(share) else "past"
    return f"{100 * share:.1f}%" if abs(share) < 0.1 else f"{100 * share:.0f}%"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def compared(found: Found) -> str:
    """The problems and bounds that methods are compared on."""
    pairs = dict.fromkeys((case, bound) for case, bound, _ in found.instances)
    return _names([f"{case} at {bound:g}" for case, bound in pairs])


def meaning(found: Found) -> str:
    """Paragraphs of what the numbers say, and of what they do not."""
    placed = ranking.ranks(found.instances, found.ranked)
    if DEFAULTS not in placed or len(placed) < 2:
        return "There are too few methods among these rows to say anything."
    first = [_judged(found, found.instances, ranking.TRAIN)]
    seldom = [name for name in sorted(placed, key=lambda name: placed[name].mean) if _kept(found, name) < 0.9]
    if seldom:
        told = _names([f"{name} ({percent(_kept(found, name))})" for name in seldom])
        first.append(f"Past the bound even on the training rows in more than a tenth of their runs: {told}.")
    held = [_judged(found, found.instances, ranking.HELD)]
    every = [row for each in found.instances.values() for row in each.values()]
    kept = [row for row in every if row.get("test excess") is not None and feasible(row)]
    if kept:
        share = sum(feasible(row, "test") for row in kept) / max(1, len(kept))
        held.append(
            f"Whoever needs the bound on new data must leave room: of the runs within it on the training rows "
            f"{percent(share)} are within it on held-out rows."
        )
    parts = [" ".join(first), " ".join(held)]
    new = {at: each for at, each in found.instances.items() if at[0] not in CHOSEN_ON}
    if new and len(new) < len(found.instances):
        names = _names(list(dict.fromkeys(case for case, _, _ in new)))
        parts.append(
            f"The defaults were chosen on other samples of the data of the other problems; on {names} alone they were "
            f"not. There: {_judged(found, new, ranking.TRAIN)}"
        )
    return "\n\n".join(parts)


_WHERE = {
    ranking.TRAIN: "On the training rows, where the problem is stated,",
    ranking.HELD: "On held-out rows, by which settings are chosen (those of the validation),",
}


def _judged(found: Found, instances: Mapping[Instance, Mapping[str, Row]], part: str) -> str:
    """Who has the lowest place, and who is better and who is worse than the defaults, by rows of this part."""
    placed = ranking.ranks(instances, found.ranked, part)
    order = sorted(placed, key=lambda name: placed[name].mean)
    beats = {name: ranking.against(instances, name, DEFAULTS, part) for name in order if name != DEFAULTS}
    best, rows = order[0], [each[DEFAULTS] for each in instances.values() if DEFAULTS in each]
    share = sum(feasible(row, part) for row in rows) / max(1, len(rows))
    lines = [
        f"{_WHERE[part]} the lowest mean place has **{best}** ({placed[best].mean:.1f} of {len(order)}). The defaults "
        f"of `fit`, untuned, have {placed[DEFAULTS].mean:.1f} and are within the bound in {percent(share)} of their "
        "runs."
    ]
    clusters = len({(case, split) for case, _, split in instances})
    if clusters < ranking.ENOUGH:
        return (
            f"{lines[0]} With {clusters} splits of problems, of {ranking.ENOUGH} at least, nobody is said to be better."
        )
    above = [name for name, each in beats.items() if each.low > 0.5]
    below = [name for name, each in beats.items() if each.high < 0.5]
    unsure = [name for name in beats if name not in above and name not in below]
    lines += [
        _sentence("Better than the defaults more often than not, by an interval that leaves 50% out", above, beats),
        _sentence("Worse than the defaults by the same measure", below, beats),
    ]
    if unsure:
        lines.append(f"Between the defaults and {_names(unsure)} these runs do not decide.")
    return " ".join(lines)


def _kept(found: Found, name: str) -> float:
    rows = found.of(name)
    return sum(map(feasible, rows)) / max(1, len(rows))


def _sentence(says: str, names: Sequence[str], beats: dict[str, ranking.Estimate]) -> str:
    if not names:
        return f"{says}: none."
    told = [f"{name} ({' to '.join(map(percent, beats[name][1:]))})" for name in names]
    return f"{says}: {_names(told)}."


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def rivals(found: Found) -> str:
    """On each problem and bound, the method that is best, beside the defaults, and whether it is a rival of FedSGM."""
    rows, ours = [], 0
    pairs = list(dict.fromkeys((case, bound) for case, bound, _ in found.instances))
    for case, bound in pairs:
        here = {at: each for at, each in found.instances.items() if at[:2] == (case, bound)}
        placed = ranking.ranks(here, found.ranked)
        if DEFAULTS not in placed:
            continue
        best = min(placed, key=lambda name: placed[name].mean)
        own = _is_ours(best)
        ours += own
        values = [_at(here, name) for name in (best, DEFAULTS)]
        rows.append(
            [case, f"{bound:g}", best if own else f"**{best}**", *values[0], *values[1], f"{placed[DEFAULTS].mean:.1f}"]
        )
    head = (
        *("problem", "bound", "best", "within", "objective", "defaults within", "defaults' objective"),
        "defaults' place",
    )
    return (
        f"Best by mean place over the splits; a method that is no setting of FedSGM is in bold. On {len(rows) - ours} "
        f"of {len(rows)} problems and bounds a rival is best, on the others some setting of FedSGM.\n\n"
        f"{table(head, rows)}"
    )


def _is_ours(name: str) -> bool:
    return name.split("-")[0] in ("hard", "soft", "adaptive", DEFAULTS)


def _at(here: Mapping[Instance, Mapping[str, Row]], name: str) -> list[str]:
    rows = [each[name] for each in here.values() if name in each]
    within = f"{sum(map(feasible, rows))} of {len(rows)}"
    return [within, number(ranking.mean(rows, lambda row: row["train objective"]))]
