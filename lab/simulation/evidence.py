"""What the checks of a simulated world know of its sequences, and how they say what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from lab.simulation.workload import Arrival
from telemetry.facts.reasons import EndReason


class InvariantViolated(Exception):
    """Invariant `number` does not hold."""

    def __init__(self, number: int, detail: str) -> None:
        super().__init__(f"INV-{number}: {detail}")
        self.number = number


def require(number: int, holds: bool, detail: object) -> None:
    if not holds:
        raise InvariantViolated(number, str(detail))


@dataclass(slots=True)
class Seen:
    """What the checker knows of one sequence, from its own observation."""

    arrival: Arrival
    submitted_ns: int
    adapter: int = 0
    tokens: list[int] = field(default_factory=list)
    end_emitted: EndReason | None = None
    end_fact: EndReason | None = None
    tokens_in_fact: int | None = None
