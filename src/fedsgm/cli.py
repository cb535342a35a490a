"""The command line. Errors are one sentence and an exit code: 1 the run failed, 2 the command was wrong."""

from __future__ import annotations

import functools
import json
import sys
import tomllib
import warnings
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsgm.errors import FedSGMError, SettingError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Constrained federated learning: minimise a loss over many clients, subject to constraints.",
)
run = typer.Typer(no_args_is_help=True, help="Run an experiment and save it in a folder.")
app.add_typer(run, name="run")


def main() -> None:
    """The console script."""
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except FedSGMError as error:
        _stop(str(error), 2 if isinstance(error, SettingError) else 1)
    except (OSError, MemoryError) as error:
        _stop(f"{type(error).__name__}: {error}", 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer raises for a wrong command has one
            raise
        message = error.format_message()
        if not message:  # no command was given, and the help is printed
            sys.exit(2)
        _stop(message, 2)
    sys.exit(code if isinstance(code, int) else 0)


def _stop(message: str, code: int) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


class RuleName(StrEnum):
    hard = "hard"
    soft = "soft"
    penalty = "penalty"
    primal_dual = "primal-dual"
    unconstrained = "unconstrained"


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Values of a TOML file become the flags' defaults; flags on the command line win."""
    if path is None or context.resilient_parsing:
        return path
    try:
        given = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingError(f"--config {path}: there is no such file") from None
    except IsADirectoryError:
        raise SettingError(f"--config {path}: a folder, but it must be a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"--config {path}: not a TOML file ({error})") from None
    flags = {str(parameter.name) for parameter in context.command.params} - {"config", "help"}
    for key, value in given.items():
        if key.replace("-", "_") not in flags:
            known = ", ".join(sorted(flag.replace("_", "-") for flag in flags))
            raise SettingError(f"--config {path}: unknown setting {key!r}; the settings are {known}")
        if isinstance(value, (dict, list)):
            raise SettingError(f"--config {path}: {key} must be one value, not a table or a list")
    context.default_map = {key.replace("-", "_"): value for key, value in given.items()}
    if len(context.default_map) < len(given):
        twice = next(key for key in given if "_" in key and key.replace("_", "-") in given)
        raise SettingError(f"--config {path}: {twice} is given twice, with a hyphen and with an underscore")
    return path


def _option(*flags: str, panel: str, help: str, **more: Any) -> Any:
    return typer.Option(*flags, rich_help_panel=panel, help=help, **more)


_ALGORITHM, _PROBLEM, _RUN, _OUTPUT = "Algorithm", "Problem and data", "Run", "Output"
_COMPRESSOR = (
    "none, topk:0.1, topk:count=3, randk:0.1, randk:count=3, float16, float8, float4, "
    "int4:64 (int2 to int8, blocks of 64), sign, natural; layers:topk:0.1 compresses each layer by itself."
)


@run.command("neyman-pearson")
def neyman_pearson(
    rule: Annotated[
        RuleName,
        _option(panel=_ALGORITHM, metavar="RULE", help=f"How violation becomes a direction: {', '.join(RuleName)}."),
    ] = RuleName.soft,
    beta: Annotated[float, _option(panel=_ALGORITHM, help="Sharpness of the soft rule.")] = 40.0,
    rho: Annotated[float, _option(panel=_ALGORITHM, help="Weight of the penalty rule.")] = 1.0,
    dual_step: Annotated[float, _option(panel=_ALGORITHM, help="Multiplier step of the primal-dual rule.")] = 0.1,
    step_size: Annotated[float, _option(panel=_ALGORITHM, help="Step size, eta.")] = 0.3,
    local_steps: Annotated[int, _option(panel=_ALGORITHM, help="Local steps a round, E.")] = 5,
    participants: Annotated[int, _option(panel=_ALGORITHM, help="Clients drawn each round, m; 0 is all.")] = 10,
    tolerance: Annotated[float, _option(panel=_ALGORITHM, help="Slack over the bound before a round switches.")] = 0.0,
    uplink: Annotated[str, _option(panel=_ALGORITHM, help="Compression from clients: " + _COMPRESSOR)] = "topk:0.1",
    downlink: Annotated[str, _option(panel=_ALGORITHM, help="Compression to clients, as for uplink.")] = "topk:0.1",
    radius: Annotated[
        float | None, _option(panel=_ALGORITHM, help="Keep the parameters in a ball of this radius.")
    ] = None,
    box: Annotated[
        float | None, _option(panel=_ALGORITHM, help="Keep every parameter within plus or minus this.")
    ] = None,
    batch_size: Annotated[int, _option(panel=_ALGORITHM, help="Examples for each local gradient; 0 is all.")] = 0,
    constraint_batch_size: Annotated[
        int, _option(panel=_ALGORITHM, help="Examples for each constraint query; 0 is all.")
    ] = 0,
    bound: Annotated[float, _option(panel=_PROBLEM, help="Bound on the minority class's loss.")] = 0.05,
    clients: Annotated[int, _option(panel=_PROBLEM, help="Clients, n.")] = 20,
    split: Annotated[int, _option(panel=_PROBLEM, help="Seed of the train/test split and of the deal to clients.")] = 0,
    rounds: Annotated[int, _option(panel=_RUN, help="Rounds, T.")] = 500,
    seeds: Annotated[int, _option(panel=_RUN, help="How many seeds, in one program.")] = 3,
    seed: Annotated[int, _option(panel=_RUN, help="The first seed.")] = 0,
    evaluate_every: Annotated[
        int, _option(panel=_RUN, help="Measure the true values every so many rounds; 0 is only at the end.")
    ] = 1,
    checkpoint: Annotated[Path | None, _option(panel=_RUN, help="Folder to save the run in as it goes.")] = None,
    checkpoint_every: Annotated[int, _option(panel=_RUN, help="Rounds between checkpoints.")] = 100,
    resume: Annotated[bool, _option("--resume", panel=_RUN, help="Go on from the checkpoint that is there.")] = False,
    debug: Annotated[
        bool, _option("--debug", panel=_RUN, help="Op by op, uncompiled; errors name the client.")
    ] = False,
    out: Annotated[Path, _option(panel=_OUTPUT, help="Folder for the run; a run that is there is replaced.")] = Path(
        "runs/neyman-pearson"
    ),
    progress: Annotated[bool, _option(panel=_OUTPUT, help="Show progress on standard error.")] = True,
    require_feasible: Annotated[
        bool, _option("--require-feasible", panel=_OUTPUT, help="Exit with 3 if a seed does not end feasible.")
    ] = False,
    config: Annotated[
        Path | None,
        _option(
            panel=_RUN, help="TOML file of these settings; flags win over it.", is_eager=True, callback=_read_config
        ),
    ] = None,
) -> int:
    """Least loss on the majority class with the minority's loss within a bound (breast cancer data).

    The defaults are the paper's experiment. The run folder gets history.parquet, params.safetensors,
    settings.toml (give it to --config to repeat the run), result.json and history.png.
    """
    settings = {k: v for k, v in locals().items() if k not in _NOT_SETTINGS and v is not None}
    if resume and checkpoint is None:
        raise SettingError("--resume needs --checkpoint DIR, the folder to go on from")
    if radius is not None and box is not None:
        raise SettingError("--radius and --box: give one of them, X is a ball or a box")
    for flag, folder in (("--out", out), ("--checkpoint", checkpoint)):
        _check_folder(flag, folder)

    import fedsgm as fs
    from fedsgm.tasks import neyman_pearson as task

    dealt, test, params = task.load(clients=clients, split_seed=split)
    algorithm = fs.FedSGM(
        step_size=step_size,
        local_steps=local_steps,
        participants=participants or None,
        rule=_rule(rule, beta=beta, rho=rho, dual_step=dual_step),
        tolerance=tolerance,
        uplink=parse_compressor(uplink, params),
        downlink=parse_compressor(downlink, params),
        project=_projection(radius, box),
        batch_size=batch_size or None,
        constraint_batch_size=constraint_batch_size or None,
    )
    result = fs.simulate(
        algorithm,
        task.neyman_pearson(bound),
        dealt,
        params,
        rounds=rounds,
        seed=seed,
        seeds=seeds,
        test=test,
        evaluate_every=evaluate_every,
        checkpoint=None if checkpoint is None else fs.Checkpoint(checkpoint, checkpoint_every, resume),
        progress=progress,
        debug=debug,
    )
    print(result.verdict(), flush=True)
    _save(result, out, {"task": "neyman-pearson", **settings})
    return 3 if require_feasible and not result.feasible.all() else 0


_NOT_SETTINGS = ("config", "resume", "out", "checkpoint", "checkpoint_every", "progress", "require_feasible", "debug")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    plot: Annotated[Path | None, typer.Option(help="Where to draw its picture; RUN/history.png unless told.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Also print every seed's values.")] = False,
) -> None:
    """Print a finished run's verdict and draw its picture again."""
    from fedsgm.result import Result

    result = Result.load(folder)
    print(result.verdict())
    if table:
        print(f"\n{result.table()}")
    picture = plot or folder / "history.png"
    result.plot(picture)
    print(f"\nPicture: {picture}")


def _check_folder(flag: str, folder: Path | None) -> None:
    """Refuse, before the run, a folder that cannot be made because a file is in its way."""
    for path in () if folder is None else (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise SettingError(f"{flag} {folder}: {path} is a file, but a folder is needed there")


def _toml(value: Any) -> str:
    """JSON's strings, whole numbers and truth values are TOML; its infinite floats are not."""
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _save(result: Any, out: Path, settings: dict[str, Any]) -> None:
    from fedsgm.files import write_atomically

    lines = [f"{key.replace('_', '-')} = {_toml(value)}" for key, value in settings.items() if key != "task"]
    text = f"# fedsgm run {settings['task']} --config settings.toml\n" + "\n".join(lines) + "\n"
    write_atomically(out / "settings.toml", text.encode())
    result.save(out)
    result.plot(out / "history.png")
    print(f"\nSaved in {out}: history.parquet, params.safetensors, settings.toml, result.json, history.png")


def _rule(name: RuleName, *, beta: float, rho: float, dual_step: float) -> Any:
    import fedsgm as fs

    rules: dict[RuleName, Callable[[], Any]] = {
        RuleName.hard: fs.Hard,
        RuleName.soft: lambda: fs.Soft(beta),
        RuleName.penalty: lambda: fs.Penalty(rho),
        RuleName.primal_dual: lambda: fs.PrimalDual(dual_step),
        RuleName.unconstrained: fs.Unconstrained,
    }
    return rules[name]()


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


def parse_compressor(text: str, params: Any) -> Any:
    """``topk:0.1`` and the like; ``layers:`` before it compresses each array of ``params`` by itself."""
    import fedsgm as fs

    kind, _, argument = text.strip().lower().partition(":")
    wrong = SettingError(f"compressor {text!r}: write {_COMPRESSOR.split(';')[0]}")
    if kind == "layers":
        if not argument:
            raise wrong
        return fs.Layerwise.of(parse_compressor(argument, params), params)
    try:
        if kind in ("topk", "randk"):
            make = fs.TopK if kind == "topk" else fs.RandK
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
