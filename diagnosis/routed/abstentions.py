"""Symptoms that a gateway cannot judge, by name, with what they need."""

from __future__ import annotations

from dataclasses import dataclass

from diagnosis.routed.symptoms import FleetAbstention, FleetNeed, FleetSymptom

N, S = FleetNeed, FleetSymptom

NEEDS: dict[FleetSymptom, tuple[FleetNeed, ...]] = {
    S.REPLICA_SLOW: (N.ROUTED, N.TWO_ENGINES, N.COSTS, N.HISTORY),
    S.ROUTER_HERDING: (N.ROUTED, N.TWO_ENGINES, N.REPORTS, N.HISTORY),
    S.HOT_PREFIX: (N.ROUTED, N.TWO_ENGINES, N.PREFIXES, N.HISTORY),
    S.AFFINITY_LOST: (N.ROUTED, N.PREFIXES, N.HISTORY),
    S.SIGNALS_STALE: (N.REPORTS,),
    S.CLOCK_UNBOUNDED: (N.CLOCKS,),
    S.PREFILL_BOUND: (N.KV_TRANSFERS, N.KV_HISTORY),
    S.DECODE_BOUND: (N.KV_TRANSFERS, N.KV_HISTORY),
    S.TRANSFER_SLOW: (N.KV_TRANSFERS, N.KV_HISTORY),
    S.TRANSFER_STALL: (N.KV_TRANSFERS,),
    S.STAGING_FULL: (N.KV_TRANSFERS,),
    S.KV_STRANDED: (N.KV_TRANSFERS,),
    S.SPLIT_NOT_WORTH_IT: (N.KV_TRANSFERS, N.SPLITS),
    S.KV_CORRUPT: (N.KV_TRANSFERS,),
}


@dataclass(slots=True)
class Seen:
    """What this gateway, or engine, has recorded so far."""

    routed: bool = False
    reports: bool = False
    costs: bool = False
    clocks: bool = False
    prefixes: bool = False
    history: bool = False
    kv: bool = False
    kv_history: bool = False
    splits: bool = False


def abstentions(seen: Seen, engines: int) -> tuple[FleetAbstention, ...]:
    """In the order of the symptoms."""
    there = {
        N.ROUTED: seen.routed,
        N.TWO_ENGINES: engines > 1,
        N.REPORTS: seen.reports,
        N.COSTS: seen.costs,
        N.CLOCKS: seen.clocks,
        N.PREFIXES: seen.prefixes,
        N.HISTORY: seen.history,
        N.KV_TRANSFERS: seen.kv,
        N.KV_HISTORY: seen.kv_history,
        N.SPLITS: seen.splits,
    }
    found = (
        (symptom, [one for one in needs if not there[one]]) for symptom, needs in NEEDS.items()
    )
    return tuple(
        FleetAbstention(symptom, tuple(one.value for one in missing))
        for symptom, missing in found
        if missing
    )
