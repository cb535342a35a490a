"""The command line. Errors are one sentence and an exit code: 1 the run failed, 2 the command was wrong."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import warnings
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsgm.base.errors import FedSGMError, SettingError
from fedsgm.cli.flags import (
    OUTPUT,
    PROBLEM,
    RUN,
    RunFlags,
    command,
    option,
    own_parameters,
    relevant,
    value_types,
)
from fedsgm.cli.setups import SETUPS, Setup, widths
from fedsgm.tables.grammar import OF_CLASS, OF_GROUPS

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
run = typer.Typer(no_args_is_help=True, help="Run an experiment and save it in a folder.")
app.add_typer(run, name="run")
sweep = typer.Typer(no_args_is_help=True, help="Run an experiment for a grid of settings.")
app.add_typer(sweep, name="sweep")
federate = typer.Typer(no_args_is_help=True, help="Run where every client is a process of its own (NVIDIA FLARE).")
app.add_typer(federate, name="federate")
local = typer.Typer(no_args_is_help=True, help="Run an experiment as a federation of processes on this machine.")
federate.add_typer(local, name="local")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("fedsgm"))
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Constrained federated learning: minimise a loss over many clients, subject to constraints."""


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


_NOT_FEDERATED = ("seeds", "debug", "checkpoint_every", "centralized")
_IPP_CONEX = ("proximal", "primal_scale", "offset", "dual_scale", "inner_steps")


def _task(
    name: str, *, without: tuple[str, ...] = (), also: Callable[..., None] | None = None, **defaults: Any
) -> None:
    """Make ``run NAME``, ``sweep NAME`` and ``federate local NAME`` of an experiment."""
    setup = SETUPS[name]

    def run_one(flags: RunFlags, **own: Any) -> int:
        render = own.pop("render", None)
        if render is not None and render.suffix != ".gif":
            raise SettingError(f"--render {render}: the name of a moving picture must end in .gif")
        problem, clients, params, test = setup(**own)
        result = flags.simulate(problem, clients, params, test)
        print(result.verdict(), flush=True)
        _save(result, flags.out, f"run {name}", _plain(own) | flags.settings())
        if render is not None:
            _render(problem, result, render)
        return 3 if flags.require_feasible and not result.feasible.all() else 0

    def sweep_all(flags: RunFlags, vary: list[str] | None, resume: bool, **own: Any) -> int:
        return _sweep(flags, vary or [], resume, setup, own)

    def federate_one(flags: RunFlags, port: int, timeout: float, min_participants: int, **own: Any) -> int:
        from fedsgm.cli import rehearsal

        given = _plain({key: value.resolve() if isinstance(value, Path) else value for key, value in own.items()})
        limits = {"timeout": timeout, "min_participants": min_participants}
        result = rehearsal.run(name, given, flags, port=port, **limits)
        print(result.verdict(), flush=True)
        unknown = _NOT_FEDERATED + _IPP_CONEX
        settings = {key: value for key, value in flags.settings().items() if key not in unknown}
        _save(result, flags.out, f"federate local {name}", given | limits | settings)
        return 3 if flags.require_feasible and not result.feasible.all() else 0

    parameters = own_parameters(setup)
    more = own_parameters(also) if also else []
    run_one.__doc__ = setup.__doc__
    sweep_all.__doc__ = f"Run {name} for every combination of settings; the best feasible one is named."
    run.command(name)(command(run_one, [*parameters, *more], defaults | {"out": Path("runs") / name}, without))
    outside = ("checkpoint", "checkpoint_every", "resume", "debug", "require_feasible")
    sweep.command(name)(
        command(
            sweep_all,
            [*own_parameters(_sweep_flags), *parameters],
            defaults | {"out": Path("sweeps") / name},
            without=outside + without,
        )
    )
    federate_one.__doc__ = f"Run {name} with a server and every client as a process, over mutual TLS on 127.0.0.1."
    few = [each.replace(default=5) if each.name == "clients" else each for each in parameters]
    local.command(name)(
        command(
            federate_one,
            [*few, *own_parameters(_local_flags)],
            defaults | {"out": Path("runs") / f"federated-{name}", "participants": 0, "seeds": 1},
            without=_NOT_FEDERATED + _IPP_CONEX + without,
        )
    )


def _local_flags(
    port: Annotated[int, option(panel=RUN, help="The server's port; 0 is a free one.")] = 0,
    timeout: Annotated[float, option(panel=RUN, help="Seconds that a client has for an answer.")] = 60.0,
    min_participants: Annotated[int, option(panel=RUN, help="A round that fewer answer is repeated.")] = 1,
) -> None:
    """The flags that a federation has of its own."""


def _sweep_flags(
    vary: Annotated[
        list[str] | None,
        option(panel=RUN, help="SETTING=VALUE,VALUE,... of any flag, such as step-size=0.1,0.3; may be given again."),
    ] = None,
    resume: Annotated[bool, option("--resume", panel=RUN, help="Keep what the folder has, run the rest.")] = False,
) -> None:
    """The flags that a sweep has of its own."""


def _sweep(flags: RunFlags, vary: list[str], resume: bool, setup: Setup, own: dict[str, Any]) -> int:
    from fedsgm.base.structs import check_participants
    from fedsgm.cli import grid as sweeps
    from fedsgm.results import comparison

    fixed = own | {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags)}
    settings = sweeps.grid(vary, value_types(own_parameters(setup)))
    base = {name: value for name, value in (_plain(own) | flags.settings()).items() if name not in settings[0]}
    data = functools.cache(lambda **given: setup(**given))

    reduced = [relevant(setting, setting.get("rule", flags.rule)) for setting in settings]
    for name in settings[0]:
        if not any(name in setting for setting in reduced):
            rules = ", ".join(sorted({str(setting.get("rule", flags.rule)) for setting in settings}))
            raise SettingError(f"--vary {name.replace('_', '-')}: nothing would change, {rules} does not use it")
    distinct = list({sweeps.label(setting): setting for setting in reduced}.values())

    def prepare(setting: dict[str, Any]) -> tuple[RunFlags, Any]:
        given = fixed | setting | {"progress": False}
        chosen = RunFlags(**{name: value for name, value in given.items() if name not in own})
        return chosen, data(**{name: given[name] for name in own})

    def simulate(setting: dict[str, Any]) -> Any:
        chosen, experiment = prepare(setting)
        return chosen.simulate(*experiment)

    for setting in distinct:  # a wrong value is found now, not when its turn comes
        chosen, (_, clients, params, _) = prepare(setting)
        check_participants(chosen.algorithm(params).participants, len(clients))
    rows = sweeps.run(distinct, simulate, folder=flags.out, base=base, resume=resume, progress=flags.progress)
    print(f"{comparison.table(comparison.ranked(rows))}\n\n{comparison.best(rows)}", flush=True)
    comparison.plot(rows, flags.out / "sweep.png")
    print(f"\nSaved in {flags.out}: sweep.parquet, sweep.png")
    return 0


def _render_flag(
    render: Annotated[Path | None, option(panel=OUTPUT, help="GIF of an episode of the learnt policy.")] = None,
) -> None:
    """The flag that cartpole has of its own beside its settings."""


_task("neyman-pearson", step_size=0.3, participants=10, uplink="topk:0.1", downlink="topk:0.1", seeds=3)
_task("fair-adult", local_steps=2, participants=5, batch_size=64, seeds=5, evaluate_every=5)
_task(
    "cartpole",
    also=_render_flag,
    step_size=1.0,
    beta=0.3,
    local_steps=1,
    participants=7,
    evaluate_every=10,
    without=("batch_size", "constraint_batch_size"),
)


def _render(task: Any, result: Any, path: Path) -> None:
    """An episode of the first seed's last parameters."""
    import jax

    from fedsgm.tasks import cmdp

    cmdp.render(task, jax.tree.map(lambda a: a[0], result.last), path)
    print(f"Episode: {path}")


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a configuration file has them; what was not given is not in it."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in settings.items() if value is not None
    }


_CONSTRAINTS = (
    'Such as "demographic_parity(sex) <= 0.05" or "error_rate(income == \'>50K\') <= 0.2"; may be given again. '
    f"Kinds: {', '.join((*OF_GROUPS, *OF_CLASS))}."
)


class ModelName(StrEnum):
    logistic = "logistic"
    mlp = "mlp"


def fit(
    flags: RunFlags,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file, one example a row.")],
    target: Annotated[str, option(panel=PROBLEM, help="Column to predict; it must have two values.")],
    constraint: Annotated[list[str] | None, option(panel=PROBLEM, help=_CONSTRAINTS)] = None,
    client_by: Annotated[str | None, option(panel=PROBLEM, help="Column whose values are the clients.")] = None,
    clients: Annotated[int, option(panel=PROBLEM, help="Without --client-by: equal random shares, so many.")] = 10,
    model: Annotated[ModelName, option(panel=PROBLEM, metavar="MODEL", help="logistic or mlp.")] = ModelName.logistic,
    hidden: Annotated[
        str | None, option(panel=PROBLEM, help="Widths of the mlp's hidden layers, such as 64,32; 64 unless told.")
    ] = None,
    drop: Annotated[
        list[str] | None, option(panel=PROBLEM, help="Column that is no feature; may be given again.")
    ] = None,
    positive: Annotated[
        str | None, option(panel=PROBLEM, help="The target's positive value; the last in sorted order unless told.")
    ] = None,
    test_fraction: Annotated[float, option(panel=PROBLEM, help="Share of the rows that is held out.")] = 0.2,
) -> int:
    """Train a constrained model on your own table, over clients; apply it with fedsgm predict.

    Missing values and categories are handled; the sensitive columns stay features unless dropped. The run folder
    gets model.json beside what every run has.
    """
    settings = {
        "target": target,
        "constraint": constraint or [],
        "client_by": client_by,
        "clients": clients,
        "model": model.value,
        "hidden": hidden,
        "drop": drop or [],
        "positive": positive,
        "test_fraction": test_fraction,
    }
    from fedsgm.data.table import read_table
    from fedsgm.tables import fit as tabular
    from fedsgm.tables import grammar
    from fedsgm.tables.models import MLP

    wanted = [grammar.parse(text) for text in constraint or []]
    if hidden is not None and model is ModelName.logistic:
        raise SettingError(f"--hidden {hidden}: a logistic model has no hidden layers; add --model mlp")
    net = MLP(widths(hidden or "64") if model is ModelName.mlp else ())
    prepared = tabular.prepare(
        read_table(table),
        target=target,
        wanted=wanted,
        client_by=client_by,
        clients=clients,
        drop=drop or [],
        positive=positive,
        test_fraction=test_fraction,
        seed=flags.seed,
    )
    problem = tabular.make_problem(net, wanted, prepared, target)
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    params = net.init(len(prepared.encoder.features), seed=flags.seed)
    result = flags.simulate(problem, prepared.clients, params, prepared.test)
    kind = result.choose()
    trained = tabular.TableModel(prepared.encoder, net, getattr(result, kind), target, prepared.classes)
    print(f"Model: {tabular.describe(trained, kind, result, prepared)}\n\n{result.verdict()}", flush=True)
    _save(result, flags.out, f"fit {table}", _plain(settings) | flags.settings())
    trained.save(flags.out, kind)
    print(f"Its model is in model.json. Apply it: fedsgm predict {flags.out} NEW.csv")
    return 3 if flags.require_feasible and not tabular.meets(result, kind) else 0


app.command()(
    command(
        fit,
        own_parameters(fit)[1:],
        {"seeds": None, "local_steps": 2, "batch_size": 128, "evaluate_every": 10, "out": Path("runs/fit")},
        without=("seeds",),
    )
)


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that fedsgm fit wrote.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file of new rows.")],
    out: Annotated[
        Path | None, typer.Option(help="File for the predictions, .csv or .parquet; standard output unless told.")
    ] = None,
) -> None:
    """Predict for new rows: the class, and the probability of the positive one, in a table of two columns."""
    from fedsgm.data.table import read_table
    from fedsgm.tables import fit as tabular

    trained = tabular.TableModel.load(folder)
    rows = read_table(table, trained.encoder.texts)
    tabular.write_predictions(trained, rows, out)
    for name, count in trained.encoder.unseen(rows).items():
        which = "1 row has a value" if count == 1 else f"{count} rows have values"
        print(f"note: {which} of {name!r} that are no category of the model; treated as none", file=sys.stderr)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    plot: Annotated[Path | None, typer.Option(help="Where to draw its picture; RUN/history.png unless told.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Also print every seed's values.")] = False,
) -> None:
    """Print a finished run's verdict and draw its picture again."""
    from fedsgm.results import verdict as report
    from fedsgm.results.plots import check_format
    from fedsgm.results.result import Result

    picture = plot or folder / "history.png"
    check_format(picture)
    result = Result.load(folder)
    print(result.verdict())
    if accounts := report.federation(result):
        print(f"\n{accounts}")
    if table:
        print(f"\n{result.table()}")
    result.plot(picture)
    print(f"\nPicture: {picture}")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    plot: Annotated[Path, typer.Option(help="Where to draw their picture.")] = Path("compare.png"),
) -> None:
    """Print finished runs side by side and draw their course and how they ended."""
    from fedsgm.results import comparison
    from fedsgm.results.plots import check_format
    from fedsgm.results.result import Result

    check_format(plot)
    results = [Result.load(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    labels = [str(folder) if names.count(name) > 1 else name for name, folder in zip(names, folders, strict=True)]
    rows = [comparison.Row.of(label, result) for label, result in zip(labels, results, strict=True)]
    print(f"{comparison.table(rows)}\n\n{comparison.best(rows)}")
    comparison.plot(rows, plot, results)
    print(f"\nPicture: {plot}")


@federate.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; it must not be there yet.")],
    clients: Annotated[int, typer.Option(help="Clients, n.")] = 3,
    server: Annotated[str, typer.Option(help="Host name that the clients reach the server by.")] = "localhost",
    port: Annotated[int, typer.Option(help="The server's port.")] = 8002,
) -> None:
    """Write what a federation across machines needs: the project to provision, the job, the clients' data function.

    Its README.md has the commands for each machine.
    """
    from fedsgm.federation.flare import deploy

    for path in deploy.init(folder, clients=clients, server=server, port=port):
        print(path)


@federate.command()
def submit(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job's folder, as init wrote it.")],
    kit: Annotated[Path, typer.Option(help="Start-up kit of the admin.")],
    run: Annotated[
        str | None,
        typer.Option(
            help="Names the run, as the job does unless told; a name used before goes on from its checkpoint."
        ),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds that the server has to answer, and the clients to join.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Folder for the run; a run that is there is replaced.")] = Path("runs/job"),
    progress: Annotated[bool, typer.Option(help="Show progress on standard error.")] = True,
) -> None:
    """Run a job in a federation that has been started, and save its result.

    A job that is lost is sent again and goes on from its checkpoint. Ctrl-C stops the run.
    """
    from fedsgm.federation.flare import kits

    kits.require_flare()
    from tempfile import TemporaryDirectory

    from fedsgm.federation.flare.local import interruptible
    from fedsgm.federation.flare.submit import Job
    from fedsgm.federation.flare.submit import submit as run_job

    with interruptible(), TemporaryDirectory(prefix="fedsgm-") as folder:
        stated = Job.read(job)
        result = run_job(kit.resolve(), stated.named(run or stated.run, Path(folder) / "job"), join=wait, show=progress)
    print(result.verdict(), flush=True)
    result.save(out)
    result.plot(out / "history.png")
    print(f"\nSaved in {out}: history.parquet, params.safetensors, result.json, history.png")


def _toml(value: Any) -> str:
    """JSON's strings, whole numbers and truth values are TOML; its infinite floats are not."""
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _save(result: Any, out: Path, command: str, settings: dict[str, Any]) -> None:
    from fedsgm.base.files import write_atomically

    lines = [f"{key.replace('_', '-')} = {_toml(value)}" for key, value in settings.items()]
    text = f"# fedsgm {command} --config settings.toml\n" + "\n".join(lines) + "\n"
    write_atomically(out / "settings.toml", text.encode())
    result.save(out)
    result.plot(out / "history.png")
    print(f"\nSaved in {out}: history.parquet, params.safetensors, settings.toml, result.json, history.png")
