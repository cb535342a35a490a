"""A scikit-learn estimator: a binary classifier, trained over clients and subject to constraints."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import Identity
from fedsgm.core.problem import Constraint, Mean, Problem
from fedsgm.core.rules import Soft
from fedsgm.data import Clients
from fedsgm.data.table import numbered
from fedsgm.engines.simulate import simulate
from fedsgm.tables.grammar import Wanted, build, parse
from fedsgm.tables.groups import crossed
from fedsgm.tables.models import MLP


class FederatedConstrainedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression or a network with the least loss among those that meet the constraints.

    Features should be of similar scale, as after ``StandardScaler``.

    Args:
        constraints: each in words, such as ``"demographic_parity(sex) <= 0.05"`` or ``"error_rate(1) <= 0.2"`` (the
            names are those of ``sensitive_features``; with one of them ``"demographic_parity <= 0.05"`` will do), or a
            :class:`fedsgm.Constraint` on examples with the features ``"x"``, the label ``"y"`` (0 or 1) and each
            sensitive feature's group number by name.
        hidden: widths of the hidden layers, or one width; none is logistic regression.
        n_clients: equal random shares of the examples, where ``fit`` is not told whose they are.
        rule, step_size, local_steps, participants, batch_size, uplink, downlink: as in :class:`fedsgm.FedSGM`.
        rounds: communication rounds.
        random_state: seed of the shares, the first weights, the participants and the batches.

    Attributes:
        result_: the run's :class:`fedsgm.Result`; ``print(model.result_.verdict())``.
        params_: its answer, the best parameters within every bound.
        classes_: the negative and the positive class.
    """

    def __init__(
        self,
        constraints: Sequence[str | Constraint] = (),
        *,
        hidden: int | Sequence[int] = (),
        n_clients: int = 10,
        rule: Any = None,
        step_size: float = 0.1,
        local_steps: int = 2,
        participants: int | None = None,
        batch_size: int | None = None,
        uplink: Any = None,
        downlink: Any = None,
        rounds: int = 500,
        random_state: Any = 0,
    ) -> None:
        self.constraints = constraints
        self.hidden = hidden
        self.n_clients = n_clients
        self.rule = rule
        self.step_size = step_size
        self.local_steps = local_steps
        self.participants = participants
        self.batch_size = batch_size
        self.uplink = uplink
        self.downlink = downlink
        self.rounds = rounds
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, *, clients: Any = None, sensitive_features: Any = None
    ) -> FederatedConstrainedClassifier:
        """Train on ``X`` and two classes ``y``.

        Args:
            clients: whose each example is, any labels; equal random shares if not given.
            sensitive_features: what the constraints compare groups of: one value an example, or a table
                with a column for each (a data frame's names are the features').
        """
        X, y = validate_data(self, X, y, dtype=np.float32)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_[0]!r}; there must be two classes")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        columns = _columns(sensitive_features, len(X))
        coded = {name: numbered(values) for name, values in columns.items()}
        model = self._model()
        wanted = self._wanted()
        for one in wanted:
            if isinstance(one, Wanted) and columns.keys() >= set(one.columns) and one.column is not None:
                coded[one.column] = crossed(*(columns[name] for name in one.columns))
        problem = self._problem(model, wanted, {name: labels for name, (_, labels) in coded.items()})
        examples = {"x": X, "y": codes.astype(np.float32)} | {name: numbers for name, (numbers, _) in coded.items()}
        owner = self._owners(clients, len(X), seed)
        parts = [np.flatnonzero(owner == j) for j in range(owner.max() + 1)]
        dealt = Clients.from_list([jax.tree.map(lambda a, rows=rows: a[rows], examples) for rows in parts])
        algorithm = FedSGM(
            step_size=self.step_size,
            local_steps=self.local_steps,
            participants=self.participants,
            rule=Soft(40.0) if self.rule is None else self.rule,
            uplink=Identity() if self.uplink is None else self.uplink,
            downlink=Identity() if self.downlink is None else self.downlink,
            batch_size=self.batch_size,
        )
        self.result_ = simulate(
            algorithm,
            problem,
            dealt,
            model.init(X.shape[1], seed=seed),
            rounds=self.rounds,
            seed=seed,
            evaluate_every=max(1, self.rounds // 50),
            progress=False,
        )
        self.params_ = self.result_.answer
        if not self.result_.feasible.all():
            warnings.warn(
                "the constraints are not met on the training data: " + self.result_.verdict().splitlines()[0],
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of the negative and the positive class, [examples, 2]."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        scores = jax.vmap(self._model().score, (None, 0))(self.params_, {"x": X})
        positive = np.asarray(scores, np.float64)
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each example."""
        positive = self.predict_proba(X)[:, 1]
        return self.classes_[(positive > 0.5).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _model(self) -> MLP:
        return MLP((self.hidden,) if isinstance(self.hidden, int) else tuple(self.hidden))

    def _wanted(self) -> list[Wanted | Constraint]:
        given = [self.constraints] if isinstance(self.constraints, (str, Constraint)) else self.constraints
        return [parse(one) if isinstance(one, str) else one for one in given]

    def _problem(self, model: MLP, wanted: list[Wanted | Constraint], groups: dict[str, tuple[str, ...]]) -> Problem:
        classes = [str(_text(label)) for label in self.classes_]
        constraints = [
            build(one, model, groups=groups, target=None, classes=classes) if isinstance(one, Wanted) else one
            for one in wanted
        ]
        return Problem(objective=Mean(model.loss), constraints=constraints)

    def _owners(self, clients: Any, examples: int, seed: int) -> np.ndarray:
        if clients is None:
            check_count(type(self).__name__, "n_clients", self.n_clients)
            shares = min(self.n_clients, examples)
            return np.random.default_rng(seed).permutation(np.arange(examples) % shares)
        labels = np.asarray(clients)
        if labels.shape != (examples,):
            raise SettingError(
                f"clients has shape {labels.shape}, but it must say whose each of {examples} examples is"
            )
        owner, _ = numbered(np.array([_text(label) for label in labels], object))
        return owner - min(owner.min(), 0)  # what has no label is a client of its own


def _columns(sensitive: Any, examples: int) -> dict[str, np.ndarray]:
    """Each sensitive feature's values as texts, None where missing, by name."""
    if sensitive is None:
        return {}
    check_consistent_length(np.empty(examples), sensitive)
    if hasattr(sensitive, "columns"):
        names = list(map(str, sensitive.columns))
        for name in names:
            if names.count(name) > 1:
                raise SettingError(f"sensitive_features: the name {name!r} is there twice; rename one")
        columns = {str(name): np.asarray(sensitive[name]) for name in sensitive.columns}
    else:
        values = np.asarray(sensitive)
        if values.ndim == 1:
            columns = {str(getattr(sensitive, "name", None) or "sensitive_feature"): values}
        elif values.ndim == 2:
            columns = {f"sensitive_feature_{j}": values[:, j] for j in range(values.shape[1])}
        else:
            raise SettingError(f"sensitive_features has shape {values.shape}, but it must be a column or a table")
    for name in columns:
        if name in ("x", "y"):
            raise SettingError(f"sensitive_features: rename the feature {name!r}, x and y have another meaning")
    return {name: np.array([_text(value) for value in values], object) for name, values in columns.items()}


def _text(value: Any) -> str | None:
    """A label in words, None for what is missing; a whole number has no point."""
    if value is None or type(value).__name__ == "NAType" or value != value:  # pandas' NA has no truth value
        return None
    return str(int(value)) if isinstance(value, (float, np.floating)) and value.is_integer() else str(value)
