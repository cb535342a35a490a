"""What a theorem is told of a run, checked before anything is computed from it."""

from __future__ import annotations

import dataclasses

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number, check_participants

FORMS = ("proof", "statement")
_ANY = 2**63  # a theorem may ask for more than a program counts to
QUERIES = ("participants", "all", "memory")


@dataclasses.dataclass(frozen=True)
class Setting:
    """The constants of a run, in the order in which the paper brings them up.

    Attributes:
        rule: ``"hard"`` (Theorem 1) or ``"soft"`` (Theorem 2).
        rounds, local_steps, clients, participants: T, E, n and m (None is all).
        distance: D, at least ``|w_0 - w*|``; with sampled clients, or compression and a projection, the diameter of X.
        lipschitz: G, of every f_j and g_j.
        uplink, downlink: the contractions q and q0.
        random: whether a compressor draws (RandK, SharedK, Natural), so that its contraction holds in expectation only.
        projected: whether X is not all of R^d.
        query: who answers the constraint query: the round's ``"participants"``, as Algorithm 1 lists it, or ``"all"``
            clients, which makes the estimate exact and so independent of who is drawn for the gradients. For
            ``"memory"``, the last answer of every client, there is no theorem.
        sigma: the estimate of the constraint is sigma^2/m-sub-Gaussian; of no effect where all clients answer.
        delta: how often the promise may fail.
        gradient_noise: sigma_xi, for mini-batch gradients (the stochastic theorem), with ``query_noise`` sigma_b and
            ``query_size`` N_b of the constraint queries.
        weak_convexity: rho, for a weakly convex objective, with ``proximal`` rho_hat > 2 rho and ``multiplier`` Lambda
            (see :func:`multiplier_bound`).
        beta: the soft rule's sharpness, any above 0; None is the theorem's.
        form: ``"proof"`` or ``"statement"``, see :mod:`fedsgm.theory`.
    """

    rule: str = "hard"
    _: dataclasses.KW_ONLY
    rounds: int
    distance: float
    lipschitz: float
    local_steps: int = 1
    clients: int = 1
    participants: int | None = None
    uplink: float = 1.0
    downlink: float = 1.0
    random: bool = False
    projected: bool = False
    query: str = "participants"
    sigma: float = 0.0
    delta: float = 0.05
    gradient_noise: float | None = None
    query_noise: float = 0.0
    query_size: int = 1
    weak_convexity: float | None = None
    proximal: float | None = None
    multiplier: float = 0.0
    beta: float | None = None
    form: str = "proof"

    def __post_init__(self) -> None:
        self._check_constants()
        self._check_covered()
        if self.gradient_noise is not None:
            check_number("guarantee", "gradient_noise", self.gradient_noise, least=0)
            check_number("guarantee", "query_noise", self.query_noise, least=0)
            check_count("guarantee", "query_size", self.query_size, most=_ANY)
        if self.weak_convexity is not None:
            check_number("guarantee", "weak_convexity", self.weak_convexity, least=0)
            check_number("guarantee", "proximal", self.proximal, above=2 * self.weak_convexity)
            check_number("guarantee", "multiplier", self.multiplier, least=0)

    @property
    def drawn(self) -> int:
        """m, the clients of a round."""
        return self.clients if self.participants is None else self.participants

    @property
    def sampled(self) -> bool:
        """m < n."""
        return self.drawn < self.clients

    @property
    def asked(self) -> int:
        """How many clients answer the constraint query."""
        return self.clients if self.query == "all" else self.drawn

    @property
    def spread(self) -> float:
        """sigma, as far as the estimate has it: with every client's answer it is exact."""
        return self.sigma if self.asked < self.clients else 0.0

    @property
    def compressed(self) -> bool:
        return min(self.uplink, self.downlink) < 1

    @property
    def stated(self) -> bool:
        """Whether the paper's statements are asked for and not what its proofs establish."""
        return self.form == "statement"

    @property
    def given(self) -> dict[str, float]:
        """The constants that the theorem which covers the setting is about."""
        names = ["rounds", "distance", "lipschitz", "local_steps", "clients", "participants"]
        names += ["uplink", "downlink", "sigma", "delta"]
        if self.gradient_noise is not None:
            names += ["gradient_noise", "query_noise", "query_size"]
        if self.weak_convexity is not None:
            names += ["weak_convexity", "proximal", "multiplier"]
        return {name: self.drawn if name == "participants" else getattr(self, name) for name in names}

    def _check_constants(self) -> None:
        if self.rule not in ("hard", "soft"):
            raise SettingError(f"guarantee: rule={self.rule!r}, but it must be 'hard' or 'soft'")
        if self.form not in FORMS:
            raise SettingError(f"guarantee: form={self.form!r}, but it must be 'proof' or 'statement'")
        if self.query not in QUERIES:
            raise SettingError(f"guarantee: query={self.query!r}, but it must be 'participants', 'all' or 'memory'")
        for name in ("rounds", "local_steps", "clients"):
            check_count("guarantee", name, getattr(self, name), most=_ANY)
        check_count("guarantee", "participants", self.drawn, most=_ANY)
        for name in ("distance", "lipschitz"):
            check_number("guarantee", name, getattr(self, name), above=0)
        check_number("guarantee", "sigma", self.sigma, least=0)
        for name in ("uplink", "downlink", "delta"):
            value = getattr(self, name)
            check_number("guarantee", name, value, above=0)
            if value > 1 or (name == "delta" and value == 1):
                limit = "below 1" if name == "delta" else "at most 1"
                raise SettingError(f"guarantee: {name}={value!r}, but it must be above 0 and {limit}")
        check_participants(self.drawn, self.clients)
        if self.beta is not None:
            check_number("guarantee", "beta", self.beta, above=0)

    def _check_covered(self) -> None:
        """Refuse what the paper has no theorem for."""
        stochastic, weak = self.gradient_noise is not None, self.weak_convexity is not None
        if stochastic and weak:
            raise SettingError(
                "guarantee: the paper has no theorem for mini-batches and a weakly convex objective together"
            )
        if (stochastic or weak) and (self.rule == "soft" or self.compressed):
            what = "mini-batch gradients" if stochastic else "a weakly convex objective"
            raise SettingError(f"guarantee: with {what} the paper's theorem is for rule='hard' without compression")
        if self.rule == "hard" and self.beta is not None:
            raise SettingError(f"guarantee: beta={self.beta!r}, but the hard rule has none; rule='soft' does")
        if self.sampled and self.query == "memory":
            raise SettingError("guarantee: no theorem covers query='memory'; 'participants' and 'all' have one")
        if self.sampled and self.compressed and self.random:
            raise SettingError(
                "guarantee: with sampled clients the theorem is for deterministic compressors, e.g. TopK"
            )
        if self.rule == "soft" and self.sampled and self.stated:
            raise SettingError(
                "guarantee: the paper states no theorem for soft switching with sampled clients; "
                "form='proof' gives a bound"
            )
