"""Which faults are said, and in which order; what follows from another is not said beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from diagnosis.routed.symptoms import FleetExclusion, FleetFault, FleetSymptom
from diagnosis.routed.thresholds import GONE_TICKS, HELD_TICKS

S = FleetSymptom

EXPLAINS: dict[FleetSymptom, tuple[FleetSymptom, ...]] = {
    S.REPLICA_SLOW: (S.HOT_PREFIX, S.ROUTER_HERDING, S.AFFINITY_LOST, S.SIGNALS_STALE),
    S.SIGNALS_STALE: (S.ROUTER_HERDING, S.AFFINITY_LOST, S.HOT_PREFIX),
    S.HOT_PREFIX: (S.ROUTER_HERDING, S.AFFINITY_LOST),
    S.ROUTER_HERDING: (S.AFFINITY_LOST,),
    S.TRANSFER_STALL: (
        S.KV_STRANDED, S.STAGING_FULL, S.TRANSFER_SLOW, S.SPLIT_NOT_WORTH_IT, S.DECODE_BOUND,
    ),
    S.TRANSFER_SLOW: (S.SPLIT_NOT_WORTH_IT, S.STAGING_FULL, S.DECODE_BOUND),
    S.PREFILL_BOUND: (
        S.SPLIT_NOT_WORTH_IT, S.STAGING_FULL, S.TRANSFER_SLOW, S.TRANSFER_STALL
    ),
    S.KV_STRANDED: (S.STAGING_FULL, S.DECODE_BOUND, S.TRANSFER_SLOW),
    S.STAGING_FULL: (S.DECODE_BOUND, S.SPLIT_NOT_WORTH_IT),
    S.DECODE_BOUND: (S.SPLIT_NOT_WORTH_IT,),
}  # fmt: skip
"""What follows from each: where both are seen, the first is the cause."""


def ranked(faults: Iterable[FleetFault]) -> tuple[FleetFault, ...]:
    """Causes first, by harm; what follows from one of them is not said beside it."""
    found = {one.symptom: one for one in faults}
    implied = {other for symptom in found for other in EXPLAINS.get(symptom, ())}
    kept = [one for one in found.values() if one.symptom not in implied]
    kept.sort(key=lambda one: -one.harm_ms)
    total = sum(one.harm_ms for one in kept)
    follows = {
        one.symptom: tuple(
            FleetExclusion(other, "it follows from this one")
            for other in EXPLAINS.get(one.symptom, ())
            if other in found
        )
        for one in kept
    }
    return tuple(
        replace(
            one,
            share=round(one.harm_ms / total, 3) if total else 0.0,
            excluded=follows[one.symptom],
        )
        for one in kept
    )


class Held:
    """Says a fault once it has been there for some ticks, and until it has been gone for some."""

    def __init__(self) -> None:
        self._since: dict[FleetSymptom, int] = {}
        self._ticks: dict[FleetSymptom, int] = {}
        self._gone: dict[FleetSymptom, int] = {}
        self._last: dict[FleetSymptom, FleetFault] = {}

    def take(self, faults: Sequence[FleetFault], at_ns: int) -> list[FleetFault]:
        """The faults that are said after a tick that ended at `at_ns`, with their onsets."""
        now = {one.symptom: one for one in faults}
        for symptom in list(self._last):
            if symptom not in now:
                self._gone[symptom] = self._gone.get(symptom, 0) + 1
                if self._gone[symptom] >= GONE_TICKS:
                    for kept in (self._since, self._ticks, self._gone, self._last):
                        kept.pop(symptom, None)
        for symptom, fault in now.items():
            self._gone.pop(symptom, None)
            self._since.setdefault(symptom, at_ns)
            self._ticks[symptom] = self._ticks.get(symptom, 0) + 1
            self._last[symptom] = replace(fault, onset_ns=self._since[symptom])
        return [one for symptom, one in self._last.items() if self._ticks[symptom] >= HELD_TICKS]
