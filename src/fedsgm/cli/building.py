"""What the flags of a run come to: the algorithm, and the run itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.base.layout import start_of
from fedsgm.base.structs import check_count, check_participants
from fedsgm.cli.flags import COMPRESSOR, OWN, RuleName, RunFlags


def algorithm(flags: RunFlags, params: Any) -> Any:
    """The algorithm, for parameters such as these."""
    import fedsgm as fs
    from fedsgm.methods import IPPConEx

    shared: dict[str, Any] = {
        "tolerance": flags.tolerance,
        "project": _projection(flags.radius, flags.box),
        "batch_size": flags.batch_size or None,
        "constraint_batch_size": flags.constraint_batch_size or None,
    }
    params = start_of(params, flags.seed)
    own = {name: getattr(flags, name) for name in OWN[flags.rule]}
    if "margin" in own:
        own["margin"] = parse_margin(own["margin"])
    check_count("FedSGM", "local_steps", flags.local_steps)
    if flags.rule is RuleName.ipp_conex:
        return IPPConEx(**own, local_steps=flags.local_steps, **shared)
    rules: dict[RuleName, Callable[..., Any]] = {
        RuleName.hard: fs.Hard,
        RuleName.soft: fs.Soft,
        RuleName.adaptive: fs.Adaptive,
        RuleName.penalty: fs.Penalty,
        RuleName.primal_dual: fs.PrimalDual,
        RuleName.unconstrained: fs.Unconstrained,
    }
    return fs.FedSGM(
        step_size=_step_size(flags),
        local_steps=1 if flags.centralized else flags.local_steps,
        participants=_participants(flags),
        rule=rules[flags.rule](*own.values()),
        uplink=parse_compressor(flags.uplink, params),
        downlink=parse_compressor(flags.downlink, params),
        query=str(flags.query),
        unheard=flags.unheard.replace("-", " "),
        memory=flags.memory,
        **shared,
    )


def check(flags: RunFlags, clients: int, params: Any) -> None:
    """Refuse, before anything runs, what no algorithm for so many clients can be made of."""
    algorithm(flags, params)
    if flags.rule is not RuleName.ipp_conex:
        check_participants(_participants(flags), clients)


def simulate(flags: RunFlags, problem: Any, clients: Any, params: Any, test: Any, callbacks: Sequence[Any] = ()) -> Any:
    """The run in one program; its :class:`fedsgm.Result`."""
    import fedsgm as fs

    kept = None if flags.checkpoint is None else fs.Checkpoint(flags.checkpoint, flags.checkpoint_every, flags.resume)
    if flags.rule is RuleName.ipp_conex and not isinstance(problem, fs.Problem):
        raise SettingError("--rule ipp-conex: it needs the gradients of a problem over examples; take another rule")
    if flags.centralized or flags.rule is RuleName.ipp_conex:
        problem, clients = problem.centralized(clients)
    made = algorithm(flags, params)
    each = flags.local_steps // made.local_steps  # centralised, a local step is a round
    return fs.simulate(
        made,
        problem,
        clients,
        params,
        rounds=flags.rounds * each,
        seed=flags.seed,
        seeds=flags.seeds,
        test=test,
        evaluate_every=_every(flags, each),
        checkpoint=kept,
        progress=flags.progress,
        debug=flags.debug,
        callbacks=callbacks,
    )


def _every(flags: RunFlags, each: int) -> int | None:
    """As told, in rounds of the engine; unless told, the engine's choice, or where a local step is a round, every E."""
    if flags.evaluate_every is None:
        return None if each == 1 else each
    return flags.evaluate_every * each


def _step_size(flags: RunFlags) -> Any:
    """A number, or a function of the round where it falls; centralised, each local step is a round."""
    if not 0 < flags.anneal <= 1:
        raise SettingError(f"--anneal {flags.anneal:g}: a share of the step size is above 0 and at most 1")
    assert flags.step_size is not None, "a fit has asked its model"
    if flags.anneal == 1:
        return flags.step_size
    from fedsgm.tables import recipe

    rounds = flags.rounds * (flags.local_steps if flags.centralized else 1)
    return recipe.Falling(flags.step_size, max(rounds, 1), flags.anneal)


def _participants(flags: RunFlags) -> int | None:
    return None if flags.centralized else flags.participants or None


def _projection(radius: float | None, box: float | None) -> Callable[[Any], Any] | None:
    for name, value in (("radius", radius), ("box", box)):
        if value is not None and not value > 0:
            raise SettingError(f"--{name} {value:g}: it must be above 0")
    if radius is not None:
        from optax.projections import projection_l2_ball

        return functools.partial(projection_l2_ball, scale=radius)
    if box is not None:
        return functools.partial(_clip, limit=box)
    return None


def _clip(params: Any, *, limit: float) -> Any:
    """The projection onto the box; optax's wants bounds of the parameters' own structure."""
    import jax

    return jax.tree.map(lambda leaf: leaf.clip(-limit, limit), params)


def parse_margin(text: str) -> Any:
    """``0.01``, in units of the constraint, or ``se:1.645``, in standard errors of its estimate."""
    import fedsgm as fs

    kind, errors, number = text.strip().rpartition("se:")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if kind or not 0 <= value < float("inf"):
        raise SettingError(f"--margin {text}: write a number, 0 or more, such as 0.01, or se:1.645 for standard errors")
    return fs.StandardErrors(value) if errors else value


def parse_compressor(text: str, params: Any) -> Any:
    """``topk:0.1`` and the like; ``layers:`` before it compresses each array of ``params`` by itself."""
    import fedsgm as fs

    kind, _, argument = text.strip().lower().partition(":")
    wrong = SettingError(f"compressor {text!r}: write {COMPRESSOR.split(';')[0]}")
    if kind == "layers":
        if not argument:
            raise wrong
        return fs.Layerwise.of(parse_compressor(argument, params), params)
    try:
        if kind in ("topk", "randk", "sharedk"):
            make: Any = {"topk": fs.TopK, "randk": fs.RandK, "sharedk": fs.SharedK}[kind]
            argument, colon, history = argument.partition(":") if kind == "sharedk" else (argument, "", "")
            if colon:
                make = functools.partial(make, history=float(history))
            name, equals, count = argument.partition("=")
            if equals and name == "count":
                return make(count=int(count))
            return make(float(argument))
        if kind.startswith(("float", "int")):
            return fs.Quantize(kind, block=int(argument) if argument else None)
    except SettingError:
        raise
    except ValueError:
        raise wrong from None
    plain = {"none": fs.Identity, "sign": fs.ScaledSign, "natural": fs.Natural}
    if kind not in plain or argument:
        raise wrong
    return plain[kind]()
