"""A score for scikit-learn's searches that knows the constraints, so that they pick a model that is within them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.metadata_routing import MetadataRequest

from fedsgm.base.errors import SettingError
from fedsgm.tables.grammar import build, parse
from fedsgm.tables.sensitive import as_labels, groups_of, sensitive_columns
from fedsgm.tables.targets import Target


@dataclasses.dataclass(frozen=True, eq=False)
class FeasibleScore:
    """``scoring=`` of ``GridSearchCV`` and the like: any model within every bound is above any that is over one.

    A model within every bound on the examples that are scored has its accuracy or, of a number, its R squared, but 0 at
    least; one that is over a bound has minus its excess, the largest where there are several. It takes any classifier
    with ``predict_proba``, any regressor, and pipelines.

    Args:
        constraints: in words, as the estimators take them. Losses of a number are in units of the variance of those
            that are scored.
        sensitive_features: what they compare groups of, as a series or a data frame; the rows of a data frame ``X`` are
            found in it by their index. Without it, scikit-learn's metadata routing brings them, if it is turned on.
    """

    constraints: Sequence[str]
    sensitive_features: Any = None

    def __post_init__(self) -> None:
        given = (self.constraints,) if isinstance(self.constraints, str) else tuple(self.constraints)
        object.__setattr__(self, "constraints", given)
        for one in map(parse, given):
            if one.quantile is not None:
                raise SettingError(f"constraint {one.name}: a score is of all examples together; drop each_client")

    def __call__(self, estimator: Any, X: Any, y: Any, *, sensitive_features: Any = None) -> float:
        worst = self.excess(estimator, X, y, sensitive_features=sensitive_features)
        if worst > 0:
            return -worst
        return max(float(estimator.score(X, y)), 0.0)

    def excess(self, estimator: Any, X: Any, y: Any, *, sensitive_features: Any = None) -> float:
        """How far the model is past a bound at most, on these examples; negative is within every bound."""
        target, examples = _judged(estimator, X, np.asarray(y))
        sensitive = self._rows(X) if sensitive_features is None else sensitive_features
        wanted = [parse(one) for one in self.constraints]
        coded = groups_of(sensitive_columns(sensitive, len(examples["y"]), tuple(examples)), wanted)
        examples |= {name: numbers for name, (numbers, _) in coded.items()}
        groups = {name: labels for name, (_, labels) in coded.items()}
        found = -np.inf
        for one in wanted:
            constraint = build(one, _Told(), groups=groups, target=target)
            quantity: Any = constraint.quantity
            each = jax.vmap(quantity.sums, (None, 0))(None, examples)
            value = quantity.measured(jax.tree.map(lambda a: jnp.sum(a, axis=0), each))
            if jnp.isnan(value):
                raise SettingError(f"constraint {one.name}: it has no value on the {len(y)} examples that are scored")
            found = max(found, float(constraint.excess(value) / constraint.scale))
        return found

    def get_metadata_routing(self) -> MetadataRequest:
        """Ask for the sensitive features that are not here."""
        request = MetadataRequest(owner=type(self).__name__)
        request.score.add_request(param="sensitive_features", alias=self.sensitive_features is None)
        return request

    def _rows(self, X: Any) -> Any:
        """The sensitive features of these examples."""
        if self.sensitive_features is None:
            return None
        if not (hasattr(X, "index") and hasattr(self.sensitive_features, "loc")):
            raise SettingError(
                "FeasibleScore: X and the sensitive features must have an index to find rows by, as pandas' have; or "
                "leave the features to scikit-learn's metadata routing"
            )
        if not self.sensitive_features.index.is_unique:
            raise SettingError("FeasibleScore: several sensitive features have the same index; number them anew")
        return self.sensitive_features.loc[X.index]


class _Told:
    """A model whose answers are in the examples."""

    def score(self, _: Any, example: Any) -> jax.Array:
        return example["score"]

    def loss(self, _: Any, example: Any) -> jax.Array:
        return example["loss"]


def _judged(estimator: Any, X: Any, y: np.ndarray) -> tuple[Target, dict[str, np.ndarray]]:
    """What is predicted, and each example's label, score and loss."""
    if not is_classifier(estimator):
        target = Target(None).standardised(y.astype(np.float64))
        truth, scores = target.labels(y), target.labels(np.asarray(estimator.predict(X), np.float64))
        return target, {"y": truth, "score": scores, "loss": (scores - truth) ** 2}
    classes = list(estimator.classes_)
    scores = np.asarray(estimator.predict_proba(X), np.float32)
    truth = np.array([classes.index(label) if label in classes else -1 for label in y], np.float32)
    own = np.where(truth >= 0, scores[np.arange(len(y)), truth.astype(int)], 0)
    losses = -np.log(np.maximum(own, np.finfo(np.float32).tiny))
    target = Target(None, tuple(map(str, as_labels(classes))))
    return target, {"y": truth, "score": scores[:, 1] if len(classes) == 2 else scores, "loss": losses}
