"""The command line. Errors are one sentence and an exit code: 1 the run failed, 2 the command was wrong."""

from __future__ import annotations

import json
import sys
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsgm.errors import FedSGMError, SettingError
from fedsgm.flags import PROBLEM, RunFlags, option, with_run_flags
from fedsgm.grammar import OF_CLASS, OF_GROUPS

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


@run.command("neyman-pearson")
@with_run_flags(
    step_size=0.3, participants=10, uplink="topk:0.1", downlink="topk:0.1", seeds=3, out=Path("runs/neyman-pearson")
)
def neyman_pearson(
    flags: RunFlags,
    bound: Annotated[float, option(panel=PROBLEM, help="Bound on the minority class's loss.")] = 0.05,
    clients: Annotated[int, option(panel=PROBLEM, help="Clients, n.")] = 20,
    split: Annotated[int, option(panel=PROBLEM, help="Seed of the train/test split and of the deal to clients.")] = 0,
) -> int:
    """Least loss on the majority class with the minority's loss within a bound (breast cancer data).

    The defaults are the paper's experiment. The run folder gets history.parquet, params.safetensors,
    settings.toml (give it to --config to repeat the run), result.json and history.png.
    """
    settings = {"bound": bound, "clients": clients, "split": split}
    from fedsgm.tasks import neyman_pearson as task

    dealt, test, params = task.load(clients=clients, split_seed=split)
    return _run(flags, "neyman-pearson", settings, task.neyman_pearson(bound), dealt, params, test)


@run.command("fair-adult")
@with_run_flags(
    step_size=0.1,
    beta=100.0,
    local_steps=2,
    participants=5,
    batch_size=64,
    seeds=5,
    evaluate_every=5,
    out=Path("runs/fair-adult"),
)
def fair_adult(
    flags: RunFlags,
    bound: Annotated[
        float, option(panel=PROBLEM, help="Bound on the gap between women's and men's mean scores.")
    ] = 0.05,
    clients: Annotated[int, option(panel=PROBLEM, help="Clients, n.")] = 10,
    alpha: Annotated[float, option(panel=PROBLEM, help="Dirichlet parameter: a small one makes clients differ.")] = 2.0,
    mix: Annotated[
        str, option(panel=PROBLEM, help="What clients have unequal shares of: label, group or label-group.")
    ] = "label",
    gradient: Annotated[
        str, option(panel=PROBLEM, help="Of the gap: linearized (exact at E = 1) or local (each client its own gap).")
    ] = "linearized",
    hidden: Annotated[str, option(panel=PROBLEM, help="Widths of the hidden layers, such as 64 or 64,32.")] = "64",
    split: Annotated[int, option(panel=PROBLEM, help="Seed of the deal to clients and of the first weights.")] = 0,
    adult: Annotated[
        Path | None, option(panel=PROBLEM, help="Folder with adult.data and adult.test; fetched once if not given.")
    ] = None,
) -> int:
    """Least loss on the Adult data with a bounded gap between women and men (demographic parity).

    The defaults are the paper's experiment; the run folder is as for neyman-pearson.
    """
    settings = {"bound": bound, "clients": clients, "alpha": alpha, "mix": mix, "gradient": gradient}
    settings |= {"hidden": hidden, "split": split} | ({} if adult is None else {"adult": str(adult)})
    from fedsgm.models import MLP
    from fedsgm.tasks import fair_classification as task

    model = MLP(_widths(hidden))
    dealt, test, params = task.load(clients=clients, alpha=alpha, mix=mix, model=model, split_seed=split, path=adult)
    problem = task.fair_classification(bound, model=model, gradient=gradient)
    return _run(flags, "fair-adult", settings, problem, dealt, params, test)


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise SettingError(f"--hidden {text}: write the layers' widths, such as 64 or 64,32") from None


def _run(flags: RunFlags, task: str, settings: dict[str, Any], problem: Any, *data: Any) -> int:
    result = flags.simulate(problem, *data)
    print(result.verdict(), flush=True)
    _save(result, flags.out, f"run {task}", settings | flags.settings())
    return 3 if flags.require_feasible and not result.feasible.all() else 0


_CONSTRAINTS = (
    'Such as "demographic_parity(sex) <= 0.05" or "error_rate(income == \'>50K\') <= 0.2"; may be given again. '
    f"Kinds: {', '.join((*OF_GROUPS, *OF_CLASS))}."
)


class ModelName(StrEnum):
    logistic = "logistic"
    mlp = "mlp"


@app.command()
@with_run_flags(
    without=("seeds",),
    seeds=None,
    step_size=0.1,
    local_steps=2,
    batch_size=128,
    evaluate_every=10,
    out=Path("runs/fit"),
)
def fit(
    flags: RunFlags,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file, one example a row.")],
    target: Annotated[str, option(panel=PROBLEM, help="Column to predict; it must have two values.")],
    constraint: Annotated[list[str] | None, option(panel=PROBLEM, help=_CONSTRAINTS)] = None,
    client_by: Annotated[str | None, option(panel=PROBLEM, help="Column whose values are the clients.")] = None,
    clients: Annotated[int, option(panel=PROBLEM, help="Without --client-by: equal random shares, so many.")] = 10,
    model: Annotated[ModelName, option(panel=PROBLEM, metavar="MODEL", help="logistic or mlp.")] = ModelName.logistic,
    hidden: Annotated[
        str, option(panel=PROBLEM, help="Widths of the mlp's hidden layers, such as 64 or 64,32.")
    ] = "64",
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
    from fedsgm import grammar, tabular
    from fedsgm.data.table import read_table
    from fedsgm.models import MLP

    wanted = [grammar.parse(text) for text in constraint or []]
    net = MLP(_widths(hidden) if model is ModelName.mlp else ())
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
    print(result.verdict(), flush=True)
    kind = result.choose()
    trained = tabular.TableModel(prepared.encoder, net, getattr(result, kind), target, prepared.classes)
    print(f"\nModel: {tabular.describe(trained, kind, result, prepared)}")
    kept = {name: value for name, value in settings.items() if value is not None}
    _save(result, flags.out, f"fit {table}", kept | flags.settings())
    trained.save(flags.out, kind)
    print(f"Apply it: fedsgm predict {flags.out} NEW.csv")
    return 3 if flags.require_feasible and not tabular.meets(result, kind) else 0


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that fedsgm fit wrote.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file of new rows.")],
    out: Annotated[
        Path | None, typer.Option(help="File for the predictions, .csv or .parquet; standard output unless told.")
    ] = None,
) -> None:
    """Predict for new rows: the class, and the probability of the positive one, in a table of two columns."""
    from fedsgm import tabular
    from fedsgm.data.table import read_table

    trained = tabular.TableModel.load(folder)
    rows = read_table(table, trained.encoder.texts)
    tabular.write_predictions(trained, rows, out)
    for name, count in trained.encoder.unseen(rows).items():
        which = "1 row has a value" if count == 1 else f"{count} rows have values"
        print(f"note: {which} of {name!r} that training did not have; treated as no category", file=sys.stderr)


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


def _toml(value: Any) -> str:
    """JSON's strings, whole numbers and truth values are TOML; its infinite floats are not."""
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _save(result: Any, out: Path, command: str, settings: dict[str, Any]) -> None:
    from fedsgm.files import write_atomically

    lines = [f"{key.replace('_', '-')} = {_toml(value)}" for key, value in settings.items()]
    text = f"# fedsgm {command} --config settings.toml\n" + "\n".join(lines) + "\n"
    write_atomically(out / "settings.toml", text.encode())
    result.save(out)
    result.plot(out / "history.png")
    print(f"\nSaved in {out}: history.parquet, params.safetensors, settings.toml, result.json, history.png")
