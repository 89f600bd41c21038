"""Amounts by cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from diagnosis.symptoms import Symptom


class Charges(defaultdict[Symptom, float]):
    """What each cause is charged; nothing until something is added."""

    def __init__(self, known: Mapping[Symptom, float] | None = None) -> None:
        super().__init__(float, known or {})

    def ranked(self) -> list[tuple[Symptom, float]]:
        """The largest first."""
        return sorted(self.items(), key=lambda entry: -entry[1])


def shares_of(parts: Mapping[Symptom, float]) -> Charges:
    """Each part that is above zero over their sum; empty when there is none."""
    total = sum(spent for spent in parts.values() if spent > 0)
    return Charges({one: spent / total for one, spent in parts.items() if spent > 0})
