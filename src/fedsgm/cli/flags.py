"""The flags that every command shares that runs the algorithm, and what makes a command of them."""

# Annotations stay objects here, not strings: typer reads them from the fields of RunFlags.

import dataclasses
import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from fedsgm.base.errors import SettingError
from fedsgm.base.files import check_writable
from fedsgm.cli import config as config_file

ALGORITHM, PROBLEM, RUN, OUTPUT = "Algorithm", "Problem and data", "Run", "Output"
COMPRESSOR = (
    "none, topk:0.1, topk:count=3, randk:0.1, randk:count=3, sharedk:0.1, sharedk:0.1:0.25, float16, float8, float4, "
    "int4:64 (int2 to int8, blocks of 64), sign, natural; layers:topk:0.1 compresses each layer by itself."
)


class QueryName(StrEnum):
    participants = "participants"
    all = "all"
    memory = "memory"


class UnheardName(StrEnum):
    asked = "asked"
    left_out = "left-out"


class TrackerName(StrEnum):
    tensorboard = "tensorboard"
    mlflow = "mlflow"
    trackio = "trackio"


class RuleName(StrEnum):
    hard = "hard"
    soft = "soft"
    adaptive = "adaptive"
    penalty = "penalty"
    primal_dual = "primal-dual"
    unconstrained = "unconstrained"
    ipp_conex = "ipp-conex"


OWN: dict[RuleName, tuple[str, ...]] = {
    RuleName.hard: ("margin",),
    RuleName.soft: ("beta", "ceiling", "margin"),
    RuleName.adaptive: ("adapt", "margin"),
    RuleName.penalty: ("rho",),
    RuleName.primal_dual: ("dual_step", "augment"),
    RuleName.unconstrained: (),
    RuleName.ipp_conex: ("proximal", "primal_scale", "dual_scale", "offset", "inner_steps"),
}
"""The flags that only some rules use, in the order that their classes take them."""

_NOT_IPP_CONEX = (
    *("step_size", "anneal", "centralized", "participants", "query", "unheard", "uplink", "downlink", "memory"),
)


def relevant(setting: dict[str, Any], rule: RuleName) -> dict[str, Any]:
    """A setting without what only another rule would use."""
    unused = {name for names in OWN.values() for name in names} - set(OWN[rule])
    if rule is RuleName.ipp_conex:
        unused.update(_NOT_IPP_CONEX)
    return {name: value for name, value in setting.items() if name not in unused}


def option(*flags: str, panel: str, help: str, **more: Any) -> Any:
    return typer.Option(*flags, rich_help_panel=panel, help=help, **more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFlags:
    """How to run the algorithm; a command says its own defaults with :func:`command`."""

    rule: Annotated[
        RuleName,
        option(panel=ALGORITHM, metavar="RULE", help=f"How violation becomes a direction: {', '.join(RuleName)}."),
    ] = RuleName.soft
    beta: Annotated[float, option(panel=ALGORITHM, help="Sharpness of the soft rule.")] = 40.0
    ceiling: Annotated[float, option(panel=ALGORITHM, help="Largest weight of the constraint, soft rule.")] = 1.0
    adapt: Annotated[
        float, option(panel=ALGORITHM, help="How fast the adaptive rule's shares follow the violations.")
    ] = 2.0
    rho: Annotated[float, option(panel=ALGORITHM, help="Weight of the penalty rule.")] = 1.0
    dual_step: Annotated[float, option(panel=ALGORITHM, help="Multiplier step of the primal-dual rule.")] = 0.1
    augment: Annotated[
        float, option(panel=ALGORITHM, help="Weight of the violation in the primal-dual rule: augmented Lagrangian.")
    ] = 0.0
    step_size: Annotated[
        float | None, option(panel=ALGORITHM, help="Step size, eta; of a fit, the model's own unless told.")
    ] = 0.1
    anneal: Annotated[
        float,
        option(panel=ALGORITHM, help="Share of the step size that is left at the end, along a cosine; 1 keeps it."),
    ] = 1.0
    proximal: Annotated[float, option(panel=ALGORITHM, help="Weight of ipp-conex's proximal term.")] = 0.1
    primal_scale: Annotated[float, option(panel=ALGORITHM, help="ipp-conex: step t is 1/(this (t + offset)).")] = 0.05
    offset: Annotated[float, option(panel=ALGORITHM, help="ipp-conex: where its step sizes begin.")] = 400.0
    dual_scale: Annotated[float, option(panel=ALGORITHM, help="ipp-conex: the multiplier moves by 1/this.")] = 2.0
    inner_steps: Annotated[int, option(panel=ALGORITHM, help="ipp-conex: steps for each proximal point.")] = 50
    centralized: Annotated[
        bool,
        option(
            "--centralized",
            panel=ALGORITHM,
            help="All data with one client: rounds x E single steps, measured every E (ipp-conex always is).",
        ),
    ] = False
    local_steps: Annotated[int, option(panel=ALGORITHM, help="Local steps a round, E.")] = 5
    participants: Annotated[int, option(panel=ALGORITHM, help="Clients drawn each round, m; 0 is all.")] = 0
    query: Annotated[
        QueryName,
        option(
            panel=ALGORITHM,
            metavar="QUERY",
            help="Whose constraints decide: those of the participants, of all, or everybody's last (memory).",
        ),
    ] = QueryName.participants
    unheard: Annotated[
        UnheardName,
        option(panel=ALGORITHM, metavar="WHAT", help="Clients that memory never heard: asked first, or left-out."),
    ] = UnheardName.asked
    margin: Annotated[
        str, option(panel=ALGORITHM, help="How far below the bound hard and soft switch: 0.01, or se:1.645 errors.")
    ] = "0"
    tolerance: Annotated[float, option(panel=ALGORITHM, help="Slack over the bound before a round switches.")] = 0.0
    uplink: Annotated[str, option(panel=ALGORITHM, help="Compression from clients: " + COMPRESSOR)] = "none"
    downlink: Annotated[str, option(panel=ALGORITHM, help="Compression to clients, as for uplink.")] = "none"
    memory: Annotated[
        bool, option(panel=ALGORITHM, help="Error feedback: what compression leaves out is sent later, not lost.")
    ] = True
    radius: Annotated[float | None, option(panel=ALGORITHM, help="Keep the parameters in a ball of this radius.")] = (
        None
    )
    box: Annotated[float | None, option(panel=ALGORITHM, help="Keep every parameter within plus or minus this.")] = None
    batch_size: Annotated[int, option(panel=ALGORITHM, help="Examples for each local gradient; 0 is all.")] = 0
    constraint_batch_size: Annotated[
        int, option(panel=ALGORITHM, help="Examples for each constraint query; 0 is all.")
    ] = 0
    rounds: Annotated[int, option(panel=RUN, help="Rounds, T.")] = 500
    seeds: Annotated[int, option(panel=RUN, help="How many seeds, in one program.")] = 1
    seed: Annotated[int, option(panel=RUN, help="The first seed.")] = 0
    evaluate_every: Annotated[
        int | None,
        option(
            panel=RUN,
            help="Measure the true values every so many rounds; 0 is only at the end. Unless told, every round, "
            "or less often if that is much beside a round's work.",
        ),
    ] = None
    checkpoint: Annotated[Path | None, option(panel=RUN, help="Folder to save the run in as it goes.")] = None
    checkpoint_every: Annotated[int, option(panel=RUN, help="Rounds between checkpoints.")] = 100
    resume: Annotated[bool, option("--resume", panel=RUN, help="Go on from the checkpoint that is there.")] = False
    debug: Annotated[bool, option("--debug", panel=RUN, help="Op by op, uncompiled; errors name the client.")] = False
    out: Annotated[Path, option(panel=OUTPUT, help="Folder for the run; a run that is there is replaced.")] = Path(
        "run"
    )
    progress: Annotated[bool, option(panel=OUTPUT, help="Show progress on standard error.")] = True
    watch: Annotated[
        bool, option("--watch", panel=OUTPUT, help="Serve the run's page on 127.0.0.1 while it goes on.")
    ] = False
    log: Annotated[
        Path | None, option(panel=OUTPUT, metavar="FILE", help="A line of JSON for each round and seed, as they come.")
    ] = None
    track: Annotated[
        list[TrackerName] | None,
        option(
            panel=OUTPUT,
            metavar="TRACKER",
            help="Also log to tensorboard (in OUT/tensorboard), mlflow (MLFLOW_TRACKING_URI) or trackio (TRACKIO_DIR); "
            "may be given again.",
        ),
    ] = None
    require_feasible: Annotated[
        bool, option("--require-feasible", panel=OUTPUT, help="Exit with 3 if a seed's answer is not feasible.")
    ] = False
    config: Annotated[
        Path | None,
        option(
            panel=RUN, help="TOML file of these settings; flags win over it.", is_eager=True, callback=config_file.read
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.resume and self.checkpoint is None:
            raise SettingError("--resume needs --checkpoint DIR, the folder to go on from")
        if self.radius is not None and self.box is not None:
            raise SettingError("--radius and --box: give one of them, X is a ball or a box")
        log = None if self.log is None else self.log.parent
        for flag, folder in (("--out", self.out), ("--checkpoint", self.checkpoint), ("--log", log)):
            if folder is not None:
                check_writable(flag, folder)

    def settings(self) -> dict[str, Any]:
        """What a configuration file would need to repeat the run."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in given.items() if name not in _NOT_SETTINGS and value is not None}


LISTENING = ("watch", "log", "track")
_NOT_SETTINGS = (
    *("config", "resume", "out", "checkpoint", "checkpoint_every", "progress", "require_feasible", "debug", *LISTENING),
)


def ignored(flags: RunFlags, defaults: dict[str, Any]) -> list[str]:
    """What was set, other than a command has it, and is of no effect: in a sentence each."""
    plain = {field.name: field.default for field in dataclasses.fields(RunFlags)} | defaults
    changed = {name: value for name, value in flags.settings().items() if value != plain.get(name)}
    used = relevant(changed, flags.rule)
    notes = []
    for name in changed:
        if name not in used:
            rules = ", ".join(rule for rule in OWN if name in OWN[rule]) or "all rules but ipp-conex"
            flag = f"--{name.replace('_', '-')}"
            notes.append(f"{flag} is of no effect with --rule {flags.rule}: it is for {rules}; leave it out")
    if "unheard" in used and flags.query is not QueryName.memory:
        notes.append("--unheard is of no effect without --query memory; leave it out, or add that")
    return notes


def command(
    function: Callable[..., int], own: list[inspect.Parameter], defaults: dict[str, Any], without: tuple[str, ...] = ()
) -> Any:
    """``function(flags, **own)`` as a command with its own flags and those of :class:`RunFlags`."""
    names = [field.name for field in dataclasses.fields(RunFlags) if field.name not in without]

    @functools.wraps(function)
    def run(**given: Any) -> int:
        flags = RunFlags(**defaults | {name: given.pop(name) for name in names})
        return function(flags, **given)

    shared = [parameter.replace(default=defaults.get(parameter.name, parameter.default)) for parameter in _parameters()]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*own, *(parameter for parameter in shared if parameter.name in names)]
    )
    return run


def own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """A function's parameters, their annotations as objects."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def value_types(own: list[inspect.Parameter]) -> dict[str, Callable[[str], Any]]:
    """What reads a text as the value of a setting, for the flags that are settings."""
    types = {}
    for parameter in (*own, *_parameters()):
        annotated = get_args(parameter.annotation)[0]
        kind = (get_args(annotated) or (annotated,))[0]  # of "float | None", float
        if parameter.name not in _NOT_SETTINGS:
            types[parameter.name] = _truth if kind is bool else kind
    return types


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


@functools.cache
def _parameters() -> list[inspect.Parameter]:
    hints = get_type_hints(RunFlags, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(RunFlags)
    ]
