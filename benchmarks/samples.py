"""What a figure needs to be one: enough values behind a quantile, and a load that was there."""

from __future__ import annotations

from collections.abc import Iterable

from telemetry.numbers.quantiles import quantile


class NotMeasured(Exception):
    """The load that a figure is of was not there; the message is one line."""


def least_count(share: float) -> int:
    """How many values a quantile needs: one beyond it at least. With fewer it is their maximum,
    whatever the share is: 20 for a p95, 100 for a p99."""
    return round(1 / (1 - share)) if 0.5 < share < 1 else 1


def known_quantile(values: Iterable[float], share: float) -> float | None:
    """The quantile by the server's own definition; None of too few."""
    found = list(values)
    return quantile(found, share) if len(found) >= least_count(share) else None
