"""A figure with its limit, and quantiles in which never is later than any time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from telemetry.numbers.quantiles import rank


class Figure(msgspec.Struct, frozen=True):
    """A measured value beside what is asked of it; None is a value that does not exist, and does
    not hold."""

    name: str
    value: float | None
    limit: float
    at_least: bool

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        value = "never" if self.value is None else f"{self.value:g}"
        return f"{'holds' if self.holds else 'FAILS'}: {self.name} {value} ({sign} {self.limit:g})"


def nth(values: Iterable[float], share: float) -> float:
    """The nearest rank, of at least one value."""
    ordered = sorted(values)
    return ordered[rank(share, len(ordered)) - 1]
