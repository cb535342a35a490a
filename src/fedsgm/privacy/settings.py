"""What a private run promises, and what its users must declare for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.base.structs import check_count, check_number, hidden, static, struct

Range = float | tuple[float, float]
UNITS = ("example", "client")


@struct
class Privacy:
    r"""``FedSGM(privacy=Privacy(...))``: what is released is (epsilon, delta)-differentially private.

    .. math:: P[M(D) \in A] \le e^{\varepsilon} P[M(D') \in A] + \delta
        \quad \text{for neighbours } D, D' \text{ and every } A

    With the unit ``"example"`` that is everything that leaves a client; two data sets are neighbours if one example of
    one client is replaced by another that the same quantities average over. With ``"client"`` it is everything that
    leaves the server, which is trusted, or with secure aggregation all that the server sees; neighbours are
    federations of which one client's data are replaced by any others.

    Gradients of examples are clipped and noised as by Abadi et al., *Deep Learning with Differential Privacy*
    (2016); the account is dp-accounting's.

    >>> ranges = {"objective": (0.0, 4.0), "minority": (0.0, 4.0)}
    >>> Privacy(epsilon=2.0, delta=1e-5, rounds=100, clip=1.0, ranges=ranges).epsilon
    2.0

    Args:
        epsilon, delta: of the whole run.
        rounds: for which the noise is made: that many one client can take part in.
        clip: the length to which one example's gradient, of the mixed objective and constraints, is cut; or that of
            one client's message.
        ranges: what one example, or one client, can say of the objective and of each constraint, by name: of a
            ``Mean`` the least and the largest value, of a ``Statistic`` how long its sums can be, or ``(0.0, length)``
            where none of them is ever negative, which needs less noise; what is beyond is cut.
        share: of the budget of a round, that of the constraints' statistics; the rest is the update's.
        unit: whose data is hidden, an ``"example"`` or a whole ``"client"``.
        secret: of the noise; drawn from the operating system unless told, which is for tests: who knows it can take
            the noise off. It is in no file.
    """

    epsilon: float = static()
    delta: float = static()
    rounds: int = static()
    clip: float
    ranges: Any = static()
    share: float = static(default=0.2)
    unit: str = static(default="example")
    secret: Any = hidden(default=None)

    def __post_init__(self) -> None:
        check_number("Privacy", "epsilon", self.epsilon, above=0)
        check_number("Privacy", "delta", self.delta, above=0)
        if self.delta >= 1:
            raise SettingError(
                f"Privacy: delta={self.delta}, but it must be below 1, and well below one in all examples"
            )
        check_count("Privacy", "rounds", self.rounds)
        check_number("Privacy", "clip", self.clip, above=0)
        check_number("Privacy", "share", self.share, above=0)
        if self.share >= 1:
            raise SettingError(f"Privacy: share={self.share}, but it must be below 1: the update needs a part as well")
        if self.unit not in UNITS:
            raise SettingError(f"Privacy: unit={self.unit!r}, but it must be one of {', '.join(UNITS)}")
        if self.secret is not None:
            check_count("Privacy", "secret", self.secret, least=0, most=2**64 - 1)
        if not isinstance(self.ranges, (Mapping, tuple)):  # a tuple is what another one's were made into
            raise SettingError("Privacy: ranges must be a dictionary, such as {'objective': (0.0, 3.0), 'gap': 1.5}")
        object.__setattr__(
            self, "ranges", tuple((name, _checked(name, each)) for name, each in dict(self.ranges).items())
        )

    @property
    def longest(self) -> Any:
        """How long a client's message can be, where it is that which is cut."""
        return self.clip if self.unit == "client" else None

    def range_of(self, name: str) -> Range | None:
        return dict(self.ranges).get(name)


def _checked(name: str, given: Any) -> Range:
    if isinstance(given, (tuple, list)) and len(given) == 2:
        for bound in given:
            check_number("Privacy", f"ranges[{name!r}]", bound)
        if given[0] < given[1]:
            return float(given[0]), float(given[1])
        raise SettingError(f"Privacy: ranges[{name!r}]={given}, but the first must be below the second")
    check_number("Privacy", f"ranges[{name!r}]", given, above=0)
    return float(given)
