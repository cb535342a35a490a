"""All cases and methods by name: those of the package, and those of files that a user names."""

from __future__ import annotations

import functools
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsgm.base.errors import FedSGMError, SettingError, in_a_line
from fedsgm.benchmark.cases import Case, Method, by_name
from fedsgm.benchmark.methods import METHODS
from fedsgm.benchmark.problems import CASES


@functools.cache
def of(files: tuple[str, ...] = ()) -> tuple[dict[str, Case], dict[str, Method]]:
    """Those of the package and what each file has in its lists ``CASES`` and ``METHODS``."""
    cases, methods = list(CASES.values()), list(METHODS.values())
    for file in files:
        found = _run(file)
        own = [list(found.get(name, ())) for name in ("CASES", "METHODS")]
        if not any(own):
            raise SettingError(f"--with {file}: it has neither CASES nor METHODS; it must have a list of one or both")
        for things, kind in zip(own, (Case, Method), strict=True):
            for thing in things:
                if not isinstance(thing, kind):
                    raise SettingError(f"--with {file}: {thing!r} is no {kind.__name__} of fedsgm.benchmark.cases")
        cases, methods = cases + own[0], methods + own[1]
    return by_name(cases, "cases"), by_name(methods, "methods")


def _run(file: str) -> dict[str, Any]:
    if not Path(file).is_file():
        raise SettingError(f"--with {file}: there is no such file")
    try:
        return runpy.run_path(file, run_name="fedsgm_benchmark_file")
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"--with {file}: it could not be run ({in_a_line(error)})") from error


def suite(name: str, files: tuple[str, ...], only: Sequence[str]) -> tuple[list[Case], list[Method]]:
    """The cases of a suite and the methods, or those of them that ``only`` names."""
    cases, methods = of(files)
    if name not in SUITES:
        raise SettingError(f"benchmark run {name}: give one of {', '.join(SUITES)}")
    within = [case for case in cases.values() if SUITES[name](case)]
    known = {*(case.name for case in within), *methods}
    for each in only:
        if each not in known:
            raise SettingError(f"--only {each}: it is neither a problem of the suite nor a method; see benchmark list")
    named = set(only)
    chosen = [case for case in within if case.name in named] or within
    return chosen, [method for method in methods.values() if method.name in named] or list(methods.values())


def there(cases: Sequence[Case], only: Sequence[str]) -> tuple[list[Case], list[str]]:
    """The cases whose data can be had, and a sentence for each optional one that has to be left out."""
    kept, sentences = [], []
    for case in cases:
        try:
            if case.optional and case.name not in only:
                case.load(0)
        except FedSGMError as error:
            sentences.append(f"{case.name} is left out: {error}")
        else:
            kept.append(case)
    return kept, sentences


SUITES: dict[str, Any] = {
    "all": lambda _: True,
    "natural": lambda case: case.natural is not None,
    "paper": lambda case: case.name in ("neyman-pearson", "adult-dirichlet", "cartpole"),
}
