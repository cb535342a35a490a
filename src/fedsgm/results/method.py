"""What a result knows of the algorithm that made it: the one place that reads the description in its settings."""

from __future__ import annotations

import dataclasses
from typing import Any

# A rule that has these as they mostly are is not told apart by them.
_PLAIN = {"ceiling": 1.0, "augment": 0.0, "margin": 0.0}


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm's settings, whichever algorithm it was.

    Attributes:
        name: the algorithm's class; ``rule`` is that of FedSGM's rule, None for another algorithm.
        rule_settings: the rule's own, such as beta.
        clients, participants: n, and how many of them take part in a round.
        local_steps: E.
        settings: all that the algorithm was made with, by field.
    """

    name: str
    rule: str | None
    rule_settings: dict[str, Any]
    clients: int
    participants: int
    local_steps: int
    settings: dict[str, Any]

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Method:
        """From the settings of a result."""
        algorithm = settings["algorithm"]
        rule = dict(algorithm.get("rule", {}))
        return cls(
            algorithm["is"],
            rule.pop("is", None),
            rule,
            settings["clients"],
            algorithm.get("participants") or settings["clients"],
            algorithm.get("local_steps", 1),
            algorithm,
        )

    @property
    def kind(self) -> str:
        """What tells methods apart: FedSGM's rule, or another algorithm's name."""
        return self.rule or self.name

    @property
    def switches(self) -> bool:
        """Whether its weights are shares, ``1 - s`` and ``s``, so that they tell of the multiplier."""
        return self.rule in ("Hard", "Soft", "Adaptive")

    @property
    def samples(self) -> bool:
        """Whether a round sees some of the clients only."""
        return self.participants < self.clients

    @property
    def asked(self) -> str:
        """Who else decides, where a round sees some of the clients only; nothing if nobody does."""
        query = self.settings.get("query") if self.samples else None
        return {"all": ", all asked", "memory": ", the others remembered"}.get(query or "", "")

    @property
    def promise(self) -> dict[str, Any] | None:
        """The guarantee that it was set up for."""
        return self.settings.get("promise")

    @property
    def title(self) -> str:
        """One line for a picture."""
        details = "".join(
            f", {key} {value:g}" if isinstance(value, float) else f", {key} {value}"
            for key, value in self.rule_settings.items()
            if _PLAIN.get(key) != value
        )
        method = f"{self.name}, {self.rule.lower()} rule{details}" if self.rule else self.name
        size = self.settings.get("step_size")
        step = "" if size is None else f", step size {size:g}" if isinstance(size, float) else ", scheduled step size"
        return f"{method}: {self.participants} of {self.clients} clients{self.asked}, E = {self.local_steps}{step}"
