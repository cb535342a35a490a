"""The paper's guarantees as numbers: what to set, what is then promised, and when a run leaves what is proven.

Every theorem has two forms. ``"statement"`` is what the paper prints; ``"proof"`` is what its proof establishes, and
the default. They differ in four places, each tested:

- The proofs' Gamma begins with ``1 + E/2 + E^2/3``, which the statements round up to ``2 E^2``.
- Soft switching is proven for twice the epsilon that is stated.
- With sampled clients the proofs switch on a tolerance with one noise radius and promise the constraint within a
  second one; the statements put both into the tolerance, and promise the constraint within it (the main text: within
  another ``sqrt(3 sigma^2 log(T/delta) / m)``).
- With compression and all clients the proofs are for X = R^d. For a projected run the form ``"proof"`` takes the
  constants of the proof for sampled clients, which projects, at m = n.

What the proofs assume, and what a run gives of it (``tests/theory/test_assumptions.py``, ``docs/theory.md``):

- With sampled clients the proof assumes that the constraint's estimate is independent of the gradients. Algorithm 1 as
  listed, one S_t for both, does not give it; asking every client for the constraint (``query="all"``) does.
- The lemma on sampling takes the diameter of X for ``|w_t - w*|``. An uncompressed downlink with a projection gives it;
  a compressed one gives it with :func:`replica_bound` more, which the form ``"proof"`` adds.
- Dividing by ``|A|`` takes it for a number. Deterministic compressors give that; with random ones the promise is one in
  expectation (``Guarantee.kind``).
- Theorem 1 (ii) as printed, ``g(average) - g(w*) <= epsilon``, takes w* to be on the bound. What is proven, and
  promised here, is ``g(average) <= epsilon`` above the bound, wherever w* is.
- The proof of soft switching takes ``beta >= 2 / epsilon`` for simplicity. Any beta has its promise.
- G must hold wherever local steps and compression lead, a little outside X.

``setting`` is what a theorem is told, ``guarantees`` has a function for each theorem, ``lemmas`` what they rest on;
``estimates`` measures the constants, ``planning`` sets a run up, ``checks`` tells when it left, and ``certificates``
bounds the optimum and measures stationarity.
"""

from fedsgm.theory.certificates import stationarity
from fedsgm.theory.checks import TheoryWarning, check
from fedsgm.theory.guarantees import Guarantee, guarantee
from fedsgm.theory.lemmas import drift_bound, gamma, memory_bound, multiplier_bound, noise_radius, replica_bound
from fedsgm.theory.planning import plan
from fedsgm.theory.setting import FORMS, Setting

__all__ = [
    "FORMS",
    "Guarantee",
    "Setting",
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
    "stationarity",
]
