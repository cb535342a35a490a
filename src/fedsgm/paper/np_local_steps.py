"""Neyman-Pearson: the effect of local steps, at every step size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsgm.paper import neyman_pearson as np_task
from fedsgm.paper.claims import compared
from fedsgm.paper.lines import Tuned, by_split, summary
from fedsgm.paper.study import Claim, Findings, Scale, Study, Table
from fedsgm.results.result import Result

STEPS = (1, 2, 5, 10)
LINES = {
    name: [np_task.line(f"{name}, E = {e}", rule, local_steps=e) for e in STEPS] for name, rule in np_task.RULES.items()
}
ALL = [line for lines in LINES.values() for line in lines]


def findings(results: Mapping[str, Result], scale: Scale) -> Findings:
    data = np_task.data(scale)
    tuned = {rule: np_task.tuned(lines, results, scale) for rule, lines in LINES.items()}
    claims, grids = [], []
    for rule, lines in LINES.items():
        step = tuned[rule][STEPS.index(np_task.LOCAL_STEPS)].step
        alike = [line.at(step, data, results) for line in lines]
        claims += _claims(f"{rule}, step size {step:g} for all", alike, alike)
        claims += _claims(f"{rule}, each E at its best", np_task.fastest(lines, results, scale), tuned[rule])
        grids.append(_grid(rule, [line.tried(data, results, scale) for line in lines]))
    every = [line for lines in tuned.values() for line in lines]
    return Findings(np_task.picture(tuned, scale), [*grids, summary(every), by_split(every)], claims, [_NOTE])


def _claims(what: str, fast: Sequence[Tuned], settled: Sequence[Tuned]) -> list[Claim]:
    """``fast`` is at the step sizes for speed, ``settled`` at those for the end."""
    rounds = [line.rounds_to(*np_task.TARGET).mean(axis=1) for line in fast]
    first, last = ((rounds[i] - rounds[i + 1]) / (STEPS[i + 1] - STEPS[i]) for i in (0, len(STEPS) - 2))
    few, many = settled[0], settled[-1]
    return [
        compared(
            f"More local steps are faster ({what})",
            "rounds to the target",
            (fast[-1].label, rounds[-1][:, None]),
            (fast[0].label, rounds[0][:, None]),
        ),
        compared(
            f"More local steps settle at a lower objective ({what})",
            "mean objective of the last 100 rounds",
            (many.label, many.settled),
            (few.label, few.settled),
        ),
        compared(
            f"Each further local step helps less ({what})",
            "rounds saved for each step more",
            (f"E = {STEPS[-2]} to {STEPS[-1]}", last[:, None]),
            (f"E = {STEPS[0]} to {STEPS[1]}", first[:, None]),
        ),
        compared(
            f"The constraint swings more with more local steps ({what})",
            "its standard deviation over a run's last 100 rounds",
            (few.label, few.swing),
            (many.label, many.swing),
        ),
    ]


def _grid(rule: str, lines: Sequence[Sequence[Tuned]]) -> Table:
    """E by step size."""
    rows = [
        [
            f"E = {e}",
            *(
                f"{one.rounds_to(*np_task.TARGET).mean():.0f} / {one.settled.mean():.4f} / {one.level.mean():.4f} / "
                f"{one.swing.mean():.4f}"
                for one in tried
            ),
        ]
        for e, tried in zip(STEPS, lines, strict=True)
    ]
    steps = [f"step size {one.step:g}" for one in lines[0]]
    return Table(
        f"{rule.capitalize()}. Rounds to the target / over the last 100 rounds: objective / constraint / its swing",
        ["", *steps],
        rows,
    )


_NOTE = (
    "Ten local steps of one size go further than one does, so E and the step size are two handles of much the same "
    "thing. The claims are put both ways: with the step size of E = 5 for all, and with each E's own, the one that is "
    "soonest at the target for speed and the tuned one for swings, as the paper tunes it. The grids have all of them."
)

STUDY = Study(
    "np-local-steps",
    "Neyman-Pearson: local steps E",
    "More local steps speed the objective up, with diminishing gains, and oscillations around the bound grow.",
    lambda scale: np_task.runs(ALL, scale),
    findings,
)
