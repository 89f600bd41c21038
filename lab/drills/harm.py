"""How hard a fault hits its clients, as a number that an intensity is set by.

Faults of the tail are stated from the clients' side: "the p95 of TTFT doubled", or "a third of the
requests had a gap above the target of their class". Both are computed from the clients' log alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from lab.drills.client import Sent
from telemetry.numbers.quantiles import quantile

_HIGH = 0.95
_LEAST_REQUESTS = 8
GAP_TARGET_NS = 100_000_000
"""The inter-token target of the default SLO class, in which the drills send their requests."""


class HarmMeasure(StrEnum):
    """What is measured of the requests of a span."""

    TTFT_P95 = "ttft_p95"  # ms; compared with the reference as a ratio
    GAP_SHARE = "gap_share"  # share of requests with a gap above the target


class Level(StrEnum):
    """The two intensities of a fault of the tail."""

    LOWER = "lower"
    UPPER = "upper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What the intensity of a mechanism is set by. Without `everyone` culprits' requests are left
    out; requests of fewer than `least_tokens` tokens always are."""

    measure: HarmMeasure
    everyone: bool = False
    least_tokens: int = 0

    def chosen(self, log: Iterable[Sent]) -> list[Sent]:
        """Requests that count; one that did not end may still reach its length, and one that was
        refused is none."""
        return [
            one
            for one in log
            if one.status in (0, 200)
            and (self.everyone or not one.is_culprit)
            and (one.tokens >= self.least_tokens or (not one.is_good and not one.left))
        ]

    def value(self, log: Iterable[Sent], end_ns: int) -> float | None:
        """The measure over a log: ms, or a share. A request without its first token counts as late
        until `end_ns`. None of too few requests."""
        chosen = self.chosen(log)
        if len(chosen) < _LEAST_REQUESTS:
            return None
        if self.measure is HarmMeasure.GAP_SHARE:
            return sum(has_gap(one) for one in chosen) / len(chosen)
        waits_ms = [((one.first_ns or end_ns) - one.due_ns) / 1e6 for one in chosen]
        return quantile(waits_ms, _HIGH)


def has_gap(one: Sent) -> bool:
    """Whether two pieces of its content were further apart than its class allows."""
    return any(1000 * gap_us > GAP_TARGET_NS for gap_us in one.gaps_us)


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault did to its clients. `value` is the ratio of TTFT p95, or the share of requests
    with a gap; `reference` and `fault` are in the measure's own unit. None: too few requests."""

    measure: HarmMeasure
    reference: float | None
    fault: float | None
    requests: int

    @property
    def value(self) -> float | None:
        if self.measure is HarmMeasure.GAP_SHARE:
            return self.fault
        if self.fault is None or not self.reference:
            return None
        return self.fault / self.reference


def reached(harm: Harm, reference: Sequence[Sent], fault: Sequence[Sent], end_ns: int) -> Reached:
    """Compare the requests of a fault with those of its reference."""
    return Reached(
        measure=harm.measure,
        reference=_rounded(harm.value(reference, end_ns)),
        fault=_rounded(harm.value(fault, end_ns)),
        requests=len(harm.chosen(fault)),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
