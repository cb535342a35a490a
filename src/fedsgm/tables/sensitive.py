"""Sensitive features as scikit-learn's users give them, arrays or data frames, turned into groups by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length

from fedsgm.base.errors import SettingError
from fedsgm.data.table import numbered
from fedsgm.tables.grammar import Wanted
from fedsgm.tables.groups import crossed

Groups = dict[str, tuple[np.ndarray, tuple[str, ...]]]
"""Of each feature, by name: every example's group number, -1 where missing, and the groups' labels."""


def sensitive_columns(given: Any, examples: int, taken: Sequence[str]) -> dict[str, np.ndarray]:
    """Each sensitive feature's values as texts, None where missing, by name."""
    if given is None:
        return {}
    check_consistent_length(np.empty(examples), given)
    if hasattr(given, "columns"):
        names = list(map(str, given.columns))
        for name in names:
            if names.count(name) > 1:
                raise SettingError(f"sensitive_features: the name {name!r} is there twice; rename one")
        columns = {str(name): np.asarray(given[name]) for name in given.columns}
    else:
        values = np.asarray(given)
        if values.ndim == 1:
            columns = {str(getattr(given, "name", None) or "sensitive_feature"): values}
        elif values.ndim == 2:
            columns = {f"sensitive_feature_{j}": values[:, j] for j in range(values.shape[1])}
        else:
            raise SettingError(f"sensitive_features has shape {values.shape}, but it must be a column or a table")
    for name in columns:
        if name in taken:
            told = " and ".join((", ".join(taken[:-1]), taken[-1]))
            raise SettingError(f"sensitive_features: rename the feature {name!r}, {told} have another meaning")
    return {name: as_labels(values) for name, values in columns.items()}


def groups_of(columns: dict[str, np.ndarray], wanted: Iterable[Any]) -> Groups:
    """The groups of each column, and of those together that a constraint in words compares."""
    coded: Groups = {name: numbered(values) for name, values in columns.items()}
    for one in wanted:
        if isinstance(one, Wanted) and columns.keys() >= set(one.columns) and one.column is not None:
            coded[one.column] = crossed(*(columns[name] for name in one.columns))
    return coded


def as_labels(values: Iterable[Any]) -> np.ndarray:
    """Labels in words, None for what is missing; a whole number has no point."""
    return np.array([_text(value) for value in values], object)


def _text(value: Any) -> str | None:
    if value is None or type(value).__name__ == "NAType" or value != value:  # pandas' NA has no truth value
        return None
    return str(int(value)) if isinstance(value, (float, np.floating)) and value.is_integer() else str(value)
