"""A grid of settings, each run once with all its seeds; what is done is kept, so that a sweep can be gone on with."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedsgm.base.errors import SURPRISES, SettingError
from fedsgm.base.files import read_file, write_atomically
from fedsgm.base.progress import Progress
from fedsgm.engines import work
from fedsgm.results.comparison import Row
from fedsgm.results.result import Result

FILE = "sweep.parquet"
_MOST = 10**7  # settings and seeds


def grid(vary: Sequence[str], types: dict[str, Callable[[str], Any]]) -> list[dict[str, Any]]:
    """All combinations of ``["rule=hard,soft", "step-size=0.1,0.3"]``; ``types`` reads a setting's values.

    >>> grid(["rounds=1,2", "beta=0.5"], {"rounds": int, "beta": float})
    [{'rounds': 1, 'beta': 0.5}, {'rounds': 2, 'beta': 0.5}]
    """
    axes: dict[str, list[Any]] = {}
    for text in vary:
        name, equals, values = text.partition("=")
        key = name.strip().replace("-", "_")
        if not equals or not values.strip():
            raise SettingError(f"--vary {text!r}: write SETTING=VALUE,VALUE, such as step-size=0.1,0.3")
        if key not in types:
            known = ", ".join(sorted(name.replace("_", "-") for name in types))
            raise SettingError(f"--vary {text!r}: there is no setting {name.strip()!r}; the settings are {known}")
        if key in axes:
            raise SettingError(f"--vary {text!r}: {name.strip()} is varied twice; give all its values at once")
        axes[key] = []
        for value in values.split(","):
            try:
                axes[key].append(types[key](value.strip()))
            except ValueError:
                raise SettingError(f"--vary {text!r}: {value.strip()!r} is no value of {name.strip()}") from None
    if not axes:
        raise SettingError("a sweep needs something to vary, such as --vary step-size=0.1,0.3")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def label(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in setting.items())


def run(
    settings: Sequence[dict[str, Any]],
    simulate: Callable[[dict[str, Any]], Result],
    *,
    folder: Path,
    base: dict[str, Any],
    resume: bool,
    progress: bool,
) -> list[Row]:
    """Run every setting that the folder does not have yet, keeping each as soon as it is done."""
    rows = _load(folder / FILE, base) if resume else []
    done = {row.label for row in rows}
    missing = [setting for setting in settings if label(setting) not in done]
    with work.alike(len(settings)), Progress("sweep", len(settings), show=progress, unit="setting") as bar:
        had = len(settings) - len(missing)
        bar.update(had)
        for i, setting in enumerate(missing, start=1):
            result = simulate(setting)
            rows.append(Row.of(label(setting), result))
            _save(folder / FILE, base, rows)
            bar.update(had + i, objective=rows[-1].mean, over=rows[-1].worst)
    wanted = {label(setting) for setting in settings}
    return [row for row in rows if row.label in wanted]


def _save(path: Path, base: dict[str, Any], rows: Sequence[Row]) -> None:
    """One line a setting and seed; what all settings share is in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet

    names = rows[0].constraints
    lines = [
        {
            "setting": row.label,
            "kind": row.kind,
            "seed": seed,
            "objective": row.objective[j],
            "excess": row.excess[j],
            "feasible_rounds": row.feasible_rounds[j],
            **{f"constraint {name}": row.constraints[name][j] for name in names},
            **{f"good {head}": values[j] for head, values in row.good.items()},
        }
        for row in rows
        for j, seed in enumerate(row.seeds)
    ]
    table = pa.Table.from_pylist(lines).replace_schema_metadata({"fedsgm": json.dumps(base)})
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, write_page_checksum=True)
    write_atomically(path, sink.getvalue().to_pybytes())


def _load(path: Path, base: dict[str, Any]) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet

    if not path.is_file():
        return []
    try:
        file = pyarrow.parquet.ParquetFile(pa.BufferReader(read_file(path)), page_checksum_verification=True)
        if file.metadata.num_rows > _MOST:
            raise ValueError("more rows than a sweep has")
        table = file.read()
        kept = dict(json.loads((table.schema.metadata or {})[b"fedsgm"]))
        rows = _rows(table.to_pylist())
    except (pa.ArrowException, OSError, *SURPRISES) as error:
        raise SettingError(f"{path} is no sweep that can be gone on with ({type(error).__name__}); remove it") from None
    if kept != base:
        name = next(key for key in (*kept, *base) if key not in kept or key not in base or kept[key] != base[key])
        there, here = (repr(given[name]) if name in given else "varied or not set" for given in (kept, base))
        raise SettingError(f"--resume: the sweep in {path.parent} has another {name}: {there} there, {here} here")
    return rows


def _rows(lines: list[dict[str, Any]]) -> list[Row]:
    rows = []
    for name, group in itertools.groupby(lines, key=lambda line: line["setting"]):
        seeds = list(group)
        parts = {
            kind: {key.removeprefix(kind): [line[key] for line in seeds] for key in seeds[0] if key.startswith(kind)}
            for kind in ("constraint ", "good ")
        }
        numbers = [value for line in seeds for key, value in line.items() if key not in ("setting", "kind")]
        if not all(isinstance(value, (int, float)) for value in numbers):
            raise TypeError("a number that is none")
        rows.append(
            Row(
                name,
                str(seeds[0]["kind"]),
                [line["seed"] for line in seeds],
                [line["objective"] for line in seeds],
                parts["constraint "],
                [line["excess"] for line in seeds],
                [line["feasible_rounds"] for line in seeds],
                good=parts["good "],
            )
        )
    return rows
