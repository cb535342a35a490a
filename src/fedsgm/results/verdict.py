"""The verdict and the table of a run, in words for a terminal."""

from __future__ import annotations

import numpy as np

from fedsgm.results.method import Method
from fedsgm.results.result import KINDS, RECENT, Result, excess


def verdict(result: Result) -> str:
    """Whether the answer is feasible, first and loudly; then what was measured of it and of the rest."""
    return "\n".join([_headline(result), "", *_values(result), "", *_rounds(result), *_advice(result)])


def found(result: Result) -> str:
    """The round that the answer is of, or the range over seeds; and of how many it was chosen, if not of all."""
    if result.private:
        return "the mean of its models, later ones counting more"
    first, last = result.answer_round.min(), result.answer_round.max()
    told = f"round {first}" if first == last else f"rounds {first} .. {last}"
    measured = int(result.evaluated().sum())
    if measured == result.settings["rounds"]:
        return told
    return f"{told}, of {'the one evaluated round' if measured == 1 else f'{measured} evaluated rounds'}"


def table(result: Result) -> str:
    """One line for each kind of parameters and seed."""
    parts = [(part, name) for part in result.values for name in result.values[part]]
    rows = [["parameters", "seed", *(f"{name} ({part})" for part, name in parts)]]
    for kind in KINDS:
        for j, seed in enumerate(result.settings["seeds"]):
            rows.append([kind, str(seed), *(number(result.value(part, name, kind)[j]) for part, name in parts)])
    return aligned(rows)


def federation(result: Result) -> str:
    """Each client's account of a federated run; nothing for a simulated one."""
    accounts = result.settings.get("federation", {}).get("clients", [])
    if not accounts:
        return ""
    rows = [["client", "answered", "left out", "up", "down", "seconds", "why left out"]]
    for account in accounts:
        why = "; ".join(f"{reason} ({count})" for reason, count in account["left_out"].items())
        left_out, seconds = str(sum(account["left_out"].values())), f"{account['seconds']:.1f}"
        sizes = (_bytes(account["frames_up"]), _bytes(account["frames_down"]))
        rows.append([account["name"], str(account["answered"]), left_out, *sizes, seconds, why])
    return aligned(rows)


def _headline(result: Result) -> str:
    total = len(result.feasible)
    over = int((~result.feasible).sum())
    diverged = int(_diverged(result).sum())
    if over and diverged:
        return f"NOT FEASIBLE: {_seeds(diverged, total)} diverged (not a finite number); take a smaller step size."
    if not result.bounds:
        return f"NO CONSTRAINT: the answer ({found(result)}) has the lowest objective{_last(result)}."
    data = f"on the training data{_of_some(result)}"
    if over and result.private:
        return f"NOT SHOWN TO BE FEASIBLE: with all that noise for privacy may hide, {_over(result, 'answer')} {data}."
    if over:
        some = "" if total == 1 else f" for {_seeds(over, total)}"
        none = not (result.excess_history()[~result.feasible] <= 0).any()
        why = "no round was feasible" if none else "rounds that seemed feasible were measured on fewer clients"
        return (
            f"NOT FEASIBLE: the answer ({found(result)}) is {_over(result, 'answer')} {data}{some}; "
            f"{why}, and this is the least violated."
        )
    every = "" if total == 1 else f" ({_seeds(total, total)})"
    fails = "test" in result.values and not (result.excess("test", "answer") <= 0).all()
    but = ", but NOT on the held-out data" if fails else ""
    sure = "FEASIBLE with probability at least 0.95" if result.private else "FEASIBLE"
    return f"{sure}: the answer ({found(result)}) is within every bound {data}{every}{but}{_last(result)}."


def _last(result: Result) -> str:
    """What is wrong with the last parameters, if anything is, as the end of a sentence."""
    total, diverged = len(result.feasible), int(_diverged(result).sum())
    if diverged:
        some = "" if total == 1 else f" for {_seeds(diverged, total)}"
        return f"; the last parameters diverged{some} (not a finite number), so take a smaller step size"
    over = int((~result.last_feasible).sum())
    some = "" if total == 1 else f" for {_seeds(over, total)}"
    return f"; the last parameters are {_over(result, 'last')}{some}" if over else ""


def _over(result: Result, kind: str) -> str:
    """Over which bounds, the worst named, and by how much."""
    by = {name: excess(result.value("train", name, kind), each) for name, each in result.sure_ranges.items()}
    most = {name: float(np.max(each)) for name, each in by.items()}
    worst = max(most, key=most.__getitem__)
    at = result.value("train", worst, kind)[np.argmax(by[worst])]
    more = sum(value > 0 for value in most.values()) - 1
    others = f" and {_past(result)} {more} more bound{'s' if more > 1 else ''}" if more else ""
    up_to = "up to " if len(result.feasible) > 1 else ""
    return f"{_side(at, result.ranges[worst])} `{worst}` by {up_to}{most[worst]:.2g}{others}"


def _side(value: float, allowed: tuple[float, float]) -> str:
    return "over" if value - allowed[1] >= allowed[0] - value else "under"


def _past(result: Result) -> str:
    """The word for a bound that is not kept, where it may be any of them."""
    return "past" if any(np.isfinite(low) for low, _ in result.ranges.values()) else "over"


def bound_in_words(allowed: tuple[float, float]) -> str:
    """As a column of bounds has it: what is not said to be more is an upper one."""
    low, high = allowed
    if not np.isfinite(low):
        return number(high)
    return f"{number(low)} .. {number(high)}" if np.isfinite(high) else f">= {number(low)}"


def _of_some(result: Result) -> str:
    """Of whose data, where a federated run could not measure the answer on everybody's."""
    clients = result.settings["clients"]
    if "evaluated" not in result.history:
        return ""
    measured = max(int(result.history["evaluated"][0, at]) for at in (result.answer_round[0] - 1, -1))
    return "" if measured == clients else f" of {measured} of {clients} clients (the others did not reply)"


def _diverged(result: Result) -> np.ndarray:
    """The seeds that end with a value that is not finite."""
    last = np.stack([result.value("train", name, "last") for name in result.values["train"]])
    return np.asarray(~np.isfinite(last).all(axis=0))


def _seeds(some: int, total: int) -> str:
    return "the one seed" if total == 1 else f"{some} of {total} seeds"


def _values(result: Result) -> list[str]:
    """The answer's values: the worst seed of each constraint, the range of the objective."""
    over = " (min .. max over seeds)" if len(result.feasible) > 1 else ""
    rows = [["answer", "bound", *(f"{part}{over}" for part in result.values)]]
    for name in ["objective", *result.bounds]:
        row = [name, bound_in_words(result.ranges[name]) if name in result.bounds else ""]
        for part in result.values:
            values = result.value(part, name, "answer")
            text = number(values.min()) if len(values) == 1 else f"{number(values.min())} .. {number(values.max())}"
            if name in result.bounds:
                text += f"  {judged(values, result.ranges[name])}"
            row.append(text)
        rows.append(row)
    return [f"  {line}" for line in aligned(rows).splitlines()]


def judged(values: np.ndarray, allowed: tuple[float, float]) -> str:
    """By the worst seed."""
    by = excess(values, allowed)
    worst = by.max()
    if worst > 0:
        return f"{_side(values[by.argmax()], allowed)} by {worst:.2g}"
    return "within" if worst <= 0 else "undefined"


def _rounds(result: Result) -> list[str]:
    history, settings = result.history, result.settings
    method = Method.of(settings)
    lines = [_other(result, kind) for kind in (("last",) if result.private else ("last", "average"))]
    if result.bounds:
        recent = result.excess_history()[:, -RECENT:]
        measured = int(result.evaluated()[-RECENT:].sum())
        if not np.isnan(recent).all():
            share, worst = result.feasible_rounds.mean(), np.nanmax(recent)
            lines.append(
                f"  rounds     {share:.0%} of the last {measured} evaluated rounds within every bound; "
                f"the worst {f'{_past(result)} by' if worst > 0 else 'within by'} {abs(worst):.2g}"
            )
    lines.append(
        f"  work       {settings['rounds']} rounds, {method.participants} of {method.clients} clients a round"
        f"{method.asked}, E = {method.local_steps}, {settings['parameters']} parameters"
    )
    if "stopped" in settings:
        lines.append(f"  stopped    of {settings['stopped']['of']} rounds: {settings['stopped']['why']}")
    lines += _left_out(result) + _buffers(result) + _private(result)
    lines.append(f"  traffic    {_traffic(history, 'bytes')}, over all clients of a seed")
    if "frames_up" in history:
        lines.append(f"             {_traffic(history, 'frames')} with frames, repeats and evaluations")
    if result.bounds and method.switches:
        told = " ".join(f"{value:.3g}" for value in result.multiplier)
        lines.append(f"  multiplier about {told} (the constraint's weight over the objective's)")
    return lines + _promised(result) + _certified(result)


def _buffers(result: Result) -> list[str]:
    """What became of a PyTorch module's buffers, where it has any."""
    told = result.settings.get("buffers")
    if told is None:
        return []
    names = ", ".join(told["names"][:3]) + (f" and {len(told['names']) - 3} more" if len(told["names"]) > 3 else "")
    if told["are"] == "average":
        return [f"  buffers    averaged over the participants of each round: {names}"]
    end = "the parameters come with " + ("none" if "federation" in result.settings else "the clients' mean of them")
    return [f"  buffers    each client's own, {end}: {names}"]


def _private(result: Result) -> list[str]:
    """What was spent of the privacy budget, and how far noise may have moved the values."""
    told = result.private
    if told is None:
        return []
    spent, sure = float(result.history["epsilon"][0, -1]), result.sure_ranges
    noise = [f"{name} {result.ranges[name][1] - high:.2g}" for name, (_, high) in sure.items() if np.isfinite(high)]
    radii = f"; noise, with probability 0.95 at most: {', '.join(noise)}" if noise else ""
    return [f"  privacy    epsilon {spent:.3g} at delta {told['delta']:g} for one {told['unit']}{radii}"]


def _other(result: Result, kind: str) -> str:
    """Parameters beside the answer: their mean values, and whether they are within the bounds."""
    values = {name: result.value("train", name, kind) for name in result.values["train"]}
    total = len(result.feasible)
    defined = np.isfinite(np.stack([*values.values()])).all(axis=0).reshape(total)
    if not defined.any():
        why = "not a finite number" if _diverged(result).any() else "no round took a step for the objective"
        return f"  {kind:10} undefined: {why}"
    told = ", ".join(f"{name} {number(np.mean(v[defined]))}" for name, v in values.items())
    some = f"mean of {total} seeds" if defined.all() else _seeds(int(defined.sum()), total)
    seeds = "" if total == 1 else f", {some}"
    over = int((result.excess("train", kind)[defined] > 0).sum())
    some = "" if total == 1 else f" for {_seeds(over, total)}"
    judged = f"{_past(result)} a bound{some}" if over else "within every bound"
    return f"  {kind:10} {told} (training{seeds}){f'; {judged}' if result.bounds else ''}"


def _traffic(history: dict[str, np.ndarray], what: str) -> str:
    up, down = (history[f"{what}_{way}"].sum(axis=1).mean() for way in ("up", "down"))
    return f"{_bytes(up)} up, {_bytes(down)} down"


def _left_out(result: Result) -> list[str]:
    """Who missed rounds of a federated run, and mostly why."""
    accounts = [each for each in result.settings.get("federation", {}).get("clients", []) if each["left_out"]]
    told = []
    for account in accounts[:5]:
        reason = max(account["left_out"], key=account["left_out"].__getitem__)
        told.append(f"{account['name']} from {sum(account['left_out'].values())} rounds: {reason}")
    if len(accounts) > 5:
        told.append(f"and {len(accounts) - 5} more clients; fedsgm show has them all")
    return [f"  {'left out' if i == 0 else '':10} {text}" for i, text in enumerate(told)]


def _promised(result: Result) -> list[str]:
    """What theory promised of the average, and what was measured of it."""
    promise = Method.of(result.settings).promise
    if promise is None:
        return []
    goal = f"stationary within {promise['stationarity']:.2g}" if promise["stationarity"] is not None else ""
    if promise["epsilon"] is not None:
        goal = f"objective at most {promise['epsilon']:.2g} above the best possible"
    chance = "" if promise["probability"] in (1, None) else f", with probability {promise['probability']:g}"
    if promise.get("kind") == "expectation":
        chance = ",\n             the objective in the mean over runs, each counted by the rounds in its average"
    guess = f" ({' and '.join(promise['estimated'])} estimated)" if promise["estimated"] else ""
    objective, most = result.value("train", "objective", "average"), result.excess("train", "average").max()
    measured = f"over by at most {most:.2g}" if most > 0 else f"within by {-most:.2g} or more"
    certificate = result.settings.get("certificate")
    if promise["epsilon"] is not None and certificate is not None:
        above = objective.max() - certificate["lower_bound"]
        measured += f", objective {f'at most {above:.2g} above' if above > 0 else 'below'} the best possible"
    return [
        f"  promised   average: over a bound by at most {promise['violation']:.2g}, {goal}{chance}",
        f"             by {promise['source']}{guess}",
        f"  measured   average: {measured if np.isfinite(objective).all() else 'undefined: no round was feasible'}",
    ]


def _certified(result: Result) -> list[str]:
    """How far from the best possible the last parameters can be."""
    certificate = result.settings.get("certificate")
    if certificate is None:
        return []
    multipliers = " ".join(f"{value:.3g}" for value in certificate["multipliers"].values()) or "none"
    objective, best = number(certificate["objective"]), f"{certificate['lower_bound']:.6g}"
    told = f"at most {max(certificate['gap'], 0.0):.2g} above the best possible, which is at least {best}"
    if certificate["violation"] > 0:
        told = f"over a bound by {certificate['violation']:.2g}; the best possible within them is at least {best}"
    return [
        f"  certified  objective {objective}, {told}",
        f"             (last parameters; multiplier {multipliers}, KKT residual {certificate['residual']:.2g})",
    ]


_TIPS = {
    "Hard": "the soft rule keeps a margin of 1/beta below the bound",
    "Soft": "a smaller beta keeps a larger margin below the bound",
    "Adaptive": "a margin keeps it so far below the bound, such as --margin 0.005",
    "Penalty": "a larger rho weighs the constraint more",
    "PrimalDual": "a larger dual step raises the multiplier sooner",
    "Unconstrained": "this rule ignores the constraints, take another",
}


def _advice(result: Result) -> list[str]:
    """What to try when the answer is not feasible, or the end of the run is not."""
    if (result.feasible & result.last_feasible).all() or _diverged(result).any():
        return []
    method = Method.of(result.settings)
    beta, tight = method.rule_settings.get("beta", np.inf), [h for _, h in result.ranges.values() if np.isfinite(h)]
    tips = [_TIPS.get(method.kind, "another rule, for instance Soft, or more rounds")]
    if method.rule == "Soft" and tight and beta * min(tight) < 1:
        tips = [
            f"beta {beta:g} weighs the constraint from 1/beta below the bound, which is more than the bound itself: "
            "take a larger beta, or the adaptive rule"
        ]
    elif method.switches and result.history["weight"].mean() > 0.99:
        tips = ["nearly every round went to the constraint: run more rounds, or check that the bound can be met"]
    elif method.rule != "Unconstrained" and method.samples and not method.asked:
        tips.append("query='all' or 'memory' (--query) decides by all clients, not by a round's few")
    start = "For last parameters that are within, too" if result.feasible.all() else "To try"
    return ["", f"  {start}: {'; '.join(tips)}."]


def number(value: float) -> str:
    return "undefined" if np.isnan(value) else f"{value:.4g}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
