"""Scikit-learn estimators: a classifier and a regressor, trained over clients and subject to constraints."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count
from fedsgm.core.algorithm import FedSGM
from fedsgm.core.compression import Identity
from fedsgm.core.problem import Constraint, Mean, Problem
from fedsgm.core.rules import Adaptive
from fedsgm.data import Clients
from fedsgm.data.clients import rows_of_each
from fedsgm.data.table import numbered
from fedsgm.engines.simulate import simulate
from fedsgm.tables import recipe
from fedsgm.tables.grammar import Wanted, build, parse
from fedsgm.tables.models import MLP
from fedsgm.tables.sensitive import as_labels, groups_of, sensitive_columns
from fedsgm.tables.targets import Target


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both estimators are but for their target."""

    def __init__(
        self,
        constraints: Sequence[str | Constraint] = (),
        *,
        hidden: int | Sequence[int] = (),
        n_clients: int = 10,
        rule: Any = None,
        step_size: Any = None,
        local_steps: int = recipe.LOCAL_STEPS,
        participants: int | None = None,
        batch_size: int | None = None,
        uplink: Any = None,
        downlink: Any = None,
        weigh: str = "rows",
        rounds: int = recipe.ROUNDS,
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
        self.weigh = weigh
        self.rounds = rounds
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, clients: Any = None, sensitive_features: Any = None
    ) -> Self:
        """Train on ``X`` and the target ``y``.

        Args:
            sample_weight: of each example, 0 or more, in the loss and in every constraint; those of 0 are left out.
            clients: whose each example is, any labels; equal random shares if not given.
            sensitive_features: what the constraints compare groups of: one value an example, or a table
                with a column for each (a data frame's names are the features').
        """
        X, y = self._validated(X, y)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        weights = {} if sample_weight is None else {"weight": _weights(sample_weight, len(X))}
        columns = sensitive_columns(sensitive_features, len(X), ("x", "y", *weights))
        whose = {} if clients is None else {"clients": _whose(clients, len(X))}
        if weights:
            counted = weights["weight"] > 0
            X, y = X[counted], y[counted]
            weights, columns, whose = (
                {name: values[counted] for name, values in each.items()} for each in (weights, columns, whose)
            )
        self.target_, y = self._aimed(y, weights.get("weight"))
        model, wanted = self._model(), self._wanted()
        coded = groups_of(columns, wanted)
        groups = {name: labels for name, (_, labels) in coded.items()}
        constraints = [
            build(one, model, groups=groups, target=self.target_) if isinstance(one, Wanted) else one for one in wanted
        ]
        problem = Problem(Mean(model.loss), constraints, weigh=self.weigh, weight=_weight if weights else None)
        examples = {"x": X, "y": y, **weights} | {name: numbers for name, (numbers, _) in coded.items()}
        owner = self._owners(whose.get("clients"), len(X), seed)
        dealt = Clients.dealt(examples, rows_of_each(owner))
        self.result_ = self._run(problem, dealt, model.init(X.shape[1], seed=seed), seed)
        self.params_ = self.result_.answer
        diverged = not np.isfinite(self.result_.value("train", "objective", "last")).all()
        if diverged or not self.result_.feasible.all():
            why = "the run diverged" if diverged else "the constraints are not met on the training data"
            warnings.warn(f"{why}: {self.result_.verdict().splitlines()[0]}", ConvergenceWarning, stacklevel=2)
        return self

    def _run(self, problem: Problem, dealt: Clients, params: Any, seed: int) -> Any:
        step: Any = recipe.step_size(self._model()) if self.step_size is None else self.step_size
        if not callable(step):
            step = recipe.Falling(step, self.rounds, recipe.ANNEAL)
        algorithm = FedSGM(
            step_size=step,
            local_steps=self.local_steps,
            participants=self.participants,
            rule=Adaptive() if self.rule is None else self.rule,
            uplink=Identity() if self.uplink is None else self.uplink,
            downlink=Identity() if self.downlink is None else self.downlink,
            batch_size=self.batch_size,
        )
        return simulate(
            algorithm,
            problem,
            dealt,
            params,
            rounds=self.rounds,
            seed=seed,
            evaluate_every=recipe.EVALUATE_EVERY,
            progress=False,
        )

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        return self._model().scores(self.params_, X).astype(np.float64)

    def _decided(self, X: Any) -> np.ndarray:
        scores = self._scores(X)
        return self.target_.decide(scores)

    def _model(self) -> MLP:
        return self.target_.model((self.hidden,) if isinstance(self.hidden, int) else tuple(self.hidden))

    def _wanted(self) -> list[Wanted | Constraint]:
        given = [self.constraints] if isinstance(self.constraints, (str, Constraint)) else self.constraints
        return [parse(one) if isinstance(one, str) else one for one in given]

    def _owners(self, whose: np.ndarray | None, examples: int, seed: int) -> np.ndarray:
        if whose is None:
            check_count(type(self).__name__, "n_clients", self.n_clients)
            shares = min(self.n_clients, examples)
            return np.random.default_rng(seed).permutation(np.arange(examples) % shares)
        owner, _ = numbered(whose)
        return owner - min(owner.min(), 0)  # what has no label is a client of its own

    def _validated(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def _aimed(self, y: np.ndarray, weights: np.ndarray | None) -> tuple[Target, np.ndarray]:
        """What is predicted, and the labels."""
        raise NotImplementedError


class FederatedConstrainedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Logistic regression or a network with the least loss among those that meet the constraints.

    For two classes or more. Features should be of similar scale, as after ``StandardScaler``.

    Args:
        constraints: each in words, such as ``"demographic_parity(sex) <= 0.05"`` or ``"error_rate(1) <= 0.2"`` (the
            names are those of ``sensitive_features``; with one of them ``"demographic_parity <= 0.05"`` will do), or a
            :class:`fedsgm.Constraint` on examples with the features ``"x"``, the label ``"y"`` and each sensitive
            feature's group number by name. A label is the class's place in ``classes_``, or a standardised number.
        hidden: widths of the hidden layers, or one width; none is logistic or linear regression.
        n_clients: equal random shares of the examples, where ``fit`` is not told whose they are.
        rule, step_size, local_steps, participants, batch_size, uplink, downlink: as in :class:`fedsgm.FedSGM`, by
            default as ``fedsgm fit`` has them (:mod:`fedsgm.tables.recipe`), but for batches: gradients are of all
            examples. A step size that is a number falls along a cosine; a function of the round is taken as it is.
        weigh: what counts equally in the loss, ``"rows"`` or ``"clients"``.
        rounds: communication rounds.
        random_state: seed of the shares, the first weights, the participants and the batches.

    Attributes:
        result_: the run's :class:`fedsgm.Result`; ``print(model.result_.verdict())``.
        params_: its answer, the best parameters within every bound.
        target_: what is predicted, a :class:`fedsgm.tables.targets.Target`.
        classes_: the classes in sorted order; of two, the negative and the positive one.
    """

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, [examples, classes]."""
        scores = self._scores(X)
        return (
            np.stack([1 - scores, scores], axis=1) if scores.ndim == 1 else scores / scores.sum(axis=1, keepdims=True)
        )

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each example."""
        decided = self._decided(X)
        return self.classes_[decided]

    def _validated(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float32)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        return X, y

    def _aimed(self, y: np.ndarray, _: np.ndarray | None) -> tuple[Target, np.ndarray]:
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_[0]!r}; there must be two classes or more")
        return Target(None, tuple(map(str, as_labels(self.classes_)))), places.astype(np.float32)


class FederatedConstrainedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Linear regression or a network with the least squared error among those that meet the constraints.

    Arguments and attributes are those of :class:`FederatedConstrainedClassifier`, but for ``classes_``. Constraints are
    in words ``mean_gap(sex) <= 2.5``, in the units of ``y``, or ``group_loss_gap`` and ``worst_group_loss`` of squared
    errors in units of the variance of ``y``.
    """

    def predict(self, X: Any) -> np.ndarray:
        """The predicted number of each example."""
        return self._decided(X)

    def _validated(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float32, y_numeric=True)
        return X, column_or_1d(y, warn=True).astype(np.float64)

    def _aimed(self, y: np.ndarray, weights: np.ndarray | None) -> tuple[Target, np.ndarray]:
        target = Target(None).standardised(y, weights)
        return target, target.labels(y)


def _weights(given: Any, examples: int) -> np.ndarray:
    """What each example weighs; some weigh something."""
    weights = np.asarray(given, np.float64)
    if weights.shape != (examples,):
        raise SettingError(f"sample_weight has shape {weights.shape}, but there are {examples} examples")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise SettingError("sample_weight: a weight is a number, 0 or more")
    if not weights.any():
        raise SettingError("sample_weight is zero for every example, so that nothing counts")
    return weights.astype(np.float32)


def _weight(example: Any) -> Any:
    return example["weight"]


def _whose(clients: Any, examples: int) -> np.ndarray:
    """Whose each example is, in words."""
    labels = np.asarray(clients)
    if labels.shape != (examples,):
        raise SettingError(f"clients has shape {labels.shape}, but it must say whose each of {examples} examples is")
    return as_labels(labels)
