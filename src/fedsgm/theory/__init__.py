"""The paper's guarantees as numbers, the constants they ask for, and certificates of optimality."""

from fedsgm.theory.guarantees import (
    FORMS,
    Guarantee,
    TheoryWarning,
    check,
    drift_bound,
    gamma,
    guarantee,
    memory_bound,
    multiplier_bound,
    noise_radius,
    plan,
    replica_bound,
)

__all__ = [
    "FORMS",
    "Guarantee",
    "TheoryWarning",
    "check",
    "drift_bound",
    "gamma",
    "guarantee",
    "memory_bound",
    "multiplier_bound",
    "noise_radius",
    "plan",
    "replica_bound",
]
